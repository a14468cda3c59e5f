"""The static twins and the plots: PNGs of the expected size that show what they should."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from display_world import GOLD_BOX, QUESTION, make_corpus, trajectories
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from PIL import Image

from vrag_nb.agent.pages import PageStore
from vrag_nb.agent.trajectory import Trajectory, write_trajectories
from vrag_nb.display import static
from vrag_nb.evaluation.report import short
from vrag_nb.evaluation.turn_counts import turn_counts
from vrag_nb.learning.curves import over_seeds
from vrag_nb.plotting import figures, plots


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> PageStore:
    return PageStore(make_corpus(tmp_path_factory.mktemp("world") / "corpus"))


@pytest.fixture(scope="module")
def played(pages: PageStore) -> list[Trajectory]:
    return trajectories(pages.corpus)


def drawn(figure: Figure) -> np.ndarray:
    """The figure's pixels; checks that the PNG has the size the figure states and is not blank."""
    image = Image.open(io.BytesIO(figures.png_bytes(figure)))
    width, height = figure.get_size_inches() * figure.dpi
    assert image.size == pytest.approx((width, height), abs=1)
    pixels = np.asarray(image.convert("RGB"))
    assert pixels.std() > 5
    return pixels


def texts(figure: Figure) -> str:
    found = [text.get_text() for text in figure.texts]
    for axes in figure.axes:
        found += [axes.get_title(loc="left"), axes.get_xlabel(), axes.get_ylabel()]
        found += [text.get_text() for text in [*axes.texts, *axes.get_xticklabels()]]
    return "\n".join(found)


def colours(figure: Figure) -> set[tuple[float, ...]]:
    return {patch.get_edgecolor()[:3] for axes in figure.axes for patch in axes.patches}


def test_a_trajectory_strip_tells_the_whole_story(pages: PageStore, played: list[Trajectory]) -> None:
    figure = static.trajectory_figure(played[0], pages)
    said = texts(figure)
    for words in ("hydro power share table", "[36, 120, 330, 190]", "476 × 252 px = 153 tokens", "★ gold page"):
        assert words in said
    assert "✓ Answer: 43.6" in said
    assert "invalid action" in said
    assert "outside the last image" in said.replace("\n", " ")
    assert len(figure.axes) == 4 + 5  # four images seen; five pages, one under the invalid box
    assert {to_rgb(figures.GREEN), to_rgb(figures.VERMILION)} <= colours(figure)
    drawn(figure)


def test_gold_is_only_drawn_where_wanted(pages: PageStore, played: list[Trajectory]) -> None:
    figure = static.trajectory_figure(played[0], pages, gold=False, max_turns=3)
    assert to_rgb(figures.GREEN) not in colours(figure)
    assert "6 turns, 3 drawn" in texts(figure)
    assert "gold" not in texts(figure)


def test_marks_are_drawn_at_their_pixels(pages: PageStore, played: list[Trajectory]) -> None:
    figure = static.trajectory_figure(played[0], pages, max_turns=2)
    page = figure.axes[2]
    [patch] = page.patches
    shown = page.get_images()[0].get_array().shape
    assert patch.get_x() + 0.5 == pytest.approx(GOLD_BOX[0] * shown[1])
    assert patch.get_height() == pytest.approx((GOLD_BOX[3] - GOLD_BOX[1]) * shown[0])


def test_dollars_are_money_and_wrong_answers_say_so(pages: PageStore, played: list[Trajectory]) -> None:
    figure = static.trajectory_figure(played[1], pages)
    assert "✗ Answer: 3 $" in texts(figure)
    assert not any(text.get_parse_math() for text in figure.texts)
    drawn(figure)


def test_a_trajectory_without_images_or_turns(pages: PageStore, played: list[Trajectory]) -> None:
    drawn(static.trajectory_figure(played[2], pages))
    failed = played[2].model_copy(update={"turns": [], "status": "error", "error": "policy: no server", "answer": None})
    assert "policy: no server" in texts(static.trajectory_figure(failed, pages))


def test_of_several_images_the_caption_says_how_many(pages: PageStore, played: list[Trajectory]) -> None:
    several = played[0].model_copy(deep=True)
    several.turns[0].also_shown = [several.turns[1].observation, several.turns[2].observation]
    said = texts(static.trajectory_figure(several, pages, max_turns=2))
    assert said.count("1 of 3 images seen: ") == said.count("as the model saw it: ") == 1


