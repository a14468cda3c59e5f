"""Embedding only the squares of a page that something is written on.

Half the squares of a slide are bare paper. They tell a retriever nothing, yet they cost as much as the others, in the
tower, in the language model, on disk and in every search. Here they are left out before the first layer. The squares
that stay keep their places on the grid (rotary positions, windows), so that the weights need no training for it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import get_vision_position_ids, get_vision_window_index

BARE = 4  # of 255: a square whose pixels differ less, in every channel, is bare


def written_squares(image: Image.Image, side: int) -> np.ndarray:
    """(rows, columns), True where the square of `side` pixels holds more than one colour.

    The image is whole squares large. One of them is always kept.
    """
    pixels = np.asarray(image.convert("RGB"))
    rows, columns = image.height // side, image.width // side
    strips = pixels.reshape(rows, side, image.width * 3)  # rows of pixels first: the inner axis is long and contiguous
    most, least = (reduced.reshape(rows, columns, side, 3) for reduced in (strips.max(axis=1), strips.min(axis=1)))
    differs = most.max(axis=2).astype(int) - least.min(axis=2) > BARE  # (rows, columns, 3)
    found = differs.any(axis=2)
    found[0, 0] |= not found.any()
    return found


@torch.inference_mode()
def embed_written(model: Any, processor: Any, page: Image.Image, written: np.ndarray) -> np.ndarray:
    """(tokens, dim) float32 of a page, length 1 each: ColQwen2.5 embeddings without the other squares.

    processor: colpali-engine's. page: whole squares large. written: (rows, columns), see `written_squares`.
    """
    vectors = model.custom_text_proj(hidden_states(model, processor, page, written))
    return torch.nn.functional.normalize(vectors, dim=-1).float().cpu().numpy()


def hidden_states(model: Any, processor: Any, page: Image.Image, written: np.ndarray) -> torch.Tensor:
    """(tokens, width): last hidden states of a Qwen2.5-VL, without the other squares."""
    embedded, positions = written_inputs(model, processor, page, written)
    return model.language_model(
        inputs_embeds=embedded[None],
        position_ids=positions,
        attention_mask=torch.ones_like(positions[0]),
        use_cache=False,
    ).last_hidden_state[0]


def written_inputs(
    model: Any, processor: Any, page: Image.Image, written: np.ndarray
) -> tuple[torch.Tensor, torch.Tensor]:
    """What the language model is given of a page: embedded tokens (tokens, width), positions (3, 1, tokens)."""
    pixels = processor.image_processor(images=[page], do_resize=False, return_tensors="pt").to(model.device)
    grid = pixels["image_grid_thw"]
    prompt = (*prompt_ids(processor, written), written.flatten())
    ids, kept, stays = (torch.from_numpy(array).to(model.device) for array in prompt)
    is_square = ids == model.config.image_token_id
    attended = torch.ones_like(ids)[None]
    positions = model.get_rope_index(ids[None], is_square[None].int(), image_grid_thw=grid, attention_mask=attended)[0]
    embedded = model.language_model.embed_tokens(ids[kept])
    embedded[is_square[kept]] = _see(model.visual, pixels["pixel_values"], grid, stays).to(embedded.dtype)
    return embedded, positions[:, :, kept]


def prompt_ids(processor: Any, written: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The ids of a page's prompt with all its squares, (n,), and which of them are kept, (n,)."""
    head, tail = ids_around(processor)
    square = processor.tokenizer.convert_tokens_to_ids(processor.image_token)
    ids = np.array([*head, *[square] * written.size, *tail])
    return ids, np.concatenate([np.ones(len(head), bool), written.flatten(), np.ones(len(tail), bool)])


def ids_around(processor: Any) -> tuple[list[int], list[int]]:
    """The ids of the retriever's prompt before a page's squares and after them."""
    head, tail = processor.visual_prompt_prefix.split(processor.image_token)
    return processor.tokenizer.encode(head), processor.tokenizer.encode(tail)


def _see(tower: Any, patches: torch.Tensor, grid: torch.Tensor, stays: torch.Tensor) -> torch.Tensor:
    """The tower's features of the squares that stay, (n, width), in their order on the page.

    Its forward pass on fewer squares; its blocks attend by `attention.use_window_attention`.
    """
    merged = tower.spatial_merge_unit  # patches a square
    window_index, ends = get_vision_window_index(
        grid,
        spatial_merge_size=tower.spatial_merge_size,
        window_size=tower.window_size,
        patch_size=tower.patch_size,
        kwargs={},
    )
    order = window_index[stays[window_index]]  # squares, window after window
    chosen = (order[:, None] * merged + torch.arange(merged, device=order.device)).flatten()
    window_of = torch.repeat_interleave(torch.arange(len(ends) - 1, device=ends.device), ends.diff())
    counts = window_of[stays[window_index].repeat_interleave(merged)].unique_consecutive(return_counts=True)[1]
    windows = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    page = counts.new_tensor([0, len(chosen)])
    hidden = tower.patch_embed(patches[chosen])
    places = get_vision_position_ids(grid, tower.spatial_merge_size, kwargs={})
    rotary = tower.rotary_pos_emb(hidden, places[chosen])
    for number, block in enumerate(tower.blocks):
        attended = page if number in tower.fullatt_block_indexes else windows
        hidden = block(hidden, cu_seqlens=attended, position_embeddings=rotary)
    return tower.merger(hidden)[order.argsort()]
