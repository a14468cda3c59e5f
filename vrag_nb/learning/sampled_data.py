"""Chosen trajectories as data sets for fine-tuning, with a card.

write_dataset(chosen.trajectories, pages, out)                  # parquet in TRL's message format, README.md
write_sharegpt(chosen.trajectories, pages, out / "sharegpt")    # what LLaMA-Factory reads
"""

from __future__ import annotations

import io
import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset, Features, List, Value, load_dataset
from datasets import Image as ImageFeature

from vrag_nb.agent.pages import Pages
from vrag_nb.agent.policy import Conversation, Image, Message, Text
from vrag_nb.agent.trajectory import Trajectory
from vrag_nb.evaluation.report import as_cell
from vrag_nb.files import replacing
from vrag_nb.learning.sampling import action_kinds, boxes_by
from vrag_nb.learning.segments import conversations
from vrag_nb.paths import shown_path

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


def write_dataset(
    trajectories: Sequence[Trajectory], pages: Pages, out: Path, dropped: Mapping[str, int] | None = None
) -> Path:
    """`out/train.parquet`: a row per trajectory in TRL's message format, images as shown, with `card(...)` beside it.

    VimRAG's trajectories give a row per cycle, for each has a conversation of its own. Trajectories are written one by
    one, so memory does not grow with the number of images.
    """
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    path = out / "train.parquet"
    given = {"trajectories": list(trajectories), "pages": pages}
    with tempfile.TemporaryDirectory(dir=out, prefix=".rows-") as cache, replacing(path) as temporary:
        Dataset.from_generator(_rows, features=FEATURES, gen_kwargs=given, cache_dir=cache).to_parquet(temporary)
    (out / "README.md").write_text(card(trajectories, dropped), encoding="utf-8")
    return path


def _rows(trajectories: Sequence[Trajectory], pages: Pages) -> Iterator[dict[str, Any]]:
    for trajectory in trajectories:
        for conversation in conversations(trajectory, pages):
            yield {
                "uid": trajectory.uid,
                "question": trajectory.question,
                "messages": [_message(message.role, message.parts) for message in conversation],
                "images": [_png(image) for message in conversation for image in message.images],
                "turns": len(trajectory.turns),
                "actions": " ".join(action_kinds(trajectory)),
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


def write_sharegpt(trajectories: Sequence[Trajectory], pages: Pages, out: Path) -> Path:
    """LLaMA-Factory's ShareGPT form, the one upstream trains on: `data.json`, `dataset_info.json`, `images/*.png`.

    `<image>` stands where an image is shown; images are at the size the model saw.
    """
    out = Path(out)
    shutil.rmtree(out / "images", ignore_errors=True)  # of an earlier choice
    (out / "images").mkdir(parents=True)
    rows: list[dict[str, Any]] = []
    for trajectory in trajectories:
        for conversation in conversations(trajectory, pages):
            names: list[str] = []
            stem = str(len(rows))  # a question's name may be longer than a file's, and two experts may answer it
            turns = [
                {"role": message.role, "content": _with_images(message.parts, names, stem, out)}
                for message in conversation
            ]
            rows.append({"messages": turns, "images": names})
    columns = {"messages": "messages", "images": "images"}
    tags = {"role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant"}
    info = {"vrag_sampled": {"file_name": "data.json", "formatting": "sharegpt", "columns": columns, "tags": tags}}
    (out / "dataset_info.json").write_text(json.dumps(info, indent=1) + "\n", encoding="utf-8")
    path = out / "data.json"
    path.write_text(json.dumps(rows, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    return path


def _with_images(parts: Sequence[Text | Image], names: list[str], stem: str, out: Path) -> str:
    text = ""
    for part in parts:
        if isinstance(part, Text):
            text += part.text
            continue
        name = f"images/{stem}_{len(names)}.png"
        part.resolved().save(out / name)
        names.append(name)
        text += "<image>"
    return text


def read_rows(path: Path | str) -> Dataset:
    """The rows of a parquet of `write_dataset`. Raises FileNotFoundError that names it and what makes it."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no {shown_path(Path(path))}: run notebook 04_cot_sampling first")
    return load_dataset("parquet", data_files=str(path), split="train")


def read_conversation(row: dict[str, Any]) -> Conversation:
    """A row of `write_dataset` as a conversation with pixels."""
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


def card(trajectories: Sequence[Trajectory], dropped: Mapping[str, int] | None = None) -> str:
    """A data card in markdown: counts by turns, by actions, by kind of question, by expert."""
    tables = {
        "turns": Counter(str(len(one.turns)) for one in trajectories),
        "actions": Counter(" ".join(action_kinds(one)) for one in trajectories),
        "kind of question": Counter(
            f"{one.reference.meta_info.source_type}, {one.reference.meta_info.query_type}"
            for one in trajectories
            if one.reference is not None
        ),
        "expert": Counter(one.policy for one in trajectories),
        "boxes after a grounding expert": Counter(boxes_by(trajectories)),
        "dropped because": Counter(dropped or {}),
    }
    images = sum(seen.image is not None for one in trajectories for seen in one.observations)
    questions = len({one.question_uid for one in trajectories})
    lines = [
        "# Sampled trajectories",
        "",
        f"{len(trajectories)} trajectories of {questions} questions, {images} images.",
    ]
    for name, counts in tables.items():
        if counts:
            rows = [f"| {as_cell(key)} | {n} |" for key, n in sorted(counts.items())]
            lines += ["", f"| {name} | |", "|---|---:|", *rows]
    return "\n".join(lines) + "\n"
