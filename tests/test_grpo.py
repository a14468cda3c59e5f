"""Multi-turn GRPO on a tiny model: the same log-probabilities as generation, an independent loss, masks, resuming."""

from __future__ import annotations

import copy
import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import KillAt, KilledError, RankedEngine, ScriptedPolicy
from test_sampling import question
from transformers import AutoModelForImageTextToText, AutoProcessor, TrainerCallback

from vrag_nb.agent.actions import Action
from vrag_nb.agent.encoding import ChatEncoder, Encoded
from vrag_nb.agent.environment import Environment
from vrag_nb.agent.policy import Image
from vrag_nb.agent.rollout import rollout
from vrag_nb.agent.task_settings import Settings
from vrag_nb.agent.trajectory import Trajectory
from vrag_nb.agent.transformers_policy import TransformersPolicy
from vrag_nb.evaluation.per_question import conduct
from vrag_nb.learning.advantages import group_advantages
from vrag_nb.learning.curves import read_log
from vrag_nb.learning.grpo import MultiTurnGRPOTrainer, grpo_trainer
from vrag_nb.learning.grpo_settings import GRPOSettings
from vrag_nb.learning.rewards import Reward, RewardError, Scored
from vrag_nb.learning.rows import as_sample, micro_batches
from vrag_nb.learning.step_figures import CONDUCT, step_figures
from vrag_nb.learning.tables import TrajectoryTables
from vrag_nb.learning.trainers import freeze, train

Ready = tuple[MultiTurnGRPOTrainer, dict[str, Any]]


def letters(trajectory: Trajectory) -> float:
    """A reward that a babbling model can vary in."""
    return sum(turn.text.count("e") for turn in trajectory.turns) / 4


@pytest.fixture
def environment(tiny_corpus: Path) -> Environment:
    """Two turns and a forced one, where babble is shown pages."""
    settings = Settings(max_turns=2, min_pixels=784, max_pixels=12 * 784)
    return Environment(RankedEngine(), tiny_corpus, settings, "nano", parse=always_search)


def always_search(text: str) -> tuple[str, Any]:
    """A parser that takes whatever is written as a search."""
    return "", Action(kind="search", query=text or "nothing")


def trainer(checkpoint: Path, environment: Environment, out: Path, **changes: Any) -> MultiTurnGRPOTrainer:
    small = {"steps": 3, "group_size": 2, "questions_per_step": 2, "micro_batch": 2, "max_new_tokens": 6}
    base = {**small, "learning_rate": 1e-3, "max_length": 400, "save_steps": 1, "beta": 0.1, "freeze_projector": False}
    callbacks, dev = changes.pop("callbacks", ()), changes.pop("dev_questions", ())
    settings = GRPOSettings(checkpoint=str(checkpoint), out=str(out), **{**base, **changes})
    questions = [question(f"q{n}") for n in range(4)]
    return grpo_trainer(settings, questions, environment, Reward({"letters": (letters, 1.0)}), dev, callbacks)


@pytest.fixture
def ready(tiny_vlm_folder: Path, environment: Environment, tmp_path: Path) -> Ready:
    """A trainer and one batch of it: two questions, two trajectories each."""
    one = trainer(tiny_vlm_folder, environment, tmp_path, iterations=2, steps=4, save_steps=2)
    one.model.train()
    one.current_gradient_accumulation_steps = 1  # set by the training loop, which is not run here
    rows = [{"uid": uid, "prompt": []} for uid in ("q0", "q0", "q1", "q1")]
    return one, one._generate_and_score_completions(rows)


def test_advantages_are_those_worked_by_hand() -> None:
    nan = float("nan")
    found = group_advantages(torch.tensor([1.0, 0.0, 0.0, 0.0, nan, 1.0, 3.0, nan, 5.0, 5.0, 5.0, 5.0]), 4)
    assert found[:4].tolist() == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=1e-5)  # mean 1/4, deviation 1/2
    half = 1 / math.sqrt(2)
    assert found[4:8].tolist() == pytest.approx([0, -half, half, 0], abs=1e-5)
    assert found[8:].tolist() == [0] * 4
    assert group_advantages(torch.tensor([nan, 2.0]), 2).tolist() == [0, 0]
    with pytest.raises(ValueError, match="groups of 2"):
        group_advantages(torch.ones(3), 2)


