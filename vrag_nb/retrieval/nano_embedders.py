"""The embedders that this repository trains and ships (`data/models`): ColQwen2.5 at nano size and its twin.

torch is imported when an embedder is loaded, not when this module is.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from PIL import Image

from vrag_nb.cpu_memory import bound_memory, give_back
from vrag_nb.retrieval.colpali import BiQwen25, ColQwen25, QwenEmbedder
from vrag_nb.retrieval.embedders import register
from vrag_nb.retrieval.token_budget import limit_visual_tokens, shown_size, square_side
from vrag_nb.shifting import shifted

# Of a page that is seen several times: moved by so many quarters of a square, right and down.
MOVED = ((0, 0), (-1, 1), (1, -1))
OVERLAP = 0.06  # of a page's longer side belongs to both of its halves, so that words on the cut are whole in one
REDUCED = 0.9  # a page that keeps fewer of its pixels is seen larger in halves
POOLING = "mean"  # of BiQwen2_5's strategies, the twin's


class NanoEmbedder(QwenEmbedder):
    """One page at a time, which is no slower on a CPU; several of them at once in threads.

    `dtype` is by default "bfloat16" on a CPU as well where it multiplies faster in it (`number_formats`), as in its
    training.
    """

    def _usual_dtype(self) -> str:
        import torch

        from vrag_nb.number_formats import quick_dtype

        return str(quick_dtype(torch.device(self.device))).removeprefix("torch.")

    def _mend(self, model: Any) -> None:
        from vrag_nb.attention import linear_patch_embedding, use_block_attention, use_window_attention

        bound_memory()
        linear_patch_embedding(model.visual)
        use_window_attention(model.visual)
        if self.device == "cpu":  # the model lies there yet, wherever it goes
            use_block_attention(model.language_model)

    def embed_pages(self, images: list[Image.Image], texts: list[str]) -> list[np.ndarray]:
        from vrag_nb.denormals import flushed_denormals

        with flushed_denormals():
            found = [self._embed(image) for image in images]
        give_back()
        return found

    def _embed(self, image: Image.Image) -> np.ndarray:
        raise NotImplementedError

    @property
    def batches_at_once(self) -> bool:
        return self.device == "cpu"


def shown(processor: Any, image: Image.Image) -> Image.Image:
    """The page as the model is shown it, whole squares large.

    Resized by torch, six times as fast as by Pillow, and on a slide the same to one of 255; they differ in how they
    round and clip between their two passes.
    """
    import torch

    width, height = shown_size(processor.image_processor, image)
    pixels = torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)[None]
    made = torch.nn.functional.interpolate(pixels, (height, width), mode="bicubic", antialias=True)[0]
    return Image.fromarray(made.permute(1, 2, 0).numpy())


@register("nano-colqwen2_5")
class NanoColQwen25(NanoEmbedder, ColQwen25):
    """colpali-engine's ColQwen2.5 at nano size.

    Squares without anything on them are left out unless `bare` (`written_squares`). Every page is seen at two sizes,
    whole at up to 640 squares and smaller, at up to `overview_tokens` (None: not), and keeps the vectors of both: so
    small a tower reads print of some sizes better than others, titles best when they are reduced. And it is seen so
    `views` times, up to len(MOVED), and its score is the mean of theirs: what is misread at one place, or at one size,
    is read at another (`benchmarks/page_views.py`). A further view is the page moved by a part of a square
    (`vrag_nb.shifting`); with `halves` the second one is its two halves, whose print is larger, where the whole page is
    shown reduced. The shorter view's vectors come again, which changes no maximum. With `frames` a chunk of a video has
    the vectors of all its frames, each seen as a page is, in place of those of its sheet (`benchmarks/films.py`).
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
        halves: bool = True,
        bare: bool = False,
        frames: bool = True,
        **options: Any,
    ) -> None:
        if not 1 <= views <= len(MOVED):
            raise ValueError(f"{self.name}: views {views} must be from 1 to {len(MOVED)}")
        super().__init__(checkpoint, **options)
        self.views, self.halves, self.bare, self.takes_videos = views, halves, bare, frames
        self.overview_tokens, self.overview = overview_tokens, copy.deepcopy(self.processor)
        if overview_tokens is not None:
            limit_visual_tokens(self.overview.image_processor, overview_tokens)
        self.fingerprint += f"/{'all' if bare else 'written'} squares, overview {overview_tokens}, views {views}"
        self.fingerprint += (", halves" if halves and views > 1 else "") + (", frames of videos" if frames else "")
        self.options |= {"overview_tokens": overview_tokens, "views": views, "halves": halves}
        self.options |= {"bare": bare, "frames": frames}

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
        views = [list(self._sizes(parts, moved)) for parts, moved in self._views(image)]
        vectors = iter(self._see([page for view in views for page in view])[0])
        return [np.concatenate([next(vectors) for _ in view]) for view in views]

    def _views(self, image: Image.Image) -> Iterator[tuple[list[Image.Image], tuple[int, int]]]:
        """Of every view the parts of the image that are looked at, and how they are moved."""
        width, height = shown_size(self.processor.image_processor, image)
        cut = self.halves and width * height < REDUCED * image.width * image.height
        rest = iter(MOVED)
        for number in range(self.views):
            yield (halved(image), MOVED[0]) if cut and number == 1 else ([image], next(rest))

    def _sizes(self, parts: Sequence[Image.Image], moved: tuple[int, int]) -> Iterator[Image.Image]:
        """The parts as the model is shown them, moved by so many quarters of a square."""
        for part in parts:
            yield self._shown(self.processor, part, moved)
            if self.overview_tokens is not None and self._page_costs([part])[0] > self.overview_tokens:
                yield self._shown(self.overview, part, moved)  # else it would be seen twice alike

    def _shown(self, processor: Any, image: Image.Image, moved: tuple[int, int]) -> Image.Image:
        side = square_side(processor.image_processor)
        return shifted(shown(processor, image), moved[0] * side // 4, moved[1] * side // 4)

    def _see(self, pages: Sequence[Image.Image]) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """The vectors of pages as they are shown, and the squares of each that are written on."""
        from vrag_nb.retrieval.written_squares import embed_written, written_squares

        side = square_side(self.processor.image_processor)
        written = [written_squares(page, side) | self.bare for page in pages]
        return embed_written(self.model, self.processor, pages, written), written

    def _page_grid(self, image: Image.Image) -> np.ndarray:
        from vrag_nb.retrieval.written_squares import prompt_ids

        (vectors,), (written,) = self._see([self._shown(self.processor, image, MOVED[0])])
        ids, kept = prompt_ids(self.processor, written)
        grid = np.zeros((*written.shape, self.dim), np.float32)
        grid[written] = vectors[ids[kept] == self.model.config.image_token_id]
        return grid


def halves(width: int, height: int) -> list[tuple[int, int, int, int]]:
    """Boxes of the left and the right half, of what is higher than wide the upper and the lower one, and OVERLAP."""
    if width >= height:
        over = round(width * (1 + OVERLAP) / 2)
        return [(0, 0, over, height), (width - over, 0, width, height)]
    over = round(height * (1 + OVERLAP) / 2)
    return [(0, 0, width, over), (0, height - over, width, height)]


def halved(image: Image.Image) -> list[Image.Image]:
    """The `halves` of an image."""
    return [image.crop(box) for box in halves(*image.size)]


def _by_views(images: Sequence[Sequence[np.ndarray]]) -> np.ndarray:
    """The vectors of images that are searched as one, view by view: an index takes equal parts for the views, so those
    of the shorter ones come again from the first on."""
    views = [np.concatenate(view) for view in zip(*images, strict=True)]
    longest = max(map(len, views))
    return np.concatenate([np.resize(view, (longest, view.shape[1])) for view in views])


@register("nano-biqwen2_5")
class NanoBiQwen25(NanoEmbedder, BiQwen25):
    """colpali-engine's BiQwen2.5 at nano size, one vector a page: the mean of its tokens' hidden states (`nano.twin`).

    Squares without anything on them are left out (`written_squares`), and queries go without augmentation tokens, as in
    its training.
    """

    default_checkpoint = "data/models/nano-retriever-single"
    query_suffix = ""

    def _embed(self, image: Image.Image) -> np.ndarray:
        import torch

        from vrag_nb.retrieval.written_squares import hidden_states, written_squares

        page = shown(self.processor, image)
        written = written_squares(page, square_side(self.processor.image_processor))
        with torch.inference_mode():
            (hidden,) = hidden_states(self.model, self.processor, [page], [written])
            return torch.nn.functional.normalize(hidden.float().mean(0, keepdim=True), dim=-1).cpu().numpy()

    def _forward(self, inputs: Any) -> list[np.ndarray]:
        import torch

        with torch.inference_mode():
            vectors = self.model(pooling_strategy=POOLING, **inputs.to(self.device))
        return [vector[None] for vector in vectors.float().cpu().numpy()]
