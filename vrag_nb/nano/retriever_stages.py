"""The stages of the nano recipe that make the page retriever, `match` to `weigh`, and its twin."""

from __future__ import annotations

import random
from functools import partial
from itertools import zip_longest
from pathlib import Path

import pymupdf
import torch
from colpali_engine.models import BiQwen2_5_Processor, ColQwen2_5, ColQwen2_5_Processor
from tqdm.auto import tqdm

from vrag_nb.documents.decks.generate import pretraining_deck
from vrag_nb.nano import replicas
from vrag_nb.nano.deck_tasks import DeckPool, DrawnPage, repainted, words_of
from vrag_nb.nano.finding import PageSource, train_finding
from vrag_nb.nano.model import FACTOR, build_processor, save_checkpoint
from vrag_nb.nano.optimisation import Schedule
from vrag_nb.nano.plan import (
    Recipe,
    earlier_state,
    fresh_model,
    latest_agent,
    letters_head,
    load_earlier,
    mixed_deck,
    reading_on,
    split_questions,
    tokenizer,
    tower_windows,
)
from vrag_nb.nano.prose import drawn_document
from vrag_nb.nano.retriever import (
    PAGE_BUDGET,
    QueryGroup,
    QuerySource,
    build_retriever,
    build_retriever_processor,
    see_pages,
    train_retriever,
)
from vrag_nb.nano.scribbles import scribble
from vrag_nb.nano.seeing import train_held
from vrag_nb.nano.twin import build_twin, freeze, given_pages, train_twin
from vrag_nb.nano.weighing import learn_weights
from vrag_nb.retrieval.hubness import QUERY_BANK
from vrag_nb.retrieval.nano_embedders import NanoColQwen25

NEXT = "nano-retriever-next"  # what stages `sharpen` and `hone` make
SHARPENED = "sharpened"  # a file in it: `sharpen` has had its first round


def word_material(recipe: Recipe, decks: int, windows: int = 2) -> tuple[list[DrawnPage], list[QueryGroup]]:
    """Small images full of words: scribbles, and windows on the pages of invented decks; none has a question.

    There are few layouts to train on, and a retriever learns them by heart: which corner names the deck, in which
    colour. Scribbles have no layout, windows little of one, and both are four times cheaper than a page.
    """
    drawn: list[DrawnPage] = []
    for number in tqdm(_own_share(decks), desc="drawing windows"):
        rng = random.Random(f"{recipe.seed}/words/{number}")
        pdf, _ = pretraining_deck(100_000 * recipe.seed + 20_000 + number)
        with pymupdf.open(stream=pdf, filetype="pdf") as document:
            for page in document:
                shown = _disguised(rng, DrawnPage.render(page).part(budget=PAGE_BUDGET))
                drawn += [_window(rng, shown) for _ in range(windows)]
        drawn += [scribbled_page(rng) for _ in range(8 * windows)]
    kept = [page for page in drawn if len(page.words) >= 5]
    return kept, [QueryGroup([number], [("", number)]) for number in range(len(kept))]


def page_material(recipe: Recipe, decks: int, first: int = 0) -> tuple[list[DrawnPage], list[QueryGroup]]:
    """Whole pages and the queries that should find them: all train decks and `decks` invented ones, some disguised.

    first: of the invented ones, so that a later stage draws others.
    """
    train = [
        ((recipe.corpus / "documents" / f"{d}.pdf").read_bytes(), q)
        for d, q in split_questions(recipe, "train").items()
    ]
    drawn: list[DrawnPage] = []
    groups: list[QueryGroup] = []
    for number in tqdm(_own_share(len(train) + decks), desc="drawing decks"):
        rng = random.Random(f"{recipe.seed}/pages/{first + number}")
        known = number < len(train)
        pdf, questions = train[number] if known else pretraining_deck(100_000 * recipe.seed + 10_000 + first + number)
        start = len(drawn)
        with pymupdf.open(stream=pdf, filetype="pdf") as document:
            pages = [DrawnPage.render(page).part(budget=PAGE_BUDGET) for page in document]
        drawn += pages if known and rng.random() < 0.5 else [_disguised(rng, page) for page in pages]
        queries = []
        for question in questions:
            facts = question.needed_facts
            queries += [(fact["search_hint"], start + fact["page"] - 1) for fact in facts]
            if len(facts) == 1:
                queries.append((question.query, start + facts[0]["page"] - 1))
        if queries:
            groups.append(QueryGroup(list(range(start, len(drawn))), queries))
    return drawn, groups


