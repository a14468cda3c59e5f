"""What several commands share: how one is entered, its profile, its corpus, its amounts."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vrag_nb.paths import named_file, shown_path

if TYPE_CHECKING:
    from vrag_nb.profiles import Profile

Commands = Any  # argparse's subparsers


def command(
    commands: Commands, function: Callable[[argparse.Namespace], object], name: str, words: str, profile: bool = True
) -> argparse.ArgumentParser:
    """Enter a command; its parser, for the arguments of its own. profile: whether it works on one."""
    one: argparse.ArgumentParser = commands.add_parser(name, help=words, description=words)
    one.set_defaults(function=function)
    if profile:
        one.add_argument("--profile", default="nano", help="a profile of papermill_runs.yaml (default: nano)")
    one.add_argument("--file", metavar="YAML", help="another file of profiles and runs, here or in the repository")
    return one


def corpus_options(one: argparse.ArgumentParser) -> None:
    """Documents and corpus of one's own."""
    one.add_argument("--documents", type=Path, metavar="DIR", help="read these documents instead of the profile's")
    one.add_argument("--corpus", type=Path, metavar="DIR", help="the corpus folder, instead of the profile's")


def profile_of(options: argparse.Namespace) -> Profile:
    """The profile that was named. Raises ProfileError."""
    from vrag_nb.profiles import load_profile

    return load_profile(options.profile, file_of(options))


def file_of(options: argparse.Namespace) -> Path | None:
    """The file of profiles and runs that was named, in the current folder or else in the repository; None for none.

    Raises FileNotFoundError naming both places.
    """
    return named_file(options.file) if options.file is not None else None


def with_documents(options: argparse.Namespace) -> Profile:
    """The profile, with `--documents` and `--corpus` in place of its own where they are given."""
    profile, documents = profile_of(options), getattr(options, "documents", None)
    if options.corpus is None and documents is None:
        return profile
    if options.corpus is None:
        raise ValueError("--documents needs --corpus, the folder that page images and index go to")
    return profile.on_documents(documents, options.corpus) if documents else profile.in_corpus(options.corpus)


def need_index(profile: Profile, served: bool = False) -> None:
    """Raises FileNotFoundError that says how the index is made, and one that it is fused with. served: the first one is
    asked over HTTP where the profile names its server."""
    for one in (None if served and profile.retriever.server else profile, profile.fused):
        if one is not None and not (one.index_folder / "manifest.json").is_file():
            raise FileNotFoundError(
                f"profile {profile.name} has no index at {shown_path(one.index_folder)}: run `python -m vrag_nb prep "
                f"--profile {profile.name}` and `index` likewise (with --corpus, where that was given), or `make run`"
            )


def say_some(lines: Sequence[object], most: int = 10) -> None:
    """The first lines, and how many more there are."""
    for line in lines[:most]:
        print(line, file=sys.stderr)
    if len(lines) > most:
        print(f"and {len(lines) - most} more", file=sys.stderr)


def amount(text: str) -> float:
    """A number above 0."""
    number = float(text)
    if not 0 < number < float("inf"):
        raise ValueError(text)
    return number


ALL = "all"


def positive_or_all(text: str) -> int | str:
    """A whole number, 1 or more, or "all"."""
    return ALL if text == ALL else positive(text)


def positive(text: str) -> int:
    """A whole number, 1 or more."""
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def port(text: str) -> int:
    """The number of a TCP port."""
    number = int(text)
    if not 0 <= number <= 65_535:
        raise argparse.ArgumentTypeError(f"{number} is not in 0..65535")
    return number