def test_hits_have_rank_score_and_gold(pages: PageStore, played: list[Trajectory]) -> None:
    figure = static.hits_figure(played[0].turns[1].hits, pages, query="hydro", question=QUESTION)
    said = texts(figure)
    assert "1. energy_2\nscore 12.830  ★ gold page" in said
    assert said.count("★ gold page") == 1
    assert len(figure.axes) == 6
    drawn(figure)


def test_pages_need_a_caption_each(pages: PageStore) -> None:
    images = [pages.image("energy_1"), pages.image("report_1")]
    drawn(static.pages_figure(images, ["a slide", "a report"], title="Two pages"))
    with pytest.raises(ValueError, match="one caption per page"):
        static.pages_figure(images, ["only one"])
    with pytest.raises(ValueError, match="no pages"):
        static.pages_figure([], [])


def test_figures_show_themselves_and_are_saved(pages: PageStore, tmp_path: Path) -> None:
    figure = static.pages_figure([pages.image("energy_1")], ["a slide"])
    assert figure._repr_png_().startswith(b"\x89PNG")  # type: ignore[attr-defined]
    path = figures.save(figure, tmp_path / "deep" / "page.png")
    assert [file.name for file in path.parent.iterdir()] == ["page.png"]


def estimate(value: float) -> dict[str, float]:
    return {"value": value, "low": max(0.0, value - 0.06), "high": min(1.0, value + 0.05), "n": 300}


ANSWERS = {
    system: {"accuracy": estimate(value), "by_type": {kind: estimate(value * part) for kind, part in types.items()}}
    for types in [{"single_hop": 1.1, "multi_hop": 0.7, "comparison": 0.9, "unanswerable": 0.4}]
    for system, value in {"no_retrieval": 0.05, "vanilla_top1": 0.31, "vanilla_top3": 0.35, "agent": 0.52}.items()
}


def test_accuracies_have_intervals_and_counts() -> None:
    figure = plots.accuracy_by_system(ANSWERS)
    assert "n = 300" in texts(figure)
    assert "52" in texts(figure)
    [bars, *_] = figure.axes[0].containers[::-1]
    assert [bar.get_height() for bar in bars] == pytest.approx([0.05, 0.31, 0.35, 0.52])
    drawn(figure)
    figure = plots.accuracy_by_type(ANSWERS)
    assert "multi hop\nn = 300" in texts(figure)
    drawn(figure)
    with pytest.raises(ValueError, match="no systems"):
        plots.accuracy_by_system({})


def test_names_are_never_read_as_tex(tmp_path: Path) -> None:
    name = "price in $ # of $"
    frame = pd.DataFrame({"step": [1, 2], f"a/{name}": [0.1, 0.2], "a/b": [0.1, 0.2]})
    drawn(plots.accuracy_by_system({name: {"accuracy": estimate(0.5)}}))
    drawn(plots.accuracy_by_type({name: {"by_type": {name: estimate(0.5)}}}, title=name))
    drawn(plots.recall_bars({name: {"recall@1": estimate(0.5)}, "bm25": {name: estimate(0.5)}}))
    drawn(plots.recall_bars({}, title=name))
    drawn(plots.training_curves(frame, title=name))
    drawn(plots.lesson_curves(frame, title=name))
    drawn(plots.seed_bands({name: {name: [(1, [0.0, 1.0])]}}, x=name))
    drawn(plots.count_bars({name: [name]}, title=name))


def test_a_title_and_small_shares_fit_their_chart() -> None:
    few = {name: {"accuracy": {"value": 0.04, "low": 0.01, "high": 0.07, "n": 180}} for name in ("base", "sft")}
    figure = plots.accuracy_by_system(few, "Answer accuracy by stage of training")
    drawn(figure)
    axes, box = figure.axes[0], figure.axes[0].title.get_window_extent()
    left = axes._left_title.get_window_extent()  # type: ignore[attr-defined]
    assert max(box.x1, left.x1) <= figure.bbox.x1
    assert axes.get_ylim()[1] == pytest.approx(0.108)
    assert plots.accuracy_by_system(ANSWERS).axes[0].get_ylim()[1] == pytest.approx(1.08), "an interval above .4"


def ticks(axes: Axes) -> list[str]:
    """The labels of the vertical axis, as drawn."""
    low, high = axes.get_ylim()
    return [label.get_text() for label in axes.get_yticklabels() if low <= label.get_position()[1] <= high]


