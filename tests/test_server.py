"""The search server: answers, errors in words, nothing outside the corpus, and the same under load."""

from __future__ import annotations

import gc
import hashlib
import json
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
import uvicorn
from conftest import serving
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families

from vrag_nb.__main__ import main
from vrag_nb.records import Page, read_pages, write_pages
from vrag_nb.retrieval.bm25 import Bm25
from vrag_nb.retrieval.engine import SearchEngine, build_index
from vrag_nb.retrieval.server import create_app
from vrag_nb.retrieval.serving.options import ServingOptions
from vrag_nb.retrieval.serving.reload import reopened

TEXTS = {"report_1": "apples and pears", "report_2": "pears and plums", "50% off #1_1": "plums only"}

INDEX = "indexes/bm25"  # where a profile with BM25 has it
PROFILE = """profiles:
  p: {corpus: {folder: nowhere}, retriever: {kind: bm25}, policy: {kind: transformers, checkpoint: none}}
"""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("served") / "corpus"
    (folder / "pages").mkdir(parents=True)
    (folder.parent / "secret.txt").write_text("secret")
    pages = []
    for name, text in TEXTS.items():
        document, _, page = name.rpartition("_")
        Image.new("RGB", (9, 5)).save(folder / "pages" / f"{name}.png")
        pages.append(
            Page(
                page_id=name,
                document=document,
                page=int(page),
                image=f"pages/{name}.png",
                width=9,
                height=5,
                text=text,
                sha256=hashlib.sha256((folder / "pages" / f"{name}.png").read_bytes()).hexdigest(),
            )
        )
    forged = {"page_id": "forged_1", "document": "forged", "page": 1, "image": "../secret.txt", "sha256": "x"}
    missing = {"page_id": "gone_1", "document": "gone", "page": 1, "image": "pages/gone_1.png", "sha256": "y"}
    pages += [Page(**row, width=1, height=1) for row in (forged, missing)]
    write_pages(folder, pages)
    return folder


@pytest.fixture(scope="module")
def client(corpus) -> TestClient:
    build_index(corpus, corpus / INDEX, Bm25(), progress=False)
    return TestClient(create_app(SearchEngine.open(corpus, corpus / INDEX), corpus))


def test_health(client, corpus):
    told = client.get("/health").json()
    assert told.pop("fingerprint") == SearchEngine.open(corpus, corpus / INDEX).fingerprint
    assert told == {"status": "ok", "embedder": "bm25", "pages": 5, "documents": 4, "dim": 0}


def test_search_by_post_and_get_and_the_image_of_a_hit(client):
    posted = client.post("/search", json={"queries": ["pears", "plums only"], "top_k": 2})
    assert posted.status_code == 200
    first, second = posted.json()["results"]
    assert {hit["page_id"] for hit in first} == {"report_1", "report_2"}
    assert [hit["rank"] for hit in first] == [1, 2]
    assert first[0]["score"] >= first[1]["score"]
    assert client.get("/search", params={"queries": ["pears", "plums only"], "top_k": 2}).json() == posted.json()
    assert second[0]["page_id"] == "50% off #1_1"
    for hit in (first[0], second[0]):
        image = client.get(hit["image_url"])
        assert image.status_code == 200
        assert image.headers["content-type"] == "image/png"
        assert image.content.startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("body", "field", "problem"),
    [
        ({"queries": []}, "queries", "at least 1"),
        ({"queries": ["a"] * 65}, "queries", "at most 64"),
        ({"queries": ["a", "  "]}, "queries.1", "the query is empty"),
        ({"queries": ["a" * (ServingOptions().max_query_length + 1)]}, "queries.0", "at most 2000 characters"),
        ({"queries": "pears"}, "queries", "valid list"),
        ({"queries": ["a"], "top_k": 0}, "top_k", "greater than or equal to 1"),
        ({"queries": ["a"], "top_k": 101}, "top_k", "less than or equal to 100"),
        ({"queries": ["a"], "topk": 3}, "topk", "Extra inputs"),
        ({}, "queries", "required"),
        ([], "body", "valid dictionary"),
    ],
)
def test_what_is_wrong_with_a_request_is_said(client, body, field, problem):
    answer = client.post("/search", json=body)
    assert answer.status_code == 422
    (entry,) = answer.json()["detail"]
    assert entry["field"] == field
    assert problem in entry["problem"]


