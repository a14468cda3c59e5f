"""An index of a large corpus, embedded by many workers: the shards of a build as a Ray Data job, then the usual merge.

    report = build_on_cluster(corpus, index, profile.load_embedder, Cluster(workers=8, gpus=1, address="auto"))

`pages.parquet` goes in, the index comes out that `building.build_index` makes in one process: the same cut into shards
of consecutive pages, the same file a shard (`retrieval.units`), the same merge. Where a worker computes with as many
threads on the same kind of machine as the one process did, it is the same to the byte.

Every worker loads the embedder once and takes one shard at a time. A finished shard is a file in the index folder, so
after `kill -9` of the driver, a worker or the machine, the same command embeds only what is missing; another number of
workers, or none, may finish it. What cannot be embedded is named at the end, and all else is kept.

Corpus and index must lie on a file system that driver and workers share under the same path, and this package and Ray
(`pip install 'vrag-nb[cluster]'`) must be installed on every machine.
"""

from __future__ import annotations

import logging
import math
import os
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from vrag_nb.retrieval.building import BuildReport, build_index, embed_unit
from vrag_nb.retrieval.embedders import Embedder
from vrag_nb.retrieval.units import Unit, identity, unit_path

TRIES = 3  # of a shard whose workers die; a page that kills every worker must not hold the others up
TRIED = ".tried"  # the suffix of a file beside a shard's, a byte long for every try

Load = Callable[[], Embedder]
Runner = Callable[[dict[str, Any], list[dict[str, Any]]], Iterable[dict[str, Any]]]


class ClusterError(ValueError):
    """A cluster that is not there or too small, or shards that could not be embedded on it."""


