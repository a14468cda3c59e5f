"""Trajectories: what happened, turn by turn, as one JSON line each.

A trajectory holds every turn's text, the action read from it, the hits it looked at, what the environment answered,
and the exact token ids and log-probabilities. It stores no pixels: an observation's image is reproduced from the page
image, the crop box (page pixels) and the size shown, through `agent.geometry.render`. That makes one record enough to
resume a run, draw the inspector, train on it, and replay it. VimRAG's trajectories are the same record with the memory
graph and, in every turn, what was remembered and memorised (`agent.memory_records`).

Files are JSON lines. A writer appends one whole line per finished trajectory; a process killed in the middle of a line
leaves a tail without a newline, which readers skip and the next writer removes, so that trajectory is made again.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from PIL import Image as PILImage
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from vrag_nb.agent import geometry
from vrag_nb.agent.actions import Action, Grammar
from vrag_nb.agent.memory_records import MemoryTurn, Reply
from vrag_nb.agent.policy import Conversation, FinishReason, Image, Message, Text
from vrag_nb.files import is_json, read_lines, replacing
from vrag_nb.records import Hit, Question


class PageImages(Protocol):
    """Where page images come from: a `PageStore`, or a search server."""

    def image(self, page_id: str) -> PILImage.Image: ...


class Observation(BaseModel):
    """What the environment answered. A notice is text only; a page or a crop is an image, sometimes with words around.

    caption: what is said before the image. text: what is said after it, or the notice.
    """

    kind: Literal["page", "crop", "notice"]
    caption: str = ""
    text: str = ""
    page_id: str | None = None
    image: str | None = None  # page image path relative to the corpus folder
    page_size: tuple[int, int] | None = None  # page pixels
    crop_box: tuple[int, int, int, int] | None = None  # page pixels; None = the whole page
    shown_size: tuple[int, int] | None = None  # (width, height) the model saw, after the pixel budget
    image_tokens: int = 0


class Turn(BaseModel):
    """One turn of the model and what came back.

    hits: the whole ranked list the search looked at. observation: None after an answer and after the forced turn.
    also_shown: further pages of a search that shows more than one; empty by default. logprobs: one per token id.
    seconds: generation and observation together. forced: the extra last turn that asks for an answer.
    finish_reason: why the generation ended (`policy.Generation`), None in records that do not say. redrawn: whether a
    grounding expert redrew its box, None where none was asked. memory: VimRAG's side of the turn, with the generations
    after the first; None for VRAG.
    """

    index: int
    text: str
    thought: str
    action: Action
    hits: list[Hit] = Field(default_factory=list)
    observation: Observation | None = None
    also_shown: list[Observation] = Field(default_factory=list)
    token_ids: list[int] = Field(default_factory=list)
    logprobs: list[float] = Field(default_factory=list)
    prompt_tokens: int = 0
    seconds: float = 0.0
    forced: bool = False
    finish_reason: FinishReason | None = None
    redrawn: bool | None = Field(default=None, exclude_if=lambda value: value is None)
    memory: MemoryTurn | None = None

    @property
    def generations(self) -> int:
        """How often the model was asked in this turn: once, and again for each reply after a VimRAG search."""
        return 1 + (len(self.memory.replies) if self.memory else 0)

    @property
    def invalid(self) -> int:
        """How many of its generations were no valid action: the action itself, and VimRAG's failed memorising.

        On the extra turn only an answer is one.
        """
        replies = self.memory.replies if self.memory else []
        return (self.taken == "invalid") + sum(bool(reply.notice) for reply in replies)

    @property
    def cut_off(self) -> list[bool]:
        """Of each of its generations whether the token limit ended it; of those whose record says why they ended."""
        replies = self.memory.replies if self.memory else []
        reasons = [self.finish_reason, *(reply.finish_reason for reply in replies)]
        return [reason == "length" for reason in reasons if reason is not None]

    @property
    def taken(self) -> str:
        """The kind of the action that was carried out; "invalid" for none."""
        return "invalid" if self.forced and self.action.kind != "answer" else self.action.kind

    @property
    def observations(self) -> list[Observation]:
        """Everything the environment answered, in the order shown."""
        return ([self.observation] if self.observation else []) + self.also_shown

    @property
    def notices(self) -> list[str]:
        """What was said without an image: a problem, an empty search. Text beside an image is no notice."""
        return [seen.text for seen in self.observations if seen.text and seen.image is None]


class Trajectory(BaseModel):
    """One question, worked through. `prompt` is the filled template; `settings` what the environment ran with; `graph`
    VimRAG's memory graph (`MemoryGraph.dump`), None for VRAG."""

    model_config = ConfigDict(extra="forbid")
    uid: str
    question: str
    prompt: str
    reference: Question | None = None
    turns: list[Turn] = Field(default_factory=list)
    answer: str | None = None
    status: Literal["answered", "no_answer", "error"]
    error: str | None = None
    policy: str = ""
    settings: dict[str, Any] = Field(default_factory=dict)
    rewards: dict[str, float] = Field(default_factory=dict)
    seconds: float = 0.0
    graph: list[dict[str, Any]] | None = None

    @property
    def question_uid(self) -> str:
        """Its question's, which the samples of a group share (`{uid}#{sample}`)."""
        return self.reference.uid if self.reference else re.sub(r"#\d+\Z", "", self.uid)

    @property
    def observations(self) -> list[Observation]:
        return [observation for turn in self.turns for observation in turn.observations]

    @property
    def retrieved_page_ids(self) -> list[str]:
        """The pages that searches showed, each once, in the order first shown (crops show nothing new)."""
        shown = [seen.page_id for seen in self.observations if seen.kind == "page" and seen.page_id is not None]
        return list(dict.fromkeys(shown))

    @property
    def generated_tokens(self) -> int:
        replies = (reply for turn in self.turns if turn.memory for reply in turn.memory.replies)
        return sum(len(turn.token_ids) for turn in self.turns) + sum(len(reply.token_ids) for reply in replies)

    def messages(self, pages: PageImages | None = None) -> Conversation:
        """The conversation as the model had it, ending with its last turn (or the observation after it).

        With a page store the images are rendered from the page files; without, only their sizes are known, which is
        all that token ids and masks need. Raises ValueError for VimRAG, which starts a conversation in every cycle:
        `memory_replay.contexts` has those.
        """
        if self.graph is not None:
            raise ValueError(f"trajectory {self.uid} has a context for every cycle: use memory_replay.contexts")
        messages = opening(self.prompt, self.settings.get("system"))
        for turn in self.turns:
            messages.append(assistant_message(turn))
            if turn.observations:
                messages.append(observation_message(turn.observations, pages))
        return messages


