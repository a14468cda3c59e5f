"""The nano retriever: colpali-engine's ColQwen2.5 on the nano backbone, trained by its late-interaction InfoNCE loss.

A page and a query become token vectors of 128 dimensions; the score is MaxSim, the sum over query tokens of the best
page token (Khattab and Zaharia 2020; ColPali, arXiv 2407.01449). A batch holds several pages of a few decks, so that
the negatives that matter, the same deck's other pages, are in it. The vision tower is frozen and its output for each
page is computed once and kept: after that a step costs the language model alone.
"""

from __future__ import annotations

import copy
import random
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from colpali_engine.loss import ColbertLoss
from colpali_engine.models import ColQwen2_5, ColQwen2_5_Processor
from PIL import Image
from tqdm.auto import tqdm
from transformers import Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLProcessor
from transformers.modeling_outputs import BaseModelOutputWithPooling

from vrag_nb.nano.lookups import reading_strip
from vrag_nb.nano.optimisation import Optimisers, RunLog, load_state, save_state, to_bfloat16


@dataclass
class SeenPage:
    """What the frozen vision tower made of a page: merged tokens (n, width), bfloat16; the patch grid (t, h, w)."""

    tokens: torch.Tensor
    grid: torch.Tensor


@dataclass
class QueryGroup:
    """A deck for training: its pages' indices in the page list, and queries as (text, page index)."""

    pages: list[int]
    queries: list[tuple[str, int]]


def build_retriever(backbone: Qwen2_5_VLForConditionalGeneration, text_layers: int = 3, seed: int = 0) -> ColQwen2_5:
    """A ColQwen2.5 whose towers are the nano VLM's; only the projection to 128 dimensions is new.

    Of the language model the first `text_layers` layers are kept: matching words needs less of it than answering, and
    indexing a corpus on a CPU is twice as fast.
    """
    torch.manual_seed(seed)
    config = copy.deepcopy(backbone.config)
    text_config: Any = config.text_config
    text_config.num_hidden_layers = text_layers
    text_config.layer_types = text_config.layer_types[:text_layers]
    model = ColQwen2_5(config)
    missing, _ = model.load_state_dict(backbone.model.state_dict(), strict=False)
    if set(missing) != {"custom_text_proj.weight", "custom_text_proj.bias"}:
        raise ValueError(f"the backbone lacks weights of the retriever, such as {missing[0]}")
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
    seen = BaseModelOutputWithPooling(pooler_output=tuple(page.tokens for page in pages))  # type: ignore[arg-type]
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


@torch.no_grad()
def see_strips(
    model: ColQwen2_5, processor: ColQwen2_5_Processor, rng: random.Random, count: int
) -> tuple[list[str], list[SeenPage]]:
    """Strips of drawn text and their words as queries: late interaction's first lesson, at a tenth of a page's cost."""
    samples = [reading_strip(rng, rng.uniform(0.1, 0.6)) for _ in range(count)]
    images = [sample.images[0] for sample in samples]
    batch = processor.image_processor(images=images, do_resize=False, return_tensors="pt")
    pixels = batch["pixel_values"].to(next(model.visual.parameters()).dtype)
    tokens = model.visual(pixels, grid_thw=batch["image_grid_thw"]).pooler_output
    sizes = (batch["image_grid_thw"].prod(-1) // 4).tolist()
    pages = [SeenPage(part, grid) for part, grid in zip(tokens.split(sizes), batch["image_grid_thw"], strict=True)]
    return [str(sample.turns[1][1][0]).replace("\n", " ") for sample in samples], pages


@torch.no_grad()
def centre_projection(
    model: ColQwen2_5, processor: ColQwen2_5_Processor, pages: Sequence[SeenPage], queries: Sequence[str]
) -> None:
    """Set the projection's bias so that embeddings of these pages and queries have mean zero.

    A language model's hidden states share a large common direction. Left in, every pair of tokens starts at a cosine
    near one, InfoNCE has nothing to tell apart, and training collapses to one vector.
    """
    linear = model.custom_text_proj
    hidden: list[torch.Tensor] = []
    hook = linear.register_forward_pre_hook(lambda _, inputs: hidden.append(inputs[0].float().flatten(0, 1).mean(0)))
    embed_query_texts(model, processor, queries)
    embed_seen_pages(model, processor, pages)
    hook.remove()
    linear.bias.copy_(-(linear.weight.float() @ torch.stack(hidden).mean(0)))


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
    batch_size: int = 16,
    decks_per_batch: int = 4,
    seed: int = 0,
    muon_lr: float = 1e-3,
    adamw_lr: float = 3e-4,
    compile_text: bool = True,
    strips_first: float = 0.2,
) -> None:
    """Train the language half in place for a wall-clock budget; resumable. Logs in-batch accuracy.

    The first `strips_first` of the budget sees strips of text alone. Without that lesson MaxSim over whole pages gives
    no usable gradient to a model that cannot match words yet: every embedding collapses to one.
    """
    rng = random.Random(seed)
    model.visual.requires_grad_(False)
    to_bfloat16(model)
    if compile_text and shutil.which("g++"):
        model.language_model.compile(dynamic=True)
    loss_function = ColbertLoss(temperature=0.02, normalize_scores=True)
    step, spent, accuracy, strip_accuracy = 0, 0.0, 0.0, 0.0
    some_queries, some_pages = draw_batch(rng, groups, batch_size, decks_per_batch)
    centre_projection(model, processor, [pages[index] for index in some_pages], some_queries)
    optimisers = Optimisers(model.named_parameters(), muon_lr, adamw_lr)
    if state := load_state(folder / "state.pt"):
        model.load_state_dict(state["model"])
        optimisers.load_state_dict(state["optimisers"])
        step, spent, accuracy = state["step"], state["spent"], state["accuracy"]
        rng.seed(f"{seed}/{step}")
    log = RunLog(folder / "log.jsonl", step)
    started = time.perf_counter() - spent
    model.train()

    def contrast(queries: Sequence[str], shown: Sequence[SeenPage]) -> tuple[torch.Tensor, float]:
        asked = embed_query_texts(model, processor, queries).float()
        found = embed_seen_pages(model, processor, shown).float()
        with torch.no_grad():
            scores = torch.einsum("qnd,psd->qpns", asked, found).amax(-1).sum(-1)
            correct = (scores.argmax(1) == torch.arange(len(queries))).float().mean().item()
        return loss_function(asked, found), correct

    while spent < seconds:
        loss, on_strips = contrast(*see_strips(model, processor, rng, 32))
        loss.backward()
        if spent > strips_first * seconds:
            queries, gold = draw_batch(rng, groups, batch_size, decks_per_batch)
            loss, correct = contrast(queries, [pages[index] for index in gold])
            loss.backward()
            accuracy = 0.95 * accuracy + 0.05 * correct
        optimisers.step(spent / seconds)
        step, spent = step + 1, time.perf_counter() - started
        strip_accuracy = 0.95 * strip_accuracy + 0.05 * on_strips
        if step % 10 == 0 or step < 4:
            log.write(step=step, seconds=spent, loss=loss.item(), accuracy=accuracy, strips=strip_accuracy)
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
