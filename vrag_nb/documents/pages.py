"""A folder of documents becomes a corpus: one image per page, the text layer beside it.

    report = prepare_corpus(Path("papers"), Path("data/corpora/papers"))

reads every PDF, picture and video below `papers` (other kinds of files are named in the report) and writes

    data/corpora/papers/
      pages/{document}_{page}.png   1-based pages; of a video its chunks, with frames as {document}_{page}.{frame}.png
      pages.parquet                 one records.Page a row, in document then page order; written last
      prep_report.json              counts, what was skipped and why, what was rendered differently and why
      .prep/{document}.json         one record a finished document, for the next run

Documents are named by the rule in `documents.names`; a file directly in the folder keeps its stem.

**Resuming.** A finished document is skipped while its bytes and the settings are the same; a changed one is rendered
anew, a removed one dropped. Every file is written under another name and renamed, so `kill -9` leaves nothing
half-written, and the rerun ends with the same bytes as an undisturbed run.

**Strangers' files.** One that ends the process reading it, or keeps it busy for longer than a time limit, is named in
the report like any other that cannot be used; since the machine may have been the cause, the next run tries it again.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

from PIL import Image
from pydantic import BaseModel, Field, ValidationError
from tqdm.auto import tqdm

from vrag_nb.documents.names import find_sources
from vrag_nb.documents.rendering import Block, Written, count_pages, render_block, start_worker
from vrag_nb.documents.settings import RenderSettings, VideoSettings
from vrag_nb.documents.sources import SOURCE_KINDS
from vrag_nb.documents.workers import TaskPool, TimedOut, WorkerDied, available_cores
from vrag_nb.files import write_text
from vrag_nb.folder_lock import alone_in
from vrag_nb.records import Page, page_id, write_pages

BLOCK_PAGES = 16  # pages a worker takes at once: long documents spread over all cores


class Skipped(BaseModel):
    """A source file, or one page of it, and what happened to it. `file` is relative to the documents folder."""

    file: str
    page: int | None = None
    reason: str

    @property
    def place(self) -> str:
        """The file, or the page of it, in words."""
        return f"page {self.page} of {self.file}" if self.page else self.file


class PrepReport(BaseModel):
    """What `prepare_corpus` did. `rendered` and `reused` count the documents of this run and are not stored."""

    pages: int
    documents: int
    skipped: list[Skipped] = Field(default_factory=list)
    notes: list[Skipped] = Field(default_factory=list)  # in the corpus, but not rendered as asked, or there twice
    settings: dict[str, int | float | str] = Field(default_factory=dict)
    rendered: int = Field(default=0, exclude=True)
    reused: int = Field(default=0, exclude=True)


class DocumentRecord(BaseModel):
    """One finished document, as kept in `.prep/`: what it was made from, and what came out."""

    source: str
    sha256: str
    settings: dict[str, int | float | str]
    pages: list[Page] = Field(default_factory=list)
    skipped: list[Skipped] = Field(default_factory=list)
    notes: list[Skipped] = Field(default_factory=list)


def prepare_corpus(
    documents: Path,
    corpus: Path,
    dpi: int = 150,
    image_format: str = "png",
    workers: int | None = None,
    progress: bool = True,
    *,
    quality: int = 90,
    max_pages: int = 2000,
    max_page_pixels: int = 16_000_000,
    video: VideoSettings | None = None,
    time_limit: float = 600.0,
) -> PrepReport:
    """Render every document below `documents` into the corpus folder, over `workers` processes (all cores).

    `dpi`, `image_format` ("png" or "jpg" with `quality`) and the limits are `settings.RenderSettings`; `video` says how
    videos are cut into chunks and sampled. `time_limit`: seconds for BLOCK_PAGES pages of a document (and for counting
    them); one that takes longer is given up, with its pages that were not finished. A file that
    cannot be used is named in the report with the reason; the rest goes on. Raises FileNotFoundError when there is no
    such folder, ValueError when it holds nothing to read, when a setting is out of range, or when the corpus folder is
    not prep's to write in; FolderInUseError while another process writes a corpus there.
    """
    settings = RenderSettings(dpi, image_format, quality, max_pages, max_page_pixels, video or VideoSettings())
    if not time_limit > 0:
        raise ValueError(f"time_limit {time_limit} is not a number of seconds above 0")
    documents, corpus = Path(documents), Path(corpus)
    _check_folders(documents, corpus)  # before a lock is written into a folder that is not ours
    pool = TaskPool(workers or available_cores(), start_worker, time_limit)
    with alone_in(corpus / "pages"):
        _check_folders(documents, corpus)
        return _prepare(documents, corpus, settings, pool, progress)


def _prepare(documents: Path, corpus: Path, settings: RenderSettings, pool: TaskPool, progress: bool) -> PrepReport:
    sources, others = find_sources(documents)
    skipped = [Skipped(file=file, reason=reason) for file, reason in others.items()]
    if not sources:
        raise ValueError(f"{documents} holds no document; kinds that can be read: {', '.join(sorted(SOURCE_KINDS))}")
    for folder in (corpus / ".prep", corpus / "pages"):  # in this order: .prep marks pages/ as ours
        folder.mkdir(parents=True, exist_ok=True)
    finished, pending = _take_stock(documents, corpus, sources, settings, skipped)
    reused = len(finished)
    for document, record in _render_all(documents, corpus, pending, settings, pool, progress):
        finished[document] = record
    records = [finished[document] for document in sorted(finished)]
    _sweep(corpus, finished)
    report = PrepReport(
        pages=sum(len(record.pages) for record in records),
        documents=sum(bool(record.pages) for record in records),
        skipped=_in_order([*skipped, *(entry for record in records for entry in record.skipped)]),
        notes=_in_order([*(entry for record in records for entry in record.notes), *_copies(records)]),
        settings=settings.for_files(list(sources.values())),
        rendered=len(pending),
        reused=reused,
    )
    write_text(corpus / "prep_report.json", report.model_dump_json(indent=1))
    write_pages(corpus, [page for record in records for page in record.pages])
    return report


def page_path(corpus: Path, page: Page) -> Path:
    """Where the page's image lies. Raises ValueError when that is outside the corpus (a forged pages.parquet)."""
    path = (Path(corpus) / page.image).resolve()
    if not path.is_relative_to(Path(corpus).resolve()):
        raise ValueError(f"page {page.page_id}: image path {page.image!r} leads out of the corpus {corpus}")
    return path


