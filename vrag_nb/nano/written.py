"""Embedding only the squares of a page that something is written on.

Half the squares of a slide are bare paper. They tell a retriever nothing, yet they cost as much as the others, in the
tower, in the language model, on disk and in every search. Here they are left out before the first layer. The squares
that stay keep their places on the grid (rotary positions, windows), so that the weights need no training for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import get_vision_position_ids, get_vision_window_index

from vrag_nb.nano.patches import packed_patches, scaled_patches

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
def embed_written(
    model: Any, processor: Any, pages: Sequence[Image.Image], written: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """(tokens, dim) float32 of each page, length 1 each: ColQwen2.5 embeddings without the other squares.

    processor: colpali-engine's. pages: whole squares large. written: (rows, columns) of each, see `written_squares`.
    """
    projected = (model.custom_text_proj(hidden).float() for hidden in hidden_states(model, processor, pages, written))
    return [torch.nn.functional.normalize(vectors, dim=-1).cpu().numpy() for vectors in projected]


def hidden_states(
    model: Any, processor: Any, pages: Sequence[Image.Image], written: Sequence[np.ndarray]
) -> Iterator[torch.Tensor]:
    """(tokens, width) of each page: last hidden states of a Qwen2.5-VL, without the other squares."""
    for embedded, positions in written_inputs(model, processor, pages, written):
        yield model.language_model(
            inputs_embeds=embedded[None],
            position_ids=positions,
            attention_mask=torch.ones_like(positions[0]),
            use_cache=False,
        ).last_hidden_state[0]


def written_inputs(
    model: Any, processor: Any, pages: Sequence[Image.Image], written: Sequence[np.ndarray]
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """What the language model is given of each page: embedded tokens (tokens, width), positions (3, 1, tokens).

    All pages go through the tower at once, which calls its many small operations once for all.
    """
    grids, squares = see_written(model.visual, pages, written)
    for grid, features, kinds in zip(grids.split(1), squares, written, strict=True):
        ids, kept = (torch.from_numpy(array).to(model.device) for array in prompt_ids(processor, kinds))
        is_square = ids == model.config.image_token_id
        attended = torch.ones_like(ids)[None]
        positions, _ = model.get_rope_index(
            ids[None], is_square[None].int(), image_grid_thw=grid, attention_mask=attended
        )
        embedded = model.language_model.embed_tokens(ids[kept])
        embedded[is_square[kept]] = features.to(embedded.dtype)
        yield embedded, positions[:, :, kept]


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


def see_written(
    tower: Any, pages: Sequence[Image.Image], written: Sequence[np.ndarray]
) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    """The pages' grids, (pages, 3), and of each the features of its written squares, (n, width), as they lie on it.

    The tower's forward pass on fewer squares, of pages whose values are scaled as a nano processor scales them. Its
    patch embedding is `attention.linear_patch_embedding`, its blocks attend by `attention.use_window_attention`.
    """
    patches, grids = (tensor.to(tower.device) for tensor in packed_patches(pages, tower.patch_size))
    stays = torch.from_numpy(np.concatenate([one.flatten() for one in written])).to(tower.device)
    merged = tower.spatial_merge_unit  # patches a square
    window_index, ends = get_vision_window_index(grids, tower.spatial_merge_size, tower.window_size, tower.patch_size)
    order = window_index[stays[window_index]]  # squares, window after window, page after page
    chosen = (order[:, None] * merged + torch.arange(merged, device=order.device)).flatten()
    window_of = torch.repeat_interleave(torch.arange(len(ends) - 1, device=ends.device), ends.diff())
    counts = window_of[stays[window_index].repeat_interleave(merged)].unique_consecutive(return_counts=True)[1]
    kept = [int(one.sum()) for one in written]
    windows, whole = _ends(counts), _ends(counts.new_tensor(kept) * merged)
    hidden = tower.patch_embed(scaled_patches(patches[chosen]))
    rotary = tower.rotary_pos_emb(hidden, get_vision_position_ids(grids, tower.spatial_merge_size)[chosen])
    for number, block in enumerate(tower.blocks):
        attended = whole if number in tower.fullatt_block_indexes else windows
        hidden = block(hidden, cu_seqlens=attended, position_embeddings=rotary)
    return grids, tower.merger(hidden)[order.argsort()].split(kept)


def _ends(lengths: torch.Tensor) -> torch.Tensor:
    """Where parts of such lengths begin and end, from 0 on."""
    return torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
