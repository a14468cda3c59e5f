"""Segments of trajectories, GGPO's masks, and both in the trainer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from conftest import PAGE_IDS, RankedEngine, ScriptedPolicy
from test_sampling import question
from test_vimrag import look, make, note, play, reply
from transformers import AutoProcessor

from vrag_nb.agent.encoding import ChatEncoder
from vrag_nb.agent.environment import Environment
from vrag_nb.agent.memory_environment import MemoryEnvironment
from vrag_nb.agent.memory_graph import ANSWER
from vrag_nb.agent.memory_records import MemoryAction
from vrag_nb.agent.rollout import rollout
from vrag_nb.agent.task_settings import MemorySettings, Settings
from vrag_nb.agent.trajectory import Trajectory
from vrag_nb.learning.ggpo import ggpo_loss
from vrag_nb.learning.grpo import MultiTurnGRPOTrainer, grpo_trainer
from vrag_nb.learning.grpo_settings import GRPOSettings
from vrag_nb.learning.mask_examples import WRONG, mask_examples
from vrag_nb.learning.rewards import Reward, Scored
from vrag_nb.learning.rows import as_sample
from vrag_nb.learning.sampled_data import read_conversation, read_rows, write_dataset, write_sharegpt
from vrag_nb.learning.sampling import fault
from vrag_nb.learning.segments import Segment, conversations, mask_reasons, segments
from vrag_nb.records import Hit

STORY = (
    look("a"), note("two pages", Picture_1=5), "not a call", look("b"), note("none"), reply("a"),
)  # fmt: skip


def told(tiny_corpus: Path) -> tuple[Trajectory, MemoryEnvironment]:
    environment = make(tiny_corpus)
    _, trajectory, _ = play(environment, *STORY)
    return trajectory, environment


def test_every_cycle_is_a_segment_with_all_the_model_wrote_in_it(tiny_corpus: Path, tiny_vlm_folder: Path) -> None:
    trajectory, environment = told(tiny_corpus)
    found = segments(trajectory, environment.pages, True, "gspo")
    assert [one.node for one in found] == ["a", "", "b", ANSWER]
    assert not any(one.masked for one in found)
    encoder = ChatEncoder(AutoProcessor.from_pretrained(tiny_vlm_folder))
    written = [sum(encoder.encode(one.conversation, reply=False).model_mask) for one in found]
    assert written == [4, 2, 4, 2]  # two tokens a generation; a search and its note are one segment
    assert [message.role for message in found[0].conversation] == ["user", "assistant", "user", "assistant"]


def masked(found: list[Segment]) -> list[bool]:
    return [one.masked for one in found]


def test_masks_are_those_worked_by_hand(tiny_corpus: Path) -> None:
    """Right: node b and the malformed call led nowhere. Wrong: both searches show a gold page, so both are spared."""
    trajectory, environment = told(tiny_corpus)
    assert masked(segments(trajectory, environment.pages, True, "ggpo")) == [False, True, True, False]
    assert trajectory.reference is not None
    gold = set(trajectory.reference.gold_page_ids)
    assert gold & set(PAGE_IDS[:3])
    assert masked(segments(trajectory, environment.pages, False, "ggpo")) == [True, False, True, False]
    assert masked(segments(trajectory, environment.pages, False, "grpo")) == [False] * 4


class Misser(RankedEngine):
    """Finds the first page for one query only."""

    def search(self, queries: list[str], top_k: int = 3) -> list[list[Hit]]:
        ranked = super().search(queries, len(PAGE_IDS))
        kept = [hits if query == "hint of it" else hits[1:] for query, hits in zip(queries, ranked, strict=True)]
        return [hits[:top_k] for hits in kept]


def test_examples_of_the_mask_are_a_right_and_a_wrong_trajectory(tiny_corpus: Path) -> None:
    """The first search misses and leads nowhere; the second one finds the page, from the question again."""
    asked = question("it", page=1)
    asked.needed_facts[0]["description"] = "It"
    settings = MemorySettings(max_pixels=40 * 784)
    found = mask_examples(Misser(), tiny_corpus, [asked], settings)
    assert found is not None
    right, wrong = found
    assert mask_examples(Misser(), tiny_corpus, [question("other", page=5)], settings) is None
    assert (right.answer, wrong.answer) == (asked.reference_answer, WRONG)
    missed, found, answer = mask_reasons(right, True).items()
    assert "does not follow" in missed[1]
    assert "advantage" in found[1]
    assert answer[0] == ANSWER
    missed, found, _ = mask_reasons(wrong, False).items()
    assert "advantage" in missed[1]
    assert "gold page" in found[1]


def test_a_conversation_is_one_segment_and_has_no_graph(tiny_corpus: Path) -> None:
    environment = Environment(RankedEngine(), tiny_corpus, Settings(max_turns=2), "nano")
    policy = ScriptedPolicy(["<search>x</search>", "<answer>y</answer>"])
    [trajectory] = rollout(policy, environment, [question("q")], progress=False)
    [whole] = segments(trajectory, environment.pages, True)
    assert whole.conversation == trajectory.messages(environment.pages)
    with pytest.raises(ValueError, match="no memory graph"):
        segments(trajectory, environment.pages, True, "ggpo")


def test_a_data_set_has_a_row_for_every_cycle(tiny_corpus: Path, tmp_path: Path) -> None:
    trajectory, environment = told(tiny_corpus)
    wanted = conversations(trajectory, environment.pages)
    rows = list(read_rows(write_dataset([trajectory], environment.pages, tmp_path)))
    assert len(rows) == len(wanted) == 4
    for row, conversation in zip(rows, wanted, strict=True):
        again = read_conversation(row)
        assert [message.text for message in again] == [message.text for message in conversation]
        assert [[one.size for one in message.images] for message in again] == [
            [one.size for one in message.images] for message in conversation
        ]
    shared = json.loads(write_sharegpt([trajectory], environment.pages, tmp_path / "sharegpt").read_text())
    names = [name for row in shared for name in row["images"]]
    assert len(names) == len(set(names)) == sum(len(row["images"]) for row in rows)
    assert fault(trajectory) in ("invalid action", "wrong answer")


# -- in the trainer


def cycle(text: str) -> tuple[str, MemoryAction]:
    """A parser that makes a search, a note and an answer of whatever a babbling model writes."""
    kinds = cycle.kinds  # type: ignore[attr-defined]
    kind = kinds[cycle.count % len(kinds)]  # type: ignore[attr-defined]
    cycle.count += 1  # type: ignore[attr-defined]
    return "", MemoryAction(kind=kind, query="q", summary="s", answer="a", parents=None)


def letters(trajectory: Trajectory) -> float:
    return sum(turn.text.count("e") for turn in trajectory.turns) / 4


def trainer(checkpoint: Path, corpus: Path, out: Path, algorithm: str) -> MultiTurnGRPOTrainer:
    cycle.kinds, cycle.count = ["retrieve"] * 4 + ["memorise"] * 4 + ["answer"] * 4, 0  # type: ignore[attr-defined]
    environment = MemoryEnvironment(
        RankedEngine(),
        corpus,
        MemorySettings(max_steps=4, min_pixels=784, max_pixels=12 * 784, memory_pixels=8 * 784, top_k=1),
        parse=cycle,
    )
    settings = GRPOSettings(
        checkpoint=str(checkpoint), out=str(out), algorithm=algorithm, steps=2, group_size=2, questions_per_step=2,
        micro_batch=2, max_new_tokens=5, learning_rate=1e-3, max_length=4000, beta=0.0, save_steps=10,
    )  # fmt: skip
    questions = [question(f"q{n}", page=1) for n in range(2)]
    return grpo_trainer(settings, questions, environment, Reward({"letters": (letters, 1.0)}))


def test_a_segment_that_does_not_fit_is_lost_alone(tiny_corpus: Path, tiny_vlm_folder: Path, tmp_path: Path) -> None:
    one = trainer(tiny_vlm_folder, tiny_corpus, tmp_path, "gspo")
    found, _ = told(tiny_corpus)
    whole = one._samples(found, Scored(1.0, {}))
    one.settings = one.settings.model_copy(update={"max_length": max(len(sample.prompt) for sample in whole)})
    cut = one._samples(found, Scored(1.0, {}))
    assert len(cut) == len(whole) == 4
    assert 1 <= [any(sample.written) for sample in cut].count(False) < 4


@pytest.mark.parametrize("texts", [(look("a"), reply("a")), (look("a"), "not a call", reply("a"))])
def test_a_forced_answer_teaches_its_own_tokens_alone(
    texts: tuple[str, ...], tiny_corpus: Path, tiny_vlm_folder: Path, tmp_path: Path
) -> None:
    """The steps are used up behind a search's pages: what the model wrote there is context of the answer."""
    environment = make(tiny_corpus, max_steps=len(texts))
    _, trajectory, _ = play(environment, *texts)
    assert trajectory.turns[-1].forced
    one = trainer(tiny_vlm_folder, tiny_corpus, tmp_path, "gspo")
    search, answer = one._samples(trajectory, Scored(1.0, {}))
    assert sum(search.written) == 2 * (len(texts) - 1)  # two tokens a generation
    assert answer.written == [True, True]
    assert answer.prompt[: len(search.prompt + search.completion)] == search.prompt + search.completion
    last = segments(trajectory, environment.pages, True)[-1]
    cut = as_sample(last.conversation, one.encoder, len(answer.prompt), last.start)  # the answer does not fit
    assert not any(cut.written)


