"""Several views of the images a model reads from, and the mean of what it makes of them.

Whether a small vision tower reads a letter right depends on how the letter falls on its grid of squares. The same
image a few pixels to the side, or one square larger, falls otherwise; the mean over such views

    p(token) = 1/K * sum over k of p(token | view k, tokens so far)

is right more often than any of them: test-time augmentation, token by token. View 0 is the image as it is shown.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from PIL import Image as PILImage

from vrag_nb.agent import actions, memory_actions
from vrag_nb.agent.encoding import ChatEncoder, Encoded
from vrag_nb.agent.policy import Image
from vrag_nb.shifting import shifted

# (across, down, larger): shifted by so many quarters of a square, after being made so many squares larger each way.
VIEWS = ((0, 0, 0), (0, 0, -1), (0, 0, 1), (1, 1, -1), (-1, -1, 1), (0, 0, -2), (1, -1, 0), (-1, 1, 0), (0, 0, 2))


def says_what_it_reads(text: str) -> bool:
    """Whether a turn says what stands on the images before it, in either protocol: an answer, or VimRAG's memorising.

    Others decide where to look next, and stand as they were written.
    """
    return actions.parse(text)[1].kind == "answer" or memory_actions.parse(text)[1].kind in ("memorise", "answer")


def as_views(encoded: Encoded, newest: int, count: int, encoder: ChatEncoder) -> list[Encoded]:
    """The conversation `count` times, its `newest` last images as views 0, 1, ... of themselves.

    count: at most len(VIEWS). What stands before these images is `shared`. Raises ValueError for an image without
    pixels.
    """
    shared = encoder.before_images(encoded, newest)
    split = len(encoded.images) - newest
    kept, changed = encoded.images[:split], encoded.images[split:]
    seen = [[*kept, *(view(image, number, encoder.factor) for image in changed)] for number in range(count)]
    return [replace(encoder.with_images(encoded, images), shared=shared) for images in seen]


def view(image: Image, number: int, factor: int) -> Image:
    """View `number` of an image as shown; `factor`: the side of a square in pixels. Shifted edges are repeated."""
    across, down, larger = VIEWS[number]
    if number == 0:
        return image
    width, height = (max(factor, side + larger * factor) for side in image.size)
    resized = image.resolved().convert("RGB").resize((width, height), PILImage.Resampling.BICUBIC)
    moved = shifted(resized, across * factor // 4, down * factor // 4)
    return replace(image, size=(width, height), pixels=moved)


def mixture(logits: torch.Tensor, count: int) -> torch.Tensor:
    """Of each `count` rows, views of one conversation, the logarithm of the mean of their distributions.

    logits: (rows, vocabulary); the result has the same shape, rows of one conversation being equal.
    """
    logs = torch.log_softmax(logits.float(), dim=-1).view(-1, count, logits.shape[1])
    mean = logs.logsumexp(1) - math.log(count)
    return mean.repeat_interleave(count, dim=0)
