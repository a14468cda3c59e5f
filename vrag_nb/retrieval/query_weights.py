"""How much each token of a query counts.

MaxSim counts "what", "deck" and "altitude" alike. Here a query's token vectors are made longer or shorter before they
are searched with, which weighs their terms of the sum:

    score(q, p) = sum over t of w(t) * max over patches of q_t . p        w(t) = softplus(b + a[id of t] + d . q_t)

a says what a token of the vocabulary is worth wherever it stands (an idf that is learned), d what its vector tells of
the word it is in. A few hundred numbers, beside the checkpoint in `query_weights.npz`; pages and their index do
not depend on them. `nano.weighing` learns them from training questions.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

QUERY_WEIGHTS = "query_weights.npz"  # in a checkpoint's folder


class QueryWeights:
    """pieces: (vocabulary,), a of every token. direction: (dim,), d. bias: b."""

    def __init__(self, pieces: np.ndarray, direction: np.ndarray, bias: float) -> None:
        self.pieces, self.direction, self.bias = pieces.astype(np.float32), direction.astype(np.float32), float(bias)

    def __call__(self, ids: Sequence[int], vectors: np.ndarray) -> np.ndarray:
        """The weights of a query's tokens, (n,): their ids, and their vectors (n, dim) before weighing."""
        return np.logaddexp(0, self.bias + self.pieces[np.asarray(ids)] + vectors @ self.direction)

    @property
    def fingerprint(self) -> str:
        data = self.pieces.tobytes() + self.direction.tobytes() + np.float32(self.bias).tobytes()
        return f"query weights {hashlib.sha256(data).hexdigest()[:8]}"

    def save(self, folder: Path) -> None:
        unfinished = Path(folder) / f".partial-{QUERY_WEIGHTS}"
        np.savez(unfinished, pieces=self.pieces, direction=self.direction, bias=self.bias)
        unfinished.replace(Path(folder) / QUERY_WEIGHTS)

    @classmethod
    def of_checkpoint(cls, folder: Path, dim: int, vocabulary: int) -> QueryWeights | None:
        """Those in a checkpoint's folder; None where there are none.

        Raises ValueError naming the file if it is broken or another model's.
        """
        path = Path(folder) / QUERY_WEIGHTS
        if not path.is_file():
            return None
        try:
            with np.load(path) as values:
                pieces, direction, bias = (values[name] for name in ("pieces", "direction", "bias"))
        except (zipfile.BadZipFile, ValueError, KeyError, OSError, EOFError) as error:
            raise ValueError(f"{path} holds no query weights ({error}): make it again or remove it") from error
        if pieces.shape != (vocabulary,) or direction.shape != (dim,):
            raise ValueError(
                f"{path} is of a model with {pieces.size} tokens and {direction.size} dimensions, not {vocabulary} and "
                f"{dim}: remove it, or fit it to this checkpoint"
            )
        return cls(pieces, direction, float(bias))
