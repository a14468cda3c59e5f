"""What documents are called: the id that prep gives to a file, and that a question means by the file's name."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from pathlib import PurePosixPath

MAX_NAME_BYTES = 200  # leaves room for the page number and the suffix within a file system's 255
PICTURE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".tif", ".tiff", ".gif", ".bmp")
VIDEO_SUFFIXES = (".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi")


def document_of(file_name: str) -> str:
    """The document of a file, named with its path below the folder: `North/Report.PDF` is `North__Report`.

    A name without a suffix that prep reads is taken for the document's own.
    """
    plain = file_name.removesuffix(known_suffix(file_name))
    return safe_name("__".join(PurePosixPath(plain).parts)) if plain else ""


def file_of(document: str, file_name: str) -> str:
    """A name of a file of the kind that `file_name` is, else a PDF, whose `document_of` is `document`."""
    return document + (known_suffix(file_name) or ".pdf")


def known_suffix(file_name: str) -> str:
    """The file's suffix as it is written, where prep reads such files; else ""."""
    suffix = PurePosixPath(file_name).suffix
    return suffix if suffix.lower() in (".pdf", *PICTURE_SUFFIXES, *VIDEO_SUFFIXES) else ""


def safe_name(name: str) -> str:
    """The name without what a file system, a URL or a shell would stumble over; cut, with a hash, when too long."""
    name = unicodedata.normalize("NFC", name)
    safe = re.sub(r'[\x00-\x1f\x7f<>:"/\\|?*]', "_", name)
    safe = safe.encode("utf-8", "replace").decode("utf-8").strip(" ").lstrip(".") or "document"
    if len(safe.encode()) > MAX_NAME_BYTES:
        safe = safe.encode()[: MAX_NAME_BYTES - 9].decode("utf-8", "ignore") + "~" + short_hash(name)
    return safe


def short_hash(name: object) -> str:
    return hashlib.sha256(str(name).encode("utf-8", "surrogateescape")).hexdigest()[:8]
