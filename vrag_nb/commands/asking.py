"""One question asked, and a run's notebooks executed."""

from __future__ import annotations

import argparse
import time

from vrag_nb.commands.options import Commands, command, file_of, need_index, profile_of


def add(commands: Commands) -> None:
    """Enter `ask` and `run`."""
    one = command(commands, ask, "ask", "ask one question and watch the agent work")
    one.add_argument("question")
    one = command(commands, run, "run", "execute a run's notebooks headless", profile=False)
    one.add_argument("name", help="a run of papermill_runs.yaml, such as nano")
    one.add_argument("--force", action="store_true", help="execute what is up to date as well")


def ask(options: argparse.Namespace) -> int:
    """Stream one question's thoughts, actions and answer; exit code 1 where there is none."""
    profile = profile_of(options)
    if not options.question.strip():
        raise ValueError("the question is empty")
    need_index(profile, served=True)
    agent = profile.load_agent()

    from vrag_nb.display.transcript import NO_ANSWER, transcript

    line = ""
    for line in transcript(agent, options.question):
        print(line, flush=True)
    return int(line == NO_ANSWER)


def run(options: argparse.Namespace) -> None:
    """A run's notebooks."""
    from vrag_nb.runs import execute_run

    started = time.perf_counter()
    page = execute_run(options.name, file_of(options), force=options.force)
    print(f"done in {time.perf_counter() - started:.0f} s; the report: {page}")
