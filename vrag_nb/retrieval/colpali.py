"""The ColPali family through colpali-engine: late interaction (ColPali, Faysse et al., arXiv 2407.01449) and its
single-vector twins.

A class here says three things: which model and processor class of colpali-engine it is, and how the image tokens of a
page lie on it (for similarity maps). Loading, batching, padding and pooling are shared. torch and colpali-engine are
imported when an embedder is loaded, not when this module is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from PIL import Image

from vrag_nb.retrieval.checkpoints import Checkpoint, checkpoint_folder, choose_device, choose_dtype, load_checkpoint
from vrag_nb.retrieval.embedders import Embedder, SimilarityMap, batches, register
from vrag_nb.retrieval.query_weights import QueryWeights
from vrag_nb.retrieval.token_budget import (
    check_batching,
    count_visual_tokens,
    limit_visual_tokens,
    squeezed,
    token_batches,
)


class ColpaliEngineEmbedder(Embedder):
    """Loads `model_class` and `processor_class` of colpali_engine.models and runs them in batches.

    Options: `batch_size` pages or queries a forward pass; `device` ("cuda" where there is one, else "cpu"); `dtype`
    ("bfloat16" on CUDA, "float32" on a CPU). For Qwen models also `max_visual_tokens` a page (None keeps the
    checkpoint's) and `batch_tokens`, the most visual tokens of a forward pass, padding included: a batch of pages is
    cut to it. For late interaction (`retrieval.hubness`): `query_bank`, a file of sample queries, one a line (None:
    that of the checkpoint's folder, if it has one), and `hubness_weight`, how much of a page's hubness its scores lose;
    and where the folder has them, `query_weights` (`retrieval.query_weights`).
    """

    model_class: ClassVar[str]
    processor_class: ClassVar[str]
    default_checkpoint: ClassVar[str] = ""
    takes_visual_tokens: ClassVar[bool] = False
    query_suffix: str | None = None  # None: the processor's augmentation tokens

    def __init__(
        self,
        checkpoint: str | None = None,
        *,
        batch_size: int = 4,
        batch_tokens: int | None = None,
        device: str | None = None,
        dtype: str | None = None,
        max_visual_tokens: int | None = None,
        query_bank: str | None = None,
        hubness_weight: float = 0.75,
    ) -> None:
        check_batching(self.name, batch_size, batch_tokens)
        for option, value in (("max_visual_tokens", max_visual_tokens), ("batch_tokens", batch_tokens)):
            if value is not None and not self.takes_visual_tokens:
                raise ValueError(f"{self.name} has a fixed page resolution: {option} does not apply")
        self.checkpoint, self.batch_size = checkpoint or self.default_checkpoint, batch_size
        self.batch_tokens = batch_tokens
        self.device = choose_device(device)
        dtype = choose_dtype(self.name, dtype or self._usual_dtype(), self.device)
        loaded = self._load(dtype)
        self.model, self.processor = loaded.model, loaded.processor
        if max_visual_tokens is not None:
            limit_visual_tokens(self.processor.image_processor, max_visual_tokens)
        self.query_weights: QueryWeights | None = None
        self.dim = self.embed_queries(["a"])[0].shape[1]
        self.options = {"dtype": dtype, "max_visual_tokens": max_visual_tokens, "query_bank": query_bank}
        self.fingerprint = f"{loaded.weights}/{dtype}/{max_visual_tokens or 'as saved'}"
        self._take_query_bank(query_bank, hubness_weight)
        folder = checkpoint_folder(self.name, self.checkpoint, self.default_checkpoint)
        if self.multi_vector and folder:
            self.query_weights = QueryWeights.of_checkpoint(folder, self.dim, len(self.processor.tokenizer))

    @property
    def query_fingerprint(self) -> str:
        return self.query_weights.fingerprint if self.query_weights else ""

    @property
    def weighs_tokens(self) -> bool:
        return self.query_weights is not None

    def _take_query_bank(self, given: str | None, weight: float) -> None:
        """Raises ValueError for an empty bank or one that is given to a single-vector embedder, FileNotFoundError."""
        from vrag_nb.retrieval.hubness import NEAREST, find_query_bank, read_query_bank

        if given and not self.multi_vector:
            raise ValueError(f"{self.name} has one vector a page: query_bank does not apply")
        path = find_query_bank(given, self.checkpoint) if self.multi_vector else None
        if path:
            self.query_bank, self.hubness_weight = read_query_bank(path), weight
            made_by = repr((self.query_bank, NEAREST, self.query_suffix))  # what a page's hubness depends on beside it
            self.fingerprint += f"/bank {hashlib.sha256(made_by.encode()).hexdigest()[:8]}"

    def _load(self, dtype: str) -> Checkpoint:
        import colpali_engine.models as engine

        return load_checkpoint(
            self.name,
            self.checkpoint,
            getattr(engine, self.model_class),
            getattr(engine, self.processor_class),
            published=self.default_checkpoint,
            device=self.device,
            dtype=dtype,
            mend=self._mend,
            **self._key_mapping(),
        )

    def _mend(self, model: Any) -> None:
        """What a class must still do to the loaded model."""

    def _usual_dtype(self) -> str | None:
        """The number format where none is asked for; None: what `choose_dtype` takes."""
        return None

    def _key_mapping(self) -> dict[str, Any]:
        """The names of older checkpoints' weights, for classes that ask transformers for them.

        colpali-engine 0.3.18's single-vector Qwen classes read an attribute of their base class that transformers 5 no
        longer has, and fail to load; their late-interaction twins carry the same table themselves.
        """
        import colpali_engine.models as engine

        table = "_checkpoint_conversion_mapping"
        twin = getattr(engine, self.model_class.replace("Bi", "Col"))
        if hasattr(getattr(engine, self.model_class), table) or not hasattr(twin, table):
            return {}
        return {"key_mapping": getattr(twin, table)}

    def embed_pages(self, images: list[Image.Image], texts: list[str]) -> list[np.ndarray]:
        groups = token_batches(self._page_costs(images), self.batch_size, self.batch_tokens)
        return [array for group in groups for array in self._page_batch(images[group])[0]]

    def _page_costs(self, images: list[Image.Image]) -> list[int]:
        """Visual tokens of each page; only their sum in a batch matters, so 1 where all pages cost the same."""
        return [1] * len(images)

    def embed_queries(self, queries: list[str]) -> list[np.ndarray]:
        return self.query_tokens(queries)[0]

    def query_tokens(self, queries: list[str]) -> tuple[list[np.ndarray], list[list[int]]]:
        """The vectors of queries, (n_tokens, dim) each, and the ids of their tokens."""
        done = [self._query_batch(batch) for batch in batches(queries, self.batch_size)]
        return [one for vectors, _ in done for one in vectors], [one for _, ids in done for one in ids]

    def _query_batch(self, queries: Sequence[str]) -> tuple[list[np.ndarray], list[list[int]]]:
        """Of a batch: see `query_tokens`."""
        inputs = self._process_queries(queries)
        vectors = self._forward(inputs)
        real = inputs["attention_mask"].bool().cpu()
        ids = [row[mask].tolist() for row, mask in zip(inputs["input_ids"].cpu(), real, strict=True)]
        if weigh := self.query_weights:
            vectors = [one * weigh(own, one)[:, None] for own, one in zip(ids, vectors, strict=True)]
        return vectors, ids

    def _process_queries(self, queries: Sequence[str]) -> Any:
        return self.processor.process_queries(texts=list(queries), suffix=self.query_suffix)

    def _page_batch(self, images: list[Image.Image]) -> tuple[list[np.ndarray], Any]:
        inputs = self.processor.process_images(images)
        return self._forward(inputs), inputs

    def _forward(self, inputs: Any) -> list[np.ndarray]:
        import torch

        inputs = inputs.to(self.device)
        with torch.inference_mode():
            output = self.model(**inputs).float().cpu().numpy()  # (batch, length, dim), or (batch, dim)
        if not self.multi_vector:
            return [row[None] for row in output]
        real = inputs["attention_mask"].bool().cpu().numpy()  # (batch, length)
        return [vectors[mask] for vectors, mask in zip(output, real, strict=True)]

    def similarity_map(self, query: str, image: Image.Image) -> SimilarityMap:
        if not self.multi_vector:
            return super().similarity_map(query, image)
        (vectors,), (ids,) = self._query_batch([query])
        tokens = self.processor.tokenizer.convert_ids_to_tokens(ids)
        weights = np.linalg.norm(vectors, axis=1)
        queries = vectors / weights[:, None].clip(1e-9)  # (n_query_tokens, dim)
        grid = self._page_grid(squeezed(image))
        return SimilarityMap(tokens, np.einsum("nd,hwd->nhw", queries, grid), weights)

    def _page_grid(self, image: Image.Image) -> np.ndarray:
        """The page's patch vectors as they lie on it: (grid_h, grid_w, dim), 0 where it has none."""
        pages, inputs = self._page_batch([image])
        return self._grid(pages[0], inputs, image)

    def _grid(self, vectors: np.ndarray, inputs: Any, image: Image.Image) -> np.ndarray:
        """From the page's (n_tokens, dim)."""
        is_patch = self.processor.get_image_mask(inputs)[0].cpu().numpy()
        height, width = self._grid_size(inputs, image)
        return vectors[is_patch].reshape(height, width, self.dim)

    def _grid_size(self, inputs: Any, image: Image.Image) -> tuple[int, int]:
        raise NotImplementedError


class QwenEmbedder(ColpaliEngineEmbedder):
    """Qwen vision towers: pages keep their shape, and the processor says how many patches they became."""

    takes_visual_tokens = True

    def _page_costs(self, images: list[Image.Image]) -> list[int]:
        return [count_visual_tokens(self.processor.image_processor, image) for image in images]

    def _grid_size(self, inputs: Any, image: Image.Image) -> tuple[int, int]:
        merge = self.processor.image_processor.merge_size
        _, height, width = inputs["image_grid_thw"][0].tolist()  # patches, before merging
        return height // merge, width // merge


@register("colqwen2")
class ColQwen2(QwenEmbedder):
    model_class, processor_class = "ColQwen2", "ColQwen2Processor"
    default_checkpoint = "vidore/colqwen2-v1.0"


@register("biqwen2")
class BiQwen2(QwenEmbedder):
    model_class, processor_class = "BiQwen2", "BiQwen2Processor"
    multi_vector = False


@register("colqwen2_5")
class ColQwen25(QwenEmbedder):
    model_class, processor_class = "ColQwen2_5", "ColQwen2_5_Processor"
    default_checkpoint = "vidore/colqwen2.5-v0.2"


@register("biqwen2_5")
class BiQwen25(QwenEmbedder):
    model_class, processor_class = "BiQwen2_5", "BiQwen2_5_Processor"
    default_checkpoint = "nomic-ai/nomic-embed-multimodal-3b"
    multi_vector = False


@register("colqwen3")
class ColQwen3(QwenEmbedder):
    model_class, processor_class = "ColQwen3", "ColQwen3Processor"


@register("biqwen3")
class BiQwen3(QwenEmbedder):
    model_class, processor_class = "BiQwen3", "BiQwen3Processor"
    multi_vector = False


@register("colpali")
class ColPali(ColpaliEngineEmbedder):
    """PaliGemma squeezes every page into one square, so the grid is square whatever the page's shape."""

    model_class, processor_class = "ColPali", "ColPaliProcessor"
    default_checkpoint = "vidore/colpali-v1.3"

    def _mend(self, model: Any) -> None:
        # colpali-engine 0.3.18 ties the language model alone: under transformers 5 the head above it, which runs in
        # every forward pass, would be left without memory.
        model.model.tie_weights()

    def _forward(self, inputs: Any) -> list[np.ndarray]:
        # PaliGemma reads a prompt in both directions. Without token types transformers 5 does so only where nothing is
        # padded, and a query's vectors would depend on its company.
        inputs["token_type_ids"] = inputs["input_ids"] * 0  # (batch, length), all of it prompt
        return super()._forward(inputs)

    def _grid_size(self, inputs: Any, image: Image.Image) -> tuple[int, int]:
        width, height = self.processor.get_n_patches(image.size, self.model.config.vision_config.patch_size)
        return height, width


@register("bipali")
class BiPali(ColPali):
    # BiPaliProcessor adds scoring only, and under transformers 5 it loses its tokenizer.
    model_class, processor_class = "BiPali", "ColPaliProcessor"
    default_checkpoint = ""
    multi_vector = False


class TiledEmbedder(ColpaliEngineEmbedder):
    """Idefics3's way with pages: cut into tiles, a thumbnail added. The grid is put together from the tiles."""

    def _grid(self, vectors: np.ndarray, inputs: Any, image: Image.Image) -> np.ndarray:
        import torch

        mask = self.processor.get_local_image_mask(inputs)[0].cpu()
        size = self._tokens_across_and_down(image)
        grid = self.processor.rearrange_image_embeddings(torch.from_numpy(vectors), mask, size)  # (w, h, dim)
        return grid.permute(1, 0, 2).numpy()

    def _tokens_across_and_down(self, image: Image.Image) -> tuple[int, int]:
        """The page's grid in tokens, from the engine's `get_n_patches`, which takes (height, width) here."""
        raise NotImplementedError


@register("colidefics3")
class ColIdefics3(TiledEmbedder):
    model_class, processor_class = "ColIdefics3", "ColIdefics3Processor"
    default_checkpoint = "vidore/colSmol-256M"

    def _tokens_across_and_down(self, image: Image.Image) -> tuple[int, int]:
        tile = self.processor.image_processor.max_image_size["longest_edge"]
        across, down = self.processor.get_n_patches((image.height, image.width), tile)  # tiles
        side = int(self.processor.image_seq_len**0.5)  # tokens along a tile's edge
        return across * side, down * side


@register("biidefics3")
class BiIdefics3(ColIdefics3):
    model_class, processor_class = "BiIdefics3", "BiIdefics3Processor"
    default_checkpoint = ""
    multi_vector = False


@register("colmodernvbert")
class ColModernVBert(TiledEmbedder):
    model_class, processor_class = "ColModernVBert", "ColModernVBertProcessor"
    default_checkpoint = "ModernVBERT/colmodernvbert"

    def _tokens_across_and_down(self, image: Image.Image) -> tuple[int, int]:
        return self.processor.get_n_patches((image.height, image.width))  # tokens


@register("bimodernvbert")
class BiModernVBert(ColModernVBert):
    """Mean pooling over the tokens, as its class does it."""

    model_class, processor_class = "BiModernVBert", "BiModernVBertProcessor"
    default_checkpoint = "ModernVBERT/bimodernvbert"
    multi_vector = False
