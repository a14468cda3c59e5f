"""Rewards against hand-worked numbers; errors that stay errors; the judge against a local endpoint."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from conftest import serving
from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse

from vrag_nb.agent.actions import Action
from vrag_nb.agent.trajectory import Observation, Trajectory, Turn
from vrag_nb.learning import rewards
from vrag_nb.learning.judge import Judge, JudgeError
from vrag_nb.learning.rewards import PRESETS, Reward, load_reward
from vrag_nb.records import MetaInfo, Question, Region

GOLD = (0.1, 0.1, 0.5, 0.5)


def trajectory(
    *kinds: str,
    shown: Sequence[int] = (),
    crops: Sequence[tuple[int, int, int, int]] = (),
    gold: Sequence[int] = (2,),
    answer: str | None = "42",
    uid: str = "q",
) -> Trajectory:
    """Turns of these kinds; pages of the deck shown in order; crops (page pixels) of page 2, which is 1000 x 500."""
    meta = MetaInfo(
        file_name="alpha.pdf",
        reference_page=list(gold),
        reference_regions=[Region(page=page, box=GOLD) for page in gold],
    )
    question = Question(uid=uid, query="What?", reference_answer="42", meta_info=meta)
    seen = [Observation(kind="page", page_id=f"alpha_{n}", image="", page_size=(1000, 500)) for n in shown]
    seen += [Observation(kind="crop", page_id="alpha_2", image="", page_size=(1000, 500), crop_box=c) for c in crops]
    turns = [Turn(index=i, text="", thought="", action=Action(kind=kind)) for i, kind in enumerate(kinds)]  # type: ignore[arg-type]
    turns += [Turn(index=9, text="", thought="", action=Action(kind="search"), observation=one) for one in seen]
    status = "answered" if answer is not None else "no_answer"
    return Trajectory(
        uid=uid, question="What?", prompt="", reference=question, turns=turns, answer=answer, status=status
    )


def test_outcome_is_the_rule() -> None:
    assert rewards.outcome(trajectory(answer="42.0")) == 1
    assert rewards.outcome(trajectory(answer="43")) == 0
    assert rewards.outcome(trajectory(answer=None)) == 0


def test_pattern_wants_a_search_and_an_answer_of_the_model() -> None:
    assert rewards.pattern(trajectory("search", "bbox", "answer")) == 1
    assert rewards.pattern(trajectory("answer")) == 0
    assert rewards.pattern(trajectory("search", "invalid")) == 0
    said = trajectory("answer")
    said.turns[0].observation = Observation(kind="notice", text="Use <search>query</search>")
    assert rewards.pattern(said) == 0  # the environment's own words do not count


@pytest.mark.parametrize(
    ("shown", "gold", "value"),
    [
        ((2,), (2,), 1.0),
        ((1, 2), (2,), 1 / math.log2(3)),
        ((1, 3), (2,), 0.0),
        ((), (2,), 0.0),
        ((2, 1, 4), (2, 4), (1 + 0.5) / (1 + 1 / math.log2(3))),
        ((), (), 1.0),
        ((1,), (), 0.0),
    ],
)
def test_retrieval_is_ndcg_of_the_pages_in_the_order_shown(
    shown: Sequence[int], gold: Sequence[int], value: float
) -> None:
    assert rewards.retrieval(trajectory(shown=shown, gold=gold)) == pytest.approx(value)


def test_region_is_f1_at_half_overlap() -> None:
    exact, far = (100, 50, 500, 250), (600, 300, 900, 450)
    assert rewards.region(trajectory(shown=[2], crops=[exact])) == 1
    assert rewards.region(trajectory(shown=[2], crops=[exact, far])) == pytest.approx(2 / 3)
    assert rewards.region(trajectory(shown=[2], crops=[exact, exact])) == pytest.approx(2 / 3)  # matched once
    assert rewards.region(trajectory(shown=[2], crops=[far])) == 0
    assert rewards.region(trajectory(shown=[2])) == 0
    assert rewards.region(trajectory(gold=[])) == 1


def test_regions_and_crops_are_matched_as_well_as_they_can_be() -> None:
    both = trajectory(shown=[2], crops=[(0, 0, 400, 100), (0, 0, 300, 100)])
    boxes = [(0.0, 0.0, 0.4, 0.2), (0.0, 0.0, 0.7, 0.2)]  # the first crop meets both of them, the second one alone
    both.reference.meta_info.reference_regions = [Region(page=2, box=box) for box in boxes]  # type: ignore[union-attr]
    assert rewards.region(both) == 1


def test_selection_is_the_share_of_gold_pages_shown() -> None:
    assert rewards.selection(trajectory(shown=[1, 2])) == 0.5
    assert rewards.selection(trajectory()) == 0


def test_brevity_falls_with_every_turn_beyond_two() -> None:
    kinds = ["search", "bbox", "bbox", "answer"]
    assert [rewards.brevity(trajectory(*kinds[:n])) for n in range(5)] == [0, 1, 1, 2 / 3, 1 / 2]


def test_validity_is_the_share_of_valid_actions() -> None:
    assert rewards.validity(trajectory("search", "invalid", "invalid", "answer")) == 0.5
    assert rewards.validity(trajectory("search", "answer")) == 1
    asked = trajectory("search", "search", answer=None)
    asked.turns[-1] = asked.turns[-1].model_copy(update={"forced": True})
    assert rewards.validity(asked) == 0.5, "on the extra turn only an answer is an action"
    assert rewards.validity(trajectory()) == 0


def test_finish_wants_an_answer_that_nobody_asked_for() -> None:
    assert rewards.finish(trajectory("search", "bbox", "answer")) == 1
    assert rewards.finish(trajectory("search", "bbox")) == 0
    asked = trajectory("search", "answer")
    asked.turns[-1] = asked.turns[-1].model_copy(update={"forced": True})
    assert rewards.finish(asked) == 0


def test_presets_weigh_the_parts_and_the_gate_closes() -> None:
    good = trajectory("search", "answer", shown=[1, 2])
    [scored] = load_reward("vrag").score([good])
    assert scored.total == pytest.approx(0.7 + 0.1 + 0.2 / math.log2(3))
    assert scored.parts == pytest.approx({"outcome": 1, "pattern": 1, "retrieval": 1 / math.log2(3)})
    unsearched = trajectory("answer")
    [scored] = load_reward("vrag").score([unsearched])
    assert scored.total == 0  # right, and yet nothing: the format gate
    assert load_reward("vrag-after-sft").score([unsearched])[0].total == pytest.approx(0.8)
    assert load_reward("outcome").score([unsearched])[0].total == 1
    for name, preset in PRESETS.items():
        assert sum(preset.parts.values()) == pytest.approx(1), name
    with pytest.raises(ValueError, match="no reward preset"):
        load_reward("best")
    with pytest.raises(ValueError, match="gate"):
        Reward({"outcome": (rewards.outcome, 1.0)}, gate="pattern")


class Many:
    """A `BatchPart`."""

    identity: ClassVar = {"name": "many"}

    def many(self, trajectories: Sequence[Trajectory]) -> list[float | Exception]:
        return [0.25] * len(trajectories)


class Wanting(Many):
    """One that cannot be made of nothing."""

    def __init__(self, model: str) -> None:
        self.model = model


MANY = Many()


def test_a_part_of_ones_own_is_named_by_module_and_function() -> None:
    [scored] = load_reward({"parts": {"tests_own:short": 1.0}, "gate": ""}, {"tests_own:short": lambda one: 0.5}).score(
        [trajectory()]
    )
    assert scored.total == 0.5
    assert (
        load_reward({"parts": {"vrag_nb.learning.rewards:selection": 2.0}, "gate": ""})
        .score([trajectory(shown=[2])])[0]
        .total
        == 2
    )
    for name in (f"{__name__}:Many", f"{__name__}:MANY"):  # the class, and an object of it
        assert load_reward({"parts": {name: 1.0}, "gate": ""}).score([trajectory()])[0].total == 0.25
    for name in ("nothing", "no_such_module:part", "math:nothing", "math:pi", f"{__name__}:Wanting"):
        with pytest.raises(ValueError, match=name):
            load_reward({"parts": {name: 1.0}, "gate": ""})


def test_what_fails_is_an_error_and_loses_nothing_else() -> None:
    def fails(one: Trajectory) -> float:
        if one.uid == "bad":
            raise OSError("gone")
        return math.nan if one.uid == "nan" else 1.0

    broken = trajectory(uid="broken").model_copy(update={"status": "error", "error": "observation: no file"})
    mine = Reward({"outcome": (rewards.outcome, 0.5), "mine": (fails, 0.5)})
    scored = mine.score([trajectory(uid=uid) for uid in ("good", "bad", "nan")] + [broken])
    assert [one.total for one in scored] == [1.0, None, None, None]
    assert scored[1].error == "mine: gone"
    assert "nan" in str(scored[2].error)
    assert "no file" in str(scored[3].error)
    assert scored[1].parts == {"outcome": 1.0}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (lambda: [math.nan, math.inf], "nan"),
        (lambda: [None, "much"], "no number"),
        (lambda: [1.0], "1 values for 2 trajectories"),
        (lambda: [][1], "IndexError"),
    ],
)
def test_a_part_that_scores_many_may_fail_as_well(given: Callable[[], list[Any]], words: str) -> None:
    class Together:
        identity: ClassVar[dict[str, str]] = {}

        def many(self, trajectories: Sequence[Trajectory]) -> list[Any]:
            return given()

    scored = Reward({"outcome": (rewards.outcome, 0.5), "mine": (Together(), 0.5)}).score([trajectory(), trajectory()])
    assert [one.total for one in scored] == [None, None]
    assert all(one.parts == {"outcome": 1.0} and str(one.error).startswith("mine: ") for one in scored)
    assert words in str(scored[0].error) or words == "IndexError"


# -- the judge


STRANGE = {  # replies with status 200 that are no chat completion
    "page": HTMLResponse("<html>Welcome</html>"),
    "null": JSONResponse(None),
    "list": JSONResponse([1]),
    "no-message": JSONResponse({"choices": [{"index": 0}]}),
    "no-text": JSONResponse({"choices": [{"message": {"content": None}}], "usage": None}),
    "no-choices": JSONResponse({"choices": 7}),
}


ENDS = "I end with <judge>True</judge> or <judge>False</judge>"
WORDS: dict[str, tuple[Any, str]] = {  # what a judge says whatever it is asked, and why it ends
    "cut off": (f"{ENDS}, so", "length"),
    "filtered": (ENDS, "content_filter"),
    "only thinks": (f"<think>{ENDS}.</think> Well.", "stop"),
    "thinks": (f"<think>{ENDS}.</think><judge>true</judge>", "stop"),
    "parts": ([{"type": "text", "text": "<judge>"}, {"type": "text", "text": "True</judge>"}], "stop"),
}


class Court:
    """A local endpoint: the model's name says how it judges."""

    def __init__(self) -> None:
        self.prompts: list[str] = []
        self.busy = 2
        self.app = FastAPI()
        self.app.post("/v1/chat/completions")(self.complete)

    async def complete(self, request: Request) -> Any:
        body = await request.json()
        prompt = body["messages"][0]["content"]
        self.prompts.append(prompt)
        if body["model"] == "busy" and self.busy:
            self.busy -= 1
            return JSONResponse({"error": {"message": "later"}}, status_code=503)
        if body["model"] == "away":
            return JSONResponse({"error": {"message": f"no {request.headers['authorization']}"}}, status_code=401)
        if body["model"] in STRANGE:
            return STRANGE[body["model"]]
        if body["model"] == "busy inside" and self.busy:
            self.busy -= 1
            return {"error": {"message": "later", "code": 429}}
        right = "Answer: 42" in prompt
        said = "I cannot say" if body["model"] == "vague" else f"Well.\n<judge>{right}</judge>"
        said, reason = WORDS.get(body["model"], (said, "stop"))
        choice = {"index": 0, "finish_reason": reason, "message": {"role": "assistant", "content": said}}
        base = {"id": "x", "object": "chat.completion", "created": 0, "model": body["model"]}
        counts = (None, None) if body["model"] == "uncounted" else (11, 2)
        usage = {"prompt_tokens": counts[0], "completion_tokens": counts[1], "total_tokens": 13}
        return {**base, "choices": [choice], "usage": usage}