class Dead(RankedEngine):
    def search(self, queries: list[str], top_k: int = 3) -> Any:
        raise ConnectionError("connection refused")


def test_a_step_without_any_reward_is_no_training(tiny_vlm_folder: Path, tiny_corpus: Path, tmp_path: Path) -> None:
    settings = Settings(max_turns=2, min_pixels=784, max_pixels=12 * 784)
    for engine, trained in ((Dead(), False), (RankedEngine(), True)):
        world = Environment(engine, tiny_corpus, settings, "nano", parse=always_search)
        one = trainer(tiny_vlm_folder, world, tmp_path, steps=1)
        if trained:
            train(one)
        else:
            with pytest.raises(RewardError, match=r"step 1: none of 4 trajectories has a reward .*connection refused"):
                train(one)
        assert (tmp_path / "final").is_dir() == trained


def test_two_questions_of_one_uid_are_refused(tiny_vlm_folder: Path, environment: Environment, tmp_path: Path) -> None:
    settings = GRPOSettings(checkpoint=str(tiny_vlm_folder), out=str(tmp_path), group_size=2, questions_per_step=2)
    with pytest.raises(ValueError, match="two questions have the uid 'q0'"):
        grpo_trainer(settings, [question("q0"), question("q0")], environment, Reward({"letters": (letters, 1.0)}))


def test_recomputed_log_probabilities_are_those_of_generation(
    ready: Ready,
) -> None:
    one, batch = ready
    again = one._all_logps(one.model, batch)
    masks = (batch["completion_mask"] * batch["tool_mask"]).bool()
    rows = rows_of(one, batch)
    assert sorted(rows) == list(range(4))
    for row, trajectory in zip(rows, one.trajectories, strict=True):
        said = [logprob for turn in trajectory.turns for logprob in turn.logprobs]
        assert int(masks[row].sum()) == len(said) > 6
        assert (again[row][masks[row]] - torch.tensor(said)).abs().max() < 1e-4
    assert batch["num_images"] == [2] * 4
    assert len({trajectory.uid for trajectory in one.trajectories}) == 4
    assert len({trajectory.question_uid for trajectory in one.trajectories}) == 2, "the samples of a group share it"


def rows_of(one: MultiTurnGRPOTrainer, batch: dict[str, Any]) -> list[int]:
    """The row of each trajectory, by what the model wrote in it: the shortest come first."""
    masks = (batch["completion_mask"] * batch["tool_mask"]).bool()
    written = [ids[mask].tolist() for ids, mask in zip(batch["completion_ids"], masks, strict=True)]
    return [
        written.index([token for turn in trajectory.turns for token in turn.token_ids])
        for trajectory in one.trajectories
    ]


def test_rows_of_similar_length_go_through_the_model_together(ready: Ready) -> None:
    one, batch = ready
    lengths = batch["completion_mask"].sum(1).tolist()
    assert lengths == sorted(lengths)
    assert len(set(lengths)) > 1
    one._buffered_inputs = None
    inputs = [{"uid": uid, "prompt": []} for uid in ("q0", "q0", "q1", "q1")]
    args: Any = one.args
    parts = []
    for step in range(args.steps_per_generation):
        one._step = step
        parts.append(one._prepare_inputs(inputs))
    longest = [int(part["completion_mask"].sum(1).max()) for part in parts]
    assert longest == sorted(longest)
    assert sum(len(part["prompt_ids"]) for part in parts) == 4
    grids = torch.cat([part["image_grid_thw"] for part in parts])
    assert len(grids) == sum(sum(part["num_images"]) for part in parts) == 8


