"""Agreement between judges, by hand and by another formula; tables name their judges."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vrag_nb.evaluation.agreement import (
    accuracy_by,
    agreement,
    agreement_markdown,
    judges_markdown,
    kappa_of,
)
from vrag_nb.evaluation.columns import column_accuracy, columns_markdown
from vrag_nb.records import MetaInfo, Question


def verdicts(*said: bool | None) -> dict[str, bool | None]:
    return {f"q{number}": one for number, one in enumerate(said)}


def from_table(both: int, first: int, second: int, neither: int) -> tuple[dict, dict]:
    pairs = [(True, True)] * both + [(True, False)] * first + [(False, True)] * second + [(False, False)] * neither
    return verdicts(*(one for one, _ in pairs)), verdicts(*(other for _, other in pairs))


def test_a_table_by_hand():
    # same: 35 of 50 = 0.7; chance: 25/50 x 30/50 + 25/50 x 20/50 = 0.5; kappa = 0.2 / 0.5
    found = agreement(*from_table(20, 5, 10, 15), ("a", "b"))
    assert (found.both_right, found.only_first_right, found.only_second_right, found.both_wrong) == (20, 5, 10, 15)
    assert (found.n, found.same.value, found.kappa.value) == (50, 0.7, 0.4)
    assert found.kappa.low < 0.4 < found.kappa.high
    assert found.same.low < 0.7 < found.same.high
    assert agreement(*from_table(20, 5, 10, 15), ("a", "b")) == found


@given(st.lists(st.integers(0, 30), min_size=4, max_size=4).filter(any))
def test_kappa_agrees_with_the_formula_of_the_four_cells(cells):
    a, b, c, d = cells
    below = (a + b) * (b + d) + (a + c) * (c + d)
    if below == 0:  # one and the same verdict throughout
        assert np.isnan(kappa_of(np.array(cells)))
    else:
        assert float(kappa_of(np.array(cells))) == pytest.approx(2 * (a * d - b * c) / below)


def test_one_verdict_throughout_has_no_kappa():
    found = agreement(verdicts(True, True), verdicts(True, True), ("a", "b"))
    assert (found.same.value, found.kappa.value) == (1, None)
    assert "| a / b | 1.00 [1.00, 1.00] | – |" in agreement_markdown([found])
    nothing = agreement(verdicts(None), verdicts(True), ("a", "b"))
    assert (nothing.n, nothing.unjudged, nothing.same.value) == (0, 1, None)


def test_seeds_of_one_question_are_resampled_together():
    one = from_table(8, 3, 2, 7)
    thrice = [{f"{seed}/{uid}": said for seed in range(3) for uid, said in verdicts.items()} for verdicts in one]
    alone = agreement(*one, ("a", "b"))
    found = agreement(*thrice, ("a", "b"), question_of=lambda answer: answer.partition("/")[2])
    assert (found.n, found.both_right) == (60, 24)
    for name in ("same", "kappa"):  # three times the same tells no more than once
        before, after = getattr(alone, name), getattr(found, name)
        assert (after.value, after.low, after.high) == (before.value, before.low, before.high)
    by_question = accuracy_by({"0/q": True, "1/q": False, "0/p": True}, question_of=lambda answer: answer[2:])
    assert (by_question.value, by_question.n) == (0.75, 2)


def test_no_verdict_is_not_a_wrong_one():
    found = agreement(verdicts(True, None, False), verdicts(True, True, None), ("a", "b"))
    assert (found.n, found.both_right, found.unjudged) == (1, 1, 2)
    assert "2 without a verdict" in agreement_markdown([found])


def test_judges_of_different_predictions_are_not_compared():
    with pytest.raises(ValueError, match="a and b judged different predictions: 1, such as 'q1'"):
        agreement(verdicts(True), verdicts(True, False), ("a", "b"))
    with pytest.raises(ValueError, match="both judges are named 'a'"):
        agreement(verdicts(True), verdicts(True), ("a", "a"))


def test_every_judge_is_named():
    table = judges_markdown({"rules": verdicts(True, False), "m-7b": verdicts(False, None)})
    assert "| rules | .50 [.00, 1.00] | 2 | 0 |" in table
    assert "| m-7b | .00 [.00, .97] | 1 | 1 |" in table


def test_columns_are_counted_and_the_judge_named():
    def ask(uid: str, benchmark: str | None, *names: str) -> Question:
        extra = {"benchmark": benchmark, "columns": list(names)} if benchmark else {}
        return Question(uid=uid, query="?", reference_answer="1", meta_info=MetaInfo(file_name="a.pdf", **extra))

    questions = [
        ask("a", "mmlongbench", "chart", "table"),
        ask("b", "mmlongbench", "chart"),
        ask("c", "vidoseek", "logic"),
        ask("d", None),
        ask("e", "vidoseek", "logic"),
        ask("f", "mmlongbench", "unanswerable"),
    ]
    questions[-1].meta_info.query_type = "unanswerable"
    said = {"agent": {"a": True, "b": False, "c": True, "d": False, "e": None, "f": True}}
    table = column_accuracy(said, questions)
    assert {name: (one["value"], one["n"]) for name, one in table["agent"].items()} == {
        "mmlongbench chart": (0.5, 2),
        "mmlongbench table": (1, 1),
        "mmlongbench unanswerable": (1, 1),
        "mmlongbench answerable": (0.5, 2),
        "mmlongbench all": (pytest.approx(2 / 3, abs=1e-6), 3),
        "vidoseek logic": (1, 1),
        "vidoseek all": (1, 1),
    }
    assert list(table["agent"])[3:5] == ["mmlongbench answerable", "mmlongbench all"]
    text = columns_markdown(table, "m-72b")
    assert text.startswith("Accuracy [95%], judged by m-72b.")
    assert "mmlongbench chart (n=2)" in text
    with pytest.raises(ValueError, match="name the judge"):
        columns_markdown(table, " ")
