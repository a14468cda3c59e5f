"""The text baseline: BM25 over the pages' text layer, through bm25s.

It looks like an embedder to the registry and like an index to the engine, so that a notebook compares it with a visual
retriever by changing a name; but it has no vectors (`dim` 0). Pages without a text layer can be in the corpus: they are
never found, unless the option `ocr` has them read from their images (`retrieval.ocr`). Pages that share no word with
the query are not returned, so a result may be shorter than `top_k`.
"""

from __future__ import annotations

import hashlib
import logging
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from unicodedata import category, normalize

import bm25s
import numpy as np
from PIL import Image

from vrag_nb.retrieval.embedders import Embedder, register
from vrag_nb.retrieval.index import PageIndex, Ranking, best
from vrag_nb.retrieval.ocr import OcrMode, PageTexts
from vrag_nb.retrieval.storage import REBUILD, IndexMismatchError, Manifest, StoredFile, store_folder

logging.getLogger("bm25s").setLevel(logging.WARNING)  # it tells of every build at DEBUG

OCR_CACHE = "ocr.jsonl"
SOFT_HYPHEN = "\xad"  # where a word may be broken; often left in text layers
# What is written without blanks between words: Han, Hiragana, Katakana, and Thai with its vowel signs and tone marks.
UNSPACED = "\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af"
UNSPACED += "\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff"
UNSPACED += "\u0e01-\u0e3a\u0e40-\u0e4e"
RUN = re.compile(f"[{UNSPACED}]+")
# Signs that are written onto a letter, as vowels of Indic scripts are: for Python they are no part of a word.
MARKS = "".join(sign for sign in map(chr, range(0x300, 0x30000)) if category(sign)[0] == "M" and not RUN.match(sign))
WORD = re.compile(rf"\d+(?:[.,]\d+)*|[{UNSPACED}]+|(?:[^\W{UNSPACED}]|[{MARKS}])+", re.UNICODE)


def words(text: str) -> list[str]:
    """Lower-case words and numbers ("1,234.5" stays one); no stemming, no stop words, the same on every machine.

    A run of Han, Kana or Thai has no blanks between its words: it becomes its overlapping pairs of characters, which a
    question about one of the words shares. A character that stands alone stays itself.
    """
    found = WORD.findall(normalize("NFKC", text).lower().replace(SOFT_HYPHEN, ""))
    return [part for word in found for part in (_pairs(word) if RUN.match(word) else [word])]


def _pairs(run: str) -> list[str]:
    return [run[start : start + 2] for start in range(max(1, len(run) - 1))]


@register("bm25")
class Bm25(Embedder):
    """The settings of a BM25 index (Lucene's variant): `k1` and `b`; `ocr`: "never", "missing" or "always"."""

    dim = 0
    multi_vector = False

    def __init__(self, k1: float = 1.5, b: float = 0.75, ocr: OcrMode = "never") -> None:
        self.k1, self.b, self.page_texts = k1, b, PageTexts(ocr)
        self.options = {"k1": k1, "b": b, "ocr": ocr}
        self.fingerprint = f"bm25 lucene k1={k1} b={b} words=2{self.page_texts.fingerprint}"

    def embed_pages(self, images: list[Image.Image], texts: list[str]) -> list[np.ndarray]:
        raise TypeError("bm25 has no vectors: build an index with it and search that")

    def embed_queries(self, queries: list[str]) -> list[np.ndarray]:
        raise TypeError("bm25 has no vectors: build an index with it and search that")

    def build(
        self, folder: Path, texts: Sequence[str], image: Callable[[int], Image.Image] | None = None
    ) -> tuple[str, dict[str, StoredFile]]:
        """Index the texts into `folder`; the name of what was stored, and its manifest entries.

        `image`: the image of the page at a position, for `ocr`; what was read is kept in `folder`, so that a killed
        build or a larger corpus reads no page twice. Raises ValueError when no page has any text.
        """
        texts = self.page_texts.of_corpus(texts, image, folder / OCR_CACHE)
        tokens = [words(text) for text in texts]
        if not any(tokens):
            hint = (
                "use a visual embedder, or ocr 'missing'"
                if self.page_texts.mode == "never"
                else "nor has OCR found any"
            )
            raise ValueError(f"no page of the corpus has a text layer, so bm25 cannot search it; {hint}")
        vocabulary = {word: number for number, word in enumerate(sorted({word for page in tokens for word in page}))}
        numbered = [[vocabulary[word] for word in page] for page in tokens]
        ranker = bm25s.BM25(method="lucene", k1=self.k1, b=self.b)
        ranker.index((numbered, vocabulary), create_empty_token=False, show_progress=False)
        made = folder / f".partial-{hashlib.sha256(self.fingerprint.encode()).hexdigest()[:8]}"
        shutil.rmtree(made, ignore_errors=True)
        ranker.save(made, show_progress=False)
        return store_folder(folder, "bm25", made)


class TextIndex(PageIndex):
    """BM25 opened for searching; queries are plain strings. Statistics are the whole corpus's, whatever the rows.

    Raises IndexMismatchError where text without blanks was indexed in whole runs, by an earlier version.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        super().__init__(folder, manifest)
        assert manifest.bm25 is not None
        self._ranker = bm25s.BM25.load(self.folder / manifest.bm25, show_progress=False)
        if any(RUN.search(word) and words(word) != [word] for word in self._ranker.vocab_dict):
            raise IndexMismatchError(
                f"{self.folder}: from before runs of Han, Kana and Thai were indexed by pairs of characters; {REBUILD}"
            )

    def _rank(self, queries: Sequence[str], top_k: int, rows: np.ndarray | None) -> list[Ranking]:
        inside = np.arange(len(self.page_ids)) if rows is None else np.unique(rows)
        return [self._rank_one(query, top_k, inside) for query in queries]

    def _rank_one(self, query: str, top_k: int, inside: np.ndarray) -> Ranking:
        known = [word for word in words(query) if word in self._ranker.vocab_dict]
        if not known:
            return np.zeros(0, np.int64), np.zeros(0, np.float32)
        scores = self._ranker.get_scores(known)[inside]
        return best(inside[scores > 0], scores[scores > 0], top_k)
