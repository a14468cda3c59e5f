"""Objects and checkpoints by name: one rule for what is a folder, errors that name what and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from vrag_nb import loading
from vrag_nb.loading import find_checkpoint, fingerprint_file, fingerprint_folder, load_object


def test_an_object_by_name() -> None:
    assert load_object("pathlib:Path", "class") is Path
    for name in ("pathlib:Pathh", "no_such_module:a", ":a"):
        with pytest.raises(ValueError, match=f"the part {name!r} cannot be imported"):
            load_object(name, "the part")
    with pytest.raises(ValueError, match=r"the part 'pathlib': name one of your own as module:name"):
        load_object("pathlib", "the part")


def test_a_checkpoint_is_a_folder_or_can_only_be_a_hub_id(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    with pytest.raises(FileNotFoundError, match=r"own holds no config\.json"):
        find_checkpoint("own", places=(tmp_path,))
    (tmp_path / "own" / "config.json").touch()
    assert find_checkpoint("own", places=(tmp_path,)) == tmp_path / "own"
    assert find_checkpoint("vidore/colpali") is None
    for name in ("own", "data/none", "results/none", "./none", "/no/such/folder"):
        with pytest.raises(FileNotFoundError, match=f"no checkpoint folder at {name}; make it with notebook 00"):
            find_checkpoint(name)
    with pytest.raises(FileNotFoundError, match="`hf download vidore/colpali --local-dir data/none`"):
        find_checkpoint("data/none", "vidore/colpali")


def test_a_large_file_counts_by_its_size_and_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "SAMPLED_ABOVE", 2**20)
    small, large = tmp_path / "config.json", tmp_path / "weights.bin"
    small.write_text("{}")
    large.write_bytes(bytes(8 * 2**20))
    before = fingerprint_folder(tmp_path), fingerprint_file(large), fingerprint_file(small)
    with large.open("r+b") as file:
        file.seek(8 * 2**20 - 1)
        file.write(b"x")
    after = fingerprint_folder(tmp_path), fingerprint_file(large), fingerprint_file(small)
    assert [one == other for one, other in zip(before, after, strict=True)] == [False, False, True]
    large.rename(tmp_path / "renamed.bin")
    assert fingerprint_file(tmp_path / "renamed.bin") == after[1]
