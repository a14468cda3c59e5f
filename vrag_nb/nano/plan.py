"""What every stage of the nano recipe shares: budgets and places, what earlier stages left, the decks to draw from."""

from __future__ import annotations

import random
from dataclasses import dataclass, fields
from functools import cache, partial
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase, Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLProcessor

from vrag_nb.documents.decks.generate import pretraining_deck
from vrag_nb.nano import replicas
from vrag_nb.nano.model import build_nano_vlm
from vrag_nb.nano.optimisation import Schedule, load_state, training_device
from vrag_nb.nano.seeing import WindowLessons
from vrag_nb.nano.tokenizer import build_tokenizer
from vrag_nb.nano.windows import WindowFiles, draw_windows
from vrag_nb.records import Question, read_questions

FEWEST = 8  # decks and files of windows that even the smallest recipe draws


@dataclass(frozen=True)
class Recipe:
    """Budgets, places, and how much is drawn: decks for the retriever, files of windows for `letters` and `see`.

    Stages of `make nano-cpu` have a budget of steps, so that a seed teaches the same on a slower machine; the others of
    wall-clock seconds.

    retriever: the name of the one that `weigh` is about. workers: processes that draw for a stage. times, rate: batches
    and learning rates of `reckon`, `perceive`, `settle`, `unite` and `find` are so many times as large. hold: `settle`
    leaves the tower as it is.
    """

    runs: Path = Path("data/runs/nano")
    models: Path = Path("data/models")
    corpus: Path = Path("data/corpora/decks")
    seed: int = 0
    threads: int = 2
    workers: int = 1
    times: int = 1
    rate: float = 1.0
    hold: bool = False
    letters_steps: int = 3320
    spell_steps: int = 460
    match_steps: int = 340
    retrieve_steps: int = 340
    align_steps: int = 860
    act_steps: int = 110
    settle_steps: int = 110
    reckon_seconds: float = 540
    unite_seconds: float = 5400
    see_seconds: float = 1800
    perceive_seconds: float = 2400
    find_seconds: float = 5400
    sharpen_seconds: float = 1800
    hone_seconds: float = 2400
    twin_seconds: float = 1500
    retriever_decks: int = 150
    retriever: str = "nano-retriever"
    window_files: int = 168

    @classmethod
    def scaled(cls, scale: float, **changes: Any) -> Recipe:
        """The recipe with every budget multiplied by `scale`, and other fields changed; of a smaller one less is drawn
        as well, or its stages would wait for what they have no time to look at."""
        budgets: dict[str, Any] = {}
        for name in (field.name for field in fields(cls)):
            if name.endswith("_seconds"):
                budgets[name] = getattr(cls, name) * scale
            elif name.endswith("_steps"):
                budgets[name] = max(1, round(getattr(cls, name) * scale))
        for name in ("retriever_decks", "window_files"):
            budgets[name] = max(FEWEST, round(getattr(cls, name) * min(1.0, scale)))
        return cls(**{**budgets, **changes})

    def budget(self, stage: str) -> dict[str, Any]:
        """How long a stage trains, as a `Schedule` takes it: its steps or its seconds."""
        units = [unit for unit in ("steps", "seconds") if hasattr(self, f"{stage}_{unit}")]
        return {unit: getattr(self, f"{stage}_{unit}") for unit in units}

    def latest(self, name: str) -> Path:
        """Where a model is that is taught on: what such a stage has made of it, `name`-next, else what is shipped."""
        begun = self.models / f"{name}-next"
        return begun if (begun / "config.json").is_file() else self.models / name


def tokenizer() -> PreTrainedTokenizerBase:
    """The nano tokenizer; its text is the manual that comes with Python, the same on every machine with that Python."""
    return build_tokenizer(topics.values())


def fresh_model(recipe: Recipe) -> Qwen2_5_VLForConditionalGeneration:
    return build_nano_vlm(tokenizer(), seed=recipe.seed)


def earlier_state(folder: Path) -> dict[str, Any]:
    """What an earlier stage saved. Raises FileNotFoundError where it has not run."""
    state = load_state(folder / "state.pt")
    if state is None:
        raise FileNotFoundError(f"{folder} holds no state.pt: run the stage that makes it first")
    return state