def test_the_loss_is_that_of_plain_pytorch(ready: Ready) -> None:
    one, batch = ready
    torch.manual_seed(0)
    batch["old_per_token_logps"] = batch["old_per_token_logps"] + 0.4 * torch.randn_like(batch["old_per_token_logps"])
    batch["ref_per_token_logps"] = batch["ref_per_token_logps"] + 0.4 * torch.randn_like(batch["ref_per_token_logps"])
    batch["advantages"] = torch.tensor([1.0, -1.0, 0.5, -2.0])
    loss = one._compute_loss(one.model, batch)
    prompt = batch["prompt_ids"].shape[1]
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
    logits = one.model(
        input_ids=ids,
        attention_mask=torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1),
        pixel_values=batch["pixel_values"],
        image_grid_thw=batch["image_grid_thw"],
        mm_token_type_ids=batch["mm_token_type_ids"],
    ).logits
    logps = logits[:, prompt - 1 : -1].log_softmax(-1).gather(2, ids[:, prompt:, None]).squeeze(2)
    total, clipped = 0.0, 0
    for row in range(4):
        terms = []
        for place in range(logps.shape[1]):
            if not (batch["completion_mask"][row, place] and batch["tool_mask"][row, place]):
                continue
            new = logps[row, place]
            ratio = (new - batch["old_per_token_logps"][row, place]).exp()
            advantage = batch["advantages"][row]
            kept = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
            clipped += bool(kept != ratio * advantage)
            gap = batch["ref_per_token_logps"][row, place] - new
            terms.append(-kept + 0.1 * (gap.exp() - gap - 1))
        total = total + torch.stack(terms).mean() / 4
    assert clipped > 3
    assert loss.item() == pytest.approx(total.item(), abs=2e-5)


def test_no_gradient_through_what_the_model_did_not_write(ready: Ready, monkeypatch: pytest.MonkeyPatch) -> None:
    one, batch = ready
    batch["advantages"] = torch.tensor([1.0, -1.0, 0.5, -2.0])
    logps = batch["old_per_token_logps"].clone().requires_grad_()
    monkeypatch.setattr(
        one, "_get_per_token_logps_and_entropies", lambda *args, **kwargs: (logps, torch.zeros_like(logps), None)
    )
    one._compute_loss(one.model, batch).backward()
    written = (batch["completion_mask"] * batch["tool_mask"]).bool()
    assert logps.grad is not None
    assert (logps.grad[~written] == 0).all()
    assert (logps.grad[written] != 0).all()
    pads = batch["completion_ids"] == one.encoder.image_pad
    assert pads.any()
    assert not (pads & written).any()


def test_pixels_reach_the_forward_pass(ready: Ready) -> None:
    one, batch = ready
    seen = one._all_logps(one.model, batch)
    changed = one._all_logps(one.model, {**batch, "pixel_values": batch["pixel_values"] + 1})
    assert (seen - changed).abs().max() > 1e-4
    halves = [one._all_logps(one.model, part) for part in micro_batches(batch, 2)]
    assert torch.allclose(torch.cat(halves), seen, atol=1e-5)  # each row keeps its own images


def test_columns_that_are_padding_in_every_row_change_nothing(ready: Ready) -> None:
    one, batch = ready
    sides = {"prompt_ids": (7, 0), "completion_ids": (0, 9), "prompt_mask": (7, 0), "completion_mask": (0, 9)}
    wider = {**batch, "mm_token_type_ids": torch.nn.functional.pad(batch["mm_token_type_ids"], (7, 9))}
    wider |= {name: torch.nn.functional.pad(batch[name], pads) for name, pads in sides.items()}
    seen, again = one._all_logps(one.model, batch), one._all_logps(one.model, wider)
    assert again.shape[1] == seen.shape[1] + 9
    assert torch.allclose(again[:, :-9], seen, atol=1e-6)


def test_long_trajectories_are_cut_after_a_turn(tiny_vlm_folder: Path, environment: Environment) -> None:
    encoder = ChatEncoder(AutoProcessor.from_pretrained(tiny_vlm_folder))
    [found] = rollout(
        ScriptedPolicy(["<search>one</search>", "<search>two</search>"]), environment, [question("q")], progress=False
    )
    conversation = found.messages(environment.pages)
    whole = as_sample(conversation, encoder, 10_000)
    cut = as_sample(conversation, encoder, len(whole.prompt + whole.completion) - 1)
    assert cut.prompt == whole.prompt
    assert whole.completion[: len(cut.completion)] == cut.completion
    assert len(cut.encoded.images) == len(whole.encoded.images) - 1
    assert cut.written[-1]
    with pytest.raises(ValueError, match="fits into 5 tokens"):
        as_sample(conversation, encoder, 5)


