"""The recipe of nano-vimrag: each kind of memory is sampled with questions of its own, into one data set."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from conftest import RankedEngine
from test_sampling import question
from test_stages import profile
from torch import nn
from transformers import Qwen2_5_VLForConditionalGeneration

from vrag_nb.agent.memory_context import GRAPH_HEAD, ITEMS_HEAD, SUMMARY_HEAD
from vrag_nb.learning.sampled_data import read_conversation, read_rows
from vrag_nb.nano import vimrag_recipe
from vrag_nb.nano.aligning import Stream, Teaching
from vrag_nb.nano.optimisation import Schedule
from vrag_nb.nano.seeing import WindowLessons
from vrag_nb.nano.vimrag_recipe import (
    SHARES,
    sample_memories,
    shared_out,
    with_memory,
)
from vrag_nb.profile_parts import VimRAGPart


def test_questions_are_shared_out_whole_and_once() -> None:
    questions = [question(f"q{number}") for number in range(11)]
    parts = shared_out(questions)
    assert [one for part in parts.values() for one in part] == questions
    assert {memory: len(part) for memory, part in parts.items()} == {"multimodal": 6, "graph": 2, "summary": 3}


def test_every_memory_is_sampled_into_one_data_set(tiny_corpus: Path, tiny_vlm_folder: Path, tmp_path: Path) -> None:
    agent = VimRAGPart(kind="vimrag", prompt="vimrag_nano", top_k=2, max_steps=6, max_pixels=40 * 784)
    one = profile(tiny_corpus, tiny_vlm_folder).model_copy(update={"agent": agent})
    assert with_memory(one, "graph").memory_settings().memory == "graph"
    questions = [question(f"q{number}", page=1 + number % 2) for number in range(8)]
    data = sample_memories(one, questions, tmp_path, RankedEngine())
    counts = {memory: len(read_rows(tmp_path / memory / "train.parquet")) for memory in SHARES}
    assert all(counts.values())
    openings = [read_conversation(row)[0] for row in read_rows(data)]
    assert len(openings) == sum(counts.values())
    assert sum(SUMMARY_HEAD in opening.text for opening in openings) == counts["summary"]
    assert sum(GRAPH_HEAD in opening.text for opening in openings) == counts["graph"] + counts["multimodal"]
    assert any(ITEMS_HEAD in opening.text and opening.images for opening in openings)


def test_settle_teaches_what_begin_made(tiny_vlm_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taught: list[tuple[str, list[str], float, WindowLessons | None]] = []
    windows = Mock(name="windows")

    def one_more(
        model: nn.Module,
        processor: Any,
        streams: list[Stream],
        folder: Path,
        schedule: Schedule,
        teaching: Teaching,
        seed: int,
    ) -> None:
        taught.append((folder.name, [stream.name for stream in streams], schedule.seconds, teaching.windows))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1)

    monkeypatch.setattr(vimrag_recipe, "train_streams", one_more)
    monkeypatch.setattr(vimrag_recipe, "window_lessons", lambda *given, **options: windows)
    begun = vimrag_recipe.begin(tiny_vlm_folder, tmp_path, 60, seed=1)
    settled = vimrag_recipe.settle(begun, tmp_path, 240, seed=2)
    lessons = ["memory", "words", "film", "turn"]
    assert taught == [("begun", lessons, 60, None), ("settled", lessons, 240, windows)]
    known = Qwen2_5_VLForConditionalGeneration.from_pretrained(tiny_vlm_folder, dtype=torch.float32).state_dict()
    made = Qwen2_5_VLForConditionalGeneration.from_pretrained(settled, dtype=torch.float32)
    for name, value in made.state_dict().items():
        torch.testing.assert_close(value, known[name] + 2, atol=0.02, rtol=0)  # kept in half precision