def _own_share(count: int) -> range:
    """Which of `count` decks this process draws, and alone learns from."""
    return range(count)[replicas.rank() :: replicas.count()]


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
    load_earlier(backbone, recipe.runs / "align")
    processor = build_retriever_processor(build_processor(tokenizer()))
    model = build_retriever(backbone, seed=recipe.seed)
    schedule = Schedule(steps=recipe.match_steps, muon_lr=2e-3, adamw_lr=6e-4, decay=0.4, save_every=100)
    material = word_material(recipe, recipe.retriever_decks)
    _train_on(recipe, model, processor, material, "match", schedule, centred=False)


def retrieve(recipe: Recipe) -> None:
    processor = build_retriever_processor(build_processor(tokenizer()))
    model = build_retriever(fresh_model(recipe), seed=recipe.seed)
    model.load_state_dict(earlier_state(recipe.runs / "match")["model"])
    schedule = Schedule(steps=recipe.retrieve_steps, muon_lr=2e-3, adamw_lr=6e-4, decay=0.4, save_every=100)
    _train_on(recipe, model, processor, page_material(recipe, recipe.retriever_decks), "retrieve", schedule)
    _save(recipe, model, processor, "nano-retriever")


def weigh(recipe: Recipe) -> None:
    """Learn what the tokens of a query are worth to the retriever, from questions of the train split.

    Of several processes the first one does.
    """
    if replicas.rank():
        return
    folder = recipe.models / recipe.retriever
    asked = [question for group in split_questions(recipe, "train").values() for question in group]
    learn_weights(NanoColQwen25(str(folder)), recipe.corpus, asked, seed=recipe.seed).save(folder)


def write_query_bank(recipe: Recipe, path: Path, count: int = 100) -> None:
    """Sample queries by which the hubness of a page is told: train-split questions, of every deck about as many."""
    rng = random.Random(recipe.seed)
    with_pages = [[q.query for q in asked if q.gold_page_ids] for asked in split_questions(recipe, "train").values()]
    shuffled = [rng.sample(queries, len(queries)) for queries in with_pages]
    in_turn = [query for queries in zip_longest(*shuffled) for query in queries if query]
    path.write_text("".join(f"{query}\n" for query in in_turn[:count]), encoding="utf-8")


def _train_on(
    recipe: Recipe,
    model: ColQwen2_5,
    processor: ColQwen2_5_Processor,
    material: tuple[list[DrawnPage], list[QueryGroup]],
    stage: str,
    schedule: Schedule,
    centred: bool = True,
) -> None:
    """Teach the language half."""
    drawn, groups = material
    pages = see_pages(model, processor, drawn)
    drawn.clear()
    source = QuerySource(pages, groups)
    train_retriever(model, processor, source, recipe.runs / stage, schedule, seed=recipe.seed, centred=centred)


def find(recipe: Recipe) -> None:
    """All of the retriever learns on: the tower too, on decks and prose drawn for every step.

    What it makes lies beside the shipped retriever until it is better, as NEXT.
    """
    model, processor = latest_retriever(recipe)
    pool = DeckPool(partial(mixed_deck, recipe, drawn=0.8), size=max(16, 4 * recipe.times), draws_per_deck=4)
    source = PageSource(pool, decks=2 * recipe.times, pages=5)
    schedule = Schedule(recipe.find_seconds, muon_lr=1.2e-3 * recipe.rate, adamw_lr=4e-4 * recipe.rate, decay=0.6)
    workers = recipe.workers if recipe.workers > 1 else 0
    train_finding(model, processor, source, recipe.runs / "find", schedule, seed=recipe.seed, workers=workers)
    _save(recipe, model, processor, NEXT)


