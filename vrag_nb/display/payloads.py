"""What the inspector sends to its front end: plain dicts and PNG bytes, made from scenes and views.

One function per output trait of `display.inspector` and `display.match_overlay`; the front end draws these and computes
nothing. Sizes are [width, height] in pixels, rectangles in `marks` and `cells` are fractions of the image they lie on,
`crop_box` and `page_box` are page pixels, `written` is shown pixels of an image of size `frame`.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from PIL import Image

from vrag_nb.agent.geometry import Box, View
from vrag_nb.agent.trajectory import Trajectory
from vrag_nb.display import scenes
from vrag_nb.display.scenes import Mark, Scene, Shown
from vrag_nb.records import Hit, Page, Question
from vrag_nb.retrieval.matches import Matches


def png(image: Image.Image, largest: tuple[int, int] | None = None) -> bytes:
    """The image as PNG, made smaller to fit `largest` (width, height) where it is larger."""
    if largest is not None and (image.width > largest[0] or image.height > largest[1]):
        image = image.copy()
        image.thumbnail(largest)
    buffer = io.BytesIO()
    image.save(buffer, "PNG", compress_level=4)
    return buffer.getvalue()


def summary(trajectory: Trajectory, correct: bool | None) -> dict[str, Any]:
    """One row of the list of trajectories."""
    reference = trajectory.reference
    return {
        "uid": trajectory.uid,
        "question": trajectory.question,
        "answer": trajectory.answer,
        "reference": reference.reference_answer if reference else None,
        "correct": correct,
        "status": trajectory.status,
        "error": trajectory.error,
        "policy": trajectory.policy,
        "turns": len(trajectory.turns),
        "type": " · ".join(_types(reference)),
    }


def _types(reference: Question | None) -> list[str]:
    if reference is None:
        return []
    meta = reference.meta_info
    return [name.replace("_", " ") for name in (meta.query_type, meta.source_type) if name != "unknown"]


def turn(trajectory: Trajectory, scene: Scene) -> dict[str, Any]:
    """The words of a turn, and the kinds of all turns for the stepper."""
    now, action = scene.turn, scene.turn.action
    box = scene.written_box
    return {
        "kinds": [one.action.kind for one in trajectory.turns],
        "kind": action.kind,
        "thought": now.thought,
        "text": now.text,
        "query": action.query,
        "answer": action.answer,
        "problem": action.problem,
        "argument": action.argument,
        "box": [round(value, 1) for value in action.box] if action.box else None,
        "frame": list(scene.before.view.shown_size) if scene.before else None,
        "page_box": [round(value) for value in box] if box else None,
        "notices": now.notices,
        "forced": now.forced,
        "new_tokens": len(now.token_ids),
        "prompt_tokens": now.prompt_tokens,
        "seconds": round(now.seconds, 2),
    }


def page(page: Page, view: View, marks: Sequence[Mark], gold: bool) -> dict[str, Any]:
    """The page on the table; `view` is how the model would be shown the whole of it."""
    return {
        "page_id": page.page_id,
        "size": [page.width, page.height],
        "shown_size": list(view.shown_size),
        "tokens": view.tokens,
        "gold": gold,
        "marks": _dicts(marks),
    }


def seen(shown: Shown, marks: Sequence[Mark], gold: bool, place: tuple[int, int], new: bool) -> dict[str, Any]:
    """An image the model saw. place: (index, count) among the turn's images; new: this turn brought it."""
    tokens = shown.observation.image_tokens or shown.view.tokens
    about = {"kind": shown.observation.kind, "gold": gold, "place": place[0], "count": place[1], "new": new}
    return {**_view(shown.page, shown.view), **about, "tokens": tokens, "marks": _dicts(marks)}


def own(page: Page, base: View, written: Box, view: View, question: Question | None) -> dict[str, Any]:
    """Your own crop: `written` counts in shown pixels of `base`, `view` is what the model would see."""
    x0, y0, x1, y1 = view.rectangle
    yours = scenes.mark("yours", "your crop", (float(x0), float(y0), float(x1), float(y1)), (page.width, page.height))
    return {
        **_view(page, view),
        "tokens": view.tokens,
        "written": [int(value) for value in written],
        "frame": list(base.shown_size),
        "page_box": [round(value, 1) for value in base.to_page(written)],
        "marks": _dicts(scenes.seen_marks(view, page, question)),
        "page_marks": _dicts([yours] if yours else []),
    }


def _view(page: Page, view: View) -> dict[str, Any]:
    return {
        "page_id": page.page_id,
        "crop_box": list(view.crop_box) if view.crop_box else None,
        "size": list(view.shown_size),
        "zoom": round(scenes.zoom(view), 2),
    }


def hit(hit: Hit, gold: bool, seen: bool, is_open: bool) -> dict[str, Any]:
    """One row of the hits. seen: shown to the model in this turn or before; is_open: the page on the table."""
    return {**hit.model_dump(), "gold": gold, "seen": seen, "open": is_open}


def match(query: str, page_id: str, matches: Matches, word: int, greatest: float) -> dict[str, Any]:
    """Where the words of a search found their match; see `display.match_overlay`. Cells are the winning patches."""
    shown = matches.words if word < 0 else (matches.words[word],)
    won: dict[tuple[int, int], float] = {}
    names: dict[tuple[int, int], list[str]] = {}
    for one in shown:
        for cell, part in matches.cells(one).items():
            won[cell] = won.get(cell, 0.0) + part
            names.setdefault(cell, []).append(one.text)
    return {
        "query": query,
        "page_id": page_id,
        "words": [{"text": one.text, "part": round(matches.part(one), 2), "added": one.added} for one in matches.words],
        "word": word,
        "score": round(float(matches.parts.sum()), 2),
        "cells": [
            {"box": _cell_box(cell, matches.grid), "part": round(part, 2), "words": ", ".join(names[cell])}
            for cell, part in won.items()
        ],
        "greatest": round(greatest, 2),
    }


def _cell_box(cell: tuple[int, int], grid: tuple[int, int]) -> list[float]:
    (y, x), (high, wide) = cell, grid
    return [x / wide, y / high, (x + 1) / wide, (y + 1) / high]


def _dicts(marks: Sequence[Mark]) -> list[dict[str, Any]]:
    return [asdict(one) for one in marks]