def test_get_and_broken_json_are_checked_too(client):
    assert client.get("/search").json()["detail"][0]["field"] == "queries"
    assert client.get("/search", params={"queries": "a", "top_k": "many"}).json()["detail"][0]["field"] == "top_k"
    broken = client.post("/search", content=b"{", headers={"content-type": "application/json"})
    assert broken.status_code == 422
    assert "JSON" in broken.json()["detail"][0]["problem"]


@pytest.mark.parametrize(
    "path",
    [
        "/pages/../secret.txt",
        "/pages/..%2Fsecret.txt",
        "/pages/%2e%2e%2fsecret.txt",
        "/pages/..%5Csecret.txt",
        "/pages/%2Fetc%2Fpasswd",
        "/pages//etc/passwd",
        "/pages/report_1.png",
        "/pages/pages%2Freport_1.png",
        "/pages/report_1%00",
        "/pages/..",
        "/pages/",
        "/pages/forged_1",
        "/pages/gone_1",
        "/pages/report_9",
    ],
)
def test_nothing_outside_the_corpus_is_reachable(client, path):
    answer = client.get(path)
    assert answer.status_code == 404
    assert "secret" not in answer.text.replace("secret.txt", "")


# --- under load -------------------------------------------------------------------------------------------------------

TOKEN = {"Authorization": "Bearer s3cret"}


@pytest.fixture
def engine(client: TestClient, corpus: Path) -> SearchEngine:
    """An engine of one's own over the index that `client` has built."""
    return SearchEngine.open(corpus, corpus / INDEX)


class Held:
    """Makes an engine's searches wait for `free`, notes their queries, and fails for the query "boom"."""

    def __init__(self, engine: SearchEngine) -> None:
        self.batches: list[list[str]] = []
        self.free, self.busy = threading.Event(), threading.Event()
        self._search = engine.search
        engine.search = self.search  # type: ignore[method-assign,assignment]

    def search(self, queries: list[str], top_k: int = 3) -> list:
        self.batches.append(queries)
        self.busy.set()
        assert self.free.wait(30)
        if "boom" in queries:
            raise RuntimeError("the embedder is out of memory")
        return self._search(queries, top_k)


def address(url: str) -> tuple[str, int]:
    return "127.0.0.1", int(url.rpartition(":")[2])


def eventually(true: Callable[[], Any]) -> None:
    until = time.monotonic() + 30
    while not true():
        assert time.monotonic() < until
        time.sleep(0.01)


def metrics(server: Any) -> dict[tuple[str, ...], float]:
    """Every sample of /metrics by its name and its labels' values."""
    families = text_string_to_metric_families(server.get("/metrics").text)
    return {(one.name, *one.labels.values()): one.value for family in families for one in family.samples}


def test_requests_searched_together_are_answered_as_alone(engine: SearchEngine, client: TestClient) -> None:
    held = Held(engine)
    words = ["pears", "plums", "apples", "nothing of it", "pears and plums"]
    bodies = [{"queries": [words[i % 5], words[(i * 3 + 1) % 5]][: 1 + i % 2], "top_k": 1 + i % 4} for i in range(24)]
    with serving(create_app(engine)) as url, ThreadPoolExecutor(25) as threads, httpx.Client(base_url=url) as browser:
        first = threads.submit(httpx.post, f"{url}/search", json={"queries": ["pears"]}, timeout=30)
        assert held.busy.wait(30)
        futures = [threads.submit(httpx.post, f"{url}/search", json=body, timeout=30) for body in bodies]
        eventually(lambda: metrics(browser)["vrag_queue_queries",] == 36)
        held.free.set()
        found = [future.result() for future in futures]
    assert first.result().status_code == 200
    assert [answer.json() for answer in found] == [client.post("/search", json=body).json() for body in bodies]
    assert max(map(len, held.batches)) > 16
    assert len(held.batches) < len(bodies) / 2


