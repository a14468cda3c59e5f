"""The recipe of the nano models, stage by stage; notebook 00 tells it, `python -m vrag_nb.nano.recipe` runs it.

    read       vision tower, dense glyph supervision on scribbles                      -> runs/nano/read
    read_pages the same on windows of drawn deck pages, mixed with scribbles           -> runs/nano/read_pages
    spell      language side, frozen vision: strips to write out, small tables         -> runs/nano/spell
    align      language side: copying, searching, look-up and pointing on pages        -> models/nano-base
    match      ColQwen2.5 on half of that: words of small images, late-interaction     -> runs/nano/match
    retrieve   the same on whole pages and their questions                             -> models/nano-retriever
    act        SFT on trajectories of the privileged expert in the real environment    -> models/nano-agent
    see        the agent's vision tower learns on, glyphs alone; by name               -> runs/nano/see
    settle     the agent on that tower; by name                                        -> models/nano-agent
    find       the retriever on the agent's vision tower, both learning on; by name   -> runs/nano/find/checkpoint

`see` and `settle` teach on what is shipped, and what `find` made within the budgets here was not better: these three
are run when they are named only.

Budgets are wall-clock seconds on two idle cores. Every stage resumes where a kill left it and is skipped once its
budget is spent; all of them see train-split tables and layouts only. `data/models/README.md` says what the shipped
weights were given.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, fields
from functools import cache, partial
from itertools import zip_longest
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import pymupdf
import torch
from colpali_engine.models import ColQwen2_5, ColQwen2_5_Processor
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase, Qwen2_5_VLForConditionalGeneration

from vrag_nb.documents.decks.generate import pretraining_deck
from vrag_nb.nano import replicas
from vrag_nb.nano.aligning import Stream, train_streams
from vrag_nb.nano.deck_tasks import DeckPool, DeckTasks, DrawnPage, repainted, words_of
from vrag_nb.nano.expert import ExpertSamples, ExpertTurns
from vrag_nb.nano.finding import train_finding
from vrag_nb.nano.grafting import graft
from vrag_nb.nano.lookups import drawn_table, reading_strip
from vrag_nb.nano.model import FACTOR, build_nano_vlm, build_processor, save_checkpoint
from vrag_nb.nano.optimisation import load_state
from vrag_nb.nano.reading import Drawing, draw_scribble, train_reading
from vrag_nb.nano.retriever import (
    PAGE_BUDGET,
    QueryGroup,
    build_retriever,
    build_retriever_processor,
    see_pages,
    train_retriever,
)
from vrag_nb.nano.scribbles import scribble
from vrag_nb.nano.sheets import SheetPool, as_jpeg
from vrag_nb.nano.tokenizer import build_tokenizer
from vrag_nb.nano.weighing import learn_weights
from vrag_nb.nano.wording import copied_words, searches
from vrag_nb.records import Question, read_questions
from vrag_nb.retrieval.colpali import NanoColQwen25
from vrag_nb.retrieval.hubness import QUERY_BANK


@dataclass(frozen=True)
class Recipe:
    """Budgets (seconds) and places."""

    runs: Path = Path("data/runs/nano")
    models: Path = Path("data/models")
    corpus: Path = Path("data/corpora/decks")
    seed: int = 0
    threads: int = 2
    read_seconds: float = 1200
    read_pages_seconds: float = 3600
    spell_seconds: float = 900
    match_seconds: float = 1500
    retrieve_seconds: float = 2400
    align_seconds: float = 7200
    act_seconds: float = 2400
    settle_seconds: float = 5400
    see_seconds: float = 4200
    find_seconds: float = 5400
    retriever_decks: int = 150

    @classmethod
    def scaled(cls, scale: float, **changes: Any) -> Recipe:
        """The recipe with every budget multiplied by `scale`, and other fields changed."""
        budgets = {
            field.name: getattr(cls, field.name) * scale for field in fields(cls) if field.name.endswith("_seconds")
        }
        return cls(**{**budgets, **changes})


def tokenizer() -> PreTrainedTokenizerBase:
    """The nano tokenizer; its text is the manual that comes with Python, so it is the same on every machine."""
    return build_tokenizer(topics.values())


def fresh_model(recipe: Recipe) -> Qwen2_5_VLForConditionalGeneration:
    return build_nano_vlm(tokenizer(), seed=recipe.seed)


def _state(folder: Path) -> dict[str, Any]:
    """What an earlier stage saved. Raises FileNotFoundError where it has not run."""
    state = load_state(folder / "state.pt")
    if state is None:
        raise FileNotFoundError(f"{folder} holds no state.pt: run the stage that makes it first")
    return state


def _part(state: dict[str, Any], prefix: str) -> dict[str, Any]:
    """The weights of one module of a model."""
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def _load(model: Qwen2_5_VLForConditionalGeneration, folder: Path) -> None:
    """Put the weights of an earlier stage, the whole model or the vision tower alone, into `model`."""
    state = _state(folder)
    if "model" in state:
        model.load_state_dict(state["model"])
    else:
        model.model.visual.load_state_dict(state["visual"])


def read(recipe: Recipe) -> None:
    model = fresh_model(recipe)
    processor = build_processor(tokenizer())
    train_reading(
        model,
        processor.image_processor,
        recipe.runs / "read",
        recipe.read_seconds,
        muon_lr=6e-3,
        adamw_lr=2e-3,
        seed=recipe.seed,
    )


def spell(recipe: Recipe) -> None:
    model = fresh_model(recipe)
    _load(model, recipe.runs / "read_pages")
    streams = [Stream("read", reading_strip, 32), Stream("table", drawn_table, 40)]
    train_streams(
        model,
        build_processor(tokenizer()),
        streams,
        recipe.runs / "spell",
        recipe.spell_seconds,
        seed=recipe.seed,
        decay=0.15,
    )


def draw_page_or_scribble(tasks: DeckTasks, rng: random.Random, difficulty: float) -> Drawing:
    """Three page windows for two scribbles (a window has three times the squares)."""
    return tasks.glyphs(rng, difficulty) if rng.random() < 0.6 else draw_scribble(rng, max(0.4, difficulty))


def read_pages(recipe: Recipe) -> None:
    model = fresh_model(recipe)
    processor = build_processor(tokenizer())
    _load(model, recipe.runs / "read")
    draw: Callable[[random.Random, float], Drawing] = partial(
        draw_page_or_scribble, DeckTasks(DeckPool(pretraining_deck, size=16, draws_per_deck=240))
    )
    train_reading(
        model,
        processor.image_processor,
        recipe.runs / "read_pages",
        recipe.read_pages_seconds,
        draw=draw,
        batch_size=16,
        muon_lr=3e-3,
        adamw_lr=1e-3,
        seed=recipe.seed + 1,
        heads_from=recipe.runs / "read",
    )


def lessons(pool: DeckPool) -> list[Stream]:
    """What the language side is taught before it acts: to copy, to search, to look up, to point."""
    return [
        Stream("copy", copied_words, 12, buckets=4),
        Stream("search", searches(pool), 10, buckets=4),
        Stream("table", drawn_table, 32, promote_on="found", difficulty_step=0.02),
        Stream("deck", DeckTasks(pool).lookups, 12, buckets=4),
        Stream("match", DeckTasks(pool).matches, 6, buckets=4),
    ]


def align(recipe: Recipe) -> None:
    model = fresh_model(recipe)
    processor = build_processor(tokenizer())
    _load(model, recipe.runs / "spell")
    pool = DeckPool(partial(pretraining_deck, questions=(90, 140)), size=14, draws_per_deck=120)
    train_streams(
        model,
        processor,
        lessons(pool),
        recipe.runs / "align",
        recipe.align_seconds,
        seed=recipe.seed,
        muon_lr=3e-3,
        adamw_lr=1e-3,
        decay=0.3,
    )
    save_checkpoint(model, processor, recipe.models / "nano-base")


def corpus_deck(recipe: Recipe, seed: int) -> tuple[bytes, list[Question]]:
    """A random train-split deck of the default corpus: its PDF and its questions."""
    by_document = train_questions(recipe)
    document = random.Random(seed).choice(sorted(by_document))
    return (recipe.corpus / "documents" / f"{document}.pdf").read_bytes(), by_document[document]


@cache
def train_questions(recipe: Recipe) -> dict[str, list[Question]]:
    """The train-split questions of the default corpus by document."""
    by_document: dict[str, list[Question]] = {}
    for question in read_questions(recipe.corpus / "questions.train.parquet"):
        by_document.setdefault(question.document, []).append(question)
    return by_document


def mixed_deck(recipe: Recipe, seed: int) -> tuple[bytes, list[Question]]:
    """Half the time a deck of invented tables, half the time one of real train tables."""
    return pretraining_deck(seed, questions=(60, 90)) if seed % 2 else corpus_deck(recipe, seed)


def word_material(recipe: Recipe, decks: int, windows: int = 2) -> tuple[list[DrawnPage], list[QueryGroup]]:
    """Small images full of words: scribbles, and windows on the pages of invented decks; none has a question.

    There are few layouts to train on, and a retriever learns them by heart: which corner names the deck, in which
    colour. Scribbles have no layout, windows little of one, and both are four times cheaper than a page.
    """
    rng = random.Random(f"{recipe.seed}/words")
    drawn: list[DrawnPage] = []
    for number in tqdm(range(decks), desc="drawing windows"):
        pdf, _ = pretraining_deck(100_000 * recipe.seed + 20_000 + number)
        with pymupdf.open(stream=pdf, filetype="pdf") as document:
            for page in document:
                shown = _disguised(rng, DrawnPage.render(page).part(budget=PAGE_BUDGET))
                drawn += [_window(rng, shown) for _ in range(windows)]
        drawn += [scribbled_page(rng) for _ in range(8 * windows)]
    kept = [page for page in drawn if len(page.words) >= 5]
    return kept, [QueryGroup([number], [("", number)]) for number in range(len(kept))]


def page_material(recipe: Recipe, decks: int) -> tuple[list[DrawnPage], list[QueryGroup]]:
    """Whole pages and the queries that should find them: all train decks and `decks` invented ones, some disguised."""
    train = [((recipe.corpus / "documents" / f"{d}.pdf").read_bytes(), q) for d, q in train_questions(recipe).items()]
    rng = random.Random(f"{recipe.seed}/pages")
    drawn: list[DrawnPage] = []
    groups: list[QueryGroup] = []
    for number in tqdm(range(len(train) + decks), desc="drawing decks"):
        known = number < len(train)
        pdf, questions = train[number] if known else pretraining_deck(100_000 * recipe.seed + 10_000 + number)
        first = len(drawn)
        with pymupdf.open(stream=pdf, filetype="pdf") as document:
            pages = [DrawnPage.render(page).part(budget=PAGE_BUDGET) for page in document]
        drawn += pages if known and rng.random() < 0.5 else [_disguised(rng, page) for page in pages]
        queries = []
        for question in questions:
            facts = question.needed_facts
            queries += [(fact["search_hint"], first + fact["page"] - 1) for fact in facts]
            if len(facts) == 1:
                queries.append((question.query, first + facts[0]["page"] - 1))
        if queries:
            groups.append(QueryGroup(list(range(first, len(drawn))), queries))
    return drawn, groups


def _disguised(rng: random.Random, page: DrawnPage) -> DrawnPage:
    """The page repainted, and one time in three with its edges cut off (what is cut off cannot be matched)."""
    page = DrawnPage(repainted(rng, page.image), page.glyphs, page.words)
    if rng.random() < 0.67:
        return page
    width, height = page.image.size
    cut = (rng.uniform(0, 0.2) * width, rng.uniform(0, 0.2) * height)
    return page.part((cut[0], cut[1], width * rng.uniform(0.8, 1), height * rng.uniform(0.8, 1)), PAGE_BUDGET)


def _window(rng: random.Random, page: DrawnPage) -> DrawnPage:
    """About 150 squares of a shown page, at the scale it is shown."""
    columns = rng.randint(9, min(17, page.image.width // FACTOR))
    width, height = columns * FACTOR, min(page.image.height, -(-150 // columns) * FACTOR)
    x, y = rng.randint(0, page.image.width - width), rng.randint(0, page.image.height - height)
    return page.part((x, y, x + width, y + height), PAGE_BUDGET)


def scribbled_page(rng: random.Random) -> DrawnPage:
    """Random words in random places, of about 150 squares."""
    columns, rows = rng.choice([(17, 9), (13, 12), (10, 15)])
    image, glyphs = scribble(rng, columns, rows, rng.uniform(0.3, 1.0))
    return DrawnPage(image, glyphs, words_of(glyphs))


def match(recipe: Recipe) -> None:
    backbone = fresh_model(recipe)
    _load(backbone, recipe.runs / "align")
    processor = build_retriever_processor(build_processor(tokenizer()))
    model = build_retriever(backbone, seed=recipe.seed)
    _train_on(recipe, model, processor, word_material(recipe, recipe.retriever_decks), "match", span_share=1.0)


def retrieve(recipe: Recipe) -> None:
    processor = build_retriever_processor(build_processor(tokenizer()))
    model = build_retriever(fresh_model(recipe), seed=recipe.seed)
    model.load_state_dict(_state(recipe.runs / "match")["model"])
    _train_on(recipe, model, processor, page_material(recipe, recipe.retriever_decks), "retrieve", centred=True)
    save_checkpoint(model, processor, recipe.models / "nano-retriever")
    write_query_bank(recipe, recipe.models / "nano-retriever" / QUERY_BANK)


def weigh(recipe: Recipe) -> None:
    """Learn what the tokens of a query are worth to the shipped retriever, from questions of the train split."""
    folder = recipe.models / "nano-retriever"
    asked = [question for group in train_questions(recipe).values() for question in group]
    learn_weights(NanoColQwen25(str(folder)), recipe.corpus, asked, seed=recipe.seed).save(folder)


def write_query_bank(recipe: Recipe, path: Path, count: int = 100) -> None:
    """Sample queries by which the hubness of a page is told: train-split questions, of every deck about as many."""
    rng = random.Random(recipe.seed)
    with_pages = [[q.query for q in asked if q.gold_page_ids] for asked in train_questions(recipe).values()]
    shuffled = [rng.sample(queries, len(queries)) for queries in with_pages]
    in_turn = [query for queries in zip_longest(*shuffled) for query in queries if query]
    path.write_text("".join(f"{query}\n" for query in in_turn[:count]), encoding="utf-8")


def _train_on(
    recipe: Recipe,
    model: ColQwen2_5,
    processor: ColQwen2_5_Processor,
    material: tuple[list[DrawnPage], list[QueryGroup]],
    stage: str,
    **options: Any,
) -> None:
    drawn, groups = material
    pages = see_pages(model, processor, drawn)
    drawn.clear()
    seconds = getattr(recipe, f"{stage}_seconds")
    train_retriever(model, processor, pages, groups, recipe.runs / stage, seconds, seed=recipe.seed, **options)


def playing(recipe: Recipe, read_at: float = 0.0, table_at: float = 0.0) -> list[Stream]:
    """What the agent is taught: the expert's trajectories and turns, and reading and searching beside them.

    read_at, table_at: at which difficulty strips and tables begin.
    """
    pool = DeckPool(partial(mixed_deck, recipe), size=14, draws_per_deck=120)
    return [
        Stream("act", ExpertSamples(pool, max_turns=5), 4, buckets=6),
        Stream("turn", ExpertTurns(pool), 28, buckets=4),
        Stream("read", reading_strip, 64, promote_at=0.5, difficulty_step=0.02, difficulty=read_at),
        Stream("table", drawn_table, 24, difficulty=table_at),
        Stream("search", searches(pool), 8, buckets=4),
    ]


def act(recipe: Recipe) -> None:
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(recipe.models / "nano-base", dtype=torch.float32)
    _train_agent(recipe, model, playing(recipe), recipe.runs / "act", recipe.act_seconds)


def _train_agent(
    recipe: Recipe,
    model: Qwen2_5_VLForConditionalGeneration,
    streams: list[Stream],
    folder: Path,
    seconds: float,
    **options: Any,
) -> None:
    processor = build_processor(tokenizer())
    train_streams(
        model,
        processor,
        streams,
        folder,
        seconds,
        seed=recipe.seed,
        muon_lr=2e-3,
        adamw_lr=6e-4,
        decay=0.5,
        frozen_vision=False,
        **options,
    )
    save_checkpoint(model, processor, recipe.models / "nano-agent")


class Views:
    """Draws windows of sheets, and one in `page_every` of a deck page; now and then as a JPEG file makes them look.

    A sheet's squares hold four times the letters of a page's. In turn, not at random: batches are all as large then.
    """

    def __init__(self, tasks: DeckTasks, sheets: SheetPool, page_every: int = 6) -> None:
        self.tasks, self.sheets, self.page_every, self.draws = tasks, sheets, page_every, 0

    def __call__(self, rng: random.Random, difficulty: float) -> Drawing:
        self.draws += 1
        image, glyphs = (self.sheets.draw if self.draws % self.page_every else self.tasks.glyphs)(rng, difficulty)
        return (as_jpeg(image, rng.randint(35, 90)) if rng.random() < 0.17 else image), glyphs


def see(recipe: Recipe) -> None:
    """Nothing but reading: an hour of it shows the tower more letters than all of `act` did."""
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(recipe.models / "nano-agent", dtype=torch.float32)
    tasks = DeckTasks(DeckPool(partial(mixed_deck, recipe), size=14, draws_per_deck=300))
    train_reading(
        model,
        build_processor(tokenizer()).image_processor,
        recipe.runs / "see",
        recipe.see_seconds,
        draw=Views(tasks, SheetPool()),
        batch_size=32,
        workers=0,
        muon_lr=4e-3,
        adamw_lr=1.2e-3,
        decay=0.6,
        seed=recipe.seed + 2,
        heads_first=60,
        difficulty=1.0,
    )


def settle(recipe: Recipe) -> None:
    """The shipped agent on the tower of `see`, grafted: the same lessons as `act`, on what the tower says now."""
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(recipe.models / "nano-agent", dtype=torch.float32)
    tower = model.model.visual
    earlier = deepcopy(tower)
    _load(model, recipe.runs / "see")
    pool = DeckPool(partial(mixed_deck, recipe), size=8, draws_per_deck=300)
    met = graft(tower, earlier, viewed(Views(DeckTasks(pool), SheetPool(), page_every=2), recipe.seed))
    print(f"of what the tower said before, {met:.0%} is what it says now", flush=True)
    _train_agent(recipe, model, playing(recipe, 0.14, 0.29), recipe.runs / "settle", recipe.settle_seconds, workers=0)


def viewed(views: Views, seed: int, batches: int = 30) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Pixels and grids of 16 windows a batch, for `graft`: some forty thousand squares in all."""
    rng, processor = random.Random(seed), build_processor(tokenizer()).image_processor
    for _ in range(batches):
        images = [views(rng, 1.0)[0] for _ in range(16)]
        inputs = processor(images=images, do_resize=False, return_tensors="pt")
        yield inputs["pixel_values"], inputs["image_grid_thw"]