def test_what_cannot_be_scored_or_encoded_moves_nothing(ready: Ready) -> None:
    one, _ = ready
    broken = one.trajectories[0].model_copy(update={"turns": []})
    scored = [Scored(None, {}, "gone"), *(Scored(float(n), {"letters": float(n)}) for n in range(3))]
    advantages = one._advantages(scored)
    assert advantages[:2].tolist() == [0, 0]
    batch = one._batch([broken, *one.trajectories[1:]], scored, advantages)
    assert batch["tool_mask"].any(1).tolist() == [False, True, True, True]  # the first one fills up
    assert one._metrics["train"]["unlearned_rate"][-1] == 0.25
    assert one._metrics["train"]["learned_rows"][-1] == 3
    assert batch["row_weight"].tolist() == [pytest.approx(4 / 3)] * 4, "the mean is over the three with a reward"
    assert math.isfinite(one._compute_loss(one.model, batch).item())
    figures = step_figures([broken, *one.trajectories[1:]], scored, ["letters"])
    assert figures["unscored_rate"] == 0.25
    assert figures["reward"] == 1
    assert figures["searches"] == pytest.approx(6 / 4), "searches on the extra turn are not carried out"
    conducts = [conduct(trajectory) for trajectory in [broken, *one.trajectories[1:]]]
    for name in CONDUCT:
        told = [row[name] for row in conducts if name in row]
        assert figures[name] == pytest.approx(sum(told) / len(told)), f"{name} is what an evaluation says it is"


def test_what_cannot_be_scored_is_not_held_to_the_reference_either(ready: Ready) -> None:
    one, _ = ready
    lost = Scored(None, {}, "gone")
    for scored, rows, weight in (
        ([lost, lost, Scored(1.0, {}), Scored(0.0, {})], 2, 1.0),
        ([lost] * 4, 0, None),
    ):
        advantages = one._advantages(scored) if rows else torch.zeros(4)  # another process may have rewards
        batch = one._batch(one.trajectories, scored, advantages)
        assert batch["tool_mask"].any(1).sum() == rows
        assert weight is None or batch["row_weight"].tolist() == [weight] * len(batch["row_weight"])
        batch["ref_per_token_logps"] = batch["ref_per_token_logps"] + 0.4  # as after some steps
        assert (one._compute_loss(one.model, batch) != 0) == (rows > 0)


def test_where_weights_lie_in_parts_every_row_shows_an_image(ready: Ready, monkeypatch: pytest.MonkeyPatch) -> None:
    """The vision tower is gathered by all processes or by none; a blank behind the last token moves nothing."""
    one, _ = ready
    scored = [Scored(float(n), {}) for n in range(4)]
    plain = one._batch(one.trajectories, scored, one._advantages(scored))
    monkeypatch.setattr("vrag_nb.learning.trainers.weights_are_sharded", lambda accelerator: True)
    lost = Scored(None, {}, "gone")
    batch = one._batch(one.trajectories, [lost, *scored[1:]], one._advantages([lost, *scored[1:]]))
    assert all(count > 0 for count in batch["num_images"])
    shown = one._batch(one.trajectories, scored, one._advantages(scored))
    assert one._compute_loss(one.model, shown).item() == pytest.approx(
        one._compute_loss(one.model, plain).item(), abs=1e-5
    )


def test_parts_without_a_learned_token_are_in_no_mean(ready: Ready) -> None:
    one, batch = ready
    metrics = one._metrics["train"]
    metrics.clear()
    for part in ({**batch, "tool_mask": torch.zeros_like(batch["tool_mask"])}, batch):
        one._compute_loss(one.model, part)
    for name in ("kl", "entropy", "clip_ratio/region_mean"):
        assert [math.isnan(value) for value in metrics[name]] == [True, False], name
    wanted = metrics["entropy"][1]
    assert wanted > 1
    one.log({})
    assert one.state.log_history[-1]["entropy"] == pytest.approx(wanted)


@pytest.mark.parametrize(("field", "changes"), [("save_steps", {"steps": 4}), ("steps", {"save_steps": 2})])
def test_a_run_is_saved_only_where_it_rolls_out_anew(field: str, changes: dict[str, int]) -> None:
    given = {"steps": 3, "save_steps": 3, "iterations": 2, **changes}
    with pytest.raises(ValueError, match=f"{field} 3 is no multiple of iterations 2"):
        GRPOSettings(checkpoint="", out="", **given)  # type: ignore[arg-type]
    assert GRPOSettings(checkpoint="", out="", **{**given, field: 4}).iterations == 2  # type: ignore[arg-type]