def test_a_query_that_fails_fails_alone_with_its_id(engine: SearchEngine, caplog: pytest.LogCaptureFixture) -> None:
    held = Held(engine)
    with serving(create_app(engine)) as url, ThreadPoolExecutor(4) as threads, httpx.Client(base_url=url) as browser:
        ask = lambda query: httpx.get(f"{url}/search", params={"queries": query}, timeout=30)  # noqa: E731
        futures = [threads.submit(ask, "pears")]
        assert held.busy.wait(30)
        futures += [threads.submit(ask, query) for query in ("plums", "boom", "apples")]
        eventually(lambda: metrics(browser)["vrag_queue_queries",] == 3)
        held.free.set()
        statuses = [future.result().status_code for future in futures]
        failed = futures[2].result()
    assert statuses == [200, 200, 500, 200]
    assert failed.json()["request_id"] == failed.headers["x-request-id"]
    assert "out of memory" not in failed.text
    assert any(failed.headers["x-request-id"] in one.message and one.exc_info for one in caplog.records)


def test_a_client_that_leaves_harms_nobody_and_is_not_searched_for(engine: SearchEngine) -> None:
    held = Held(engine)
    with serving(create_app(engine)) as url, ThreadPoolExecutor(4) as threads, httpx.Client(base_url=url) as browser:
        ask = lambda query, wait=30: httpx.get(f"{url}/search", params={"queries": query}, timeout=wait)  # noqa: E731
        first = threads.submit(ask, "pears")
        assert held.busy.wait(30)
        impatient, patient = threads.submit(ask, "apples", 0.5), threads.submit(ask, "plums")
        assert isinstance(impatient.exception(), httpx.ReadTimeout)
        eventually(lambda: metrics(browser).get(("vrag_requests_total", "GET", "/search", "499")) == 1)
        eventually(lambda: metrics(browser)["vrag_queue_queries",] == 2)
        held.free.set()
        assert (first.result().status_code, patient.result().status_code) == (200, 200)
    assert held.batches == [["pears"], ["plums"]]


def test_full_means_503_and_come_again(engine: SearchEngine) -> None:
    held = Held(engine)
    options = ServingOptions(max_queries=2, max_queue=2, max_requests=3)
    with serving(create_app(engine, options=options)) as url, ThreadPoolExecutor(4) as threads:
        ask = lambda *queries: httpx.post(f"{url}/search", json={"queries": queries}, timeout=30)  # noqa: E731
        browser = httpx.Client(base_url=url)
        futures = [threads.submit(ask, "pears")]
        assert held.busy.wait(30)
        futures.append(threads.submit(ask, "plums", "apples"))
        eventually(lambda: metrics(browser)["vrag_queue_queries",] == 2)
        refused = ask("pears")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert "2 queries are waiting, 2 may" in refused.json()["detail"]
        stuck = socket.create_connection(address(url))  # a third request, half sent
        stuck.sendall(b"POST /search HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{")
        eventually(lambda: metrics(browser)["vrag_requests_under_way",] == 4)  # this one counted
        refused = browser.get("/pages/report_1")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert "3 requests are under way" in refused.json()["detail"]
        assert browser.get("/health").status_code == 200
        held.free.set()
        assert [future.result().status_code for future in futures] == [200, 200]
        stuck.close()
        eventually(lambda: browser.get("/pages/report_1").status_code == 200)
        browser.close()


def test_bodies_are_bounded_in_bytes_and_time(engine: SearchEngine) -> None:
    with serving(create_app(engine, options=ServingOptions(max_body=100))) as url:
        declared = httpx.post(f"{url}/search", content=b"x" * 101)
        counted = httpx.post(f"{url}/search", content=iter([b"x" * 60, b"x" * 60]))
        for answer in (declared, counted):
            assert (answer.status_code, answer.headers["connection"]) == (413, "close")
            assert answer.json()["detail"] == "the request's body is over 100 bytes"
            assert answer.json()["request_id"] == answer.headers["x-request-id"]
        assert httpx.post(f"{url}/search", json={"queries": ["pears"]}).status_code == 200
    hasty = serving(create_app(engine, options=ServingOptions(body_timeout=0.2)))
    with hasty as url, socket.create_connection(address(url)) as slow:
        slow.sendall(b"POST /search HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{")
        assert slow.recv(2000).startswith(b"HTTP/1.1 408 ")


