"""Experts and what is kept of their trajectories."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import RankedEngine, ScriptedPolicy
from datasets import load_dataset

from vrag_nb.agent.environment import Environment, replay
from vrag_nb.agent.pages import PageStore
from vrag_nb.agent.policy import Image, Message, Text, boxes_to_model, boxes_to_shown
from vrag_nb.agent.rollout import rollout
from vrag_nb.agent.task_settings import Settings
from vrag_nb.agent.trajectory import Trajectory
from vrag_nb.document_split import disjoint
from vrag_nb.learning.experts import Fact, GroundedPolicy, PrivilegedPlanner, told
from vrag_nb.learning.sampled_data import card, read_conversation, write_dataset, write_sharegpt
from vrag_nb.learning.sampling import account, choose, fault
from vrag_nb.records import MetaInfo, Question

NANO = {"min_pixels": 128 * 784, "max_pixels": 224 * 784}
REGION = [0.25, 0.25, 0.5, 0.5]


def question(uid: str, page: int = 2, small: bool = True, query: str = "", document: str = "alpha") -> Question:
    fact = {
        "page": page,
        "box": REGION,
        "value": "42",
        "search_hint": f"hint of {uid}",
        "description": f"worth of {uid}",
    }
    meta = MetaInfo(
        file_name=f"{document}.pdf", reference_page=[page], needed_facts=[fact], needs_crop=small, source_type="table"
    )  # type: ignore[call-arg]
    return Question(uid=uid, query=query or f"What is {uid}?", reference_answer="42", meta_info=meta)


@pytest.fixture
def environment(tiny_corpus: Path) -> Environment:
    return Environment(RankedEngine(), tiny_corpus, Settings(max_turns=6, **NANO), "nano")


def test_the_planner_searches_until_it_sees_the_page_crops_and_answers(environment: Environment) -> None:
    questions = [question("small", page=2), question("large", page=1, small=False), question("small one", page=1)]
    planner = PrivilegedPlanner(questions)
    found = rollout(planner, environment, questions, progress=False)
    kinds = [[turn.action.kind for turn in one.turns] for one in found]
    assert kinds == [["search", "search", "bbox", "answer"], ["search", "answer"], ["search", "bbox", "answer"]]
    assert all(one.answer == "42" and fault(one) is None for one in found)
    assert found[0].turns[0].action.query == "What is small?"
    assert found[2].turns[0].action.query == "What is small one?"  # one query contains the other
    assert found[0].turns[1].thought == "Not the right page."
    crop = found[0].turns[2].observation
    assert crop is not None
    assert crop.crop_box is not None
    assert crop.page_size is not None
    width, height = crop.page_size
    x0, y0, x1, y1 = crop.crop_box
    reaches = (REGION[0] * width - x0, REGION[1] * height - y0, x1 - REGION[2] * width, y1 - REGION[3] * height)
    assert min(reaches) > -3
    assert (x1 - x0) * (y1 - y0) < 0.12 * width * height  # about the region, not the page


def test_a_planner_that_does_not_crop_answers_at_the_sight_of_the_page(environment: Environment) -> None:
    small = question("small", page=2)
    [found] = rollout(PrivilegedPlanner([small], crops=False), environment, [small], progress=False)
    assert [turn.action.kind for turn in found.turns] == ["search", "search", "answer"]
    assert (found.policy, found.answer, fault(found)) == ("glancing-planner", "42", None)


def test_the_planner_looks_at_three_pages_before_it_gives_up(environment: Environment) -> None:
    meta = MetaInfo(file_name="alpha.pdf", reference_page=[], needed_facts=[], source_type="text")  # type: ignore[call-arg]
    nowhere = Question(uid="nowhere", query="Who?", reference_answer="not answerable", meta_info=meta)
    [found] = rollout(PrivilegedPlanner([nowhere]), environment, [nowhere], progress=False)
    assert [turn.action.kind for turn in found.turns] == ["search"] * 3 + ["answer"]
    assert len({turn.observation.page_id for turn in found.turns if turn.observation}) == 3
    assert found.answer == "not answerable"


def test_a_question_that_needs_two_pages_is_searched_page_by_page(environment: Environment) -> None:
    asked = question("both", page=1, small=False)
    facts = [*asked.needed_facts, {**asked.needed_facts[0], "page": 2, "search_hint": "the other"}]
    meta = asked.meta_info.model_copy(update={"needed_facts": facts})
    both = asked.model_copy(update={"meta_info": meta})
    [found] = rollout(PrivilegedPlanner([both]), environment, [both], progress=False)
    assert [turn.action.query for turn in found.turns] == ["hint of both", "the other", None]


def test_questions_that_people_wrote_are_worked_by_their_gold_regions_and_pages(environment: Environment) -> None:
    region = {"page": 1, "box": REGION}
    meta = [
        MetaInfo(file_name="alpha.pdf", reference_page=[1], reference_regions=[region]),  # type: ignore[list-item]
        MetaInfo(file_name="alpha.pdf", reference_page=[1], reference_regions=[region], needs_crop=False),  # type: ignore
        MetaInfo(file_name="alpha.pdf", reference_page=[2]),
        MetaInfo(file_name="alpha.pdf", reference_page=[1, 2]),
    ]
    asked = [
        Question(uid=f"q{n}", query=f"What is {n}?", reference_answer="42", meta_info=one) for n, one in enumerate(meta)
    ]
    found = rollout(PrivilegedPlanner(asked), environment, asked, progress=False)
    kinds = [[turn.action.kind for turn in one.turns] for one in found]
    assert kinds == [["search", "bbox", "answer"], ["search", "answer"], ["search", "search", "answer"], kinds[2]]
    assert all(one.answer == "42" and fault(one) is None for one in found)
    assert [one.turns[-1].thought for one in found] == ["I read 42."] * 3 + ["I have seen what I need."]


def test_of_two_named_values_the_planner_says_which_is_higher_before_it_answers() -> None:
    """Only where a name is the answer, and where both values are known and differ."""
    north, south = Fact("1,200", "North", 1200.0), Fact("$900", "South", 900.0)
    assert told([north, south], "South") == "I read North: 1,200, South: $900. The first is higher."
    assert told([south, north], "South") == "I read South: $900, North: 1,200. The second is higher."
    assert told([north, south], "300") == "I read North: 1,200, South: $900."
    assert told([north]) == "I read North: 1,200."
    assert told([north, Fact("1,200", "East", 1200.0)], "East") == "I read North: 1,200, East: 1,200."
    assert told([Fact("7", "A"), Fact("8", "B")], "A") == "I read A: 7, B: 8."
    assert told([Fact("7", number=7.0), Fact("8", number=8.0)], "7") == "I read 7, 8."


def test_a_question_it_was_not_told_of_is_an_error(environment: Environment) -> None:
    [found] = rollout(PrivilegedPlanner([question("known")]), environment, [question("unknown")], progress=False)
    assert found.status == "error"
    assert "not told" in str(found.error)


def test_two_questions_in_the_same_words_are_both_left_out(environment: Environment) -> None:
    same = [question("north", page=1, query="What is it?"), question("south", page=2, query="What is it?")]
    asked = [*same, question("own", page=1, query="What else?"), question("again", page=1, query="What else?")]
    found = rollout(PrivilegedPlanner(asked), environment, asked, progress=False)
    assert [one.status for one in found] == ["error", "error", "answered", "answered"]
    assert "in the same words" in (found[0].error or "")


def test_the_grounder_redraws_boxes_and_the_planner_keeps_what_it_cannot(environment: Environment) -> None:
    asked: list[str] = []

    def ground(conversation: list[Message]) -> str:
        asked.append(conversation[-1].text)
        return "<bbox>[10, 20, 110, 90]</bbox>" if len(asked) == 1 else "<bbox>[0, 0, 9000, 9]</bbox>"

    questions = [question("a", page=1), question("b", page=1)]
    policy = GroundedPolicy(PrivilegedPlanner(questions), ScriptedPolicy(ground))
    found = rollout(policy, environment, questions, concurrency=1, progress=False)
    assert found[0].turns[1].action.box == (10, 20, 110, 90)
    assert found[1].turns[1].action.box != (0, 0, 9000, 9)
    assert [one.turns[1].redrawn for one in found] == [True, False]
    assert account("both", found)["boxes"] == "1 redrawn, 1 kept"
    assert "| boxes after a grounding expert | |\n|---|---:|\n| kept | 1 |\n| redrawn | 1 |" in card(found)
    assert "boxes" not in account("planner", [found[0].model_copy(update={"turns": []})])
    assert all("Right page, small print." in words for words in asked)
    assert found[0].policy == "privileged-planner+scripted"


def test_a_grounder_that_fails_is_the_turns_error(environment: Environment) -> None:
    def fails(conversation: object) -> str:
        raise RuntimeError("bad key")

    questions = [question("a", page=1)]
    policy = GroundedPolicy(PrivilegedPlanner(questions), ScriptedPolicy(fails))
    [found] = rollout(policy, environment, questions, progress=False)
    assert (found.status, found.error) == ("error", "policy: grounder scripted: RuntimeError: bad key")


@pytest.mark.parametrize("crop", [None, (100, 50, 500, 250)])
def test_each_frame_is_converted_at_the_edge(crop: tuple[int, int, int, int] | None) -> None:
    image = Image((280, 140), None, "alpha_1", crop, (1000, 500))
    shown = [Message("user", (image,))]
    scale = (400 if crop else 1000) / 280
    wanted = "<bbox>[28, 0, 140, 140]</bbox>"
    down = (200 if crop else 500) / 140
    raw = f"<bbox>[{28 * scale:g}, 0, {140 * scale:g}, {140 * down:g}]</bbox>"
    assert boxes_to_shown(raw, shown, "raw") == wanted
    assert boxes_to_shown("<bbox>[100, 0, 500, 1000]</bbox>", shown, "normalised-1000") == wanted
    assert boxes_to_shown(wanted, shown, "absolute") == wanted
    spoken = [*shown, Message("assistant", (Text(wanted),))]
    assert boxes_to_shown(boxes_to_model(spoken, 1, "raw"), shown, "raw") == wanted
    nameless = [Message("user", (Image((280, 140)),))]
    with pytest.raises(ValueError, match="not known"):
        boxes_to_shown(raw, nameless, "raw")


def sampled(environment: Environment, count: int = 6) -> list[Trajectory]:
    questions = [question(f"q{n}", page=1 + n % 2, small=n % 3 > 0) for n in range(count)]
    return rollout(PrivilegedPlanner(questions), environment, questions, samples=2, progress=False)


def test_what_is_wrong_odd_or_there_twice_is_dropped(environment: Environment) -> None:
    good = sampled(environment, 1)
    scripts = {
        "wrong answer": ["<search>a</search>", "<answer>41</answer>"],
        "invalid action": ["<search>a</search>", "hm", "<answer>42</answer>"],
        "not 2 to 6 turns": ["<answer>42</answer>"],
        "box beyond the image": ["<search>a</search>", "<bbox>[0, 0, 9000, 9000]</bbox>", "<answer>42</answer>"],
        "answer had to be forced": [*["<search>a</search>"] * 6, "<answer>42</answer>"],
    }
    faulty = [
        rollout(ScriptedPolicy(script), environment, [question(name)], progress=False)[0]
        for name, script in scripts.items()
    ]
    assert [fault(one) for one in faulty] == list(scripts)
    chosen = choose([*good, *faulty])
    assert [one.uid for one in chosen.trajectories] == [good[0].uid]  # the second sample is the same
    assert chosen.dropped == dict.fromkeys([*scripts, "twin of another"], 1)


def test_what_is_left_is_balanced(environment: Environment) -> None:
    everything = choose(sampled(environment, 24)).trajectories
    by_length = {n: sum(len(one.turns) == n for one in everything) for n in (2, 3, 4)}
    assert max(by_length.values()) >= 2 * min(by_length.values())
    chosen = choose(everything, size=9).trajectories
    assert [sum(len(one.turns) == n for one in chosen) for n in (2, 3, 4)] == [3, 3, 3]
    assert choose(everything, size=9).trajectories == chosen
    questions = [question(str(n), document=f"d{n % 4}") for n in range(12)]
    first, second = disjoint(questions, 0.5)
    assert (len(first), len(second)) == (6, 6)
    assert not {q.document for q in first} & {q.document for q in second}


def test_data_sets_hold_what_the_model_saw(environment: Environment, tiny_corpus: Path, tmp_path: Path) -> None:
    chosen = choose(sampled(environment)).trajectories
    store = PageStore(tiny_corpus)
    path = write_dataset(chosen, store, tmp_path)
    rows = load_dataset("parquet", data_files=str(path), split="train", cache_dir=str(tmp_path / "cache"))
    assert rows["uid"] == [one.uid for one in chosen]
    for row, trajectory in zip(rows, chosen, strict=True):
        conversation = trajectory.messages(store)
        again = read_conversation(row)
        assert [(m.role, m.text) for m in again] == [(m.role, m.text) for m in conversation]
        for new, old in zip(again, conversation, strict=True):
            assert [image.resolved().tobytes() for image in new.images] == [
                image.resolved().tobytes() for image in old.images
            ]
    assert f"{len(chosen)} trajectories" in (tmp_path / "README.md").read_text()
    shared = json.loads(write_sharegpt(chosen, store, tmp_path / "sharegpt").read_text())
    info = json.loads((tmp_path / "sharegpt" / "dataset_info.json").read_text())
    assert info["vrag_sampled"]["formatting"] == "sharegpt"
    for row, trajectory in zip(shared, chosen, strict=True):
        assert sum(turn["content"].count("<image>") for turn in row["messages"]) == len(row["images"])
        assert all((tmp_path / "sharegpt" / name).is_file() for name in row["images"])
        assert [turn["role"] for turn in row["messages"]] == [m.role for m in trajectory.messages()]
    write_sharegpt([chosen[0].model_copy(update={"uid": "\u00fc" * 200})], store, tmp_path / "sharegpt")
    [row] = json.loads((tmp_path / "sharegpt" / "data.json").read_text())
    kept = {path.name for path in (tmp_path / "sharegpt" / "images").iterdir()}
    assert kept == {Path(name).name for name in row["images"]}, "no image of an earlier choice stays"


def test_words_of_the_data_neither_break_the_card_nor_are_html(environment: Environment) -> None:
    odd = sampled(environment, 1)[0].model_copy(update={"policy": "<b>a|b"})
    assert r"| &lt;b&gt;a\|b | 1 |" in card([odd])


def test_two_experts_may_answer_one_question(environment: Environment, tiny_corpus: Path, tmp_path: Path) -> None:
    """With one sample each they share its uid."""
    asked = [question(f"q{n}", page=2 - n % 2) for n in range(4)]
    careful, glancing = (
        rollout(PrivilegedPlanner(asked, crops=crops), environment, asked, progress=False) for crops in (True, False)
    )
    both = [*careful, *glancing]
    assert len({one.uid for one in both}) == 4
    for size in range(1, 9):
        assert len(choose(both, size=size).trajectories) == size
    rows = json.loads(write_sharegpt(both, PageStore(tiny_corpus), tmp_path).read_text())
    names = [name for row in rows for name in row["images"]]
    assert len(set(names)) == len(names) == sum(seen.image is not None for one in both for seen in one.observations)


def test_sampling_goes_on_where_it_was(environment: Environment, tmp_path: Path) -> None:
    questions = [question(f"q{n}") for n in range(4)]
    log = tmp_path / "sampled.jsonl"
    whole = rollout(PrivilegedPlanner(questions), environment, questions, log, samples=2, seed=3, progress=False)
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(lines[:3]) + lines[3][:40])  # killed while writing
    again = rollout(PrivilegedPlanner(questions), environment, questions, log, samples=2, seed=3, progress=False)
    assert [[turn.text for turn in one.turns] for one in again] == [[turn.text for turn in one.turns] for one in whole]
    assert replay(again[0], environment.pages) == []


def test_documents_that_a_question_needs_together_stay_together() -> None:
    def needs(uid: str, *documents: str) -> Question:
        pages = {"reference_page": [1] * len(documents), "reference_documents": list(documents)}
        meta = MetaInfo.model_validate({"file_name": f"{documents[0]}.pdf", **pages})
        return Question(uid=uid, query="?", reference_answer="1", meta_info=meta)

    questions = [needs("0", "A", "B"), needs("1", "B"), needs("2", "C", "D"), needs("3", "D"), needs("4", "E")]
    for seed in range(8):
        both = disjoint(questions, 0.5, seed)
        first, second = ({name for one in part for name in one.gold_documents} for part in both)
        assert not first & second
        assert sum(map(len, both)) == len(questions)


def test_questions_whose_uids_look_like_samples_are_not_one(environment: Environment) -> None:
    found = [one.model_copy(update={"uid": f"deck#{n}"}) for n, one in enumerate(sampled(environment, 1))]
    found = [one.model_copy(update={"reference": question(one.uid)}) for one in found]
    assert [one.question_uid for one in found] == ["deck#0", "deck#1"]
    assert len(choose(found).trajectories) == 2
    assert found[0].model_copy(update={"reference": None}).question_uid == "deck"
