"""Narrated decks: videos of the nano world, each with questions whose gold is a chunk and a time span.

    video, questions = narrate(pdf, deck_questions, seed=0)
    python -m vrag_nb.documents.narrated data/corpora/decks out --split test --videos 4

The pages of a generated deck are shown one after another, each for some whole seconds. On about every second page a
box with a label and a value lies over a corner of the page for three seconds: an answer that no page holds. The cuts
fall so that a page is never on screen in two chunks. A video belongs to the split of its deck, and its documents are
`{deck}-video`, so that both can lie in one corpus.

Questions are of two kinds: those about a box, and the deck's own about one page of print large enough to be read
without a crop, turned to the video. `meta_info.reference_page` holds the chunk, `reference_span` [start, end] in
seconds from the video's start. The same input gives the same bytes (one thread, nothing about the machine written).

This lies beside `decks`, not in it: the fingerprint of the decks' corpus covers that folder's code.
"""

from __future__ import annotations

import argparse
import io
import random
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import pymupdf
from PIL import Image, ImageDraw, ImageFont, ImageOps

from vrag_nb.records import MetaInfo, Question, read_questions, write_questions

SIZE = (960, 540)  # pixels of the video
RATE = 4  # frames a second
BOX_SECONDS = 3
CHUNK_SECONDS = 10
LABELS = (
    "Hotline", "Survey code", "Session code", "Raffle number", "Dial-in", "Meeting room", "Poll number", "Ticket",
    "Workshop key", "Extension", "Locker", "Stand number", "Voucher", "Seat", "Badge number", "Archive number",
)  # fmt: skip


@dataclass(frozen=True)
class Overlay:
    """A box over the page: what it says, in which corner (0..3), and from which second to which."""

    label: str
    value: str
    corner: int
    start: int
    end: int


@dataclass(frozen=True)
class Shot:
    """A page (1-based) on screen from second `start` to `end`, maybe with an overlay for a part of that."""

    page: int
    start: int
    end: int
    overlay: Overlay | None = None


def narrate(
    pdf: bytes, questions: Sequence[Question], seed: int, chunk_seconds: int = CHUNK_SECONDS
) -> tuple[bytes, list[Question]]:
    """The video (MP4, H.264) of a deck, and its questions. `questions`: the deck's.

    chunk_seconds: as the corpus will be cut. Raises ValueError for a deck without pages or questions, or chunks shorter
    than 8 seconds, which cannot hold two pages.
    """
    if not questions:
        raise ValueError("a narrated deck needs at least one question of the deck: it says which deck it is")
    deck = questions[0].document
    rng = random.Random(f"{seed}/{deck}")
    with pymupdf.open(stream=pdf, filetype="pdf") as document:
        title = (document.metadata or {}).get("title") or deck
        shots = plan(rng, document.page_count, chunk_seconds)
        video = _encode([_page(page) for page in document], shots)
        wide = [shot for shot in shots if document[shot.page - 1].rect.width >= document[shot.page - 1].rect.height]
    asked = [*_about_boxes(deck, title, shots, chunk_seconds), *_about_pages(questions, title, wide, chunk_seconds)]
    return video, asked


def plan(rng: random.Random, pages: int, chunk_seconds: int = CHUNK_SECONDS) -> list[Shot]:
    """Which page is on screen when: two in each chunk, cut at a whole second. Raises as `narrate` does."""
    if pages < 1:
        raise ValueError("a deck without pages cannot be narrated")
    if chunk_seconds < 8:
        raise ValueError(f"chunks of {chunk_seconds} s cannot hold two pages of four seconds; take 8 or more")
    labels, shots, cut = rng.sample(LABELS, len(LABELS)), [], 0
    for page in range(1, pages + 1):
        chunk, second = divmod(page - 1, 2)
        if not second:
            cut = rng.randint(4, chunk_seconds - 4)
        start, end = (chunk * chunk_seconds + at for at in ((cut, chunk_seconds) if second else (0, cut)))
        overlay = None
        if labels and (page == 1 or rng.random() < 0.5):
            at = rng.randint(start, end - BOX_SECONDS)
            overlay = Overlay(labels.pop(), _value(rng), rng.randrange(4), at, at + BOX_SECONDS)
        shots.append(Shot(page, start, end, overlay))
    return shots


