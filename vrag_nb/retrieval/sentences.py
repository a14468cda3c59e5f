"""The dense text baseline: one vector a page from its text layer, by any sentence-embedding checkpoint of transformers.

The encoder's last states are pooled (the mean over the tokens, the first token, or the last one) and scaled to length
1; a checkpoint saved by sentence-transformers says which in `1_Pooling/config.json`. E5 and BGE models were trained
with words before each query and passage: `query_prefix` and `passage_prefix` put them there, blanks included, for
example "query: " and "passage: ".

A page is one passage: what is beyond `max_length` tokens is cut off, which for 512 tokens is about the first 350
English words. A page without text has the zero vector, so that it scores 0 with every query; `ocr` has such pages read
from their images (`retrieval.ocr`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from PIL import Image

from vrag_nb.retrieval.checkpoints import checkpoint_folder, choose_device, choose_dtype, load_checkpoint
from vrag_nb.retrieval.embedders import Embedder, register
from vrag_nb.retrieval.ocr import OcrMode, PageTexts
from vrag_nb.retrieval.token_budget import check_batching, token_batches

Pooling = Literal["mean", "cls", "last"]
POOLING_FILE = "1_Pooling/config.json"
POOLING_FLAGS: dict[str, Pooling] = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "last",
}
MAX_LENGTH = 512


@register("sentences")
class SentenceEmbedder(Embedder):
    """An encoder of sentences over the pages' text layer.

    Options: `pooling` (None: what the checkpoint says, else the mean); `query_prefix`, `passage_prefix`; `max_length`
    tokens of a page or query (None: 512, or what the model was made for if that is less); `ocr`: "never", "missing" or
    "always"; `batch_size` and `batch_tokens` (padding included) of a forward pass; `device`; `dtype`.
    """

    multi_vector = False
    default_checkpoint = "BAAI/bge-m3"

    def __init__(
        self,
        checkpoint: str | None = None,
        *,
        batch_size: int = 16,
        batch_tokens: int | None = None,
        device: str | None = None,
        dtype: str | None = None,
        pooling: Pooling | None = None,
        query_prefix: str = "",
        passage_prefix: str = "",
        max_length: int | None = None,
        ocr: OcrMode = "never",
    ) -> None:
        from transformers import AutoModel, AutoTokenizer

        check_batching(self.name, batch_size, batch_tokens)
        if pooling is not None and pooling not in get_args(Pooling):
            raise ValueError(f"{self.name}: pooling {pooling!r} is none of {', '.join(get_args(Pooling))}")
        self.checkpoint = checkpoint or self.default_checkpoint
        self.batch_size, self.batch_tokens = batch_size, batch_tokens
        self.query_prefix, self.passage_prefix = query_prefix, passage_prefix
        self.page_texts = PageTexts(ocr)
        self.device = choose_device(device)
        dtype = choose_dtype(self.name, dtype, self.device)
        loaded = load_checkpoint(
            self.name,
            self.checkpoint,
            AutoModel,
            AutoTokenizer,
            published=self.default_checkpoint,
            device=self.device,
            dtype=dtype,
            may_miss=("pooler.",),  # BERT's own, which sentence embedders do not use
        )
        self.model, self.tokenizer = loaded.model, loaded.processor
        self.max_length = self._checked_length(max_length)
        self.pooling = pooling or self._saved_pooling()
        self.dim = self.model.config.hidden_size
        self.options = {
            "dtype": dtype,
            "pooling": self.pooling,
            "query_prefix": query_prefix,
            "passage_prefix": passage_prefix,
            "max_length": self.max_length,
            "ocr": ocr,
        }
        settings = f"{self.pooling}/{self.max_length}/{query_prefix!r}/{passage_prefix!r}"
        self.fingerprint = f"{loaded.weights}/{dtype}/{settings}{self.page_texts.fingerprint}"

    def _checked_length(self, max_length: int | None) -> int:
        positions = getattr(self.model.config, "max_position_embeddings", None) or self.tokenizer.model_max_length
        most = min(positions, self.tokenizer.model_max_length)
        if max_length is None:
            return min(MAX_LENGTH, most)
        if not 8 <= max_length <= most:
            raise ValueError(f"{self.name}: max_length {max_length} must be 8 to {most} for {self.checkpoint}")
        return max_length

    def _saved_pooling(self) -> Pooling:
        path = self._pooling_file()
        if path is None:
            return "mean"
        saved: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        chosen = [saved["pooling_mode"]] if "pooling_mode" in saved else []
        chosen += [mode for flag, mode in POOLING_FLAGS.items() if saved.get(flag) is True]
        if len(set(chosen)) != 1 or chosen[0] not in get_args(Pooling):
            known = ", ".join(get_args(Pooling))
            raise ValueError(f"{self.name}: {self.checkpoint}: {POOLING_FILE} names no pooling of {known}; set pooling")
        return chosen[0]

    def _pooling_file(self) -> Path | None:
        folder = checkpoint_folder(self.name, self.checkpoint)
        if folder is not None:
            return folder / POOLING_FILE if (folder / POOLING_FILE).is_file() else None
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

        try:
            return Path(hf_hub_download(self.checkpoint, POOLING_FILE))
        except LocalEntryNotFoundError as error:  # the weights are cached, this file is not, the hub is out of reach
            raise ValueError(f"{self.name}: {self.checkpoint}: {POOLING_FILE} is not here; set pooling") from error
        except EntryNotFoundError:
            return None

    def embed_pages(self, images: list[Image.Image], texts: list[str]) -> list[np.ndarray]:
        return self._embed(self.page_texts(images, texts), self.passage_prefix)

    def embed_queries(self, queries: list[str]) -> list[np.ndarray]:
        return self._embed(queries, self.query_prefix)

    def _embed(self, texts: list[str], prefix: str) -> list[np.ndarray]:
        found = [np.zeros((1, self.dim), np.float32) for _ in texts]
        rows = [row for row, text in enumerate(texts) if text.strip()]
        if not rows:
            return found
        encoded = self.tokenizer([prefix + texts[row] for row in rows], truncation=True, max_length=self.max_length)
        tokens = [{name: values[item] for name, values in encoded.items()} for item in range(len(rows))]
        lengths = [len(item["input_ids"]) for item in tokens]
        order = np.argsort(lengths, kind="stable")  # little padding
        for group in token_batches([lengths[item] for item in order], self.batch_size, self.batch_tokens):
            vectors = self._forward([tokens[item] for item in order[group]])
            for item, vector in zip(order[group], vectors, strict=True):
                found[rows[item]] = vector[None]
        return found

    def _forward(self, tokens: list[dict[str, list[int]]]) -> np.ndarray:
        import torch

        inputs = self.tokenizer.pad(tokens, return_tensors="pt").to(self.device)
        with torch.inference_mode():
            states = self.model(**inputs).last_hidden_state.float()  # (batch, length, dim)
        mask = inputs["attention_mask"]  # (batch, length), padding on either side
        if self.pooling == "mean":
            pooled = (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        else:
            first, last = mask.argmax(1), mask.shape[1] - 1 - mask.flip(1).argmax(1)
            chosen = first if self.pooling == "cls" else last
            pooled = states[torch.arange(len(chosen), device=states.device), chosen]
        return torch.nn.functional.normalize(pooled, dim=1).cpu().numpy()
