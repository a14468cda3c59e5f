"""What is faster on a CPU than PyTorch's fused attention and Conv3d, with the same numbers; GPUs keep those.

Attention goes in blocks of queries where a model is trained: the fused kernel also computes the half of the scores that
a causal mask throws away, and its products gain little from bfloat16. Here a block of queries meets only the keys
before its end, in plain matrix products (`benchmarks/nano_attention.py` times both). The vision tower has the same for
its windows, and its patch embedding as a matrix product.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import flash_attention_mask
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import rotate_half

NAME = "blocks"
ROWS = 256  # queries a block
MASKED = -1e9  # finite: a padded query that sees nothing must not become nan


@torch.compiler.disable  # its loop would be compiled again for every length
def block_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    is_causal: bool | None = None,
    cu_seq_lens_q: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of (batch, heads, n, d) queries to (batch, heads, m, d) keys and values, the last of both in line.

    attention_mask: (batch, m), False at padding, or None. is_causal: each query meets the keys up to its own place; by
    default what the module says. cu_seq_lens_q: where packed sequences, which do not meet, begin and end, from 0 to
    n = m; there is no mask then, and what lies behind the last one comes out as 0. Returns (batch, n, heads, d), as
    transformers wants it. Without dropout.
    """
    causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    groups = getattr(module, "num_key_value_groups", 1)
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    query = query * (scaling if scaling is not None else query.shape[-1] ** -0.5)
    if cu_seq_lens_q is None:
        return _in_blocks(query, key, value, attention_mask, causal).transpose(1, 2), None
    lengths = cu_seq_lens_q.diff().tolist()
    rest = query.shape[2] - sum(lengths)
    packed = zip(*(tensor.split([*lengths, rest], 2)[:-1] for tensor in (query, key, value)), strict=True)
    met = _whole if _fused_is_quick(query) else _in_blocks
    done = [met(q, k, v, None, causal) for q, k, v in packed]
    return torch.cat([*done, torch.zeros_like(query[:, :, :rest])], 2).transpose(1, 2), None


def _fused_is_quick(query: torch.Tensor) -> bool:
    """Whether the fused kernel beats products of blocks at any length: with Intel's AMX, where nothing learns.

    Its products are as fast there, it writes no scores to memory, and it needs no kernel of oneDNN's for every length,
    which takes longer to make than a short product to compute. In what a backward pass needs of them blocks are
    smaller.
    """
    learns = torch.is_grad_enabled() and query.requires_grad
    return query.dtype == torch.bfloat16 and not learns and bool(torch.cpu.get_capabilities().get("amx_bf16"))


def _whole(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: None, causal: bool) -> torch.Tensor:
    """What `_in_blocks` says of as many queries as keys, without a mask, by the fused kernel."""
    return scaled_dot_product_attention(query, key, value, is_causal=causal, scale=1)


def _in_blocks(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, causal: bool
) -> torch.Tensor:
    """(batch, heads, n, d): scaled queries meet the keys block after block; see `block_attention`."""
    length, total = query.shape[2], key.shape[2]
    done = []
    for start in range(0, length, ROWS):
        end = min(length, start + ROWS)
        met = total - length + end if causal else total
        scores = query[:, :, start:end] @ key[:, :, :met].transpose(2, 3)
        if causal and end - start > 1:
            scores = scores + scores.new_full((end - start, met), MASKED).triu(met - (end - start) + 1)
        if mask is not None:
            scores = scores + (~mask[:, None, None, :met]).to(query.dtype) * MASKED
        done.append(scores.softmax(-1) @ value[:, :, :met])
    return torch.cat(done, 2)


AttentionInterface.register(NAME, block_attention)
AttentionMaskInterface.register(NAME, flash_attention_mask)  # the mask as it came, (batch, m)


def use_block_attention(*towers: nn.Module) -> None:
    """Switch towers of a transformers model to `block_attention`; saved checkpoints load with the usual kernels.

    Those on a GPU stay as they are: the fused kernel is faster there.
    """
    for tower in towers:
        config: Any = tower.config
        if next(tower.parameters()).device.type == "cpu":
            config._attn_implementation = NAME


SCORES = 4_000_000  # so many scores are held at once
LONG = 1024  # tokens: from here on the fused kernel, which writes no scores to memory, is faster in float32


