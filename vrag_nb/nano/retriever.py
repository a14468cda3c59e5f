"""The nano retriever: colpali-engine's ColQwen2.5 on the nano backbone, trained by its late-interaction InfoNCE loss.

A page and a query become token vectors of 128 dimensions; the score is MaxSim, the sum over query tokens of the best
page token (Khattab and Zaharia 2020; ColPali, arXiv 2407.01449). A batch holds several pages of a few decks, so that
the negatives that matter, the same deck's other pages, are in it. The vision tower is frozen and its output for each
page is computed once and kept: after that a step costs the language model alone.

InfoNCE over whole pages gives a model that cannot match words yet no usable gradient: every embedding collapses to
one. We drew the pages, so we know which squares hold which word, and add a second InfoNCE one level down: each token
of a query word against all squares of the batch, those being right that hold a word which begins with the letters so
far (a causal model cannot know at a token whether the word is over). It needs no question, so that every batch carries
lists of words besides its queries.

Pages are shown at up to 640 squares, three times what the agent is shown: the body of an A4 report is six characters a
square then, which is about what the vision tower can read.
"""

from __future__ import annotations

import copy
import random
import re
import string
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from colpali_engine.loss import ColbertLoss
from colpali_engine.models import ColQwen2_5, ColQwen2_5_Processor
from tqdm.auto import tqdm
from transformers import Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLProcessor
from transformers.modeling_outputs import BaseModelOutputWithPooling

from vrag_nb.agent.geometry import Budget
from vrag_nb.attention import use_block_attention
from vrag_nb.nano import replicas
from vrag_nb.nano.deck_tasks import DrawnPage
from vrag_nb.nano.looking import covered_squares
from vrag_nb.nano.model import FACTOR, MIN_PIXELS
from vrag_nb.nano.optimisation import Schedule, compile_layers, to_training_form
from vrag_nb.nano.training import Training
from vrag_nb.number_formats import quick_dtype
from vrag_nb.retrieval.written_squares import ids_around

PAGE_BUDGET = Budget(MIN_PIXELS, 640 * FACTOR**2)
LEGIBLE = 7.0  # shown pixels: a line of text lower than this is not to be read
WORDS = re.compile(r"[^\s]*[^\s\W]")  # a word without the punctuation that follows it
COPIED = 0.4  # the share of queries that are words copied from the page instead of a question or its search hint


@dataclass
class SeenPage:
    """What the frozen vision tower made of a page, and what is written on it.

    tokens: merged, (n, width), in the training dtype. grid: the patch grid (t, h, w). words: (plain word, its squares)
    in reading order.
    """

    tokens: torch.Tensor
    grid: torch.Tensor
    words: list[tuple[str, list[int]]]


@dataclass
class QueryGroup:
    """A deck for training: its pages' indices in the page list, and queries as (text, page index)."""

    pages: list[int]
    queries: list[tuple[str, int]]


Kept = TypeVar("Kept", bound=SeenPage)


@dataclass(frozen=True)
class QuerySource(Generic[Kept]):
    """Where the queries of batches come from: so many of them, with distinct gold pages, from about so many decks.

    groups: of `pages`. A query that is empty stands for none.
    """

    pages: Sequence[Kept]
    groups: Sequence[QueryGroup]
    queries: int = 16
    decks: int = 4

    def draw(self, rng: random.Random) -> tuple[list[str], list[int]]:
        """The queries of a batch, and the index of each one's page."""
        return draw_batch(rng, self.groups, self.queries, self.decks)


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
    """The agent's processor with the retriever's prompts and its larger page budget."""
    images = copy.deepcopy(processor.image_processor)
    images.size = {"shortest_edge": PAGE_BUDGET.min_pixels, "longest_edge": PAGE_BUDGET.max_pixels}
    return ColQwen2_5_Processor(
        image_processor=images,
        tokenizer=processor.tokenizer,
        video_processor=processor.video_processor,
        chat_template=processor.chat_template,
    )


def word_squares(page: DrawnPage, columns: int, rows: int) -> list[tuple[str, list[int]]]:
    """The plain words of a page and the squares of its shown image that hold them; words too small to read left out."""
    found = []
    across, down = columns * FACTOR / page.image.width, rows * FACTOR / page.image.height
    for word, (x0, y0, x1, y1) in page.words:
        box = (x0 * across, y0 * down, x1 * across, y1 * down)
        if (plain := plain_word(word)) and min(box[2] - box[0], box[3] - box[1]) >= LEGIBLE:
            found.append((plain, covered_squares([box], columns, rows).nonzero().flatten().tolist()))
    return found