@pytest.mark.parametrize("killed", [2, 4])
def test_a_killed_run_ends_with_the_weights_of_an_unbroken_one(
    killed: int, tiny_vlm_folder: Path, environment: Environment, tmp_path: Path
) -> None:
    """Two steps make an epoch."""
    whole = train(trainer(tiny_vlm_folder, environment, tmp_path / "whole", steps=killed + 1))
    with pytest.raises(KilledError):
        train(trainer(tiny_vlm_folder, environment, tmp_path / "broken", steps=killed + 1, callbacks=[KillAt(killed)]))
    resumed = train(trainer(tiny_vlm_folder, environment, tmp_path / "broken", steps=killed + 1))
    start, one, other = (
        AutoModelForImageTextToText.from_pretrained(path).state_dict() for path in (tiny_vlm_folder, whole, resumed)
    )
    assert any(not torch.equal(start[name].float(), one[name].float()) for name in one)
    assert all(torch.equal(one[name], other[name]) for name in one)
    rows = [row for row in read_log(tmp_path / "broken" / "log.jsonl") if "reward" in row]
    assert [row["step"] for row in rows] == list(range(1, killed + 2))
    assert {"reward/letters", "invalid_action_rate", "finish_rate", "kl", "entropy", "seconds/rollout"} <= set(rows[0])


def test_a_run_given_more_steps_ends_as_one_that_had_them_from_the_start(
    tiny_vlm_folder: Path, environment: Environment, tmp_path: Path
) -> None:
    whole = train(trainer(tiny_vlm_folder, environment, tmp_path / "whole", warmup=2))
    short = train(trainer(tiny_vlm_folder, environment, tmp_path / "grown", warmup=2, steps=2))
    before = AutoModelForImageTextToText.from_pretrained(short).state_dict()
    grown = train(trainer(tiny_vlm_folder, environment, tmp_path / "grown", warmup=2))
    one, other = (AutoModelForImageTextToText.from_pretrained(path).state_dict() for path in (whole, grown))
    assert any(not torch.equal(before[name], other[name]) for name in other)
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert [row["step"] for row in read_log(tmp_path / "grown/log.jsonl") if "reward" in row] == [1, 2, 3]


def test_a_finished_run_is_left_as_it_is(tiny_vlm_folder: Path, environment: Environment, tmp_path: Path) -> None:
    made = train(trainer(tiny_vlm_folder, environment, tmp_path, steps=1))
    (made / "mark").touch()
    assert train(trainer(tiny_vlm_folder, environment, tmp_path, steps=1)) == made
    assert (made / "mark").is_file()


def test_training_is_watched_on_questions_it_does_not_learn_on(
    tiny_vlm_folder: Path, environment: Environment, tmp_path: Path
) -> None:
    dev = [question(f"dev{n}") for n in range(2)]
    one = trainer(
        tiny_vlm_folder,
        environment,
        tmp_path,
        steps=2,
        validate_every=2,
        group_size=3,
        micro_batch=3,
        dev_questions=dev,
    )
    one.add_callback(TrajectoryTables(one, tmp_path / "trajectories", environment.pages))
    train(one)
    rows = [row for row in read_log(tmp_path / "log.jsonl") if "eval_reward" in row]
    assert [row["step"] for row in rows] == [0, 2]
    assert {"eval_finish_rate", "eval_invalid_action_rate", "eval_reward/letters"} <= set(rows[0])
    assert [seen.uid for seen in one.dev_trajectories] == ["dev0", "dev1"]
    written = sorted(path.name for path in (tmp_path / "trajectories").iterdir())
    assert written == ["dev-000000.jsonl", "dev-000002.jsonl", "step-000001.jsonl", "step-000002.jsonl"]


def test_low_rank_updates_start_from_the_reference_and_leave_it(
    tiny_vlm_folder: Path, environment: Environment, tmp_path: Path
) -> None:
    one = trainer(tiny_vlm_folder, environment, tmp_path, lora_rank=2, freeze_projector=True, learning_rate=0.1)
    assert one.ref_model is None
    final = train(one)
    rows = [row for row in read_log(tmp_path / "log.jsonl") if "kl" in row]
    assert rows[0]["kl"] == pytest.approx(0, abs=1e-5)  # nothing is learned before the first step
    assert rows[-1]["kl"] > 1e-4
    before, after = (AutoModelForImageTextToText.from_pretrained(path) for path in (tiny_vlm_folder, final))
    changed = {
        name
        for (name, a), b in zip(before.named_parameters(), after.parameters(), strict=True)
        if not torch.equal(a.float(), b.float())
    }
    assert changed
    assert all("language_model" in name and "_proj" in name for name in changed)