@pytest.fixture(scope="module")
def court() -> Iterator[tuple[Court, str]]:
    court = Court()
    with serving(court.app) as url:
        yield court, f"{url}/v1"


def test_the_judge_is_asked_once_for_each_answer(court: tuple[Court, str], tmp_path: Path) -> None:
    asked, url = court
    asked.prompts.clear()
    judge = Judge("fair", url, api_key_env=None, cache=tmp_path / "verdicts.jsonl")
    group = [trajectory(answer="42"), trajectory(answer="41"), trajectory(answer=None), trajectory(answer="41")]
    assert judge.many(group) == [1.0, 0.0, 0.0, 0.0]
    assert len(asked.prompts) == 2  # no answer is wrong without asking
    assert (judge.usage.asked, judge.usage.prompt_tokens, judge.usage.completion_tokens) == (2, 22, 4)
    with (tmp_path / "verdicts.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"key": "half')  # a killed run
    again = Judge("fair", url, api_key_env=None, cache=tmp_path / "verdicts.jsonl")
    assert again.many(group) == [1.0, 0.0, 0.0, 0.0]
    assert len(asked.prompts) == 2
    assert again.usage.cached == 2
    reward = load_reward({"parts": {"judge": 0.7, "pattern": 0.3}, "gate": ""}, {"judge": again})
    assert [one.total for one in reward.score(group)] == [0.7, 0, 0, 0]


@pytest.mark.parametrize("name", STRANGE)
def test_a_reply_that_is_no_verdict_is_an_error_of_its_sample(name: str, court: tuple[Court, str]) -> None:
    judge = Judge(name, court[1], api_key_env=None, retries=0)
    strange, known = judge.many([trajectory(answer="41"), trajectory(answer=None)])
    assert isinstance(strange, JudgeError)
    assert known == 0
    assert judge.usage.failed == 1


@pytest.mark.parametrize("name", ["cut off", "filtered", "only thinks"])
def test_a_verdict_that_is_only_quoted_is_none(name: str, court: tuple[Court, str], tmp_path: Path) -> None:
    judge = Judge(name, court[1], api_key_env=None, retries=0, cache=tmp_path / "verdicts.jsonl")
    with pytest.raises(JudgeError):
        judge.verdict("What?", "42", "42")
    assert not (tmp_path / "verdicts.jsonl").exists()


def test_a_verdict_is_found_behind_a_thought_in_parts_and_after_a_wait(court: tuple[Court, str]) -> None:
    court[0].busy = 1
    for name in ("thinks", "parts", "busy inside"):
        assert Judge(name, court[1], api_key_env=None, retries=1).verdict("What?", "42", "42"), name


def test_tokens_that_are_not_counted_lose_no_verdict(court: tuple[Court, str]) -> None:
    judge = Judge("uncounted", court[1], api_key_env=None, retries=0)
    assert judge.many([trajectory(answer="42")]) == [1.0]
    assert (judge.usage.asked, judge.usage.prompt_tokens, judge.usage.failed) == (1, 0, 0)


def test_a_judge_that_stays_away_is_an_error(court: tuple[Court, str], monkeypatch: pytest.MonkeyPatch) -> None:
    _, url = court
    monkeypatch.setenv("JUDGE_KEY", "sk-very-secret")
    assert Judge("busy", url, api_key_env="JUDGE_KEY").verdict("What?", "42", "42")  # a retry helps
    for name, words in (("away", "could not be asked"), ("vague", "gave no verdict")):
        judge = Judge(name, url, api_key_env="JUDGE_KEY", retries=0)
        with pytest.raises(JudgeError, match=words) as caught:
            judge.verdict("What?", "42", "42")
        assert "very-secret" not in str(caught.value)
        scored = load_reward({"parts": {"judge": 1.0}, "gate": ""}, {"judge": judge}).score(
            [trajectory(), trajectory(answer=None)]
        )
        assert scored[0].total is None
        assert words in str(scored[0].error)
        assert scored[1].total == 0
        assert judge.usage.failed == 2
    with pytest.raises(ValueError, match="NO_SUCH_KEY"):
        Judge("fair", url, api_key_env="NO_SUCH_KEY")
