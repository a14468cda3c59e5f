"""Pages a second from PDF to image files: corpus prep (PyMuPDF) against pdf2image (poppler's pdftoppm).

    pip install pdf2image; apt-get install poppler-utils        # the peer; the project itself needs neither
    python benchmarks/pages.py [--documents DIR] [--dpi 150] [--format png] [--repeat 3] [--out results/benchmarks]

Every row turns the same PDFs into one image file a page, of the same pixels and in the same format. Ours is the whole
of `prepare_corpus`: starting its processes, the text layer, checksums and records are in its time. pdf2image comes in
four ways: as many documents at once as ours has processes, with pdftoppm writing the files; likewise, with pdftoppm
handing pixels over and Pillow writing the files; and as most people call it, one document after another, with
thread_count 1 and with as many threads as there are processes. Beside the seconds (median of `--repeat` rounds, the
rows taking turns) stand processor seconds, which other work on the machine disturbs less, and the size of the files.
Exits 1 when page counts or pixel sizes differ.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from PIL import Image

from vrag_nb.documents.pages import prepare_corpus
from vrag_nb.documents.workers import available_cores

QUALITY = 90  # of JPEG, in all rows
SUFFIXES = {"png": "png", "jpeg": "jpg"}
Sizes = dict[str, list[tuple[int, int]]]  # document stem -> (width, height) of its pages
Way = Callable[[Path, Path], None]  # (documents, empty folder for the images)


@dataclass
class Row:
    """One way's rounds."""

    seconds: list[float] = field(default_factory=list)
    processor_seconds: list[float] = field(default_factory=list)
    file_bytes: int = 0
    sizes: Sizes = field(default_factory=dict)

    @property
    def pages(self) -> int:
        return sum(len(pages) for pages in self.sizes.values())


def ours(documents: Path, out: Path, *, dpi: int, image_format: str, processes: int) -> None:
    prepare_corpus(documents, out, dpi, SUFFIXES[image_format], processes, progress=False, quality=QUALITY)


def side_by_side(documents: Path, out: Path, *, dpi: int, image_format: str, processes: int) -> None:
    """A pdftoppm for each of so many documents at once; it writes the files."""
    with ThreadPoolExecutor(processes) as pool:  # the threads only wait for pdftoppm
        work = partial(_by_poppler, out=out, dpi=dpi, image_format=image_format, threads=1)
        list(pool.map(work, sorted(documents.glob("*.pdf"))))


def through_pillow(documents: Path, out: Path, *, dpi: int, image_format: str, processes: int) -> None:
    """Processes that each take a document: pixels from pdftoppm, files by Pillow."""
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        work = partial(_by_pillow, out=out, dpi=dpi, image_format=image_format)
        list(pool.map(work, sorted(documents.glob("*.pdf"))))


def one_by_one(documents: Path, out: Path, *, dpi: int, image_format: str, threads: int) -> None:
    for path in sorted(documents.glob("*.pdf")):
        _by_poppler(path, out, dpi, image_format, threads)


def _by_poppler(path: Path, out: Path, dpi: int, image_format: str, threads: int) -> None:
    from pdf2image import convert_from_path

    folder = out / path.stem
    folder.mkdir()
    options: dict[str, Any] = {
        "use_cropbox": True,
        "jpegopt": {"quality": QUALITY},
        "output_file": "page",
        "paths_only": True,
    }
    convert_from_path(path, dpi, folder, fmt=image_format, thread_count=threads, **options)


def _by_pillow(path: Path, out: Path, dpi: int, image_format: str) -> None:
    from pdf2image import convert_from_path

    folder = out / path.stem
    folder.mkdir()
    options: dict[str, Any] = {"quality": QUALITY, "subsampling": 0} if image_format == "jpeg" else {}
    for number, image in enumerate(convert_from_path(path, dpi, use_cropbox=True), start=1):
        image.save(folder / f"page-{number:05d}.{SUFFIXES[image_format]}", **options)


def measure(way: Way, documents: Path, row: Row) -> None:
    """One round of a way, in an empty folder."""
    with tempfile.TemporaryDirectory(prefix="vrag-pages-") as folder:
        before, started = _processor_seconds(), time.perf_counter()
        way(documents, Path(folder))
        row.seconds.append(time.perf_counter() - started)
        row.processor_seconds.append(_processor_seconds() - before)
        row.sizes, row.file_bytes = _look(documents, Path(folder))


