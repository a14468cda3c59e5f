"""The trajectory inspector: step through what an agent saw, said and cropped, and draw boxes of your own.

    from vrag_nb.display.inspector import TrajectoryInspector
    TrajectoryInspector("results/nano/trajectories.jsonl", corpus="data/corpora/nano", engine=engine)

It shows the trajectories with question, answer, reference and verdict; per turn the thought, the action, the page with
the model's crop and the gold regions, the image exactly as the model saw it with its size in pixels and tokens, and the
ranked hits. Drag a box on a page, on the image the model saw, or on your own last crop, and see what the model would
see: the box is turned into whole shown pixels, as a model writes it, and goes through `agent.geometry.View.crop`. With
an `engine` a search box queries it, and "show matches" lays over a page where the words of the search found their match
(`display.match_overlay`); without trajectories the widget is a page explorer.

Python owns the pixels and the geometry: images travel as PNG bytes, rectangles as fractions of the image they lie on.
Traits are configuration and state (`trajectory_index`, `turn_index`, `show_gold`, `show_match`, `padding`); everything
else shown is an output trait, replaced as a whole (in-place edits do not sync). The front end sends commands:

    {"kind": "box", "surface": "page" | "seen" | "own", "box": [x0, y0, x1, y1]}     pixels of that surface
    {"kind": "clear"} | {"kind": "page", "page_id": id} | {"kind": "step_page", "by": n}
    {"kind": "search", "query": text} | {"kind": "turn_hits"} | {"kind": "hits", "by": n} | {"kind": "seen", "by": n}
    {"kind": "word", "word": n}                                                      of the query, -1 for all

Keyboard, with the widget focused: left / right for turns, with shift for trajectories, G for gold, M for matches, Esc
for your box.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import anywidget
import traitlets

from vrag_nb.agent import geometry
from vrag_nb.agent.geometry import Box, Budget, CropError, View
from vrag_nb.agent.pages import PageStore
from vrag_nb.agent.searching import Engine
from vrag_nb.agent.trajectory import Trajectory, trajectory_list
from vrag_nb.display import payloads, scenes
from vrag_nb.display.match_overlay import MatchOverlay
from vrag_nb.display.scenes import Scene, Shown
from vrag_nb.evaluation.answers import Verdict, answered_right
from vrag_nb.records import Hit, Page, Question, read_pages

Surface = Literal["page", "seen", "own"]
HITS_PER_VIEW = 5
_THUMBNAIL = (240, 240)
_LARGEST_PAGE = (1800, 1800)  # browser pixels; larger scans are sent smaller, boxes still count in page pixels


class TrajectoryInspector(MatchOverlay, anywidget.AnyWidget):
    """See the module's docstring.

    trajectories: records, or the path of a JSONL file; empty for a page explorer. corpus: the prepared folder they ran
    on, or an open PageStore. budget: of your own boxes; None for the budget each trajectory ran with. engine: answers
    the search box, and where it has similarity maps says where a query matched. correct: the verdict on an answer.
    Raises FileNotFoundError / ValueError for files that are not there or do not fit; what goes wrong later (a page the
    corpus lacks) is told in the widget's `notice`.
    """

    _esm = Path(__file__).with_name("inspector.js")
    _css = Path(__file__).with_name("inspector.css")

    trajectory_index = traitlets.Int(0).tag(sync=True)
    turn_index = traitlets.Int(0).tag(sync=True)
    show_gold = traitlets.Bool(True).tag(sync=True)
    padding = traitlets.Float(0.0, min=0.0).tag(sync=True)  # shown pixels around your own boxes

    summaries = traitlets.List(traitlets.Dict()).tag(sync=True)
    turn = traitlets.Dict().tag(sync=True)
    page = traitlets.Dict().tag(sync=True)
    page_png = traitlets.Bytes(b"").tag(sync=True)
    seen = traitlets.Dict().tag(sync=True)
    seen_png = traitlets.Bytes(b"").tag(sync=True)
    own = traitlets.Dict().tag(sync=True)
    own_png = traitlets.Bytes(b"").tag(sync=True)
    hits = traitlets.Dict().tag(sync=True)
    thumbnails = traitlets.List(traitlets.Bytes()).tag(sync=True)
    notice = traitlets.Unicode("").tag(sync=True)
    can_search = traitlets.Bool(False).tag(sync=True)

    def __init__(
        self,
        trajectories: Sequence[Trajectory] | Path | str,
        corpus: Path | str | PageStore,
        budget: Budget | None = None,
        engine: Engine | None = None,
        *,
        correct: Verdict = answered_right,
        top_k: int = 10,
        **traits: Any,
    ) -> None:
        self.trajectories = trajectory_list(trajectories)
        self.pages = scenes.page_store(corpus)
        self.budget, self.engine, self.top_k = budget, engine, top_k
        self._page_ids = [page.page_id for page in read_pages(self.pages.corpus)]
        self._scenes: list[Scene] = []
        self._page_id: str | None = None
        self._seen_index = 0
        self._own_view: View | None = None
        self._hits: list[Hit] = []
        self._query, self._own_search, self._first_hit = "", False, 0
        first_turn = traits.pop("turn_index", 0)
        super().__init__(**traits)
        self.can_search = engine is not None
        self.explain_with(engine)
        self.summaries = [payloads.summary(trajectory, correct(trajectory)) for trajectory in self.trajectories]
        self.on_msg(self._on_message)
        self._open_trajectory()
        self.turn_index = first_turn

    # --- what is selected -------------------------------------------------------------------------------------------

    @property
    def trajectory(self) -> Trajectory | None:
        """The trajectory being looked at; None in a page explorer."""
        return self.trajectories[self.trajectory_index] if self.trajectories else None

    @property
    def current_scene(self) -> Scene | None:
        """The turn being looked at, with its images."""
        return self._scenes[self.turn_index] if self._scenes else None

    @property
    def current_page(self) -> Page | None:
        """The page being looked at."""
        return self.pages.page(self._page_id) if self._page_id else None

    @property
    def question(self) -> Question | None:
        return self.trajectory.reference if self.trajectory else None

    @property
    def own_view(self) -> View | None:
        """What the model would see of your own last box."""
        return self._own_view

    @traitlets.validate("trajectory_index")
    def _known_trajectory(self, proposal: dict[str, Any]) -> int:
        return max(0, min(proposal["value"], len(self.trajectories) - 1))

    @traitlets.validate("turn_index")
    def _known_turn(self, proposal: dict[str, Any]) -> int:
        turns = len(self.trajectory.turns) if self.trajectory else 0
        return max(0, min(proposal["value"], turns - 1))

    @traitlets.observe("trajectory_index")
    def _on_trajectory(self, change: dict[str, Any]) -> None:
        self._open_trajectory()

    @traitlets.observe("show_match")
    def _on_show_match(self, change: dict[str, Any]) -> None:
        self._guarded(self.draw_match)

    @traitlets.observe("turn_index")
    def _on_turn(self, change: dict[str, Any]) -> None:
        if self._scenes:
            self._guarded(self._show_turn)

    # --- commands ---------------------------------------------------------------------------------------------------

    def look(self, box: Sequence[float], surface: Surface = "page") -> View | None:
        """Crop `box` as the model would, and show it.

        box: [x0, y0, x1, y1], in any order, in page pixels on "page", in shown pixels on "seen" (the image the model
        saw) and "own" (your last crop). Returns None, with the reason in `notice`, when it cannot be cropped.
        """
        page, base = self._surface(surface)
        x0, x1 = sorted((float(box[0]), float(box[2])))
        y0, y1 = sorted((float(box[1]), float(box[3])))
        shown = base.from_page((x0, y0, x1, y1)) if surface == "page" else (x0, y0, x1, y1)
        written = (float(round(shown[0])), float(round(shown[1])), float(round(shown[2])), float(round(shown[3])))
        try:
            view = base.crop(written, self.padding)
        except CropError as error:
            self.notice = str(error)
            return None
        self.notice = ""
        self._show_own(page, base, written, view)
        return view

    def clear(self) -> None:
        """Forget your own box."""
        self._own_view, self.own, self.own_png = None, {}, b""

    def open_page(self, page_id: str) -> None:
        """Look at a page. Raises KeyError when the corpus has none of that id."""
        page = self.pages.page(page_id)
        with self.hold_sync():
            if page_id != self._page_id:
                self.clear()
            self._page_id = page_id
            self._show_page(page)
            self._show_hits()
            self.look_for(self._query, page_id)

    def step_page(self, by: int) -> None:
        """Look at the page `by` places further on in the corpus."""
        place = self._page_ids.index(self._page_id) if self._page_id in self._page_ids else 0
        self.open_page(self._page_ids[max(0, min(place + by, len(self._page_ids) - 1))])

    def search(self, query: str) -> list[Hit]:
        """Ask the engine, show its hits and open the first. Raises ValueError without an engine or a query."""
        if self.engine is None:
            raise ValueError("this inspector has no search engine: pass engine=SearchEngine.open(...)")
        if not query.strip():
            raise ValueError("type a query first")
        hits = self.engine.search([query], self.top_k)[0]
        with self.hold_sync():
            self._set_hits(hits, query, own=True)
            if hits:
                self.open_page(self._hits[0].page_id)
            else:
                self.look_for(query, self._page_id)
        return hits

    def step_hits(self, by: int) -> None:
        """Page through the ranked hits, `by` views of HITS_PER_VIEW further on."""
        last = max(0, (len(self._hits) - 1) // HITS_PER_VIEW * HITS_PER_VIEW)
        self._first_hit = max(0, min(self._first_hit + by * HITS_PER_VIEW, last))
        self._show_hits()

    def step_seen(self, by: int) -> None:
        """Look at another image of a turn that showed several."""
        count = len(self.current_scene.shown) if self.current_scene else 0
        self._seen_index = max(0, min(self._seen_index + by, count - 1))
        with self.hold_sync():
            self._show_seen()
            shown = self._shown_now()
            if shown is not None:
                self.open_page(shown.page.page_id)

    def _on_message(self, widget: Any, content: dict[str, Any], buffers: list[bytes]) -> None:
        commands: dict[str, Callable[[], Any]] = {
            "box": lambda: self.look(content["box"], content["surface"]),
            "clear": self.clear,
            "page": lambda: self.open_page(str(content["page_id"])),
            "step_page": lambda: self.step_page(int(content["by"])),
            "search": lambda: self.search(str(content["query"])),
            "turn_hits": self._back_to_turn_hits,
            "hits": lambda: self.step_hits(int(content["by"])),
            "seen": lambda: self.step_seen(int(content["by"])),
            "word": lambda: self.pick_word(int(content["word"])),
        }
        command = commands.get(str(content.get("kind")))
        if command is not None:
            self._guarded(command)

    def _guarded(self, action: Callable[[], Any]) -> None:
        """Run what the front end asked for; what goes wrong is told there, for a kernel's log is read by nobody."""
        self.notice = ""
        try:
            with self.hold_sync():
                action()
        except Exception as error:
            self.notice = str(error.args[0] if isinstance(error, KeyError) and error.args else error)

    # --- what is shown ----------------------------------------------------------------------------------------------

    def _open_trajectory(self) -> None:
        self._scenes = []
        self._guarded(self._load_trajectory)
        if self.notice:
            self._show_nothing()  # of the one before, under the new one's question

    def _load_trajectory(self) -> None:
        self.clear()  # a box on the same page was drawn over the other question's gold regions, in its budget
        if self.trajectory is None:
            if self._page_ids:
                self.open_page(self._page_ids[0])
            return
        self.set_trait("turn_index", 0)  # before the scenes are there: draws nothing yet
        self._scenes = scenes.scenes(self.trajectory, self.pages)
        self.padding = float(self.trajectory.settings.get("padding", 0.0))
        self._show_turn()

    def _show_turn(self) -> None:
        scene = self.current_scene
        self._seen_index = 0
        self.turn = payloads.turn(self.trajectory, scene) if self.trajectory and scene else {}
        try:
            self._show_seen()
            self._show_turn_hits()
        except Exception:
            self._show_no_images()  # of the turn before, under this one's words
            raise
        page = scene.page if scene else None
        if page is not None:
            self.open_page(page.page_id)
        else:
            self._show_no_page()

    def _show_no_page(self) -> None:
        self.clear()
        self._page_id, self.page, self.page_png = None, {}, b""
        self.look_for("", None)

    def _show_nothing(self) -> None:
        with self.hold_sync():
            self.turn = {}
            self._show_no_images()

    def _show_no_images(self) -> None:
        self.seen, self.seen_png = {}, b""
        self._set_hits([], "", own=False)
        self._show_no_page()

    def _show_page(self, page: Page) -> None:
        self.page, self.page_png = {}, b""  # nothing of another page stays where this one cannot be drawn
        png = payloads.png(self.pages.image(page.page_id), _LARGEST_PAGE)
        view = View.whole((page.width, page.height), self._budget())
        marks = scenes.page_marks(page, self.current_scene, self.question)
        self.page = payloads.page(page, view, marks, scenes.is_gold(self.question, page.page_id))
        self.page_png = png

    def _show_seen(self) -> None:
        shown, scene = self._shown_now(), self.current_scene
        self.seen, self.seen_png = {}, b""  # nothing of another image stays where this one cannot be drawn
        if shown is None or scene is None:
            return
        png = payloads.png(shown.render(self.pages))
        marks = scenes.seen_marks(shown.view, shown.page, self.question)
        gold = scenes.is_gold(self.question, shown.page.page_id)
        place = (self._seen_index, max(1, len(scene.shown)))
        self.seen = payloads.seen(shown, marks, gold, place, new=bool(scene.shown))
        self.seen_png = png

    def _show_own(self, page: Page, base: View, written: Box, view: View) -> None:
        self._own_view = view
        self.own = payloads.own(page, base, written, view, self.question)
        self.own_png = payloads.png(geometry.render(self.pages.image(page.page_id), view.crop_box, view.shown_size))

    def _show_turn_hits(self) -> None:
        """The hits of this turn's search, or of the last one before it."""
        turns = self.trajectory.turns[: self.turn_index + 1] if self.trajectory else []
        searched = [turn for turn in turns if turn.hits]
        last = searched[-1] if searched else None
        self._set_hits(last.hits if last else [], (last.action.query or "") if last else "", own=False)

    def _back_to_turn_hits(self) -> None:
        self._show_turn_hits()
        self.look_for(self._query, self._page_id)

    def _set_hits(self, hits: Sequence[Hit], query: str, own: bool) -> None:
        self._hits = sorted(hits, key=lambda hit: hit.rank)
        self._query, self._own_search, self._first_hit = query, own, 0
        self._show_hits()

    def _show_hits(self) -> None:
        visible = self._hits[self._first_hit : self._first_hit + HITS_PER_VIEW]
        self.thumbnails = [payloads.png(self.pages.image(hit.page_id), _THUMBNAIL) for hit in visible]
        self.hits = {
            "query": self._query,
            "own": self._own_search,
            "first": self._first_hit,
            "total": len(self._hits),
            "rows": [self._hit(hit) for hit in visible],
        }

    def _hit(self, hit: Hit) -> dict[str, Any]:
        seen = {shown.page.page_id for scene in self._scenes[: self.turn_index + 1] for shown in scene.shown}
        gold = scenes.is_gold(self.question, hit.page_id)
        return payloads.hit(hit, gold, hit.page_id in seen, hit.page_id == self._page_id)

    def _shown_now(self) -> Shown | None:
        """The image under "as the model saw it": what came back, or else what lies before the model's eyes."""
        scene = self.current_scene
        if scene is None:
            return None
        return scene.shown[self._seen_index] if scene.shown else scene.before

    def _surface(self, surface: Surface) -> tuple[Page, View]:
        """The page a box was drawn on, and the view in whose shown pixels it counts."""
        page, shown = self.current_page, self._shown_now()
        if surface == "seen" and shown is not None:
            if page is None or shown.page.page_id != page.page_id:
                self.open_page(shown.page.page_id)
            return shown.page, View(shown.view.page_size, shown.view.crop_box, shown.view.shown_size, self._budget())
        if page is not None and surface == "own" and self._own_view is not None:
            return page, self._own_view
        if page is not None and surface == "page":
            return page, View.whole((page.width, page.height), self._budget())
        instead = {"seen": "the model has seen none, draw on the page", "own": "draw a box on the page first"}
        todo = instead[surface] if page is not None else "open a page first"
        raise ValueError(f"there is no image to draw on ({surface}): {todo}")

    def _budget(self) -> Budget:
        return self.budget or scenes.budget_of(self.trajectory)
