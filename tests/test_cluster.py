"""An index embedded by many workers: the same bytes as one process's, resumed shard by shard, problems named.

The workers' code runs in this process but for the last tests, which need Ray (`pip install 'vrag-nb[cluster]'`).
"""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from test_index import Toy, ToySingle, contents, make_corpus

from vrag_nb import __main__ as cli
from vrag_nb.records import Page
from vrag_nb.retrieval import cluster as module
from vrag_nb.retrieval.bm25 import Bm25
from vrag_nb.retrieval.building import build_index, embed_unit
from vrag_nb.retrieval.cluster import Cluster, ClusterError, ClusterReport, ShardWorker, build_on_cluster
from vrag_nb.retrieval.embedders import Embedder
from vrag_nb.retrieval.engine import SearchEngine
from vrag_nb.retrieval.storage import Compression
from vrag_nb.retrieval.units import PageVectors, Unit, identity, unit_path, write_unit

TEXTS = [f"page {number} of apples and word{number}" for number in range(10)]
TWO = Cluster(workers=2)


class Here:
    """Takes the rows through workers of this process, the last row first, as if workers were of unequal speed.

    `made`: how many workers were made, `embedded`: the page ids in the order in which they were embedded.
    """

    def __init__(self, workers: int = 2, lose: int | None = None, stop_after: int | None = None) -> None:
        self.workers, self.lose, self.stop_after = workers, lose, stop_after
        self.made, self.embedded = 0, list[str]()

    def __call__(self, arguments: dict[str, Any], rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        pool = [ShardWorker(**arguments) for _ in range(self.workers)]
        self.made += len(pool)
        for place, row in enumerate(reversed(rows)):
            if place == self.stop_after:
                raise KeyboardInterrupt
            if row["number"] == self.lose:
                continue
            worker = pool[place % len(pool)]
            worker.name = f"here:{place % len(pool)}"
            self.embedded += [page.page_id for page in Unit.model_validate_json(row["unit"]).pages]
            yield worker(row)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return make_corpus(tmp_path / "corpus", TEXTS)


def spread(
    corpus: Path, index: Path, load: Callable[[], Embedder], runner: Here | None = None, **options: Any
) -> ClusterReport:
    options = {"shard_pages": 2, "progress": False} | options
    return build_on_cluster(corpus, index, load, TWO, runner=runner or Here(), **options)


# --- the same index ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "compression"),
    [(Toy, None), (ToySingle, None), (Toy, Compression(keep=1, vector_bytes=64))],
    ids=["vectors", "single", "compact"],
)
def test_many_workers_make_the_index_of_one_process(
    corpus: Path, tmp_path: Path, kind: type[Toy], compression: Compression | None
) -> None:
    build_index(corpus, tmp_path / "one", kind(), shard_pages=2, compression=compression, progress=False)
    report = spread(corpus, tmp_path / "many", kind, compression=compression)
    assert contents(tmp_path / "many") == contents(tmp_path / "one")
    assert (report.pages, report.embedded, report.resumed) == (10, 10, 0)
    assert report.by_worker == {"here:0": 3, "here:1": 2}


@given(
    texts=st.lists(st.sampled_from(["apples", "pears", "a b c d", ""]), min_size=1, max_size=9),
    shard_pages=st.integers(1, 10),
    workers=st.integers(1, 4),
    stop_after=st.integers(0, 9),
)
@settings(max_examples=25, deadline=None)
def test_any_cut_and_any_interruption_end_in_the_same_bytes(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], shard_pages: int, workers: int, stop_after: int
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    corpus = make_corpus(folder / "corpus", texts)
    build_index(corpus, folder / "one", Toy(), shard_pages=shard_pages, progress=False)
    first, again = Here(workers, stop_after=stop_after), Here(workers)
    try:
        spread(corpus, folder / "many", Toy, first, shard_pages=shard_pages)
    except KeyboardInterrupt:
        spread(corpus, folder / "many", Toy, again, shard_pages=shard_pages)
    assert contents(folder / "many") == contents(folder / "one")
    assert not set(first.embedded) & set(again.embedded), "a finished shard was embedded again"


