"""A thousand damaged PDFs and pictures through corpus prep: no crash, no hang, each accounted for, the good unharmed.

    python benchmarks/mutations.py [--files 1000] [--seed 0] [--documents DIR] [--time-limit 20]

Good PDFs and pictures of many makes (and the smallest of DIR, by default the generated decks) are drawn once; copies of
them are damaged, each by one of `MUTATIONS` chosen in turn, with `--seed` (which does not reach the keys of encrypted
ones), and prepared in one run beside the good ones. Printed: how many of each kind could still be read, wholly or in
part, how many were refused, given up after the time limit or ended their worker, and the reasons most often given.
Exits 1 when the run fails, when a file is neither in the corpus nor in the report, when a page of the corpus cannot be
opened, or when a good document came out otherwise than alone.
"""

from __future__ import annotations

import argparse
import io
import random
import re
import struct
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pymupdf
from PIL import Image, ImageDraw

from vrag_nb.documents.names import find_sources
from vrag_nb.documents.pages import PrepReport, page_image, prepare_corpus
from vrag_nb.documents.rendering import Block, count_pages, render_block
from vrag_nb.documents.settings import RenderSettings
from vrag_nb.documents.workers import WorkerDied
from vrag_nb.records import Page, read_pages

DPI = 72
ENDLESS = "endless"
EXTREMES = (0, 1, -1, 7, 32767, 65535, 2**31 - 1, 2**31, -(2**31), 2**32, 2**63, 10**38)
OUTCOMES = ("whole", "with a note", "in part", "refused", "given up", "worker died", "LOST")
Mutation = Callable[[random.Random, bytes, bytes], bytes]  # (draw, file, another file) -> damaged file


@dataclass
class Result:
    """`outcomes` by the mutation's name; `reasons` as in the report, without names and numbers.

    problems: what must not be, a line each.
    """

    outcomes: dict[str, Counter[str]] = field(default_factory=dict)
    reasons: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0


# --- good documents ---------------------------------------------------------------------------------------------------


def good_documents() -> dict[str, bytes]:
    """`{file name: bytes}` of small PDFs and pictures that no two programs would write the same way."""
    found = {f"{name}.pdf": content for name, content in _pdfs().items()}
    for name, (mode, file_format, options) in _PICTURES.items():
        stream = io.BytesIO()
        pages = [_picture(mode, number) for number in range(3 if options.get("save_all") else 1)]
        pages[0].save(stream, file_format, **({**options, "append_images": pages[1:]} if pages[1:] else options))
        found[name] = stream.getvalue()
    return found


_PICTURES: dict[str, tuple[str, str, dict[str, object]]] = {
    "plain.png": ("RGB", "PNG", {}),
    "clear.png": ("RGBA", "PNG", {}),
    "palette.png": ("P", "PNG", {}),
    "deep.png": ("I;16", "PNG", {}),
    "photo.jpg": ("RGB", "JPEG", {"quality": 80}),
    "progressive.jpg": ("L", "JPEG", {"progressive": True}),
    "print.jpeg": ("CMYK", "JPEG", {}),
    "lossy.webp": ("RGB", "WEBP", {"quality": 60}),
    "lossless.webp": ("RGBA", "WEBP", {"lossless": True}),
    "fax.tif": ("1", "TIFF", {"compression": "group4", "save_all": True}),
    "scan.tiff": ("RGB", "TIFF", {"compression": "tiff_lzw", "save_all": True}),
    "raw.tiff": ("L", "TIFF", {}),
}


def _picture(mode: str, number: int) -> Image.Image:
    picture = Image.linear_gradient("L").resize((160, 120)).convert("RGB")
    draw = ImageDraw.Draw(picture)
    draw.rectangle((10, 20, 80, 60), fill=(200, 30 * number, 40))
    draw.text((20, 80), f"picture {number}", fill="white")
    return picture.convert("L").convert("I;16") if mode == "I;16" else picture.convert(mode)


