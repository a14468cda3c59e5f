"""Several prepared corpora and their questions become one corpus, as the papers evaluate: retrieval over all of it.

    report = merge_corpora([Part("slidevqa", corpus_a, questions_a), Part("vidoseek", corpus_b, questions_b)], out)

writes below `out`

    pages/{document}_{page}.png   hard links to the parts' images, copies where the file system has no links
    pages.parquet                 one records.Page a row, in document then page order; written last
    questions.test.parquet        all questions, each with `meta_info.part`, the name of where it came from
    merge_report.json             counts by part; what was shared, renamed, alike; what did not fit

**Names.** A document keeps its name while no earlier part has one of that name (upper and lower case alike). Where two
meet and have the same pages, the same bytes under the same numbers, the document is there once and both parts'
questions point at it: some data sets share decks. Where they differ, the later one becomes `{part}__{document}`. Uids
go the same way: `{part}__{uid}` where an earlier part has it. The order of the parts decides and nothing else, so that
the same parts give the same corpus, byte for byte. Documents of the same bytes under two names stay both and are named
in the report: a search may find the copy that is not gold.

A question whose document its own part lacks is left out, a gold page its document lacks is dropped; both are named.
A killed merge is run again.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from vrag_nb.document_names import file_of, safe_name
from vrag_nb.documents.annotations import check_pages
from vrag_nb.documents.names import resolve_questions
from vrag_nb.documents.pages import page_path
from vrag_nb.files import replacing
from vrag_nb.folder_lock import alone_in
from vrag_nb.records import Page, Question, page_id, read_pages, write_pages, write_questions

QUESTIONS = "questions.test.parquet"  # what a profile reads unless it names another file
REPORT = "merge_report.json"
_MARK = ".merged"  # says that pages/ is this module's to change


Prints = tuple[tuple[int, str], ...]  # (page, sha256 of its image) in order


@dataclass(frozen=True)
class Part:
    """A prepared corpus folder under a short name of letters, digits, "-" and "_", and questions about it."""

    name: str
    corpus: Path
    questions: Sequence[Question] = field(default=(), repr=False)


class PartCount(BaseModel):
    """What a part brought in: shared documents are counted with each part that has them."""

    documents: int
    pages: int
    questions: int


class MergeReport(BaseModel):
    """Counts of the whole and by part. `shared`, `renamed`, `alike`, `problems`: one line each, in words."""

    documents: int
    pages: int
    questions: int
    parts: dict[str, PartCount] = Field(default_factory=dict)
    shared: list[str] = Field(default_factory=list)
    renamed: list[str] = Field(default_factory=list)
    alike: list[str] = Field(default_factory=list)
    problems: list[str] = Field(default_factory=list)


@dataclass
class _Merged:
    """The corpus as it grows. `key`: a document's name without case; `prints`: what its page images are, as bytes."""

    names: dict[str, str] = field(default_factory=dict)  # key -> document
    prints: dict[str, Prints] = field(default_factory=dict)  # document -> its pages'
    pages: list[tuple[Page, Path]] = field(default_factory=list)  # with the image each comes from
    questions: dict[str, Question] = field(default_factory=dict)


def merge_corpora(parts: Sequence[Part], out: Path) -> MergeReport:
    """Merge `parts`, in this order, into the corpus folder `out`, replacing what an earlier merge left there.

    Raises ValueError for no parts, part names that are not unique or not plain, and an `out` that is a part's folder or
    holds pages that no merge made; FileNotFoundError for a part that is not prepared or lacks an image;
    FolderInUseError while another process writes a corpus there.
    """
    out = Path(out)
    _check(parts, out)
    with alone_in(out / "pages"):
        _check(parts, out)  # again: another process may have been there
        return _merge(parts, out)


def _merge(parts: Sequence[Part], out: Path) -> MergeReport:
    merged, report = _Merged(), MergeReport(documents=0, pages=0, questions=0)
    for part in parts:
        pages = read_pages(part.corpus)
        documents = _take_documents(part, pages, merged, report)
        kept, problems = check_pages(resolve_questions(part.questions, part.corpus), pages)
        report.problems += [f"{part.name}: {problem}" for problem in problems]
        for question in kept:
            _take_question(part, question, documents, merged, report)
        report.parts[part.name] = PartCount(documents=len(documents), pages=len(pages), questions=len(kept))
    report.alike = _alike(merged)
    report.documents, report.pages = len(merged.prints), len(merged.pages)
    report.questions = len(merged.questions)
    _write(out, merged, report)
    return report


def _check(parts: Sequence[Part], out: Path) -> None:
    if not parts:
        raise ValueError("there is nothing to merge: name at least one part")
    names = [part.name for part in parts]
    odd = [name for name in names if not name.replace("-", "").replace("_", "").isalnum()]
    if odd:
        raise ValueError(f"the part name {odd[0]!r} is not made of letters, digits, - and _")
    if len({name.casefold() for name in names}) < len(names):
        raise ValueError(f"two parts have one name: {', '.join(names)}")
    inside = [part.name for part in parts if Path(part.corpus).resolve() == out.resolve()]
    if inside:
        raise ValueError(f"the merged corpus cannot be written into {out}, which is the part {inside[0]} itself")
    if (out / "pages").is_dir() and not (out / _MARK).is_file() and any((out / "pages").iterdir()):
        raise ValueError(f"{out / 'pages'} holds files that no merge made and would remove; choose another folder")


