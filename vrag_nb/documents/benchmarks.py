"""The public benchmarks by name, and which of them a question file is.

    reading = read_benchmark(Path("samples.json"))              # recognised by its fields
    reading = read_benchmark(path, "slidevqa")                  # or named
    print(reading.summary())                                    # counts, columns, licence

    slidevqa      annotation lines, or slidevqa_refined.json    columns single, multi
    vidoseek      vidoseek.json                                 columns extraction, logic
    mmlongbench   samples.json                                  columns text, table, chart, figure, layout, unanswerable
    unified       this project's own records                    no columns

A further benchmark is a reader in a file of its own and an entry here. Nothing is ever downloaded: who runs an
evaluation gets the files, under their licences, which `summary` shows.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vrag_nb.documents import mmlongbench, slidevqa, vidoseek
from vrag_nb.documents.annotations import BadRow, read_rows
from vrag_nb.records import Question, read_questions

Row = Mapping[str, Any]
LOOKED_AT = 200  # rows that decide which benchmark a file is
OWN_FIELDS = ("reference_regions", "reference_documents", "answers", "needs_crop", "needed_facts")  # of no benchmark
_VIDOSEEK_UID = re.compile(r"[0-9a-f]{40}_\d+")


@dataclass(frozen=True)
class Benchmark:
    """A data set. `looks_like`: whether one row is in its format; `read`: its adapter."""

    name: str
    title: str
    licence: str
    read: Callable[[Path], tuple[list[Question], list[BadRow]]]
    looks_like: Callable[[Row], bool]


@dataclass(frozen=True)
class Reading:
    """A question file as read. `benchmark` is None for unified records, which are right or refused as a whole."""

    path: Path
    benchmark: Benchmark | None
    questions: list[Question] = field(repr=False)
    bad: list[BadRow] = field(default_factory=list, repr=False)

    @property
    def format(self) -> str:
        return self.benchmark.name if self.benchmark else "unified"

    @property
    def skipped(self) -> list[BadRow]:
        """Records that became no question."""
        return [entry for entry in self.bad if not entry.kept]

    def summary(self) -> str:
        """A line of counts, a line of columns, the licence; what the file is and what was left of it."""
        mended = len(self.bad) - len(self.skipped)
        lines = [f"{self.path.name}: {self.format}, {len(self.questions)} questions, "]
        lines[0] += f"{len(self.skipped)} records skipped, {mended} mended"
        counts = Counter(column for question in self.questions for column in columns(question))
        if counts:
            lines.append("columns: " + ", ".join(f"{name} {count}" for name, count in sorted(counts.items())))
        used = {(question.meta_info.model_extra or {}).get("benchmark") for question in self.questions}
        lines += [f"licence of {one.title}: {one.licence}" for one in BENCHMARKS.values() if one.name in used]
        return "\n".join(lines)


def columns(question: Question) -> list[str]:
    """The papers' columns a question counts in, `{benchmark} {column}`; none for generated and own questions."""
    extra = question.meta_info.model_extra or {}
    return [f"{extra['benchmark']} {column}" for column in extra.get("columns", [])] if "benchmark" in extra else []


def read_benchmark(path: Path, format: str = "auto") -> Reading:
    """The questions of a file in one of `FORMATS`, or "auto": recognised by its fields.

    Bad records are in the reading. Raises FileNotFoundError; ValueError for an unknown format, for a file that cannot
    be read, and when not one record became a question.
    """
    if format not in ("auto", *FORMATS):
        raise ValueError(f"unknown format {format!r}; known: auto, {', '.join(FORMATS)}")
    name = recognise(path) if format == "auto" else format
    if name == "unified":
        return Reading(Path(path), None, read_questions(path))
    questions, bad = BENCHMARKS[name].read(Path(path))
    if not questions:
        why = f"; the first: {bad[0]}" if bad else ""
        raise ValueError(f"{path}: no record is a question of {BENCHMARKS[name].title}{why}")
    return Reading(Path(path), BENCHMARKS[name], questions, bad)


def recognise(path: Path) -> str:
    """Which of `FORMATS` a file has: the first benchmark that a row looks like, else unified.

    A record with one of `OWN_FIELDS` makes it unified, whatever the others look like: an adapter reads none of them.
    """
    rows = [row for row in read_rows(path) if isinstance(row, dict)]
    if any(_meta(row).get(field) is not None for row in rows for field in OWN_FIELDS):
        return "unified"
    for name, benchmark in BENCHMARKS.items():
        if any(benchmark.looks_like(row) for row in rows[:LOOKED_AT]):
            return name
    return "unified"


def _meta(row: Row) -> Row:
    """The meta_info of a record that no adapter has been over yet."""
    meta = row.get("meta_info")
    return meta if isinstance(meta, dict) and "benchmark" not in meta else {}


def _like_slidevqa(row: Row) -> bool:
    meta = _meta(row)
    spans = ("single_span", "multi_span", "non_span")
    refined = "origin_query" in meta or (meta and "origin_query" in row) or meta.get("source_type") in spans
    return {"deck_name", "qa_id"} <= row.keys() or bool(refined)


def _like_vidoseek(row: Row) -> bool:
    meta = _meta(row)
    published = _VIDOSEEK_UID.fullmatch(str(row.get("uid"))) is not None
    return bool(meta) and (published or meta.get("source_type") == "2d_layout")


def _like_mmlongbench(row: Row) -> bool:
    return {"doc_id", "question", "evidence_pages"} <= row.keys()


BENCHMARKS = {
    one.name: one
    for one in (
        Benchmark("slidevqa", "SlideVQA", slidevqa.LICENCE, slidevqa.read_slidevqa, _like_slidevqa),
        Benchmark("vidoseek", "ViDoSeek", vidoseek.LICENCE, vidoseek.read_vidoseek, _like_vidoseek),
        Benchmark(
            "mmlongbench", "MMLongBench-Doc", mmlongbench.LICENCE, mmlongbench.read_mmlongbench, _like_mmlongbench
        ),
    )
}
FORMATS = (*BENCHMARKS, "unified")