def window_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Attention within windows of tokens that follow one another: query, key, value (n, heads, d), result the same.

    ends: (windows + 1,) where the windows begin and end, from 0 to n; on a CPU there may be more tokens, which come out
    as 0. transformers calls the fused kernel window by window, hundreds of times a batch; here all short windows of one
    length are one product, on a GPU all windows.
    """
    if query.is_cuda:
        return padded_attention(query, key, value, ends)
    lengths = ends[1:] - ends[:-1]
    if (lengths[1:] >= lengths[:-1]).all():
        return _by_length(query, key, value, lengths)
    tokens = torch.arange(len(query), device=query.device)
    order = torch.repeat_interleave(lengths, lengths).argsort(stable=True)  # windows of one length side by side
    met = _by_length(query[order], key[order], value[order], lengths.sort().values)
    unordered = met[torch.empty_like(order).index_put_((order,), tokens[: len(order)])]
    return torch.cat([unordered, torch.zeros_like(query[len(order) :])])


def _by_length(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """`window_attention` of windows whose lengths, (windows,), go up."""
    query = query * query.shape[-1] ** -0.5
    done, start = [], 0
    for length, count in zip(*(part.tolist() for part in lengths.unique_consecutive(return_counts=True)), strict=True):
        at_once = max(1, SCORES // (query.shape[1] * length * length))
        for first in range(0, count, at_once):
            end = start + min(at_once, count - first) * length
            q, k, v = (t[start:end].unflatten(0, (-1, length)).transpose(1, 2) for t in (query, key, value))
            done.append(_met(q, k, v).transpose(1, 2).flatten(0, 1))
            start = end
    return torch.cat([*done, torch.zeros_like(query[start:])])


def padded_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """`window_attention` as one call of the fused kernel, every window padded to the longest."""
    count, lengths = len(query), ends[1:] - ends[:-1]
    longest = int(lengths.max())
    window = torch.repeat_interleave(torch.arange(len(lengths), device=ends.device), lengths, output_size=count)
    place = window * longest + torch.arange(count, device=ends.device) - ends[window]
    padded = (tensor.new_zeros(len(lengths) * longest, *tensor.shape[1:]) for tensor in (query, key, value))
    query, key, value = (
        empty.index_copy(0, place, tensor).unflatten(0, (-1, longest)).transpose(1, 2)
        for empty, tensor in zip(padded, (query, key, value), strict=True)
    )
    inside = torch.arange(longest, device=ends.device) < lengths[:, None]
    met = scaled_dot_product_attention(query, key, value, inside[:, None, None])
    return met.transpose(1, 2).flatten(0, 1)[place]


def _met(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """(windows, heads, length, d): scaled queries of windows of one length meet the keys of their own.

    In bfloat16 blocks are faster at any length on AMD's processors, but what a backward pass needs of them are all
    scores, hundreds of megabytes of a large page.
    """
    learns = torch.is_grad_enabled() and query.requires_grad
    fused = query.shape[2] >= LONG and (learns or query.dtype != torch.bfloat16)
    return (_whole if fused or _fused_is_quick(query) else _in_blocks)(query, key, value, None, causal=False)


def use_window_attention(visual: nn.Module) -> None:
    """Let the blocks of a Qwen2.5-VL vision tower attend by `window_attention`."""

    def forward(
        self: Any,
        hidden_states: torch.Tensor,
        cu_seqlens: torch.Tensor,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        **_: Any,
    ) -> torch.Tensor:
        made = self.qkv(hidden_states).unflatten(1, (3, self.num_heads, -1))
        query, key = _rotated(made[:, :2], *position_embeddings).unbind(1)
        return self.proj(window_attention(query, key, made[:, 2], cu_seqlens).flatten(1))

    for block in visual.blocks:  # type: ignore[union-attr]
        block.attn.forward = MethodType(forward, block.attn)


def _rotated(tensor: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    """transformers' `apply_rotary_pos_emb_vision` of queries and keys, (n, 2, heads, d), at once.

    cosines, sines: (n, d). As there, in float32 where something learns; else in the format of `tensor`, in half the
    time: what is made of it is rounded to that in any case.
    """
    exact = tensor.float() if torch.is_grad_enabled() else tensor
    cosine, sine = (angles[:, None, None].to(exact.dtype) for angles in (cosines, sines))
    return (exact * cosine).add_(rotate_half(exact).mul_(sine)).to(tensor.dtype)


def linear_patch_embedding(visual: Any) -> None:
    """Compute a tower's patch embedding as a matrix product: kernel equals stride; Conv3d is slow on a CPU.

    Patches may be of one frame (`nano.patches`): an image is a video of the same two.
    """
    convolution = visual.patch_embed.proj

    def forward(patches: torch.Tensor) -> torch.Tensor:
        weight = convolution.weight
        kernel = (weight if patches.shape[1] == weight[0].numel() else weight.sum(2)).flatten(1)
        return torch.nn.functional.linear(patches.to(kernel.dtype), kernel)

    visual.patch_embed.forward = forward


def suit_cpu(model: Any) -> None:
    """Attention in windows and a linear patch embedding for a Qwen2.5-VL tower on a CPU; others stay as they are."""
    if model.config.model_type == "qwen2_5_vl" and model.device.type == "cpu":
        use_window_attention(model.model.visual)
        linear_patch_embedding(model.model.visual)
