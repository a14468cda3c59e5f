"""Indexes of one vector a page: what is chosen, what it finds and costs, updates, damage, kills, the GPU's place."""

import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_index import Toy, ToySingle, contents, found, make_corpus

from vrag_nb.profile_parts import RetrieverPart
from vrag_nb.retrieval import growing, single_vector
from vrag_nb.retrieval.building import BuildReport, build_index
from vrag_nb.retrieval.engine import SearchEngine
from vrag_nb.retrieval.gpu import gpu_problem
from vrag_nb.retrieval.growing import write_structure
from vrag_nb.retrieval.opening import open_index
from vrag_nb.retrieval.serving.reload import reopened
from vrag_nb.retrieval.single_vector import SingleVectorIndex
from vrag_nb.retrieval.storage import (
    VECTOR_TYPE,
    IndexCorruptError,
    IndexedPage,
    IndexMismatchError,
    Manifest,
    array_bytes,
    commit,
    store,
)
from vrag_nb.retrieval.structure import SingleVectorSettings, Structure, announcement, choose, memory_bytes, misfit

DIM, SHARD = 64, 500
HNSW = SingleVectorSettings(structure="hnsw", m=16, ef_construction=60, ef_search=64)
IVFPQ = SingleVectorSettings(structure="ivfpq", lists=40, code_bytes=16, nprobe=8)
FLAT = SingleVectorSettings(structure="flat")


def unit(vectors: np.ndarray) -> np.ndarray:
    return (vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)).astype(np.float32)


