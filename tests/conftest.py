"""Fixtures shared by the tests: a corpus of five small pages, a loadable model of random weights, drawn decks."""
# ruff: noqa: E402 - the environment has to be set before libraries read it

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Before any library reads them. Nothing is asked for over a network, and this machine's servers not through a proxy;
# FAISS builds the same graph only with one thread.
OFFLINE = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), "http://127.0.0.1:9")
OFFLINE |= {"NO_PROXY": "127.0.0.1,localhost", "no_proxy": "127.0.0.1,localhost", "HF_HUB_OFFLINE": "1"}
os.environ |= OFFLINE
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import uvicorn
from fastapi import FastAPI
from hypothesis import HealthCheck, settings
from PIL import Image, ImageDraw
from transformers import TrainerCallback

from vrag_nb.agent.policy import Conversation, Generation, Policy
from vrag_nb.documents.decks.generate import pretraining_deck
from vrag_nb.nano.deck_tasks import DeckPool
from vrag_nb.records import Hit, MetaInfo, Page, Question, page_id, write_pages

# A machine that is busy with something else may take its time over an example.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("patient")

SLIDE, PORTRAIT = (600, 338), (300, 424)  # page pixels (width, height)
DOCUMENTS = {"alpha": (SLIDE, 3), "beta": (PORTRAIT, 2)}
PAGE_IDS = ["alpha_1", "alpha_2", "alpha_3", "beta_1", "beta_2"]


def draw_page(size: tuple[int, int], label: str) -> Image.Image:
    """A page whose colour encodes the position, (x, y) as red and green, so that a crop tells where it comes from."""
    width, height = size
    red = Image.linear_gradient("L").rotate(90).resize(size)
    green = Image.linear_gradient("L").resize(size)
    page = Image.merge("RGB", (red, green, Image.new("L", size, 255)))
    ImageDraw.Draw(page).text((width // 8, height // 8), label, fill="black")
    return page


LONG = ("test_notebooks.py", "test_docs.py", "test_two_processes.py")  # begun first, lest one process end alone


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in LONG)


@pytest.fixture(scope="session")
def tiny_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared corpus folder: three slides of `alpha`, two portrait pages of `beta`."""
    corpus = tmp_path_factory.mktemp("corpus")
    (corpus / "pages").mkdir()
    pages = []
    for document, ((width, height), count) in DOCUMENTS.items():
        for number in range(1, count + 1):
            name = page_id(document, number)
            draw_page((width, height), name).save(corpus / "pages" / f"{name}.png")
            image = f"pages/{name}.png"
            text = f"Page {number} of {document}"
            pages.append(
                Page(page_id=name, document=document, page=number, image=image, width=width, height=height, text=text)
            )
    write_pages(corpus, pages)
    return corpus


class RankedEngine:
    """A search engine that ranks pages in one order, whatever the query; "fail" fails. Counts its calls."""

    def __init__(self, ranking: Sequence[str] = PAGE_IDS) -> None:
        self.ranking = list(ranking)
        self.calls: list[list[str]] = []
        self._lock = threading.Lock()

    @property
    def fingerprint(self) -> str:
        return f"{type(self).__name__} {self.ranking}"

    def search(self, queries: list[str], top_k: int = 3) -> list[list[Hit]]:
        with self._lock:
            self.calls.append(list(queries))
        if "fail" in queries:
            raise RuntimeError("the index is gone")
        ranked = self.ranking[:top_k]
        return [[Hit(page_id=name, score=1 / (i + 1), rank=i + 1) for i, name in enumerate(ranked)] for _ in queries]


@pytest.fixture
def engine() -> RankedEngine:
    return RankedEngine()


class ScriptedPolicy(Policy):
    """Says what a script says: a list of turns for everyone, or a function of the conversation."""

    name = "scripted"

    def __init__(self, script: Sequence[str] | Callable[[Conversation], str], batched: bool = True) -> None:
        self.script, self.batched = script, batched
        self.calls: list[int] = []
        self.seeds: list[int] = []
        self._lock = threading.Lock()

    @property
    def identity(self) -> dict[str, Any]:
        """Whatever the script: what is kept for another policy is not what these tests are about."""
        return {"name": self.name}

    def generate(self, conversations: Sequence[Conversation], seeds: Sequence[int] | None = None) -> list[Generation]:
        with self._lock:
            self.calls.append(len(conversations))
            self.seeds += list(seeds or [])
        return [Generation(self._say(conversation)) for conversation in conversations]

    def _say(self, conversation: Conversation) -> str:
        if callable(self.script):
            return self.script(conversation)
        said = sum(message.role == "assistant" for message in conversation)
        return self.script[min(said, len(self.script) - 1)]


def make_question(uid: str, query: str = "What is shown?") -> Question:
    meta = MetaInfo(file_name="alpha.pdf", reference_page=[2])
    return Question(uid=uid, query=query, reference_answer="42", meta_info=meta)


@pytest.fixture(scope="session")
def tiny_vlm_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint folder of a random Qwen2.5-VL with a few thousand weights, and its processor."""
    from vrag_nb.nano.model import NanoSize, build_nano_vlm, build_processor, save_checkpoint
    from vrag_nb.nano.tokenizer import build_tokenizer

    tokenizer = build_tokenizer(["What was the value of sales in 2019? The total was 42.5 million."] * 5, 320)
    size = NanoSize(text_width=64, text_layers=2, text_heads=2, vision_width=48, vision_layers=2, vision_heads=3)
    folder = tmp_path_factory.mktemp("tiny-vlm")
    model = build_nano_vlm(tokenizer, size)
    save_checkpoint(model, build_processor(tokenizer, 4 * 784, 40 * 784), folder)
    return folder


class KilledError(Exception):
    """Stands for `kill -9`."""


class KillAt(TrainerCallback):
    """Ends a training run after a step, without any tidying up."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            raise KilledError


@pytest.fixture(scope="module")
def pool() -> DeckPool:
    """Three pretraining decks, the same ones whichever test comes first."""
    pool, rng = DeckPool(pretraining_deck, size=3, draws_per_deck=10_000), random.Random(0)
    while len(pool.decks) < pool.size:
        pool.pick(rng)
    return pool


@contextmanager
def serving(app: FastAPI) -> Iterator[str]:
    """A server of its own for an application; its address."""
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        thread.join(0.02)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join(10)
