"""A policy on a transformers checkpoint: batched, on a CPU or a GPU, token-exact.

Works for checkpoints with the Qwen-VL chat format (Qwen2.5-VL and its nano sibling; Qwen3-VL with
`frame="normalised-1000"`). What it takes care of:

- prompts are concatenated from ids (`agent.encoding`), images go in at the size they are shown, rows are padded left;
- a turn ends at the first closing action tag, checked on the decoded tail only when a token that holds `>` came;
- vision tokens, and rows of the embedding that belong to no token, are never sampled: a model that writes an image
  placeholder would break the prompt of its next turn;
- log-probabilities are those of the model itself (temperature 1, nothing suppressed), which is what training compares;
- with `views`, a turn that says what it reads is written again, by the mean over several views of what it was shown
  (`agent.views`);
- a sample does not depend on what else is in the batch (`agent.picking`).
"""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import (
    AutoModelForImageTextToText,
    AutoProcessor,
    GenerationConfig,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteria,
    StoppingCriteriaList,
)

from vrag_nb.agent import actions
from vrag_nb.agent.decoding import DEFAULT_PREFIX_BYTES, Decoder, to_read
from vrag_nb.agent.drafting import DEFAULT_GUESSES, Drafter
from vrag_nb.agent.encoding import VISION_TOKENS, ChatEncoder, Encoded
from vrag_nb.agent.picking import PickedTokens, Picker
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
from vrag_nb.agent.views import VIEWS, as_views, says_what_it_reads
from vrag_nb.agent.vision_cache import DEFAULT_CACHE_BYTES, VisionCache, cacheable
from vrag_nb.attention import suit_cpu
from vrag_nb.denormals import flushed_denormals

_Written = tuple[list[int], list[float]]  # new ids, their log-probabilities
_TAIL = 24  # tokens: more than the longest closing tag takes, byte by byte
_MAY_CLOSE = re.compile("[>\uff1e\u3009\ufffd]")


