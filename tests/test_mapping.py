"""Mapped arrays: what they hold, that they keep no file open, and an index of more shards than a process may open."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from vrag_nb.retrieval.mapping import map_array

SHARDS = 80  # of a page each, in a process that may open half as many files
MANY_SHARDS = """
import os, resource, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from test_index import Toy, ToySingle, make_corpus
from vrag_nb.retrieval.building import build_index
from vrag_nb.retrieval.engine import SearchEngine
from vrag_nb.retrieval.storage import Compression
from vrag_nb.retrieval.structure import SingleVectorSettings
folder, count = Path(sys.argv[2]), int(sys.argv[3])
texts = [f"subject{number} of its own" for number in range(count)]
make_corpus(folder / "corpus", texts)
resource.setrlimit(resource.RLIMIT_NOFILE, (count // 2, count // 2))

def check(index, embedder, words, page_id, **settings):
    report = build_index(folder / "corpus", folder / index, embedder, shard_pages=1, progress=False, **settings)
    assert len(list((folder / index).glob("vectors-*.npy"))) == report.pages
    engine = SearchEngine.open(folder / "corpus", folder / index, embedder)
    assert engine.search([words], 1)[0][0].page_id == page_id, (index, words)
    return report

kinds = {
    "plain": (Toy(), {}),
    "compact": (Toy(), {"compression": Compression(keep=1, vector_bytes=64)}),
    "single": (ToySingle(), {}),
    "hnsw": (ToySingle(), {"single_vector": SingleVectorSettings(structure="hnsw")}),
}
for name, (embedder, settings) in kinds.items():
    assert check(name, embedder, "subject7", "deck2_2", **settings).embedded == count
del texts[9]  # one goes, one is replaced, two come
texts = [*texts, "newcomer of its own", "latecomer of its own"]
texts[30] = "replacement of its own"
make_corpus(folder / "corpus", texts)
for name, (embedder, settings) in kinds.items():
    report = check(name, embedder, "latecomer", f"deck{count // 3}_{count % 3 + 1}", **settings)
    assert (report.embedded, report.pages) == (3, count + 1), name
    check(name, embedder, "replacement", "deck10_1", **settings)
check("plain", Toy(), "subject7", "deck2_2", compression=Compression(keep=1, vector_bytes=64))
"""


def test_a_mapped_array_is_the_array_and_read_only(tmp_path: Path) -> None:
    for number, dtype in enumerate(("float16", "uint8", "float32")):
        array = np.arange(60).reshape(20, 3).astype(dtype)
        np.save(tmp_path / f"{number}.npy", array)
        mapped = map_array(tmp_path / f"{number}.npy")
        assert (mapped.dtype, mapped.shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(mapped, array)
        with pytest.raises(ValueError, match="read-only"):
            mapped[0] = 1
    (tmp_path / "0.npy").unlink()
    (tmp_path / "1.npy").chmod(0o400)
    assert map_array(tmp_path / "1.npy")[19, 2] == 59


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="counts open files where Linux lists them")
def test_a_map_keeps_no_file_open_and_outlives_its_file(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.ones((5000, 8), np.float16))
    before = len(os.listdir("/proc/self/fd"))
    maps = [map_array(tmp_path / "a.npy") for _ in range(50)]
    assert len(os.listdir("/proc/self/fd")) == before
    (tmp_path / "a.npy").unlink()
    parts = [mapped[7:9] for mapped in maps]
    del maps
    assert all(part.sum() == 16 for part in parts), "a part keeps its map"


def test_what_is_no_array_is_named(tmp_path: Path) -> None:
    whole = tmp_path / "whole.npy"
    np.save(whole, np.ones((50, 8), np.float16))
    cases = {"cut.npy": whole.read_bytes()[:-1], "text.npy": b"no array at all", "empty.npy": b""}
    for name, content in cases.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=name):
            map_array(tmp_path / name)
    np.save(tmp_path / "columns.npy", np.ones((5, 8), order="F"))
    np.save(tmp_path / "objects.npy", np.array([{}]), allow_pickle=True)
    for name in ("columns.npy", "objects.npy"):
        with pytest.raises(ValueError, match=name):
            map_array(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        map_array(tmp_path / "none.npy")


@pytest.mark.skipif(sys.platform == "win32", reason="sets a limit that Windows does not have")
def test_an_index_may_have_more_shards_than_a_process_may_open_files(tmp_path: Path) -> None:
    arguments = [sys.executable, "-c", MANY_SHARDS, str(Path(__file__).parent), str(tmp_path), str(SHARDS)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
