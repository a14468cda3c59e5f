"""How the files of a folder become documents, and what each is called.

A file directly in the folder is named by its stem, so that `report.pdf` is document `report` and its third page
`report_3`: the gold pages of a question file then fit as they are. One in a sub-folder is named by its path, `/`
written `__`: `north/report.pdf` is `north__report`. Where two names still meet (`report.pdf` beside `report.png`, or
names that differ only in case), the PDF, then the first in alphabetical order, keeps the plain name; the others take
their suffix along (`report.png`) or, failing that, a hash of their path. Characters that file systems refuse become
`_`. Adding a file never renames another, save the twin it displaces. Hidden files are not looked at.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path

from vrag_nb.documents.sources import SourceError, source_for

MAX_NAME_BYTES = 200  # leaves room for the page number and the suffix within a file system's 255


def find_sources(documents: Path) -> tuple[dict[str, Path], dict[str, str]]:
    """`{document: file}` of every readable kind below the folder, and `{file: reason}` of the other kinds."""
    readable, others = [], {}
    for path in sorted(documents.rglob("*")):
        relative = path.relative_to(documents)
        if not path.is_file() or any(part.startswith(".") for part in relative.parts):
            continue
        try:
            source_for(path)
            readable.append(relative)
        except SourceError as error:
            others[relative.as_posix()] = str(error)
    return {name: documents / relative for name, relative in _name_documents(readable)}, others


def _name_documents(files: Iterable[Path]) -> Iterator[tuple[str, Path]]:
    taken: set[str] = set()
    for relative in sorted(files, key=lambda file: (file.suffix.lower() != ".pdf", file.as_posix())):
        plain = "__".join(relative.with_suffix("").parts)
        candidates = [plain, "__".join(relative.parts), f"{plain}~{_short_hash(relative)}"]
        name = next(name for name in map(safe_name, candidates) if name.casefold() not in taken)
        taken.add(name.casefold())
        yield name, relative


def safe_name(name: str) -> str:
    """The name without what a file system, a URL or a shell would stumble over; cut, with a hash, when too long."""
    safe = re.sub(r'[\x00-\x1f\x7f<>:"/\\|?*]', "_", unicodedata.normalize("NFC", name))
    safe = safe.encode("utf-8", "replace").decode("utf-8").strip(" ").lstrip(".") or "document"
    if len(safe.encode()) > MAX_NAME_BYTES:
        safe = safe.encode()[: MAX_NAME_BYTES - 9].decode("utf-8", "ignore") + "~" + _short_hash(name)
    return safe


def _short_hash(name: object) -> str:
    return hashlib.sha256(str(name).encode("utf-8", "surrogateescape")).hexdigest()[:8]
