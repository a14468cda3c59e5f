"""Examples of wrong answers, class by class, with the pages they are about as small pictures.

    for one in examples(system, pages, each=2):
        one.kind, one.why, one.question, one.pictures

A picture is a whole page with the gold regions (green) and the model's crops (vermilion) drawn on it: the gold pages,
and the page that was looked at last where it is none of them. Without the corpus, or where its pages are others than
those the trajectories saw, the words remain and `note` says what is missing.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image, ImageDraw

from vrag_nb.agent.pages import PageStore
from vrag_nb.agent.trajectory import Trajectory
from vrag_nb.display import scenes
from vrag_nb.evaluation.failures import KINDS, Failure
from vrag_nb.evaluation.measured import failures
from vrag_nb.evaluation.result_folders import SystemResult
from vrag_nb.paths import shown_path
from vrag_nb.plotting.figures import GREEN, VERMILION
from vrag_nb.records import Question

THUMBNAIL = (460, 340)  # pixels, at most
GOLD_PAGES = 2  # of a question, drawn at most


@dataclass(frozen=True)
class Picture:
    """A small picture of a page as a data URI, and its size in pixels."""

    uri: str = field(repr=False)
    width: int
    height: int
    caption: str
    gold: bool


@dataclass(frozen=True)
class Example:
    """One wrong answer. `place`: where its trajectory stands in `file`, from 0."""

    kind: str
    why: str
    uid: str
    question: str
    reference: str
    answer: str
    place: int
    file: Path
    pictures: Sequence[Picture]
    note: str = ""


def examples(system: SystemResult, pages: PageStore | None, each: int = 2) -> list[Example]:
    """Up to `each` wrong answers of every class, from the system's first seed; of different question types first."""
    run = system.runs[0]
    found = failures(run)
    chosen = []
    for kind in KINDS:
        uids = [uid for uid, failure in found.items() if failure.kind == kind]
        for uid in _mixed(uids, system.types)[:each]:
            trajectory = run.trajectories[uid]
            chosen.append(_example(trajectory, found[uid], pages, run.places[uid], run.trajectory_file))
    return chosen


def inspector_code(file: Path, corpus: Path | None) -> str:
    """What opens a trajectory of a file in a notebook, N its place."""
    where = f'project_path("{shown_path(corpus.resolve())}")' if corpus else "CORPUS"
    return (
        "from vrag_nb.display.inspector import TrajectoryInspector\n"
        "from vrag_nb.paths import project_path\n\n"
        f'TrajectoryInspector(project_path("{shown_path(file.resolve())}"), {where}, trajectory_index=N)'
    )


def _mixed(uids: Sequence[str], types: Mapping[str, str]) -> list[str]:
    """The uids with those of question types not had yet before others."""
    rounds: dict[str, int] = {}
    order: dict[str, int] = {}
    for uid in uids:
        order[uid] = rounds[types[uid]] = rounds.get(types[uid], 0) + 1
    return sorted(uids, key=lambda uid: order[uid])


def _example(trajectory: Trajectory, failure: Failure, pages: PageStore | None, place: int, file: Path) -> Example:
    question = trajectory.reference
    assert question is not None
    pictures, missing = [], []
    for name in _pages_of(trajectory, question) if pages is not None else ():
        assert pages is not None
        try:
            pictures.append(_picture(name, trajectory, question, pages))
        except (KeyError, OSError, ValueError):
            missing.append(name)
    note = f"No picture of {', '.join(missing)}: not in the corpus, or another page by that name." if missing else ""
    return Example(
        failure.kind,
        failure.why,
        trajectory.uid,
        trajectory.question,
        question.reference_answer,
        trajectory.answer or "",
        place,
        file,
        pictures,
        note,
    )


def _pages_of(trajectory: Trajectory, question: Question) -> list[str]:
    seen = [one.page_id for one in trajectory.observations if one.page_id is not None]
    return list(dict.fromkeys([*question.gold_page_ids[:GOLD_PAGES], *seen[-1:]]))


def _picture(name: str, trajectory: Trajectory, question: Question, pages: PageStore) -> Picture:
    """Raises KeyError, OSError or ValueError where the corpus has no such page, or one of another size."""
    page = pages.page(name)
    observed = [one for one in trajectory.observations if one.page_id == name]
    if any(one.page_size not in (None, (page.width, page.height)) for one in observed):
        raise ValueError(f"{name} has another size than when it was seen")
    picture = pages.image(name).copy()
    picture.thumbnail(THUMBNAIL, Image.Resampling.LANCZOS)
    scale = picture.width / page.width, picture.height / page.height
    draw = ImageDraw.Draw(picture)
    gold = scenes.gold_regions(question, page)
    crops = [one.crop_box for one in observed if one.kind == "crop" and one.crop_box is not None]
    for colour, boxes in ((GREEN, gold), (VERMILION, crops)):
        for x0, y0, x1, y1 in boxes:
            draw.rectangle((x0 * scale[0], y0 * scale[1], x1 * scale[0] - 1, y1 * scale[1] - 1), None, colour, 3)
    caption = f"{name}{'' if observed else ', never shown'}"
    return Picture(_data_uri(picture), *picture.size, caption, scenes.is_gold(question, name))


def _data_uri(image: Image.Image) -> str:
    buffer = io.BytesIO()
    image.save(buffer, "WEBP", quality=80)
    return f"data:image/webp;base64,{base64.b64encode(buffer.getvalue()).decode()}"