def test_every_axis_of_shares_reads_alike() -> None:
    def one(value: float) -> Axes:
        same = {"value": value, "low": value, "high": value, "n": 100}
        return plots.accuracy_by_system({"agent": {"accuracy": same}}).axes[0]

    assert ticks(one(0.9)) == ["0%", "25%", "50%", "75%", "100%"]
    assert ticks(one(0.3)) == ["0%", "10%", "20%", "30%", "40%"]
    assert ticks(one(0.05)) == ["0%", "2.5%", "5%", "7.5%", "10%"], "decimals where they are needed"
    frame = pd.DataFrame({"step": [1, 2], "reward": [0.0, 1.0], "finish_rate": [0.0, 1.0], "learning_rate": [0.0, 1.0]})
    read = {axes.get_title(loc="left"): "100%" in ticks(axes) for axes in plots.training_curves(frame).axes}
    assert read == {"reward": False, "finish rate": True, "learning rate": False}
    lessons = plots.lesson_curves(frame[["step"]].assign(match=[0.0, 1.0], loss=[1.0, 0.0]), smooth=1)
    assert ["100%" in ticks(axes) for axes in lessons.axes] == [True, False]
    curve = {"a": [(1, [0.0, 1.0]), (2, [0.0, 0.5])]}
    bands = plots.seed_bands({"right answers": curve, "reward": curve}, shares=["right answers"])
    assert ["100%" in ticks(axes) for axes in bands.axes] == [True, False]


def test_a_chart_rounds_halves_as_the_tables_do() -> None:
    for share, percent in ((0.225, "23"), (0.075, "7"), (0.5, "50")):
        assert short(share).removeprefix(".").lstrip("0") == percent
        assert percent in texts(plots.accuracy_by_system({"agent": {"accuracy": estimate(share)}})).split("\n")


def test_recall_of_one_and_of_several_retrievers() -> None:
    nano = {name: estimate(value) for name, value in {"recall@1": 0.7, "recall@3": 0.82, "ndcg@5": 0.8}.items()}
    assert "recall@3" in texts(plots.recall_bars(nano))
    uncounted = {"recall@1": {"value": None, "low": None, "high": None, "n": 0}}
    assert "No question names its gold pages" in texts(plots.recall_bars(uncounted))
    figure = plots.recall_bars({"nano": nano, "bm25": nano}, metrics=["recall@1", "recall@3"])
    assert "ndcg" not in texts(figure)
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == ["nano", "bm25"]
    drawn(figure)


def test_curves_of_seeds_share_steps_and_colours() -> None:
    logs = [
        [{"step": 1, "reward": 0.0}, {"step": 2, "reward": 0.5, "kl": 0.1}],
        [{"step": 1, "reward": 1.0}, {"step": 2, "loss": 0.2}],  # killed in its second step
    ]
    assert over_seeds(logs, "reward") == [(1, [0.0, 1.0])]
    assert over_seeds([], "reward") == []
    figure = plots.seed_bands({"first": {"a": [(1, [0.0, 1.0])]}, "second": {"a": [(1, [2.0])], "b": [(1, [3.0])]}})
    assert all(axes.get_xlabel() and axes.get_ylabel() for axes in figure.axes)
    first, second = figure.axes
    assert list(first.lines[0].get_ydata()) == [0.5]
    assert first.lines[0].get_color() == second.lines[0].get_color() != second.lines[1].get_color()
    with pytest.raises(ValueError, match="curves"):
        plots.seed_bands({})


def test_training_curves_from_files(tmp_path: Path) -> None:
    frame = pd.DataFrame({"step": range(50), "loss": np.linspace(3, 1, 50), "stage": "sft"})
    frame["accuracy"] = [step / 50 if step % 10 == 0 else np.nan for step in range(50)]
    frame.to_csv(tmp_path / "log.csv", index=False)
    frame.to_json(tmp_path / "log.jsonl", orient="records", lines=True)
    for name in ("log.csv", "log.jsonl"):
        figure = plots.training_curves(tmp_path / name, smooth=5)
        assert [axes.get_title(loc="left") for axes in figure.axes if axes.get_visible()] == ["loss", "accuracy"]
        assert len(figure.axes[1].lines[0].get_xdata()) == 5
    drawn(figure)
    with pytest.raises(ValueError, match=r"log\.csv has no reward"):
        plots.training_curves(tmp_path / "log.csv", ["reward"])
    with pytest.raises(ValueError, match=r"\.csv or \.jsonl"):
        plots.training_curves(tmp_path / "log.txt")


