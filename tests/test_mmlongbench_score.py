"""MMLongBench-Doc's rules, every figure worked by hand."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vrag_nb.documents.mmlongbench import read_mmlongbench
from vrag_nb.evaluation.mmlongbench_score import f1_interval, f1_score, fits_format, mmlongbench_metrics, score_answer
from vrag_nb.records import MetaInfo, Question

REALDOCS = Path(os.environ.get("VRAG_NB_REALDOCS", Path(__file__).parents[2] / "shared" / "realdocs"))


@pytest.mark.parametrize(
    ("answer", "reference", "form", "score"),
    [
        ("8", "8", "Int", 1),
        ("8.0", "8", "Int", 1),
        ("8.9", "8", "Int", 1),  # cut, not rounded
        ("9", "8", "Int", 0),
        ("8 pages", "8", "Int", 0),
        ("1,251", "1251", "Int", 0),  # separators are not read
        ("inf", "8", "Int", 0),
        ("yes", "yes", "Int", 0),  # the reference is no integer: nothing meets it
        ("51%", "51%", "Float", 1),
        ("51.4", "51%", "Float", 1),  # within 1%: 50.49 to 51.51
        ("51.6", "51%", "Float", 0),
        ("0.51", "51%", "Float", 1),  # a hundredth
        ("5100", "51%", "Float", 1),  # a hundred times
        ("$17.5", "17.5", "Float", 1),
        ("17.5 (2014)", "17.5", "Float", 1),  # round brackets go
        ("17.5 points", "17.5", "Float", 0),
        ("0.004", "0", "Float", 1),  # both 0.00 at two decimals
        ("0.006", "0", "Float", 0),
        ("nan", "17.5", "Float", 0),
        ("Google Play store", "google play store", "Str", 1),
        ("kitten", "sitting", "Str", 1 - 3 / 7),  # three edits in seven letters
        ("abcd", "abxy", "Str", 0),  # one half is not above one half
        ("'Data room'", "data room", "Str", 1),
        ("2013 ", "2013", "Str", 1),
        ("2014", "2013", "Str", 0),  # a number must be met exactly, 3 of 4 letters are not enough
        ("2015-03-25", "2015-03-24", "Str", 0),
        ("page 6", "Page 5", "Str", 0),
        ("10:04 a.m.", "10:05 a.m.", "Str", 0),
        ("setup.pyc", "setup.py", "Str", 0),
        ("info@example.orh", "info@example.org", "Str", 0),
        ("https://example.org/b", "https://example.org/a", "Str", 0),
        ("Not answerable", "Not answerable", "None", 1),
        ("The question cannot be answered.", "Not answerable", "None", 1),
        ("42", "Not answerable", "None", 0),
        ("Not answerable", "8", "Int", 0),
        ("['b', 'A']", "['a', 'b']", "List", 1),  # order and case mean nothing
        ("['a']", "['a', 'b']", "List", 0),
        ("[8000, 1500]", "[1500, 8000]", "List", 1),
        ("[8001, 1500]", "[1500, 8000]", "List", 0),  # numbers must be met exactly
        ("['yellow', 'black and whit']", "['yellow', 'black and white']", "List", 14 / 15),  # the worse pair
        ("Fact Checker", "['Fact Checker']", "List", 1),
        ("['yellow', ", "['yellow']", "List", 0),  # a broken list
        ("yellow, black and white", "['yellow', 'black and white']", "List", 1),
        ("black and white", "['black and white']", "List", 1),
        ("[Red, Blue]", "['Red', 'Blue']", "List", 1),
        ("[]", "['yellow']", "List", 0),
        ("Red; Blue", "['Red', 'Blue']", "List", 1),  # a list in words
        ("Blue and red", "['Red', 'Blue']", "List", 1),
        ("Red", "['Red', 'Blue']", "List", 0),
        (None, "8", "Int", 0),
        ("  ", "Not answerable", "None", 0),
    ],
)
def test_scores_by_hand(answer, reference, form, score):
    assert score_answer(answer, reference, form) == pytest.approx(score)


@given(st.text(), st.text(), st.sampled_from(["Int", "Float", "Str", "None", "List"]))
def test_any_answer_has_a_score(answer, reference, form):
    assert 0 <= score_answer(answer, reference, form) <= 1


@given(st.integers(-(10**6), 10**6))
def test_a_number_meets_itself(number):
    for form in ("Int", "Float", "Str", "List"):
        assert score_answer(str(number), str(number), form) == 1


def ask(uid: str, answer: str, form: str, pages: list[int], source: str, kind: str = "Guidebook") -> Question:
    meta = MetaInfo(file_name="a.pdf", reference_page=pages, source_type=source, answer_format=form, doc_type=kind)
    return Question(uid=uid, query="?", reference_answer=answer, meta_info=meta)


QUESTIONS = [
    ask("one", "8", "Int", [3], "table"),
    ask("two", "sitting", "Str", [1, 2], "chart+text"),
    ask("none", "not answerable", "None", [], "unknown", "Academic paper"),
    ask("trap", "not answerable", "None", [4], "figure"),
]


def test_metrics_by_hand():
    answers = {"one": "8", "two": "kitten", "none": "not answerable", "trap": "7"}
    found = mmlongbench_metrics(answers, QUESTIONS)
    assert found["judge"] == "rules of MMLongBench-Doc"
    # scores 1, 4/7, 1, 0
    assert found["accuracy"]["value"] == pytest.approx((1 + 4 / 7 + 1) / 4, abs=1e-6)
    # two answerable, three answered: recall 11/14, precision 11/21
    recall, precision = (1 + 4 / 7) / 2, (1 + 4 / 7) / 3
    assert found["f1"]["value"] == pytest.approx(2 * recall * precision / (recall + precision), abs=1e-6)
    values = {name: (one["value"], one["n"]) for name, one in found["by_location"].items()}
    assert values == {
        "single_page": (0.5, 2),
        "cross_page": (pytest.approx(4 / 7, abs=1e-6), 1),
        "unanswerable": (0.5, 2),
    }
    assert {name: one["n"] for name, one in found["by_source"].items()} == {
        "table": 1,
        "chart": 1,
        "text": 1,
        "figure": 1,
    }
    assert found["by_document_type"]["Academic paper"]["value"] == 1
    assert found["unfit_references"] == 0


def test_f1_rewards_neither_extreme():
    declines = mmlongbench_metrics(dict.fromkeys(("one", "two", "none", "trap"), "Not answerable"), QUESTIONS)
    assert (declines["accuracy"]["value"], declines["f1"]["value"]) == (0.5, 0)
    silent = mmlongbench_metrics({}, QUESTIONS)
    assert (silent["accuracy"]["value"], silent["f1"]["value"]) == (0, 0)
    assert f1_score([]) == 0
    assert f1_score([(1, True, True), (1, False, False)]) == 1
    assert f1_interval([]).n == 0


def test_the_interval_holds_the_value_and_is_the_same_again():
    rows = [(index % 3 / 2, index % 4 > 0, index % 5 > 0) for index in range(60)]
    one, again = f1_interval(rows, seed=3, samples=400), f1_interval(rows, seed=3, samples=400)
    assert one == again
    assert one.low < one.value < one.high


@pytest.mark.skipif(not (REALDOCS / "samples.json").is_file(), reason=f"no real documents at {REALDOCS}")
def test_the_references_of_the_real_slice_meet_themselves():
    rows = json.loads((REALDOCS / "samples.json").read_text(encoding="utf-8"))
    unfit = [row for row in rows if not fits_format(row["answer"], row["answer_format"])]
    missed = [row for row in rows if score_answer(row["answer"], row["answer"], row["answer_format"]) < 1]
    assert missed == unfit
    assert len(unfit) < 0.03 * len(rows)
    questions, _ = read_mmlongbench(REALDOCS / "samples.json")
    found = mmlongbench_metrics({one.uid: one.reference_answer for one in questions}, questions)
    assert found["unfit_references"] == len(unfit)
    assert found["accuracy"]["value"] == pytest.approx(1 - len(unfit) / len(rows), abs=1e-6)