def _pdfs() -> dict[str, bytes]:
    rich = pymupdf.open()
    for number in range(3):
        page = rich.new_page(width=360, height=240)
        page.insert_text((30, 40), f"Page {number} of the report", fontsize=14)
        page.insert_textbox((30, 60, 200, 200), "A paragraph of words. " * 12, fontname="tiro", fontsize=9)
        page.draw_rect((220, 60, 320, 140), color=(1, 0, 0), fill=(0.8, 0.9, 1))
        page.draw_bezier((220, 150), (250, 100), (290, 220), (330, 160))
        stream = io.BytesIO()
        _picture("RGB", number).save(stream, "JPEG" if number else "PNG")
        page.insert_image((220, 170, 320, 230), stream=stream.getvalue())
    rich[0].add_highlight_annot(pymupdf.Rect(30, 30, 120, 45))
    rich[1].set_rotation(90)
    forms = pymupdf.open()
    forms.new_page(width=300, height=200).show_pdf_page(pymupdf.Rect(0, 0, 150, 200), rich, 0)
    forms[0].show_pdf_page(pymupdf.Rect(150, 0, 300, 200), rich, 1)
    long = pymupdf.open()
    for number in range(20):
        long.new_page(width=200, height=100).insert_text((20, 50), f"Short page {number}")
    made = {
        "plain": rich.tobytes(no_new_id=True),
        "packed": rich.tobytes(garbage=4, deflate=True, use_objstms=1, no_new_id=True),
        "forms": forms.tobytes(deflate=True, no_new_id=True),
        "long": long.tobytes(no_new_id=True),
    }
    for document in (rich, forms, long):
        document.close()
    return made


def endless_pdf(depth: int = 14) -> bytes:
    """A page of forms that draw forms, ten each, `depth` deep: a kilobyte that would take years to render."""
    document = pymupdf.open()
    page = document.new_page(width=200, height=100)
    inner = document.get_new_xref()
    document.update_object(inner, "<</Type/XObject/Subtype/Form/BBox[0 0 200 100]>>")
    document.update_stream(inner, b"0 0 m 200 100 l S")
    for _ in range(depth):
        outer = document.get_new_xref()
        form = f"<</Type/XObject/Subtype/Form/BBox[0 0 200 100]/Resources<</XObject<</F {inner} 0 R>>>>>>"
        document.update_object(outer, form)
        document.update_stream(outer, b"/F Do " * 10)
        inner = outer
    document.xref_set_key(page.xref, "Resources", f"<</XObject<</F {inner} 0 R>>>>")
    stream = document.get_new_xref()
    document.update_object(stream, "<<>>")
    document.update_stream(stream, b"/F Do")
    document.xref_set_key(page.xref, "Contents", f"{stream} 0 R")
    content = document.tobytes(no_new_id=True)
    document.close()
    return content


# --- damage -----------------------------------------------------------------------------------------------------------


def flipped(draw: random.Random, data: bytes, other: bytes) -> bytes:
    damaged = bytearray(data)
    for _ in range(draw.choice((1, 5, 50, 500))):
        damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
    return bytes(damaged)


def truncated(draw: random.Random, data: bytes, other: bytes) -> bytes:
    return data[: draw.randrange(1, len(data))]


def spliced(draw: random.Random, data: bytes, other: bytes) -> bytes:
    return data[: draw.randrange(len(data))] + other[draw.randrange(len(other)) :]


