"""Documents to page images, page images to an index, an index to a search server."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from vrag_nb.commands.options import (
    Commands,
    amount,
    command,
    corpus_options,
    need_index,
    port,
    positive,
    say_some,
    with_documents,
)
from vrag_nb.paths import shown_path
from vrag_nb.retrieval.serving.options import add_serving_arguments

if TYPE_CHECKING:
    from vrag_nb.profiles import Profile
    from vrag_nb.retrieval.building import BuildReport


def add(commands: Commands) -> None:
    """Enter `prep`, `index` and `serve`."""
    corpus_options(command(commands, prep, "prep", "documents to page images"))
    one = command(commands, index, "index", "page images to index")
    corpus_options(one)
    _cluster_options(one)
    one = command(commands, serve, "serve", "the search engine over HTTP")
    corpus_options(one)
    one.add_argument("--host", default="127.0.0.1")
    one.add_argument("--port", type=port, default=8001)
    add_serving_arguments(one)


def prep(options: argparse.Namespace) -> None:
    """Documents to page images."""
    profile = with_documents(options)
    report = profile.prepare_corpus()
    print(f"{report.documents} documents, {report.pages} pages in {shown_path(profile.corpus_folder)}")
    for entry in report.skipped:
        print(f"  skipped {entry.place}: {entry.reason}")
    say_some([f"  {entry.place}: {entry.reason}" for entry in report.notes])


def index(options: argparse.Namespace) -> None:
    """Page images to an index."""
    profile = with_documents(options)
    report = _build_on_cluster(profile, options) if _wants_workers(options) else profile.build_index()
    done = f"{report.embedded} embedded, {report.reused} as before, {report.dropped} dropped"
    resumed = f"; {report.resumed} of those embedded were left by a run that was stopped" if report.resumed else ""
    print(f"{report.pages} pages ({done}) in {shown_path(profile.index_folder)}{resumed}")


def _wants_workers(options: argparse.Namespace) -> bool:
    given = [name for name in ("ray", "cpus", "gpus", "shard_pages") if getattr(options, name) is not None]
    if given and options.workers is None:
        raise ValueError(f"--{given[0].replace('_', '-')} needs --workers, the number of workers")
    return options.workers is not None


def _build_on_cluster(profile: Profile, options: argparse.Namespace) -> BuildReport:
    """The index, embedded by Ray workers; one that it is fused with is built here."""
    from vrag_nb.retrieval.cluster import Cluster, build_on_cluster

    profile.build_fused()
    report = build_on_cluster(
        profile.corpus_folder,
        profile.index_folder,
        profile.load_embedder,
        Cluster(workers=options.workers, cpus=options.cpus or 1, gpus=options.gpus or 0, address=options.ray),
        shard_pages=options.shard_pages,
        compression=profile.retriever.compression,
        single_vector=profile.retriever.single_vector,
    )
    for worker, shards in sorted(report.by_worker.items()):
        print(f"  worker {worker}: {shards} shards")
    return report


def serve(options: argparse.Namespace) -> None:
    """The search engine over HTTP."""
    from vrag_nb.retrieval.serving.options import serving_options

    serving = serving_options(options)
    profile = with_documents(options)
    need_index(profile)
    if profile.retriever.fused_with:
        words = f"serving {profile.retriever.kind} alone: a profile that names this server and fused_with fuses the two"
        print(words, file=sys.stderr)

    from vrag_nb.retrieval.server import check_address, run_server
    from vrag_nb.retrieval.serving.reload import reopened

    check_address(options.host, options.port)
    run_server(
        profile.open_engine(),
        profile.corpus_folder,
        options.host,
        options.port,
        serving,
        lambda engine: reopened(engine, profile.open_engine),
    )


def _cluster_options(one: argparse.ArgumentParser) -> None:
    group = one.add_argument_group("many workers", "embed on a Ray cluster; needs pip install 'vrag-nb[cluster]'")
    group.add_argument("--workers", type=positive, metavar="N", help="so many workers, started on this machine")
    group.add_argument("--ray", metavar="ADDRESS", help="... on the machines of a running cluster, such as auto")
    group.add_argument("--cpus", type=amount, metavar="N", help="cores and threads of a worker (default: 1)")
    group.add_argument("--gpus", type=amount, metavar="N", help="GPUs of a worker (default: 0)")
    group.add_argument("--shard-pages", type=positive, metavar="N", help="pages of a shard (default: 64)")