def _take_documents(part: Part, pages: Sequence[Page], merged: _Merged, report: MergeReport) -> dict[str, str]:
    """`{document in the part: document in the merged corpus}`."""
    by_document: dict[str, list[Page]] = {}
    for page in pages:
        by_document.setdefault(page.document, []).append(page)
    names: dict[str, str] = {}
    for document in sorted(by_document):
        members = sorted(by_document[document], key=lambda page: page.page)
        prints = tuple((page.page, page.sha256) for page in members)
        earlier = merged.names.get(document.casefold())
        if earlier is not None and _known(prints) and merged.prints[earlier] == prints:
            names[document] = earlier
            report.shared.append(f"{part.name}: {document} is the same as {earlier}")
            continue
        name = document if earlier is None else _free(safe_name(f"{part.name}__{document}"), merged.names)
        if name != document:
            report.renamed.append(f"{part.name}: document {document} is {name} here")
        names[document], merged.names[name.casefold()], merged.prints[name] = name, name, prints
        merged.pages += [(_renamed(page, name), page_path(part.corpus, page)) for page in members]
    return names


def _renamed(page: Page, document: str) -> Page:
    name = page_id(document, page.page)
    image = f"pages/{name}{Path(page.image).suffix}"
    video = page.video
    if video is not None:  # its frames' files are named after it
        frames = [
            frame.model_copy(update={"image": f"pages/{name}{Path(frame.image).name.removeprefix(page.page_id)}"})
            for frame in video.frames
        ]
        video = video.model_copy(update={"frames": frames})
    return page.model_copy(update={"document": document, "page_id": name, "image": image, "video": video})


def _take_question(
    part: Part, question: Question, documents: dict[str, str], merged: _Merged, report: MergeReport
) -> None:
    uid = question.uid
    if uid in merged.questions:
        uid = _free(f"{part.name}__{uid}", merged.questions)
        report.renamed.append(f"{part.name}: question {question.uid} is {uid} here")
    changes = {"part": part.name, **_moved(question, documents)}
    meta = question.meta_info.model_validate({**question.meta_info.model_dump(), **changes})
    merged.questions[uid] = question.model_copy(update={"uid": uid, "meta_info": meta})


def _moved(question: Question, documents: dict[str, str]) -> dict[str, Any]:
    """The fields of a question's meta_info that name documents, where there are any, as they are called here."""
    changes: dict[str, Any] = {}
    document = documents.get(question.document)
    named = (question.meta_info.model_extra or {}).get("reference_documents")
    if document is not None and document != question.document:
        changes["file_name"] = file_of(document, question.meta_info.file_name)
    if named:
        changes["reference_documents"] = [documents.get(name, name) for name in named]
    if question.needed_facts:
        changes["needed_facts"] = [
            {**fact, "document": documents[fact["document"]]} if fact.get("document") in documents else fact
            for fact in question.needed_facts
        ]
    return changes


def _free(name: str, taken: Iterable[str]) -> str:
    """`name`, or `name~2`, `name~3`, ... where it is taken, case apart."""
    used, count, free = {one.casefold() for one in taken}, 1, name
    while free.casefold() in used:
        count += 1
        free = f"{name}~{count}"
    return free


def _alike(merged: _Merged) -> list[str]:
    by_images: dict[tuple[str, ...], list[str]] = {}
    for document, prints in merged.prints.items():
        if _known(prints):
            by_images.setdefault(tuple(sha256 for _, sha256 in prints), []).append(document)
    return [f"{' and '.join(names)} are the same pages" for names in by_images.values() if len(names) > 1]


def _known(prints: Prints) -> bool:
    return all(sha256 for _, sha256 in prints)


def _write(out: Path, merged: _Merged, report: MergeReport) -> None:
    (out / "pages").mkdir(parents=True, exist_ok=True)
    (out / _MARK).touch()
    (out / "pages.parquet").unlink(missing_ok=True)  # until it is written again this is no corpus
    wanted = {Path(image).name for page, _ in merged.pages for image in page.images}
    for path in (out / "pages").iterdir():
        if path.name not in wanted and not path.is_dir():
            path.unlink()
    for page, image in merged.pages:
        _link(image, out / page.image, page)
        for frame in page.images[1:]:
            _link(image.with_name(image.stem + Path(frame).name.removeprefix(page.page_id)), out / frame, page)
    write_questions(out / QUESTIONS, list(merged.questions.values()))
    (out / REPORT).write_text(report.model_dump_json(indent=1), encoding="utf-8")
    pages = sorted((page for page, _ in merged.pages), key=lambda page: (page.document, page.page))
    write_pages(out, pages)


def _link(image: Path, target: Path, page: Page) -> None:
    if not image.is_file():
        raise FileNotFoundError(f"page {page.page_id}: there is no image {image}; prepare that part again")
    if target.exists() and target.samefile(image):
        return
    with replacing(target) as temporary:
        try:
            os.link(image, temporary)
        except OSError:  # another file system, or one without links
            shutil.copyfile(image, temporary)
