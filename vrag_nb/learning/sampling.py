"""Expert sampling: from trajectories of experts to a data set for fine-tuning (VRAG-RL, section 3.3 and appendix B).

    trajectories = rollout(policy, environment, questions, out / "sampled.jsonl", samples=4)   # resumable
    chosen = choose(trajectories, size=500)
    write_dataset(chosen.trajectories, pages, out)          # parquet in TRL's message format
    write_sharegpt(chosen.trajectories, pages, out / "sharegpt")    # what LLaMA-Factory reads

A trajectory is kept when its answer is right, every turn was a valid action, every box lay on the image it was drawn
on, and it took between two and six turns. Of those that are the same but for a few pixels one is kept. What is left is
balanced by the number of turns and by the actions used, so that neither the short nor the long ones dominate.
"""

from __future__ import annotations

import io
import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import Dataset, Features, List, Value
from datasets import Image as ImageFeature

from vrag_nb.agent.pages import PageStore
from vrag_nb.agent.policy import Conversation, Image, Text
from vrag_nb.agent.trajectory import Trajectory
from vrag_nb.evaluation.answers import is_correct
from vrag_nb.records import Question

FEATURES = Features(
    {
        "uid": Value("string"),
        "question": Value("string"),
        "messages": List(
            {"role": Value("string"), "content": List({"type": Value("string"), "text": Value("string")})}
        ),
        "images": List(ImageFeature()),
        "turns": Value("int32"),
        "actions": Value("string"),
        "policy": Value("string"),
    }
)


@dataclass(frozen=True)
class Chosen:
    """What `choose` kept, in the order of the input, and why the others were dropped."""

    trajectories: list[Trajectory]
    dropped: Counter[str]


def disjoint(questions: Sequence[Question], share: float, seed: int = 0) -> tuple[list[Question], list[Question]]:
    """Questions for sampling (about `share` of them) and for reinforcement learning: no document is in both."""
    documents = sorted({question.document for question in questions})
    random.Random(seed).shuffle(documents)
    first = set(documents[: round(share * len(documents))])
    return [q for q in questions if q.document in first], [q for q in questions if q.document not in first]


def fault(trajectory: Trajectory, turns: tuple[int, int] = (2, 6)) -> str | None:
    """Why a trajectory is not to be learned from, or None."""
    kinds = _kinds(trajectory)
    if trajectory.status == "error":
        return "error"
    if trajectory.reference is None or not is_correct(trajectory.answer, trajectory.reference.reference_answer):
        return "wrong answer"
    if "invalid" in kinds:
        return "invalid action"
    if any(turn.forced for turn in trajectory.turns):
        return "answer had to be forced"
    if not turns[0] <= len(trajectory.turns) <= turns[1]:
        return f"not {turns[0]} to {turns[1]} turns"
    if not all(_boxes_on_image(trajectory)):
        return "box beyond the image"
    return None


def _kinds(trajectory: Trajectory) -> tuple[str, ...]:
    return tuple(turn.action.kind for turn in trajectory.turns)


def _boxes_on_image(trajectory: Trajectory) -> Iterator[bool]:
    """Of each box, whether it lies on the image shown before it."""
    size: tuple[int, int] | None = None
    for turn in trajectory.turns:
        box = turn.action.box
        if turn.action.kind == "bbox" and box is not None:
            yield size is not None and 0 <= box[0] < box[2] <= size[0] and 0 <= box[1] < box[3] <= size[1]
        for seen in turn.observations:
            size = seen.shown_size or size


def choose(
    trajectories: Sequence[Trajectory], size: int | None = None, turns: tuple[int, int] = (2, 6), seed: int = 0
) -> Chosen:
    """Filter, drop twins, balance down to `size` (None: keep all that pass).

    Balancing takes one trajectory after another, of the number of turns that is rarest so far; among those, of the
    rarest set of actions, and of the question that has fewest.
    """
    dropped: Counter[str] = Counter()
    kept: dict[tuple[Any, ...], Trajectory] = {}
    for trajectory in trajectories:
        if reason := fault(trajectory, turns):
            dropped[reason] += 1
        elif (key := _identity(trajectory)) in kept:
            dropped["twin of another"] += 1
        else:
            kept[key] = trajectory
    passed = list(kept.values())
    picked = passed if size is None or len(passed) <= size else _balanced(passed, size, seed)
    dropped["not needed for balance"] += len(passed) - len(picked)
    return Chosen(picked, +dropped)


def _identity(trajectory: Trajectory, grid: int = 28) -> tuple[Any, ...]:
    """The question and its actions, boxes rounded to whole image squares."""
    question = trajectory.uid.partition("#")[0]
    actions = [
        (turn.action.kind, turn.action.query, turn.action.box and tuple(round(v / grid) for v in turn.action.box))
        for turn in trajectory.turns
    ]
    return question, *actions


def _balanced(trajectories: Sequence[Trajectory], size: int, seed: int) -> list[Trajectory]:
    """One after another: of the number of turns that is rarest so far, the rarest actions, the rarest question."""
    waiting = random.Random(seed).sample(list(trajectories), len(trajectories))
    counts: Counter[Any] = Counter()
    taken: set[str] = set()
    while len(taken) < size:
        best = min(waiting, key=lambda one: [counts[trait] for trait in _traits(one)])
        waiting.remove(best)
        taken.add(best.uid)
        counts.update(_traits(best))
    return [trajectory for trajectory in trajectories if trajectory.uid in taken]