def test_limits_are_the_servers_own(engine: SearchEngine) -> None:
    options = ServingOptions(max_queries=2, max_query_length=5, max_top_k=2)
    small = TestClient(create_app(engine, options=options))
    assert len(small.get("/search", params={"queries": "pears"}).json()["results"][0]) == 2  # its default top_k is less
    for body, field in (
        ({"queries": ["a"] * 3}, "queries"),
        ({"queries": ["a", "sixsix"]}, "queries.1"),
        ({"queries": ["a"], "top_k": 3}, "top_k"),
        ({"queries": ["a"], "top_k": True}, "top_k"),
        ({"queries": ["a"], "top_k": "2"}, "top_k"),
    ):
        assert small.post("/search", json=body).json()["detail"][0]["field"] == field
    assert small.post("/search", json={"queries": ["a"], "top_k": 2.0}).status_code == 200
    with pytest.raises(ValueError, match="max_batch 0 must be 1 or more"):
        ServingOptions(max_batch=0)
    with pytest.raises(ValueError, match="max_queue 1 is less than max_queries 2"):
        ServingOptions(max_queries=2, max_queue=1)
    for token in ("", " ", "a\nb", "é", " a"):
        with pytest.raises(ValueError, match="token"):
            ServingOptions(token=token)


def test_a_token_opens_everything_and_only_health_is_open_without(engine: SearchEngine) -> None:
    options = ServingOptions(token="s3cret", allow_reload=True)
    locked = TestClient(create_app(engine, options=options, reopen=lambda old: old))
    asks = [("GET", "/search?queries=a"), ("POST", "/reload"), ("GET", "/pages/report_1"), ("GET", "/metrics")]
    asks += [("GET", "/openapi.json"), ("GET", "/docs"), ("GET", "/health/"), ("GET", "//health")]
    wrong: list[dict[str, str] | dict[bytes, bytes]] = [{}, {b"Authorization": b"Bearer \xff"}]
    wrong += [
        {"Authorization": text} for text in ("Bearer", "Bearer s3cre", "Bearer s3cret2", "Basic s3cret", "s3cret")
    ]
    for method, path in asks:
        for headers in wrong:
            answer = locked.request(method, path, headers=headers)  # type: ignore[arg-type]
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer"), (path, headers)
            assert answer.json()["request_id"] == answer.headers["x-request-id"]
    assert locked.get("/health").json()["status"] == "ok"
    for headers in (TOKEN, {"Authorization": "bearer  s3cret "}):
        assert locked.get("/search?queries=pears", headers=headers).status_code == 200
    assert "s3cret" not in repr(options)


def test_request_ids_are_kept_when_sane_and_the_log_has_no_secrets(
    engine: SearchEngine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "vrag_nb.server")
    server = TestClient(create_app(engine, options=ServingOptions(token="s3cret")))
    sane = server.get("/search?queries=plums", headers={**TOKEN, "X-Request-ID": "trace-1.a:b_c"})
    assert sane.headers["x-request-id"] == "trace-1.a:b_c"
    for odd in ("", "a b", "x" * 65, "a/b", "<script>"):
        made = server.get("/search?queries=", headers={**TOKEN, "X-Request-ID": odd})
        assert re.fullmatch("[0-9a-f]{32}", made.headers["x-request-id"])
        assert made.json()["request_id"] == made.headers["x-request-id"]
    server.get("/pages/a%0Ab", headers=TOKEN)
    lines = [record.getMessage() for record in caplog.records if record.name == "vrag_nb.server"]
    assert len(lines) == 7
    assert re.fullmatch(r"trace-1.a:b_c testclient GET /search 200 \d+\.\d ms", lines[0])
    assert "/pages/a%0Ab 404" in lines[-1]
    assert not re.search("s3cret|plums|\n", "".join(lines))


def test_a_page_that_was_prepared_anew_is_not_shown_under_the_old_index(own_corpus: Path) -> None:
    client = TestClient(create_app(open_own(own_corpus)))
    assert client.get("/pages/report_1").status_code == 200
    image = own_corpus / "pages" / "report_1.png"
    before = image.read_bytes()
    Image.new("RGB", (9, 6)).save(image)
    answer = client.get("/pages/report_1")
    assert answer.status_code == 409
    assert "page 'report_1' was prepared anew since: build the index and reload" in answer.text
    image.write_bytes(before)
    assert client.get("/pages/report_1").status_code == 200