def find(recipe: Recipe) -> None:
    """All of the shipped retriever learns on: the tower too, on decks and prose drawn for every step.

    What is kept is the mean of the weights before and after (Wortsman et al., arXiv 2109.01903): with so little
    training the end alone knows the training layouts better and others worse.
    """
    folder = recipe.models / "nano-retriever"
    model = ColQwen2_5.from_pretrained(folder, dtype=torch.float32)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    processor = ColQwen2_5_Processor.from_pretrained(folder)
    pool = DeckPool(partial(mixed_deck, recipe), size=16, draws_per_deck=4)
    train_finding(
        model,
        processor,
        pool,
        recipe.runs / "find",
        recipe.find_seconds,
        seed=recipe.seed,
        pages=5,
        muon_lr=1.2e-3,
        adamw_lr=4e-4,
        decay=0.6,
        workers=0,
    )
    if replicas.rank() == 0:
        model.load_state_dict({name: weight.lerp(before[name], 0.5) for name, weight in model.state_dict().items()})
        save_checkpoint(model, processor, folder)


STAGES: dict[str, Callable[[Recipe], None]] = {
    "read": read,
    "read_pages": read_pages,
    "spell": spell,
    "align": align,
    "match": match,
    "retrieve": retrieve,
    "act": act,
    "see": see,
    "settle": settle,
    "find": find,
    "weigh": weigh,
}

BY_NAME = ("see", "settle", "find")  # run when they are named only


def run_stages(recipe: Recipe, stages: Sequence[str]) -> None:
    """Run stages in order. Raises ValueError naming an unknown one, FileNotFoundError for a stage run too early."""
    if unknown := sorted(set(stages) - set(STAGES)):
        raise ValueError(f"unknown stage {', '.join(unknown)}; there are {', '.join(STAGES)}")
    torch.set_num_threads(recipe.threads)
    replicas.join()
    for stage in stages:
        print(f"stage {stage}", flush=True)
        STAGES[stage](recipe)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "stages", nargs="*", help=f"of {', '.join(STAGES)}, in order (default: all but {', '.join(BY_NAME)})"
    )
    parser.add_argument("--threads", type=int, default=Recipe.threads)
    parser.add_argument("--scale", type=float, default=1.0, help="multiply every budget")
    arguments = parser.parse_args()
    run_stages(
        Recipe.scaled(arguments.scale, threads=arguments.threads),
        arguments.stages or [stage for stage in STAGES if stage not in BY_NAME],
    )


if __name__ == "__main__":
    main()
