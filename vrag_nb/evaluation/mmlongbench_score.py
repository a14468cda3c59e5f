"""MMLongBench-Doc's own score: rules by answer format, accuracy and F1 (Ma et al., arXiv 2407.01523, section 4.1).

    score_answer("51.3%", "51%", "Float")                     # 1.0
    metrics = mmlongbench_metrics(answers, questions)         # answers: {uid: text or None}

The score of one answer is in 0..1 and depends on the format of the reference:

    Int     the integers are equal; an answer such as "8.0" is cut to its integer
    Float   equal within 1% of the reference, of a hundredth or of a hundred times it (51 is 0.51 is 51%), or equal
            when both are rounded to the fewer decimals of the two, at least two
    Str     similarity 1 - edit distance / longer length, 0 unless above one half; a reference that is a number, a
            date, a clock time, a page, a file of code, an address of the web or of a person must be met exactly
    None    as Str; the reference is "Not answerable"
    List    as many parts, or 0; both sorted; exact when the first part of the reference is a number or of the exact
            kinds above, else the worst similarity of the pairs

Before they are compared texts lose case, parts in round brackets, one quotation mark at each end, a leading $ and a
trailing %. Units such as "miles" stay: the published scorer means to remove them and does not. A reference that does
not fit its own format (an Int "yes") cannot be met; `unfit_references` counts these.

Accuracy is the mean score. F1 is the harmonic mean of recall, the scores of answerable questions summed over their
number, and precision, the same sum over the number of questions that were answered at all, that is, not declared
unanswerable. A system that always answers pays in precision, one that always declines in recall.

The data set extracts short answers from long ones with a model, which is left out here: an agent's answers are short.
In its place an answer that declines in other words (`answers.is_not_answerable`) counts as "Not answerable", and a List
answered in words ("Red; Blue") is taken apart (`answers.list_parts`). No answer scores 0 and counts as answered.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from rapidfuzz.distance import Levenshtein

from vrag_nb.evaluation.answers import is_not_answerable, list_parts
from vrag_nb.evaluation.metrics import Interval, share_interval
from vrag_nb.records import Question

JUDGE = "rules of MMLongBench-Doc"
NOT_ANSWERABLE = "Not answerable"
_EXACT = [
    re.compile(pattern)
    for pattern in (
        r".*https://.*",
        r".*\.py|.*ipynb",
        r"page.*",
        r"\d+(?:[-\s]\d+)?",  # a number, a telephone number, a year and month
        r".*[ap]\.m\..*",
        r"\d{4}[-\s]\d{2}[-\s]\d{2}",
        r"[a-z0-9._%+-]+@[a-z0-9.-]+\.[a-z]{2,}",
    )
]


def score_answer(answer: str | None, reference: str, answer_format: str) -> float:
    """The score of one answer, 0..1; `answer_format` is Int, Float, Str or None, and anything else is a list."""
    if answer is None or not answer.strip():
        return 0.0
    answer = NOT_ANSWERABLE if is_not_answerable(answer) else answer
    if answer_format == "Int":
        wanted, found = _integer(reference), _integer(answer, cut=True)
        return float(wanted is not None and wanted == found)
    if answer_format == "Float":
        numbers = _number(reference), _number(answer)
        return float(None not in numbers and _same_number(*numbers))  # type: ignore[arg-type]
    if answer_format in ("Str", "None"):
        return _text_score(_clean(answer), _clean(reference))
    parts, listed = _parts(reference), _parts(answer)
    if answer.startswith("[") and (listed is not None or not answer.rstrip().endswith("]")):
        return _list_score(listed, parts)
    ways = [answer], list_parts(answer), list_parts(answer, at_and=False)  # a name may hold an "and", or a comma
    return max(_list_score(sorted(map(_clean, way)), parts) for way in ways)


def fits_format(reference: str, answer_format: str) -> bool:
    """Whether a reference can be met under its own format."""
    if answer_format == "Int":
        return _integer(reference) is not None
    if answer_format == "Float":
        return _number(reference) is not None
    return answer_format in ("Str", "None") or _parts(reference) is not None


def mmlongbench_metrics(
    answers: Mapping[str, str | None], questions: Sequence[Question], seed: int = 0
) -> dict[str, Any]:
    """`{judge, accuracy, f1, by_location, by_source, by_document_type, unfit_references}`.

    Every figure is `{value, low, high, n}` with a bootstrap interval over questions. by_location: single_page,
    cross_page, unanswerable as the data set counts them (one gold page, whatever the answer; none or several and
    answerable; unanswerable). A question without an entry in `answers` was not answered.
    """
    scores = {one.uid: score_answer(answers.get(one.uid), *_reference(one)) for one in questions}
    groups: dict[str, dict[str, list[float]]] = {"by_location": {}, "by_source": {}, "by_document_type": {}}
    for one in questions:
        for group, labels in _labels(one).items():
            for label in labels:
                groups[group].setdefault(label, []).append(scores[one.uid])
    declined = {uid for uid, answer in answers.items() if answer is not None and is_not_answerable(answer)}
    rows = [(scores[one.uid], not _unanswerable(one), one.uid not in declined) for one in questions]
    return {
        "judge": JUDGE,
        "accuracy": share_interval(list(scores.values()), seed).model_dump(mode="json"),
        "f1": f1_interval(rows, seed).model_dump(mode="json"),
        **{
            group: {label: share_interval(found[label], seed).model_dump(mode="json") for label in sorted(found)}
            for group, found in groups.items()
        },
        "unfit_references": sum(not fits_format(*_reference(one)) for one in questions),
    }


def f1_score(rows: Iterable[tuple[float, bool, bool]]) -> float:
    """F1 of (score, question is answerable, question was answered) rows; 0 where it has no denominator."""
    table = np.asarray(list(rows), dtype=float).reshape(-1, 3)
    return float(_f1((table[:, 0] * table[:, 1]).sum(), table[:, 1].sum(), table[:, 2].sum()))


def f1_interval(rows: Sequence[tuple[float, bool, bool]], seed: int = 0, samples: int = 2000) -> Interval:
    """F1 with its 95% percentile bootstrap interval over questions."""
    if not rows:
        return Interval(value=None, low=None, high=None, n=0)
    table = np.asarray(rows, dtype=float)  # (questions, 3)
    parts = np.stack([table[:, 0] * table[:, 1], table[:, 1], table[:, 2]], axis=1)
    rng = np.random.default_rng(seed)
    drawn = [_f1(*parts[rng.integers(0, len(parts), len(parts))].sum(axis=0)) for _ in range(samples)]
    low, high = np.quantile(drawn, [0.025, 0.975])
    value = f1_score(rows)
    return Interval(value=round(value, 6), low=round(float(low), 6), high=round(float(high), 6), n=len(rows))


def _f1(right: float, answerable: float, answered: float) -> float:
    return 0.0 if not right or not answerable or not answered else 2 * right / (answerable + answered)


def _reference(question: Question) -> tuple[str, str]:
    """Reference and format, the reference as the data set writes it."""
    extra = question.meta_info.model_extra or {}
    return (NOT_ANSWERABLE, "None") if _unanswerable(question) else (question.reference_answer, extra["answer_format"])


def _unanswerable(question: Question) -> bool:
    return is_not_answerable(question.reference_answer)


def _labels(question: Question) -> dict[str, list[str]]:
    meta = question.meta_info
    extra = meta.model_extra or {}
    location = ["single_page"] if len(meta.reference_page) == 1 else []
    if _unanswerable(question):
        location.append("unanswerable")
    elif not location:
        location.append("cross_page")
    sources = [] if meta.source_type == "unknown" else meta.source_type.split("+")
    return {"by_location": location, "by_source": sources, "by_document_type": [extra.get("doc_type", "unknown")]}


def _integer(text: str, cut: bool = False) -> int | None:
    try:
        return int(float(text)) if cut else int(text)
    except (ValueError, OverflowError):
        return None


def _number(text: str) -> float | None:
    try:
        return float(_clean(text))
    except ValueError:
        return None


def _same_number(wanted: float, found: float) -> bool:
    for target in (wanted / 100, wanted, wanted * 100):
        decimals = max(min(_decimals(found), _decimals(target)), 2)
        if math.isclose(target, found, rel_tol=0.01) or round(found, decimals) == round(target, decimals):
            return True
    return False


def _decimals(value: float) -> int:
    written = str(value)
    return len(written.partition(".")[2]) if "." in written else 3  # 1e-05 has no point


def _clean(text: object) -> str:
    plain = re.sub(r"\s*\([^)]*\)", "", str(text).lower().strip()).strip()
    plain = re.sub(r"^['\"]|['\"]$", "", plain).strip()
    return plain.lstrip("$").strip().rstrip("%").strip()


def _must_be_exact(reference: str) -> bool:
    return any(pattern.fullmatch(reference) for pattern in _EXACT)


def _text_score(found: str, wanted: str) -> float:
    return float(found == wanted) if _must_be_exact(wanted) else _similarity(found, wanted)


def _similarity(found: str, wanted: str) -> float:
    similarity = Levenshtein.normalized_similarity(found, wanted)
    return similarity if similarity > 0.5 else 0.0


def _parts(text: str) -> list[str] | None:
    """The cleaned, sorted parts of `['a', 'b']`; any other text is one part, a broken list None."""
    if not text.startswith("["):
        return [_clean(text)]
    try:
        parts = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    return sorted(_clean(part) for part in parts) or None


def _list_score(found: list[str] | None, wanted: list[str] | None) -> float:
    if found is None or wanted is None or len(found) != len(wanted):
        return 0.0
    if _is_float(wanted[0]) or _must_be_exact(wanted[0]):
        return float(found == wanted)
    return min(_similarity(one, other) for one, other in zip(found, wanted, strict=True))


def _is_float(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