def test_metrics_count_what_happened_in_this_server_only(engine: SearchEngine) -> None:
    server, other = TestClient(create_app(engine)), TestClient(create_app(engine))
    server.get("/search?queries=pears&queries=plums")
    server.get("/pages/report_1")
    server.get("/pages/none")
    server.delete("/search")
    server.get("/no/such/path")
    found = metrics(server)
    assert found["vrag_requests_total", "GET", "/search", "200"] == 1
    assert found["vrag_requests_total", "GET", "/pages/{page_id}", "200"] == 1
    assert found["vrag_requests_total", "GET", "/pages/{page_id}", "404"] == 1
    assert found["vrag_requests_total", "DELETE", "/search", "405"] == 1
    assert found["vrag_requests_total", "GET", "(none)", "404"] == 1
    assert found["vrag_request_seconds_count", "/search"] == 2
    assert (found["vrag_batch_queries_sum",], found["vrag_batch_queries_count",]) == (2, 1)
    assert (found["vrag_pages_served_total",], found["vrag_index_pages",]) == (1, 5)
    assert (found["vrag_queue_queries",], found["vrag_requests_under_way",]) == (0, 1)
    assert metrics(other)["vrag_batch_queries_count",] == 0
    assert server.get("/metrics").headers["content-type"].startswith("text/plain; version=")


def test_the_answer_to_a_wrong_method_names_the_right_ones(client: TestClient) -> None:
    answer = client.delete("/search")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, POST")


def test_upstreams_clients_get_their_lists_where_that_is_asked_for(engine: SearchEngine, client: TestClient) -> None:
    upstream = TestClient(create_app(engine, options=ServingOptions(upstream=True)))
    (found,) = upstream.get("/search", params={"queries": ["pears"]}).json()
    assert [hit["idx"] for hit in found] == [0, 1]
    for hit in found:
        with Image.open(hit["image_file"]) as image:
            assert image.size == (9, 5)
    body = {"queries": ["pears", "plums only"], "top_k": 1}
    assert [len(one) for one in upstream.post("/search", json={**body, "vrag_ret": True}).json()] == [1, 1]
    assert upstream.post("/search", json=body).json() == client.post("/search", json=body).json()
    refused = client.post("/search", json={**body, "vrag_ret": True})
    assert refused.json()["detail"] == [{"field": "vrag_ret", "problem": "this server was not started with --upstream"}]


# --- reloading --------------------------------------------------------------------------------------------------------


@pytest.fixture
def own_corpus(corpus: Path, tmp_path: Path) -> Path:
    """A copy of the corpus, and its index, that a test may change."""
    copy = tmp_path / "corpus"
    shutil.copytree(corpus, copy, ignore=shutil.ignore_patterns("indexes"))
    build_index(copy, copy / INDEX, Bm25(), progress=False)
    return copy


def add_page(corpus: Path) -> None:
    image = "pages/report_1.png"
    page = Page(page_id="new_1", document="new", page=1, image=image, width=9, height=5, text="quinces", sha256="new")
    write_pages(corpus, [*read_pages(corpus), page])


def open_own(corpus: Path) -> SearchEngine:
    return SearchEngine.open(corpus, corpus / INDEX)


def test_a_reload_swaps_the_index_and_keeps_the_old_one_for_who_has_it(own_corpus: Path) -> None:
    engine = open_own(own_corpus)
    held, watch = Held(engine), weakref.ref(engine)
    app = create_app(
        engine,
        options=ServingOptions(allow_reload=True),
        reopen=lambda old: reopened(old, lambda: open_own(own_corpus)),
    )
    with serving(app) as url, ThreadPoolExecutor(2) as threads, httpx.Client(base_url=url) as browser:
        ask = lambda: httpx.get(f"{url}/search?queries=pears&queries=quinces", timeout=30)  # noqa: E731
        of_old = threads.submit(ask)
        assert held.busy.wait(30)
        add_page(own_corpus)
        build_index(own_corpus, own_corpus / INDEX, Bm25(), progress=False)
        done = browser.post("/reload", timeout=30)
        assert done.json() == {"number": 2, "pages": 6, "documents": 5}
        assert browser.get("/health").json()["pages"] == 6
        of_new = threads.submit(ask)
        held.free.set()
        assert of_old.result().json()["results"][1] == []
        assert [hit["page_id"] for hit in of_new.result().json()["results"][1]] == ["new_1"]
        assert metrics(browser)["vrag_reloads_total", "done"] == 1
        del held, engine
        eventually(lambda: gc.collect() >= 0 and watch() is None)


