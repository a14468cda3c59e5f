"""The ColPali family through colpali-engine: late interaction (ColPali, Faysse et al., arXiv 2407.01449) and its
single-vector twins.

A class here says three things: which model and processor class of colpali-engine it is, and how the image tokens of a
page lie on it (for similarity maps). Loading, batching, padding and pooling are shared. torch and colpali-engine are
imported when an embedder is loaded, not when this module is.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from PIL import Image

from vrag_nb.retrieval.embedders import (
    Embedder,
    SimilarityMap,
    batches,
    find_checkpoint,
    fingerprint_folder,
    register,
)


class ColpaliEngineEmbedder(Embedder):
    """Loads `model_class` and `processor_class` of colpali_engine.models and runs them in batches.

    Options: `batch_size` pages or queries a forward pass; `device` ("cuda" where there is one, else "cpu"); `dtype`
    ("bfloat16" on CUDA, "float32" on a CPU); `max_visual_tokens` a page (Qwen models only; None keeps the
    checkpoint's).
    """

    model_class: ClassVar[str]
    processor_class: ClassVar[str]
    default_checkpoint: ClassVar[str] = ""
    takes_visual_tokens: ClassVar[bool] = False

    def __init__(
        self,
        checkpoint: str | None = None,
        *,
        batch_size: int = 4,
        device: str | None = None,
        dtype: str | None = None,
        max_visual_tokens: int | None = None,
    ) -> None:
        import torch

        if batch_size < 1:
            raise ValueError(f"{self.name}: batch_size {batch_size} must be 1 or more")
        if max_visual_tokens is not None and not self.takes_visual_tokens:
            raise ValueError(f"{self.name} has a fixed page resolution: max_visual_tokens does not apply")
        self.checkpoint, self.batch_size = checkpoint or self.default_checkpoint, batch_size
        self.device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        dtype = dtype or ("bfloat16" if self.device.startswith("cuda") else "float32")
        self.model, self.processor, weights = self._load(getattr(torch, dtype))
        if max_visual_tokens is not None:
            self._limit_visual_tokens(max_visual_tokens)
        self.dim = self.embed_queries(["a"])[0].shape[1]
        self.options = {"dtype": dtype, "max_visual_tokens": max_visual_tokens}
        self.fingerprint = f"{weights}/{dtype}/{max_visual_tokens or 'as saved'}"

    def _load(self, dtype: Any) -> tuple[Any, Any, str]:
        import colpali_engine.models as engine

        if not self.checkpoint:
            raise ValueError(f"{self.name} has no default checkpoint: name a folder or a hub id")
        folder = find_checkpoint(self.checkpoint, self.name)
        source = str(folder or self.checkpoint)
        try:
            loader = getattr(engine, self.model_class)
            model, loading = loader.from_pretrained(
                source, dtype=dtype, output_loading_info=True, **self._key_mapping()
            )
            processor = getattr(engine, self.processor_class).from_pretrained(source)
        except RuntimeError as error:  # weights of other shapes
            raise ValueError(f"{self.name}: {self.checkpoint} does not fit {self.model_class}: {error}") from error
        except OSError as error:
            where = "it is no folder here, and the hub did not give it" if folder is None else "it cannot be loaded"
            raise FileNotFoundError(
                f"{self.name}: checkpoint {self.checkpoint}: {where} ({str(error).splitlines()[0]})"
            ) from error
        missing = sorted(loading["missing_keys"])
        if missing:  # transformers would go on with random weights in their place
            what = f"{len(missing)} weights missing, such as {missing[0]}"
            raise ValueError(f"{self.name}: {self.checkpoint} is no {self.model_class}: {what}")
        commit = getattr(model.config, "_commit_hash", None)
        return (
            model.to(self.device).eval(),
            processor,
            fingerprint_folder(folder) if folder else f"{self.checkpoint}@{commit}",
        )

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

    def _limit_visual_tokens(self, tokens: int) -> None:
        images = self.processor.image_processor
        square = (images.patch_size * images.merge_size) ** 2  # pixels a language token covers
        images.size["longest_edge"] = tokens * square
        # Well below the greatest, or a small page scaled up to the least would be rounded up over it.
        images.size["shortest_edge"] = min(images.size["shortest_edge"], tokens * square // 2)

    def embed_pages(self, images: list[Image.Image], texts: list[str]) -> list[np.ndarray]:
        return [array for batch in batches(images, self.batch_size) for array in self._page_batch(list(batch))[0]]

    def embed_queries(self, queries: list[str]) -> list[np.ndarray]:
        return [
            array
            for batch in batches(queries, self.batch_size)
            for array in self._forward(self.processor.process_queries(texts=list(batch)))
        ]

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
        encoded = self.processor.process_queries(texts=[query])
        tokens = self.processor.tokenizer.convert_ids_to_tokens(encoded["input_ids"][0].tolist())
        queries = self._forward(encoded)[0]  # (n_query_tokens, dim)
        pages, inputs = self._page_batch([image])
        grid = self._grid(pages[0], inputs, image)  # (grid_h, grid_w, dim)
        return SimilarityMap(tokens, np.einsum("nd,hwd->nhw", queries, grid))

    def _grid(self, vectors: np.ndarray, inputs: Any, image: Image.Image) -> np.ndarray:
        """The page's patch vectors as they lie on it: (grid_h, grid_w, dim), from its (n_tokens, dim)."""
        is_patch = self.processor.get_image_mask(inputs)[0].cpu().numpy()
        height, width = self._grid_size(inputs, image)
        return vectors[is_patch].reshape(height, width, self.dim)

    def _grid_size(self, inputs: Any, image: Image.Image) -> tuple[int, int]:
        raise NotImplementedError


class QwenEmbedder(ColpaliEngineEmbedder):
    """Qwen vision towers: pages keep their shape, and the processor says how many patches they became."""

    takes_visual_tokens = True

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


@register("nano-colqwen2_5")
class NanoColQwen25(ColQwen25):
    """The same class at nano size, from the weights this repository ships. One page at a time is no slower on a CPU."""

    default_checkpoint = "data/models/nano-retriever"


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

    def _grid_size(self, inputs: Any, image: Image.Image) -> tuple[int, int]:
        width, height = self.processor.get_n_patches(image.size, self.model.patch_size)
        return height, width


@register("bipali")
class BiPali(ColPali):
    model_class, processor_class = "BiPali", "BiPaliProcessor"
    default_checkpoint = ""
    multi_vector = False


@register("colidefics3")
class ColIdefics3(ColpaliEngineEmbedder):
    """Idefics3 cuts a page into tiles and adds a thumbnail: the grid is put together from the tiles."""

    model_class, processor_class = "ColIdefics3", "ColIdefics3Processor"
    default_checkpoint = "vidore/colSmol-256M"

    def _grid(self, vectors: np.ndarray, inputs: Any, image: Image.Image) -> np.ndarray:
        import torch

        mask = self.processor.get_local_image_mask(inputs)[0].cpu()
        tile = self.processor.image_processor.max_image_size["longest_edge"]
        across, down = self.processor.get_n_patches((image.height, image.width), tile)  # takes (height, width)
        side = int(self.processor.image_seq_len**0.5)  # tokens along a tile's edge
        size = (across * side, down * side)
        grid = self.processor.rearrange_image_embeddings(torch.from_numpy(vectors), mask, size)  # (w, h, dim)
        return grid.permute(1, 0, 2).numpy()


@register("biidefics3")
class BiIdefics3(ColIdefics3):
    model_class, processor_class = "BiIdefics3", "BiIdefics3Processor"
    default_checkpoint = ""
    multi_vector = False
