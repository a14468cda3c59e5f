"""Copies the measured tables of `results/` into the README, between its two `measured` comments.

    python benchmarks/readme.py            # rewrite README.md
    python benchmarks/readme.py --check    # exit 1 if README.md says something else than results/

Run it after `make nano-eval`, `make realdocs DIR=...`, `make run`, `benchmarks/search.py --out results/search` and what
writes to `results/benchmarks`, `results/table_1`, `results/memory`, `results/long` and `results/algorithms`.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vrag_nb.evaluation.realdocs import realdocs_markdown
from vrag_nb.evaluation.report import answers_markdown, markdown, markdown_table

ROOT = Path(__file__).resolve().parent.parent
SEARCHED = (
    "The pages of the default index, then pages put together from runs of their patches and moved by noise; 40 test "
    "questions, one thread. Recall against exact MaxSim in float32; the peer is colpali-engine's `score_multi_vector`, "
    "all queries in one call, in bfloat16 or float32, whichever is faster. all: every page by its codes."
)
BETWEEN = re.compile(r"(<!-- measured -->\n).*(<!-- /measured -->)", re.DOTALL)


def measured() -> str:
    """The tables, headings one level below the README's section."""
    nano = json.loads((ROOT / "results/nano/metrics.json").read_text(encoding="utf-8"))
    text = "`make nano-eval` (results/nano/metrics.json):\n" + markdown(nano).removeprefix("# Evaluation\n")
    learned = ROOT / "results/nano/checkpoints/comparison.json"
    if learned.is_file():
        body = re.sub(
            r"^## ", "#### ", answers_markdown(json.loads(learned.read_text(encoding="utf-8"))), flags=re.MULTILINE
        )
        text += (
            f"\n## Learning in `make run`\n\n`make run`, one seed (results/nano/checkpoints/comparison.json):\n\n{body}"
        )
    real = ROOT / "results/realdocs/metrics.json"
    if real.is_file():
        body = realdocs_markdown(json.loads(real.read_text(encoding="utf-8"))).removeprefix("# Real documents\n")
        text += f"\n## Real documents\n\n`make realdocs DIR=...` (results/realdocs/metrics.json):\n{body}"
    found = ROOT / "results/search/search.json"
    if found.is_file():
        command = (
            "python benchmarks/search.py --kinds perturbed --pages 1000 10000 70000 --candidates 64 256 1024 4096 "
            "--out results/search"
        )
        rows = json.loads(found.read_text(encoding="utf-8"))
        text += f"\n## Search in large corpora\n\n`{command}` (search.json there):\n\n"
        text += f"{searched(rows)}\n\n{SEARCHED}\n"
    told = sorted((ROOT / "results/benchmarks").glob("*.md"))
    if told:
        text += "\n## Speed, beside peers\n\n" + "\n".join(path.read_text(encoding="utf-8") for path in told)
    return "\n" + re.sub(r"^## ", "### ", text, flags=re.MULTILINE) + "\n"


def searched(rows: Sequence[Mapping[str, Any]]) -> str:
    """The compact index by pages and candidates."""
    header = [
        "pages",
        "candidates",
        "recall@10",
        "p50, ms",
        "p95, ms",
        "queries/s, times the peer's",
        "disk, of bfloat16",
        "memory, MB",
        "build, min",
    ]
    return markdown_table(
        header,
        [
            [
                f"{row['pages']:,}",
                row["candidates"],
                f"{row['recall']:.3f}",
                f"{row['p50']:.0f}",
                f"{row['p95']:.0f}",
                f"{row['ratio']:.0f}",
                f"1/{1 / row['disk_share']:.1f}",
                f"{row['memory_bytes_a_page'] * row['pages'] / 1e6:.0f}",
                f"{row['build_seconds'] / 60:.0f}",
            ]
            for row in rows
        ],
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only say whether README.md is up to date")
    check = parser.parse_args().check
    path = ROOT / "README.md"
    before = path.read_text(encoding="utf-8")
    after = BETWEEN.sub(lambda found: found[1] + measured() + found[2], before)
    if check:
        return int(before != after)
    path.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
