"""A policy on vLLM in this process: for GPUs, with the same token-exact prompts as `transformers_policy`.

vLLM takes the prompt as ids with one `<|image_pad|>` per image and expands them itself. Images arrive at the size they
are shown, inside the checkpoint's own pixel limits and `max_pixels`, so vLLM's processor leaves their size alone; the
expansion is checked against it, because a box in the wrong frame is an error nobody would see.

vLLM is an optional dependency (`pip install vrag-nb[gpu]`) and imported when the policy is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from transformers import AutoProcessor

from vrag_nb.agent import actions
from vrag_nb.agent.encoding import VISION_TOKENS, ChatEncoder, Encoded
from vrag_nb.agent.policy import (
    Conversation,
    Frame,
    Generation,
    Policy,
    boxes_to_shown,
    check_frame,
    check_sampling,
    grammar_of,
    in_frame,
    weights_identity,
)

RAW = "raw_logprobs"  # vLLM's `logprobs_mode` that gives what `Generation.logprobs` promises


class VLLMPolicy(Policy):
    """Runs a checkpoint folder in `vllm.LLM`.

    max_images: images one conversation may hold. max_pixels: of one image at most, as the agent's `max_pixels` or more:
    vLLM reserves memory for the largest, by default what the checkpoint allows. engine_options: passed to `vllm.LLM`
    (tensor_parallel_size, gpu_memory_utilization, max_model_len, ...). engine: a `vllm.LLM` that is there already, with
    its own weights and options; the folder then gives the processor alone.

    Log-probabilities are the model's at temperature 1, before any truncation and with nothing banned, as an engine made
    here tells them (`logprobs_mode="raw_logprobs"`). An engine in another mode, as TRL's with "processed_logprobs", or
    of unknown mode is asked for none, and generations have none.

    Raises ImportError that says what to install when vLLM is missing, ValueError for options of an engine that is
    there.
    """

    batched = True

    def __init__(
        self,
        model: str | Path,
        *,
        max_new_tokens: int = 1024,
        temperature: float = 0.0,
        top_p: float = 1.0,
        max_images: int = 16,
        max_pixels: int | None = None,
        frame: Frame = "absolute",
        seed: int = 0,
        engine: Any = None,
        **engine_options: Any,
    ) -> None:
        check_sampling(temperature, top_p, max_new_tokens)
        check_frame(frame)
        vllm = import_vllm()
        given = [*engine_options, *(["max_pixels"] if max_pixels is not None else [])]
        if engine is not None and given:
            raise ValueError(f"the engine is there already: {', '.join(given)} cannot be set any more")
        self.name, self.folder = Path(model).name, Path(model)
        self.encoder = ChatEncoder(AutoProcessor.from_pretrained(model))
        self.max_new_tokens, self.temperature, self.top_p, self.frame = max_new_tokens, temperature, top_p, frame
        self.max_images = max_images if engine is None else None
        self._sampling_params = vllm.SamplingParams
        options = {**_engine_options(max_images, max_pixels), **engine_options}
        self._llm = engine or vllm.LLM(model=str(model), seed=seed, **options)
        mode = options["logprobs_mode"] if engine is None else getattr(_config(engine), "logprobs_mode", None)
        self._weighs = mode == RAW

    def generate(self, conversations: Sequence[Conversation], seeds: Sequence[int] | None = None) -> list[Generation]:
        """See `Policy.generate`. vLLM batches by itself."""
        wanted: Sequence[int | None] = list(seeds) if seeds is not None else [None] * len(conversations)
        results: dict[int, Generation] = {}
        prompts, params, encoded = [], [], {}
        for index, conversation in enumerate(conversations):
            try:
                encoded[index] = self.encoder.encode(in_frame(conversation, self.frame), collapse_images=True)
                self._check(encoded[index])
                prompts.append(_prompt(encoded[index]))
                params.append(self._params(wanted[index], grammar_of(conversation).stops))
            except (ValueError, OSError) as error:
                encoded.pop(index, None)
                results[index] = Generation.failed(str(error))
        outputs = self._llm.generate(prompts, params, use_tqdm=False) if prompts else []
        for index, output in zip(encoded, outputs, strict=True):
            results[index] = self._read(output, encoded[index], conversations[index])
        return [results[index] for index in range(len(conversations))]

    @property
    def identity(self) -> dict[str, Any]:
        """Sampling, limit and frame, and the checksum of the weights where they lie in a folder."""
        names = ("name", "temperature", "top_p", "max_new_tokens", "frame")
        return {name: getattr(self, name) for name in names} | weights_identity(self.folder)

    def _check(self, encoded: Encoded) -> None:
        """Raises ValueError for a prompt that the engine would refuse, and all others of the call with it."""
        if self.max_images is not None and len(encoded.images) > self.max_images:
            raise ValueError(f"the conversation has {len(encoded.images)} images, and max_images is {self.max_images}")
        limit = getattr(_config(self._llm), "max_model_len", None)
        length = len(encoded.input_ids) + sum(self.encoder.image_tokens(image) - 1 for image in encoded.images)
        if limit is not None and length >= limit:
            raise ValueError(f"the conversation has {length} tokens, and the engine's max_model_len is {limit}")

    def close(self) -> None:
        """Drop the engine, which frees its memory."""
        self._llm = None

    def _params(self, seed: int | None, stops: Sequence[str]) -> Any:
        tokenizer = self.encoder.tokenizer
        never = [token for token in VISION_TOKENS if tokenizer.convert_tokens_to_ids(token) is not None]
        banned = {int(tokenizer.convert_tokens_to_ids(token)): -100.0 for token in never}
        return self._sampling_params(
            max_tokens=self.max_new_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            repetition_penalty=1.0,
            seed=None if seed is None or self.temperature == 0 else seed % 2**31,
            stop=list(stops),
            include_stop_str_in_output=True,
            stop_token_ids=[self.encoder.im_end],
            skip_special_tokens=False,
            logprobs=0 if self._weighs else None,
            logit_bias=banned,
        )

    def _read(self, output: Any, encoded: Encoded, conversation: Conversation) -> Generation:
        expected = sum(self.encoder.image_tokens(image) for image in encoded.images)
        found = sum(token == self.encoder.image_pad for token in output.prompt_token_ids)
        if found != expected:
            return Generation.failed(
                f"vLLM made {found} image tokens where {expected} are shown: the environment's pixel budget lies "
                "outside the checkpoint's own min_pixels and max_pixels, or above the policy's max_pixels"
            )
        completion = output.outputs[0]
        ids = [int(token) for token in completion.token_ids]
        steps = (completion.logprobs or []) if self._weighs else []
        logprobs = [float(step[token].logprob) for step, token in zip(steps, ids, strict=False)]
        text = completion.text.removesuffix("<|im_end|>")
        end = actions.end_of_action(text, grammar_of(conversation))
        reason: Literal["action", "stop", "length"] = "length" if completion.finish_reason == "length" else "stop"
        return Generation(
            text=boxes_to_shown(text[:end], conversation, self.frame),
            token_ids=ids,
            logprobs=logprobs,
            finish_reason="action" if end is not None else reason,
            prompt_tokens=len(output.prompt_token_ids),
        )


def _engine_options(max_images: int, max_pixels: int | None) -> dict[str, Any]:
    """What `vllm.LLM` is given unless somebody says otherwise."""
    options: dict[str, Any] = {
        "limit_mm_per_prompt": {"image": max_images, "video": 0},
        "logprobs_mode": RAW,
    }
    return options | ({} if max_pixels is None else {"mm_processor_kwargs": {"max_pixels": max_pixels}})


def _config(engine: Any) -> Any:
    """The `ModelConfig` of a `vllm.LLM`; None where there is none to be found."""
    return getattr(getattr(engine, "llm_engine", None), "model_config", None)


def _prompt(encoded: Encoded) -> dict[str, Any]:
    prompt: dict[str, Any] = {"prompt_token_ids": encoded.input_ids}
    if encoded.images:
        prompt["multi_modal_data"] = {"image": encoded.pixels()}
    return prompt


def import_vllm() -> Any:
    """The module. Raises ImportError that says what to install."""
    try:
        import vllm
    except ImportError as error:
        raise ImportError(
            "this needs vLLM, which is not installed: pip install 'vrag-nb[gpu]' on a machine with a GPU, "
            "or use transformers"
        ) from error
    return vllm