def test_only_new_pages_are_embedded_and_the_cut_is_kept(corpus: Path, tmp_path: Path) -> None:
    index = tmp_path / "index"
    spread(corpus, index, Toy)
    make_corpus(corpus, [*TEXTS, "a new page"])
    runner = Here()
    report = spread(corpus, index, Toy, runner, shard_pages=None)
    assert runner.embedded == ["deck3_2"]
    assert (report.embedded, report.reused) == (1, 10)
    assert build_index(corpus, index, Toy(), progress=False).reused == 11
    idle = Here()
    assert spread(corpus, index, Toy, idle, shard_pages=None).by_worker == {}
    assert idle.made == 0, "nothing to embed starts no worker"


def test_text_needs_no_worker(corpus: Path, tmp_path: Path) -> None:
    runner = Here()
    assert spread(corpus, tmp_path / "index", Bm25, runner, shard_pages=None).pages == 10
    assert runner.made == 0
    assert SearchEngine.open(corpus, tmp_path / "index").search(["word3"], 1)[0][0].page_id == "deck1_1"


# --- resuming ---------------------------------------------------------------------------------------------------------


def test_one_process_finishes_what_workers_began(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        spread(corpus, tmp_path / "index", Toy, Here(stop_after=3))
    assert not (tmp_path / "index" / "manifest.json").exists()
    toy = Toy()
    report = build_index(corpus, tmp_path / "index", toy, shard_pages=2, progress=False)
    assert toy.embedded == TEXTS[:4]
    assert (report.embedded, report.resumed) == (10, 6)
    build_index(corpus, tmp_path / "one", Toy(), shard_pages=2, progress=False)
    assert contents(tmp_path / "index") == contents(tmp_path / "one")


@pytest.mark.parametrize("damage", ["cut", "byte", "empty", "other embedder"])
def test_a_damaged_or_foreign_shard_is_embedded_again(corpus: Path, tmp_path: Path, damage: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        spread(corpus, tmp_path / "index", Toy, Here(stop_after=2))
    victim, _ = sorted((tmp_path / "index").rglob("unit-*.npz"))
    whole = victim.read_bytes()
    with np.load(victim) as unit:
        keys, ids, lengths, vectors = (unit[name] for name in ("keys", "page_ids", "lengths", "vectors"))
    middle = whole.index(vectors.tobytes()) + vectors.nbytes // 2
    if damage == "other embedder":
        pages = [Page(page_id=str(name), document="d", page=1, image="i", width=1, height=1) for name in ids]
        arrays = np.split(np.zeros_like(vectors), np.cumsum(lengths)[:-1])
        write_unit(
            victim.parent, Unit(keys=[str(key) for key in keys], pages=pages), "another", arrays, [0.0] * len(arrays)
        )
    else:
        flipped = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
        victim.write_bytes({"cut": whole[:-9], "byte": flipped, "empty": b""}[damage])
    runner = Here()
    report = spread(corpus, tmp_path / "index", Toy, runner)
    assert len(runner.embedded) == 8, "four shards of two pages, the damaged one among them"
    assert set(map(str, ids)) <= set(runner.embedded)
    assert report.resumed == 2
    build_index(corpus, tmp_path / "one", Toy(), shard_pages=2, progress=False)
    assert contents(tmp_path / "index") == contents(tmp_path / "one")


def test_a_shards_file_says_what_it_holds(corpus: Path, tmp_path: Path) -> None:
    from vrag_nb.records import read_pages

    toy, pages = Toy(), read_pages(corpus)[:3]
    unit = Unit(keys=["a", "b", "c"], pages=pages)
    embed_unit(corpus, tmp_path, toy, unit)
    assert [path.name for path in tmp_path.glob("*.*")] == [unit_path(tmp_path, unit.keys).name], "nothing half-written"
    with np.load(unit_path(tmp_path, unit.keys)) as stored:
        assert stored["page_ids"].tolist() == [page.page_id for page in pages]
        assert str(stored["made_by"]) == identity(toy)
    vectors = PageVectors(tmp_path, identity(toy), None, {})
    assert vectors.has_unit(unit.keys)
    np.testing.assert_array_equal(vectors["b"], toy._embed(TEXTS[1]).astype(np.float16))
    assert not PageVectors(tmp_path, identity(Toy("retrained")), None, {}).has_unit(unit.keys)


# --- problems ---------------------------------------------------------------------------------------------------------


def test_a_page_that_cannot_be_read_is_named_and_the_rest_is_kept(corpus: Path, tmp_path: Path) -> None:
    image = corpus / "pages" / "deck1_2.png"
    whole = image.read_bytes()
    image.write_bytes(b"no picture")
    runner = Here()
    with pytest.raises(ClusterError, match=r"1 of 5 shards .* deck1_2 to deck1_3: page deck1_2: .* cannot be read"):
        spread(corpus, tmp_path / "index", Toy, runner)
    image.unlink()
    with pytest.raises(ClusterError, match=r"1 of 1 shards .*page deck1_2: no image at"):
        spread(corpus, tmp_path / "index", Toy)
    image.write_bytes(whole)
    repaired = Here()
    assert spread(corpus, tmp_path / "index", Toy, repaired).resumed == 8
    assert repaired.embedded == ["deck1_2", "deck1_3"]


def test_a_shard_that_is_lost_is_named(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=r"1 of 5 shards .* pages deck0_3 to deck1_1: Ray lost it"):
        spread(corpus, tmp_path / "index", Toy, Here(lose=1))
    runner = Here()
    spread(corpus, tmp_path / "index", Toy, runner)
    assert runner.embedded == ["deck0_3", "deck1_1"]


class DeadWorkerError(BaseException):
    """No worker can catch its own end."""


class Deadly(Toy):
    def embed_pages(self, images: list[Image.Image], texts: list[str]) -> list[np.ndarray]:
        if TEXTS[2] in texts:
            raise DeadWorkerError
        return super().embed_pages(images, texts)


class StartsAgain(Here):
    """What Ray does with a worker that dies: another takes the same row, again and again."""

    def __call__(self, arguments: dict[str, Any], rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for row in rows:
            while True:
                self.made += 1
                try:
                    answer = ShardWorker(**arguments)(row)
                except DeadWorkerError:
                    continue
                yield answer
                break


def test_a_shard_that_no_worker_survives_is_given_up(corpus: Path, tmp_path: Path) -> None:
    runner = StartsAgain()
    with pytest.raises(ClusterError, match=r"1 of 5 shards .* pages deck0_3 to deck1_1: its worker died 3 times"):
        spread(corpus, tmp_path / "index", Deadly, runner)
    assert runner.made == 4 + 3 + 1
    again = Here()
    spread(corpus, tmp_path / "index", Toy, again)
    assert again.embedded == ["deck0_3", "deck1_1"]


def test_a_worker_with_other_weights_embeds_nothing(corpus: Path, tmp_path: Path) -> None:
    loads = iter([Toy(), Toy("retrained"), Toy("retrained")])
    with pytest.raises(ClusterError, match=r"5 of 5 shards .*retrained.* the driver's is .*toy.*the same dtype"):
        spread(corpus, tmp_path / "index", lambda: next(loads))
    assert not list((tmp_path / "index").rglob("unit-*"))


def test_an_embedder_that_does_not_load_is_said_once(corpus: Path, tmp_path: Path) -> None:
    def load() -> Embedder:
        if made:
            raise FileNotFoundError("no checkpoint folder at models/none")
        made.append(1)
        return Toy()

    made: list[int] = []
    with pytest.raises(ClusterError, match=r"the embedder cannot be loaded on .*: no checkpoint folder at models/none"):
        spread(corpus, tmp_path / "index", load)


def test_a_folder_that_is_not_shared_is_noticed(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    real = module.embed_unit
    monkeypatch.setattr(module, "embed_unit", lambda corpus, folder, *rest: real(corpus, elsewhere, *rest))
    with pytest.raises(FileNotFoundError, match="all workers share"):
        spread(corpus, tmp_path / "index", Toy)


def test_without_ray_the_extra_is_named(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ClusterError, match=r"pip install 'vrag-nb\[cluster\]'"):
        build_on_cluster(corpus, tmp_path / "index", lambda: pytest.fail("loaded before Ray was looked for"), TWO)
    assert cli.main(["index", "--corpus", str(corpus), "--workers", "2"]) == 2
    assert "vrag-nb[cluster]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["--ray", "auto"], "--ray needs --workers"), (["--shard-pages", "8"], "--shard-pages needs --workers")],
)
def test_the_options_of_a_cluster_need_workers(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["index", *arguments]) == 2
    assert words in capsys.readouterr().err


# --- Ray itself -------------------------------------------------------------------------------------------------------

with_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs pip install 'vrag-nb[cluster]'")

RAY_BUILD = """
import functools, os, sys, time
from test_index import Path, Toy
from vrag_nb.retrieval.cluster import Cluster, ClusterError, build_on_cluster

class Slow(Toy):  # known to this script alone: the workers get it by pickle
    def __init__(self, seconds, deadly):
        super().__init__()
        self.seconds, self.deadly = seconds, deadly

    def embed_pages(self, images, texts):
        time.sleep(self.seconds)
        if self.deadly in texts:
            os._exit(1)
        return super().embed_pages(images, texts)

corpus, index, seconds, deadly = sys.argv[1:]
load = functools.partial(Slow, float(seconds), deadly)
try:
    report = build_on_cluster(Path(corpus), Path(index), load, Cluster(workers=2), shard_pages=2, progress=False)
    print(report.model_dump_json(), flush=True)
except ClusterError as error:
    print(error, flush=True)
"""


def start_ray_build(corpus: Path, index: Path, seconds: float = 0, deadly: str = "none") -> subprocess.Popen[str]:
    paths = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    arguments = [sys.executable, "-c", RAY_BUILD, str(corpus), str(index), str(seconds), deadly]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": paths})


def said(process: subprocess.Popen[str]) -> str:
    """The last line that a build printed, once it has ended."""
    output, _ = process.communicate()
    assert process.returncode == 0
    return output.splitlines()[-1]


@with_ray
def test_ray_makes_the_same_bytes_after_its_driver_was_killed(corpus: Path, tmp_path: Path) -> None:
    build_index(corpus, tmp_path / "one", Toy(), shard_pages=2, progress=False)
    index = tmp_path / "many"
    process = start_ray_build(corpus, index, seconds=0.5)
    while process.poll() is None and len(list(index.rglob("unit-*.npz"))) < 2:
        time.sleep(0.02)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert not (index / "manifest.json").exists()
    report = ClusterReport.model_validate_json(said(start_ray_build(corpus, index)))
    assert report.resumed >= 4, "two shards of two pages were finished"
    assert sum(report.by_worker.values()) == 5 - report.resumed // 2
    assert contents(index) == contents(tmp_path / "one")


@with_ray
def test_ray_goes_on_without_a_shard_that_kills_its_workers(corpus: Path, tmp_path: Path) -> None:
    index = tmp_path / "many"
    words = said(start_ray_build(corpus, index, deadly=TEXTS[5]))
    assert "1 of 5 shards" in words
    assert "pages deck1_2 to deck1_3: its worker died 3 times" in words
    toy = Toy()
    build_index(corpus, index, toy, shard_pages=2, progress=False)
    assert toy.embedded == TEXTS[4:6]
