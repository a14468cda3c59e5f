"""Files that are replaced whole, and logs with half a line."""

from __future__ import annotations

from pathlib import Path

import pytest

from vrag_nb.files import append_line, read_lines, replacing, write_json, write_text


def test_what_fails_midway_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "made" / "a.txt"
    write_text(path, "old")

    def broken() -> None:
        with replacing(path) as temporary:
            temporary.write_text("new, but ha")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        broken()
    assert path.read_text() == "old"
    assert list(path.parent.iterdir()) == [path]


def test_a_name_may_be_as_long_as_names_can_be(tmp_path: Path) -> None:
    path = tmp_path / ("ü" * 125 + ".json")  # 255 bytes
    write_json(path, {"a": 1})
    assert path.read_text() == '{\n "a": 1\n}\n'


def test_half_a_line_is_left_out_and_then_ended(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    append_line(log, "one\u2028line")
    with log.open("ab") as file:
        file.write("hälf".encode()[:2])  # cut within a letter
    assert read_lines(log) == ["one\u2028line"]
    append_line(log, "two")
    assert [line for line in read_lines(log) if not line.startswith("h")] == ["one\u2028line", "two"]
    assert len(read_lines(log)) == 3
