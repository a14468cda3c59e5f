"""The embedders that this repository trains and ships (`data/models`): ColQwen2.5 at nano size and its twin.

torch is imported when an embedder is loaded, not when this module is.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from vrag_nb.retrieval.colpali import BiQwen25, ColQwen25, QwenEmbedder
from vrag_nb.retrieval.embedders import register
from vrag_nb.retrieval.token_budget import limit_visual_tokens, shown_size, square_side
from vrag_nb.shifting import shifted

# Of a page that is seen several times: moved by so many quarters of a square, right and down.
VIEWS = ((0, 0), (-1, 1), (1, -1))
POOLING = "mean"  # of BiQwen2_5's strategies, the twin's


class NanoEmbedder(QwenEmbedder):
    """One page at a time, which is no slower on a CPU; several of them at once in threads."""

    def _mend(self, model: Any) -> None:
        from vrag_nb.attention import linear_patch_embedding, use_window_attention

        linear_patch_embedding(model.visual)
        use_window_attention(model.visual)

    def embed_pages(self, images: list[Image.Image], texts: list[str]) -> list[np.ndarray]:
        from vrag_nb.denormals import flushed_denormals

        with flushed_denormals():
            return [self._embed(image) for image in images]

    def _embed(self, image: Image.Image) -> np.ndarray:
        raise NotImplementedError

    @property
    def batches_at_once(self) -> bool:
        return self.device == "cpu"


def shown(processor: Any, image: Image.Image) -> Image.Image:
    """The page as the model is shown it, whole squares large."""
    return image.convert("RGB").resize(shown_size(processor.image_processor, image), Image.Resampling.BICUBIC)


@register("nano-colqwen2_5")
class NanoColQwen25(NanoEmbedder, ColQwen25):
    """colpali-engine's ColQwen2.5 at nano size.

    Squares without anything on them are left out unless `bare` (`nano.written`). Every page is seen at two sizes, whole
    at up to 640 squares and smaller, at up to `overview_tokens` (None: not), and keeps the vectors of both: so small a
    tower reads print of some sizes better than others, titles best when they are reduced. And it is seen so `views`
    times, up to len(VIEWS), moved by a part of a square (`vrag_nb.shifting`), and its score is the mean of theirs: what
    is misread at one place is read at another (`benchmarks/page_views.py`). With `frames` a chunk of a video has the
    vectors of all its frames, each seen as a page is, in place of those of its sheet (`benchmarks/films.py`).
    Queries go without augmentation tokens: at this size they match anything and cost recall (`benchmarks/hubness.py`).
    """

    default_checkpoint = "data/models/nano-retriever"
    query_suffix = ""

    def __init__(
        self,
        checkpoint: str | None = None,
        *,
        overview_tokens: int | None = 224,
        views: int = 2,
        bare: bool = False,
        frames: bool = True,
        **options: Any,
    ) -> None:
        if not 1 <= views <= len(VIEWS):
            raise ValueError(f"{self.name}: views {views} must be from 1 to {len(VIEWS)}")
        super().__init__(checkpoint, **options)
        self.views, self.bare, self.takes_videos = views, bare, frames
        self.overview_tokens, self.overview = overview_tokens, copy.deepcopy(self.processor)
        if overview_tokens is not None:
            limit_visual_tokens(self.overview.image_processor, overview_tokens)
        self.fingerprint += f"/{'all' if bare else 'written'} squares, overview {overview_tokens}, views {views}"
        self.fingerprint += ", frames of videos" if frames else ""
        self.options |= {"overview_tokens": overview_tokens, "views": views, "bare": bare, "frames": frames}

    def embed_videos(self, clips: Sequence[Sequence[Image.Image]], seconds: float = 1.0) -> list[np.ndarray]:
        """One (n_tokens, dim) float32 array a clip: the vectors of its frames, one after the other in every view.

        Raises ValueError naming the clip without frames.
        """
        from vrag_nb.denormals import flushed_denormals

        for number, frames in enumerate(clips):
            if not frames:
                raise ValueError(f"{self.name}: clip {number} has no frames")
        with flushed_denormals():
            return [_by_views([self._sights(frame) for frame in frames]) for frames in clips]

    def _embed(self, image: Image.Image) -> np.ndarray:
        return _by_views([self._sights(image)])

    def _sights(self, image: Image.Image) -> list[np.ndarray]:
        """The image's vectors in every view, those of both sizes together."""
        sizes = [self.processor]
        if self.overview_tokens is not None and self._page_costs([image])[0] > self.overview_tokens:
            sizes.append(self.overview)  # else it would be seen twice alike
        seen = [self._see(processor, image, self.views)[0] for processor in sizes]
        return [np.concatenate(view) for view in zip(*seen, strict=True)]

    def _see(self, processor: Any, image: Image.Image, views: int) -> tuple[list[np.ndarray], np.ndarray]:
        """The page's vectors in every view, as many each, and the squares that are written on in any of them."""
        from vrag_nb.nano.written import embed_written, written_squares

        page, side = shown(processor, image), square_side(processor.image_processor)
        seen = [shifted(page, across * side // 4, down * side // 4) for across, down in VIEWS[:views]]
        written = np.any([written_squares(view, side) for view in seen], axis=0) | self.bare
        return embed_written(self.model, processor, seen, written), written

    def _page_grid(self, image: Image.Image) -> np.ndarray:
        from vrag_nb.nano.written import prompt_ids

        (vectors,), written = self._see(self.processor, image, 1)
        ids, kept = prompt_ids(self.processor, written)
        grid = np.zeros((*written.shape, self.dim), np.float32)
        grid[written] = vectors[ids[kept] == self.model.config.image_token_id]
        return grid


def _by_views(images: Sequence[Sequence[np.ndarray]]) -> np.ndarray:
    """The vectors of images that are searched as one, view by view: an index takes equal parts for the views."""
    return np.concatenate([part for view in zip(*images, strict=True) for part in view])


@register("nano-biqwen2_5")
class NanoBiQwen25(NanoEmbedder, BiQwen25):
    """colpali-engine's BiQwen2.5 at nano size, one vector a page: the mean of its tokens' hidden states (`nano.twin`).

    Squares without anything on them are left out (`nano.written`), and queries go without augmentation tokens, as in
    its training.
    """

    default_checkpoint = "data/models/nano-retriever-single"
    query_suffix = ""

    def _embed(self, image: Image.Image) -> np.ndarray:
        import torch

        from vrag_nb.nano.written import hidden_states, written_squares

        page = shown(self.processor, image)
        written = written_squares(page, square_side(self.processor.image_processor))
        with torch.inference_mode():
            (hidden,) = hidden_states(self.model, self.processor, [page], written)
            return torch.nn.functional.normalize(hidden.float().mean(0, keepdim=True), dim=-1).cpu().numpy()

    def _forward(self, inputs: Any) -> list[np.ndarray]:
        import torch

        with torch.inference_mode():
            vectors = self.model(pooling_strategy=POOLING, **inputs.to(self.device))
        return [vector[None] for vector in vectors.float().cpu().numpy()]
