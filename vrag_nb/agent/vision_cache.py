"""Image features, encoded once.

A trajectory's prompt holds every image shown so far, so without a cache its first page would go through the vision
tower again at every turn; on a CPU the tower is half the cost of a turn. Features are kept by the pixels shown, so a
page that many questions look at is encoded once for all of them. For fixed weights only: a model in training changes
its features.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch

from vrag_nb.agent.encoding import ChatEncoder
from vrag_nb.agent.policy import Image

DEFAULT_CACHE_BYTES = 256 * 2**20
# Families whose language model takes nothing from the tower but its last features (Qwen3-VL takes deeper ones too).
_MODEL_TYPES = {"qwen2_vl", "qwen2_5_vl"}
_Key = tuple[tuple[int, int], bytes]


def cacheable(model: Any) -> bool:
    """Whether `generate` of this model takes ready-made image features."""
    supports = getattr(model, "_supports_mm_encoder_outputs", None)
    return model.config.model_type in _MODEL_TYPES and supports is not None and bool(supports())


class VisionCache:
    """Features of images, the least recently used forgotten beyond `max_bytes`. Not thread-safe."""

    def __init__(self, model: Any, encoder: ChatEncoder, max_bytes: int = DEFAULT_CACHE_BYTES) -> None:
        self.model, self.encoder, self.max_bytes = model, encoder, max_bytes
        self._kept: OrderedDict[_Key, torch.Tensor] = OrderedDict()
        self._held = 0

    def features(self, images: Sequence[Image]) -> tuple[torch.Tensor, ...]:
        """One tensor (image tokens, width of the language model) per image."""
        keys = [image_key(image) for image in images]
        missing = {key: image for key, image in zip(keys, images, strict=True) if key not in self._kept}
        fresh = dict(zip(missing, self._encode(list(missing.values())), strict=True))
        found = {key: fresh[key] if key in fresh else self._kept[key] for key in keys}
        for key, value in found.items():
            self._remember(key, value)
        return tuple(found[key] for key in keys)

    def forget(self) -> None:
        """Drop everything kept: the weights have changed."""
        self._kept.clear()
        self._held = 0

    def _encode(self, images: list[Image]) -> Sequence[torch.Tensor]:
        if not images:
            return ()
        inputs = {name: tensor.to(self.model.device) for name, tensor in self.encoder.pixel_inputs(images).items()}
        return self.model.base_model.get_image_features(**inputs, return_dict=True).pooler_output

    def _remember(self, key: _Key, value: torch.Tensor) -> None:
        if key not in self._kept:
            self._kept[key] = value.clone()  # not a view that keeps the whole batch alive
            self._held += value.nbytes
        self._kept.move_to_end(key)
        while self._held > self.max_bytes and self._kept:
            _, forgotten = self._kept.popitem(last=False)
            self._held -= forgotten.nbytes


def image_key(image: Image) -> _Key:
    """What an image is told apart by: its size and a digest of its pixels."""
    return image.size, hashlib.sha256(image.resolved().tobytes()).digest()