def page_image(corpus: Path, page: Page) -> Image.Image:
    """The page's image, RGB, at the resolution on disk. Raises FileNotFoundError or ValueError naming the page."""
    path = page_path(corpus, page)
    try:
        with Image.open(path) as image:
            return image.convert("RGB")
    except FileNotFoundError:
        raise FileNotFoundError(f"page {page.page_id}: no image at {path}; prepare the corpus again") from None
    except OSError as error:
        raise ValueError(f"page {page.page_id}: {path} cannot be read ({error}); prepare the corpus again") from None


# --- what is there already --------------------------------------------------------------------------------------------


def _check_folders(documents: Path, corpus: Path) -> None:
    if not documents.is_dir():
        raise FileNotFoundError(f"no folder of documents at {documents}")
    if corpus.resolve().is_relative_to(documents.resolve()):
        raise ValueError(f"the corpus {corpus} lies inside {documents}: its page images would be read as documents")
    if documents.resolve().is_relative_to((corpus / "pages").resolve()):
        raise ValueError(f"{documents} lies inside {corpus / 'pages'}, which belongs to the page images")
    pages = corpus / "pages"
    if pages.is_dir() and not (corpus / ".prep").is_dir() and any(pages.iterdir()):
        raise ValueError(f"{pages} holds files that prep did not make and would remove; choose another corpus folder")


def _take_stock(
    documents: Path, corpus: Path, sources: dict[str, Path], settings: RenderSettings, skipped: list[Skipped]
) -> tuple[dict[str, DocumentRecord], dict[str, tuple[Path, str]]]:
    """Finished documents' records, and `{document: (file, sha256)}` of those to render."""
    finished: dict[str, DocumentRecord] = {}
    pending: dict[str, tuple[Path, str]] = {}
    for document, path in sources.items():
        try:
            with path.open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
        except OSError as error:  # this one file's trouble: named, and the rest goes on
            file = path.relative_to(documents).as_posix()
            skipped.append(Skipped(file=file, reason=f"cannot be read: {error.strerror}"))
            continue
        record = _read_record(corpus, document)
        wanted = (path.relative_to(documents).as_posix(), digest, settings.for_files([path]))
        if record and (record.source, record.sha256, record.settings) == wanted and _has_images(corpus, record):
            finished[document] = record
        else:
            pending[document] = (path, digest)
    return finished, pending


def _read_record(corpus: Path, document: str) -> DocumentRecord | None:
    try:
        return DocumentRecord.model_validate_json((corpus / ".prep" / f"{document}.json").read_bytes())
    except (OSError, ValidationError):
        return None


def _has_images(corpus: Path, record: DocumentRecord) -> bool:
    return all(_is_whole(corpus / image) for page in record.pages for image in page.images)


_ENDS = {".png": b"IEND\xaeB`\x82", ".jpg": b"\xff\xd9"}


def _is_whole(image: Path) -> bool:
    """Whether the file ends as its format does: a full disk or a cut copy leaves the beginning."""
    try:
        with image.open("rb") as file:
            file.seek(-min(16, image.stat().st_size), os.SEEK_END)
            return file.read().endswith(_ENDS.get(image.suffix, b""))
    except OSError:
        return False


# --- rendering --------------------------------------------------------------------------------------------------------


