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
    weigh      what the tokens of a query are worth to the retriever                   -> models/nano-retriever
    twin       BiQwen2.5, one vector a page, from the retriever                        -> models/nano-retriever-single

`see`, `settle` and `find` teach on what is shipped; within the budgets here they made it no better, or hardly
(`data/models/README.md`), so these three are run when they are named only.

Budgets are wall-clock seconds on two idle cores. Every stage resumes where a kill left it and is skipped once its
budget is spent; all of them see train-split tables and layouts only. `data/models/README.md` says what the shipped
weights were given.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen2_5_VLForConditionalGeneration

from vrag_nb.documents.decks.generate import pretraining_deck
from vrag_nb.nano import replicas
from vrag_nb.nano.aligning import Stream, train_streams
from vrag_nb.nano.deck_tasks import DeckPool, DeckTasks
from vrag_nb.nano.expert import ExpertSamples, ExpertTurns
from vrag_nb.nano.grafting import graft
from vrag_nb.nano.looking import WEIGHTS
from vrag_nb.nano.lookups import drawn_table, reading_strip
from vrag_nb.nano.model import build_processor, save_checkpoint
from vrag_nb.nano.plan import Recipe, fresh_model, load_earlier, mixed_deck, tokenizer
from vrag_nb.nano.reading import Drawing, draw_scribble, train_reading
from vrag_nb.nano.retriever_stages import find, match, retrieve, twin, weigh
from vrag_nb.nano.sheets import SheetPool, as_jpeg
from vrag_nb.nano.wording import copied_words, searches


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
    load_earlier(model, recipe.runs / "read_pages")
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
    load_earlier(model, recipe.runs / "read")
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
    load_earlier(model, recipe.runs / "spell")
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
    _train_agent(recipe, model, playing(recipe), recipe.runs / "act", recipe.act_seconds, frozen_vision=False)


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
    """The shipped agent on the tower of `see`, grafted: the same lessons as `act`, on what the tower says now.

    The tower's blocks stay as they are. The looking heads begin anew and weigh little: what they say at first is noise.
    """
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(recipe.models / "nano-agent", dtype=torch.float32)
    tower = model.model.visual
    earlier = deepcopy(tower)
    load_earlier(model, recipe.runs / "see")
    pool = DeckPool(partial(mixed_deck, recipe), size=8, draws_per_deck=300)
    met = graft(tower, earlier, viewed(Views(DeckTasks(pool), SheetPool(), page_every=2), recipe.seed))
    print(f"of what the tower said before, {met:.0%} is what it says now", flush=True)
    quietly = {name: 0.3 * weight for name, weight in WEIGHTS.items()}
    streams, folder = playing(recipe, 0.14, 0.29), recipe.runs / "settle"
    _train_agent(recipe, model, streams, folder, recipe.settle_seconds, workers=0, looking_weights=quietly)


def viewed(views: Views, seed: int, batches: int = 30) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Pixels and grids of 16 windows a batch, for `graft`: some forty thousand squares in all."""
    rng, processor = random.Random(seed), build_processor(tokenizer()).image_processor
    for _ in range(batches):
        images = [views(rng, 1.0)[0] for _ in range(16)]
        inputs = processor(images=images, do_resize=False, return_tensors="pt")
        yield inputs["pixel_values"], inputs["image_grid_thw"]


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
    "twin": twin,
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
