"""Multi-turn, multimodal GRPO: our rollouts and rewards, TRL's loss.

    trainer = grpo_trainer(GRPOSettings(checkpoint=..., out=...), questions, environment, load_reward("vrag"))
    train(trainer)              # goes on from the last checkpoint in `out`

One step rolls every question of its batch out `group_size` times through the real environment, scores the trajectories,
and hands TRL their token ids, images, masks and advantages. The loss is the clipped objective with a KL to the starting
model, averaged over the tokens that the model wrote: the mask comes from the ids that were generated, and the tokens of
pages, crops and messages carry no gradient. Equations: VRAG-RL (arXiv 2505.22019), appendix C.

`algorithm` chooses what is weighed: grpo, each token by its own ratio; gspo, each segment by one ratio, normalised by
its length; ggpo, the same without the segments that the memory graph says should be left out (`learning.segments`).
VimRAG's trajectories have several segments, so a step has more rows than trajectories; those of a trajectory share its
advantage. Rows without a gradient (masked, or, where there is no KL, of a group with one reward) are not computed.

What differs from TRL's trainer is how rows are made (`_generate_and_score_completions`) and in which order they are
learned from (`_prepare_inputs`). A trajectory whose reward cannot be worked out moves nothing and stays out of its
group's mean; one that is longer than the context is cut after a whole turn, its text and images together.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from datasets import Dataset
from transformers import AutoProcessor, TrainerCallback
from trl import GRPOTrainer
from trl.trainer.utils import split_pixel_values_by_grid, split_tensor_dict, unsplit_pixel_values_by_grid

from vrag_nb.agent.encoding import ChatEncoder
from vrag_nb.agent.environment import Environment
from vrag_nb.agent.memory_environment import MemoryEnvironment
from vrag_nb.agent.rollout import World, rollout
from vrag_nb.agent.trajectory import Trajectory
from vrag_nb.agent.vllm_policy import import_vllm
from vrag_nb.learning.actors import Actor, EngineActor, ForwardActor, sees_anew
from vrag_nb.learning.advantages import EPSILON, group_advantages
from vrag_nb.learning.curves import CurveLog
from vrag_nb.learning.grpo_settings import GRPOSettings, trl_arguments
from vrag_nb.learning.question_order import QuestionOrder
from vrag_nb.learning.rewards import Reward, RewardError, Scored, outcome
from vrag_nb.learning.rows import (
    SampledRow,
    as_sample,
    micro_batches,
    nothing,
    row_tensors,
    used_columns,
    with_blank_image,
)
from vrag_nb.learning.segments import Segment, segments
from vrag_nb.learning.step_figures import step_figures
from vrag_nb.learning.trainers import (
    RestoresWeights,
    epoch_of,
    process_group,
    weights_are_sharded,
)
from vrag_nb.records import Question


class MultiTurnGRPOTrainer(RestoresWeights, GRPOTrainer):
    """See the module's docstring. `trajectories` holds the last step's, with their rewards written into them."""

    _buffered_inputs: Any

    def __init__(
        self,
        *,
        environment: Environment | MemoryEnvironment,
        reward: Reward,
        questions: Sequence[Question],
        dev_questions: Sequence[Question] = (),
        settings: GRPOSettings,
        **kwargs: Any,
    ) -> None:
        super().__init__(reward_funcs=_unused, **kwargs)
        self.environment, self.reward, self.settings = environment, reward, settings
        self.questions = {question.uid: question for question in questions}
        self.dev_questions = list(dev_questions)
        self.encoder = ChatEncoder(self.processing_class)
        self.trajectories: list[Trajectory] = []
        self.dev_trajectories: list[Trajectory] = []

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """As TRL's, from the start or a checkpoint. Raises ValueError where it has learned and has none."""
        if self.state.global_step and not kwargs.get("resume_from_checkpoint"):
            raise ValueError("this trainer has learned already and has no checkpoint to go on from: make a new one")
        self._step, self._buffered_inputs = 0, None  # TRL would go on in the middle of a step's rows
        for figures in self._metrics.values():
            figures.clear()
        return super().train(*args, **kwargs)

    def _get_train_sampler(self, dataset: Any = None) -> QuestionOrder:
        """As TRL's, in an order that a resumed run can find again."""
        args: Any = self.args
        return QuestionOrder(
            self.train_dataset if dataset is None else dataset,
            seed=args.seed,
            epoch=lambda: epoch_of(self),
            mini_repeat_count=self.num_generations,
            batch_size=args.generation_batch_size // self.num_generations,
            repeat_count=self.num_iterations * args.steps_per_generation,
        )

    def _prepare_inputs(self, generation_batch: Any) -> dict[str, Any]:
        """As TRL's, which shuffles a step's rows: here those of similar length go through the model together.

        All rows of a step make one update, so that their order changes how much is padding and nothing else.
        """
        args: Any = self.args
        if self._mode == "eval":
            return super()._prepare_inputs(generation_batch)
        if self._step % (args.steps_per_generation * self.num_iterations) == 0 or self._buffered_inputs is None:
            batch: Any = split_pixel_values_by_grid(self._generate_and_score_completions(generation_batch))
            parts: list[Any] = split_tensor_dict(batch, args.steps_per_generation)
            self._buffered_inputs = [unsplit_pixel_values_by_grid(part) for part in parts]
        return self._buffered_inputs[self._step % args.steps_per_generation]

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        started = time.perf_counter()
        trajectories = self._rollout(inputs)
        rolled = time.perf_counter()
        scored = self._score(trajectories)
        judged = time.perf_counter()
        batch = self._batch(trajectories, scored, self._advantages(scored))
        self.trajectories = self._log_step(trajectories, scored)
        for name, seconds in (
            ("rollout", rolled - started),
            ("reward", judged - rolled),
            ("encode", time.perf_counter() - judged),
        ):
            self._metrics[self._mode][f"seconds/{name}"].append(seconds)
        return batch

    @property
    def _mode(self) -> str:
        model: Any = self.model
        return "train" if model.training else "eval"

    @property
    def _world(self) -> World[Any]:
        return self.environment

    @cached_property
    def _actor(self) -> Actor:
        """Who rolls out. Raises ValueError where the weights lie in parts and the model itself should act."""
        settings = self.settings
        if settings.rollouts == "vllm":
            if not (settings.freeze_vision and settings.freeze_projector) and not sees_anew(self.vllm_generation.llm):
                raise ValueError(
                    "this vLLM keeps what it has seen under other weights: freeze the vision tower and its projector, "
                    "or set rollouts: transformers"
                )
            return EngineActor(self.vllm_generation, settings.checkpoint, settings.max_new_tokens, settings.frame)
        if weights_are_sharded(self.accelerator):
            raise ValueError(
                "the weights lie in parts on several cards, and no process has a whole model: set rollouts: vllm"
            )
        model = self.accelerator.unwrap_model(self.model)
        processor, tokens = self.processing_class, settings.max_new_tokens
        cached = settings.prefix_cache_bytes
        return ForwardActor(model, processor, tokens, settings.rollout_batch, settings.frame, cached)

    def _act(self, questions: Sequence[Question], temperature: float, seed: int = 0) -> list[Trajectory]:
        """A trajectory for each question, in order."""
        self._actor.refresh(self.state.global_step)
        policy = self._actor.policy(temperature)
        try:
            with torch.no_grad():
                return rollout(policy, self._world, questions, concurrency=len(questions), seed=seed, progress=False)
        finally:
            self._actor.forget()

    def _rollout(self, inputs: Sequence[dict[str, Any]]) -> list[Trajectory]:
        """A trajectory for each row, in order; which samples a question gets follows from the step and the place."""
        place = self.accelerator.process_index * len(inputs)
        rows = [
            self.questions[row["uid"]].model_copy(update={"uid": f"{row['uid']}#{place + n}"})
            for n, row in enumerate(inputs)
        ]
        played = self._act(rows, self.settings.temperature, self.settings.seed * 1_000_003 + self.state.global_step)
        asked = [self.questions[row["uid"]] for row in inputs]  # whose uid the samples of a group share
        return [one.model_copy(update={"reference": question}) for one, question in zip(played, asked, strict=True)]

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Greedy rollouts of the development questions, shared out over the processes; logged as `eval_...`."""
        share = -(-len(self.dev_questions) // self.accelerator.num_processes)
        mine = self.dev_questions[self.accelerator.process_index * share :][:share]
        model: Any = self.model
        was_training = model.training
        model.eval()
        found = self._act(mine, temperature=0.0)
        self.dev_trajectories = self._log_step(found, self._score(found))
        figures = {f"eval_{name}": sum(values) / len(values) for name, values in self._metrics["eval"].items()}
        self.log({})  # TRL adds the figures, under these names
        model.train(was_training)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, figures)
        return figures

    def _score(self, trajectories: Sequence[Trajectory]) -> list[Scored]:
        """The trajectories' rewards, also written into them."""
        scored = self.reward.score(trajectories)
        for trajectory, one in zip(trajectories, scored, strict=True):
            trajectory.rewards = {**one.parts, **({"total": one.total} if one.total is not None else {})}
        return scored

    def _advantages(self, scored: Sequence[Scored]) -> torch.Tensor:
        """(B,) of this process, worked out over the groups of all processes. Raises RewardError without any reward."""
        own = torch.tensor([float("nan") if one.total is None else one.total for one in scored])
        everyone = self.accelerator.gather(own.to(self.accelerator.device))
        if bool(everyone.isnan().all()):  # a search server or a judge that is down must not pass for training
            why = next((one.error for one in scored if one.error), "no reason is known")
            raise RewardError(
                f"step {self.state.global_step + 1}: none of {len(everyone)} trajectories has a reward ({why}); put "
                "that right and start again, what was learned until the last checkpoint is kept"
            )
        start = self.accelerator.process_index * len(own)
        return group_advantages(everyone, self.settings.group_size)[start : start + len(own)]

    def _batch(
        self, trajectories: Sequence[Trajectory], scored: Sequence[Scored], advantages: torch.Tensor
    ) -> dict[str, Any]:
        """What TRL's loss takes: a row for each segment that is learned from, the shortest first.

        The mean stays that over all segments.
        """
        samples, advantages, weight = self._rows(trajectories, scored, advantages)
        device = self.accelerator.device
        batch = row_tensors(samples, self.encoder, self.accelerator.device)
        batch |= {
            "advantages": advantages.to(device),
            "row_weight": torch.full((len(samples),), weight, device=device),
        }
        learned = (batch["completion_mask"] * batch["tool_mask"]).sum()
        batch["num_items_in_batch"] = self.accelerator.gather(learned).sum()
        return batch | self._reference(batch)

    def _rows(
        self, trajectories: Sequence[Trajectory], scored: Sequence[Scored], advantages: torch.Tensor
    ) -> tuple[list[SampledRow], torch.Tensor, float]:
        """The segments that are learned from, the shortest first, their advantages, and what each counts in the mean.

        The mean is over the segments of trajectories with a reward: one without moves nothing, not by the KL either.
        TRL cuts a step's rows into equal parts, and gathers figures of them that every process must have as many of:
        rows without a learned token fill the first parts.
        """
        rows = [self._samples(one, got) for one, got in zip(trajectories, scored, strict=True)]
        everything = [(sample, place) for place, own in enumerate(rows) for sample in own]
        learned = [
            (sample, place)
            for sample, place in everything
            if scored[place].total is not None and self._moves(sample, float(advantages[place]))
        ]
        samples = [sample for sample, _ in learned]
        advantages = advantages[torch.tensor([place for _, place in learned], dtype=torch.long)]
        unlearned = sum(not any(sample.written) for sample, _ in everything)
        rewarded = sum(scored[place].total is not None for _, place in everything)
        counts = self.accelerator.gather(
            torch.tensor([[len(everything), unlearned, rewarded, len(samples)]], device=self.accelerator.device)
        )
        everyones, unlearned, rewarded, _ = counts.sum(0).tolist()
        metrics = self._metrics[self._mode]
        metrics["unlearned_rate"].append(unlearned / everyones)
        metrics["learned_rows"].append(float(counts[:, -1].sum()))
        if self.settings.algorithm == "ggpo":
            metrics["masked_share"] = gather_object(metrics["masked_share"])
        args: Any = self.args
        parts = args.steps_per_generation
        missing = max(1, -(-int(counts[:, -1].max()) // parts)) * parts - len(samples)
        samples += [nothing(trajectories[0].prompt, self.encoder)] * missing
        if self.settings.meets_in_tower(self.accelerator):
            samples = [with_blank_image(one, self.encoder) for one in samples]
        order = sorted(range(len(samples)), key=lambda row: (len(samples[row].completion), len(samples[row].prompt)))
        advantages = torch.cat([advantages, advantages.new_zeros(missing)])[order]
        return [samples[row] for row in order], advantages, len(samples) * len(counts) / max(1, rewarded)

    def _samples(self, trajectory: Trajectory, scored: Scored) -> list[SampledRow]:
        """The segments of a trajectory; one row without a learned token where none is there or can be encoded."""
        try:
            found = segments(trajectory, self.environment.pages, was_right(trajectory, scored), self.settings.algorithm)
        except (ValueError, KeyError, OSError):
            found = []
        if not found:
            return [nothing(trajectory.prompt, self.encoder)]
        samples = [self._sample(one, trajectory.prompt) for one in found]
        if self.settings.algorithm == "ggpo":
            self._metrics[self._mode]["masked_share"] += [float(one.masked) for one in found]
        return [sample.unlearned() if one.masked else sample for one, sample in zip(found, samples, strict=True)]

    def _sample(self, segment: Segment, prompt: str) -> SampledRow:
        """A segment's row, without a learned token where it does not fit; the others of its trajectory are learned."""
        try:
            return as_sample(segment.conversation, self.encoder, self.settings.max_length, segment.start)
        except (ValueError, OSError):
            return nothing(prompt, self.encoder)

    def _moves(self, sample: SampledRow, advantage: float) -> bool:
        """Whether the row has a gradient. One of a group whose rewards are all the same has that of the KL alone."""
        return any(sample.written) and (self.settings.beta > 0 or abs(advantage) > EPSILON)

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        """TRL's mean over rows, of all processes together and without those that only fill up."""
        metrics = self._metrics[self._mode]
        before = {name: len(values) for name, values in metrics.items()}
        loss = super()._compute_loss(model, inputs) * inputs["row_weight"].mean()
        learned = (inputs["completion_mask"] * inputs["tool_mask"]).sum()
        if not self.accelerator.gather(learned).any():  # TRL has 0 for such a part; its log leaves nan out of the mean
            for name, values in metrics.items():
                start = before.get(name, 0)
                values[start:] = [float("nan")] * (len(values) - start)
        return loss

    def _reference(self, batch: dict[str, Any]) -> dict[str, torch.Tensor]:
        """Log-probabilities under the starting model and, where a step is used again, under the sampling one."""
        found: dict[str, torch.Tensor] = {}
        with torch.no_grad():
            if self.settings.iterations > 1:
                found["old_per_token_logps"] = self._all_logps(self.model, batch)
            if self.beta and self.ref_model is not None:
                found["ref_per_token_logps"] = self._all_logps(self.ref_model, batch)
            elif self.beta:  # with an adapter, the starting model is the one without it
                with self.accelerator.unwrap_model(self.model).disable_adapter():
                    found["ref_per_token_logps"] = self._all_logps(self.model, batch)
        return found

    def _all_logps(self, model: Any, batch: dict[str, Any]) -> torch.Tensor:
        """(B, completion) log-probabilities of the completions, `micro_batch` rows at a time."""
        parts = []
        for rows in micro_batches(batch, self.settings.micro_batch):
            logps, _, _ = self._get_per_token_logps_and_entropies(
                model,
                torch.cat([rows["prompt_ids"], rows["completion_ids"]], 1),
                torch.cat([rows["prompt_mask"], rows["completion_mask"]], 1),
                rows["completion_ids"].shape[1],
                **{
                    name: rows.get(name)
                    for name in ("pixel_values", "image_grid_thw", "num_images", "mm_token_type_ids")
                },
            )
            parts.append(logps)
        return torch.cat(parts)

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor, logits_to_keep: int, **kwargs: Any
    ) -> Any:
        """As TRL's, without the columns that are padding in all of these rows, which the rest of the step asks for.

        Rows none of which has an image go without pixels rather than with no rows of them.
        """
        pixels = kwargs.get("pixel_values")
        if pixels is not None and not len(pixels):
            kwargs |= {"pixel_values": None, "image_grid_thw": None, "num_images": None}
        first, end = used_columns(attention_mask)
        if kwargs.get("mm_token_type_ids") is not None:
            kwargs["mm_token_type_ids"] = kwargs["mm_token_type_ids"][:, first:end]
        unused = input_ids.shape[1] - end
        logps, entropies, aux_loss = super()._get_per_token_logps_and_entropies(
            model, input_ids[:, first:end], attention_mask[:, first:end], logits_to_keep - unused, **kwargs
        )
        widened = [None if one is None else torch.nn.functional.pad(one, (0, unused)) for one in (logps, entropies)]
        return *widened, aux_loss

    def _log_step(self, trajectories: Sequence[Trajectory], scored: Sequence[Scored]) -> list[Trajectory]:
        """Log the figures of a step; the trajectories of all processes, which may have had different numbers of them.

        One process's mean of means would be another figure than the mean.
        """
        pairs = gather_object(list(zip(trajectories, scored, strict=True)))
        everyone = [trajectory for trajectory, _ in pairs]
        for name, value in step_figures(everyone, [one for _, one in pairs], list(self.reward.parts)).items():
            self._metrics[self._mode][name].append(value)
        return everyone


def was_right(trajectory: Trajectory, scored: Scored) -> bool:
    """Whether the answer was right, for GGPO: by the judge where the reward has one, else by rule."""
    if trajectory.reference is None:
        return False
    return scored.parts.get("judge", outcome(trajectory)) > 0.5


def _unused(**kwargs: Any) -> list[float | None]:
    raise AssertionError("rewards are worked out in _generate_and_score_completions")


def grpo_trainer(
    settings: GRPOSettings,
    questions: Sequence[Question],
    environment: Environment | MemoryEnvironment,
    reward: Reward,
    dev_questions: Sequence[Question] = (),
    callbacks: Sequence[TrainerCallback] = (),
) -> MultiTurnGRPOTrainer:
    """A trainer, ready to run; with `dev_questions` it validates as it goes.

    Raises ValueError where a step's trajectories do not come out even, there are fewer questions than a step takes, or
    GGPO is asked for without a memory graph, ImportError for rollouts by a vLLM that is not installed, and what
    `ModelSettings.load` raises.
    """
    if settings.rollouts == "vllm":
        import_vllm()
    (twice, times), *_ = Counter(question.uid for question in questions).most_common(1) or [("", 0)]
    if times > 1:
        raise ValueError(f"two questions have the uid {twice!r}: only one of them would be asked, so make uids unique")
    if settings.algorithm == "ggpo" and not isinstance(environment, MemoryEnvironment):
        raise ValueError("algorithm ggpo needs VimRAG's memory graph: choose its agent, or algorithm grpo or gspo")
    trajectories = settings.questions_per_step * settings.group_size
    if trajectories % settings.micro_batch:
        raise ValueError(
            f"{settings.questions_per_step} questions x {settings.group_size} make {trajectories} trajectories, "
            f"which is no multiple of micro_batch {settings.micro_batch}"
        )
    processes = process_group().num_processes
    if len(questions) < settings.questions_per_step * processes:  # TRL would train no step at all, and not say so
        raise ValueError(
            f"a step takes {settings.questions_per_step * processes} questions (questions_per_step "
            f"{settings.questions_per_step}, {processes} processes), and there are {len(questions)}: lower "
            "questions_per_step, or give more"
        )
    processor = AutoProcessor.from_pretrained(settings.checkpoint)
    args = trl_arguments(settings, trajectories, bool(dev_questions))  # first: with ZeRO-3 weights are loaded in parts
    rows = [{"prompt": [{"role": "user", "content": one.query}], "uid": one.uid} for one in questions]
    return MultiTurnGRPOTrainer(
        model=settings.load(),
        args=args,
        train_dataset=Dataset.from_list(rows),
        eval_dataset=Dataset.from_list(rows[:1]) if dev_questions else None,  # asked for by transformers, not used
        peft_config=settings.adapter(),
        processing_class=processor,
        callbacks=[CurveLog(Path(settings.out) / "log.jsonl"), *callbacks],
        environment=environment,
        reward=reward,
        questions=questions,
        dev_questions=dev_questions,
        settings=settings,
    )