def _traits(trajectory: Trajectory) -> tuple[Any, ...]:
    return len(trajectory.turns), frozenset(_kinds(trajectory)), trajectory.uid.partition("#")[0]


# ----------------------------------------------------------------------------------------------------------- data sets


def write_dataset(trajectories: Sequence[Trajectory], pages: PageStore, out: Path) -> Path:
    """`out/train.parquet`: a row per trajectory in TRL's message format, images as shown, with `card(...)` beside it.

    Trajectories are written one by one, so memory does not grow with the number of images.
    """
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    path = out / "train.parquet"
    rows = Dataset.from_generator(
        _rows, features=FEATURES, gen_kwargs={"trajectories": list(trajectories), "pages": pages}
    )
    partial = path.with_suffix(".partial")
    rows.to_parquet(partial)
    partial.replace(path)
    (out / "README.md").write_text(card(trajectories), encoding="utf-8")
    return path


def _rows(trajectories: Sequence[Trajectory], pages: PageStore) -> Iterator[dict[str, Any]]:
    for trajectory in trajectories:
        conversation = trajectory.messages(pages)
        yield {
            "uid": trajectory.uid,
            "question": trajectory.question,
            "messages": [_message(message.role, message.parts) for message in conversation],
            "images": [_png(image) for message in conversation for image in message.images],
            "turns": len(trajectory.turns),
            "actions": " ".join(_kinds(trajectory)),
            "policy": trajectory.policy,
        }


def _message(role: str, parts: Sequence[Text | Image]) -> dict[str, Any]:
    content = [
        {"type": "text", "text": part.text} if isinstance(part, Text) else {"type": "image", "text": None}
        for part in parts
    ]
    return {"role": role, "content": content}


def _png(image: Image) -> dict[str, Any]:
    buffer = io.BytesIO()
    image.resolved().save(buffer, format="PNG")
    return {"bytes": buffer.getvalue(), "path": None}


def write_sharegpt(trajectories: Sequence[Trajectory], pages: PageStore, out: Path) -> Path:
    """LLaMA-Factory's ShareGPT form, the one upstream trains on: `data.json`, `dataset_info.json`, `images/*.png`.

    `<image>` stands where an image is shown; images are at the size the model saw.
    """
    out = Path(out)
    (out / "images").mkdir(parents=True, exist_ok=True)
    rows = []
    for trajectory in trajectories:
        names: list[str] = []
        turns = [
            {"role": message.role, "content": _with_images(message.parts, names, trajectory.uid, out)}
            for message in trajectory.messages(pages)
        ]
        rows.append({"messages": turns, "images": names})
    columns = {"messages": "messages", "images": "images"}
    tags = {"role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant"}
    info = {"vrag_sampled": {"file_name": "data.json", "formatting": "sharegpt", "columns": columns, "tags": tags}}
    (out / "dataset_info.json").write_text(json.dumps(info, indent=1) + "\n", encoding="utf-8")
    path = out / "data.json"
    path.write_text(json.dumps(rows, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    return path


def _with_images(parts: Sequence[Text | Image], names: list[str], uid: str, out: Path) -> str:
    text = ""
    for part in parts:
        if isinstance(part, Text):
            text += part.text
            continue
        name = f"images/{uid.replace('/', '_').replace('#', '_')}_{len(names)}.png"
        part.resolved().save(out / name)
        names.append(name)
        text += "<image>"
    return text


def read_conversation(row: dict[str, Any]) -> Conversation:
    """A row of `write_dataset` as a conversation with pixels."""
    from vrag_nb.agent.policy import Message

    images = iter(row["images"])
    messages: Conversation = []
    for message in row["messages"]:
        parts: list[Text | Image] = []
        for part in message["content"]:
            if part["type"] == "image":
                pixels = next(images)
                parts.append(Image(pixels.size, pixels))
            else:
                parts.append(Text(part["text"]))
        messages.append(Message(message["role"], tuple(parts)))
    return messages


def card(trajectories: Sequence[Trajectory], dropped: Counter[str] | None = None) -> str:
    """A data card in markdown: counts by turns, by actions, by kind of question, by expert."""
    tables = {
        "turns": Counter(str(len(one.turns)) for one in trajectories),
        "actions": Counter(" ".join(_kinds(one)) for one in trajectories),
        "kind of question": Counter(
            f"{one.reference.meta_info.source_type}, {one.reference.meta_info.query_type}"
            for one in trajectories
            if one.reference is not None
        ),
        "expert": Counter(one.policy for one in trajectories),
        "dropped because": dropped or Counter(),
    }
    images = sum(seen.image is not None for one in trajectories for seen in one.observations)
    questions = len({one.uid.partition("#")[0] for one in trajectories})
    lines = [
        "# Sampled trajectories",
        "",
        f"{len(trajectories)} trajectories of {questions} questions, {images} images.",
    ]
    for name, counts in tables.items():
        if counts:
            lines += ["", f"| {name} | |", "|---|---:|", *(f"| {key} | {n} |" for key, n in sorted(counts.items()))]
    return "\n".join(lines) + "\n"
