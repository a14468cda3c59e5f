"""Single vectors from Qwen vision-language models: GVE (Qwen2.5-VL) and Qwen3-VL-Embedding, for pages, texts and clips.

A page, a text or a clip is one turn of a chat below an instruction; its vector is the last layer's state at the last
token, scaled to length 1. The turn ends with the opening of the answer, so that the last token has read everything.

These models follow instructions. The two sentences here are our own and part of the fingerprint; `query_instruction`
and `page_instruction` take the place of ours, for a task of its own or to repeat a published evaluation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from PIL import Image

from vrag_nb.retrieval.checkpoints import choose_device, choose_dtype, load_checkpoint
from vrag_nb.retrieval.embedders import Embedder, batches, register
from vrag_nb.retrieval.token_budget import (
    bounded_size,
    check_batching,
    count_visual_tokens,
    limit_visual_tokens,
    token_batches,
    token_pixels,
)

QUERY_INSTRUCTION = "Find the pages, texts or videos that answer the user's question."
PAGE_INSTRUCTION = "Represent what is shown or written here, so that it is found by questions about it."


class QwenVLEmbedder(Embedder):
    """One vector of the language model's width for a page's image (the text layer is ignored), a text or a clip.

    Options: `batch_size` and `batch_tokens` of a forward pass (the latter counts a page's visual tokens, padding
    included); `device`; `dtype`; `max_visual_tokens` of a page or a whole clip (None keeps the checkpoint's);
    `query_instruction` and `page_instruction` (the module's docstring).
    """

    multi_vector = False
    takes_videos = True
    model_class: ClassVar[str]
    processor_class: ClassVar[str]
    default_checkpoint: ClassVar[str]

    def __init__(
        self,
        checkpoint: str | None = None,
        *,
        batch_size: int = 4,
        batch_tokens: int | None = None,
        device: str | None = None,
        dtype: str | None = None,
        max_visual_tokens: int | None = None,
        query_instruction: str = QUERY_INSTRUCTION,
        page_instruction: str = PAGE_INSTRUCTION,
    ) -> None:
        import transformers

        check_batching(self.name, batch_size, batch_tokens)
        self.checkpoint, self.batch_size = checkpoint or self.default_checkpoint, batch_size
        self.batch_tokens, self.max_visual_tokens = batch_tokens, max_visual_tokens
        self.query_instruction, self.page_instruction = query_instruction, page_instruction
        self.device = choose_device(device)
        dtype = choose_dtype(self.name, dtype, self.device)
        loaded = load_checkpoint(
            self.name,
            self.checkpoint,
            getattr(transformers, self.model_class),
            getattr(transformers, self.processor_class),
            published=self.default_checkpoint,
            device=self.device,
            dtype=dtype,
        )
        self.model, self.processor = loaded.model, loaded.processor
        if max_visual_tokens is not None:
            limit_visual_tokens(self.processor.image_processor, max_visual_tokens)
        self.dim = self.model.config.text_config.hidden_size
        self.options = {
            "dtype": dtype,
            "max_visual_tokens": max_visual_tokens,
            "query_instruction": query_instruction,
            "page_instruction": page_instruction,
        }
        says = f"{query_instruction}|{page_instruction}|frames"  # chunks of videos were once embedded as their sheets
        self.fingerprint = f"{loaded.weights}/{dtype}/{max_visual_tokens or 'as saved'}/{says}"

    def embed_pages(self, images: list[Image.Image], texts: list[str]) -> list[np.ndarray]:
        images = [image.convert("RGB") for image in images]
        costs = [count_visual_tokens(self.processor.image_processor, image) for image in images]
        found: list[np.ndarray] = []
        for group in token_batches(costs, self.batch_size, self.batch_tokens):
            turns = [self._turn(self.page_instruction, {"type": "image"}) for _ in images[group]]
            found += self._forward(self.processor(text=turns, images=images[group], padding=True, return_tensors="pt"))
        return found

    def embed_queries(self, queries: list[str]) -> list[np.ndarray]:
        turns = [self._turn(self.query_instruction, {"type": "text", "text": query}) for query in queries]
        return [
            vector
            for batch in batches(turns, self.batch_size)
            for vector in self._forward(self.processor(text=list(batch), padding=True, return_tensors="pt"))
        ]

    def embed_videos(self, clips: Sequence[Sequence[Image.Image]], seconds: float = 1.0) -> list[np.ndarray]:
        """One (1, dim) float32 array a clip: its frames in order, all of one size, `seconds` apart.

        A clip is a forward pass of its own. Raises ValueError naming the clip without frames or with several sizes.
        """
        if seconds <= 0:
            raise ValueError(f"{self.name}: frames {seconds} seconds apart; it must be more than 0")
        found: list[np.ndarray] = []
        for number, clip in enumerate(clips):
            if len({frame.size for frame in clip}) != 1:
                raise ValueError(f"{self.name}: clip {number}: {len(clip)} frames, which must be 1 or more of one size")
            found += self._forward(self._clip_inputs([frame.convert("RGB") for frame in clip], seconds))
        return found

    def _clip_inputs(self, frames: list[Image.Image], seconds: float) -> Any:
        frames = frames if len(frames) > 1 else frames * 2  # the towers take frames in pairs
        metadata = {"total_num_frames": len(frames), "fps": 1 / seconds, "frames_indices": list(range(len(frames)))}
        videos: dict[str, Any] = {"videos": [frames], "video_metadata": [metadata], "do_sample_frames": False}
        videos["cap_pixels_per_frame"] = False  # the default, said aloud: unsaid, transformers 5.23 warns
        if self.max_visual_tokens is not None:
            tower = self.processor.video_processor
            pixels = self._clip_pixels(self.max_visual_tokens * token_pixels(tower), len(frames))
            videos["size"] = bounded_size(tower.size, pixels)
        turn = self._turn(self.page_instruction, {"type": "video"})
        return self.processor(text=[turn], return_tensors="pt", **videos)

    def _clip_pixels(self, pixels: int, frames: int) -> int:
        """What the video processor's `size` must be for all pairs of frames together to cover at most `pixels`."""
        raise NotImplementedError

    def _turn(self, instruction: str, content: dict[str, str]) -> str:
        messages = [
            {"role": "system", "content": [{"type": "text", "text": instruction}]},
            {"role": "user", "content": [content]},
        ]
        return self.processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)

    def _forward(self, inputs: Any) -> list[np.ndarray]:
        import torch

        inputs = inputs.to(self.device)
        mask = inputs["attention_mask"]  # (batch, length)
        last = mask.shape[1] - 1 - mask.flip(1).argmax(1)  # whichever side is padded
        known = {name: value for name, value in inputs.items() if name != "video_metadata"}
        with torch.inference_mode():
            states = self.model(**known, use_cache=False).last_hidden_state  # (batch, length, dim)
        states = states[torch.arange(len(last), device=states.device), last].float()  # (batch, dim)
        return list(torch.nn.functional.normalize(states, dim=1)[:, None].cpu().numpy())


class Qwen25VLEmbedder(QwenVLEmbedder):
    """Qwen2.5-VL's video `size` is that of one frame."""

    model_class, processor_class = "Qwen2_5_VLModel", "Qwen2_5_VLProcessor"

    def _clip_pixels(self, pixels: int, frames: int) -> int:
        return pixels // -(-frames // 2)


class Qwen3VLEmbedder(QwenVLEmbedder):
    """Qwen3-VL's video `size` is that of all frames together, two of which become the tokens of one."""

    model_class, processor_class = "Qwen3VLModel", "Qwen3VLProcessor"

    def _clip_pixels(self, pixels: int, frames: int) -> int:
        return 2 * pixels


@register("gve-3b")
class GVE3B(Qwen25VLEmbedder):
    """2048 dimensions."""

    default_checkpoint = "Alibaba-NLP/GVE-3B"


@register("gve-7b")
class GVE7B(Qwen25VLEmbedder):
    """3584 dimensions."""

    default_checkpoint = "Alibaba-NLP/GVE-7B"


@register("qwen3-vl-embedding-2b")
class Qwen3VLEmbedding2B(Qwen3VLEmbedder):
    """2048 dimensions."""

    default_checkpoint = "Qwen/Qwen3-VL-Embedding-2B"


@register("qwen3-vl-embedding-8b")
class Qwen3VLEmbedding8B(Qwen3VLEmbedder):
    """4096 dimensions."""

    default_checkpoint = "Qwen/Qwen3-VL-Embedding-8B"
