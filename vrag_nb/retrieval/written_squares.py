"""Embedding only the squares of a page that something is written on.

Half the squares of a slide are bare paper. They tell a retriever nothing, yet they cost as much as the others, in the
tower, in the language model, on disk and in every search. Here they are left out before the first layer. The squares
that stay keep their places on the grid (rotary positions, windows), so that the weights need no training for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.nn.functional import normalize, pad
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import get_vision_position_ids, get_vision_window_index

from vrag_nb.recurring_shapes import blank_rows
from vrag_nb.retrieval.image_patches import packed_patches, scaled_patches

PACKED = 4096  # tokens at once, so that many frames of a video do not need masks of gigabytes on a GPU
RECURRING = 128  # squares, or tokens: so many or a multiple of it go through a tower at once (`recurring_shapes`)
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
    projected = hidden_states(model, processor, pages, written, model.custom_text_proj)
    return [normalize(vectors.float(), dim=-1).cpu().numpy() for vectors in projected]


def hidden_states(
    model: Any,
    processor: Any,
    pages: Sequence[Image.Image],
    written: Sequence[np.ndarray],
    head: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> list[torch.Tensor]:
    """(tokens, width) of each page: last hidden states of a Qwen2.5-VL, without the other squares.

    head: what to make of them, (n, width) to (n, dim).
    """
    done: list[torch.Tensor] = []
    for packed in _packed(written_inputs(model, processor, pages, written)):
        embedded, positions = (
            torch.cat(parts, dim) for parts, dim in zip(zip(*packed, strict=True), (0, 2), strict=True)
        )
        lengths = [len(one) for one, _ in packed]
        rest = blank_rows(len(embedded), RECURRING, embedded)
        places = torch.cat([torch.arange(length, device=embedded.device) for length in lengths])
        positions = torch.cat([places.expand(1, 1, -1), positions])  # the first row tells pages apart
        hidden = model.language_model(
            inputs_embeds=pad(embedded, (0, 0, 0, rest))[None],
            position_ids=pad(positions, (0, rest)),
            cu_seq_lens_q=_ends(places.new_tensor(lengths)),  # for `attention.block_attention`
            use_cache=False,
        ).last_hidden_state[0]
        done += (head(hidden) if head else hidden).split([*lengths, rest])[:-1]
    return done


def _packed(pages: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> Iterator[list[tuple[torch.Tensor, torch.Tensor]]]:
    """Pages that go through the language model at once, PACKED tokens or one page at most."""
    taken: list[tuple[torch.Tensor, torch.Tensor]] = []
    for page in pages:
        if taken and sum(len(tokens) for tokens, _ in taken) + len(page[0]) > PACKED:
            yield taken
            taken = []
        taken.append(page)
    yield taken


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
    merged = tower.spatial_merge_unit  # patches a square
    index, ends = get_vision_window_index(grids, tower.spatial_merge_size, tower.window_size, tower.patch_size)
    stays = torch.from_numpy(np.concatenate([one.flatten() for one in written])).to(tower.device)[index]
    index, windows = index[stays], _numbers(ends.diff() // merged)[stays]
    order, in_windows = _side_by_side(windows, merged)
    squares = index[order]  # window after window
    by_page, in_pages = _side_by_side(_numbers(grids.prod(1) // merged)[squares], merged)
    rest = blank_rows(len(squares), RECURRING, tower.merger.mlp[0].weight)
    by_page = torch.cat([by_page, torch.arange(rest, device=by_page.device) + len(squares)])
    shown = pad(squares, (0, rest))  # the first square again, whose features nobody takes
    chosen, paged, unpaged = (_patches_of(rows, merged) for rows in (shown, by_page, by_page.argsort()))
    hidden = tower.patch_embed(scaled_patches(patches[chosen]))
    rotary = tower.rotary_pos_emb(hidden, get_vision_position_ids(grids, tower.spatial_merge_size)[chosen])
    rotary_paged = tuple(angles[paged] for angles in rotary)
    for number, block in enumerate(tower.blocks):
        if number in tower.fullatt_block_indexes:
            hidden = block(hidden[paged], cu_seqlens=in_pages, position_embeddings=rotary_paged)[unpaged]
        else:
            hidden = block(hidden, cu_seqlens=in_windows, position_embeddings=rotary)
    return grids, tower.merger(hidden)[squares.argsort()].split([int(one.sum()) for one in written])


def _numbers(lengths: torch.Tensor) -> torch.Tensor:
    """Of every row the number of its part, where parts of such lengths follow one another."""
    return torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), lengths)


def _side_by_side(parts: torch.Tensor, merged: int) -> tuple[torch.Tensor, torch.Tensor]:
    """An order of squares that has those of a part side by side, short parts first, and where in patches parts end.

    parts: the number of each square's part, (n,). So ordered, `attention.window_attention` need not reorder what it is
    given in every block.
    """
    lengths = parts.bincount()
    order = (lengths[parts] * len(lengths) + parts).argsort(stable=True)
    return order, _ends(lengths[lengths > 0].sort().values * merged)


def _patches_of(squares: torch.Tensor, merged: int) -> torch.Tensor:
    return (squares[:, None] * merged + torch.arange(merged, device=squares.device)).flatten()


def _ends(lengths: torch.Tensor) -> torch.Tensor:
    """Where parts of such lengths begin and end, from 0 on."""
    return torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
