"""The search server: answers, errors in words, and nothing outside the corpus."""

from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from PIL import Image

from vrag_nb.records import Page, write_pages
from vrag_nb.retrieval.bm25 import Bm25
from vrag_nb.retrieval.engine import SearchEngine, build_index
from vrag_nb.retrieval.server import MAX_QUERY_LENGTH, create_app

TEXTS = {"report_1": "apples and pears", "report_2": "pears and plums", "50% off #1_1": "plums only"}


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
                sha256=text,
            )
        )
    forged = {"page_id": "forged_1", "document": "forged", "page": 1, "image": "../secret.txt", "sha256": "x"}
    missing = {"page_id": "gone_1", "document": "gone", "page": 1, "image": "pages/gone_1.png", "sha256": "y"}
    pages += [Page(**row, width=1, height=1) for row in (forged, missing)]
    write_pages(folder, pages)
    return folder


@pytest.fixture(scope="module")
def client(corpus) -> TestClient:
    build_index(corpus, corpus / "index", Bm25(), progress=False)
    return TestClient(create_app(SearchEngine.open(corpus, corpus / "index"), corpus))


def test_health(client):
    assert client.get("/health").json() == {"status": "ok", "embedder": "bm25", "pages": 5, "documents": 4, "dim": 0}


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
        ({"queries": ["a" * (MAX_QUERY_LENGTH + 1)]}, "queries.0", "at most 2000 characters"),
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
