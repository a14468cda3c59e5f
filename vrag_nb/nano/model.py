"""The nano vision-language model: transformers' own Qwen2.5-VL classes at a few million parameters.

Nothing here is a new architecture. A nano checkpoint is a folder that `AutoModelForImageTextToText.from_pretrained`
and `AutoProcessor.from_pretrained` load, so the code that runs it is the code that runs Qwen2.5-VL-7B; patch size 14
and merge size 2 are kept, so one language token is a 28 x 28 pixel square in both.

One choice is a property of the checkpoint and matters: the image processor's mean and standard deviation put white
paper at zero, without which a model this small does not start to read.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLProcessor,
    Qwen2VLImageProcessor,
)
from transformers.models.qwen2_vl.video_processing_qwen2_vl import Qwen2VLVideoProcessor

from vrag_nb.nano.tokenizer import token_id

FACTOR = 28  # pixels per language token, both ways: patch 14, merge 2
MIN_PIXELS = 128 * FACTOR**2
MAX_PIXELS = 224 * FACTOR**2


@dataclass(frozen=True)
class NanoSize:
    """The one dial of size: widths and depths of the two towers, and the pixels of a patch, by which FACTOR divides."""

    text_width: int = 256
    text_layers: int = 6
    text_heads: int = 4
    vision_width: int = 192
    vision_layers: int = 4
    vision_heads: int = 6
    patch: int = 14


def nano_config(tokenizer: PreTrainedTokenizerBase, size: NanoSize = NanoSize()) -> Qwen2_5_VLConfig:
    """A Qwen2.5-VL configuration of nano size for this tokenizer's special tokens."""
    head_dim = size.text_width // size.text_heads
    rotary = head_dim // 2
    ids = partial(token_id, tokenizer)
    common: dict[str, Any] = {
        "bos_token_id": ids("<|im_start|>"),
        "eos_token_id": ids("<|im_end|>"),
        "pad_token_id": ids("<|endoftext|>"),
    }
    text: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": size.text_width,
        "intermediate_size": int(size.text_width * 8 / 3) // 32 * 32,
        "num_hidden_layers": size.text_layers,
        "num_attention_heads": size.text_heads,
        "num_key_value_heads": size.text_heads,
        "max_position_embeddings": 4096,
        # Frequencies go to time, height and width in this order, fastest first. With Qwen's own base the fastest of the
        # width's turns by 0.003 radians a square at this size, and a square cannot know its column; with this one by
        # 0.17, and the slowest still so little that the words of a question and of a page can be compared.
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 500.0,
            "mrope_section": [rotary // 16, rotary * 7 // 32, rotary - rotary // 16 - rotary * 7 // 32],
        },
        "tie_word_embeddings": True,
        **common,
    }
    vision: dict[str, Any] = {
        "hidden_size": size.vision_width,
        "out_hidden_size": size.text_width,
        "intermediate_size": int(size.vision_width * 8 / 3) // 32 * 32,
        "depth": size.vision_layers,
        "num_heads": size.vision_heads,
        "patch_size": size.patch,
        "spatial_merge_size": FACTOR // size.patch,
        "temporal_patch_size": 2,
        "window_size": 112,
        "fullatt_block_indexes": [size.vision_layers - 2],
    }
    return Qwen2_5_VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=ids("<|image_pad|>"),
        video_token_id=ids("<|video_pad|>"),
        vision_start_token_id=ids("<|vision_start|>"),
        vision_end_token_id=ids("<|vision_end|>"),
        tie_word_embeddings=True,
        **common,
    )


def build_nano_vlm(
    tokenizer: PreTrainedTokenizerBase, size: NanoSize = NanoSize(), seed: int = 0
) -> Qwen2_5_VLForConditionalGeneration:
    """A freshly initialised nano VLM (float32)."""
    torch.manual_seed(seed)
    return Qwen2_5_VLForConditionalGeneration(nano_config(tokenizer, size))


def build_processor(
    tokenizer: PreTrainedTokenizerBase, min_pixels: int = MIN_PIXELS, max_pixels: int = MAX_PIXELS, patch: int = 14
) -> Qwen2_5_VLProcessor:
    """The processor of a nano checkpoint: white paper is zero, ink is about -3 (mean 1.0, std 1/3)."""
    pixels = {"shortest_edge": min_pixels, "longest_edge": max_pixels}
    kwargs: dict[str, Any] = {
        "patch_size": patch,
        "merge_size": FACTOR // patch,
        "image_mean": [1.0] * 3,
        "image_std": [1 / 3] * 3,
    }
    image_processor = Qwen2VLImageProcessor(size=pixels, **kwargs)
    video_processor = Qwen2VLVideoProcessor(size=pixels, **kwargs)
    return Qwen2_5_VLProcessor(
        image_processor=image_processor,
        tokenizer=tokenizer,
        video_processor=video_processor,
        chat_template=tokenizer.chat_template,
    )


def save_checkpoint(
    model: PreTrainedModel, processor: Qwen2_5_VLProcessor, folder: Path, dtype: torch.dtype = torch.bfloat16
) -> None:
    """Write weights (in `dtype`), configuration and processor as a `from_pretrained` folder.

    The configuration is put there last: a folder without one is taken for no checkpoint, whatever was killed.
    """
    folder = Path(folder)
    unfinished = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(unfinished, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    state = model.state_dict()
    # tied weights are converted once, or they would no longer be seen to be tied, and be written twice
    converted = {tensor.data_ptr(): tensor.detach().to(dtype) for tensor in state.values()}
    state = {name: converted[tensor.data_ptr()] for name, tensor in state.items()}
    model.save_pretrained(unfinished, state_dict=state)
    processor.save_pretrained(unfinished)
    for file in sorted(unfinished.iterdir(), key=lambda file: file.name == "config.json"):
        file.replace(folder / file.name)
    unfinished.rmdir()