def test_a_bad_index_is_said_and_the_old_one_is_kept(own_corpus: Path) -> None:
    opening, go = threading.Event(), threading.Event()

    def slowly(old: SearchEngine) -> SearchEngine:
        opening.set()
        assert go.wait(30)
        return reopened(old, lambda: open_own(own_corpus))

    app = create_app(open_own(own_corpus), options=ServingOptions(allow_reload=True), reopen=slowly)
    server = TestClient(app)
    before = server.get("/search?queries=pears").json()
    index = next((own_corpus / INDEX).glob("bm25-*/data.csc.index.npy"))
    index.write_bytes(index.read_bytes()[:-1] + b"?")
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(server.post, "/reload")
        assert opening.wait(30)
        second = server.post("/reload")
        go.set()
    assert (second.status_code, "another reload" in second.json()["detail"]) == (409, True)
    assert first.result().status_code == 409
    assert "the old index is still served: IndexCorruptError" in first.result().json()["detail"]
    assert "its checksum is not the manifest's" in first.result().json()["detail"]
    assert server.get("/search?queries=pears").json() == before
    found = metrics(server)
    assert (found["vrag_reloads_total", "failed"], found["vrag_reloads_total", "refused"]) == (1, 1)


def test_reload_is_off_unless_allowed_and_opens_with_another_embedder(own_corpus: Path, client: TestClient) -> None:
    assert client.post("/reload").status_code == 404
    old = open_own(own_corpus)
    assert reopened(old, lambda: open_own(own_corpus)).embedder is old.embedder
    build_index(own_corpus, own_corpus / INDEX, Bm25(k1=2.0), progress=False)
    assert reopened(old, lambda: open_own(own_corpus)).embedder.options["k1"] == 2.0
    nowhere = TestClient(create_app(old, options=ServingOptions(allow_reload=True)))
    assert "cannot open it again" in nowhere.post("/reload").json()["detail"]


# --- the process ------------------------------------------------------------------------------------------------------


@pytest.fixture
def command(own_corpus: Path) -> list[str]:
    """`serve` with its arguments."""
    file = own_corpus.parent / "profiles.yaml"
    file.write_text(PROFILE)
    return ["serve", "--file", str(file), "--profile", "p", "--corpus", str(own_corpus)]


