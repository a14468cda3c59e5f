"""How the files of a folder become documents, and what each is called.

A file directly in the folder is named by its stem, so that `report.pdf` is document `report` and its third page
`report_3`: the gold pages of a question file then fit as they are. One in a sub-folder is named by its path, `/`
written `__`: `north/report.pdf` is `north__report`. Where two names still meet (`report.pdf` beside `report.png`, or
names that differ only in case), the PDF, then the first in alphabetical order, keeps the plain name; the others take
their suffix along (`report.png`) or, failing that, a hash of their path. Characters that file systems refuse become
`_`. Adding a file never renames another, save the twin it displaces. Hidden files are not looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from vrag_nb.document_names import safe_name, short_hash
from vrag_nb.documents.sources import SourceError, source_for


def find_sources(documents: Path) -> tuple[dict[str, Path], dict[str, str]]:
    """`{document: file}` of every readable kind below the folder, and `{file: reason}` of what cannot be read."""
    readable, others = [], {}
    for path in sorted(documents.rglob("*")):
        relative = path.relative_to(documents)
        if any(part.startswith(".") for part in relative.parts):
            continue
        if path.is_symlink() and not path.exists():
            others[relative.as_posix()] = "a link to what is not there"
        if not path.is_file():
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
        candidates = [plain, "__".join(relative.parts), f"{plain}~{short_hash(relative)}"]
        name = next(name for name in map(safe_name, candidates) if name.casefold() not in taken)
        taken.add(name.casefold())
        yield name, relative
