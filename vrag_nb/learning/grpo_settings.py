"""The settings of a GRPO run, checked, and what they mean to TRL's trainer."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator
from trl import GRPOConfig

from vrag_nb.agent.decoding import DEFAULT_PREFIX_BYTES
from vrag_nb.learning.segments import Algorithm
from vrag_nb.learning.trainers import ModelSettings, trainer_arguments


class GRPOSettings(ModelSettings):
    """One run. Defaults follow the paper (table 5) where it states them.

    questions_per_step x group_size trajectories of each process make a step; `micro_batch` of them go through the model
    at once: eight processes of four questions learn what one of thirty-two does. warmup: a share of the steps, or from
    1 on so many of them, after which a run can be given more steps and goes on (`extendable`). beta: weight of the KL
    to the starting model. max_length: tokens of one trajectory, images included. iterations: how many steps use the
    same trajectories; save_steps and steps are multiples of it. validate_every: steps between greedy rollouts of the
    development questions. algorithm: grpo, gspo or ggpo; the last wants VimRAG's trajectories. rollouts: who acts
    (`learning.actors`), the model in training itself or a vLLM engine on the same card, which may take the share
    `vllm_memory` of its memory; weights that lie in parts on several cards want the latter, and weights of 4 bits
    cannot be given to it. prefix_cache_bytes: memory in which the former keeps what it has read of trajectories from
    one turn to the next; a token of Qwen2.5-VL-3B takes 36 KiB.
    """

    out: str
    algorithm: Algorithm = "grpo"
    steps: int = Field(default=62, ge=1)
    group_size: int = Field(default=5, ge=2)
    questions_per_step: int = Field(default=32, ge=1)
    micro_batch: int = Field(default=5, ge=1)
    iterations: int = Field(default=1, ge=1)
    learning_rate: float = Field(default=1e-6, gt=0)
    warmup: float = Field(default=0.0, ge=0)
    beta: float = Field(default=0.01, ge=0)
    clip: float = Field(default=0.2, gt=0)
    temperature: float = Field(default=1.0, gt=0)
    max_new_tokens: int = Field(default=512, ge=1)
    max_length: int = Field(default=10_240, ge=1)
    rollout_batch: int = Field(default=16, ge=1)
    rollouts: Literal["transformers", "vllm"] = "transformers"
    vllm_memory: float = Field(default=0.3, gt=0, le=1)
    prefix_cache_bytes: int = Field(default=DEFAULT_PREFIX_BYTES, ge=0)
    validate_every: int = Field(default=10, ge=1)
    save_steps: int = Field(default=25, ge=1)
    report_to: list[str] = Field(default_factory=list)
    seed: int = 0

    @model_validator(mode="after")
    def _saves_between_rollouts(self) -> GRPOSettings:
        """A run that goes on rolls out at once, so it must not have been saved while trajectories were still in use."""
        for name, count in (("save_steps", self.save_steps), ("steps", self.steps)):
            if count % self.iterations:
                raise ValueError(f"{name} {count} is no multiple of iterations {self.iterations}: make it one")
        return self

    @model_validator(mode="after")
    def _engine_takes_the_weights(self) -> GRPOSettings:
        if self.quantise and self.rollouts == "vllm":
            raise ValueError(
                "rollouts: vllm cannot be given weights of 4 bits: set quantise: false, or rollouts: transformers"
            )
        return self

    @property
    def extendable(self) -> bool:
        """Whether a run of more steps begins as this one does: its warm-up is none, or counted in steps."""
        return self.warmup == 0 or self.warmup >= 1


def trl_arguments(settings: GRPOSettings, trajectories: int, validate: bool) -> GRPOConfig:
    """What TRL is told: a step of so many trajectories of this process, and whether development questions are asked."""
    return GRPOConfig(
        max_steps=settings.steps,
        num_generations=settings.group_size,
        per_device_train_batch_size=settings.micro_batch,
        gradient_accumulation_steps=trajectories // settings.micro_batch,
        per_device_eval_batch_size=settings.group_size,  # TRL wants whole groups, though validation samples none
        num_iterations=settings.iterations,
        learning_rate=settings.learning_rate,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=settings.warmup,
        beta=settings.beta,
        epsilon=settings.clip,
        use_bias_correction_kl=False,  # the plain estimator of the paper (verl: low_var_kl); TRL's default is another
        loss_type="grpo",
        importance_sampling_level="token" if settings.algorithm == "grpo" else "sequence",
        temperature=settings.temperature,
        max_completion_length=settings.max_length,
        max_grad_norm=1.0,
        eval_strategy="steps" if validate else "no",
        eval_steps=settings.validate_every,
        eval_on_start=validate,
        use_vllm=settings.rollouts == "vllm",
        vllm_mode="colocate",
        vllm_gpu_memory_utilization=settings.vllm_memory,
        vllm_max_model_length=2 * settings.max_length,  # what is longer is played, scored, and learned in part
        vllm_importance_sampling_correction=False,  # log-probabilities are recomputed, not taken from the engine
        **trainer_arguments(settings),
    )
