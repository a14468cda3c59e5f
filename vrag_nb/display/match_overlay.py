"""The inspector's overlay of matches: where the words of the search found their match on the page that is open.

`MatchOverlay` holds the traits and the heat; `display.inspector` tells it which query and page are looked at
(`look_for`). It asks the engine for a similarity map only while `show_match` is on, once for a query and a page. That
an engine has none (a text index, one vector a page, a search server) is told in `match_problem`, and the front end
shows that in the toggle's place. Traits, beside `show_match` which the reader sets:

    match          {query, page_id, words: [{text, part, added}], word, score, cells: [{box, part, words}], greatest}
    match_png      the heat, one RGBA pixel a patch; empty when nothing is shown
    match_problem  why there is no heat to be had; empty when there is

`word` is the index of the word whose cosines are shown, or -1 (ALL) for what every patch adds to the score. Boxes are
fractions of the page; `greatest` is the value of the darkest colour. Command: {"kind": "word", "word": index}.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import traitlets

from vrag_nb.display import payloads
from vrag_nb.display.heat_colours import paint
from vrag_nb.retrieval.embedders import SimilarityMap
from vrag_nb.retrieval.matches import Matches

ALL = -1
_REMEMBERED = 8  # similarity maps, some hundred kilobytes each


@runtime_checkable
class Explaining(Protocol):
    """A search engine that can say where a query matches a page, such as `retrieval.engine.SearchEngine`."""

    def similarity_map(self, query: str, page_id: str) -> SimilarityMap:
        """Raises TypeError where its embedder has no vectors of patches."""
        ...


class MatchOverlay(traitlets.HasTraits):
    """See the module's docstring. A base of the inspector, which is the widget."""

    show_match = traitlets.Bool(False).tag(sync=True)
    match = traitlets.Dict().tag(sync=True)
    match_png = traitlets.Bytes(b"").tag(sync=True)
    match_problem = traitlets.Unicode("").tag(sync=True)

    _explaining: Explaining | None = None
    _looked_for: tuple[str, str] | None = None  # query and page id
    _word = ALL

    def explain_with(self, engine: object) -> None:
        """Take similarity maps from this engine; None, or one that has none, is told in `match_problem`."""
        self._remembered: dict[tuple[str, str], Matches] = {}
        self.match_problem = _problem(engine)
        self._explaining = engine if isinstance(engine, Explaining) and not self.match_problem else None

    def look_for(self, query: str, page_id: str | None) -> None:
        """The query and page that are looked at now; the overlay follows while it is shown."""
        now = (query, page_id) if query.strip() and page_id else None
        if now == self._looked_for:
            return
        if now is None or self._looked_for is None or now[0] != self._looked_for[0]:
            self._word = ALL
        self._looked_for = now
        self.draw_match()

    def pick_word(self, word: int) -> None:
        """Show the cosines of one word of the query, or with ALL what every patch adds to the score.

        Raises ValueError for a word that the query does not have.
        """
        count = len(self.match.get("words", ()))
        if not ALL <= word < count:
            raise ValueError(f"there is no word {word} to show: the query has {count}")
        self._word = word
        self.draw_match()

    def draw_match(self) -> None:
        """Draw the overlay; nothing while it is not asked for. Raises what the engine raises, but for the TypeError
        that says it has no maps: that becomes `match_problem`."""
        self.match, self.match_png = {}, b""
        if not self.show_match or self._looked_for is None or self._explaining is None:
            return
        query, page_id = self._looked_for
        try:
            matches = self._matches(self._explaining, query, page_id)
        except TypeError as error:
            self._explaining, self.match_problem = None, f"Matches cannot be shown: {error}"
            return
        summed = self._word == ALL
        heat = matches.contributions if summed else matches.heat(matches.words[self._word])
        greatest = float(heat.max()) if summed else 1.0
        self.match = payloads.match(query, page_id, matches, self._word, greatest)
        self.match_png = payloads.png(paint(heat, greatest, 0.5 if summed else 1.0))

    def _matches(self, engine: Explaining, query: str, page_id: str) -> Matches:
        key = (query, page_id)
        if key not in self._remembered:
            self._remembered[key] = Matches.of(engine.similarity_map(query, page_id), query)
            if len(self._remembered) > _REMEMBERED:
                del self._remembered[next(iter(self._remembered))]
        return self._remembered[key]


def _problem(engine: object) -> str:
    """Why an engine has no similarity maps; nothing where it may have."""
    if engine is None:
        return "Matches are shown when the inspector has a search engine (engine=...)."
    if not isinstance(engine, Explaining):
        return f"Matches cannot be shown: {type(engine).__name__} has no similarity maps."
    embedder = getattr(engine, "embedder", None)
    if not getattr(embedder, "multi_vector", True):
        return f"Matches cannot be shown: {getattr(embedder, 'name', 'the retriever')} has no vectors of patches."
    return ""