def _render_all(
    documents: Path,
    corpus: Path,
    pending: dict[str, tuple[Path, str]],
    settings: RenderSettings,
    pool: TaskPool,
    progress: bool,
) -> Iterator[tuple[str, DocumentRecord]]:
    """Count, then render, writing each document's record as soon as its last block is done."""
    blocks: list[Block] = []
    document_of = {path: document for document, (path, _) in pending.items()}
    with pool:
        for path, count in pool.run(partial(count_pages, settings=settings), document_of):
            document = document_of[path]
            if isinstance(count, int):
                blocks += _blocks(path, document, count, corpus / "pages", settings)
                continue
            record = _empty_record(documents, pending[document], settings)
            record.skipped.append(Skipped(file=record.source, reason=str(count)))
            _keep(corpus, document, record, retry=isinstance(count, WorkerDied))
            yield document, record
        for document, written, crashed in _render_blocks(pool, blocks, progress):
            record = _empty_record(documents, pending[document], settings)
            _fill_record(record, document, written)
            _keep(corpus, document, record, retry=crashed)
            yield document, record


def _blocks(path: Path, document: str, count: int, pages: Path, settings: RenderSettings) -> list[Block]:
    starts = range(1, count + 1, BLOCK_PAGES)
    return [Block(path, document, first, min(first + BLOCK_PAGES - 1, count), pages, settings) for first in starts]


def _render_blocks(pool: TaskPool, blocks: list[Block], progress: bool) -> Iterator[tuple[str, list[Written], bool]]:
    """Each document with its pages, once its last block is done, and whether the machine may have failed it."""
    left = Counter(block.document for block in blocks)
    written: dict[str, list[Written]] = {document: [] for document in left}
    crashed: set[str] = set()
    slow: dict[str, TimedOut] = {}  # their further blocks are not tried: each would cost the time limit again
    total = sum(block.last - block.first + 1 for block in blocks)
    with tqdm(total=total, unit="page", desc="rendering", disable=not progress or not blocks) as bar:
        for block, result in pool.run(render_block, blocks, lambda block: slow.get(block.document)):
            document = block.document
            if isinstance(result, WorkerDied) or any(page.retry for page in result):
                crashed.add(document)
            if isinstance(result, WorkerDied):
                if isinstance(result, TimedOut):
                    slow[document] = result
                result = [Written(page, error=str(result)) for page in range(block.first, block.last + 1)]
            written[document] += result
            bar.update(len(result))
            left[document] -= 1
            if left[document] == 0:
                yield document, written.pop(document), document in crashed


def _empty_record(documents: Path, source: tuple[Path, str], settings: RenderSettings) -> DocumentRecord:
    path, digest = source
    file = path.relative_to(documents).as_posix()
    return DocumentRecord(source=file, sha256=digest, settings=settings.for_files([path]))


def _fill_record(record: DocumentRecord, document: str, written: Iterable[Written]) -> None:
    for page in sorted(written, key=lambda page: page.page):
        if page.error:
            record.skipped.append(Skipped(file=record.source, page=page.page, reason=page.error))
            continue
        name = page_id(document, page.page)
        record.pages.append(
            Page(
                page_id=name,
                document=document,
                page=page.page,
                image=f"pages/{name}.{record.settings['image_format']}",
                width=page.width,
                height=page.height,
                text=page.text,
                sha256=page.sha256,
                video=page.video,
            )
        )
        if page.note:
            record.notes.append(Skipped(file=record.source, page=page.page, reason=page.note))


def _keep(corpus: Path, document: str, record: DocumentRecord, retry: bool) -> None:
    """Store the record; not where a worker died or a disk was full, the machine's fault: the next run tries again."""
    if retry:
        (corpus / ".prep" / f"{document}.json").unlink(missing_ok=True)
    else:
        write_text(corpus / ".prep" / f"{document}.json", record.model_dump_json())


def _sweep(corpus: Path, finished: dict[str, DocumentRecord]) -> None:
    """Remove what belongs to no finished document: dropped or shrunk documents, leftovers of a killed run."""
    wanted = {image for record in finished.values() for page in record.pages for image in page.images}
    for path in (corpus / "pages").iterdir():
        if f"pages/{path.name}" not in wanted and not path.is_dir():  # a file manager may keep a folder there
            path.unlink()
    for path in (corpus / ".prep").iterdir():
        if path.name.removesuffix(".json") not in finished and not path.is_dir():
            path.unlink()
    for path in corpus.glob(".*.partial"):
        path.unlink()


def _copies(records: Iterable[DocumentRecord]) -> list[Skipped]:
    """A note for each document whose pages are those of an earlier one: a search may find the one that is not gold."""
    first: dict[tuple[str, ...], str] = {}
    notes = []
    for record in records:
        prints = tuple(page.sha256 for page in record.pages)
        earlier = first.setdefault(prints, record.source) if prints else record.source
        if earlier != record.source:
            why = f"its pages are the same as those of {earlier}, and a search may find either: keep one of the two"
            notes.append(Skipped(file=record.source, reason=why))
    return notes


def _in_order(entries: Iterable[Skipped]) -> list[Skipped]:
    return sorted(entries, key=lambda entry: (entry.file, entry.page or 0))
