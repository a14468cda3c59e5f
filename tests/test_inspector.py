"""The inspector without a browser: its traits, its commands, and that it sees what `agent.geometry` sees."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from display_world import GOLD_BOX, SETTINGS, FixedEngine, make_corpus, play, trajectories, write_world
from PIL import Image

from vrag_nb.agent import geometry
from vrag_nb.agent.geometry import Budget, View
from vrag_nb.agent.pages import PageStore
from vrag_nb.agent.trajectory import Trajectory
from vrag_nb.display import scenes
from vrag_nb.display.inspector import HITS_PER_VIEW, TrajectoryInspector
from vrag_nb.retrieval.embedders import Embedder, SimilarityMap


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_corpus(tmp_path_factory.mktemp("world") / "corpus")


@pytest.fixture(scope="module")
def played(corpus: Path) -> list[Trajectory]:
    return trajectories(corpus)


@pytest.fixture
def inspector(corpus: Path, played: list[Trajectory]) -> TrajectoryInspector:
    return TrajectoryInspector(played, corpus, engine=FixedEngine())


def pixels(png: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))


def command(inspector: TrajectoryInspector, **content: object) -> None:
    """What the front end sends."""
    inspector._handle_custom_msg(content, [])


def test_every_turn_shows_exactly_the_pixels_the_model_saw(inspector: TrajectoryInspector, corpus: Path) -> None:
    pages, compared = PageStore(corpus), 0
    for index, turn in enumerate(inspector.trajectories[0].turns):
        inspector.turn_index = index
        observation = turn.observation
        if observation is None or observation.page_id is None or observation.shown_size is None:
            continue
        expected = geometry.render(pages.image(observation.page_id), observation.crop_box, observation.shown_size)
        assert (pixels(inspector.seen_png) == np.asarray(expected)).all()
        assert inspector.seen["size"] == list(observation.shown_size)
        assert inspector.seen["tokens"] == observation.image_tokens
        compared += 1
    assert compared == 4


def test_pictures_agree_with_messages(corpus: Path) -> None:
    """The conversation a policy was given and the inspector's pictures are the same pixels."""
    trajectory, pages = play(corpus), PageStore(corpus)
    images = [image for message in trajectory.messages(pages) for image in message.images]
    drawn = [shown.render(pages) for scene in scenes.scenes(trajectory, pages) for shown in scene.shown]
    assert [image.resolved().tobytes() for image in images] == [image.tobytes() for image in drawn]


def test_marks_lie_where_the_crop_and_the_gold_are(inspector: TrajectoryInspector) -> None:
    inspector.turn_index = 2
    marks = {mark["kind"]: mark for mark in inspector.page["marks"]}
    crop = inspector.trajectories[0].turns[2].observation.crop_box
    width, height = inspector.page["size"]
    fractions = [crop[0] / width, crop[1] / height, crop[2] / width, crop[3] / height]
    assert marks["model"]["box"] == pytest.approx(fractions)
    assert marks["gold"]["box"] == pytest.approx(GOLD_BOX)
    assert "written" in marks  # the padding made the crop larger than the box
    assert inspector.page["gold"] is True
    inspector.turn_index = 3
    marks = {mark["kind"]: mark for mark in inspector.page["marks"]}
    assert marks["before"]["box"] == pytest.approx(fractions)


def test_the_gold_region_follows_into_the_crop(inspector: TrajectoryInspector) -> None:
    inspector.turn_index = 2
    [mark] = inspector.seen["marks"]
    scene = inspector.current_scene
    assert scene is not None
    size = scene.shown[0].view.page_size
    gold = tuple(value * size[axis % 2] for axis, value in enumerate(GOLD_BOX))
    shown = scene.shown[0].view.from_page(gold)  # type: ignore[arg-type]
    width, height = scene.shown[0].view.shown_size
    clipped = [min(max(value / (width, height)[axis % 2], 0), 1) for axis, value in enumerate(shown)]
    assert mark["box"] == pytest.approx(clipped)


