"""One process at a time works in a folder or on a file: two would overwrite each other's logs and checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from vrag_nb.paths import shown_path


class FolderInUseError(RuntimeError):
    """Another process is at work there."""


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Hold a folder or a file, which need not be there yet and may be renamed meanwhile; who is killed lets go of it.

    Raises FolderInUseError where another process holds it.
    """
    folder = Path(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    path = folder.with_name(f".{folder.name}.lock")
    lock = FileLock(path, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise FolderInUseError(
            f"another process is at work in {shown_path(folder)}: wait until it ends, or name another place"
        ) from None
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()  # while it is held: filelock does not take one that has no name any more
        lock.release()
