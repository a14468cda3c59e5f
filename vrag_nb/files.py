"""Files that are there as a whole or not at all, and logs that a killed process may have left with half a line.

    with replacing(path) as temporary: table.to_parquet(temporary)
    write_json(path, data)

A file is written under a hidden name of this process's own, `.{name}.{process id}.partial`, and renamed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path beside `path` to write to; what is there at the end takes its place. After an error `path` is as it was.

    The folder is made where it is missing.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name[-40:]}.{os.getpid()}.partial")  # the name itself may be as long as allowed
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes) -> None:
    """Replace `path`."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    """Replace `path` with UTF-8."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, data: Any) -> None:
    """Replace `path` with `data` as indented JSON."""
    write_text(path, json.dumps(data, indent=1, ensure_ascii=False) + "\n")


def write_jsonl(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Replace `path` with one JSON line a row."""
    write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def read_lines(path: Path) -> list[str]:
    """The lines of a log of JSON. A last one that was not ended is left out where it is half written: no JSON.

    Raises FileNotFoundError.
    """
    *lines, last = Path(path).read_bytes().split(b"\n")  # str.splitlines would cut at U+2028, too
    return [line.decode("utf-8", "replace") for line in ([*lines, last] if is_json(last) else lines)]


def is_json(text: bytes) -> bool:
    """Whether this is a whole JSON value, as the line of a log is."""
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def append_line(path: Path, line: str) -> None:
    """Append a line to a log; what a killed process left half written before it is ended, and a line of its own."""
    with Path(path).open("a+b") as file:
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            line = line if file.read(1) == b"\n" else f"\n{line}"
        file.write(f"{line}\n".encode())
