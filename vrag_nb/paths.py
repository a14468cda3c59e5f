"""Where the project lies, so that a notebook, a test and a terminal mean the same file by the same name."""

from __future__ import annotations

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]


def project_path(path: str | Path) -> Path:
    """`path` as it is when absolute, else below the repository's root, whatever the working directory is."""
    return REPOSITORY / Path(path).expanduser()


def named_file(name: str | Path) -> Path:
    """A file that somebody named: in the current folder, else in the repository.

    Raises FileNotFoundError naming both places.
    """
    named = Path(name).expanduser()
    for place in (Path.cwd() / named, project_path(named)):
        if place.is_file():
            return place
    where = "" if named.is_absolute() else f", neither in {Path.cwd()} nor in the repository: name it with its folder"
    raise FileNotFoundError(f"there is no file {named}{where}")


def free_path(path: Path) -> Path:
    """The path of what is put aside, `a.stale` or `a.stale.b`; where that is taken `a.stale-2`, `a.stale-3`, ..."""
    name, mark, suffix = path.name.partition(".stale")
    number, free = 1, path
    while free.exists():
        number += 1
        free = path.with_name(f"{name}{mark}-{number}{suffix}")
    return free


def shown_path(path: str | Path) -> str:
    """The path for people: relative to the repository where it lies inside, so that nothing printed names a machine."""
    path = Path(path)
    return path.relative_to(REPOSITORY).as_posix() if path.is_relative_to(REPOSITORY) else str(path)
