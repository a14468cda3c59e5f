"""The nano retriever: colpali-engine's ColQwen2.5 on the nano backbone, trained by its late-interaction InfoNCE loss.

A page and a query become token vectors of 128 dimensions; the score is MaxSim, the sum over query tokens of the best
page token (Khattab and Zaharia 2020; ColPali, arXiv 2407.01449). A batch holds several pages of a few decks, so that
the negatives that matter, the same deck's other pages, are in it. The vision tower is frozen and its output for each
page is computed once and kept: after that a step costs the language model alone.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from colpali_engine.loss import ColbertLoss
from colpali_engine.models import ColQwen2_5, ColQwen2_5_Processor
from PIL import Image
from tqdm.auto import tqdm
from transformers import Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLProcessor
from transformers.modeling_outputs import BaseModelOutputWithPooling

from vrag_nb.nano.optimisation import Optimisers, RunLog, load_state, save_state, to_bfloat16


@dataclass
class SeenPage:
    """What the frozen vision tower made of a page: merged tokens (n, width) in bfloat16 and the patch grid (t, h, w)."""

    tokens: torch.Tensor
    grid: torch.Tensor


@dataclass
class QueryGroup:
    """A deck for training: its pages' indices in the page list, and queries as (text, page index)."""

    pages: list[int]
    queries: list[tuple[str, int]]


def build_retriever(backbone: Qwen2_5_VLForConditionalGeneration, seed: int = 0) -> ColQwen2_5:
    """A ColQwen2.5 whose towers are the nano VLM's; only the projection to 128 dimensions is new."""
    torch.manual_seed(seed)
    model = ColQwen2_5(backbone.config)
    model.load_state_dict(backbone.model.state_dict(), strict=False)
    return model


def build_retriever_processor(processor: Qwen2_5_VLProcessor) -> ColQwen2_5_Processor:
    return ColQwen2_5_Processor(
        image_processor=processor.image_processor,
        tokenizer=processor.tokenizer,
        video_processor=processor.video_processor,
        chat_template=processor.chat_template,
    )


@torch.inference_mode()
def see_pages(
    model: ColQwen2_5, processor: ColQwen2_5_Processor, images: Sequence[Image.Image], batch_size: int = 8
) -> list[SeenPage]:
    """Run the vision tower once over page images (any size; the processor resizes)."""
    seen: list[SeenPage] = []
    for start in tqdm(range(0, len(images), batch_size), desc="seeing pages", unit="batch"):
        batch = processor.image_processor(images=list(images[start : start + batch_size]), return_tensors="pt")
        with torch.autocast("cpu", torch.bfloat16):
            tokens = model.visual(batch["pixel_values"], grid_thw=batch["image_grid_thw"]).pooler_output
        sizes = (batch["image_grid_thw"].prod(-1) // 4).tolist()
        for part, grid in zip(tokens.bfloat16().split(sizes), batch["image_grid_thw"], strict=True):
            seen.append(SeenPage(part.clone(), grid.clone()))
    return seen


def embed_seen_pages(model: ColQwen2_5, processor: ColQwen2_5_Processor, pages: Sequence[SeenPage]) -> torch.Tensor:
    """(pages, length, 128) with zeros at padding: the language half of a page embedding."""
    tokenizer = processor.tokenizer
    head, tail = processor.visual_prompt_prefix.split(processor.image_token)
    head_ids, tail_ids = tokenizer.encode(head), tokenizer.encode(tail)
    pad = tokenizer.convert_tokens_to_ids(processor.image_token)
    rows = [[*head_ids, *[pad] * len(page.tokens), *tail_ids] for page in pages]
    length = max(len(row) for row in rows)
    ids = torch.full((len(rows), length), tokenizer.pad_token_id)
    mask = torch.zeros((len(rows), length), dtype=torch.long)
    for number, row in enumerate(rows):  # left padding, as the processor pads
        ids[number, length - len(row) :] = torch.tensor(row)
        mask[number, length - len(row) :] = 1
    seen = BaseModelOutputWithPooling(pooler_output=tuple(page.tokens for page in pages))
    return model(
        input_ids=ids,
        attention_mask=mask,
        mm_token_type_ids=(ids == pad).int(),
        image_grid_thw=torch.stack([page.grid for page in pages]),
        mm_encoder_outputs={"image": seen},
    )


def embed_query_texts(model: ColQwen2_5, processor: ColQwen2_5_Processor, queries: Sequence[str]) -> torch.Tensor:
    """(queries, length, 128) with zeros at padding."""
    batch = processor.process_queries(texts=list(queries))
    return model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])


def draw_batch(rng: random.Random, groups: Sequence[QueryGroup], size: int, decks: int) -> tuple[list[str], list[int]]:
    """`size` queries with distinct gold pages, from about `decks` decks."""
    queries: list[str] = []
    pages: list[int] = []
    while len(pages) < size:
        group = rng.choice(groups)
        options = rng.sample(group.queries, len(group.queries))
        for text, page in options:
            if len(pages) < size and page not in pages and pages.count(page) == 0:
                queries.append(text)
                pages.append(page)
            if sum(p in group.pages for p in pages) >= -(-size // decks):
                break
    return queries, pages


def train_retriever(
    model: ColQwen2_5,
    processor: ColQwen2_5_Processor,
    pages: Sequence[SeenPage],
    groups: Sequence[QueryGroup],
    folder: Path,
    seconds: float,
    batch_size: int = 24,
    decks_per_batch: int = 4,
    seed: int = 0,
    muon_lr: float = 2e-3,
    adamw_lr: float = 5e-4,
) -> None:
    """Train the language half in place for a wall-clock budget; resumable. Logs in-batch accuracy."""
    rng = random.Random(seed)
    model.visual.requires_grad_(False)
    to_bfloat16(model)
    optimisers = Optimisers(model.named_parameters(), muon_lr, adamw_lr)
    loss_function = ColbertLoss(temperature=0.02, normalize_scores=True)
    step, spent, accuracy = 0, 0.0, 0.0
    if state := load_state(folder / "state.pt"):
        model.load_state_dict(state["model"])
        optimisers.load_state_dict(state["optimisers"])
        step, spent, accuracy = state["step"], state["spent"], state["accuracy"]
        rng.seed(f"{seed}/{step}")
    log = RunLog(folder / "log.jsonl", step)
    started = time.perf_counter() - spent
    model.train()
    while spent < seconds:
        queries, gold = draw_batch(rng, groups, batch_size, decks_per_batch)
        asked = embed_query_texts(model, processor, queries)
        shown = embed_seen_pages(model, processor, [pages[index] for index in gold])
        loss = loss_function(asked.float(), shown.float())
        loss.backward()
        optimisers.step(spent / seconds)
        with torch.no_grad():
            scores = torch.einsum("qnd,psd->qpns", asked.float(), shown.float()).amax(-1).sum(-1)
            correct = (scores.argmax(1) == torch.arange(batch_size)).float().mean().item()
        step, spent = step + 1, time.perf_counter() - started
        accuracy = 0.95 * accuracy + 0.05 * correct
        if step % 10 == 0:
            log.write(step=step, seconds=spent, loss=loss.item(), accuracy=accuracy)
        if step % 100 == 0 or spent >= seconds:
            save_state(
                folder / "state.pt",
                {
                    "model": model.state_dict(),
                    "optimisers": optimisers.state_dict(),
                    "step": step,
                    "spent": spent,
                    "accuracy": accuracy,
                },
            )
