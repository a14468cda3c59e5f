"""What is named by text: a class or function as `module:name`, and a checkpoint, with a checksum of what it holds."""

from __future__ import annotations

import hashlib
import pkgutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vrag_nb.paths import REPOSITORY, shown_path

SAVED = ("config.json", "adapter_config.json")  # a model could be loaded from a folder with one of these
WEIGHTS_AND_SETTINGS = ("*.safetensors", "*.bin", "*config*.json", "tokenizer*.json", "*tokens*.json", "*.model")
SAMPLED_ABOVE = 256 * 2**20  # bytes; a larger weight file is fingerprinted by its size and three samples
_FOLDERS = (".", "/", "~", "data/", "results/")  # so begins no hub id


def load_object(name: str, what: str) -> Any:
    """The class or function at `module:name`. what: what it is to be, for the error.

    Raises ValueError naming both for a module or a name that is not there.
    """
    if ":" not in name:
        raise ValueError(f"{what} {name!r}: name one of your own as module:name")
    try:
        return pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{what} {name!r} cannot be imported: {error}") from error


def find_checkpoint(name: str, published: str = "", places: Sequence[Path] = (REPOSITORY,)) -> Path | None:
    """The checkpoint's folder, absolute or below one of `places`; None for what can only be a hub id (`owner/name`).

    published: the hub id that an error says to download. Raises FileNotFoundError when it looks like a folder and there
    is none, or none that a model could be loaded from.
    """
    for folder in (place / Path(name).expanduser() for place in places):
        if folder.is_dir():
            if any((folder / file).is_file() for file in SAVED):
                return folder
            raise FileNotFoundError(f"{shown_path(folder)} holds no {SAVED[0]}: it is not a saved checkpoint")
    if name.count("/") == 1 and not name.startswith(_FOLDERS):
        return None
    hint = "make it with notebook 00_nano_pretraining, check out data/models, or download it"
    if published.count("/") == 1:
        hint = f"download it (`hf download {published} --local-dir {name}`)"
    raise FileNotFoundError(f"no checkpoint folder at {name}; {hint}, or name another checkpoint")


def fingerprint_folder(folder: Path) -> str:
    """sha256 over a checkpoint folder's weights, configuration and tokenizer; its documentation does not count."""
    digest = hashlib.sha256()
    for path in sorted({path for pattern in WEIGHTS_AND_SETTINGS for path in folder.glob(pattern)}):
        digest.update(path.name.encode() + _size_and_content(path))
    return digest.hexdigest()


def fingerprint_file(path: Path) -> str:
    """sha256 of a checkpoint that is a single file, whatever it is called."""
    return hashlib.sha256(_size_and_content(path)).hexdigest()


def _size_and_content(path: Path) -> bytes:
    """A file's size and the checksum of what it holds; of a large one, three samples."""
    size = path.stat().st_size
    found = f"\0{size}\0".encode()
    with path.open("rb") as file:
        if size <= SAMPLED_ABOVE:
            return found + hashlib.file_digest(file, "sha256").digest()
        for start in (0, size // 2, size - 2**20):
            file.seek(start)
            found += file.read(2**20)
    return found
