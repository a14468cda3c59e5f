"""Where a result comes from: the commit, the versions, the machine. Written beside every figure."""

from __future__ import annotations

import hashlib
import importlib.metadata
import inspect
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from vrag_nb.paths import REPOSITORY

PACKAGES = (
    "torch",
    "transformers",
    "colpali-engine",
    "faiss-cpu",
    "bm25s",
    "pymupdf",
    "ir-measures",
    "numpy",
    "pillow",
)


def provenance() -> dict[str, Any]:
    """`{commit, versions, hardware}` of this process. Nothing in it names a person, a host or a path."""
    return {"commit": git_commit(), "versions": package_versions(), "hardware": hardware()}


def own_code(part: object) -> str:
    """The checksum of the file that defines a function, a class or an object's class, if that is somebody's own.

    It may be edited between two runs. Empty for this package's parts, and for what a notebook defines.
    """
    found: Any = part if inspect.isroutine(part) or inspect.isclass(part) else type(part)
    if str(getattr(found, "__module__", "")).startswith("vrag_nb."):
        return ""
    try:
        return hashlib.sha256(Path(inspect.getfile(found)).read_bytes()).hexdigest()
    except (OSError, TypeError):
        return ""


def git_commit(repository: Path = REPOSITORY) -> str | None:
    """The checked-out commit, with "+changes" when tracked files differ from it; None outside a git checkout.

    Files under results/ do not count: a run rewrites them before it is over, and nothing is computed from them.
    """
    try:
        commit = _git(repository, "rev-parse", "HEAD")
        changed = _git(repository, "status", "--porcelain", "--untracked-files=no", "--", ".", ":!results")
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{commit}+changes" if changed else commit


def package_versions(packages: tuple[str, ...] = PACKAGES) -> dict[str, str]:
    """Versions of Python and of the packages a figure may depend on; packages that are not installed are left out."""
    versions = {"python": platform.python_version()}
    for package in packages:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def hardware() -> dict[str, Any]:
    """`{cpu, cores, memory_gb, gpus}`: cores are those this process may use; memory None where it cannot be read."""
    return {"cpu": _cpu_model(), "cores": _cores(), "memory_gb": _memory_gb(), "gpus": _gpus()}


def _git(repository: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "--no-optional-locks", "-C", str(repository), *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=20,
    )
    return done.stdout.strip()


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        return os.cpu_count() or 1


def _memory_gb() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (AttributeError, ValueError, OSError):
        return None


def _gpus() -> list[str]:
    try:
        import torch  # heavy, and a text-only run need not have it
    except ImportError:
        return []
    return [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
