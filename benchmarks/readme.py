"""Copies the measured tables of `results/` into the README, between its two `measured` comments.

    python benchmarks/readme.py            # rewrite README.md
    python benchmarks/readme.py --check    # exit 1 if README.md says something else than results/

Run it after `make nano-eval`, `make realdocs DIR=...` and `make run`.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

from vrag_nb.evaluation.realdocs import realdocs_markdown
from vrag_nb.evaluation.report import answers_markdown, markdown

ROOT = Path(__file__).resolve().parent.parent
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
    return "\n" + re.sub(r"^## ", "### ", text, flags=re.MULTILINE) + "\n"


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
