"""What profiles, indexes and commands name by text: a class or function as `module:name`, a checkpoint."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vrag_nb.paths import REPOSITORY, shown_path

SAVED = ("config.json", "adapter_config.json")  # a model could be loaded from a folder with one of these
_FOLDERS = (".", "/", "~", "data/", "results/")  # so begins no hub id


def load_object(name: str, what: str) -> Any:
    """The class or function at `module:name`. what: what it is to be, for the error.

    Raises ValueError naming both for a module or a name that is not there.
    """
    module, colon, attribute = name.partition(":")
    if not colon:
        raise ValueError(f"{what} {name!r}: name one of your own as module:name")
    try:
        return getattr(importlib.import_module(module), attribute)
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