def test_masked_segments_move_nothing_and_the_rest_is_equation_12(
    tiny_vlm_folder: Path, tiny_corpus: Path, tmp_path: Path
) -> None:
    one = trainer(tiny_vlm_folder, tiny_corpus, tmp_path, "ggpo")
    one.model.train()
    one.current_gradient_accumulation_steps = 1
    trajectories = one._rollout([{"uid": uid} for uid in ("q0", "q0", "q1", "q1")])
    assert [len(trajectory.turns) for trajectory in trajectories] == [2] * 4
    scored = [Scored(float(n), {"judge": float(n % 2)}) for n in range(4)]  # the second and the fourth were right
    advantages = one._advantages(scored)
    batch = one._batch(trajectories, scored, advantages)
    wanted = [True, False, False, False] * 2  # in wrong trajectories the search that found the gold page is left out
    kept = torch.tensor([not mask for mask in wanted])
    assert one._metrics["train"]["masked_share"] == [float(mask) for mask in wanted]
    everyones = advantages.repeat_interleave(2)  # a search and an answer each
    assert sorted(batch["advantages"].tolist()) == sorted(everyones[kept].tolist())  # masked ones are not computed
    assert batch["tool_mask"].any(1).all()
    loss = one._compute_loss(one.model, batch)
    assert loss.item() == pytest.approx(-(everyones * kept).mean().item(), abs=1e-5)  # all ratios are 1
    logps = one._all_logps(one.model, batch).detach()
    batch["old_per_token_logps"] = old = logps + torch.linspace(-0.9, 0.9, logps.numel()).view_as(logps)
    assert one._compute_loss(one.model, batch).item() == pytest.approx(by_hand(logps, old, batch, kept), abs=1e-5)


