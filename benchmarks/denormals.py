"""What taking denormal numbers for zero saves: a step of the nano agent, a batch read by it, pages embedded.

    python benchmarks/denormals.py [--repeat 7] [--threads 1] [--out results/benchmarks]

The same eight single turns of the expert on train decks, with and without, in turn: forward and backward pass as in
stage `act` with its tower learning, and the forward pass alone; and eight train pages as the retriever sees them.
Medians of seconds, least and most.

Needs the prepared corpus (`make run`). Other work on the machine makes it meaningless.
"""

from __future__ import annotations

import argparse
import random
import time
from functools import partial
from pathlib import Path
from statistics import median

import torch
from tables import tell
from transformers import Qwen2_5_VLForConditionalGeneration

from vrag_nb.agent.pages import PageStore
from vrag_nb.attention import linear_patch_embedding, use_block_attention, use_window_attention
from vrag_nb.nano.deck_tasks import DeckPool
from vrag_nb.nano.expert import ExpertTurns
from vrag_nb.nano.model import build_processor
from vrag_nb.nano.plan import Recipe, corpus_deck, tokenizer
from vrag_nb.nano.samples import collate
from vrag_nb.records import read_pages, read_questions
from vrag_nb.retrieval.nano_embedders import NanoColQwen25, shown
from vrag_nb.retrieval.token_budget import square_side
from vrag_nb.retrieval.written_squares import embed_written, written_squares

CORPUS = Recipe.corpus


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=Path("data/models/nano-agent"))
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, help="folder for denormals.md")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(options.model, dtype=torch.float32)
    linear_patch_embedding(model.model.visual)
    use_window_attention(model.model.visual)
    use_block_attention(model.model.language_model)
    draw, rng = ExpertTurns(DeckPool(partial(corpus_deck, Recipe()), size=2)), random.Random(0)
    batch = collate([draw(rng, 1.0) for _ in range(8)], build_processor(tokenizer()))

    def step() -> None:
        model(**batch, use_cache=False).loss.backward()
        model.zero_grad()

    @torch.inference_mode()
    def read() -> None:
        model(**batch, use_cache=False)

    retriever = NanoColQwen25()
    side = square_side(retriever.processor.image_processor)
    store = PageStore(CORPUS)
    train = {question.document for question in read_questions(CORPUS / "questions.train.parquet")}
    names = [page.page_id for page in read_pages(CORPUS) if page.document in train][:8]
    pages = [shown(retriever.processor, store.image(name)) for name in names]

    def embed() -> None:
        for page in pages:
            embed_written(retriever.model, retriever.processor, [page], [written_squares(page, side)])

    tasks = {"training step": step, "forward pass": read, "pages embedded": embed}
    seconds: dict[tuple[str, bool], list[float]] = {}
    for _ in range(options.repeat + 1):
        for name, work in tasks.items():
            for zeroed in (False, True):
                torch.set_flush_denormal(zeroed)
                started = time.perf_counter()
                work()
                seconds.setdefault((name, zeroed), []).append(time.perf_counter() - started)
    rows = []
    for name in tasks:
        kept, flushed = (seconds[name, way][1:] for way in (False, True))  # without the first, a warm-up
        told = [f"{median(one):.2f} ({min(one):.2f} to {max(one):.2f})" for one in (kept, flushed)]
        rows.append([name, *told, f"{median(kept) / median(flushed):.2f}"])
    head = ["", "as they are, s", "taken for zero, s", "times as fast"]
    tell(f"Denormal numbers, {options.threads} threads", head, rows, out=options.out)


if __name__ == "__main__":
    main()
