"""Why a page was found: a similarity map taken apart by words and patches, its heat, and the figure."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from matplotlib.figure import Figure
from PIL import Image

from vrag_nb.display.heat_colours import paint
from vrag_nb.display.similarity_figure import match_figure
from vrag_nb.plotting import figures
from vrag_nb.retrieval.embedders import SimilarityMap
from vrag_nb.retrieval.matches import ADDED, Matches, Word, words_of

QUERY = "the gold time in 1964?"
TOKENS = ["the", "Ġgo", "ld", "Ġtime", "Ġin", "Ġ", "19", "64", "?", "<|endoftext|>", "<|endoftext|>"]


def similarity() -> SimilarityMap:
    """On a page of 4 x 6 patches every token has a patch of its own, but "the" resembles all of them."""
    scores = np.full((len(TOKENS), 4, 6), 0.05, np.float32)
    for token in range(len(TOKENS)):
        scores[token, token % 4, token % 6] = 0.5 + token / 100
    scores[0] = 0.8
    scores[9:, 3, 5] = 0.9
    return SimilarityMap(TOKENS, scores)


@pytest.mark.parametrize(
    ("tokens", "query", "words", "added"),
    [
        (TOKENS, QUERY, ["the", "gold", "time", "in", "1964"], (9, 10)),
        (["caf", "Ã", "©", "Ġau", "Ġ“", "lait", "”"], "café au “lait”", ["café", "au", "“lait”"], ()),
        (["<bos>", "Query", ":", "▁Was", "▁ko", "stet", "?", "<pad>"], "Was kostet?", ["Was", "kostet"], (0, 1, 2, 7)),
        (["▁cafe", "▁", "<0xE2>", "<0x82>", "<0xAC>", "5"], "cafe €5", ["cafe", "€5"], ()),
        (["è¥¿", "éĥ¨", "æĶ¶åħ¥"], "西部收入", ["西", "部", "收入"], ()),
        (["what", "Ġelse"], "another query", ["what", "else"], ()),
    ],
)
def test_tokens_become_the_words_a_reader_knows(
    tokens: list[str], query: str, words: list[str], added: tuple[int, ...]
) -> None:
    found = words_of([token.replace("“", "âĢľ").replace("”", "âĢĿ") for token in tokens], query)
    own = [word for word in found if not word.added]
    assert [word.text.strip("“”") for word in own] == [word.strip("“”") for word in words]
    assert [word for word in found if word.added] == ([Word(ADDED, added, added=True)] if added else [])
    places = [place for word in found for place in word.tokens]
    assert sorted(places) == list(range(len(tokens)))


@given(
    scores=arrays(
        np.float32, st.tuples(*[st.integers(1, 6)] * 3), elements=st.floats(-1, 1, width=16), fill=st.nothing()
    )
)
@settings(max_examples=60, deadline=None)
def test_words_and_patches_add_up_to_maxsim(scores: np.ndarray) -> None:
    matches = Matches.of(SimilarityMap([f"Ġw{row}" for row in range(len(scores))], scores), "w")
    score = scores.reshape(len(scores), -1).max(axis=1).sum()
    assert matches.contributions.sum() == pytest.approx(score, abs=1e-3)
    assert sum(matches.part(word) for word in matches.words) == pytest.approx(score, abs=1e-3)
    for word in matches.words:
        cells = matches.cells(word)
        assert sum(cells.values()) == pytest.approx(matches.part(word), abs=1e-3)
        for y, x in cells:
            assert any(scores[token, y, x] == scores[token].max() for token in word.tokens)


def test_telling_words_rise_over_the_page() -> None:
    matches = Matches.of(similarity(), QUERY)
    assert [word.text for word in matches.telling(2)] == ["gold", "1964"], "in the order of the query"
    assert "the" not in [word.text for word in matches.telling(4)], "it resembles every patch"
    assert len(matches.telling(99)) == 5, "the retriever's own tokens are no words of the query"
    assert matches.part(matches.words[-1]) == pytest.approx(1.8)
    assert list(matches.cells(matches.words[-1])) == [(3, 5)]


def test_a_map_that_does_not_fit_its_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match=r"shape \(2, 3, 4\) for 1 tokens"):
        Matches.of(SimilarityMap(["a"], np.zeros((2, 3, 4))), "a")
    with pytest.raises(ValueError, match="for 0 tokens"):
        Matches.of(SimilarityMap([], np.zeros((0, 3, 4))), "a")


def test_heat_is_clear_where_nothing_matched_and_darkest_at_the_greatest() -> None:
    values = np.array([[-0.5, 0.0, 0.25, 1.0, 2.0]])
    heat = np.asarray(paint(values, 1.0))
    assert paint(values, 1.0).size == (5, 1)
    assert heat[0, :2, 3].tolist() == [0, 0]
    assert (heat[0, 3] == heat[0, 4]).all()
    light = heat[0, :, :3].astype(int).sum(axis=1)
    assert light[2] > light[3]
    assert heat[0, 2, 3] < heat[0, 3, 3]
    assert np.asarray(paint(values, 1.0, 0.5))[0, 2, 3] > heat[0, 2, 3], "small values are lifted"
    assert not np.asarray(paint(np.zeros((2, 3)), 0.0))[..., 3].any()


@pytest.mark.parametrize(("size", "columns"), [((900, 506), 3), ((424, 600), 4)])
def test_the_figure_shows_the_sum_and_a_map_a_word(size: tuple[int, int], columns: int) -> None:
    figure = match_figure(similarity(), Image.new("RGB", size, "white"), QUERY, words=4, title="sprint_9, found first")
    said = texts(figure)
    assert "“the gold time in 1964?”" in said
    assert "sprint_9, found first: " in said
    assert "of 24 patches win a token" in said
    assert f"MaxSim by words: {Matches.of(similarity(), QUERY).parts.sum():.2f} in all" in said
    page, bar, bars, *maps, scale = figure.axes
    assert page.get_images()[1].get_array().shape == (4, 6)
    assert [label.get_text() for label in bars.get_yticklabels()] == ["the", "gold", "time", "in", "1964", ADDED]
    assert len(maps) == 4
    assert {image.get_clim() for axes in maps for image in axes.get_images()[1:]} == {(0, 1)}, "one scale for all"
    lefts = {round(axes.get_position().x0, 3) for axes in maps}
    assert len(lefts) == columns
    assert (bar.get_ylabel(), scale.get_ylabel()) == ("what the patch adds to the score", "cosine, below 0 clear")
    assert Image.open(io.BytesIO(figures.png_bytes(figure))).size[0] == 13 * figures.DPI


def test_long_queries_and_those_without_words_are_drawn() -> None:
    generator = np.random.default_rng(0)
    long = " ".join(f"word{number}" for number in range(40))
    tokens = [("Ġ" if number else "") + word for number, word in enumerate(long.split())]
    page = Image.new("RGB", (600, 338), "white")
    figure = match_figure(SimilarityMap(tokens, generator.uniform(-1, 1, (40, 5, 9))), page, long)
    assert "20 other words" in [label.get_text() for label in figure.axes[2].get_yticklabels()]
    figures.png_bytes(figure)
    bare = match_figure(SimilarityMap(["<bos>", "<pad>"], np.full((2, 3, 3), -0.2)), page, "?")
    assert len(bare.axes) == 3, "no word, no map"
    figures.png_bytes(bare)
    with pytest.raises(ValueError, match="words 0"):
        match_figure(similarity(), page, QUERY, words=0)


def texts(figure: Figure) -> str:
    return "\n".join(text.get_text() for text in figure.texts)
