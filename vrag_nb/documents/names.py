"""How the files of a folder become documents, and what each is called.

A file directly in the folder is named by its stem, so that `report.pdf` is document `report` and its third page
`report_3`: the gold pages of a question file then fit as they are. One in a sub-folder is named by its path, `/`
written `__`: `north/report.pdf` is `north__report`. Where two names still meet (`report.pdf` beside `report.png`, or
names that differ only in case), the PDF, then the first in alphabetical order, keeps the plain name; the others take
their suffix along (`report.png`) or, failing that, a hash of their path. Characters that file systems refuse become
`_`. Adding a file never renames another, save the twin it displaces. Hidden files are not looked at, and links to
folders are not followed.

A question means a file by its name alone; `resolve_questions` turns those about a displaced twin to its document, and
those about a video that is not there away from a document of pages that has its name.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path, PurePath, PurePosixPath

from vrag_nb.document_names import VIDEO_SUFFIXES, file_of, known_suffix, safe_name, short_hash
from vrag_nb.documents.rendered import SourceError
from vrag_nb.documents.sources import source_for
from vrag_nb.records import Question


def find_sources(documents: Path) -> tuple[dict[str, Path], dict[str, str]]:
    """`{document: file}` of every readable kind below the folder, and `{file: reason}` of what cannot be read."""
    readable, others = [], {}
    closed: set[Path] = set()
    for path in sorted(documents.rglob("*")):
        relative = path.relative_to(documents)
        if any(part.startswith(".") for part in relative.parts) or closed.intersection(path.parents):
            continue
        if (said := relative.as_posix().encode("utf-8", "backslashreplace").decode()) != relative.as_posix():
            others[said] = "its name is not UTF-8: rename it"
            closed.add(path)
            continue
        if path.is_symlink() and not path.exists():
            others[relative.as_posix()] = "a link to what is not there"
        elif path.is_symlink() and path.is_dir():
            others[relative.as_posix()] = "a link to a folder, which is not followed"
        elif path.is_dir() and not os.access(path, os.R_OK | os.X_OK):
            others[relative.as_posix()] = "a folder that cannot be read"
            closed.add(path)  # of one that can only be listed, the files come all the same
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
        name = next(name for name in _candidates(relative) if name.casefold() not in taken)
        taken.add(name.casefold())
        yield name, relative


def _candidates(relative: PurePath) -> list[str]:
    """What a file's document may be called: the plain name, and what it is called where that is a twin's."""
    plain = "__".join(relative.with_suffix("").parts)
    return [safe_name(name) for name in (plain, "__".join(relative.parts), f"{plain}~{short_hash(relative)}")]


def resolve_questions(questions: Sequence[Question], corpus: Path) -> list[Question]:
    """The questions, those about a twin that lost the plain name, or of another medium, turned to its own document.

    `talk.mp4` beside `talk.pdf` is document `talk.mp4`, and `Question.document` would be the PDF's, `talk`: such a
    question gets the file name `talk.mp4.mp4`, which means `talk.mp4`. So does one about `talk.mp4` where `talk` was
    prepared from a PDF, whose page 2 is not the video's second chunk: it then means what is not there. Between a PDF
    and pictures nothing is turned: data sets call pages of pictures by their PDF. All others, and all of a corpus that
    is not prepared, stay as they are.
    """
    import pyarrow.parquet as pq  # here: naming files does without it

    table = Path(corpus) / "pages.parquet"
    if not table.is_file():
        return list(questions)
    documents = set(pq.read_table(table, columns=["document"])["document"].to_pylist())
    source_of = cache(partial(_source_of, Path(corpus)))
    return [_resolved(question, documents, source_of) for question in questions]


def _resolved(question: Question, documents: set[str], source_of: Callable[[str], PurePosixPath | None]) -> Question:
    file = question.meta_info.file_name
    if not known_suffix(file):
        return question
    plain, *names = _candidates(PurePosixPath(file))
    meant = next((name for name in names if name in documents and _may_be(source_of(name), file)), None)
    if meant is None and plain in documents and _of_another_medium(source_of(plain), file):
        meant = next((name for name in names if name not in documents), None)
    if meant is None:
        return question
    meta = question.meta_info.model_copy(update={"file_name": file_of(meant, file)})
    return question.model_copy(update={"meta_info": meta})


def _source_of(corpus: Path, document: str) -> PurePosixPath | None:
    """What the document was prepared from; None where the corpus was merged or brought in: there is only the name."""
    try:
        return PurePosixPath(json.loads((corpus / ".prep" / f"{document}.json").read_bytes())["source"])
    except (OSError, ValueError, KeyError):
        return None


def _may_be(source: PurePosixPath | None, file: str) -> bool:
    """Whether the source is this file, as far as is known: document `scan.png` may be that of `scan.png.pdf`."""
    if source is None:
        return True
    return safe_name(str(PurePosixPath(file))) in map(safe_name, (str(source), "__".join(source.parts)))


def _of_another_medium(source: PurePosixPath | None, file: str) -> bool:
    """Whether one is a video and the other is not, as far as is known."""
    return source is not None and _is_video(source) != _is_video(PurePosixPath(file))


def _is_video(file: PurePosixPath) -> bool:
    return file.suffix.lower() in VIDEO_SUFFIXES