def said_of_end(generated: Turn | Reply) -> str:
    """What a notice about a turn or reply begins with: that the token limit cut it off, where it did."""
    return "Your reply was cut off because it was too long: be brief. " if generated.finish_reason == "length" else ""


def opening(prompt: str, system: str | None = None, grammar: Grammar | None = None) -> Conversation:
    """The messages before the first turn. grammar: of the actions that may follow, by default the built-in ones."""
    first = [Message("system", (Text(system),))] if system else []
    return [*first, Message("user", (Text(prompt),), grammar=grammar)]


def assistant_message(turn: Turn) -> Message:
    return Message("assistant", (Text(turn.text),), tuple(turn.token_ids))


def observation_message(observations: Sequence[Observation], pages: PageImages | None = None) -> Message:
    """The user turn that carries observations: their images, each between its caption and its text."""
    parts: list[Text | Image] = []
    for observation in observations:
        if observation.caption:
            parts.append(Text(observation.caption))
        if observation.page_id is not None and observation.shown_size is not None:
            pixels = None
            if pages is not None:
                page_image = pages.image(observation.page_id)
                pixels = geometry.render(page_image, observation.crop_box, observation.shown_size)
            parts.append(
                Image(observation.shown_size, pixels, observation.page_id, observation.crop_box, observation.page_size)
            )
        if observation.text:
            parts.append(Text(observation.text))
    return Message("user", tuple(parts))


def read_trajectories(path: Path) -> list[Trajectory]:
    """Read a file of trajectories, in file order; of several with one uid the last counts.

    A last line cut short by a killed process is skipped. Raises FileNotFoundError, and ValueError that names the file
    and line for any other line that does not fit.
    """
    found: dict[str, Trajectory] = {}
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        try:
            trajectory = Trajectory.model_validate_json(line)
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(str(part) for part in first["loc"]) or "record"
            raise ValueError(f"{path}: line {number}, field {field}: {first['msg']}") from None
        found.pop(trajectory.uid, None)
        found[trajectory.uid] = trajectory
    return list(found.values())


def trajectory_list(source: Iterable[Trajectory] | Path | str) -> list[Trajectory]:
    """The trajectories of a JSONL file, or of any iterable. Raises what `read_trajectories` raises."""
    return read_trajectories(Path(source)) if isinstance(source, Path | str) else list(source)


class Played(Protocol):
    """What a finished session of any agent has."""

    uid: str
    question: Question
    prompt: str
    turns: list[Turn]
    answer: str | None
    error: str | None
    started: float


def recorded(
    session: Played, settings: dict[str, Any], policy: str = "", graph: list[dict[str, Any]] | None = None
) -> Trajectory:
    """The record of a session. settings: of its environment, as JSON. graph: of its memory, where it kept one."""
    status: Literal["answered", "no_answer", "error"] = "answered" if session.answer is not None else "no_answer"
    return Trajectory(
        uid=session.uid,
        question=session.question.query,
        prompt=session.prompt,
        reference=session.question if session.question.has_reference else None,
        turns=session.turns,
        answer=session.answer,
        status=status if session.error is None else "error",
        error=session.error,
        policy=policy,
        settings=settings,
        seconds=time.perf_counter() - session.started,
        graph=graph,
    )


def write_trajectories(path: Path, trajectories: Iterable[Trajectory]) -> None:
    """Write a whole file of trajectories, replacing atomically."""
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.writelines(trajectory.model_dump_json() + "\n" for trajectory in trajectories)


_BEGINNING = b'{"uid":'  # of every record


class TrajectoryLog:
    """Appends finished trajectories to a file, one whole line each; safe to share between threads.

    `done` holds what an earlier run left. A half-written tail is removed before the first append. Raises ValueError for
    a file that holds something else, and leaves it as it is.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self.done: dict[str, Trajectory] = {}
        if self.path.is_file():
            self.done = {trajectory.uid: trajectory for trajectory in read_trajectories(self.path)}
            self._end_last_line()

    def append(self, trajectory: Trajectory) -> None:
        line = trajectory.model_dump_json().encode("utf-8") + b"\n"
        with self._lock, self.path.open("ab") as file:
            file.write(line)

    def _end_last_line(self) -> None:
        """Where the last line was not ended: end it if it is whole, remove it if it is the beginning of a record."""
        content = self.path.read_bytes()
        whole = content.rfind(b"\n") + 1
        last = content[whole:]
        if not last:
            return
        if is_json(last):  # and a trajectory, or it would not have been read
            with self.path.open("ab") as file:
                file.write(b"\n")
        elif last.startswith(_BEGINNING) or _BEGINNING.startswith(last):
            os.truncate(self.path, whole)
        else:
            raise ValueError(f"{self.path}: its last line is no trajectory: it is no file to append trajectories to")
