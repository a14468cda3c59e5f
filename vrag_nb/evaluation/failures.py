"""Why an answer is wrong, as far as rules can tell: one class for every wrong answer.

    failure = classify(trajectory)           # of a trajectory whose answer was judged wrong
    failure.kind, failure.why                # "wrong_page", "1 of 2 gold pages was never shown"

`MEANINGS` says what the classes are, in the order in which they are tried: the first that applies decides.

Where print is small, and where the answer stands, only a generated corpus knows (`needed_facts`, `needs_crop`,
`reference_regions`); on other questions nothing is called a wrong region. A crop *holds* a place when it covers
nine tenths of the printed value, or seven tenths of a region whose value's place is unknown, and *enlarges* it when it
is at most seven tenths of the page: the same pixels then show it 1.2 times as large or more. Pages shown as text have
no small print. The forced turn of systems that have no other turn (`no_retrieval`, `vanilla_*`) is not giving up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from rapidfuzz.distance import Levenshtein

from vrag_nb.agent.geometry import Box
from vrag_nb.agent.trajectory import Observation, Trajectory
from vrag_nb.evaluation.answers import is_not_answerable, normalise, parse_date, parse_number
from vrag_nb.records import Question, page_id

Kind = Literal[
    "wrong_page", "wrong_region", "misread", "wrong_arithmetic",
    "gave_up", "invented", "other_kind", "unplaced", "error",
]  # fmt: skip
KINDS: tuple[Kind, ...] = get_args(Kind)  # in the order they are shown
MEANINGS: dict[str, str] = {
    "error": "the policy or the environment failed",
    "gave_up": 'no answer; "not answerable" where there is an answer; or all actions used up, so that it had to answer',
    "invented": "an answer where there is none to be had",
    "unplaced": "the question's gold pages are not known, so nothing can be said of what was seen",
    "wrong_page": "a gold page was never shown",
    "wrong_region": "small print was needed, and no crop that enlarges it holds the place where it stands",
    "wrong_arithmetic": "everything was seen, and the answer had to be computed or compared from what was read",
    "other_kind": "everything was seen, and the answer is of another kind: words for a number",
    "misread": "everything was seen, and the answer is of the right kind with another value",
}
HELD_VALUE, HELD_REGION = 0.9, 0.7  # shares of an area that a crop must cover
ENLARGES = 0.7  # share of the page that a crop may have at most
_COMPUTED = ("arithmetic", "comparison")


@dataclass(frozen=True)
class Failure:
    """A wrong answer's class, and the reason in a few words."""

    kind: Kind
    why: str


def classify(trajectory: Trajectory, ready_made: int = 0) -> Failure:
    """The class of a wrong answer; see the module's docstring. Who judged it wrong does not matter here.

    ready_made: turns at the beginning that no model wrote (`System.ready_made_turns`). Raises ValueError for a
    trajectory without its question.
    """
    question = trajectory.reference
    if question is None:
        raise ValueError(f"trajectory {trajectory.uid} has no reference question, so its answer cannot be placed")
    if trajectory.status == "error":
        return Failure("error", str(trajectory.error or "unknown"))
    return (
        _gave_up(trajectory, question, ready_made)
        or _about_pages(trajectory, question)
        or _about_regions(trajectory, question)
        or _about_reading(trajectory.answer or "", question)
    )


def _gave_up(trajectory: Trajectory, question: Question, ready_made: int) -> Failure | None:
    answer, unanswerable = trajectory.answer, is_not_answerable(question.reference_answer)
    blind = not set(question.gold_page_ids) <= set(trajectory.retrieved_page_ids)
    unseen = "; not all gold pages had been shown" if blind else ""
    if trajectory.status == "no_answer" or answer is None or not normalise(answer):
        return Failure("gave_up", f"no answer{unseen}")
    if unanswerable and not is_not_answerable(answer):
        return Failure("invented", "the documents do not say, and it answered")
    if is_not_answerable(answer) and not unanswerable:
        return Failure("gave_up", f"refused: {answer!r}{unseen}")
    turns = trajectory.turns[ready_made:]
    if turns and turns[-1].forced and not turns[0].forced:
        return Failure("gave_up", f"no action was left after {len(turns) - 1}, and it had to answer{unseen}")
    return None