def test_an_invalid_action_says_so_and_keeps_the_last_image(inspector: TrajectoryInspector) -> None:
    inspector.turn_index = 4
    assert inspector.turn["kind"] == "invalid"
    assert "outside" in inspector.turn["problem"]
    assert inspector.turn["notices"]
    assert inspector.seen["new"] is False
    assert inspector.page["page_id"] == "energy_2"


@pytest.mark.parametrize("padding", [0, 12])
def test_a_drag_on_the_page_equals_geometry(inspector: TrajectoryInspector, corpus: Path, padding: int) -> None:
    inspector.turn_index = 2
    inspector.padding = padding
    dragged = [150, 300, 900, 620]
    command(inspector, kind="box", surface="page", box=dragged)
    base = View.whole(tuple(inspector.page["size"]), SETTINGS.budget)
    written = tuple(round(value) for value in base.from_page(dragged))
    view = base.crop(written, padding)
    assert inspector.own["written"] == list(written)
    assert inspector.own["frame"] == list(base.shown_size)
    assert inspector.own["crop_box"] == list(view.crop_box)
    assert inspector.own["size"] == list(view.shown_size)
    assert inspector.own["tokens"] == view.tokens
    assert inspector.own["page_box"] == pytest.approx(base.to_page(written), abs=0.06)
    expected = geometry.render(PageStore(corpus).image("energy_2"), view.crop_box, view.shown_size)
    assert (pixels(inspector.own_png) == np.asarray(expected)).all()
    assert inspector.own_view == view


def test_a_drag_on_a_crop_composes(inspector: TrajectoryInspector) -> None:
    inspector.turn_index = 2
    inspector.padding = 0
    seen = inspector.current_scene.shown[0].view
    first = inspector.look([40, 20, 300, 120], "seen")
    assert first == View(seen.page_size, seen.crop_box, seen.shown_size, SETTINGS.budget).crop((40, 20, 300, 120))
    second = inspector.look([10, 10, 200, 90], "own")
    assert second == first.crop((10, 10, 200, 90))


def test_a_drag_in_any_direction_is_the_same_box(inspector: TrajectoryInspector) -> None:
    assert inspector.look([900, 620, 150, 300]) == inspector.look([150, 300, 900, 620])


def test_a_box_that_cannot_be_cropped_is_explained(inspector: TrajectoryInspector) -> None:
    command(inspector, kind="box", surface="page", box=[5, 5, 6, 6])
    assert "box" in inspector.notice
    command(inspector, kind="box", surface="page", box=[100, 100, 600, 400])
    assert inspector.notice == ""
    command(inspector, kind="clear")
    assert (inspector.own, inspector.own_png) == ({}, b"")


def test_a_budget_of_ones_own(corpus: Path) -> None:
    budget = Budget(256 * 784, 512 * 784)
    inspector = TrajectoryInspector(trajectories(corpus), corpus, budget)
    assert inspector.page["shown_size"] == list(budget.size(*inspector.page["size"]))
    assert 256 <= inspector.look([100, 100, 700, 500]).tokens <= 512


def test_hits_have_scores_gold_marks_and_pages(inspector: TrajectoryInspector) -> None:
    inspector.turn_index = 1
    rows = inspector.hits["rows"]
    assert [row["rank"] for row in rows] == list(range(1, HITS_PER_VIEW + 1))
    assert [row["page_id"] for row in rows if row["gold"]] == ["energy_2"]
    assert [row["page_id"] for row in rows if row["seen"]] == ["energy_2", "energy_1"]
    assert len(inspector.thumbnails) == HITS_PER_VIEW
    command(inspector, kind="hits", by=1)
    assert [row["rank"] for row in inspector.hits["rows"]] == [6]
    command(inspector, kind="hits", by=5)
    assert inspector.hits["first"] == HITS_PER_VIEW
    command(inspector, kind="page", page_id="report_2")
    assert inspector.page["page_id"] == "report_2"
    assert [mark["kind"] for mark in inspector.page["marks"]] == []