class TransformersPolicy(Policy):
    """Runs a checkpoint folder, or a model already in memory (with its processor), as a policy.

    device: "cpu", "cuda", ...; by default the GPU when there is one. dtype: by default bfloat16 on a GPU, else float32.
    temperature 0 decodes greedily. batch_size: conversations per call of the model. threads: CPU threads; set it on a
    busy machine. max_prompt_tokens: longer prompts fail with an error of their own. seed: used when `generate` gets
    none. vision_cache_bytes, prefix_cache_bytes: memory for image features, and for keys and values, that later turns
    use again; by default 256 and 512 MiB for a folder and none for a model in memory, whose weights may change (give
    them, and call `forget` after each change). loop: who decodes, `agent.decoding` ("own", the default where it knows
    the family) or transformers ("generate"). views: answers, and what is written down into a memory, are read off so
    many views of the images shown last (`agent.views`), by the mean of their distributions, whose log-probabilities
    are then recorded; 1 for training. guesses: tokens that the own loop reads at once where it can guess them
    (`agent.drafting`); what is written is the same.
    Raises ValueError for a model without its processor or a number of views that is not there, and what
    `from_pretrained` raises for a bad folder.
    """

    batched = True

    def __init__(
        self,
        model: str | Path | PreTrainedModel,
        processor: Any = None,
        *,
        device: str | None = None,
        dtype: str | torch.dtype | None = None,
        max_new_tokens: int = 512,
        temperature: float = 0.0,
        top_p: float = 1.0,
        batch_size: int = 8,
        threads: int | None = None,
        max_prompt_tokens: int | None = None,
        frame: Frame = "absolute",
        seed: int = 0,
        vision_cache_bytes: int | None = None,
        prefix_cache_bytes: int | None = None,
        loop: Literal["own", "generate"] | None = None,
        views: int = 1,
        guesses: int = DEFAULT_GUESSES,
    ) -> None:
        if not 1 <= views <= len(VIEWS):
            raise ValueError(f"views is {views}: a number from 1 to {len(VIEWS)}")
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}: at least 1")
        check_sampling(temperature, top_p, max_new_tokens)
        check_frame(frame)
        if threads is not None:
            torch.set_num_threads(threads)
        in_memory = isinstance(model, PreTrainedModel)
        if isinstance(model, PreTrainedModel):
            if processor is None:
                raise ValueError("a model in memory needs its processor: TransformersPolicy(model, processor)")
            self.model: Any = model
            self.name = Path(getattr(model, "name_or_path", "")).name or type(model).__name__
        else:
            self.model = _load(model, device, dtype)
            self.name = Path(model).name
            processor = processor or AutoProcessor.from_pretrained(model)
        self.encoder = ChatEncoder(processor)
        self.tokenizer = processor.tokenizer
        self.end_ids = self._end_ids()
        self.suppressed_ids = self._suppressed_ids()
        self.max_new_tokens, self.temperature, self.top_p = max_new_tokens, temperature, top_p
        self.batch_size, self.max_prompt_tokens, self.frame = batch_size, max_prompt_tokens, frame
        self.seed, self._calls, self.views = seed, 0, views
        self._decoder = None
        if loop == "own" or (loop is None and cacheable(self.model)):
            vision_bytes = _default(vision_cache_bytes, 0 if in_memory else DEFAULT_CACHE_BYTES)
            vision = VisionCache(self.model, self.encoder, vision_bytes)
            prefix_bytes = _default(prefix_cache_bytes, 0 if in_memory else DEFAULT_PREFIX_BYTES)
            drafter = Drafter(guesses, self.suppressed_ids)
            self._decoder = Decoder(self.model, self.encoder, vision, drafter, prefix_bytes)
        self._lock = threading.Lock()  # the model keeps the offsets of its positions between steps
        self._grammar = actions.BUILT_IN  # of the conversations in work, under the lock
        self._closers = _closing_candidates(self.tokenizer)

    def generate(self, conversations: Sequence[Conversation], seeds: Sequence[int] | None = None) -> list[Generation]:
        """See `Policy.generate`. Conversations are run in batches of one grammar and similar length."""
        with self._lock, flushed_denormals():
            seeds = list(seeds) if seeds is not None else self._own_seeds(len(conversations))
            results: dict[int, Generation] = {}
            groups: dict[actions.Grammar, list[tuple[int, Encoded]]] = {}
            for index, conversation in enumerate(conversations):
                try:
                    encoded = self._encode(conversation)
                    groups.setdefault(grammar_of(conversation), []).append((index, encoded))
                except (ValueError, OSError) as error:
                    results[index] = Generation.failed(str(error))
            for self._grammar, ready in groups.items():
                ready.sort(key=lambda item: to_read(item[1]) if self._decoder else len(item[1].input_ids))
                for start in range(0, len(ready), self.batch_size):
                    indices, batch = zip(*ready[start : start + self.batch_size], strict=True)
                    generations = self._run(batch, [seeds[index] for index in indices])
                    results |= dict(zip(indices, generations, strict=True))
            for index, generation in results.items():
                generation.text = boxes_to_shown(generation.text, conversations[index], self.frame)
            return [results[index] for index in range(len(conversations))]

    @property
    def identity(self) -> dict[str, Any]:
        """Sampling, limits, frame, views, and the checksum of the weights where they lie in a folder."""
        names = ("name", "temperature", "top_p", "max_new_tokens", "max_prompt_tokens", "frame")
        views = {"views": self.views} if self.views > 1 else {}  # one: as before there was such an option
        weights = weights_identity(getattr(self.model, "name_or_path", "") or "")
        return {name: getattr(self, name) for name in names} | views | weights

    def forget(self) -> None:
        """Drop what is kept between turns: the model's weights have changed."""
        if self._decoder is not None:
            self._decoder.forget()

    def close(self) -> None:
        """Drop the model."""
        self.model = self._decoder = None

    def _encode(self, conversation: Conversation) -> Encoded:
        encoded = self.encoder.encode(in_frame(conversation, self.frame))
        if self.max_prompt_tokens is not None and len(encoded.input_ids) > self.max_prompt_tokens:
            raise ValueError(f"the prompt has {len(encoded.input_ids)} tokens, the limit is {self.max_prompt_tokens}")
        encoded.pixels()
        return encoded

    @torch.inference_mode()
    def _run(self, batch: Sequence[Encoded], seeds: Sequence[int]) -> list[Generation]:
        training = self.model.training
        self.model.eval()
        try:
            written = self._write(batch, seeds)
            if self.views > 1:
                written = self._reread(batch, written, seeds)
        finally:
            self.model.train(training)
        return [self._generation(*row, len(encoded.input_ids)) for row, encoded in zip(written, batch, strict=True)]

    def _write(self, batch: Sequence[Encoded], seeds: Sequence[int], views: int = 1) -> list[_Written]:
        """New ids and their log-probabilities; with `views`, each so many rows go by their mixture."""
        picker = self._picker(seeds, views)
        if self._decoder is None:
            return self._generate(batch, picker)
        return self._decoder.run(batch, picker, self._ends, self.max_new_tokens, keep=views == 1, together=views)

    def _reread(self, batch: Sequence[Encoded], written: Sequence[_Written], seeds: Sequence[int]) -> list[_Written]:
        """Turns that say what they read once more, off several views of the images shown last, before notices or not.

        The whole turn, for the thought before an answer often says it already. One that reads no longer is dropped.
        """
        found, count = list(written), self.views
        newest = [self.encoder.newest_images(one) for one in batch]
        rows = [row for row in range(len(batch)) if newest[row] and self._reads(written[row][0])]
        step = max(1, self.batch_size // count)
        for chunk in (rows[place : place + step] for place in range(0, len(rows), step)):
            seen = [one for row in chunk for one in as_views(batch[row], newest[row], count, self.encoder)]
            again = self._write(seen, [seeds[row] for row in chunk for _ in range(count)], count)
            for row, new in zip(chunk, again[::count], strict=True):
                found[row] = new if self._reads(new[0]) else found[row]
        return found

    def _reads(self, ids: list[int]) -> bool:
        return says_what_it_reads(self.decode(ids[: self._length(ids)[0]]))

    def _generate(self, batch: Sequence[Encoded], picker: Picker) -> list[_Written]:
        """New ids and their log-probabilities by transformers' own loop; those after a row's end mean nothing."""
        tensors = self.encoder.collate(batch)
        tensors.pop("model_mask")
        inputs: dict[str, Any] = {name: tensor.to(self.model.device) for name, tensor in tensors.items()}
        prompt_length = inputs["input_ids"].shape[1]
        picked = PickedTokens(picker)
        sequences = self.model.generate(
            **inputs,
            generation_config=self._generation_config(),
            logits_processor=LogitsProcessorList([picked]),
            stopping_criteria=StoppingCriteriaList([_ClosingTag(self, prompt_length)]),
        )
        new = sequences[:, prompt_length:].tolist()
        return list(zip(new, map(list, zip(*picked.logprobs, strict=True)), strict=True))

    def _ends(self, ids: list[int]) -> bool:
        """Whether the last of the new `ids` ends the turn."""
        return ids[-1] in self.end_ids or self.closes_action(ids)

    def _generation(self, ids: list[int], logprobs: list[float], prompt_tokens: int) -> Generation:
        count, reason = self._length(ids)
        kept = ids[:count]
        text = self.decode(kept[:-1] if reason == "stop" else kept)
        end = actions.end_of_action(text, self._grammar)
        return Generation(text[:end], kept, logprobs[:count], reason, prompt_tokens)

    def _length(self, ids: list[int]) -> tuple[int, Literal["action", "stop", "length"]]:
        for position, token_id in enumerate(ids):
            if token_id in self.end_ids:
                return position + 1, "stop"
            if self.closes_action(ids[: position + 1]):
                return position + 1, "action"
        return len(ids), "length"

    def closes_action(self, ids: Sequence[int]) -> bool:
        """Whether the last of the generated `ids` completed a closing action tag."""
        if not ids or ids[-1] not in self._closers:
            return False
        return actions.end_of_action(self.decode(ids[-_TAIL:]), self._grammar) is not None

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, exactly: special tokens kept, spaces not tidied."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def _picker(self, seeds: Sequence[int], views: int) -> Picker:
        sampling = {"temperature": self.temperature, "top_p": self.top_p}
        return Picker(seeds, self.suppressed_ids, self.model.device, views=views, **sampling)

    def _generation_config(self) -> GenerationConfig:
        # Every field a checkpoint's own generation_config may set is stated: unset ones would be filled in from it.
        return GenerationConfig(
            do_sample=False,
            max_new_tokens=self.max_new_tokens,
            eos_token_id=sorted(self.end_ids),
            pad_token_id=self.encoder.pad_id,
            repetition_penalty=1.0,
            temperature=1.0,
            top_p=1.0,
            top_k=50,
            num_beams=1,
            use_cache=True,
        )

    def _own_seeds(self, count: int) -> list[int]:
        first, self._calls = self._calls, self._calls + count
        return [self.seed * 1_000_003 + first + offset for offset in range(count)]

    def _end_ids(self) -> set[int]:
        config = getattr(self.model, "generation_config", None)
        declared = getattr(config, "eos_token_id", None)
        ids = declared if isinstance(declared, list) else [declared]
        return {int(token_id) for token_id in ids if token_id is not None} | {self.encoder.im_end}

    def _suppressed_ids(self) -> list[int]:
        vision = self.tokenizer.convert_tokens_to_ids(list(VISION_TOKENS))
        known = {i for i in [*self.tokenizer.all_special_ids, *vision, self.encoder.im_start] if i is not None}
        rows = self.model.get_output_embeddings().weight.shape[0]
        return sorted((known | set(range(len(self.tokenizer), rows))) - self.end_ids)


def _default(value: int | None, otherwise: int) -> int:
    return otherwise if value is None else value


def _load(folder: str | Path, device: str | None, dtype: str | torch.dtype | None) -> PreTrainedModel:
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    dtype = dtype or ("bfloat16" if device.startswith("cuda") else "float32")
    model: Any = AutoModelForImageTextToText.from_pretrained(folder, dtype=dtype)
    model = model.to(device).eval()
    suit_cpu(model)
    return model


def _closing_candidates(tokenizer: Any) -> set[int]:
    """Ids whose text could complete a closing tag: those holding a `>` or a piece of a multi-byte character."""
    texts = tokenizer.batch_decode([[token_id] for token_id in range(len(tokenizer))])
    return {token_id for token_id, text in enumerate(texts) if _MAY_CLOSE.search(text)}


class _ClosingTag(StoppingCriteria):
    """Ends a row at its first closing action tag. Only newly generated tokens are read, never the prompt."""

    def __init__(self, policy: TransformersPolicy, prompt_length: int) -> None:
        self.policy, self.prompt_length = policy, prompt_length

    def __call__(self, input_ids: torch.LongTensor, scores: Any, **kwargs: Any) -> torch.BoolTensor:
        tail = input_ids[:, max(self.prompt_length, input_ids.shape[1] - _TAIL) :].tolist()
        closed = [self.policy.closes_action(ids) for ids in tail]
        return torch.tensor(closed, device=input_ids.device, dtype=torch.bool)  # type: ignore[return-value]
