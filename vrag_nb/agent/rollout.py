"""Many questions at once: the concurrent rollout driver.

`concurrency` sessions are in flight. A batched policy gets all of them in one call, and a session that ends is replaced
before the next call, so no session waits for the slowest of a set; searches of a step go to the engine together. A
remote policy gets a thread per session instead. Either way one bad question, page or reply ends only its own session,
with the reason in its trajectory.

Every finished trajectory is written at once. Run again with the same file and it goes on where it was; sampling seeds
depend on the seed, the uid and the turn only, so an interrupted run ends with the trajectories of an unbroken one.

Any `World` can be driven: VRAG's `Environment`, VimRAG's `MemoryEnvironment`, or one of your own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Protocol, TypeVar

from tqdm.auto import tqdm

from vrag_nb.agent.policy import Conversation, Generation, Policy, check_factor, generate_safely, turn_seed
from vrag_nb.agent.task_settings import Task
from vrag_nb.agent.trajectory import Trajectory, TrajectoryLog, Turn
from vrag_nb.folder_lock import alone_in
from vrag_nb.records import Question


class InFlight(Protocol):
    """One question being worked on: what the policy is to continue, what has been done, whether it is over."""

    uid: str
    conversation: Conversation
    turns: list[Turn]
    done: bool


SessionT = TypeVar("SessionT", bound=InFlight)


class World(Protocol[SessionT]):
    """What happens between two generations. `advance` keeps errors with their session."""

    def start(self, question: Question, uid: str | None = None) -> SessionT: ...

    def advance(self, sessions: Sequence[SessionT], generations: Sequence[Generation]) -> None: ...

    def finish(self, session: SessionT, policy: str = "") -> Trajectory: ...


@dataclass(frozen=True)
class _Job:
    uid: str
    question: Question


def rollout(
    policy: Policy,
    environment: World[SessionT],
    questions: Sequence[Question],
    out: Path | None = None,
    *,
    concurrency: int = 8,
    samples: int = 1,
    seed: int = 0,
    retry_errors: bool = True,
    progress: bool = True,
) -> list[Trajectory]:
    """Work through `questions`; trajectories in their order, the samples of one question side by side.

    out: JSON lines file, appended to as sessions finish and resumed from. samples: trajectories per question; with
    more than one, uids are `{uid}#{sample}`. A question that reads differently now is asked anew; that `out` is of the
    same policy, environment and seed is for the caller to see to. seed: of the sampling. retry_errors: do again what
    `out` holds as errors. Raises ValueError when two questions share a uid or the environment's factor is not
    the policy's, FolderInUseError where another process writes to `out`.
    """
    jobs = [job for question in questions for job in _jobs(question, samples)]
    if len({job.uid for job in jobs}) < len(jobs):
        raise ValueError("two questions share a uid; uids must be unique within one rollout")
    if isinstance(settings := getattr(environment, "settings", None), Task):  # a world of one's own may have none
        check_factor(policy, settings.factor)
    drive = _batched if policy.batched else _threaded
    with alone_in(out) if out is not None else nullcontext():
        log = TrajectoryLog(out) if out is not None else None
        done = dict(log.done) if log is not None else {}
        if retry_errors:
            done = {uid: kept for uid, kept in done.items() if kept.status != "error"}
        questions_of = {job.uid: job.question for job in jobs}
        done = {
            uid: kept.model_copy(update={"reference": asked})
            for uid, kept in done.items()
            if (asked := questions_of.get(uid)) and kept.question == asked.query
        }
        open_jobs = [job for job in jobs if job.uid not in done]
        with tqdm(total=len(jobs), initial=len(jobs) - len(open_jobs), disable=not progress, desc="rollout") as bar:
            for trajectory in drive(policy, environment, open_jobs, max(1, concurrency), seed):
                if log is not None:
                    log.append(trajectory)
                done[trajectory.uid] = trajectory
                bar.update()
    return [done[job.uid] for job in jobs]


def _jobs(question: Question, samples: int) -> list[_Job]:
    if samples == 1:
        return [_Job(question.uid, question)]
    return [_Job(f"{question.uid}#{sample}", question) for sample in range(samples)]


def _batched(
    policy: Policy, environment: World[SessionT], jobs: Sequence[_Job], concurrency: int, seed: int
) -> Iterator[Trajectory]:
    """One call of the policy for all sessions in flight, refilled after every turn."""
    waiting, active = deque(jobs), list[SessionT]()
    while waiting or active:
        while waiting and len(active) < concurrency:
            job = waiting.popleft()
            active.append(environment.start(job.question, job.uid))
        seeds = [_next_seed(seed, session) for session in active]
        generations = generate_safely(policy, [session.conversation for session in active], seeds)
        environment.advance(active, generations)
        for session in active:
            if session.done:
                yield environment.finish(session, policy.name)
        active = [session for session in active if not session.done]


def _threaded(
    policy: Policy, environment: World[SessionT], jobs: Sequence[_Job], concurrency: int, seed: int
) -> Iterator[Trajectory]:
    """A thread per session in flight; yields in the order of finishing."""
    waiting = deque(jobs)
    running: set[Future[Trajectory]] = set()
    stopped = Event()
    with ThreadPoolExecutor(max_workers=concurrency) as pool:
        try:
            while waiting or running:
                while waiting and len(running) < concurrency:
                    running.add(pool.submit(_alone, policy, environment, waiting.popleft(), seed, stopped))
                finished, running = wait(running, return_when=FIRST_COMPLETED)
                for future in finished:
                    yield future.result()
        finally:
            stopped.set()  # interrupted: what is in flight ends after its present generation
            for future in running:
                future.cancel()


def _alone(policy: Policy, environment: World[SessionT], job: _Job, seed: int, stopped: Event) -> Trajectory:
    session = environment.start(job.question, job.uid)
    while not (session.done or stopped.is_set()):
        generations = generate_safely(policy, [session.conversation], [_next_seed(seed, session)])
        environment.advance([session], generations)
    return environment.finish(session, policy.name)


def _next_seed(seed: int, session: InFlight) -> int:
    return turn_seed(seed, session.uid, sum(turn.generations for turn in session.turns))
