"""The recipe of the nano models, stage by stage; notebook 00 tells it, `python -m vrag_nb.nano.recipe` runs it.

    letters    vision tower, from nothing: which letter covers each cell of a window   -> runs/nano/letters
    spell      language side, frozen vision: strips to write out, words, small tables  -> runs/nano/spell
    align      language side: copying, searching, look-up and pointing on pages        -> models/nano-base
    match      ColQwen2.5 on half of that: words of small images, late-interaction     -> runs/nano/match
    retrieve   the same on whole pages and their questions                             -> models/nano-retriever
    act        SFT on trajectories of the privileged expert in the real environment    -> models/nano-agent
    reckon     the agent's language model learns to compare, in words; by name         -> models/nano-agent-next
    see        the agent's vision tower learns on, cells of windows; by name           -> models/nano-agent-next
    settle     its language model learns to use what it sees; by name                  -> models/nano-agent-next
    unite      the lessons of `settle` and VimRAG's, one model for both; by name       -> models/nano-agent-next
    perceive   the agent without its protocol: reading, looking up, pointing; by name  -> models/nano-base-next
    find       all of the retriever learns on, on pages drawn for every step; by name  -> models/nano-retriever-next
    sharpen    what `see` is, for the retriever, from the agent's tower; by name       -> models/nano-retriever-next
    hone       its language half learns to use what it sees; by name                   -> models/nano-retriever-next
    weigh      what the tokens of a query are worth to the retriever                   -> models/nano-retriever
    twin       BiQwen2.5, one vector a page, from the retriever                        -> models/nano-retriever-single

`reckon`, `see`, `settle`, `unite`, `perceive`, `find`, `sharpen` and `hone` teach on what is shipped and are run when
they are named only; what each brought is in `docs/nano_models.md`. `torchrun --nproc-per-node 2 -m
vrag_nb.nano.recipe --threads 1 see settle` gives each of two processes a core. `perceive`, `settle`, `reckon`, `unite`
and `find` are made for a GPU as well, where one is found: `python -m vrag_nb.nano.recipe --workers 14 --times 4 settle`
draws on fourteen cores, in batches four times as large.

`--out FOLDER` keeps all of it away from what is shipped; `make nano-cpu` so makes an agent and a retriever from
nothing.

Budgets are steps for the stages of `make nano-cpu`, so that a seed teaches the same on a slower machine, and wall-clock
seconds on two idle cores for the others. Every stage resumes where a kill left it and teaches no more once its budget
is spent; all of them see train-split tables and layouts only. `data/models/README.md` says what the shipped
weights were given.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLProcessor

from vrag_nb.denormals import flushed_denormals
from vrag_nb.documents.decks.generate import pretraining_deck, pretraining_panels
from vrag_nb.nano import replicas
from vrag_nb.nano.aligning import Stream, Teaching, train_streams
from vrag_nb.nano.box_turns import BoxTurns
from vrag_nb.nano.deck_tasks import DeckPool, DeckTasks
from vrag_nb.nano.expert import ExpertSamples, ExpertTurns
from vrag_nb.nano.looking import QUIETLY
from vrag_nb.nano.lookups import drawn_table, loose_lines, reading_strip, sought_table
from vrag_nb.nano.memory_lessons import memory_streams
from vrag_nb.nano.model import build_processor, save_checkpoint
from vrag_nb.nano.optimisation import Schedule, training_device
from vrag_nb.nano.panel_turns import PanelTurns
from vrag_nb.nano.plan import (
    Recipe,
    fresh_model,
    latest_agent,
    lessons_before,
    load_earlier,
    mixed_deck,
    processor_of,
    reading_on,
    tokenizer,
    tower_windows,
    window_lessons,
)
from vrag_nb.nano.retriever_stages import find, hone, match, retrieve, sharpen, twin, weigh
from vrag_nb.nano.seeing import train_from_nothing, train_held
from vrag_nb.nano.several_facts import FactTurns, Plans, reason
from vrag_nb.nano.wording import copied_words, searches

NEXT = "nano-agent-next"  # what stages `reckon`, `see` and `settle` make


def letters(recipe: Recipe) -> None:
    """The vision tower from nothing: it is asked for the cells of windows, compiled and on windows drawn beforehand."""
    model = fresh_model(recipe)
    schedule = Schedule(
        steps=recipe.letters_steps, muon_lr=6e-3, adamw_lr=2e-3, decay=0.6, log_every=20, save_every=200
    )
    train_from_nothing(model.model.visual, tower_windows(recipe), recipe.runs / "letters", schedule, recipe.seed)


def spell(recipe: Recipe) -> None:
    model = fresh_model(recipe)
    load_earlier(model, recipe.runs / "letters")
    streams = [
        Stream("read", reading_strip, 32),
        Stream("copy", copied_words, 32, buckets=4),
        Stream("table", drawn_table, 40),
    ]
    processor, folder = build_processor(tokenizer()), recipe.runs / "spell"
    schedule = Schedule(steps=recipe.spell_steps, muon_lr=4e-3, adamw_lr=1.5e-3, decay=0.15)
    train_streams(model, processor, shared_out(streams), folder, schedule, Teaching(), seed=recipe.seed)


def lessons(pool: DeckPool) -> list[Stream]:
    """What the language side is taught before it acts: to copy, to search, to read, to look up, to point.

    Strips and lines come in ever more fonts and sizes as they are read: of decks alone, where an answer is a few
    letters somewhere on a crop, reading is not learned.
    """
    return [
        Stream("copy", copied_words, 6, buckets=4),
        Stream("search", searches(pool), 6, buckets=4),
        Stream("read", reading_strip, 24, promote_at=0.4, difficulty_step=0.02),
        Stream("lines", loose_lines, 16, buckets=4, promote_at=0.4, difficulty_step=0.02),
        Stream("table", drawn_table, 32, promote_at=0.5, difficulty_step=0.02),
        Stream("deck", DeckTasks(pool).lookups, 12, buckets=4),
        Stream("match", DeckTasks(pool).matches, 6, buckets=4),
    ]


def align(recipe: Recipe) -> None:
    model = fresh_model(recipe)
    processor = build_processor(tokenizer())
    load_earlier(model, recipe.runs / "spell")
    pool = DeckPool(partial(pretraining_deck, questions=(90, 140)), size=14, draws_per_deck=20)
    streams, folder = shared_out(lessons(pool)), recipe.runs / "align"
    schedule = Schedule(steps=recipe.align_steps, muon_lr=3e-3, adamw_lr=1e-3, decay=0.3)
    teaching = Teaching(before=lessons_before(recipe, "spell"))
    train_streams(model, processor, streams, folder, schedule, teaching, seed=recipe.seed)
    _save(recipe, model, processor, "nano-base")


def playing(recipe: Recipe) -> list[Stream]:
    """What the agent is taught: the expert's trajectories and turns, and reading and searching beside them."""
    pool = DeckPool(partial(mixed_deck, recipe), size=14, draws_per_deck=20)
    return [
        Stream("act", ExpertSamples(pool, max_turns=5), 4, buckets=6),
        Stream("turn", ExpertTurns(pool), 28, buckets=4),
        Stream("read", reading_strip, 64, promote_at=0.5, difficulty_step=0.02),
        Stream("table", drawn_table, 24),
        Stream("search", searches(pool), 8, buckets=4),
    ]


