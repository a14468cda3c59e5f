"""The model in training as the policy that rolls out: by its own forward pass, or by a vLLM engine beside it.

- `ForwardActor`: the decode loop of `agent.decoding` on the weights that are being trained. Any machine; the weights
  must lie whole in this process.
- `EngineActor`: TRL's colocated vLLM engine, one a process, on the same card. Before the rollouts of a step it is given
  the weights, gathered where they lie in parts (DeepSpeed ZeRO-3, FSDP) and with a low-rank update merged in.

Both give token ids; the log-probabilities that an update weighs are recomputed in training either way. Those of TRL's
engine, taken after temperature and bans, are not recorded.
"""

from __future__ import annotations

from typing import Any, Protocol

from peft import PeftModel

from vrag_nb.agent.decoding import DEFAULT_PREFIX_BYTES
from vrag_nb.agent.policy import Frame, Policy
from vrag_nb.agent.transformers_policy import TransformersPolicy
from vrag_nb.agent.vision_cache import DEFAULT_CACHE_BYTES
from vrag_nb.agent.vllm_policy import VLLMPolicy


class Actor(Protocol):
    """Who acts for the model in training."""

    def policy(self, temperature: float) -> Policy:
        """The policy that samples at this temperature; 0 is greedy."""

    def refresh(self, step: int) -> None:
        """Called by every process before rollouts: the weights are those of optimisation step `step`."""

    def forget(self) -> None:
        """Called after rollouts: the weights are about to change."""


class ForwardActor:
    """Rolls out with `model` itself (unwrapped; a low-rank update's layers stay in)."""

    def __init__(
        self,
        model: Any,
        processor: Any,
        max_new_tokens: int,
        batch_size: int,
        frame: Frame = "absolute",
        prefix_cache_bytes: int = DEFAULT_PREFIX_BYTES,
    ) -> None:
        self.model: Any = model.get_base_model() if isinstance(model, PeftModel) else model
        self.processor, self.max_new_tokens, self.batch_size = processor, max_new_tokens, batch_size
        self.frame: Frame = frame
        self.prefix_cache_bytes = prefix_cache_bytes
        self._policies: dict[float, TransformersPolicy] = {}

    def policy(self, temperature: float) -> Policy:
        if temperature not in self._policies:
            self._policies[temperature] = TransformersPolicy(
                self.model,
                self.processor,
                temperature=temperature,
                max_new_tokens=self.max_new_tokens,
                batch_size=self.batch_size,
                frame=self.frame,
                vision_cache_bytes=DEFAULT_CACHE_BYTES,
                prefix_cache_bytes=self.prefix_cache_bytes,
            )
        return self._policies[temperature]

    def refresh(self, step: int) -> None:
        """Nothing: it acts with the weights themselves."""

    def forget(self) -> None:
        for policy in self._policies.values():
            policy.forget()


def sees_anew(engine: Any) -> bool:
    """Whether a vLLM engine can forget what its tower made of images; `sync_weights` makes it forget prefixes alone."""
    return hasattr(getattr(engine, "llm_engine", None), "reset_encoder_cache")


class EngineActor:
    """Rolls out with the engine of `generation`, a TRL `VLLMGeneration` in colocate mode."""

    def __init__(self, generation: Any, checkpoint: str, max_new_tokens: int, frame: Frame = "absolute") -> None:
        self.generation, self.checkpoint, self.max_new_tokens = generation, checkpoint, max_new_tokens
        self.frame: Frame = frame
        self._loaded: int | None = None
        self._policies: dict[float, VLLMPolicy] = {}

    def policy(self, temperature: float) -> Policy:
        if temperature not in self._policies:
            self._policies[temperature] = VLLMPolicy(
                self.checkpoint,
                engine=self.generation.llm,
                temperature=temperature,
                max_new_tokens=self.max_new_tokens,
                frame=self.frame,
            )
        return self._policies[temperature]

    def refresh(self, step: int) -> None:
        """Give the engine the weights, once a step; all processes take part, since gathering them is collective."""
        if self._loaded != step:
            self.generation.sync_weights()
            if sees_anew(self.generation.llm):
                self.generation.llm.llm_engine.reset_encoder_cache()
            self._loaded = step

    def forget(self) -> None:
        """Nothing: `refresh` drops what the engine kept of other weights."""