def test_moving_stays_in_range(inspector: TrajectoryInspector) -> None:
    inspector.turn_index = 99
    assert inspector.turn_index == 5
    inspector.trajectory_index = 1
    assert (inspector.turn_index, inspector.turn["kind"]) == (0, "search")
    inspector.trajectory_index = 50
    assert inspector.trajectory_index == 2
    assert inspector.page == {}  # this model never looked at a page
    inspector.trajectory_index = -3
    assert inspector.trajectory_index == 0
    assert inspector.notice == ""


def test_summaries_carry_the_verdict(corpus: Path) -> None:
    made = trajectories(corpus)
    assert [row["correct"] for row in TrajectoryInspector(made, corpus).summaries] == [True, False, False]
    lenient = TrajectoryInspector(made, corpus, correct=lambda trajectory: trajectory.answer is not None)
    assert [row["correct"] for row in lenient.summaries] == [True, True, True]


def test_a_file_and_a_chosen_turn(tmp_path: Path) -> None:
    corpus, path = write_world(tmp_path)
    inspector = TrajectoryInspector(path, corpus, trajectory_index=1, turn_index=1)
    assert (inspector.trajectory_index, inspector.turn_index) == (1, 1)
    assert inspector.turn["kind"] == "answer"
    with pytest.raises(FileNotFoundError):
        TrajectoryInspector(tmp_path / "none.jsonl", corpus)


def test_a_page_explorer_needs_no_trajectories(corpus: Path) -> None:
    explorer = TrajectoryInspector([], corpus, SETTINGS.budget, FixedEngine())
    assert explorer.page["page_id"] == "energy_1"
    command(explorer, kind="step_page", by=1)
    assert explorer.page["page_id"] == "energy_2"
    command(explorer, kind="search", query="hydro")
    assert explorer.hits["rows"][0]["page_id"] == "energy_2"
    assert explorer.hits["own"] is True
    assert explorer.look([100, 100, 700, 500]) is not None
    command(explorer, kind="search", query="  ")
    assert "query" in explorer.notice


def test_ones_own_search_gives_way_to_the_turns_hits(inspector: TrajectoryInspector) -> None:
    command(inspector, kind="search", query="consumption")
    assert (inspector.hits["own"], inspector.hits["query"]) == (True, "consumption")
    command(inspector, kind="turn_hits")
    assert (inspector.hits["own"], inspector.hits["query"]) == (False, "electricity mix by source 2019")


def test_a_page_the_corpus_lacks_is_told_in_the_widget(corpus: Path) -> None:
    broken = play(corpus).model_copy(deep=True)
    broken.turns[0].observation.page_id = "elsewhere_7"
    inspector = TrajectoryInspector([broken, play(corpus)], corpus)
    assert "elsewhere_7" in inspector.notice
    inspector.trajectory_index = 1
    assert inspector.notice == ""
    assert inspector.page["page_id"] == "energy_1"
    inspector.trajectory_index = 0  # nothing of the other one stays under this one's question
    assert "elsewhere_7" in inspector.notice
    assert not any((inspector.turn, inspector.page, inspector.seen, inspector.hits.get("rows")))
    assert (inspector.page_png, inspector.seen_png) == (b"", b"")


def test_a_search_that_shows_several_pages(corpus: Path) -> None:
    trajectory = play(corpus).model_copy(deep=True)
    trajectory.turns[0].also_shown = [trajectory.turns[1].observation]
    inspector = TrajectoryInspector([trajectory], corpus)
    assert inspector.seen["count"] == 2
    command(inspector, kind="seen", by=1)
    assert inspector.seen["page_id"] == inspector.page["page_id"] == "energy_2"


def test_a_box_of_ones_own_belongs_to_the_trajectory_it_was_drawn_in(corpus: Path) -> None:
    inspector = TrajectoryInspector([play(corpus), play(corpus)], corpus)
    command(inspector, kind="box", surface="page", box=[100, 100, 700, 500])
    assert inspector.own_view is not None
    inspector.trajectory_index = 1
    assert inspector.page["page_id"] == "energy_1", "the same page"
    assert (inspector.own_view, inspector.own, inspector.own_png) == (None, {}, b"")