def act(recipe: Recipe) -> None:
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(recipe.models / "nano-base", dtype=torch.float32)
    processor = processor_of(model)
    schedule = Schedule(steps=recipe.act_steps, muon_lr=2e-3, adamw_lr=6e-4, decay=0.5)
    teaching = Teaching(vision="all", before=lessons_before(recipe, "align"))
    streams, folder = shared_out(playing(recipe)), recipe.runs / "act"
    train_streams(model, processor, streams, folder, schedule, teaching, seed=recipe.seed)
    _save(recipe, model, processor, "nano-agent")


def shared_out(streams: Sequence[Stream]) -> list[Stream]:
    """Batches of one process, cut for several: together they take as much memory, and a step stays as large."""
    return [replace(one, batch_size=max(1, one.batch_size // replicas.count())) for one in streams]


def see(recipe: Recipe) -> None:
    """Nothing but reading: the agent's tower is asked for the cells of windows, held to what it says of them before.

    What it makes is the agent that `settle` teaches on, as NEXT; where there is one, it is taken up again.
    """
    model = latest_agent(recipe)
    processor, schedule = processor_of(model), reading_on(recipe.see_seconds)
    train_held(model.model.visual, tower_windows(recipe), recipe.runs / "see", schedule, recipe.seed)
    _save(recipe, model, processor, NEXT)


def settle(recipe: Recipe) -> None:
    """The agent learns to use what its tower sees since `see`: the lessons of `act`, with more reading in them.

    Its tower learns on as well, unless the recipe holds it. What it makes lies beside the shipped agent until it is
    better, as NEXT.
    """
    agent, streams = latest_agent(recipe), shared_out(settling(recipe))
    before = lessons_before(recipe, "act")
    teaching = Teaching(vision="nothing" if recipe.hold else "all", before=before, decision_weight=0.5)
    _teach_on(recipe, agent, streams, "settle", NEXT, decay=0.9, teaching=teaching)


def settling(recipe: Recipe) -> list[Stream]:
    """The lessons of `act` in smaller batches, more of them single turns, fewer of them on the decks of the corpus.

    A deck is drawn and rendered in a seventh of a second, so hardly a question comes twice.
    """
    pool = DeckPool(partial(mixed_deck, recipe, drawn=0.8), size=14, draws_per_deck=40)
    panels = DeckPool(pretraining_panels, size=20, draws_per_deck=20)
    return [
        Stream("act", ExpertSamples(pool, max_turns=5), 2, buckets=4),
        Stream("turn", ExpertTurns(pool), 12, buckets=4),
        Stream("several", FactTurns(pool), 12, buckets=4),
        Stream("reason", reason, 16, buckets=4, promote_at=0.5, difficulty_step=0.02),
        Stream("plan", Plans(pool), 4, buckets=4),
        Stream("box", BoxTurns(pool), 6, buckets=4),
        Stream("panel", PanelTurns(panels), 8, buckets=4),
        Stream("read", reading_strip, 4, promote_at=0.5, difficulty_step=0.02, difficulty=0.4),
        Stream("lines", loose_lines, 6, buckets=4, promote_at=0.5, difficulty_step=0.02, difficulty=0.4),
        Stream("table", drawn_table, 3, difficulty=0.6),
        Stream("sought", sought_table, 6, difficulty=0.6),
        Stream("search", searches(pool), 2, buckets=4),
    ]


def reckon(recipe: Recipe) -> None:
    """The agent learns to compare, in words alone, which cost no squares; `settle` then has it compare what it reads.

    Mixed with pages from the start it was not learned (docs/nano_models.md, "Two facts").
    What it makes lies beside the shipped agent until it is better, as NEXT.
    """
    streams = [Stream("reason", reason, 64, buckets=4, promote_at=0.6, difficulty_step=0.02)]
    agent, teaching = latest_agent(recipe), Teaching(vision="nothing")
    _teach_on(recipe, agent, streams, "reckon", NEXT, decay=0.7, teaching=teaching)


def unite(recipe: Recipe) -> None:
    """One model that speaks both protocols: the lessons of `settle` and steps of VimRAG's expert.

    Of what is written down, what was read is a few tokens: thoughts, which say it, weigh for themselves.
    """
    pool = DeckPool(partial(mixed_deck, recipe, drawn=0.8), size=14, draws_per_deck=60)
    streams = [*settling(recipe), *memory_streams(pool, (6, 3, 1))]
    agent, teaching = latest_agent(recipe), Teaching(vision="all", decision_weight=0.5, thought_weight=1.0)
    _teach_on(recipe, agent, streams, "unite", NEXT, decay=0.8, teaching=teaching)


def perceive(recipe: Recipe) -> None:
    """A base that reads: the agent is asked what a base is, until it no longer acts.

    What it makes lies beside the shipped base until it is better, as `nano-base-next`.
    """
    agent, streams, teaching = latest_agent(recipe), perceiving(recipe), Teaching(vision="all")
    _teach_on(recipe, agent, streams, "perceive", "nano-base-next", decay=0.6, teaching=teaching)


def perceiving(recipe: Recipe) -> list[Stream]:
    """`lessons` in smaller batches, with reading: nothing of the agent's protocol."""
    pool = DeckPool(partial(mixed_deck, recipe, drawn=0.8), size=14, draws_per_deck=40)
    return [
        Stream("copy", copied_words, 8, buckets=4),
        Stream("search", searches(pool), 8, buckets=4),
        Stream("deck", DeckTasks(pool).lookups, 14, buckets=4),
        Stream("point", DeckTasks(pool).points, 8, buckets=4),
        Stream("match", DeckTasks(pool).matches, 6, buckets=4),
        Stream("read", reading_strip, 12, promote_at=0.5, difficulty_step=0.02, difficulty=0.3),
        Stream("lines", loose_lines, 10, buckets=4, promote_at=0.5, difficulty_step=0.02, difficulty=0.3),
        Stream("table", drawn_table, 6, difficulty=0.6),
    ]


TOGETHER = {
    "deck": "page",
    "point": "page",
    "match": "page",
    "turn": "turn",
    "several": "turn",
    "plan": "turn",
    "box": "turn",
    "words": "act",
    "film": "act",
}  # streams that share a batch on a GPU; the short ones:
TOGETHER |= dict.fromkeys(("copy", "search", "reason", "panel", "read", "lines", "table", "sought"), "short")


def _teach_on(
    recipe: Recipe,
    model: Qwen2_5_VLForConditionalGeneration,
    streams: list[Stream],
    stage: str,
    name: str,
    decay: float,
    teaching: Teaching,
) -> None:
    """Teach a model on. A tower that learns is asked for the cells of windows in every step: left to what answers ask
    of it, it forgets letters. Looking heads weigh little: what they say at first is noise.
    """
    torch.manual_seed(recipe.seed)
    device = training_device()
    model.to(device)  # type: ignore[arg-type]
    teaching = replace(teaching, looking_weights=QUIETLY)
    if teaching.vision != "nothing":
        teaching = replace(teaching, windows=window_lessons(recipe, model.model.visual, recipe.runs / stage))
    if device.type != "cpu":
        streams = [replace(stream, group=TOGETHER.get(stream.name, "")) for stream in streams]
    streams = [replace(stream, batch_size=stream.batch_size * recipe.times) for stream in streams]
    rate = recipe.rate
    schedule = Schedule(**recipe.budget(stage), muon_lr=1e-3 * rate, adamw_lr=3e-4 * rate, decay=decay)
    processor, folder = processor_of(model), recipe.runs / stage
    train_streams(model, processor, streams, folder, schedule, teaching, seed=recipe.seed, workers=recipe.workers)
    _save(recipe, model, processor, name)


def _save(recipe: Recipe, model: Qwen2_5_VLForConditionalGeneration, processor: Qwen2_5_VLProcessor, name: str) -> None:
    """The model with its processor; of several processes the first one's."""
    if replicas.rank() == 0:
        save_checkpoint(model, processor, recipe.models / name)


STAGES: dict[str, Callable[[Recipe], None]] = {
    "letters": letters,
    "spell": spell,
    "align": align,
    "match": match,
    "retrieve": retrieve,
    "act": act,
    "reckon": reckon,
    "see": see,
    "settle": settle,
    "unite": unite,
    "perceive": perceive,
    "find": find,
    "sharpen": sharpen,
    "hone": hone,
    "weigh": weigh,
    "twin": twin,
}

BY_NAME = ("reckon", "see", "settle", "unite", "perceive", "find", "sharpen", "hone")  # run when they are named only
ENDED = "ended"  # a file in the folder of such a stage


def run_stages(recipe: Recipe, stages: Sequence[str]) -> None:
    """Run stages in order. Raises ValueError naming an unknown one, FileNotFoundError for a stage run too early.

    A stage of BY_NAME changes weights where they lie, and what comes after may have changed them again: once it has
    ended it does not touch them any more, whatever its budget. Its folder out of the way, it is a new round.
    """
    if unknown := sorted(set(stages) - set(STAGES)):
        raise ValueError(f"unknown stage {', '.join(unknown)}; there are {', '.join(STAGES)}")
    torch.set_num_threads(recipe.threads)
    replicas.join()
    for stage in stages:
        ended = recipe.runs / stage / ENDED
        if stage in BY_NAME and ended.is_file():
            _say(f"stage {stage} has ended; move {ended.parent} away for another round")
            continue
        _say(f"stage {stage}")
        with flushed_denormals():
            STAGES[stage](recipe)
        if stage in BY_NAME and replicas.rank() == 0:
            ended.touch()
        replicas.wait()  # the next stage begins with what the first process saves


def _say(words: str) -> None:
    """Of several processes the first one speaks."""
    if replicas.rank() == 0:
        print(words, flush=True)


def _same_scale(out: Path, scale: float) -> None:
    """Stages of a larger budget would go on from their own ends, and leave what was made of the smaller one's as it is.
    Raises ValueError where a folder was begun with another scale."""
    file = out / "scale.txt"
    if not file.is_file():
        out.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{scale}\n", encoding="utf-8")
    elif float(file.read_text(encoding="utf-8")) != scale:
        begun = file.read_text(encoding="utf-8").strip()
        raise ValueError(f"{out} was begun with --scale {begun}, not {scale}: name another --out, or move it away")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "stages", nargs="*", help=f"of {', '.join(STAGES)}, in order (default: all but {', '.join(BY_NAME)})"
    )
    parser.add_argument("--threads", type=int, default=Recipe.threads)
    parser.add_argument("--decks", type=int, help="so many are drawn for the retriever")
    parser.add_argument("--retriever", default=Recipe.retriever, help="whose query tokens `weigh` weighs")
    parser.add_argument("--seed", type=int, default=Recipe.seed, help="another one draws other pages")
    parser.add_argument("--scale", type=float, default=1.0, help="multiply every budget; below 1, draw less too")
    parser.add_argument("--workers", type=int, default=Recipe.workers, help="processes that draw")
    parser.add_argument("--times", type=int, default=Recipe.times, help="multiply batches")
    parser.add_argument("--rate", type=float, default=Recipe.rate, help="multiply learning rates")
    parser.add_argument("--hold", action="store_true", help="`settle` leaves the tower as it is")
    parser.add_argument("--out", type=Path, help="where stages and weights go, in place of data/runs and data/models")
    arguments = parser.parse_args()
    given: dict[str, Any] = {}
    if arguments.out:
        given |= {"runs": arguments.out / "stages", "models": arguments.out / "models"}
        _same_scale(arguments.out, arguments.scale)
    if arguments.decks:
        given |= {"retriever_decks": arguments.decks}
    run_stages(
        Recipe.scaled(
            arguments.scale,
            **given,
            seed=arguments.seed,
            threads=arguments.threads,
            workers=arguments.workers,
            times=arguments.times,
            rate=arguments.rate,
            hold=arguments.hold,
            retriever=arguments.retriever,
        ),
        arguments.stages or [stage for stage in STAGES if stage not in BY_NAME],
    )


if __name__ == "__main__":
    main()
