"""Decks and their questions: a corpus on disk, or one deck after another in memory for pretraining.

    generate_corpus(Path("data/corpora/decks"))             # the default corpus, all three splits
    generate_decks(out, "test", decks=11, questions=320)    # one split, any size
    pdf, questions = pretraining_deck(seed)                 # synthetic, training families only, about 0.1 s
    pdf, questions = pretraining_panels(seed)               # its charts and tables alone

A split uses only its own source tables (`tables.load_series`) and its own layout families (`themes.families`). Where a
split is asked for more decks than it has series, a series is used again with other rows and columns, and the deck's
name says which edition it is. The same seed gives byte-identical PDFs.

**On disk** `generate_corpus` writes `documents/*.pdf`, `questions.{train,dev,test}.{json,parquet}` and, last,
`decks.json`: the seed, a fingerprint of the generator's code and tables, and what it wrote. A run that finds its own
fingerprint and all files there returns at once; anything else is made anew, each file under another name and then
renamed, so that a run killed at any moment leaves nothing half-written and its rerun ends with the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
from dataclasses import dataclass
from pathlib import Path

from vrag_nb.documents.decks.plan import Deck, make_deck, make_panels
from vrag_nb.documents.decks.questions import make_questions
from vrag_nb.documents.decks.synthetic import synthetic_series
from vrag_nb.documents.decks.tables import SPLITS, TABLES, Series, load_series
from vrag_nb.documents.decks.themes import Family, families, mixed_family
from vrag_nb.records import Question, write_questions

DEFAULT_SIZES = {"train": (48, 2200), "dev": (8, 330), "test": (12, 360)}  # split: (decks, questions)
MARKER = "decks.json"
_EDITIONS = ("", "Update", "Review", "Special", "Annex", "Digest", "Extra")


def pretraining_deck(rng_seed: int, questions: tuple[int, int] = (24, 40)) -> tuple[bytes, list[Question]]:
    """One deck (PDF bytes) and so many questions about it (from, to), fewer where it holds less.

    Its family is a training family, nearly always with details of others mixed in; its tables are synthetic, or
    (one time in five) training tables. Nothing of the dev and test splits is ever read.
    """
    rng = random.Random(rng_seed)
    deck = make_deck(rng, *_training_look(rng), f"pretraining-{rng_seed}")
    return deck.pdf, make_questions(rng, deck, rng.randint(*questions))


def pretraining_panels(rng_seed: int, panels: int = 10, questions: int = 60) -> tuple[bytes, list[Question]]:
    """Charts and tables of such a deck, each with few rows and on a small page of its own; questions for a cell."""
    rng = random.Random(rng_seed)
    deck = make_panels(rng, *_training_look(rng), f"panels-{rng_seed}", panels)
    return deck.pdf, [q for q in make_questions(rng, deck, questions) if len(q.needed_facts) == 1]


def _training_look(rng: random.Random) -> tuple[Series, Family]:
    """What a pretraining deck is about, and how it looks."""
    series = rng.choice(load_series("train")) if rng.random() < 0.2 else synthetic_series(rng)
    return series, mixed_family(rng) if rng.random() < 0.85 else rng.choice(families("train"))


def generate_decks(
    out: Path, split: str, decks: int, questions: int, seed: int = 0, tables_dir: Path = TABLES
) -> list[Question]:
    """Write `decks` decks of `split` to `out/documents/` and return exactly `questions` questions about them.

    Questions are spread evenly over the decks. Raises ValueError when the decks cannot carry that many, or for an
    unknown split.
    """
    documents = Path(out) / "documents"
    documents.mkdir(parents=True, exist_ok=True)
    found: list[list[Question]] = []
    wanted = -(-questions // max(decks, 1))
    for number in range(decks):
        deck, rng = _deck(split, number, seed, tables_dir)
        _write(documents / f"{deck.deck_id}.pdf", deck.pdf)
        found.append(make_questions(rng, deck, wanted + wanted // 2 + 4))
    return _spread(found, questions, split)


def _deck(split: str, number: int, seed: int, tables_dir: Path) -> tuple[Deck, random.Random]:
    """Deck `number` of a split, and its generator for the questions."""
    series, edition, name = _identity(split, number, seed, tables_dir)
    rng = random.Random(f"{seed}/{split}/{name}")
    # Two slide decks for each report.
    able = sorted([f for f in families(split) for _ in range(1 if f.kind == "report" else 2)], key=lambda f: f.kind)
    family = able[(number + edition) % len(able)]
    return make_deck(rng, series, family, _deck_id(name), name), rng


def _identity(split: str, number: int, seed: int, tables_dir: Path) -> tuple[Series, int, str]:
    """Series, edition and name of deck `number` of a split."""
    order = _order(load_series(split, tables_dir), seed)
    series, edition = order[number % len(order)], number // len(order)
    word = _EDITIONS[edition] if edition < len(_EDITIONS) else f"Edition {edition + 1}"
    return series, edition, f"{series.name} {word}".strip()


def _deck_id(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _order(series: tuple[Series, ...], seed: int) -> list[Series]:
    """The series in a random order that goes round the data sets, so that a few decks cover many of them."""
    rng = random.Random(f"{seed}/order")
    groups: dict[str, list[Series]] = {}
    for item in rng.sample(series, len(series)):
        groups.setdefault(item.dataset, []).append(item)
    rounds = [[group[i] for group in groups.values() if i < len(group)] for i in range(max(map(len, groups.values())))]
    return [item for part in rounds for item in part]


def _spread(found: list[list[Question]], questions: int, split: str) -> list[Question]:
    """The first so many questions of each deck, `questions` together, taken round by round."""
    available = sum(map(len, found))
    if available < questions:
        raise ValueError(
            f"{len(found)} {split} decks carry {available} questions, not {questions}: "
            "ask for more decks or fewer questions"
        )
    taken = [0] * len(found)
    while sum(taken) < questions:
        for index, items in enumerate(found):
            if taken[index] < len(items) and sum(taken) < questions:
                taken[index] += 1
    return [question for items, count in zip(found, taken, strict=True) for question in items[:count]]


def _write(path: Path, content: bytes) -> None:
    """Write `content` unless it is there already; never half of it."""
    if path.is_file() and path.read_bytes() == content:
        return
    temporary = path.with_name(f".{path.name}.partial")
    temporary.write_bytes(content)
    os.replace(temporary, path)


# ------------------------------------------------------------------------------------------------- the default corpus


@dataclass(frozen=True)
class CorpusSummary:
    """What `generate_corpus` made or found: counts over all splits, and per split."""

    documents: int
    questions: dict[str, int]
    fresh: bool  # False: everything was there already


def generate_corpus(
    out: Path, seed: int = 0, sizes: dict[str, tuple[int, int]] | None = None, tables_dir: Path = TABLES
) -> CorpusSummary:
    """Make the corpus of all three splits in `out`, or leave it alone when it is there.

    `sizes` maps a split to (decks, questions). Documents that an earlier run made here and this one does not are
    removed; files it did not make stay. Raises ValueError for a corpus of other documents, whose questions would be
    replaced and whose pages would go.
    """
    out, sizes = Path(out), dict(sizes or DEFAULT_SIZES)
    fingerprint = _fingerprint(seed, sizes, tables_dir)
    marker = _read_marker(out)
    if not (out / MARKER).exists() and (out / "pages.parquet").exists():  # pages come after a corpus has been made
        raise ValueError(
            f"{out} is a corpus of other documents, whose questions and pages the profile's decks would replace: "
            "choose another corpus folder, or say which documents it is made of (--documents)"
        )
    if marker.get("fingerprint") == fingerprint and all((out / name).is_file() for name in marker["files"]):
        return CorpusSummary(marker["documents"], marker["questions"], fresh=False)
    files = _planned(sizes, seed, tables_dir)
    if marker:  # until all is written the folder holds files of two corpora, and is neither
        begun = {"fingerprint": "", "files": sorted({*files, *marker["files"]})}
        _write(out / MARKER, json.dumps(begun).encode())
    counts: dict[str, int] = {}
    for split in SPLITS:
        questions = generate_decks(out, split, *sizes.get(split, (0, 0)), seed, tables_dir)
        for suffix in ("json", "parquet"):
            write_questions(out / f"questions.{split}.{suffix}", questions)
        counts[split] = len(questions)
    for name in set(marker.get("files", ())) - set(files):
        (out / name).unlink(missing_ok=True)
    documents = sum(name.startswith("documents/") for name in files)
    record = {
        "fingerprint": fingerprint,
        "seed": seed,
        "documents": documents,
        "questions": counts,
        "files": sorted(files),
    }
    _write(out / MARKER, json.dumps(record, indent=1).encode())
    return CorpusSummary(documents, counts, fresh=True)


def _planned(sizes: dict[str, tuple[int, int]], seed: int, tables_dir: Path) -> list[str]:
    """The files of a corpus, relative to its folder."""
    files = [f"questions.{split}.{suffix}" for split in SPLITS for suffix in ("json", "parquet")]
    for split in SPLITS:
        decks, _ = sizes.get(split, (0, 0))
        files += [f"documents/{_deck_id(_identity(split, n, seed, tables_dir)[2])}.pdf" for n in range(decks)]
    return files


def _read_marker(out: Path) -> dict:
    try:
        marker = json.loads((out / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return marker if isinstance(marker, dict) and "files" in marker else {}


def _fingerprint(seed: int, sizes: dict[str, tuple[int, int]], tables_dir: Path) -> str:
    """Changes when the seed, the sizes, the generator's code or the tables do."""
    digest = hashlib.sha256(json.dumps([seed, sizes], sort_keys=True).encode())
    code = sorted(Path(__file__).parent.glob("*.py"))
    for path in [*(p for p in code if not p.name.startswith("sources")), *sorted(Path(tables_dir).glob("*"))]:
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()