def test_what_cannot_be_drawn_leaves_no_picture_of_another(tmp_path: Path) -> None:
    corpus, path = write_world(tmp_path)
    inspector = TrajectoryInspector(path, PageStore(corpus, cache_bytes=0))
    (corpus / "pages" / "report_3.png").write_bytes(b"no image")
    command(inspector, kind="page", page_id="report_3")
    assert "report_3" in inspector.notice
    assert (inspector.page, inspector.page_png) == ({}, b"")
    assert inspector.seen["page_id"] == "energy_1", "the turn's own picture stays"
    command(inspector, kind="step_page", by=-1)
    assert (inspector.page["page_id"], inspector.notice) == ("report_2", "")
    (corpus / "pages" / "energy_2.png").write_bytes(b"no image")
    inspector.turn_index = 1
    assert "energy_2" in inspector.notice
    assert inspector.turn["query"] == "hydro power share table"
    assert not any((inspector.page, inspector.seen, inspector.hits["rows"]))
    assert (inspector.page_png, inspector.seen_png) == (b"", b"")


def test_a_box_that_cannot_be_cropped_is_told_why(corpus: Path, played: list[Trajectory]) -> None:
    inspector = TrajectoryInspector(played, corpus)
    command(inspector, kind="box", surface="page", box=[10, 10, 12, 12])
    assert "too small" in inspector.notice
    command(inspector, kind="box", surface="own", box=[10, 10, 90, 90])
    assert "draw a box on the page first" in inspector.notice
    inspector.trajectory_index = 2
    command(inspector, kind="box", surface="own", box=[10, 10, 90, 90])
    assert "open a page first" in inspector.notice
    command(inspector, kind="page", page_id="energy_1")
    command(inspector, kind="box", surface="seen", box=[10, 10, 90, 90])
    assert "the model has seen none" in inspector.notice