def write_videos(
    corpus: Path, out: Path, split: str, videos: int | None = None, seed: int = 0, chunk_seconds: int = CHUNK_SECONDS
) -> list[Question]:
    """Narrate decks of one split of a generated corpus (`decks.generate`), all of them or the first `videos`.

    Writes `out/documents/{deck}-video.mp4` and `out/questions.{split}.parquet`, and returns the questions. Raises
    FileNotFoundError where the corpus is not there.
    """
    by_deck: dict[str, list[Question]] = {}
    for question in read_questions(Path(corpus) / f"questions.{split}.parquet"):
        by_deck.setdefault(question.document, []).append(question)
    documents = Path(out) / "documents"
    documents.mkdir(parents=True, exist_ok=True)
    written: list[Question] = []
    for deck, questions in sorted(by_deck.items())[:videos]:
        pdf = (Path(corpus) / "documents" / f"{deck}.pdf").read_bytes()
        video, asked = narrate(pdf, questions, seed, chunk_seconds)
        temporary = documents / f".{deck}.partial"
        temporary.write_bytes(video)
        temporary.replace(documents / f"{deck}-video.mp4")
        written += asked
    write_questions(Path(out) / f"questions.{split}.parquet", written)
    return written


def _value(rng: random.Random) -> str:
    letters = "".join(rng.sample("ABCDEFGHJKLMNPRSTUVWXYZ", 2))
    return rng.choice(
        [f"{letters}-{rng.randint(100, 999)}", f"{rng.randint(1000, 9999)}", f"{letters}{rng.randint(10, 99)}"]
    )


# --- questions --------------------------------------------------------------------------------------------------------


