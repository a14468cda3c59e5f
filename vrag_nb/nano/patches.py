"""Images as the nano models' training sees them: patches of one frame, a byte a value, scaled where they are used.

What an image processor makes of an image is eight times as large: every value in four bytes, and every frame twice.
Worker processes hand on many images a second, so that this is what training would wait for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image
from transformers.vision_utils import (
    get_vision_cu_seqlens,
    get_vision_position_ids,
    get_vision_window_index,
)

from vrag_nb.retrieval.image_patches import packed_patches, scaled_patches


def tower_inputs(images: Sequence[Image.Image], config: Any) -> dict[str, torch.Tensor]:
    """What `seen` needs of images: their patches, and what a tower of this configuration would work out from grids.

    Worked out here, in a worker process, it costs a GPU no waiting.
    """
    patches, grids = packed_patches(images, config.patch_size)
    window_index, window_ends = get_vision_window_index(
        grids, config.spatial_merge_size, config.window_size, config.patch_size
    )
    return {
        "patches": patches,
        "grid_thw": grids,
        "position_ids": get_vision_position_ids(grids, config.spatial_merge_size),
        "cu_seqlens": get_vision_cu_seqlens(grids),
        "window_index": window_index,
        "cu_window_seqlens": window_ends,
    }


def seen(visual: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """The merged tokens of all images of `tower_inputs`, (squares, width); the tower's `linear_patch_embedding` on."""
    patches = scaled_patches(inputs["patches"])
    return visual(patches, **{name: value for name, value in inputs.items() if name != "patches"}).pooler_output


def recoloured(patches: torch.Tensor, grids: torch.Tensor) -> torch.Tensor:
    """Packed patches with each image fainter, its colours changed for one another, one image in ten as a negative.

    What is printed on an image, and where, stays.
    """
    sizes, device = grids.prod(-1), patches.device
    image = torch.repeat_interleave(torch.arange(len(sizes), device=device), sizes, output_size=len(patches))
    channels = torch.rand(len(sizes), 3, device=device).argsort(-1)[image][:, :, None]
    pixels = patches.view(len(patches), 3, -1)
    pixels = pixels.gather(1, channels.expand_as(pixels))
    strength = torch.empty(len(sizes), device=device).uniform_(0.6, 1)[image][:, None, None]
    ink = (255 - pixels.float()) * strength
    negative = (torch.rand(len(sizes), device=device) < 0.1)[image][:, None, None]
    return torch.where(negative, ink, 255 - ink).to(torch.uint8).view_as(patches)
