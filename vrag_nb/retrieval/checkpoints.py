"""Loading what an embedder runs: where, in which number format, from which folder, and errors that say what to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vrag_nb.loading import find_checkpoint, fingerprint_folder
from vrag_nb.paths import REPOSITORY


@dataclass(frozen=True)
class Checkpoint:
    """A model in evaluation mode on its device, its processor or tokenizer, and what identifies the weights."""

    model: Any
    processor: Any
    weights: str


def choose_device(device: str | None) -> str:
    """The device asked for; otherwise "cuda" where there is one, else "cpu"."""
    import torch

    return device or ("cuda" if torch.cuda.is_available() else "cpu")


def choose_dtype(kind: str, dtype: str | None, device: str) -> str:
    """The number format asked for; otherwise "bfloat16" on CUDA, "float32" elsewhere. Raises ValueError for no such."""
    import torch

    chosen = dtype or ("bfloat16" if device.startswith("cuda") else "float32")
    if not isinstance(getattr(torch, chosen, None), torch.dtype):
        raise ValueError(f"{kind}: dtype {chosen!r} is no number format of torch, such as 'bfloat16' or 'float32'")
    return chosen


def checkpoint_folder(kind: str, checkpoint: str, published: str = "") -> Path | None:
    """`loading.find_checkpoint` from the working directory or the repository; what it raises names the embedder."""
    try:
        return find_checkpoint(checkpoint, published, (Path(), REPOSITORY))
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{kind}: {error}") from None


def load_checkpoint(
    kind: str,
    checkpoint: str,
    model_class: Any,
    processor_class: Any,
    *,
    published: str = "",
    device: str,
    dtype: str,
    may_miss: Sequence[str] = (),
    mend: Callable[[Any], object] | None = None,
    **options: Any,
) -> Checkpoint:
    """Load a folder or a hub id with two classes that have `from_pretrained`.

    `published`: the hub id an error recommends. `may_miss`: beginnings of the names of weights that no embedding needs.
    `mend` is given the loaded model. `options` go to the model's `from_pretrained`. Raises ValueError when no
    checkpoint is named or its weights are another model's, FileNotFoundError when it is not there, saying what to
    download.
    """
    import torch

    if not checkpoint:
        raise ValueError(f"{kind} has no default checkpoint: name a folder or a hub id")
    folder = checkpoint_folder(kind, checkpoint, published)
    source = str(folder or checkpoint)
    name = model_class.__name__
    try:
        model, loading = model_class.from_pretrained(
            source, dtype=getattr(torch, dtype), output_loading_info=True, **options
        )
        processor = processor_class.from_pretrained(source)
    except RuntimeError as error:  # weights of other shapes
        raise ValueError(f"{kind}: {checkpoint} does not fit {name}: {error}") from error
    except OSError as error:
        reason = str(error).splitlines()[0]
        if folder is None:
            fetch = f"hf download {checkpoint} --local-dir data/models/{checkpoint.rpartition('/')[2]}"
            what = f"it is no folder here, and the hub did not give it; download it (`{fetch}`) and name that folder"
        else:
            what = "it cannot be loaded; is it a complete download?"
        raise FileNotFoundError(f"{kind}: checkpoint {checkpoint}: {what} ({reason})") from error
    missing = sorted(key for key in loading["missing_keys"] if not key.startswith(tuple(may_miss)))
    if missing:  # transformers would go on with random weights in their place
        raise ValueError(f"{kind}: {checkpoint} is no {name}: {len(missing)} weights missing, such as {missing[0]}")
    if mend is not None:
        mend(model)
    weights = fingerprint_folder(folder) if folder else f"{checkpoint}@{getattr(model.config, '_commit_hash', None)}"
    return Checkpoint(model.to(device).eval(), processor, weights)