def _about_pages(trajectory: Trajectory, question: Question) -> Failure | None:
    gold = list(dict.fromkeys(question.gold_page_ids))
    if not gold:
        return Failure("unplaced", "the question's gold pages are not known")
    missed = [page for page in gold if page not in trajectory.retrieved_page_ids]
    if not missed:
        return None
    if not trajectory.retrieved_page_ids:
        return Failure("wrong_page", "no page was shown")
    were = "was" if len(missed) == 1 else "were"
    which = "the gold page" if len(gold) == 1 else f"{len(missed)} of {len(gold)} gold pages"
    return Failure("wrong_page", f"{which} {were} never shown")


def _about_regions(trajectory: Trajectory, question: Question) -> Failure | None:
    crops = [seen for seen in trajectory.observations if seen.kind == "crop" and seen.crop_box and seen.page_size]
    as_text = {seen.page_id for seen in trajectory.observations if seen.kind == "page" and seen.shown_size is None}
    for page, box, share in small_print(question):
        here = [crop for crop in crops if crop.page_id == page]
        if page in as_text or any(_holds(crop, box, share) for crop in here):
            continue
        if not here:
            other = " (another page was cropped)" if crops else ""
            return Failure("wrong_region", f"small print, and {page} was never enlarged{other}")
        return Failure("wrong_region", f"small print, and no crop of {page} enlarges the gold region")
    return None


def small_print(question: Question) -> Iterator[tuple[str, Box, float]]:
    """(page id, box in page fractions, share of it to be held) of every place that has to be enlarged to be read."""
    facts = question.needed_facts
    if facts:
        for fact in facts:
            if fact.get("needs_crop"):
                printed = fact.get("printed", True) and fact.get("answer_box")
                box = _box(fact["answer_box"] if printed else fact["box"])
                yield question.fact_page_id(fact), box, HELD_VALUE if printed else HELD_REGION
    elif question.needs_crop:
        for region in question.meta_info.reference_regions:
            yield page_id(question.document, region.page), region.box, HELD_REGION


def _holds(crop: Observation, box: Box, share: float) -> bool:
    """Whether a crop enlarges its page and covers this share of `box` (page fractions)."""
    assert crop.crop_box is not None
    assert crop.page_size is not None
    (x0, y0, x1, y1), (width, height) = crop.crop_box, crop.page_size
    if (x1 - x0) * (y1 - y0) > ENLARGES * width * height:
        return False
    across = min(x1 / width, box[2]) - max(x0 / width, box[0])
    down = min(y1 / height, box[3]) - max(y0 / height, box[1])
    return max(across, 0) * max(down, 0) >= share * (box[2] - box[0]) * (box[3] - box[1])


def _about_reading(answer: str, question: Question) -> Failure:
    wanted, found = _kind_of(question.reference_answer), _kind_of(answer)
    if is_computed(question):
        return Failure("wrong_arithmetic", "everything was seen; the result is another one")
    if wanted != found:
        return Failure("other_kind", f"asked for {wanted}, answered with {found}")
    distance = Levenshtein.distance(normalise(answer), normalise(question.reference_answer))
    if distance <= 2 and 3 * distance <= len(normalise(question.reference_answer)):
        return Failure("misread", f"{distance} character{'s' * (distance != 1)} off")
    return Failure("misread", {"a number": "another number", "a date": "another date"}.get(found, "other words"))


def is_computed(question: Question) -> bool:
    """Whether the answer has to be worked out: arithmetic, comparisons, several facts none of which is the answer."""
    extra: Mapping[str, Any] = question.meta_info.model_extra or {}
    if question.meta_info.query_type in _COMPUTED or extra.get("arithmetic_expression"):
        return True
    values = [str(fact.get("value")) for fact in question.needed_facts]
    asked_for = {part.strip() for part in question.reference_answer.split(";")}  # of a long question, several
    return len(values) > 1 and not asked_for <= set(values)


def _kind_of(text: str) -> str:
    if parse_date(text) is not None:
        return "a date"
    return "a number" if parse_number(text) is not None else "words"


def _box(values: Sequence[float]) -> Box:
    x0, y0, x1, y1 = values
    return float(x0), float(y0), float(x1), float(y1)