def _about_boxes(deck: str, title: str, shots: Sequence[Shot], chunk_seconds: int) -> list[Question]:
    boxes = [shot.overlay for shot in shots if shot.overlay]
    return [
        Question(
            uid=f"{deck}-video-o{number:03d}",
            query=f"Which value is shown for {box.label} in the video of the {title} deck?",
            reference_answer=box.value,
            meta_info=MetaInfo(
                file_name=f"{deck}-video.mp4",
                reference_page=[box.start // chunk_seconds + 1],
                source_type="overlay",
                query_type="single_hop",
                reference_span=[box.start, box.end],
                chunk_seconds=chunk_seconds,
            ),  # type: ignore[call-arg]
        )
        for number, box in enumerate(boxes)
    ]


def _about_pages(
    questions: Sequence[Question], title: str, shots: Sequence[Shot], chunk_seconds: int
) -> list[Question]:
    """The deck's questions that one of these pages answers without a crop, asked of the video. Upright pages are not
    among them: print that can be read on the page is too small in a video's frame."""
    shown, found = {shot.page: shot for shot in shots}, []
    for question in questions:
        meta = question.meta_info
        if len(meta.reference_page) != 1 or question.needs_crop or meta.reference_page[0] not in shown:
            continue
        shot = shown[meta.reference_page[0]]
        found.append(
            Question(
                uid=f"{question.uid}-video",
                query=_to_video(question.query, title),
                reference_answer=question.reference_answer,
                meta_info=MetaInfo(
                    file_name=f"{question.document}-video.mp4",
                    reference_page=[shot.start // chunk_seconds + 1],
                    source_type=meta.source_type,
                    query_type=meta.query_type,
                    reference_span=[shot.start, shot.end],
                    chunk_seconds=chunk_seconds,
                    deck_page=shot.page,
                ),  # type: ignore[call-arg]
            )
        )
    return found


def _to_video(query: str, title: str) -> str:
    """The query with its deck called the deck's video, so that a corpus may hold both."""
    for named in (f"the {title} deck", f"{title} deck"):
        if named in query:
            article = "the " if named.startswith("the ") else ""
            return query.replace(named, f"{article}video of the {title} deck", 1)
    return f"In the video of the {title} deck: {query[0].lower()}{query[1:]}"


# --- pictures ---------------------------------------------------------------------------------------------------------


def _page(page: pymupdf.Page) -> Image.Image:
    """The page in the middle of the video's frame."""
    zoom = min(SIZE[0] / page.rect.width, SIZE[1] / page.rect.height)
    pixels = page.get_pixmap(matrix=pymupdf.Matrix(zoom, zoom), colorspace=pymupdf.csRGB, alpha=False)
    image = Image.frombytes("RGB", (pixels.width, pixels.height), pixels.samples)
    return ImageOps.pad(image, SIZE, Image.Resampling.LANCZOS, "black")


def _with_box(image: Image.Image, overlay: Overlay) -> Image.Image:
    image = image.copy()
    draw = ImageDraw.Draw(image)
    small, large = ImageFont.load_default(26), ImageFont.load_default(44)
    width = int(max(draw.textlength(overlay.label, small), draw.textlength(overlay.value, large))) + 48
    height, margin = 124, 24
    x = margin if overlay.corner % 2 == 0 else SIZE[0] - margin - width
    y = margin if overlay.corner < 2 else SIZE[1] - margin - height
    draw.rectangle((x, y, x + width, y + height), fill="#ffe14d", outline="black", width=4)
    draw.text((x + 24, y + 16), overlay.label, "black", small)
    draw.text((x + 24, y + 54), overlay.value, "black", large)
    return image


def _encode(pages: Sequence[Image.Image], shots: Sequence[Shot]) -> bytes:
    """The shots as an MP4. One thread and no dates or versions in the file: the same shots give the same bytes."""
    file = io.BytesIO()
    with av.open(file, "w", format="mp4", options={"fflags": "+bitexact"}) as container:
        options = {"crf": "20", "preset": "veryfast", "tune": "stillimage", "threads": "1", "g": str(10 * RATE)}
        stream = container.add_stream("libx264", rate=RATE, options=options)
        stream.width, stream.height, stream.pix_fmt = *SIZE, "yuv420p"
        stream.codec_context.thread_count = 1
        for shot in shots:
            plain = _frame(pages[shot.page - 1])
            boxed = _frame(_with_box(pages[shot.page - 1], shot.overlay)) if shot.overlay else plain
            for number in range(shot.start * RATE, shot.end * RATE):
                over = shot.overlay and shot.overlay.start * RATE <= number < shot.overlay.end * RATE
                frame = boxed if over else plain
                frame.pts, frame.time_base = number, Fraction(1, RATE)
                container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return file.getvalue()


def _frame(image: Image.Image) -> av.VideoFrame:
    return av.VideoFrame.from_image(image).reformat(format="yuv420p")


def main(arguments: Sequence[str] | None = None) -> None:
    """`python -m vrag_nb.documents.narrated CORPUS OUT`."""
    parser = argparse.ArgumentParser(prog="vrag_nb.documents.narrated", description="Make videos of generated decks.")
    parser.add_argument("corpus", type=Path, help="a generated corpus: documents/ and questions.{split}.parquet")
    parser.add_argument("out", type=Path, help="folder to write documents/ and questions.{split}.parquet in")
    parser.add_argument("--split", default="test", help="train, dev or test (default)")
    parser.add_argument("--videos", type=int, help="at most so many (default: one of every deck)")
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    parser.add_argument("--chunk-seconds", type=int, default=CHUNK_SECONDS, help=f"default: {CHUNK_SECONDS}")
    options = parser.parse_args(arguments)
    asked = write_videos(
        options.corpus, options.out, options.split, options.videos, options.seed, options.chunk_seconds
    )
    videos = len({question.document for question in asked})
    print(f"{videos} videos with {len(asked)} questions in {options.out}")


if __name__ == "__main__":
    main()
