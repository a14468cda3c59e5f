"""How a benchmark tells what it measured: a table on the terminal, and on request a file that names the command."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from vrag_nb.evaluation.metrics import Interval
from vrag_nb.evaluation.report import markdown_table, print_table
from vrag_nb.files import write_text


def tell(
    title: str,
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    notes: str = "",
    out: Path | None = None,
    name: str = "",
) -> None:
    """Print the table and the notes; with `out`, a folder, write them there too, with the command.

    name: of the file, without `.md`; by default the script's.
    """
    print_table(title, head, rows)
    if notes:
        print(notes)
    if out is not None:
        script = Path(sys.argv[0])
        command = shlex.join(["python", f"benchmarks/{script.name}", *map(_elsewhere, sys.argv[1:])])
        blocks = [f"**{title}**", f"`{command}`", markdown_table(head, rows), notes]
        write_text(out / f"{name or script.stem}.md", "\n\n".join(block for block in blocks if block) + "\n")


def bracketed(interval: Interval) -> str:
    """A value and its interval as one cell; "–" for none."""
    return "–" if interval.value is None else f"{interval.value:.3f} [{interval.low:.2f}, {interval.high:.2f}]"


def _elsewhere(argument: str) -> str:
    """An absolute path by its end: where it lies on this machine says nothing on another."""
    path = Path(argument)
    return str(Path(*path.parts[-3:])) if path.is_absolute() else argument