class ExplainingEngine(FixedEngine):
    """Says that the first word of a query matches the top left patch, the second the bottom right one, and so on."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    def similarity_map(self, query: str, page_id: str) -> SimilarityMap:
        self.asked.append((query, page_id))
        if page_id == "report_3":
            raise ValueError("no page 'report_3' in the index")
        tokens = [("Ġ" if place else "") + word for place, word in enumerate(query.split())]
        scores = np.full((len(tokens), 3, 4), -0.1, np.float32)
        for token in range(len(tokens)):
            scores[token].flat[-(token % 2)] = 0.5 + token / 10
        return SimilarityMap(tokens, scores)


def test_matches_are_asked_for_only_while_they_are_shown(corpus: Path, played: list[Trajectory]) -> None:
    engine = ExplainingEngine()
    inspector = TrajectoryInspector(played, corpus, engine=engine)
    command(inspector, kind="page", page_id="energy_3")
    inspector.turn_index = 1
    assert (engine.asked, inspector.match, inspector.match_png, inspector.match_problem) == ([], {}, b"", "")
    inspector.show_match = True
    assert engine.asked == [("hydro power share table", "energy_2")], "the turn's own query, on the page it showed"
    assert [word["text"] for word in inspector.match["words"]] == ["hydro", "power", "share", "table"]
    assert inspector.match["score"] == pytest.approx(0.5 + 0.6 + 0.7 + 0.8)
    assert (inspector.match["word"], inspector.match["greatest"]) == (-1, 1.4)
    cells = {cell["words"]: cell for cell in inspector.match["cells"]}
    assert cells["hydro, share"]["box"] == pytest.approx([0, 0, 1 / 4, 1 / 3])
    assert cells["power, table"]["box"] == pytest.approx([3 / 4, 2 / 3, 1, 1])
    heat = np.asarray(Image.open(io.BytesIO(inspector.match_png)))
    assert heat.shape == (3, 4, 4)
    assert (heat[0, 0, 3] > 0, heat[2, 3, 3] > 0, heat[1, 1, 3]) == (True, True, 0)
    inspector.show_match = False
    assert (inspector.match, inspector.match_png) == ({}, b"")


def test_matches_follow_the_page_and_the_query(corpus: Path, played: list[Trajectory]) -> None:
    engine = ExplainingEngine()
    inspector = TrajectoryInspector(played, corpus, engine=engine, show_match=True)
    first = "electricity mix by source 2019"
    assert engine.asked == [(first, "energy_1")], "asked once, for the page that is shown in the end"
    inspector.turn_index = 1
    command(inspector, kind="page", page_id="energy_1")
    command(inspector, kind="page", page_id="energy_2")
    second = "hydro power share table"
    assert engine.asked[1:] == [(second, "energy_2"), (second, "energy_1")], "a pair that was asked is remembered"
    command(inspector, kind="search", query="consumption per head")
    assert engine.asked[3:] == [("consumption per head", "energy_1")]
    command(inspector, kind="turn_hits")
    assert (inspector.match["query"], inspector.match["page_id"]) == (second, "energy_1")
    inspector.trajectory_index = 2
    assert inspector.match == {}, "this model never looked at a page"
    assert inspector.notice == ""


def test_one_word_can_be_picked(corpus: Path, played: list[Trajectory]) -> None:
    inspector = TrajectoryInspector(played, corpus, engine=ExplainingEngine(), turn_index=1, show_match=True)
    command(inspector, kind="word", word=1)
    assert (inspector.match["word"], inspector.match["greatest"]) == (1, 1.0)
    assert [cell["words"] for cell in inspector.match["cells"]] == ["power"]
    heat = np.asarray(Image.open(io.BytesIO(inspector.match_png)))[..., 3]
    assert heat[0, 0] == 0
    assert heat[2, 3] > 0
    command(inspector, kind="page", page_id="energy_1")
    assert inspector.match["word"] == 1, "the word stays while its query does"
    command(inspector, kind="word", word=4)
    assert "no word 4" in inspector.notice
    assert inspector.match["word"] == 1
    command(inspector, kind="search", query="coal and wind")
    assert inspector.match["word"] == -1


def test_a_page_that_cannot_be_explained_shows_no_heat(corpus: Path, played: list[Trajectory]) -> None:
    inspector = TrajectoryInspector(played, corpus, engine=ExplainingEngine(), show_match=True)
    command(inspector, kind="page", page_id="report_3")
    assert "report_3" in inspector.notice
    assert (inspector.page["page_id"], inspector.match, inspector.match_png) == ("report_3", {}, b"")
    command(inspector, kind="page", page_id="report_2")
    assert inspector.notice == ""
    assert inspector.match["page_id"] == "report_2"


class TextEmbedder(Embedder):
    name, multi_vector, dim, fingerprint = "words", False, 0, ""

    def embed_pages(self, images: list[Image.Image], texts: list[str]) -> list[np.ndarray]:
        raise NotImplementedError

    embed_queries = embed_pages  # type: ignore[assignment]


class SilentEngine(ExplainingEngine):
    """As `SearchEngine` over an embedder that turns out to have no map."""

    def similarity_map(self, query: str, page_id: str) -> SimilarityMap:
        return TextEmbedder().similarity_map(query, Image.new("RGB", (8, 8)))


def test_engines_without_maps_hide_the_toggle_and_say_why(corpus: Path, played: list[Trajectory]) -> None:
    text = ExplainingEngine()
    text.embedder = TextEmbedder()  # type: ignore[attr-defined]
    reasons = {"(engine=...)": None, "FixedEngine has no": FixedEngine(), "words has no vectors": text}
    for reason, engine in reasons.items():
        inspector = TrajectoryInspector(played, corpus, engine=engine)
        assert reason in inspector.match_problem
        inspector.show_match = True
        assert (inspector.match, inspector.notice) == ({}, "")
    assert text.asked == []
    late = TrajectoryInspector(played, corpus, engine=SilentEngine())
    assert late.match_problem == ""
    late.show_match = True
    assert "words has no similarity map" in late.match_problem
    assert (late.match, late.match_png, late.notice) == ({}, b"", "")
