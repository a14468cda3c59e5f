"""Narrated decks: videos of the nano world, each with questions whose gold is a chunk and a time span.

    video, questions = narrate(pdf, deck_questions, seed=0)
    python -m vrag_nb.documents.narrated OUT --videos 6 --seed 0            # videos of decks drawn for them
    python -m vrag_nb.documents.narrated CORPUS --decks CORPUS --videos 6   # beside the decks of a generated corpus

The pages of a generated deck are shown one after another, each for some whole seconds. On about every second page a
box with a label and a value lies over a corner of the page for three seconds: an answer that no page holds. The cuts
fall so that a page is never on screen in two chunks. A video belongs to the split of its deck, and its documents are
`{deck}-video`, so that both can lie in one corpus.

Questions are of two kinds: those about a box, and the deck's own about one page of print large enough to be read
without a crop, turned to the video. `meta_info.reference_page` holds the chunk, `reference_span` [start, end] in
seconds from the video's start. The same input gives the same questions and pictures (one thread, nothing about the
machine written); the encoder's bytes have been seen to differ, once in some tens of encodings on a busy machine.

**On disk** `narrate_corpus` writes `documents/*.mp4`, `questions.video-{split}.{json,parquet}` (the decks' questions
keep their own files) and `narrated.json`, which says what each video was made from: one that is there is not made
again, so that a killed run goes on where it was; one that is no longer asked for is removed. The corpus is to be cut
into chunks of the same length.

This lies beside `decks`, not in it: the fingerprint of the decks' corpus covers that folder's code.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pymupdf

from vrag_nb.documents import filming
from vrag_nb.documents.decks.generate import generate_decks
from vrag_nb.documents.decks.tables import SPLITS
from vrag_nb.documents.filming import Overlay, Shot, film_pages
from vrag_nb.records import MetaInfo, Question, read_questions, write_questions

BOX_SECONDS = 3
CHUNK_SECONDS = 10
MARKER = "narrated.json"
_OURS = re.compile(r"documents/[^/]+\.mp4|questions\.video-[a-z]+\.[a-z]+")  # what a marker may have removed
Size = tuple[float, float]
DECK_QUESTIONS = 24  # asked of each deck that is drawn for its video alone
LABELS = (
    "Hotline", "Survey code", "Session code", "Raffle number", "Dial-in", "Meeting room", "Poll number", "Ticket",
    "Workshop key", "Extension", "Locker", "Stand number", "Voucher", "Seat", "Badge number", "Archive number",
)  # fmt: skip


def narrate(
    pdf: bytes, questions: Sequence[Question], seed: int, chunk_seconds: int = CHUNK_SECONDS
) -> tuple[bytes, list[Question]]:
    """The video (MP4, H.264) of a deck, and its questions. `questions`: the deck's.

    chunk_seconds: as the corpus will be cut. Raises ValueError for a deck without pages or questions, or chunks shorter
    than 8 seconds, which cannot hold two pages.
    """
    shots, asked = _script(pdf, questions, seed, chunk_seconds)
    return film_pages(pdf, shots), asked


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


def script(
    pages: Sequence[Size], title: str, questions: Sequence[Question], seed: int, chunk_seconds: int = CHUNK_SECONDS
) -> tuple[list[Shot], list[Question]]:
    """What is on screen when, and what is asked about it. pages: their (width, height); title: of the deck.

    Raises as `narrate` does.
    """
    if not questions:
        raise ValueError("a narrated deck needs at least one question of the deck: it says which deck it is")
    deck = questions[0].document
    shots = plan(random.Random(f"{seed}/{deck}"), len(pages), chunk_seconds)
    wide = [shot for shot in shots if pages[shot.page - 1][0] >= pages[shot.page - 1][1]]
    return shots, [
        *_about_boxes(deck, title or deck, shots, chunk_seconds),
        *_about_pages(questions, title or deck, wide, chunk_seconds),
    ]


def _script(
    pdf: bytes, questions: Sequence[Question], seed: int, chunk_seconds: int
) -> tuple[list[Shot], list[Question]]:
    with pymupdf.open(stream=pdf, filetype="pdf") as document:
        pages = [(page.rect.width, page.rect.height) for page in document]
        return script(pages, (document.metadata or {}).get("title") or "", questions, seed, chunk_seconds)


def _value(rng: random.Random) -> str:
    letters = "".join(rng.sample("ABCDEFGHJKLMNPRSTUVWXYZ", 2))
    return rng.choice(
        [f"{letters}-{rng.randint(100, 999)}", f"{rng.randint(1000, 9999)}", f"{letters}{rng.randint(10, 99)}"]
    )


# --- a corpus of them -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NarratedSummary:
    """What `narrate_corpus` made or found: videos of all splits, how many of them now, and questions per split."""

    videos: int
    made: int
    questions: dict[str, int]


def narrate_corpus(
    out: Path,
    videos: Mapping[str, int],
    seed: int = 0,
    chunk_seconds: float = CHUNK_SECONDS,
    decks: Path | None = None,
) -> NarratedSummary:
    """Put so many `videos` of each split, and their questions, into the corpus folder `out`.

    decks: a generated corpus (`decks.generate`) whose first decks of the split are filmed; it may be `out` itself.
    Where there is none, decks are drawn with `seed`, and only their videos are kept. What an earlier run made here and
    this one does not is removed. Raises ValueError for an unknown split, more videos than `decks` has decks, and chunks
    that are shorter than 8 or no whole seconds; FileNotFoundError where `decks` lacks a file.
    """
    out = Path(out)
    _check(videos, chunk_seconds)
    (out / "documents").mkdir(parents=True, exist_ok=True)
    before = _read_marker(out)
    files: dict[str, str] = {}  # file: what it was made from
    made, counts = 0, {}
    for split, count in videos.items():
        asked: list[Question] = []
        for pdf, questions in _decks(decks, split, count, seed):
            shots, own = _script(pdf, questions, seed, int(chunk_seconds))
            name, origin = f"documents/{own[0].meta_info.file_name}", _origin(pdf, questions, seed, int(chunk_seconds))
            if before.get(name) != origin or not (out / name).is_file():
                _write(out / name, film_pages(pdf, shots))
                made += 1
            files[name] = origin
            _write_marker(out, {**before, **files})
            asked += own
        for suffix in ("json", "parquet"):
            name = f"questions.video-{split}.{suffix}"
            write_questions(out / name, asked)
            files[name] = ""
        counts[split] = len(asked)
    for name in set(before) - set(files):
        (out / name).unlink(missing_ok=True)
    _write_marker(out, files)
    return NarratedSummary(sum(name.startswith("documents/") for name in files), made, counts)


def _check(videos: Mapping[str, int], chunk_seconds: float) -> None:
    for split, count in videos.items():
        if split not in SPLITS:
            raise ValueError(f"there is no split {split!r} to make videos of; splits: {', '.join(SPLITS)}")
        if count < 0:
            raise ValueError(f"{count} videos of {split}: take 0 or more")
    if chunk_seconds % 1 != 0:
        raise ValueError(f"chunks of {chunk_seconds} s: videos are cut at whole seconds, so take a whole number")


def _decks(corpus: Path | None, split: str, count: int, seed: int) -> Iterator[tuple[bytes, list[Question]]]:
    """The first `count` decks of a split as (PDF, questions), by name."""
    with TemporaryDirectory() as folder:
        if corpus is None:
            corpus, every = Path(folder), generate_decks(Path(folder), split, count, count * DECK_QUESTIONS, seed)
        else:
            every = read_questions(Path(corpus) / f"questions.{split}.parquet")
        by_deck: dict[str, list[Question]] = {}
        for question in every:
            by_deck.setdefault(question.document, []).append(question)
        if len(by_deck) < count:
            raise ValueError(f"{corpus} has questions about {len(by_deck)} {split} decks, and {count} are to be filmed")
        for deck in sorted(by_deck)[:count]:
            yield (Path(corpus) / "documents" / f"{deck}.pdf").read_bytes(), by_deck[deck]


def _origin(pdf: bytes, questions: Sequence[Question], seed: int, chunk_seconds: int) -> str:
    """Changes when the deck, its questions, the seed, the chunks or the code do."""
    code = [path.read_bytes() for path in (Path(__file__), Path(filming.__file__))]
    digest = hashlib.sha256(b"".join([*code, pdf]))
    digest.update(json.dumps([seed, chunk_seconds, *(one.model_dump(mode="json") for one in questions)]).encode())
    return digest.hexdigest()


def _read_marker(out: Path) -> dict[str, str]:
    """`{file: what it was made from}`; a marker that cannot be read knows nothing."""
    try:
        files = json.loads((out / MARKER).read_text(encoding="utf-8"))["files"]
        return {name: str(origin) for name, origin in files.items() if _OURS.fullmatch(name)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _write_marker(out: Path, files: Mapping[str, str]) -> None:
    _write(out / MARKER, json.dumps({"files": dict(sorted(files.items()))}, indent=1).encode())


def _write(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.partial")
    temporary.write_bytes(content)
    os.replace(temporary, path)


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


def main(arguments: Sequence[str] | None = None) -> None:
    """`python -m vrag_nb.documents.narrated OUT`."""
    parser = argparse.ArgumentParser(prog="vrag_nb.documents.narrated", description="Make videos of generated decks.")
    parser.add_argument("out", type=Path, help="corpus folder to write documents/ and questions.video-{split}.* in")
    parser.add_argument("--videos", type=int, default=6, metavar="N", help="so many of each split (default: 6)")
    parser.add_argument("--splits", nargs="+", default=["test"], metavar="SPLIT", help="train, dev, test (default)")
    parser.add_argument("--decks", type=Path, metavar="CORPUS", help="film these decks; default: decks drawn for it")
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    parser.add_argument("--chunk-seconds", type=int, default=CHUNK_SECONDS, help=f"default: {CHUNK_SECONDS}")
    options = parser.parse_args(arguments)
    wanted = dict.fromkeys(options.splits, options.videos)
    try:
        summary = narrate_corpus(options.out, wanted, options.seed, options.chunk_seconds, options.decks)
    except (ValueError, FileNotFoundError) as error:
        parser.error(str(error))
    questions = sum(summary.questions.values())
    print(f"{summary.videos} videos ({summary.made} made now) with {questions} questions in {options.out}")


if __name__ == "__main__":
    main()