class Cluster(BaseModel):
    """`workers` processes with `cpus` cores (as many threads) and `gpus` GPUs each.

    `address`: of a running Ray cluster ("auto": the one of this machine); None starts one on this machine and stops it
    at the end. A fraction of a GPU puts several workers on one.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    workers: int = Field(default=2, ge=1)
    cpus: float = Field(default=1, gt=0)
    gpus: float = Field(default=0, ge=0)
    address: str | None = None


class ClusterReport(BuildReport):
    """`by_worker`: the shards that each worker (`host:process id`) embedded in this run; none where nothing was new."""

    by_worker: dict[str, int] = Field(default_factory=dict)


class ShardResult(BaseModel):
    """What a worker says of a shard: its place among those to embed, its pages, and what went wrong, if anything."""

    number: int
    pages: int
    worker: str
    problem: str = ""


def build_on_cluster(
    corpus: Path,
    index_dir: Path,
    load: Load,
    cluster: Cluster,
    *,
    runner: Runner | None = None,
    **settings: Any,
) -> ClusterReport:
    """`building.build_index` with its `settings`, the pages embedded by workers; see the module's docstring.

    `load`: loads the embedder, here (its name, dimension and sample queries are needed) and in every worker; it is sent
    there by pickle. Where workers have GPUs and this machine has none, give the embedder's `dtype`: its default
    depends on the device, and a worker refuses to mix vectors. `runner`: what takes the rows through `ShardWorker`;
    None for Ray. Text is indexed here: it needs no workers.

    Raises what `build_index` raises, and ClusterError when Ray is missing, the cluster cannot be reached or has no room
    for a worker, or shards could not be embedded: it names the first, and the next run tries only those.
    """
    run = runner or RayRunner(cluster)
    embedder = load()
    results: list[ShardResult] = []

    def embed_units(
        corpus: Path, folder: Path, embedder: Embedder, units: Sequence[Unit], done: Callable[[int], object]
    ) -> None:
        arguments = {"corpus": corpus, "folder": folder, "load": load, "made_by": identity(embedder)}
        for path in folder.glob(f"*{TRIED}"):  # those of a run that was killed
            path.unlink()
        rows = [{"number": number, "unit": unit.model_dump_json()} for number, unit in enumerate(units)]
        for row in run(arguments, rows):
            results.append(ShardResult.model_validate(row))
            done(results[-1].pages)
        _raise_problems(units, results)

    report = build_index(
        Path(corpus).resolve(),
        Path(index_dir).resolve(),
        embedder,
        embed_units=embed_units,
        **settings,
    )
    return ClusterReport(**report.model_dump(), by_worker=Counter(result.worker for result in results))


def _raise_problems(units: Sequence[Unit], results: Sequence[ShardResult]) -> None:
    problem_of = {result.number: result.problem for result in results}
    failed = [number for number in range(len(units)) if problem_of.get(number, "lost")]
    if not failed:
        return
    first = units[failed[0]].pages
    raise ClusterError(
        f"{len(failed)} of {len(units)} shards could not be embedded; the others are kept, and the same command tries "
        f"only these again. The first, pages {first[0].page_id} to {first[-1].page_id}: "
        f"{problem_of.get(failed[0], 'Ray lost it with its worker')}"
    )


class ShardWorker:
    """Embeds shards: loads the embedder once, then answers every row {number, unit} with a ShardResult's fields.

    `made_by`: the `units.identity` that the embedder must have here too. `threads`: torch's, None leaves them. A
    problem, be it of loading, is an answer and no exception: Ray would start the worker anew for it.
    """

    def __init__(self, corpus: Path, folder: Path, load: Load, made_by: str, threads: int | None = None) -> None:
        self.corpus, self.folder = corpus, folder
        self.name = f"{socket.gethostname()}:{os.getpid()}"
        self.problem = ""
        try:
            if threads:
                import torch

                torch.set_num_threads(threads)
            self.embedder = load()
            if identity(self.embedder) != made_by:
                self.problem = (
                    f"the embedder of {self.name} is {identity(self.embedder)}, the driver's is {made_by}: "
                    "give both the same checkpoint and the same dtype"
                )
        except Exception as error:
            self.problem = f"the embedder cannot be loaded on {self.name}: {_words(error)}"

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        unit = Unit.model_validate_json(row["unit"])
        problem = self.problem or self._embed(unit)
        number, pages = int(row["number"]), 0 if problem else len(unit.pages)
        return ShardResult(number=number, pages=pages, worker=self.name, problem=problem).model_dump()

    def _embed(self, unit: Unit) -> str:
        """What went wrong, if anything. A worker that dies here is started again by Ray, with the same shard."""
        tried = unit_path(self.folder, unit.keys).with_suffix(TRIED)
        tries = tried.stat().st_size if tried.is_file() else 0
        problem = ""
        if tries < TRIES:
            with tried.open("ab") as file:
                file.write(b".")
            try:
                embed_unit(self.corpus, self.folder, self.embedder, unit)
            except Exception as error:
                problem = _words(error)
        else:
            problem = f"its worker died {tries} times (out of memory? an image that crashes the reader?)"
        tried.unlink(missing_ok=True)
        return problem


def _words(error: Exception) -> str:
    words = " ".join(str(error).split())
    return words if isinstance(error, ValueError | FileNotFoundError) else f"{type(error).__name__}: {words}"


# --- Ray --------------------------------------------------------------------------------------------------------------


class RayRunner:
    """Takes rows through `ShardWorker`s that Ray Data runs as actors, a fixed number, one shard at a time each.

    Answers come in the order in which they are ready; a worker that dies is started again. Raises ClusterError when it
    is made where Ray is not installed.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._ray = _import_ray()

    def __call__(self, arguments: dict[str, Any], rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        data, cluster = self._ray.data, self.cluster
        workers = min(cluster.workers, len(rows))
        with self._connected(workers):
            shards = data.from_items(rows, override_num_blocks=len(rows))
            shards.context.enable_progress_bars = shards.context.print_on_execution_start = False
            shards.context.max_errored_blocks = -1  # the other shards go on
            answers = shards.map(
                ShardWorker,
                fn_constructor_kwargs={**arguments, "threads": max(1, math.floor(cluster.cpus))},
                compute=data.ActorPoolStrategy(size=workers, max_tasks_in_flight_per_actor=1),
                num_cpus=cluster.cpus,
                num_gpus=cluster.gpus or None,
            )
            try:
                yield from answers.iter_rows()
            except self._ray.exceptions.RayError as error:
                raise ClusterError(f"Ray gave up: {_words(error)}; the same command goes on where it was") from error

    @contextmanager
    def _connected(self, workers: int) -> Iterator[None]:
        """Connected to Ray; a cluster that was started here is stopped at the end, one that was there is left alone."""
        ray, cluster = self._ray, self.cluster
        ours = not ray.is_initialized()
        if ours:
            start = {"address": cluster.address or "local", "log_to_driver": False, "logging_level": logging.WARNING}
            if cluster.address is None:
                start |= {"num_cpus": math.ceil(workers * cluster.cpus), "include_dashboard": False}
            try:
                ray.init(**start)
            except Exception as error:  # a bare one where its processes take too long to start
                where = f"no Ray cluster at {cluster.address}" if cluster.address else "Ray cannot be started"
                raise ClusterError(f"{where}: {_words(error)}") from error
        try:
            self._check_room()
            yield
        finally:
            if ours:
                ray.shutdown()

    def _check_room(self) -> None:
        """Ray would wait without an end for resources that no machine has."""
        most: dict[str, float] = {"CPU": 0, "GPU": 0}
        for node in self._ray.nodes():
            if node["Alive"]:
                most = {kind: max(there, node["Resources"].get(kind, 0)) for kind, there in most.items()}
        for kind, wanted in (("CPU", self.cluster.cpus), ("GPU", self.cluster.gpus)):
            if wanted > most[kind]:
                raise ClusterError(f"a worker wants {wanted:g} {kind}s, and no machine of the cluster has them")


def _import_ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
        import ray.data
        import ray.exceptions
    except ImportError as error:
        raise ClusterError(
            "building with workers needs Ray, which is not installed: pip install 'vrag-nb[cluster]', "
            "or build without workers"
        ) from error
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # what goes wrong is said in a ClusterError
    return ray