def by_hand(logps: torch.Tensor, old: torch.Tensor, batch: dict, kept: torch.Tensor) -> float:
    """Equation 12 over all segments, of which the masked ones have any log-probabilities and advantages."""

    def all_rows(rows: torch.Tensor, otherwise: float) -> torch.Tensor:
        everything = rows.new_full((len(kept), rows.shape[1]), otherwise)
        everything[kept] = rows
        return everything

    written = (batch["completion_mask"] * batch["tool_mask"]).bool()
    logps, old = all_rows(logps, -3.0), all_rows(old, -1.0)
    advantages = all_rows(batch["advantages"][:, None], 5.0)[:, 0]
    return ggpo_loss(logps, old, all_rows(written, True), advantages, ~kept).item()


def test_groups_with_one_reward_are_not_computed(tiny_vlm_folder: Path, tiny_corpus: Path, tmp_path: Path) -> None:
    one = trainer(tiny_vlm_folder, tiny_corpus, tmp_path, "gspo")
    trajectories = one._rollout([{"uid": uid} for uid in ("q0", "q0", "q1", "q1")])
    for rewards, rows in (((0.1, 0.1, 0.0, 1.0), 4), ((0.1, 0.1, 0.7, 0.7), 2)):  # two that only fill up
        scored = [Scored(value, {}) for value in rewards]
        batch = one._batch(trajectories, scored, one._advantages(scored))
        assert len(batch["advantages"]) == rows
        assert batch["advantages"].any() == (rows == 4)
        assert batch["row_weight"].tolist() == [rows / 8] * rows


def test_a_process_whose_rollouts_all_failed_moves_nothing(
    tiny_vlm_folder: Path, tiny_corpus: Path, tmp_path: Path
) -> None:
    """A policy that fails at once leaves no turn, so there is no segment at all; others may have some."""
    one = trainer(tiny_vlm_folder, tiny_corpus, tmp_path, "ggpo")
    one.model.train()
    found = [play(one.environment, look("a"))[1].model_copy(update={"turns": [], "status": "error"})] * 4
    scored = one._score(found)
    batch = one._batch(found, scored, torch.zeros(4))
    assert not batch["tool_mask"].any()
    assert one._metrics["train"]["unlearned_rate"] == [1.0]
    assert one._metrics["train"]["learned_rows"] == [0.0]


@pytest.mark.parametrize("algorithm", ["gspo", "ggpo"])
def test_a_run_with_memory_graphs(tiny_vlm_folder: Path, tiny_corpus: Path, tmp_path: Path, algorithm: str) -> None:
    one = trainer(tiny_vlm_folder, tiny_corpus, tmp_path, algorithm)
    before = [value.clone() for value in one.model.parameters()]
    one.train()
    assert one.state.global_step == 2
    assert any((value != old).any() for value, old in zip(one.model.parameters(), before, strict=True))


def test_ggpo_without_a_graph_is_refused(tiny_vlm_folder: Path, tiny_corpus: Path, tmp_path: Path) -> None:
    environment = Environment(RankedEngine(), tiny_corpus, Settings(), "nano")
    settings = GRPOSettings(checkpoint=str(tiny_vlm_folder), out=str(tmp_path), algorithm="ggpo")
    with pytest.raises(ValueError, match="needs VimRAG's memory graph"):
        grpo_trainer(settings, [question("q")], environment, Reward({"letters": (letters, 1.0)}))
