"""The nano retriever's last phase: its vision tower learns on, on pages drawn afresh for every step.

The earlier phases (`retriever`) keep what a frozen tower made of a fixed set of pages: cheap, but the tower cannot
learn to read print smaller than an agent is shown, and few pages are soon known by heart. Here every batch is drawn
anew, and each square of its pages is asked for its characters besides the two InfoNCE losses, as in `reading`.

Of a deck of slides two are now and then put on one sheet, one above the other, as people print handouts: their print is
smaller by a third then, about that of the body of a report. One batch in three is a document of prose (`prose`). The
pages of a batch are shown in one of the ways in which an index is made of them (`SIGHTS`,
`retrieval.nano_embedders`): whole or in halves, larger or smaller.

A page costs a thousand times what a query costs, so every page of a batch is asked for several times.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from colpali_engine.models import ColQwen2_5, ColQwen2_5_Processor
from PIL import Image
from torch.utils.data import DataLoader, IterableDataset

from vrag_nb.agent.geometry import Budget
from vrag_nb.attention import linear_patch_embedding, use_block_attention, use_window_attention
from vrag_nb.nano import replicas
from vrag_nb.nano.deck_tasks import DeckPool, DrawnPage, repainted
from vrag_nb.nano.glyphs import Glyph, GlyphHead, glyph_loss, slot_targets
from vrag_nb.nano.model import FACTOR
from vrag_nb.nano.optimisation import Schedule, compile_layers, to_training_form, training_device
from vrag_nb.nano.patches import seen, tower_inputs
from vrag_nb.nano.prose import drawn_document
from vrag_nb.nano.replay import Replay
from vrag_nb.nano.retriever import (
    PAGE_BUDGET,
    Matching,
    SeenPage,
    listed_words,
    match_batch,
    matching,
    span_query,
    word_squares,
)
from vrag_nb.nano.training import Training
from vrag_nb.records import Question
from vrag_nb.retrieval.nano_embedders import halves

ROUNDS = 3  # queries a page
PROSE = 0.35  # the share of batches that are documents of prose
SMALLER = Budget(112 * FACTOR**2, 224 * FACTOR**2)
SIGHTS = {(1, PAGE_BUDGET): 0.35, (2, PAGE_BUDGET): 0.25, (1, SMALLER): 0.2, (2, SMALLER): 0.2}  # with their shares
SLOTS = 12  # characters a square is asked for: two lines of the smallest print that is asked for
GLYPH_WEIGHT = 0.5


@dataclass(frozen=True)
class FindingBatch:
    """Pages to see and what is asked of them.

    images: `patches.tower_inputs` of all parts. glyphs: (squares, SLOTS). matching: of pages, ROUNDS queries of each.
    """

    images: dict[str, torch.Tensor]
    glyphs: torch.Tensor
    matching: Matching

    def to(self, device: torch.device) -> FindingBatch:
        images = {name: tensor.to(device) for name, tensor in self.images.items()}
        return FindingBatch(images, self.glyphs.to(device), self.matching.to(device))


@dataclass(frozen=True)
class PageSource:
    """Where the pages of a batch come from: so many decks of a pool, so many pages of each; or as many of prose."""

    pool: DeckPool
    decks: int
    pages: int


class FindingBatches(IterableDataset):
    """Endless `FindingBatch`es."""

    def __init__(self, source: PageSource, model: ColQwen2_5, processor: ColQwen2_5_Processor, seed: str) -> None:
        """model: whose configuration tells where tokens stand; workers touch none of its weights."""
        self.source, self.model, self.processor, self.seed = source, model, processor, seed

    def __iter__(self) -> Iterator[FindingBatch]:
        if worker := torch.utils.data.get_worker_info():
            torch.set_num_threads(1)
        rng = random.Random(f"{self.seed}/{worker.id if worker else 0}")
        while True:
            ((parts, budget),) = rng.choices(list(SIGHTS), list(SIGHTS.values()))
            if rng.random() < PROSE:
                pages = drawn_document(rng, self.source.decks * self.source.pages, budget)
                drawn: list[tuple[list[str], list[DrawnPage]]] = [([], [page]) for page in pages if len(page.words) > 8]
            else:
                picked = self._distinct_decks(rng)
                count = -(-self.source.pages // parts)  # as many images whole or in halves: memory is what is short
                drawn = [one for deck in picked for one in draw_pages(rng, *deck, count, parts, budget)]
            if drawn:
                yield self._batch(rng, drawn)

    def _distinct_decks(self, rng: random.Random) -> list[tuple[list[DrawnPage], list[Question]]]:
        """A page that came twice would count as wrong for its own queries."""
        picked: dict[int, tuple[list[DrawnPage], list[Question]]] = {}
        while len(picked) < self.source.decks:
            deck = self.source.pool.pick(rng)
            picked[id(deck)] = deck
        return list(picked.values())

    def _batch(self, rng: random.Random, drawn: Sequence[tuple[list[str], list[DrawnPage]]]) -> FindingBatch:
        """drawn: of every page its queries and its parts, equally many each."""
        parts = [part for _, shown in drawn for part in shown]
        sizes = [(part.image.width // FACTOR, part.image.height // FACTOR) for part in parts]
        words = [word_squares(part, *size) for part, size in zip(parts, sizes, strict=True)]
        glyphs = [slot_targets(part.glyphs, *size, slots=SLOTS) for part, size in zip(parts, sizes, strict=True)]
        inputs = tower_inputs([part.image for part in parts], self.model.config.vision_config)
        shown = [SeenPage(torch.zeros(0), grid, row) for grid, row in zip(inputs["grid_thw"], words, strict=True)]
        each = len(shown) // len(drawn)
        pages = [
            SeenPage(
                torch.zeros(0), shown[start].grid, [one for part in shown[start : start + each] for one in part.words]
            )
            for start in range(0, len(shown), each)
        ]
        asked = [asked_of(rng, queries, page) for (queries, _), page in zip(drawn, pages, strict=True)]
        queries = [query for turn in zip(*asked, strict=True) for query in turn]
        lists = [listed_words(rng, page) for page in pages]
        matched = matching(self.model, self.processor, shown, queries, lists, each)
        return FindingBatch(inputs, torch.cat(glyphs), matched)


def asked_of(rng: random.Random, queries: Sequence[str], page: SeenPage) -> list[str]:
    """ROUNDS queries for a page: of those given three in four, the others words of it in a row or its longest words."""
    asked = []
    for _ in range(ROUNDS):
        if queries and (not page.words or rng.random() < 0.75):
            asked.append(rng.choice(queries))
        else:
            asked.append(span_query(rng, page) if rng.random() < 0.6 else long_words(rng, page))
    return asked


def long_words(rng: random.Random, page: SeenPage) -> str:
    """Two to six of the longer words of a page, in any order: a query as people type them."""
    words = sorted(sorted({word for word, squares in page.words if squares}), key=len)  # a set has no order of its own
    longer = words[len(words) // 2 :]
    return " ".join(rng.sample(longer, min(rng.randint(2, 6), len(longer)))) or "nothing"


def draw_pages(
    rng: random.Random,
    pages: Sequence[DrawnPage],
    questions: Sequence[Question],
    count: int,
    parts: int = 1,
    budget: Budget = PAGE_BUDGET,
) -> list[tuple[list[str], list[DrawnPage]]]:
    """Up to `count` pages of a deck in so many parts as the retriever is shown them, each with queries it answers."""
    single = [question for question in questions if len(question.needed_facts) == 1]
    by_page: dict[int, list[Question]] = {}
    for question in single:
        by_page.setdefault(question.needed_facts[0]["page"], []).append(question)
    chosen = rng.sample(sorted(by_page), min(count, len(by_page)))
    rest = [page for number, page in enumerate(pages, 1) if number not in chosen]
    drawn = []
    for number in chosen:
        asked = [rng.choice(by_page[number]) for _ in range(ROUNDS)]
        queries = [one.query if rng.random() < 0.7 else one.needed_facts[0]["search_hint"] for one in asked]
        drawn.append((queries, varied(rng, pages[number - 1], rest, parts, budget)))
    return drawn


def varied(
    rng: random.Random, page: DrawnPage, others: Sequence[DrawnPage], parts: int, budget: Budget
) -> list[DrawnPage]:
    """The page, whole or its two halves, as the retriever is shown it: as it is, cut, in other colours, or on a sheet
    with another one."""
    width, height = page.image.size
    same = [other for other in others if other.image.size == page.image.size]
    draw = rng.random()
    if draw < 0.35 and same and width > height:
        pair = [page, rng.choice(same)]
        rng.shuffle(pair)
        page = stacked(*pair)
    left, top, right, bottom = 0, 0, *page.image.size
    if 0.35 <= draw < 0.55:
        left, top = round(rng.uniform(0, 0.2) * width), round(rng.uniform(0, 0.2) * height)
        right, bottom = round(width * rng.uniform(0.8, 1)), round(height * rng.uniform(0.8, 1))
    across, down = right - left, bottom - top
    boxes = halves(across, down) if parts == 2 else [(0, 0, across, down)]
    shown = [page.part((left + x0, top + y0, left + x1, top + y1), budget) for x0, y0, x1, y1 in boxes]
    if rng.random() < 0.6:
        return [DrawnPage(repainted(rng, one.image), one.glyphs, one.words) for one in shown]
    return shown


def stacked(above: DrawnPage, below: DrawnPage) -> DrawnPage:
    """Two pages of one size on a sheet."""
    width, height = above.image.size
    sheet = Image.new("RGB", (width, 2 * height), "white")
    sheet.paste(above.image, (0, 0))
    sheet.paste(below.image, (0, height))
    lines = 1 + max((glyph.line for glyph in above.glyphs), default=0)
    glyphs = [Glyph(g.character, g.x, g.y + height, g.line + lines) for g in below.glyphs]
    words = [(word, (x0, y0 + height, x1, y1 + height)) for word, (x0, y0, x1, y1) in below.words]
    return DrawnPage(sheet, above.glyphs + glyphs, above.words + words)


def train_finding(
    model: ColQwen2_5,
    processor: ColQwen2_5_Processor,
    source: PageSource,
    folder: Path,
    schedule: Schedule,
    *,
    seed: int = 0,
    workers: int = 1,
    compile_text: bool = True,
) -> None:
    """Train all of the retriever in place; resumable. Logs in-batch accuracies.

    Of several processes (`replicas`) each draws batches of its own; the first one's log and state are kept.
    """
    torch.manual_seed(seed)
    visual: Any = model.visual
    head = GlyphHead(model.config.text_config.hidden_size, SLOTS)
    linear_patch_embedding(visual)
    device = training_device()
    to_training_form(model, device)
    to_training_form(head, device)
    use_block_attention(model.language_model)
    use_window_attention(visual)
    if compile_text:
        compile_layers(model.language_model)
    training = Training(folder, {"model": model, "head": head}, schedule)
    batches = FindingBatches(source, model, processor, f"{seed * 7919 + training.step}/{replicas.rank()}")
    loader = iter(DataLoader(batches, batch_size=None, num_workers=workers, prefetch_factor=2 if workers else None))
    supply = Replay(loader, ["pages"], lambda _: "pages") if device.type == "cuda" else loader
    model.train()
    for _ in training:
        drawn: FindingBatch = training.next(supply)
        batch = drawn.to(device)
        tokens = seen(visual, batch.images)
        on_glyphs, glyphs = glyph_loss(head(tokens), batch.glyphs)
        matched = match_batch(model, batch.matching, tokens)
        (matched.on_words + matched.on_pages + GLYPH_WEIGHT * on_glyphs).backward()
        losses = {"loss": matched.on_pages, "word_loss": matched.on_words, "glyph_loss": on_glyphs}
        training.kept["tokens"] = training.kept.get("tokens", 0) + int(drawn.matching.pages["attention_mask"].sum())
        training.tell(tokens=training.kept["tokens"], **{name: loss.item() for name, loss in losses.items()})
        training.blend(accuracy=matched.right, words=matched.words_right, glyphs=glyphs)
