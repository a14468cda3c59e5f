"""How many tokens a page costs a Qwen vision model, how to make it fewer, and batches of at most so many tokens.

Qwen's vision towers keep a page's shape: every square of `patch_size * merge_size` pixels becomes one token, so that a
large page costs more than a small one and a fixed number of pages may or may not fit a device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from PIL import Image

RATIO = 199  # of a side to the other; transformers' `smart_resize` refuses 200 and more


def limit_visual_tokens(image_processor: Any, tokens: int) -> None:
    """Let a page become at most `tokens` tokens from now on. Raises ValueError for fewer than 4."""
    if tokens < 4:
        raise ValueError(f"max_visual_tokens {tokens} must be 4 or more")
    image_processor.size = bounded_size(image_processor.size, tokens * token_pixels(image_processor))


def bounded_size(size: Any, pixels: int) -> dict[str, int]:
    """A Qwen processor's `size` whose longest edge (in fact: the number of pixels) is `pixels`."""
    # Well below the greatest, or a small page scaled up to the least would be rounded up over it.
    return {"shortest_edge": min(size["shortest_edge"], pixels // 2), "longest_edge": pixels}


def token_pixels(processor: Any) -> int:
    """The pixels of a page that one language token covers."""
    return square_side(processor) ** 2


def count_visual_tokens(image_processor: Any, image: Image.Image) -> int:
    """How many tokens the image becomes, without processing it."""
    patches = image_processor.get_number_of_image_patches(image.height, image.width)
    return patches // image_processor.merge_size**2


def shown_size(image_processor: Any, image: Image.Image) -> tuple[int, int]:
    """(width, height) in pixels, whole squares each, at which the processor shows the image to the model."""
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

    least, most = image_processor.size["shortest_edge"], image_processor.size["longest_edge"]
    height, width = smart_resize(image.height, image.width, square_side(image_processor), least, most)
    return width, height


def squeezed(image: Image.Image) -> Image.Image:
    """The image as Qwen's processors take it: one more than RATIO times as long as it is wide is stretched to that."""
    short = -(-max(image.size) // RATIO)
    if min(image.size) >= short:
        return image
    return image.resize((max(image.width, short), max(image.height, short)))


def square_side(image_processor: Any) -> int:
    """The side in pixels of the square that becomes one token."""
    return image_processor.patch_size * image_processor.merge_size


def check_batching(kind: str, batch_size: int, batch_tokens: int | None) -> None:
    """Raises ValueError for sizes below 1."""
    for name, value in (("batch_size", batch_size), ("batch_tokens", batch_tokens)):
        if value is not None and value < 1:
            raise ValueError(f"{kind}: {name} {value} must be 1 or more")


def token_batches(lengths: Sequence[int], size: int, tokens: int | None = None) -> list[slice]:
    """Consecutive groups of at most `size` items and, where given, `tokens` tokens, padding to the longest included.

    `lengths`: tokens of each item. An item longer than `tokens` is a group of its own.
    """
    groups: list[slice] = []
    start, longest = 0, 0
    for position, length in enumerate(lengths):
        longest = max(longest, length)
        count = position - start + 1
        if count > 1 and (count > size or (tokens is not None and count * longest > tokens)):
            groups.append(slice(start, position))
            start, longest = position, length
    return [*groups, slice(start, len(lengths))] if len(lengths) else []