def test_steps_are_counted_in_whole_numbers() -> None:
    figure = plots.training_curves(pd.DataFrame({"step": [1, 2, 3], "reward": [0.1, 0.2, 0.3]}))
    ticks = figure.axes[0].get_xticks()
    assert len(ticks) > 1
    assert all(float(tick).is_integer() for tick in ticks)


def test_lesson_curves_put_what_begins_alike_on_one_chart_and_part_the_phases(tmp_path: Path) -> None:
    frame = pd.DataFrame({"step": range(1, 21), "seconds": range(20), "loss/turn": np.linspace(2, 1, 20)})
    frame["match/crop"], frame["match/page"] = 0.5, np.linspace(0, 1, 20)
    frame["match/page"] = frame["match/page"].where(frame["step"] > 10)
    frame["phase"], frame["tokens"] = [0] * 10 + [1] * 10, range(0, 20_000, 1000)
    frame.to_json(tmp_path / "log.jsonl", orient="records", lines=True)
    figure = plots.lesson_curves(tmp_path / "log.jsonl", smooth=1, title="settle")
    drawn(figure)
    shown = loss, match, _ = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_title(loc="left") for axes in shown] == ["loss", "match", "tokens"]
    assert [axes.get_ylabel() for axes in shown] == ["nats", "share", "tokens so far"]
    assert [text.get_text() for text in match.get_legend().get_texts()] == ["crop", "page"]
    before, after, mark = loss.lines
    assert (before.get_xdata()[-1], after.get_xdata()[0], mark.get_xdata()[0]) == (10, 11, 11)
    page = [line for line in match.lines if line.get_label() == "page"]
    assert [len(line.get_xdata()) for line in page] == [0, 10]
    with pytest.raises(ValueError, match="log of act has no step, or nothing beside; it has step"):
        plots.lesson_curves(frame[["step"]], title="act")


def test_steps_that_begin_again_are_drawn_after_those_before() -> None:
    frame = pd.DataFrame({"step": [1, 5, 1, 3, 1], "phase": [0, 0, 1, 1, 2], "loss": [3.0, 2.0, 2.0, 1.0, 1.0]})
    [axes] = [axes for axes in plots.lesson_curves(frame, smooth=1).axes if axes.get_visible()]
    first, second, third, *_ = axes.lines
    assert [list(line.get_xdata()) for line in (first, second, third)] == [[1, 5], [6, 8], [9]]


def test_a_flat_curve_of_shares_has_no_tick_beyond_all_or_none() -> None:
    frame = pd.DataFrame({"step": [1, 2], "finish_rate": [1.0, 1.0], "invalid_action_rate": [0.0, 0.0]})
    for axes in plots.training_curves(frame).axes:
        low, high = axes.get_ylim()
        assert all(0 <= round(tick, 6) <= 1 for tick in axes.get_yticks() if low <= tick <= high)
    fresh, _ = plots.lesson_curves(frame[["step"]].assign(fresh=1.0), smooth=1).axes
    assert 1 < fresh.get_ylim()[1] < 1.01


def test_labels_are_counted_by_group() -> None:
    figure = plots.count_bars({"all": ["search", "search", "crop"], "chosen": ["search"]}, title="Actions")
    [axes] = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["crop", "search"]
    assert [[bar.get_width() for bar in bars] for bars in axes.containers] == [[1, 2], [0, 1]]
    with pytest.raises(ValueError, match="no groups"):
        plots.count_bars({}, title="Actions")


def test_turn_counts_from_a_file(played: list[Trajectory], tmp_path: Path) -> None:
    write_trajectories(tmp_path / "t.jsonl", played)
    figure = turn_counts(tmp_path / "t.jsonl")
    heights = {bars.get_label(): [bar.get_height() for bar in bars] for axes in figure.axes for bars in axes.containers}
    assert heights["correct"] == [0, 0, 0, 0, 0, 1], "from one turn on: none took none"
    assert heights["wrong"] == [1, 1, 0, 0, 0, 0]
    assert heights["crop"] == [0, 0, 1, 1, 0, 0]
    drawn(figure)