def _processor_seconds() -> float:
    """Of this process and of all that it started and that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def _look(documents: Path, out: Path) -> tuple[Sizes, int]:
    """Pixel sizes of the pages by document, and the bytes of all image files."""
    sizes: Sizes = {}
    total = 0
    for path in sorted(documents.glob("*.pdf")):
        inside = out / path.stem  # pdf2image: names as long as the page count needs, so they sort
        files = sorted(inside.iterdir()) if inside.is_dir() else _our_files(out / "pages", path.stem)
        total += sum(file.stat().st_size for file in files)
        sizes[path.stem] = []
        for file in files:
            with Image.open(file) as image:
                sizes[path.stem].append(image.size)
    return sizes, total


def _our_files(folder: Path, document: str) -> list[Path]:
    found = [path for path in folder.iterdir() if path.stem.rpartition("_")[0] == document]
    return sorted(found, key=lambda path: int(path.stem.rpartition("_")[2]))


def differences(one: Sizes, other: Sizes) -> list[str]:
    """Where two ways disagree about pages or pixels."""
    found = []
    for document in sorted(one | other):
        first, second = one.get(document, []), other.get(document, [])
        if len(first) != len(second):
            found.append(f"{document}: {len(first)} pages and {len(second)}")
        pairs = enumerate(zip(first, second, strict=False), start=1)
        found += [f"{document}, page {number}: {a} and {b} pixels" for number, (a, b) in pairs if a != b]
    return found


def need_peer() -> None:
    """Ends the program, saying what to install, where the peer is missing."""
    missing = [] if shutil.which("pdftoppm") else ["poppler-utils (Debian, Ubuntu: apt-get install poppler-utils)"]
    try:
        import pdf2image  # noqa: F401
    except ImportError:
        missing.append("the Python package pdf2image (pip install pdf2image)")
    if missing:
        sys.exit(f"the peer is not there; install {' and '.join(missing)}")


def tell_rows(rows: dict[str, Row], title: str, notes: str, out: Path | None) -> None:
    """The table; the factor is how many times the pages a second of each peer ours has."""
    from tables import tell  # every worker imports this file anew

    best = statistics.median(next(iter(rows.values())).seconds)
    cells = []
    for name, row in rows.items():
        seconds = statistics.median(row.seconds)
        figures = (row.pages / seconds, seconds, statistics.median(row.processor_seconds), row.file_bytes / 1e6)
        cells.append([name, *(f"{figure:.1f}" for figure in figures), f"{seconds / best:.2f}"])
    tell(title, ["way", "pages/s", "seconds", "processor s", "MB", "ours is times as fast"], cells, notes, out)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=Path, default=Path("data/corpora/decks/documents"), help="a folder of PDFs")
    parser.add_argument("--limit", type=int, help="so many of them, evenly spread over the alphabet")
    parser.add_argument("--dpi", type=int, default=150)
    parser.add_argument("--format", choices=sorted(SUFFIXES), default="png")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--processes", type=int, default=available_cores())
    parser.add_argument("--out", type=Path, default=None, help="folder for pages.md")
    arguments = parser.parse_args()
    need_peer()
    size = {"dpi": arguments.dpi, "image_format": arguments.format}
    wide = {**size, "processes": arguments.processes}
    count = arguments.processes
    ways: dict[str, Way] = {
        f"ours, {count} processes": partial(ours, **wide),
        f"pdf2image, {count} documents at once": partial(side_by_side, **wide),
        f"pdf2image, {count} documents at once, files by Pillow": partial(through_pillow, **wide),
        "pdf2image, thread_count=1": partial(one_by_one, **size, threads=1),
        f"pdf2image, thread_count={count}": partial(one_by_one, **size, threads=count),
    }
    with tempfile.TemporaryDirectory(prefix="vrag-pdfs-") as folder:
        documents = Path(folder)
        link(arguments.documents, documents, arguments.limit)
        rows = {name: Row() for name in ways}
        for _ in range(arguments.repeat):
            for name, way in ways.items():
                measure(way, documents, rows[name])
    first, *others = rows.values()
    wrong = {line for other in others for line in differences(first.sizes, other.sizes)}
    notes = "\n".join(sorted(wrong)) or "page counts and pixel sizes are equal in all rows"
    title = (
        f"PDF to page images: {first.pages} pages of {len(first.sizes)} PDFs, {arguments.dpi} dpi, {arguments.format}"
    )
    tell_rows(rows, title, notes, arguments.out)
    return 1 if wrong else 0


def link(source: Path, target: Path, limit: int | None) -> None:
    """The PDFs of a folder, linked into an empty one, named so that no two share a stem. Exits when there is none."""
    found: Sequence[Path] = sorted(source.rglob("*.pdf"))
    if not found:
        sys.exit(f"{source} holds no PDF: run `make run` or `python -m vrag_nb prep` first, or name --documents")
    step = max(1, len(found) // limit) if limit else 1
    for number, path in enumerate(found[::step][:limit]):
        (target / f"{number:04d}.pdf").symlink_to(path.resolve())


if __name__ == "__main__":
    sys.exit(main())
