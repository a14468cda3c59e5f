"""How exactly nano models write single turns on decks that no stage sees: crops, whole pages, boxes, wrong pages.

    python benchmarks/turns.py [--models DIR ...] [--split dev] [--turns 400] [--out DIR]

The expert's turns (`vrag_nb.nano.expert.ExpertTurns`) are drawn on the split's decks, the same ones for every model.
With the true letters so far given, a turn counts where every token is the likeliest; greedy decoding would have
written it then. Printed: the share of such turns of each kind with a 95% bootstrap interval over turns; and of whole
pages, how often the first word of the thought is: to read, to enlarge or to go on. What the loop around the turns does
(search, going on, forced answers) is not in it. The development split is for choosing.

Needs the prepared corpus (`make run`).
"""

from __future__ import annotations

import argparse
import random
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from tables import bracketed, tell
from tqdm import tqdm
from transformers import Qwen2_5_VLForConditionalGeneration

from vrag_nb.attention import linear_patch_embedding, use_block_attention, use_window_attention
from vrag_nb.evaluation.metrics import share_interval
from vrag_nb.nano.deck_tasks import DeckPool
from vrag_nb.nano.expert import ExpertTurns
from vrag_nb.nano.optimisation import to_training_form
from vrag_nb.nano.plan import Recipe, corpus_deck, processor_of
from vrag_nb.nano.samples import Sample, collate, decisions, exact_match

KINDS = ("crop", "page", "enlarge", "wrong")
PAGES = KINDS[1:]


def drawn_turns(split: str, count: int, seed: int = 0) -> list[Sample]:
    """The same turns for every model, short ones first."""
    pool = DeckPool(partial(corpus_deck, Recipe(), split=split), size=40, draws_per_deck=10)
    draw, rng = ExpertTurns(pool), random.Random(seed)
    turns = [draw(rng, 1.0) for _ in tqdm(range(count), desc="drawing", unit="turn")]
    return sorted(turns, key=lambda turn: sum(image.width * image.height for image in turn.images))


Told = dict[str, list[float]]


@torch.inference_mode()
def asked(folder: Path, turns: Sequence[Sample], batch_size: int = 8) -> tuple[Told, Told]:
    """Per kind, 1.0 for each turn that the model would have written to the letter, else 0.0; and so of decisions."""
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    processor = processor_of(model)
    linear_patch_embedding(model.model.visual)
    use_window_attention(model.model.visual)
    use_block_attention(model.model.language_model)
    to_training_form(model)
    found: Told = defaultdict(list)
    decided: Told = defaultdict(list)
    for start in tqdm(range(0, len(turns), batch_size), desc=folder.name, unit="batch"):
        taken = turns[start : start + batch_size]
        batch = collate(taken, processor)
        logits = model(**batch, use_cache=False).logits
        _, rows, right = decisions(logits, batch["labels"], processor.tokenizer)
        for told, where, values in (
            (found, *exact_match(logits, batch["labels"])),
            (decided, rows, right),
        ):
            for row, value in zip(where.tolist(), values.tolist(), strict=True):
                told[taken[row].kind].append(float(value))
    return found, decided


def written(values: Sequence[float]) -> str:
    return bracketed(share_interval(values))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, nargs="+", default=[Path("data/models/nano-agent")])
    parser.add_argument("--split", choices=("train", "dev", "test"), default="dev")
    parser.add_argument("--turns", type=int, default=400)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="folder for turns.md")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    turns = drawn_turns(options.split, options.turns)
    counts = {kind: sum(turn.kind == kind for turn in turns) for kind in KINDS}
    rows = []
    for folder in options.models:
        found, decided = asked(folder, turns)
        shares = [found[kind] for kind in KINDS] + [[value for kind in KINDS for value in found[kind]]]
        shares += [decided[kind] for kind in PAGES]
        rows.append([folder.name, *map(written, shares)])
    head = ["model", *(f"{kind} ({counts[kind]})" for kind in KINDS), "all"]
    head += [f"{kind} decided" for kind in PAGES]
    tell(f"Single turns exact to the letter, {options.split} decks", head, rows, out=options.out)


if __name__ == "__main__":
    main()