def clusters(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Pages in clusters of about 40, and 50 queries near pages: (count, DIM) and (50, DIM)."""
    generator = np.random.default_rng(seed)
    centres = unit(generator.normal(size=(max(4, count // 40), DIM)))
    pages = unit(centres[generator.integers(0, len(centres), count)] + unit(generator.normal(size=(count, DIM))))
    near = pages[generator.integers(0, count, 50)]
    return pages, unit(near + 0.6 * unit(generator.normal(size=near.shape)))


def write(
    folder: Path,
    vectors: np.ndarray,
    how: SingleVectorSettings | None,
    keys: list[str] | None = None,
    before: SingleVectorIndex | None = None,
) -> SingleVectorIndex:
    """An index of these vectors, as `build_index` writes it."""
    folder.mkdir(parents=True, exist_ok=True)
    keys = keys or [str(row) for row in range(len(vectors))]
    pages = [
        IndexedPage(page_id=f"page_{row}", document=f"d{row % 3}", key=key, vectors=1) for row, key in enumerate(keys)
    ]
    files, shards = {}, []
    for number, start in enumerate(range(0, len(vectors), SHARD)):
        content = array_bytes(vectors[start : start + SHARD].astype(VECTOR_TYPE))
        name, files_entry = store(folder, f"vectors-{number:05d}", ".npy", content)
        files[name] = files_entry
        shards.append(name)
    manifest = Manifest(
        kind="single_vector", embedder="test", fingerprint="", dim=vectors.shape[1], shard_pages=SHARD,
        page_count=len(pages), pages=pages, shards=shards, files=files,
    )  # fmt: skip
    commit(folder, write_structure(folder, folder / ".building", manifest, how, before))
    shutil.rmtree(folder / ".building")
    index = open_index(folder)
    assert isinstance(index, SingleVectorIndex)
    return index


def rankings(index: SingleVectorIndex, queries: np.ndarray, top_k: int = 10, **options: Any) -> list[list[str]]:
    return [found(hits) for hits in index.search([query[None] for query in queries], top_k, **options)]


def recall(wanted: list[list[str]], got: list[list[str]]) -> float:
    return float(np.mean([len(set(one) & set(two)) / len(one) for one, two in zip(wanted, got, strict=True)]))


# --- the choice -------------------------------------------------------------------------------------------------------


def test_the_size_decides_and_the_line_says_why():
    auto = SingleVectorSettings()
    kinds = {count: choose(auto, count, 2048).kind for count in (1, 20_000, 20_001, 1_000_000, 1_000_001)}
    assert list(kinds.values()) == ["flat", "flat", "hnsw", "hnsw", "ivfpq"]
    moved = SingleVectorSettings(flat_up_to=10, hnsw_up_to=300)
    assert [choose(moved, count, 64).kind for count in (10, 11, 301)] == ["flat", "hnsw", "ivfpq"]
    line = announcement(choose(auto, 70_000, 2048), auto, 70_000, 2048)
    assert line.startswith("single-vector index: hnsw for 70,000 pages x 2,048 dimensions, about 306.0 MB in memory")
    assert "auto: above 20,000 pages" in line
    assert "as the settings say" in announcement(choose(FLAT, 5, 8), FLAT, 5, 8)
    few = SingleVectorSettings(structure="ivfpq")
    assert choose(few, 255, 64) == Structure(), "too few to learn 256 codewords from"
    assert "codes are learned from 256 pages" in announcement(Structure(), few, 255, 64)


@pytest.mark.parametrize(("dim", "size"), [(128, 64), (2048, 64), (3584, 64), (1536, 64), (96, 48), (67, 1), (8, 8)])
def test_code_bytes_divide_the_dimension(dim, size):
    assert choose(SingleVectorSettings(structure="ivfpq"), 10_000, dim).code_bytes == size


def test_settings_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match=r"code_bytes 7 does not divide .* 64; choose one of 1, 2, 4, 8, 16, 32, 64"):
        choose(SingleVectorSettings(structure="ivfpq", code_bytes=7), 1000, 64)
    for field, value in [("structure", "tree"), ("m", 1), ("nprobes", 3), ("refine", 0)]:
        with pytest.raises(ValueError, match=field):
            SingleVectorSettings(**{field: value})
    part = RetrieverPart.model_validate({"kind": "biqwen2_5", "single_vector": {"structure": "hnsw", "m": 16}})
    assert part.single_vector == SingleVectorSettings(structure="hnsw", m=16)


@pytest.mark.parametrize("how", [FLAT, HNSW, IVFPQ], ids=lambda how: how.structure)
def test_the_formulas_give_the_memory_that_is_taken(tmp_path, how):
    index = write(tmp_path, clusters(1500)[0], how)
    assert index.memory_bytes == pytest.approx(memory_bytes(index.structure, 1500, DIM), rel=0.05)
    assert index.structure.kind == how.structure


# --- searching --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def flat(tmp_path_factory):
    return write(tmp_path_factory.mktemp("flat"), clusters(4000)[0], FLAT)


@pytest.fixture(scope="module", params=[HNSW, IVFPQ], ids=["hnsw", "ivfpq"])
def approximate(request, tmp_path_factory):
    index = write(tmp_path_factory.mktemp("index"), clusters(4000)[0], request.param)
    index.use(request.param)
    return index


def test_what_flat_finds_is_found_with_the_same_scores(flat, approximate, monkeypatch):
    queries = clusters(4000)[1]
    monkeypatch.setattr(approximate, "_score_all", lambda *_: pytest.fail("every page was scored"))
    assert recall(rankings(flat, queries), rankings(approximate, queries)) >= 0.95
    for query in queries[:5]:
        scores = {hit.page_id: hit.score for hit in flat.search([query[None]], 4000)[0]}
        (hits,) = approximate.search([query[None]], 10)
        assert [hit.score for hit in hits] == pytest.approx([scores[hit.page_id] for hit in hits], abs=1e-5)
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)


def test_without_refinement_codes_alone_find_less(flat, approximate):
    if approximate.structure.kind != "ivfpq":
        pytest.skip("of ivfpq")
    queries = clusters(4000)[1]
    wanted = rankings(flat, queries)
    refined = recall(wanted, rankings(approximate, queries))
    approximate.use(IVFPQ.model_copy(update={"refine": 1}))
    alone = recall(wanted, rankings(approximate, queries))
    approximate.use(IVFPQ)
    assert alone < refined - 0.1


@pytest.mark.parametrize("exact_up_to", [4000, 10])
def test_only_the_rows_asked_for(flat, approximate, monkeypatch, exact_up_to):
    monkeypatch.setattr(single_vector, "EXACT_UP_TO", exact_up_to)
    queries, rows = clusters(4000)[1], np.random.default_rng(1).permutation(4000)[:1500]
    got = rankings(approximate, queries, rows=rows)
    assert {name for names in got for name in names} <= {f"page_{row}" for row in rows}
    assert recall(rankings(flat, queries, rows=rows), got) >= (1 if exact_up_to == 4000 else 0.95)
    assert rankings(approximate, queries[:1], rows=rows[:3]) == rankings(flat, queries[:1], rows=rows[:3])
    assert rankings(approximate, queries[:1], 5, rows=rows[:0]) == [[]]


def test_no_list_is_shorter_than_flats(flat, approximate):
    query = clusters(4000)[1][:1]

    def check(top_k: int) -> None:
        (wanted,), (got,) = flat.search([query], top_k), approximate.search([query], top_k)
        assert {hit.page_id for hit in got} == {hit.page_id for hit in wanted}
        assert [hit.score for hit in got] == pytest.approx([hit.score for hit in wanted], abs=1e-5)

    check(5000)
    if approximate.structure.kind == "ivfpq":  # one list holds about a hundred pages
        approximate.use(IVFPQ.model_copy(update={"nprobe": 1, "refine": 1}))
        check(600)
        approximate.use(IVFPQ)


# --- building ---------------------------------------------------------------------------------------------------------


def build(corpus: Path, index: Path, embedder: Toy | None = None, **options: Any) -> BuildReport:
    return build_index(corpus, index, embedder or ToySingle(), progress=False, **options)


def opened(corpus: Path, index: Path, how: SingleVectorSettings | None = None) -> SearchEngine:
    return SearchEngine.open(corpus, index, ToySingle(), single_vector=how)


NAMES = [f"word{number}" for number in range(330)]


@pytest.mark.parametrize("how", [HNSW, IVFPQ], ids=lambda how: how.structure)
def test_pages_come_go_and_change(tmp_path, monkeypatch, how):
    corpus, index, toy = make_corpus(tmp_path / "corpus", NAMES), tmp_path / "index", ToySingle()
    build(corpus, index, toy, single_vector=how)
    first = open_index(index)
    assert isinstance(first, SingleVectorIndex)
    monkeypatch.setattr(growing, "_trained", lambda *_: pytest.fail("it was learned anew"))
    texts = [*NAMES[:100], "brand new", *NAMES[101:150], *NAMES[160:], "the last"]  # one replaced, ten gone, one more
    toy.embedded.clear()
    make_corpus(corpus, texts)
    report = build(corpus, index, toy, single_vector=how)
    assert report.embedded == len(toy.embedded) >= 2
    engine = opened(corpus, index, how)
    assert isinstance(engine.index, SingleVectorIndex)
    gone = int((engine.index.page_of < 0).sum())
    assert gone == len(engine.index.page_of) - len(texts) > 0, "the structure went on"
    assert engine.index.structure.trained_on == first.structure.trained_on
    monkeypatch.setattr(engine.index, "_score_all", lambda *_: pytest.fail("every page was scored"))
    asked = ["word3", "word160", "word329", "brand new", "the last"]
    wanted = [f"deck{row // 3}_{row % 3 + 1}" for row in (3, 150, len(texts) - 2, 100, len(texts) - 1)]
    assert [found(hits)[0] for hits in engine.search(asked, 2)] == wanted
    scores = [engine.search([text], 1)[0][0].score for text in ("word100", "word155")]
    assert max(scores) < 0.9, "what is gone is not found"


def test_too_much_gone_or_grown_is_built_anew(tmp_path):
    vectors = clusters(600)[0]
    keys = [str(row) for row in range(600)]
    for how in (HNSW, IVFPQ):
        before = write(tmp_path / how.structure, vectors, how)
        less = write(tmp_path / how.structure, vectors[200:], how, keys[200:], before)
        assert (less.page_of == np.arange(400)).all()
        again = write(tmp_path / "scratch" / how.structure, vectors[200:], how, keys[200:])
        assert contents(less.folder) == contents(again.folder)
    small = write(tmp_path / "small", vectors[:260], IVFPQ, keys[:260])
    grown = write(
        tmp_path / "small", np.concatenate([vectors] * 2), IVFPQ, [*keys, *(f"more{key}" for key in keys)], small
    )
    assert (small.structure.trained_on, grown.structure.trained_on) == (260, 1200)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(st.integers(0, 11), min_size=1, max_size=14), min_size=2, max_size=4))
def test_every_id_stays_with_its_page(corpora):
    pages = unit(np.random.default_rng(0).normal(size=(12, 8)))
    index = None
    with tempfile.TemporaryDirectory() as folder:
        for corpus in corpora:
            index = write(Path(folder), pages[corpus], HNSW, [str(page) for page in corpus], index)
            stored = faiss.read_index(str(index.folder / str(index.manifest.faiss)))
            for number, row in enumerate(index.page_of):
                if row >= 0:
                    np.testing.assert_allclose(stored.storage.reconstruct(number), pages[corpus[row]], atol=2e-3)
            assert sorted(row for row in index.page_of if row >= 0) == list(range(len(corpus)))


def test_another_structure_is_built_without_embedding(tmp_path, caplog):
    corpus, index = make_corpus(tmp_path / "corpus", NAMES[:300]), tmp_path / "index"
    caplog.set_level(logging.INFO)
    build(corpus, index)
    assert "flat for 300 pages x 64 dimensions, about 0.1 MB" in caplog.text
    flat_files = contents(index)
    for how in (HNSW, IVFPQ, None):
        assert build(corpus, index, single_vector=how).embedded == 0
        assert json.loads((index / "manifest.json").read_text())["structure"]["kind"] == (how or FLAT).structure
    assert contents(index) == flat_files, "and nothing of it is left"
    build(corpus, index, single_vector=IVFPQ)
    before = contents(index)
    build(corpus, index, single_vector=IVFPQ.model_copy(update={"nprobe": 3, "refine": 2}))
    assert contents(index) == before, "how to search is not in the index"
    with pytest.raises(ValueError, match="code_bytes 5 does not divide"):
        build(corpus, index, single_vector=SingleVectorSettings(structure="ivfpq", code_bytes=5))
    with pytest.raises(ValueError, match="single_vector is for single-vector embedders, toy is multi_vector"):
        build(corpus, tmp_path / "other", Toy(), single_vector=HNSW)


def test_the_choice_is_printed(tmp_path, capsys):
    corpus = make_corpus(tmp_path / "corpus", NAMES[:9])
    build_index(corpus, tmp_path / "index", ToySingle(), progress=True)
    assert "single-vector index: flat for 9 pages" in capsys.readouterr().out


def test_the_same_seed_gives_the_same_bytes(tmp_path):
    vectors = clusters(600)[0]
    one, two = (contents(write(tmp_path / name, vectors, IVFPQ).folder) for name in "ab")
    assert one == two
    other = IVFPQ.model_copy(update={"seed": 1})
    assert contents(write(tmp_path / "c", vectors, other).folder) != one


KILLED_BUILD = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from test_single_vector import IVFPQ, Path, build, growing
growing.STEP = 50
real, seen = growing._add, []
def stumble(*arguments):
    seen.append(1)
    if len(seen) == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*arguments)
growing._add = stumble
build(Path(sys.argv[2]), Path(sys.argv[3]) / "ivfpq", single_vector=IVFPQ)
"""


def killed(corpus: Path, folder: Path, how: SingleVectorSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A build that ends at its fourth step: by `kill -9` for ivfpq, by an exception for hnsw, which is quicker."""
    if how is IVFPQ:
        arguments = [sys.executable, "-c", KILLED_BUILD, str(Path(__file__).parent), str(corpus), str(folder)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        assert subprocess.run(arguments, env=environment, check=False).returncode == -9
        return
    real = growing._add

    def stumble(index: faiss.Index, structure: Structure, vectors: np.ndarray, ids: np.ndarray) -> None:
        if ids[0] == 150:
            raise KeyboardInterrupt
        real(index, structure, vectors, ids)

    with monkeypatch.context() as patch:
        patch.setattr(growing, "_add", stumble)
        with pytest.raises(KeyboardInterrupt):
            build(corpus, folder / "hnsw", single_vector=how)


@pytest.mark.parametrize("how", [HNSW, IVFPQ], ids=lambda how: how.structure)
def test_a_killed_build_goes_on_and_ends_with_the_same_bytes(tmp_path, monkeypatch, how):
    monkeypatch.setattr(growing, "STEP", 50)
    corpus, index = make_corpus(tmp_path / "corpus", NAMES[:300]), tmp_path / "killed" / how.structure
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        build(corpus, tmp_path / "calm", single_vector=how)
        killed(corpus, tmp_path / "killed", how, monkeypatch)
        assert not (index / "manifest.json").exists()
        real, added = growing._add, []
        monkeypatch.setattr(growing, "_add", lambda *given: (added.append(1), real(*given)))
        monkeypatch.setattr(growing, "_trained", lambda *_: pytest.fail("what was learned before the kill is kept"))
        toy = ToySingle()
        build(corpus, index, toy, single_vector=how)
    finally:
        faiss.omp_set_num_threads(threads)
    assert toy.embedded == []
    assert len(added) == 3, "three steps of six were saved"
    assert contents(index) == contents(tmp_path / "calm")


# --- mismatch and damage ----------------------------------------------------------------------------------------------


def test_an_index_opens_with_the_settings_that_made_it(tmp_path):
    corpus, index = make_corpus(tmp_path / "corpus", NAMES[:300]), tmp_path / "index"
    build(corpus, index, single_vector=HNSW)
    assert opened(corpus, index).search(["word7"], 1)[0][0].page_id == "deck2_2"
    assert opened(corpus, index, HNSW.model_copy(update={"ef_search": 7})).search(["word7"], 1)
    for update, problem in [
        ({"structure": "auto"}, "structure 'hnsw', the settings ask for 'flat'"),
        ({"structure": "ivfpq"}, "structure 'hnsw', the settings ask for 'ivfpq'"),
        ({"m": 8}, "m 16, the settings ask for 8"),
        ({"ef_construction": 61}, "ef_construction 60, the settings ask for 61"),
    ]:
        with pytest.raises(IndexMismatchError, match=problem):
            opened(corpus, index, HNSW.model_copy(update=update))
    build(corpus, index, single_vector=IVFPQ)
    for update, problem in [({"lists": 9}, "lists 40"), ({"code_bytes": 8}, "code_bytes 16"), ({"seed": 3}, "seed 0")]:
        with pytest.raises(IndexMismatchError, match=f"with {problem}, the settings"):
            opened(corpus, index, IVFPQ.model_copy(update=update))
    assert misfit(choose(IVFPQ, 300, DIM), IVFPQ.model_copy(update={"lists": 0}), 900, DIM) is None
    build(corpus, tmp_path / "many", Toy())
    with pytest.raises(IndexMismatchError, match="single_vector is for single-vector indexes, this is multi_vector"):
        SearchEngine.open(corpus, tmp_path / "many", Toy(), single_vector=HNSW)


@pytest.mark.parametrize("how", [None, HNSW.model_copy(update={"ef_search": 7}), IVFPQ], ids=["none", "hnsw", "ivfpq"])
def test_a_reload_searches_as_before(tmp_path, how):
    corpus, index = make_corpus(tmp_path / "corpus", NAMES), tmp_path / "index"
    build(corpus, index, single_vector=how)
    engine = opened(corpus, index, how)
    make_corpus(corpus, [*NAMES, "one more"])
    build(corpus, index, single_vector=how)
    again = reopened(engine, lambda: pytest.fail("it is the same embedder"))
    assert isinstance(engine.index, SingleVectorIndex)
    assert isinstance(again.index, SingleVectorIndex)
    assert again.index.settings == engine.index.settings == (how or SingleVectorSettings())
    assert found(again.search(["one more"], 1)[0]) == ["deck110_1"]
    build(corpus, index, single_vector=FLAT)
    if how:
        with pytest.raises(IndexMismatchError, match="the settings ask for"):
            reopened(again, lambda: pytest.fail("it is the same embedder"))


def test_damage_names_the_file(tmp_path):
    folder = tmp_path / "index"
    write(folder, clusters(600)[0], IVFPQ)
    path = folder / "manifest.json"
    whole, manifest = path.read_text(), json.loads(path.read_text())
    for pattern in ("faiss-rows-*.npy", "faiss-????????.index"):
        (file,) = folder.glob(pattern)
        content = file.read_bytes()
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(IndexCorruptError, match=rf"{file.name}: its checksum"):
            open_index(folder)
        file.write_bytes(b"\0" * len(content))
        with pytest.raises(IndexCorruptError, match=file.name):
            open_index(folder, verify=False)
        file.write_bytes(content[::-1] if file.suffix == ".npy" else content)
        if file.suffix == ".npy":
            np.save(file, np.zeros(600, np.int32))
            with pytest.raises(IndexCorruptError, match=r"faiss-rows-.*not the rows of 600 pages"):
                open_index(folder, verify=False)
            file.write_bytes(content)
    for kind in ("hnsw", "flat"):
        path.write_text(json.dumps(manifest | {"structure": manifest["structure"] | {"kind": kind}}))
        with pytest.raises(IndexCorruptError, match=f"IndexIVFPQ, the manifest says {kind}"):
            open_index(folder)
    path.write_text(json.dumps(manifest | {"structure": manifest["structure"] | {"kind": "tree"}}))
    with pytest.raises(IndexCorruptError, match=r"manifest\.json: structure\.kind"):
        open_index(folder)
    path.write_text(whole)
    assert manifest["format"] == 2
    open_index(folder)


def test_a_flat_index_from_before_structures_opens(tmp_path):
    corpus, index = make_corpus(tmp_path / "corpus", NAMES[:9]), tmp_path / "index"
    build(corpus, index)
    path = index / "manifest.json"
    manifest = json.loads(path.read_text())
    assert manifest["format"] == 1
    path.write_text(json.dumps({key: value for key, value in manifest.items() if key != "structure"}))
    assert found(opened(corpus, index, SingleVectorSettings()).search(["word5"], 1)[0]) == ["deck1_3"]
    assert build(corpus, index).embedded == 0


# --- the GPU's place --------------------------------------------------------------------------------------------------


def test_a_gpu_is_used_where_it_can_be(approximate, flat, monkeypatch, caplog):
    """The wiring alone, with a copy on the CPU; the test below needs the real thing."""
    queries, copied = clusters(4000)[1], []

    def copy(index: faiss.Index, half: bool) -> faiss.Index:
        copied.append(half)
        return faiss.clone_index(index)

    on_cpu = rankings(approximate, queries)
    how = HNSW if approximate.structure.kind == "hnsw" else IVFPQ
    monkeypatch.setattr(single_vector, "gpu_problem", lambda: None)
    monkeypatch.setattr(single_vector, "gpu_copy", copy)
    approximate.use(how)
    assert rankings(approximate, queries) == on_cpu
    assert (approximate.device, copied) == (("cpu", []) if how is HNSW else ("gpu", [True]))
    assert rankings(approximate, queries[:1], rows=np.arange(9)) == rankings(flat, queries[:1], rows=np.arange(9))

    def fail(index: faiss.Index, half: bool) -> None:
        raise RuntimeError("out of memory\nat somewhere")

    monkeypatch.setattr(single_vector, "gpu_copy", fail)
    approximate.use(how)
    assert approximate.device == "cpu"
    assert how is HNSW or "could not copy the index to the GPU: out of memory" in caplog.text
    with pytest.raises(ValueError, match="hnsw is searched on the CPU" if how is HNSW else "out of memory"):
        approximate.use(how.model_copy(update={"device": "gpu"}))
    approximate.use(how.model_copy(update={"device": "cpu"}))
    assert rankings(approximate, queries) == on_cpu


def test_a_gpu_that_is_not_there_is_an_error_only_where_it_is_asked_for(flat):
    if gpu_problem() is None:
        pytest.skip("there is one")
    flat.use(FLAT)
    assert flat.device == "cpu"
    with pytest.raises(ValueError, match=r"device gpu: .*; use device cpu or auto"):
        flat.use(FLAT.model_copy(update={"device": "gpu"}))


@pytest.mark.skipif(gpu_problem() is not None, reason=str(gpu_problem()))
@pytest.mark.parametrize("how", [FLAT, IVFPQ], ids=lambda how: how.structure)
def test_a_gpu_finds_what_the_cpu_finds(tmp_path, how):
    pages, queries = clusters(4000)
    index = write(tmp_path, pages, how)
    index.use(how.model_copy(update={"device": "cpu"}))
    on_cpu = rankings(index, queries)
    index.use(how.model_copy(update={"device": "gpu"}))
    assert recall(on_cpu, rankings(index, queries)) >= 0.99
