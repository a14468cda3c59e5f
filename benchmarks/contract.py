"""The search server against its OpenAPI document: schemathesis sends what it allows, and what it does not.

    .venv/bin/python -m uv pip install -e '.[bench]'
    .venv/bin/python benchmarks/contract.py [--examples 60] [--seed 0] [--out results/benchmarks]

Starts the real server (`python -m vrag_nb serve`) on the profile's index, with upstream's GET form answered too, and
runs every check of schemathesis on every operation: no 5xx, no answer that the document does not tell of, nothing
refused that it allows, nothing accepted that it forbids. Printed: what schemathesis prints, then its cases and how each
phase ended. Exits 1 when a check failed, and when schemathesis is missing, with a line that says how to install it.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from server import server
from tables import tell

INSTALL = "schemathesis is missing: .venv/bin/python -m uv pip install -e '.[bench]'"


def checked(url: str, examples: int, seed: int, workers: int) -> dict[str, Any]:
    """schemathesis' report on the server at `url`. Raises RuntimeError when it ends without one."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        asked = ["--max-examples", str(examples), "--seed", str(seed), "--workers", str(workers)]
        command = ["run", f"{url}/openapi.json", *asked, "--report-json-path", str(report)]
        ended = subprocess.run([sys.executable, "-m", "schemathesis.cli", *command], cwd=folder, check=False)
        if not report.is_file():
            raise RuntimeError(f"schemathesis ended with {ended.returncode} and without a report")
        return json.loads(report.read_text(encoding="utf-8"))


def row(report: Mapping[str, Any]) -> list[str]:
    """What the report counts, as the table has it."""
    operations, cases = report["operations"], report["test_cases"]
    phases = ", ".join(f"{name} {phase['status']}" for name, phase in report["phases"].items())
    failed, errors = cases["with_failures"], len(report["errors"])
    counts = [f"{operations['tested']} of {operations['total']}", cases["generated"], failed, errors]
    return [*map(str, counts), phases, f"{report['running_time']:.0f}"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", default="nano")
    parser.add_argument("--examples", type=int, default=60, help="cases a phase draws for an operation, at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1, help="clients at once")
    parser.add_argument("--out", type=Path, default=None, help="folder for contract.md")
    options = parser.parse_args()
    if importlib.util.find_spec("schemathesis") is None:
        print(INSTALL, file=sys.stderr)
        return 1
    with server(options.profile, "--upstream") as url:
        report = checked(url, options.examples, options.seed, options.workers)
    head = ["operations", "cases", "failed", "errors", "phases", "seconds"]
    notes = f"schemathesis {report['schemathesis_version']}, seed {options.seed}"
    tell("The search server against its OpenAPI document", head, [row(report)], notes, options.out)
    return int(report["exit_code"] != 0)


if __name__ == "__main__":
    sys.exit(main())