def zeroed(draw: random.Random, data: bytes, other: bytes) -> bytes:
    start = draw.randrange(len(data))
    length = draw.randrange(1, max(2, len(data) // draw.choice((2, 10, 100))))
    return data[:start] + bytes(min(length, len(data) - start)) + data[start + length :]


def header_broken(draw: random.Random, data: bytes, other: bytes) -> bytes:
    length = draw.randrange(1, 64)
    junk = draw.choice((b"", draw.randbytes(length), b"<!DOCTYPE html>", data[:length].lower()))
    return junk + data[length:]


def encrypted(draw: random.Random, data: bytes, other: bytes) -> bytes:
    if not data.startswith(b"%PDF"):
        return draw.randbytes(len(data))
    method = draw.choice([getattr(pymupdf, f"PDF_ENCRYPT_{name}") for name in ("RC4_40", "AES_128", "AES_256")])
    with pymupdf.open(stream=data, filetype="pdf") as document:
        locked = document.tobytes(encryption=method, owner_pw="owner", user_pw=draw.choice(("", "user")))
    return bytes(locked)


def empty(draw: random.Random, data: bytes, other: bytes) -> bytes:
    return draw.choice((b"", b"", b" ", b"\n" * 1000, bytes(5000), data[:4]))


def huge_page(draw: random.Random, data: bytes, other: bytes) -> bytes:
    """Page boxes of a PDF, width and height of a PNG (its checksum with it), the lengths in others' headers."""
    if data.startswith(b"%PDF"):
        values = " ".join(str(draw.choice((*EXTREMES, 14400, 100000, 1e30, "nan", "inf"))) for _ in range(4))
        return re.sub(rb"/MediaBox\s*\[[^]]*\]", b"/MediaBox[" + values.encode() + b"]", data)
    if data.startswith(b"\x89PNG"):
        size = [draw.choice((0, 1, 9999, 65535, 10**6, 2**31 - 1)) for _ in range(2)]
        head = b"IHDR" + struct.pack(">II", *size) + data[24:29]
        return data[:12] + head + struct.pack(">I", zlib.crc32(head)) + data[33:]
    place = draw.randrange(4, min(len(data) - 4, 400))
    return data[:place] + draw.choice((b"\xff\xff", b"\x7f\xff", b"\xff\xff\xff\x7f")) + data[place + 2 :]


def numbers_changed(draw: random.Random, data: bytes, other: bytes) -> bytes:
    """Counts, lengths, offsets and object numbers set to extremes."""
    share = draw.choice((0.003, 0.03, 0.3))
    if not data.startswith(b"%PDF"):
        damaged = bytearray(data)
        for _ in range(max(1, int(share * 40))):
            place = draw.randrange(max(1, len(damaged) - 4))
            damaged[place : place + 4] = struct.pack(draw.choice("<>") + "I", draw.choice(EXTREMES) % 2**32)
        return bytes(damaged)

    def change(match: re.Match[bytes]) -> bytes:
        return str(draw.choice(EXTREMES)).encode() if draw.random() < share else match[0]

    return re.sub(rb"(?<=[ \[/\n])\d+(?=[ \]/\n>])", change, data)


def references_changed(draw: random.Random, data: bytes, other: bytes) -> bytes:
    """Indirect references lead elsewhere: loops in the page tree, pictures for fonts. In a picture, pieces swap."""
    objects = re.findall(rb"(\d+) 0 obj", data)
    if not objects:
        one, two = sorted(draw.randrange(len(data)) for _ in range(2))
        return data[:one] + data[two:] + data[one:two]
    return re.sub(rb"\d+ 0 R", lambda match: draw.choice((match[0], draw.choice(objects) + b" 0 R")), data)


def repeated(draw: random.Random, data: bytes, other: bytes) -> bytes:
    start = draw.randrange(len(data))
    piece = data[start : start + draw.choice((1, 10, 1000))]
    return data[:start] + piece * draw.choice((10, 1000, 20000)) + data[start:]


def nested(draw: random.Random, data: bytes, other: bytes) -> bytes:
    """Brackets in brackets a hundred thousand deep, in the middle of things."""
    start = draw.choice([match.end() for match in re.finditer(rb"<<|\[|\n", data)] or [len(data) // 2])
    deep = draw.choice((b"[", b"<<", b"<</A ", b"(", b"q ")) * draw.choice((100, 10_000, 100_000))
    return data[:start] + deep + data[start:]


MUTATIONS: dict[str, Mutation] = {
    "flipped": flipped,
    "truncated": truncated,
    "spliced": spliced,
    "zeroed": zeroed,
    "header": header_broken,
    "encrypted": encrypted,
    "empty": empty,
    "huge": huge_page,
    "numbers": numbers_changed,
    "references": references_changed,
    "repeated": repeated,
    "nested": nested,
    "suffix": lambda draw, data, other: data,  # the file is whole, its name is not
}


def write_mutations(folder: Path, good: dict[str, bytes], files: int, seed: int, endless: int = 2) -> dict[str, str]:
    """Write `files` damaged documents, `endless` of them endless; `{file name: mutation}`."""
    draw = random.Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    made = {f"{number:04d}-{ENDLESS}.pdf": (ENDLESS, endless_pdf()) for number in range(endless)}
    names = sorted(good)
    for number in range(endless, files):
        mutation = list(MUTATIONS)[number % len(MUTATIONS)]
        base, other = draw.choice(names), draw.choice(names)
        suffix = Path(other if mutation == "suffix" else base).suffix
        made[f"{number:04d}-{mutation}{suffix}"] = mutation, MUTATIONS[mutation](draw, good[base], good[other])
    for name, (_, content) in made.items():
        (folder / name).write_bytes(content)
    return {name: mutation for name, (mutation, _) in made.items()}


# --- the run ----------------------------------------------------------------------------------------------------------


def run(
    work: Path, files: int, seed: int, more: Sequence[Path] = (), endless: int = 2, workers: int = 2, **options: object
) -> Result:
    """Prepare good documents beside `files` damaged ones. `options` go to `prepare_corpus`, limits among them."""
    good = good_documents() | {path.name: path.read_bytes() for path in more}
    documents, corpus = work / "documents", work / "corpus"
    (documents / "good").mkdir(parents=True)
    for name, content in good.items():
        (documents / "good" / name).write_bytes(content)
    made = write_mutations(documents / "bad", good, files, seed, endless)
    started = time.perf_counter()
    report = prepare_corpus(documents, corpus, DPI, workers=workers, progress=False, **options)  # type: ignore[arg-type]
    result = judge(made, report, read_pages(corpus))
    result.seconds = time.perf_counter() - started
    result.problems += _harmed(documents / "good", corpus, work / "alone") + _unreadable(corpus)
    return result


def judge(made: dict[str, str], report: PrepReport, pages: Sequence[Page]) -> Result:
    """What became of every damaged file, by the corpus and the report alone."""
    result = Result({mutation: Counter() for mutation in made.values()})
    documents = Counter(page.document for page in pages)
    reasons: dict[str, list[str]] = {}
    for entry in report.skipped:
        reasons.setdefault(entry.file, []).append(entry.reason)
    noted = {entry.file for entry in report.notes}
    for name, mutation in made.items():
        file = f"bad/{name}"
        said = reasons.get(file, [])
        # A file of another kind can take a suffix along (`documents.names`); the number makes the rest unique.
        read = any(count and document.startswith(f"bad__{Path(name).stem}") for document, count in documents.items())
        outcome = _outcome(read, said, file in noted)
        result.outcomes[mutation][outcome] += 1
        result.reasons.update({re.sub(r"'[^']*'|\d+", "#", reason) for reason in said})
        if outcome == "LOST" or not all(reason.strip() and "\n" not in reason for reason in said):
            result.problems.append(f"{file}: {outcome}, {said}")
    return result


def _outcome(read: bool, reasons: Sequence[str], noted: bool) -> str:
    if any("given up" in reason for reason in reasons):
        return "given up"
    if WorkerDied.reason in reasons:
        return "worker died"
    if read:
        return "in part" if reasons else "with a note" if noted else "whole"
    return "refused" if reasons else "LOST"


def _harmed(good: Path, corpus: Path, scratch: Path) -> list[str]:
    """Good documents whose pages are not what they are when rendered alone, in this process."""
    settings = RenderSettings(DPI)
    found: dict[str, list[str]] = {}
    for page in read_pages(corpus):
        found.setdefault(page.document, []).append(page.sha256)
    problems = []
    scratch.mkdir(parents=True)
    for name, path in find_sources(good)[0].items():
        count = count_pages(path, settings)
        assert isinstance(count, int), f"{path}: {count}"
        alone = [page.sha256 for page in render_block(Block(path, name, 1, count, scratch, settings))]
        if found.get(f"good__{name}") != alone:
            problems.append(f"good/{path.name}: harmed")
    return problems


def _unreadable(corpus: Path) -> list[str]:
    problems = []
    for page in read_pages(corpus):
        try:
            size = page_image(corpus, page).size
        except (OSError, ValueError) as error:
            problems.append(f"{page.page_id}: {error}")
        else:
            if size != (page.width, page.height):
                problems.append(f"{page.page_id}: {size} on disk, {(page.width, page.height)} in the table")
    return problems


def print_result(result: Result) -> None:
    """The table of outcomes, the commonest reasons, and every problem."""
    from vrag_nb.evaluation.report import print_table  # every worker imports this file anew

    seen = [name for name in OUTCOMES if any(counts[name] for counts in result.outcomes.values()) or name == "LOST"]
    total = sum(result.outcomes.values(), Counter())
    rows = [
        [name, str(sum(counts.values())), *(str(counts[outcome] or "") for outcome in seen)]
        for name, counts in [*sorted(result.outcomes.items()), ("all", total)]
    ]
    print_table(f"prepared in {result.seconds:.0f} s", ["damage", "files", *seen], rows)
    for reason, count in result.reasons.most_common(15):
        print(f"{count:5d} x {reason}")
    for problem in result.problems:
        print(f"PROBLEM: {problem}")
    print(f"{len(result.problems)} problems")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--documents", type=Path, default=Path("data/corpora/decks/documents"), help="more good ones")
    parser.add_argument("--time-limit", type=float, default=20, help="seconds for a block of pages")
    parser.add_argument("--max-page-pixels", type=int, default=4_000_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--keep", type=Path, help="a folder to leave everything in")
    arguments = parser.parse_args()
    more = sorted(arguments.documents.rglob("*.pdf"), key=lambda path: path.stat().st_size)[:6]
    limits = {"time_limit": arguments.time_limit, "max_page_pixels": arguments.max_page_pixels}
    with tempfile.TemporaryDirectory(prefix="vrag-mutations-") as folder:
        work = arguments.keep or Path(folder)
        result = run(work, arguments.files, arguments.seed, more, workers=arguments.workers, **limits)
    print_result(result)
    return 1 if result.problems else 0


if __name__ == "__main__":
    sys.exit(main())