def load_earlier(model: Qwen2_5_VLForConditionalGeneration, folder: Path) -> None:
    """Put the weights of an earlier stage, the whole model or the vision tower alone, into `model`."""
    state = earlier_state(folder)
    if "model" in state:
        model.load_state_dict(state["model"])
    else:
        model.model.visual.load_state_dict(state["visual"])


@cache
def split_questions(recipe: Recipe, split: str) -> dict[str, list[Question]]:
    """The questions of a split of the default corpus that name what they need, by document."""
    by_document: dict[str, list[Question]] = {}
    for question in read_questions(recipe.corpus / f"questions.{split}.parquet"):
        if split == "train" or question.needed_facts:
            by_document.setdefault(question.document, []).append(question)
    return by_document


def corpus_deck(recipe: Recipe, seed: int, split: str = "train") -> tuple[bytes, list[Question]]:
    """A random deck of a split of the default corpus: its PDF and its questions."""
    by_document = split_questions(recipe, split)
    document = random.Random(seed).choice(sorted(by_document))
    return (recipe.corpus / "documents" / f"{document}.pdf").read_bytes(), by_document[document]


def mixed_deck(recipe: Recipe, seed: int, drawn: float = 0.5) -> tuple[bytes, list[Question]]:
    """A deck drawn for the occasion, mostly of invented tables, with probability `drawn`; else one of the corpus."""
    drawn_now = random.Random(f"{seed}/kind").random() < drawn
    return pretraining_deck(seed, questions=(60, 90)) if drawn_now else corpus_deck(recipe, seed)


def latest_agent(recipe: Recipe) -> Qwen2_5_VLForConditionalGeneration:
    return Qwen2_5_VLForConditionalGeneration.from_pretrained(recipe.latest("nano-agent"), dtype=torch.float32)


def processor_of(model: Qwen2_5_VLForConditionalGeneration) -> Qwen2_5_VLProcessor:
    """What lies beside the weights of a loaded model: a tokenizer built anew may differ, as Pythons do."""
    return Qwen2_5_VLProcessor.from_pretrained(str(model.name_or_path))


def letters_head(recipe: Recipe, stage: str = "see") -> dict[str, Any] | None:
    """What a stage has taught to tell letters off a tower's tokens, where it has run: weights of a `CellHead`."""
    taught = load_state(recipe.runs / stage / "state.pt")
    return taught["head"] if taught else None


def lessons_before(recipe: Recipe, stage: str) -> dict[str, Any] | None:
    """The state in which a stage of `aligning.train_streams` ended, where it has run."""
    return load_state(recipe.runs / stage / "state.pt")


def tower_windows(recipe: Recipe) -> WindowFiles:
    """What a tower is taught to read with, 16,000 windows, drawn where there are none: two minutes, 2.4 gigabytes."""
    draw = partial(
        draw_windows, recipe.runs / "windows", partial(mixed_deck, recipe), recipe.window_files, seed=recipe.seed
    )
    if replicas.rank() == 0:
        draw(processes=max(recipe.threads * replicas.count(), recipe.workers))
    replicas.wait()
    return draw()


def window_lessons(recipe: Recipe, visual: Any, folder: Path, handed_on: bool = True) -> WindowLessons:
    """Windows to read for a tower that is taught on, and a head that knows what there is to know of its letters.

    folder: of the run; where it goes on, its state has the head. handed_on: take up the head that an earlier stage of
    the recipe has taught.
    """
    device, windows = training_device(), tower_windows(recipe)
    on_cpu, batch = device.type == "cpu", 16 * recipe.times
    lessons = WindowLessons(visual, windows, batch, seed=recipe.seed, compiled=on_cpu, resident=not on_cpu).to(device)
    known = letters_head(recipe) if handed_on else None
    if head := known or (letters_head(recipe, "letters") if handed_on else None):
        lessons.head.load_state_dict(head)
    if not known and not (folder / "state.pt").is_file():
        lessons.acquaint()  # of `letters` the tower has learned on since
    return lessons


def reading_on(seconds: float) -> Schedule:
    """Of a tower that reads already and learns by itself: steps are short, and there is something to lose."""
    return Schedule(seconds, muon_lr=3e-3, adamw_lr=1e-3, decay=0.7, log_every=20, save_every=200)
