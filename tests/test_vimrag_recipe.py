"""The recipe of nano-vimrag: each kind of memory is sampled with questions of its own, into one data set."""

from __future__ import annotations

import json
import random
from pathlib import Path

import torch
from conftest import RankedEngine
from test_sampling import question
from test_stages import profile
from transformers import Qwen2_5_VLForConditionalGeneration

from vrag_nb.agent.memory_context import GRAPH_HEAD, ITEMS_HEAD, SUMMARY_HEAD
from vrag_nb.learning.sampled_data import read_conversation, read_rows
from vrag_nb.nano.vimrag_recipe import (
    SHARES,
    memory_rows,
    reworded,
    reworded_calls,
    sample_memories,
    shared_out,
    under_tower,
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


def test_reworded_calls_quote_their_question_and_rows_become_samples(
    tiny_corpus: Path, tiny_vlm_folder: Path, tmp_path: Path
) -> None:
    agent = VimRAGPart(kind="vimrag", prompt="vimrag_nano", top_k=1, max_steps=6, max_pixels=40 * 784)
    one = profile(tiny_corpus, tiny_vlm_folder).model_copy(update={"agent": agent})
    query = "Which of the twelve harbours in 2019 shipped 4711 barrels?"
    questions = [question(f"q{number}", page=1, query=f"{query} ({number})") for number in range(4)]
    data = sample_memories(one, questions, tmp_path, RankedEngine())
    rng = random.Random(0)
    calls, rows = reworded_calls(data), memory_rows(data)
    for _ in range(5):
        (_, [asked]), (_, [said]) = calls(rng, 0).turns
        quoted = json.loads(str(said).partition("<tool_call>")[2].partition("</tool_call>")[0])["arguments"]["query"]
        assert quoted in str(asked)
        assert not quoted.startswith(query)
        sample = rows(rng, 0)
        assert [role for role, _ in sample.turns][:2] == ["user", "assistant"]
        assert all(image.width % 28 == 0 == image.height % 28 for image in sample.images)
    assert reworded(random.Random(1), "a of 12") == "a of 12"


def test_a_language_model_moves_under_another_tower(tiny_vlm_folder: Path, tmp_path: Path) -> None:
    other = Qwen2_5_VLForConditionalGeneration.from_pretrained(tiny_vlm_folder, dtype=torch.float32)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1)
    other.save_pretrained(tmp_path)
    moved = under_tower(tiny_vlm_folder, tmp_path).state_dict()
    known = Qwen2_5_VLForConditionalGeneration.from_pretrained(tiny_vlm_folder, dtype=torch.float32).state_dict()
    for name, value in moved.items():
        torch.testing.assert_close(value, known[name] + 1 if ".visual." in name else known[name])