def test_steps_must_come_out_even(tiny_vlm_folder: Path, environment: Environment, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no multiple of micro_batch 3"):
        trainer(tiny_vlm_folder, environment, tmp_path, micro_batch=3)


def test_rollouts_are_converted_from_the_models_frame(
    tiny_vlm_folder: Path, environment: Environment, tmp_path: Path
) -> None:
    one = trainer(tiny_vlm_folder, environment, tmp_path, frame="normalised-1000")
    assert one._actor.policy(1.0).frame == "normalised-1000"  # type: ignore[attr-defined]


class FakeEngine:
    """What `VLLMGeneration` gives a trainer: an engine with weights of its own, which `sync_weights` renews."""

    def __init__(self, model: Any, processing_class: Any, **options: Any) -> None:
        self.model, self.options, self.syncs = model, options, 0
        self.own = TransformersPolicy(copy.deepcopy(model), processing_class, temperature=1.0, max_new_tokens=6)
        self.llm, self.forgotten = self, 0
        config = SimpleNamespace(logprobs_mode="processed_logprobs")  # as TRL makes it
        self.llm_engine = SimpleNamespace(reset_encoder_cache=self._forget, model_config=config)
        self.said: dict[tuple[int, ...], list[float]] = {}  # a turn's log-probabilities, raw, by its token ids

    def _forget(self) -> None:
        self.forgotten += 1

    def sync_weights(self) -> None:
        self.syncs += 1
        self.own.model.load_state_dict(self.model.state_dict())

    def generate(self, prompts: list[dict[str, Any]], params: list[Any], use_tqdm: bool) -> list[Any]:
        return [self._output(prompt, one) for prompt, one in zip(prompts, params, strict=True)]

    def _output(self, prompt: dict[str, Any], params: Any) -> Any:
        encoder, images = self.own.encoder, prompt.get("multi_modal_data", {}).get("image", [])
        shown = [Image(picture.size, picture) for picture in images]
        ids: list[int] = []
        waiting = iter(shown)
        for token in prompt["prompt_token_ids"]:
            ids += [token] * (encoder.image_tokens(next(waiting)) if token == encoder.image_pad else 1)
        self.own.temperature = params.temperature
        [made] = self.own._run([Encoded(ids, [False] * len(ids), shown)], [params.seed or 0])
        self.said[tuple(made.token_ids)] = made.logprobs
        steps = [{token: SimpleNamespace(logprob=p)} for token, p in zip(made.token_ids, made.logprobs, strict=True)]
        said = SimpleNamespace(token_ids=made.token_ids, logprobs=steps, text=made.text, finish_reason="length")
        return SimpleNamespace(prompt_token_ids=ids, outputs=[said])


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM as far as a trainer sees it; the engine itself needs a GPU."""
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(SamplingParams=lambda **given: SimpleNamespace(**given)))
    monkeypatch.setattr("trl.trainer.grpo_trainer.VLLMGeneration", FakeEngine)


@pytest.mark.usefixtures("vllm")
def test_an_engine_beside_the_model_acts_with_its_weights(
    tiny_vlm_folder: Path, environment: Environment, tmp_path: Path
) -> None:
    one = trainer(tiny_vlm_folder, environment, tmp_path, rollouts="vllm", dev_questions=[question("d")])
    engine: Any = one.vllm_generation
    rows = [{"uid": uid, "prompt": []} for uid in ("q0", "q0", "q1", "q1")]
    for step in range(2):
        batch = one._generate_and_score_completions(rows)
        again = one._all_logps(one.model, batch)
        mask = (batch["completion_mask"] * batch["tool_mask"]).bool()
        turns = [found.turns for found in one.trajectories]
        assert not any(turn.logprobs for played in turns for turn in played)  # they would be after temperature and bans
        said = [[logprob for turn in played for logprob in engine.said[tuple(turn.token_ids)]] for played in turns]
        for row, logprobs in zip(rows_of(one, batch), said, strict=True):
            assert (again[row][mask[row]] - torch.tensor(logprobs)).abs().max() < 1e-4
        one._generate_and_score_completions(rows)
        assert engine.syncs == engine.forgotten == step + 1  # once a step
        with torch.no_grad():  # an update
            for parameter in one.model.model.language_model.parameters():
                parameter += 0.01 * torch.randn_like(parameter)
        one.state.global_step += 1
    assert engine.options["mode"] == "colocate"
    other = trainer(tiny_vlm_folder, environment, tmp_path / "other", rollouts="vllm")
    del other.vllm_generation.llm_engine
    with pytest.raises(ValueError, match="freeze the vision tower and its projector"):
        other._generate_and_score_completions(rows)
    assert train(trainer(tiny_vlm_folder, environment, tmp_path / "whole", rollouts="vllm", steps=2)).is_dir()


def test_a_trainer_that_has_learned_goes_on_from_a_checkpoint_or_not_at_all(
    tiny_vlm_folder: Path, environment: Environment, tmp_path: Path
) -> None:
    class Interrupts(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 2:
                raise KeyboardInterrupt

    one = trainer(tiny_vlm_folder, environment, tmp_path / "one", callbacks=[Interrupts()], save_steps=50)
    with pytest.raises(KeyboardInterrupt):
        train(one)
    with pytest.raises(ValueError, match="make a new one"):
        train(one)
    interrupts = Interrupts()
    saved = trainer(tiny_vlm_folder, environment, tmp_path / "two", callbacks=[interrupts])
    with pytest.raises(KeyboardInterrupt):
        train(saved)
    saved.remove_callback(interrupts)
    again, whole = train(saved), train(trainer(tiny_vlm_folder, environment, tmp_path / "whole"))
    weights = [AutoModelForImageTextToText.from_pretrained(one).state_dict() for one in (again, whole)]
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())


def test_whole_weights_of_16_bits_are_not_trained(
    tiny_vlm_folder: Path, environment: Environment, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="rounds most of a step away"):
        train(trainer(tiny_vlm_folder, environment, tmp_path, dtype="bfloat16"))


def test_weights_of_4_bits_cannot_be_given_to_the_engine() -> None:
    with pytest.raises(ValueError, match="set quantise: false, or rollouts: transformers"):
        GRPOSettings(checkpoint="", out="", quantise=True, lora_rank=4, rollouts="vllm")


def test_every_merger_is_a_projector() -> None:
    names = ("visual.blocks.0.w", "visual.merger.w", "visual.deepstack_merger_list.0.w", "language_model.w")
    weights = {name: torch.nn.Parameter(torch.zeros(1)) for name in names}
    freeze(SimpleNamespace(named_parameters=weights.items), vision=True, projector=False)  # type: ignore[arg-type]
    assert [one.requires_grad for one in weights.values()] == [False, True, True, True]


def test_crops_and_notices_are_not_learned(tiny_vlm_folder: Path, tiny_corpus: Path) -> None:
    settings = Settings(max_turns=6, min_pixels=784, max_pixels=40 * 784)
    world = Environment(RankedEngine(), tiny_corpus, settings, "nano")
    said = ["<search>a</search>", "hm", "<bbox>[0, 0, 84, 84]</bbox>", "<answer>7</answer>"]
    [one] = rollout(ScriptedPolicy(said), world, [question("q")], progress=False)
    assert [turn.action.kind for turn in one.turns] == ["search", "invalid", "bbox", "answer"]
    encoder = ChatEncoder(AutoProcessor.from_pretrained(tiny_vlm_folder))
    row = as_sample(one.messages(world.pages), encoder, 10_000)
    learned = [token for token, own in zip(row.completion, row.written, strict=True) if own]
    assert encoder.tokenizer.decode(learned) == "".join(f"{text}<|im_end|>" for text in said)


def test_who_cannot_roll_out_says_so(
    tiny_vlm_folder: Path, environment: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ImportError, match="pip install 'vrag-nb\\[gpu\\]'"):
        trainer(tiny_vlm_folder, environment, tmp_path, rollouts="vllm")
    one = trainer(tiny_vlm_folder, environment, tmp_path)
    monkeypatch.setattr("vrag_nb.learning.grpo.weights_are_sharded", lambda accelerator: True)
    with pytest.raises(ValueError, match="set rollouts: vllm"):
        one._generate_and_score_completions([{"uid": "q0", "prompt": []}] * 2)