def sharpen(recipe: Recipe) -> None:
    """Nothing but reading: the retriever's tower is asked for cells of windows, held to what it says of them before.

    It begins as the agent's tower, which reads better, in the first round. What it makes lies beside the shipped
    retriever until it is better, as NEXT, with its query bank.
    """
    model, processor = latest_retriever(recipe)
    mark = recipe.models / NEXT / SHARPENED  # `find` makes a NEXT as well
    first_round = not mark.is_file()
    train_held(
        model.visual,
        tower_windows(recipe),
        recipe.runs / "sharpen",
        reading_on(recipe.sharpen_seconds),
        recipe.seed,
        reader=latest_agent(recipe).model.visual if first_round else None,
        head=letters_head(recipe),
    )
    _save(recipe, model, processor, NEXT)
    if replicas.rank() == 0:
        mark.touch()


def hone(recipe: Recipe) -> None:
    """The retriever learns to use what its tower sees since `sharpen`: its language half, on pages seen once."""
    model, processor = latest_retriever(recipe)
    gently = Schedule(recipe.hone_seconds, muon_lr=1e-3, adamw_lr=3e-4, decay=0.8, save_every=100)
    _train_on(recipe, model, processor, page_and_prose_material(recipe, 20_000), "hone", gently)
    _save(recipe, model, processor, NEXT)


def latest_retriever(recipe: Recipe) -> tuple[ColQwen2_5, ColQwen2_5_Processor]:
    folder = recipe.latest("nano-retriever")
    return ColQwen2_5.from_pretrained(folder, dtype=torch.float32), ColQwen2_5_Processor.from_pretrained(folder)


def _save(recipe: Recipe, model: ColQwen2_5, processor: ColQwen2_5_Processor, name: str) -> None:
    """The retriever, with its query bank; of several processes the first one's."""
    if replicas.rank() == 0:
        save_checkpoint(model, processor, recipe.models / name)
        write_query_bank(recipe, recipe.models / name / QUERY_BANK)


def page_and_prose_material(recipe: Recipe, first: int) -> tuple[list[DrawnPage], list[QueryGroup]]:
    """`page_material`, and as many documents of four pages of prose, which are asked for by words of theirs."""
    drawn, groups = page_material(recipe, recipe.retriever_decks, first)
    for document in tqdm(_own_share(recipe.retriever_decks), desc="drawing prose"):
        rng = random.Random(f"{recipe.seed}/prose/{first + document}")
        numbers = [len(drawn) + number for number in range(4)]
        drawn += drawn_document(rng, len(numbers), PAGE_BUDGET)
        groups.append(QueryGroup(numbers, [("", number) for number in numbers]))
    return drawn, groups


def twin(recipe: Recipe) -> None:
    """The retriever's single-vector twin, on whole pages and their questions and on prose."""
    folder = recipe.models / "nano-retriever"
    model = build_twin(ColQwen2_5.from_pretrained(folder, dtype=torch.float32))
    processor = BiQwen2_5_Processor.from_pretrained(folder)
    drawn, groups = page_and_prose_material(recipe, 30_000)
    freeze(model)
    pages_given = given_pages(model, processor, drawn)
    drawn.clear()
    source = QuerySource(pages_given, groups, queries=32, decks=8)
    schedule = Schedule(recipe.twin_seconds, muon_lr=2e-3, adamw_lr=6e-4, decay=0.4, save_every=100)
    train_twin(model, processor, source, recipe.runs / "twin", schedule, seed=recipe.seed)
    if replicas.rank() == 0:
        save_checkpoint(model, processor, recipe.models / "nano-retriever-single")
