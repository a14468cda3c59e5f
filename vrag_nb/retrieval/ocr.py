"""The text of pages that have none: scans, and exports of slides, read by optical character recognition (rapidocr).

    reader = OcrReader()                 # needs the extra: pip install 'vrag-nb[ocr]'
    text = reader.read(image)

    page_texts = PageTexts("missing")    # what a text embedder reads: the text layer, OCR where it is empty
    texts = page_texts(images, texts)

The models are those that lie in rapidocr's wheel (PP-OCRv6 small, Chinese, English and Latin letters), so that nothing
is downloaded. A page takes seconds on a CPU: `cache`, a file of one line a page, keeps what was read, so that a killed
build reads no page twice.

Detection gives lines of text in no order that respects columns. Here they are put into reading order by recursive cuts
along white space (XY-cut; Nagy and Seth 1984): columns of prose one after another, everything else row by row, so that
a table keeps its rows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from PIL import Image

from vrag_nb.files import append_line, read_lines

OcrMode = Literal["never", "missing", "always"]
MODELS = "PP-OCRv6 small"
INSTALL = "reading page images needs rapidocr: pip install 'vrag-nb[ocr]', or set ocr to 'never'"
PROSE = 8.0  # a column of prose is so many line heights wide or more; cells of a table are narrower
SAME_ROW = 0.5  # lines whose middles are nearer than so many line heights stand in one row


class OcrReader:
    """Reads page images. Raises ImportError naming the extra where rapidocr is not installed.

    `cache`: a file of the texts read before, by checksum of the image; it is made when it is not there.
    """

    def __init__(self, cache: Path | None = None, threads: int | None = None) -> None:
        try:
            from rapidocr import ModelType, OCRVersion, RapidOCR
        except ImportError as error:
            raise ImportError(f"{INSTALL} ({error})") from error
        stages = {"ocr_version": OCRVersion.PPOCRV6, "model_type": ModelType.SMALL}
        parameters: dict[str, Any] = {
            f"{part}.{key}": value for part in ("Det", "Rec") for key, value in stages.items()
        }
        if threads is not None:
            parameters["EngineConfig.onnxruntime.intra_op_num_threads"] = threads
        self._read = RapidOCR(params={"Global.log_level": "error", **parameters})
        self._cache = Path(cache) if cache else None
        self._known = _read_cache(self._cache) if self._cache else {}

    def read(self, image: Image.Image) -> str:
        """The page's text, a line for every row, in reading order; "" for a page without any."""
        image = image.convert("RGB")
        key = hashlib.sha256(f"{MODELS} {image.size}\0".encode() + image.tobytes()).hexdigest()
        if key not in self._known:
            self._known[key] = self._recognise(image)
            if self._cache:
                entry = {"image": key, "text": self._known[key]}
                append_line(self._cache, json.dumps(entry, ensure_ascii=False))
        return self._known[key]

    def _recognise(self, image: Image.Image) -> str:
        found: Any = self._read(np.asarray(image)[:, :, ::-1])  # it takes BGR
        if found.boxes is None or found.txts is None:
            return ""
        corners = np.asarray(found.boxes, np.float64)  # (lines, 4 corners, x and y), page pixels
        boxes = np.concatenate([corners.min(axis=1), corners.max(axis=1)], axis=1)  # x0, y0, x1, y1
        return "\n".join(" ".join(found.txts[line] for line in row) for row in reading_order(boxes))


class PageTexts:
    """What a text embedder reads of a page.

    `mode`: "never" the text layer alone; "missing" the image where the text layer is empty; "always" the image. The
    reader is loaded at the first page that needs it: to search an index made with OCR, rapidocr need not be there.
    """

    def __init__(self, mode: OcrMode = "never") -> None:
        if mode not in get_args(OcrMode):
            raise ValueError(f"ocr {mode!r} is none of {', '.join(get_args(OcrMode))}")
        self.mode = mode
        self.fingerprint = "" if mode == "never" else f" ocr={mode} ({MODELS})"
        self._reader: OcrReader | None = None

    def __call__(self, images: Sequence[Image.Image], texts: Sequence[str]) -> list[str]:
        return self.of_corpus(texts, lambda row: images[row])

    def of_corpus(
        self, texts: Sequence[str], image: Callable[[int], Image.Image] | None, cache: Path | None = None
    ) -> list[str]:
        """The same with images asked for one by one, by position. Raises ValueError when one is needed and none given.

        `cache`: of the reader, where this is its first page.
        """
        found = list(texts)
        for row, text in enumerate(texts):
            if self.mode == "always" or (self.mode == "missing" and not text.strip()):
                if image is None:
                    raise ValueError(f"ocr {self.mode!r} needs the page images, which were not given")
                self._reader = self._reader or OcrReader(cache)
                found[row] = self._reader.read(image(row))
        return found


def reading_order(boxes: np.ndarray) -> list[list[int]]:
    """Rows of lines in reading order: indices into `boxes`, (n, 4) as x0, y0, x1, y1 in pixels; each once."""
    if not len(boxes):
        return []
    height = float(np.median(boxes[:, 3] - boxes[:, 1])) or 1.0
    rows: list[list[int]] = []
    to_cut = [np.arange(len(boxes))]
    while to_cut:
        lines = to_cut.pop()
        pieces = _columns(boxes, lines, height) or _cut(boxes, lines, axis=1)
        if pieces:
            to_cut += reversed(pieces)  # the left or upper one is next
        else:
            rows += _rows(boxes, lines, height)
    return rows


def _columns(boxes: np.ndarray, lines: np.ndarray, height: float) -> list[np.ndarray]:
    """The lines left and right of the widest vertical white space; none where a side is no prose."""
    pieces = _cut(boxes, lines, axis=0)
    prose = [len(piece) > 1 and np.median(boxes[piece, 2] - boxes[piece, 0]) >= PROSE * height for piece in pieces]
    return pieces if all(prose) else []


def _cut(boxes: np.ndarray, lines: np.ndarray, axis: int) -> list[np.ndarray]:
    """The lines before and after the widest gap along an axis (0 across, 1 down); none where there is no gap."""
    order = lines[np.argsort(boxes[lines, axis], kind="stable")]
    gaps = boxes[order[1:], axis] - np.maximum.accumulate(boxes[order, axis + 2])[:-1]
    if not len(gaps) or gaps.max() <= 0:
        return []
    middle = int(gaps.argmax()) + 1
    return [order[:middle], order[middle:]]


def _rows(boxes: np.ndarray, lines: np.ndarray, height: float) -> list[list[int]]:
    """The lines grouped by the height of their middles, from the left in every row."""
    middles = boxes[:, [1, 3]].mean(axis=1)
    rows: list[list[int]] = []
    for line in lines[np.argsort(middles[lines], kind="stable")]:
        if rows and middles[line] - middles[rows[-1][0]] < SAME_ROW * height:
            rows[-1].append(int(line))
        else:
            rows.append([int(line)])
    return [sorted(row, key=lambda line: boxes[line, 0]) for row in rows]


def _read_cache(path: Path) -> dict[str, str]:
    """What is in the cache; lines that a killed process left half written are left out."""
    if not path.is_file():
        return {}
    known = {}
    for line in read_lines(path):
        try:
            entry = json.loads(line)
            known[entry["image"]] = entry["text"]
        except (ValueError, KeyError, TypeError):
            continue
    return known