@torch.inference_mode()
def see_pages(
    model: ColQwen2_5, processor: ColQwen2_5_Processor, pages: Sequence[DrawnPage], batch_size: int = 2
) -> list[SeenPage]:
    """Run the vision tower once over drawn pages, at the size the retriever is shown."""
    seen: list[SeenPage] = []
    for start in tqdm(range(0, len(pages), batch_size), desc="seeing pages", unit="batch"):
        shown = pages[start : start + batch_size]
        images = [page.window(budget=PAGE_BUDGET)[0] for page in shown]
        batch = processor.image_processor(images=images, do_resize=False, return_tensors="pt")
        with torch.autocast("cpu", torch.bfloat16, enabled=quick_dtype() is torch.bfloat16):
            tokens = model.visual(batch["pixel_values"], grid_thw=batch["image_grid_thw"]).pooler_output
        sizes = (batch["image_grid_thw"].prod(-1) // 4).tolist()
        parts = tokens.to(quick_dtype()).split(sizes)
        for page, part, grid in zip(shown, parts, batch["image_grid_thw"], strict=True):
            seen.append(SeenPage(part.clone(), grid.clone(), word_squares(page, int(grid[2]) // 2, int(grid[1]) // 2)))
    return seen


def page_inputs(
    model: ColQwen2_5, processor: ColQwen2_5_Processor, squares: Sequence[int], grids: torch.Tensor
) -> dict[str, torch.Tensor]:
    """What the language half needs of pages of so many squares besides their tokens. Touches none of `model`'s weights.

    input_ids, attention_mask, mm_token_type_ids: (pages, length), left-padded, as the processor pads; position_ids:
    (3, pages, length).
    """
    tokenizer = processor.tokenizer
    head_ids, tail_ids = ids_around(processor)
    pad = tokenizer.convert_tokens_to_ids(processor.image_token)
    rows = [[*head_ids, *[pad] * count, *tail_ids] for count in squares]
    length = max(len(row) for row in rows)
    ids = torch.full((len(rows), length), tokenizer.pad_token_id)
    mask = torch.zeros((len(rows), length), dtype=torch.long)
    for number, row in enumerate(rows):
        ids[number, length - len(row) :] = torch.tensor(row)
        mask[number, length - len(row) :] = 1
    inputs = {"input_ids": ids, "attention_mask": mask, "mm_token_type_ids": (ids == pad).int()}
    return {**inputs, "position_ids": model.get_rope_index(**inputs, image_grid_thw=grids)[0]}


def embed_tokens(model: ColQwen2_5, inputs: dict[str, torch.Tensor], tokens: torch.Tensor) -> torch.Tensor:
    """(pages, length, 128) with zeros at padding: the language half of page embeddings, of `page_inputs` and all their
    pages' tokens (squares, width)."""
    seen = BaseModelOutputWithPooling(pooler_output=(tokens,))  # type: ignore[arg-type]
    return model(**inputs, mm_encoder_outputs={"image": seen})


def embed_seen_pages(model: ColQwen2_5, processor: ColQwen2_5_Processor, pages: Sequence[SeenPage]) -> torch.Tensor:
    """(pages, length, 128) with zeros at padding: the language half of a page embedding."""
    grids = torch.stack([page.grid for page in pages])
    inputs = page_inputs(model, processor, [len(page.tokens) for page in pages], grids)
    return embed_tokens(model, inputs, torch.cat([page.tokens for page in pages]))


def embed_query_texts(model: ColQwen2_5, processor: ColQwen2_5_Processor, queries: Sequence[str]) -> torch.Tensor:
    """(queries, length, 128) with zeros at padding."""
    batch = processor.process_queries(texts=list(queries))
    return model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])


def tail_length(processor: ColQwen2_5_Processor) -> int:
    """So many tokens of a page's embedding come after its last square."""
    return len(ids_around(processor)[1])


def plain_word(word: str) -> str:
    """A word as it is compared: lower case, without punctuation around it."""
    return word.strip(string.punctuation + "“”‘’…–—").lower()


def query_prefixes(processor: ColQwen2_5_Processor, queries: Sequence[str]) -> list[list[tuple[int, str]]]:
    """Per query (position of a token in the padded batch, letters of its word up to it); single letters left out."""
    suffix = processor.query_augmentation_token * 10
    encoded = [processor.tokenizer(query + suffix, return_offsets_mapping=True) for query in queries]
    length = max(len(one["input_ids"]) for one in encoded)
    found = []
    for query, one in zip(queries, encoded, strict=True):
        ends = {end: length - len(one["input_ids"]) + i for i, (_, end) in enumerate(one["offset_mapping"])}
        prefixes = []
        for word in WORDS.finditer(query):
            so_far = [(end, plain_word(query[word.start() : end])) for end in range(word.start() + 1, word.end() + 1)]
            prefixes += [(ends[end], p) for end, p in so_far if end in ends and p and (len(p) > 1 or end == word.end())]
        found.append(prefixes)
    return found


def word_targets(
    prefixes: Sequence[Sequence[tuple[int, str]]], shown: Sequence[SeenPage], length: int, tail: int, parts: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    """Which tokens of queries are asked for their word, and where it stands.

    shown: the pages, or of each one after the other its `parts`. prefixes: `query_prefixes`; query i belongs to page i
    modulo the number of pages, and those that begin no word of the query's own page are left out. length: of what is
    shown, padded, with `tail` tokens after the last square.
    Returns (n, 2) query and token, and (m, 2) the row of one of these and a right place among all of the pages' tokens.
    """
    wanted = {prefix for row in prefixes for _, prefix in row}
    lengths = sorted({len(prefix) for prefix in wanted})
    holding: dict[str, list[int]] = {}
    own: list[set[str]] = [set() for _ in range(len(shown) // parts)]
    for number, part in enumerate(shown):
        start = (number + 1) * length - tail - int(part.grid.prod()) // 4
        for word, squares in part.words:
            for prefix in wanted.intersection(word[:n] for n in lengths) if squares else ():
                holding.setdefault(prefix, []).extend(start + square for square in squares)
                own[number // parts].add(prefix)
    asked: list[tuple[int, int]] = []
    right: list[tuple[int, int]] = []
    for query, row in enumerate(prefixes):
        for place, prefix in row:
            if prefix in own[query % len(own)]:
                right += [(len(asked), square) for square in holding[prefix]]
                asked.append((query, place))
    return tuple(torch.tensor(pairs, dtype=torch.long).reshape(-1, 2) for pairs in (asked, right))  # type: ignore[return-value]


def word_loss(
    asked: torch.Tensor, found: torch.Tensor, targets: tuple[torch.Tensor, torch.Tensor], temperature: float = 0.05
) -> tuple[torch.Tensor, float]:
    """InfoNCE of tokens of query words against squares, and how often the best square of the batch is a right one.

    asked: (queries, n, 128). found: (pages, length, 128), zeros at padding. targets: `word_targets`.
    """
    rows, pairs = targets
    if not len(rows):
        return found.sum() * 0, 0.0
    vectors, flat = asked[rows[:, 0], rows[:, 1]], found.flatten(0, 1)
    # in bfloat16 where that is fast, which is off by less than what separates words: these products are large
    dtype = quick_dtype(found.device)
    scores = (vectors.to(dtype) @ flat.to(dtype).T).float() / temperature
    scores = scores.masked_fill(flat.abs().sum(-1) == 0, -torch.inf)
    right = torch.zeros(scores.shape, dtype=torch.bool, device=scores.device)
    right[pairs[:, 0], pairs[:, 1]] = True
    loss = (scores.logsumexp(-1) - scores.masked_fill(~right, -torch.inf).logsumexp(-1)).mean()
    return loss, right.gather(1, scores.argmax(-1, keepdim=True)).float().mean().item()


@dataclass(frozen=True)
class Matching:
    """What a batch asks besides its pages' tokens, worked out where no GPU waits for it.

    pages: `page_inputs` of their parts. texts: the queries, `asked` of them, and then lists of words, as the processor
    makes them. words: `word_targets`. parts: of each page, whose vectors are those of all of them.
    """

    pages: dict[str, torch.Tensor]
    texts: dict[str, torch.Tensor]
    asked: int
    words: tuple[torch.Tensor, torch.Tensor]
    parts: int = 1

    def to(self, device: torch.device) -> Matching:
        pages, texts = ({name: tensor.to(device) for name, tensor in part.items()} for part in (self.pages, self.texts))
        return replace(self, pages=pages, texts=texts, words=(self.words[0].to(device), self.words[1].to(device)))


def matching(
    model: ColQwen2_5,
    processor: ColQwen2_5_Processor,
    shown: Sequence[SeenPage],
    queries: Sequence[str],
    lists: Sequence[str],
    parts: int = 1,
) -> Matching:
    """shown: the pages, or of each one after the other its `parts`. queries: one of each page, or several times one of
    each. lists: words of each page, for the loss over words.

    Of the pages' tokens nothing is asked.
    """
    grids = torch.stack([one.grid for one in shown])
    inputs = page_inputs(model, processor, (grids.prod(-1) // 4).tolist(), grids)
    batch, texts = processor.process_queries(texts=[*queries, *lists]), [*queries, *lists]
    length = inputs["input_ids"].shape[1]
    words = word_targets(query_prefixes(processor, texts), shown, length, tail_length(processor), parts)
    texts_in = {name: batch[name] for name in ("input_ids", "attention_mask")}
    return Matching(inputs, texts_in, len(queries), words, parts)


class Matched(NamedTuple):
    """A batch's InfoNCE losses over pages and over words, and the shares of each that were right."""

    on_pages: torch.Tensor
    on_words: torch.Tensor
    right: float
    words_right: float


def match_batch(model: ColQwen2_5, batch: Matching, tokens: torch.Tensor) -> Matched:
    """The losses of a batch that lies where the model does; tokens: of all its pages, (squares, width)."""
    embedded = model(**batch.texts).float()
    asked, found = embedded[: batch.asked], embed_tokens(model, batch.pages, tokens).float()
    on_words, words_right = word_loss(embedded, found, batch.words)
    found = found.unflatten(0, (-1, batch.parts)).flatten(1, 2)  # (pages, length of all parts, 128)
    by_page = ColbertLoss(temperature=0.02, normalize_scores=True)
    on_pages = torch.stack([by_page(turn, found) for turn in asked.split(len(found))]).mean()
    gold = torch.arange(len(asked), device=asked.device) % len(found)
    right = (page_scores(asked, found).argmax(1) == gold).float().mean().item()
    return Matched(on_pages, on_words, right, words_right)


@torch.no_grad()
def page_scores(asked: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
    """MaxSim of (queries, n, 128) with (pages, s, 128), both with zeros at padding: (queries, pages)."""
    dtype = quick_dtype(found.device)
    return torch.einsum("qnd,psd->qpns", asked.to(dtype), found.to(dtype)).amax(-1).float().sum(-1)


def span_query(rng: random.Random, page: SeenPage) -> str:
    """Three to eight words of a page in a row: a query that only this page answers, more or less."""
    count = rng.randint(3, 8)
    start = rng.randrange(max(1, len(page.words) - count))
    return " ".join(word for word, _ in page.words[start : start + count])


def listed_words(rng: random.Random, page: SeenPage, most: int = 16) -> str:
    """Words of a page in random order."""
    words = list(dict.fromkeys(word for word, squares in page.words if squares))
    return " ".join(rng.sample(words, min(most, len(words)))) or "nothing"


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
    replicas.average([linear.bias])  # each process has pages of its own


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
    source: QuerySource[SeenPage],
    folder: Path,
    schedule: Schedule,
    *,
    seed: int = 0,
    centred: bool = False,
    compile_text: bool = True,
) -> None:
    """Train the language half in place (`Training`). Logs in-batch accuracy of pages and words.

    Some queries, and all that are empty, are words copied from the page.

    centred: the model has been trained before, its projection needs no centring.
    """
    model.visual.requires_grad_(False)
    to_training_form(model)
    use_block_attention(model.language_model)
    if compile_text:
        compile_layers(model.language_model)
    if not centred:
        some_queries, some_pages = source.draw(random.Random(seed))
        centre_projection(model, processor, [source.pages[index] for index in some_pages], some_queries)

    training = Training(folder, {"model": model}, schedule)
    rng = random.Random(f"{seed}/{training.step}/{replicas.rank()}")
    model.train()
    for _ in training:
        queries, gold = source.draw(rng)
        shown = [source.pages[index] for index in gold]
        copied = [rng.random() < COPIED or not query for query in queries]
        queries = [span_query(rng, p) if c and p.words else q for c, p, q in zip(copied, shown, queries, strict=True)]
        lists = [listed_words(rng, page) for page in shown]
        batch = matching(model, processor, shown, queries, lists)
        matched = match_batch(model, batch, torch.cat([page.tokens for page in shown]))
        (matched.on_words + matched.on_pages).backward()
        training.tell(loss=matched.on_pages.item(), word_loss=matched.on_words.item())
        training.blend(accuracy=matched.right, words=matched.words_right)