@pytest.fixture
def process(own_corpus: Path, command: list[str]) -> Iterator[tuple[subprocess.Popen[str], str, Path]]:
    """A real server with a token; its address, and the file of its log."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = own_corpus.parent / "log"
    options = ["--port", str(port), "--token-env", "A_TOKEN", "--shutdown-timeout", "20"]
    with log.open("w") as stream:
        started = subprocess.Popen(
            [sys.executable, "-m", "vrag_nb", *command, *options],
            stderr=stream,
            text=True,
            env={**os.environ, "A_TOKEN": "s3cret"},
        )
        try:
            eventually(lambda: "Uvicorn running" in log.read_text() or started.poll() is not None)
            yield started, f"http://127.0.0.1:{port}", log
        finally:
            started.kill()
            started.wait()


def test_sighup_reloads_and_sigterm_finishes_what_is_under_way(
    process: tuple[subprocess.Popen[str], str, Path], own_corpus: Path
) -> None:
    server, url, log = process
    add_page(own_corpus)
    server.send_signal(signal.SIGHUP)
    eventually(lambda: "the old index is still served: IndexMismatchError" in log.read_text())
    build_index(own_corpus, own_corpus / INDEX, Bm25(), progress=False)
    server.send_signal(signal.SIGHUP)
    eventually(lambda: "reload: index number 2, 6 pages" in log.read_text())
    assert httpx.post(f"{url}/reload", headers=TOKEN).status_code == 404

    body = b'{"queries": ["quinces"]}'
    with socket.create_connection(address(url)) as half:
        head = f"POST /search HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer s3cret\r\nContent-Length: {len(body)}\r\n"
        half.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + body[:9])
        eventually(lambda: metrics(httpx.Client(base_url=url, headers=TOKEN))["vrag_requests_under_way",] == 2)
        server.send_signal(signal.SIGTERM)
        eventually(lambda: "Shutting down" in log.read_text())
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(address(url))
        half.sendall(body[9:])
        answer = b"".join(iter(lambda: half.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b'"new_1"' in answer
    assert server.wait(30) in (0, -signal.SIGTERM)
    assert "s3cret" not in log.read_text()


def test_stopping_does_not_wait_for_ever(engine: SearchEngine, caplog: pytest.LogCaptureFixture) -> None:
    held = Held(engine)
    config = uvicorn.Config(create_app(engine), port=0, log_level="error", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    eventually(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    with ThreadPoolExecutor(1) as threads:
        stuck = threads.submit(httpx.get, f"http://127.0.0.1:{port}/search?queries=pears", timeout=30)
        assert held.busy.wait(30)
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()
        assert not held.free.is_set()
        held.free.set()
        assert stuck.exception() or stuck.result().status_code >= 500
    assert "a search is still running" in caplog.text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--max-batch", "0"], "max_batch 0 must be 1 or more"),
        (["--max-queries", "9999"], "max_queue 1024 is less than max_queries 9999"),
        (["--token-env", "NO_SUCH_VARIABLE"], "the environment variable NO_SUCH_VARIABLE is not set"),
        (["--corpus", "nowhere"], "has no index at nowhere"),
        (["--host", "203.0.113.1"], "cannot listen on 203.0.113.1, port 8001"),
    ],
)
def test_what_is_wrong_with_the_command_is_one_line(
    arguments: list[str], words: str, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, *arguments]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert len(said.splitlines()) == 1


# --- the document -----------------------------------------------------------------------------------------------------

METHODS = ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE", "X"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["\ud800", "\0", 10**400]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=8,
)
BODIES = st.one_of(
    st.binary(max_size=60),
    JSON,
    st.fixed_dictionaries({"queries": st.lists(JSON | st.text(), max_size=4) | JSON}, optional={"top_k": JSON}),
    st.sampled_from([b"[" * 100_000, b"1" * 5000, b'{"queries": ["\xff"]}', '{"queries": ["a"]}'.encode("utf-16")]),
)
TYPES = [
    "application/json",
    "application/json; charset=nonsense",
    "text/plain",
    "multipart/form-data",
    "?",
    "",
    "a/b/c",
]


@pytest.fixture(scope="module")
def documented(client: TestClient, corpus: Path) -> tuple[TestClient, dict[str, Any]]:
    """A server with everything on, and its document's paths."""
    engine = SearchEngine.open(corpus, corpus / INDEX)
    options = ServingOptions(token="s3cret", allow_reload=True, upstream=True)
    server = TestClient(create_app(engine, options=options, reopen=lambda old: old), headers=TOKEN)
    return server, server.get("/openapi.json").json()["paths"]


def test_every_route_declares_what_may_happen(documented: tuple[TestClient, dict[str, Any]]) -> None:
    _, paths = documented
    assert set(paths) == {"/search", "/pages/{page_id}", "/health", "/metrics", "/reload"}
    for path, operations in paths.items():
        for operation in operations.values():
            wanted = {"200", "408", "413", "500"} | (set() if path == "/health" else {"401"})
            assert wanted <= set(operation["responses"]), path
    assert {"400", "422", "503"} <= set(paths["/search"]["post"]["responses"])
    assert paths["/search"]["post"]["security"] == [{"HTTPBearer": []}]


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), method=st.sampled_from(METHODS), body=BODIES, kind=st.sampled_from(TYPES))
def test_nothing_a_client_sends_breaks_the_server(
    documented: tuple[TestClient, dict[str, Any]], data: st.DataObject, method: str, body: Any, kind: str
) -> None:
    server, paths = documented
    path = data.draw(st.sampled_from(sorted(paths)))
    method = data.draw(st.sampled_from([method, *(name.upper() for name in paths[path])]))
    odd = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
    query = data.draw(st.dictionaries(st.sampled_from(["queries", "top_k", "vrag_ret", "x"]), odd, max_size=3))
    where = path.replace("{page_id}", quote(data.draw(odd), safe=""))
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = server.request(method, where, params=query, content=content, headers={"Content-Type": kind})
    operation = paths[path].get(method.lower())
    assert answer.status_code < 500
    if operation is None:
        assert answer.status_code in (404, 405)
    elif where.count("/") == path.count("/"):
        assert str(answer.status_code) in operation["responses"], (method, where, content)
    if answer.status_code >= 400 and method != "HEAD":
        assert answer.json()["request_id"] == answer.headers["x-request-id"]
