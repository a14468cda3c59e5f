"""What the nano models are taught on drawn pages: windows, tasks, the privileged expert, the retriever's batches."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from vrag_nb.agent import actions
from vrag_nb.agent.encoding import ChatEncoder
from vrag_nb.agent.geometry import jittered
from vrag_nb.attention import linear_patch_embedding
from vrag_nb.documents.decks.generate import pretraining_panels
from vrag_nb.nano import replicas
from vrag_nb.nano.box_turns import LEAST, BoxTurns, part_around
from vrag_nb.nano.box_turns import SQUARES as BOX_SQUARES
from vrag_nb.nano.deck_tasks import BUDGET, DeckPool, DeckTasks, DrawnPage
from vrag_nb.nano.expert import EXPERT_SETTINGS, ExpertSamples, ExpertTurns, likest, play, session_sample
from vrag_nb.nano.finding import ROUNDS, SIGHTS, FindingBatches, PageSource, draw_pages, stacked, train_finding
from vrag_nb.nano.glyphs import CLASS_OF, EMPTY
from vrag_nb.nano.looking import HEADS, UNASKED, Looking, covered_squares
from vrag_nb.nano.lookups import drawn_table, reading_strip
from vrag_nb.nano.memory_tasks import MemorySteps
from vrag_nb.nano.model import FACTOR, NanoSize, build_nano_vlm, build_processor, save_checkpoint
from vrag_nb.nano.optimisation import Schedule, load_state
from vrag_nb.nano.panel_turns import PRINT, SQUARES, PanelTurns, drawn_print, shown_budget
from vrag_nb.nano.patches import seen
from vrag_nb.nano.plan import Recipe
from vrag_nb.nano.plan import tokenizer as make_tokenizer
from vrag_nb.nano.prose import drawn_document
from vrag_nb.nano.retriever import (
    PAGE_BUDGET,
    QueryGroup,
    QuerySource,
    SeenPage,
    build_retriever,
    build_retriever_processor,
    draw_batch,
    embed_query_texts,
    embed_seen_pages,
    embed_tokens,
    match_batch,
    query_prefixes,
    see_pages,
    train_retriever,
    word_loss,
    word_targets,
)
from vrag_nb.nano.retriever_stages import word_material
from vrag_nb.nano.samples import BOX, IGNORE, collate, encode, looking_targets, places, telling_words
from vrag_nb.nano.wording import copied_words, searches
from vrag_nb.number_formats import quick_dtype
from vrag_nb.retrieval.embedders import load_embedder

TINY = NanoSize(text_width=64, text_layers=2, text_heads=2, vision_width=48, vision_layers=2, vision_heads=2)


@pytest.fixture(scope="module")
def processor():
    return build_processor(make_tokenizer())


def test_windows_keep_the_budget_and_carry_their_glyphs(pool):
    rng = random.Random(0)
    for _ in range(20):
        image, glyphs = DeckTasks(pool).glyphs(rng, 1.0)
        assert image.width % 28 == image.height % 28 == 0
        assert BUDGET.min_pixels <= image.width * image.height <= BUDGET.max_pixels
        assert all(0 <= g.x <= image.width and 0 <= g.y <= image.height + 14 for g in glyphs)


def test_a_jittered_box_contains_the_region_and_stays_on_the_page():
    rng = random.Random(0)
    for _ in range(100):
        x0, y0, x1, y1 = jittered(rng, (100, 50, 300, 90), (320, 100))
        assert 0 <= x0 <= 100
        assert 0 <= y0 <= 50
        assert 300 <= x1 <= 320
        assert 90 <= y1 <= 100


def test_tasks_point_where_the_gold_region_lies(pool):
    rng = random.Random(3)
    kinds = set()
    tasks = DeckTasks(pool)
    for _ in range(60):
        sample = tasks.lookups(rng, 1.0)
        kinds.add(sample.kind)
        if sample.kind == "point":
            _, action = actions.parse(f"<bbox>{sample.turns[1][1][0]}</bbox>")
            assert action.kind == "bbox"
            assert action.box is not None
            assert max(action.box[0::2]) <= sample.images[0].width
    assert {"crop", "point", "page"} == kinds
    pointed = [tasks.points(rng, 1.0) for _ in range(10)]
    assert all(one.kind == "point" and one.turns[0][1][0].startswith("Where: ") for one in pointed)
    assert all(actions.parse(f"<bbox>{one.turns[1][1][0]}</bbox>")[1].box is not None for one in pointed)
    matches = [tasks.matches(rng, 1.0) for _ in range(40)]
    assert {sample.turns[1][1][0] for sample in matches} == {"yes", "no"}
    assert {bool(sample.looks) for sample in matches if sample.turns[1][1][0] == "no"} == {False}


def test_the_expert_ends_with_the_right_answer_in_the_real_environment(pool):
    rng = random.Random(5)
    searched_twice = 0
    for _ in range(40):
        pages, questions = pool.pick(rng)
        question = rng.choice(questions)
        session = play(question, pages, rng, recall=0.5)
        assert session.error is None
        kinds = [turn.action.kind for turn in session.turns]
        assert "invalid" not in kinds
        searched_twice += kinds.count("search") > 1
        if len(kinds) <= EXPERT_SETTINGS.max_turns:
            assert session.answer == question.reference_answer
    assert searched_twice > 5


def test_training_and_acting_use_the_same_token_ids(pool, processor):
    rng = random.Random(6)
    encoder = ChatEncoder(processor)
    for sample_number in range(8):
        pages, questions = pool.pick(rng)
        session = play(questions[sample_number], pages, rng)
        ids, labels = encode(session_sample(session, pages), processor.tokenizer)
        encoded = encoder.encode(session.conversation, reply=False)
        assert ids == encoded.input_ids
        assert [label != IGNORE for label in labels] == encoded.model_mask


def test_expert_samples_are_conversations_that_end_in_an_answer(pool):
    rng = random.Random(7)
    samples = [sample for _ in range(10) for sample in ExpertSamples(pool)(rng, 1.0)]
    assert samples
    assert all("</answer>" in sample.turns[-1][1][0] for sample in samples)


def test_turns_of_the_expert_are_what_it_says_in_the_environment(pool):
    """Every single turn is a turn of a whole trajectory about the same question, up to its box's slack."""
    rng = random.Random(8)
    turns = [ExpertTurns(pool)(rng, 1.0) for _ in range(80)]
    assert {sample.kind for sample in turns} == {"crop", "page", "enlarge", "wrong"}
    for sample in turns:
        _, action = actions.parse(str(sample.turns[-1][1][0]))
        assert action.kind == {"enlarge": "bbox", "wrong": "search"}.get(sample.kind, "answer")
        assert sample.learn_from == len(sample.turns) - 1
        asked = next(part for part in sample.turns[-2][1] if isinstance(part, str))
        question = next(one for _, questions in pool.decks for one in questions if one.query == asked)
        pages = next(drawn for drawn, questions in pool.decks if question in questions)
        recall = 0.0 if sample.kind == "wrong" else 1.0
        said = [turn.text for turn in play(question, pages, random.Random(0), recall).turns]
        assert sample.turns[-1][1][0] in said


def test_turns_on_panels_read_what_is_printed_there_or_go_on():
    panels = DeckPool(pretraining_panels, size=3, draws_per_deck=1000)
    rng = random.Random(12)
    turns = [PanelTurns(panels)(rng, 1.0) for _ in range(60)]
    assert {sample.kind for sample in turns} == {"panel", "elsewhere"}
    for sample in turns:
        asked, said = str(sample.turns[0][1][0]), str(sample.turns[1][1][0])
        question = next(one for _, questions in panels.decks for one in questions if one.query == asked)
        [image] = sample.images
        assert image.width % 28 == image.height % 28 == 0
        assert 0.8 * SQUARES[0] - 1 <= image.width * image.height // 28**2 <= SQUARES[1]
        letters = {(round(glyph.x, 3), round(glyph.y, 3)) for glyph in sample.glyphs[0]}
        if sample.kind == "panel":
            assert said.endswith(f"<answer>{question.reference_answer}</answer>")
            [look] = sample.looks
            assert look.printed == question.needed_facts[0]["value"]
            assert {(round(x, 3), round(y, 3)) for x, y in look.letters} <= letters
        else:
            assert actions.parse(said)[1].query == question.query
            assert not sample.looks


def test_print_of_panels_is_as_high_as_asked_for_within_what_a_panel_may_take():
    assert shown_budget((300, 200), 7.5, 15.625).most_tokens == round(300 * 200 / 28**2)  # as it is drawn
    assert shown_budget((300, 200), 7.5, 1.0).most_tokens == SQUARES[0]
    assert shown_budget((300, 200), 7.5, 100.0).most_tokens == SQUARES[1]
    drawn = [drawn_print(random.Random(seed)) for seed in range(200)]
    assert min(drawn) >= PRINT[0]
    assert PRINT[1] < max(drawn) <= 2 * PRINT[1]


def test_the_likest_of_wrong_pages_has_most_of_the_questions_words(pool):
    pages, questions = pool.pick(random.Random(2))
    question = next(question for question in questions if len(question.needed_facts) == 1)
    asked = sorted(telling_words(question.query))
    bare = [replace(page, words=[]) for page in pages[:3]]
    some = replace(pages[0], words=[(word, (0, 0, 1, 1)) for word in asked[:1]])
    more = replace(pages[0], words=[(word, (0, 0, 1, 1)) for word in asked])
    assert likest(question, [*bare, some, more], [1, 4, 5]) == 5
    assert likest(question, [*bare, some, more], [1, 4]) == 4


def test_boxes_of_the_expert_are_whole_squares(pool):
    rng = random.Random(9)
    for _ in range(20):
        pages, questions = pool.pick(rng)
        session = play(rng.choice(questions), pages, rng, recall=1.0)
        for turn in session.turns:
            if turn.action.box is not None:
                assert all(value % FACTOR == 0 for value in turn.action.box)


def test_parts_of_pages_hold_the_region_and_a_share_of_the_page():
    rng = random.Random(5)
    for _ in range(500):
        size = (rng.randint(300, 1600), rng.randint(300, 1800))
        (x0, x1), (y0, y1) = (sorted(rng.uniform(-4, side + 4) for _ in range(2)) for side in size)
        left, top, right, bottom = part_around(rng, (x0, y0, x1, y1), size)
        assert 0 <= left <= max(0, x0)
        assert 0 <= top <= max(0, y0)
        assert min(x1, size[0]) <= right <= size[0]
        assert min(y1, size[1]) <= bottom <= size[1]
        assert right - left >= LEAST * size[0] - 1e-6
        assert bottom - top >= LEAST * size[1] - 1e-6


def test_box_turns_write_the_region_wherever_it_lies(pool):
    rng = random.Random(6)
    turns = [BoxTurns(pool)(rng, 1.0) for _ in range(40)]
    starts = set()
    for turn in turns:
        [image], [look] = turn.images, turn.looks
        x0, y0, x1, y1 = map(int, BOX.search(turn.turns[1][1][0]).groups())
        assert not {x0 % FACTOR, y0 % FACTOR, x1 % FACTOR, y1 % FACTOR} - {0}
        assert 0 <= x0 < x1 <= image.width
        assert 0 <= y0 < y1 <= image.height
        [(a, b, c, d)] = look.boxes
        assert x0 - 1 <= a < x0 + FACTOR
        assert y0 - 1 <= b < y0 + FACTOR
        assert x1 - FACTOR < c <= x1 + 1
        assert y1 - FACTOR < d <= y1 + 1
        assert image.width * image.height <= max(BOX_SQUARES) * FACTOR**2
        starts.add((x0, y0))
    assert len(starts) > 12


def test_corners_of_a_written_box_are_pointed_at(pool, processor):
    """The token before each one of a box's numbers points at the square in the number's corner."""
    rng = random.Random(7)
    samples = [BoxTurns(pool)(rng, 1.0) for _ in range(4)]
    while not any(turn.kind == "enlarge" for turn in samples):
        samples.append(ExpertTurns(pool)(rng, 1.0))
    batch = collate(samples, processor)
    targets = looking_targets(samples, batch["input_ids"], processor.tokenizer)
    corners = targets.pointers["corner"]
    assert (corners.squares.sum(1) == 1).all()
    for row, sample in enumerate(samples):
        mine, [image] = corners.rows == row, sample.images
        if sample.kind not in ("box", "enlarge"):
            assert not mine.any()
            continue
        numbers = [int(number) for number in BOX.search(sample.turns[-1][1][0]).groups()]
        written = "".join(processor.tokenizer.decode(batch["input_ids"][row, p + 1]) for p in corners.positions[mine])
        assert written.replace(" ", "") == "".join(map(str, numbers))
        first = int(targets.is_square[row].nonzero()[0])
        squares = [int(square.nonzero()) - first for square in corners.squares[mine]]
        columns = image.width // FACTOR
        upper, lower = squares[0], squares[-1]
        assert set(squares) == {upper, lower}
        assert (upper % columns * FACTOR, upper // columns * FACTOR) == (numbers[0], numbers[1])
        assert ((lower % columns + 1) * FACTOR, (lower // columns + 1) * FACTOR) == (numbers[2], numbers[3])


def test_heads_of_attention_are_asked_what_they_attend_to(pool, processor):
    """What the loss reports is what the model's own attention weights say."""
    torch.manual_seed(0)
    model = build_nano_vlm(processor.tokenizer, TINY).eval()
    model.set_attn_implementation("eager")
    looking = Looking(model)
    samples = [BoxTurns(pool)(random.Random(7), 1.0), reading_strip(random.Random(1), 0.5)]
    batch = collate(samples, processor)
    targets = looking_targets(samples, batch["input_ids"], processor.tokenizer)
    output = model(**batch, output_attentions=True)
    loss, right = looking.loss(targets)
    for name, head in HEADS.items():
        wanted = targets.pointers[name]
        assert len(wanted.rows) > 3
        weights = output.attentions[1][wanted.rows, head, wanted.positions]
        torch.testing.assert_close(right[f"{name} met"], (weights * wanted.squares).sum(-1))
    loss.backward()
    assert model.model.language_model.layers[1].self_attn.q_proj.weight.grad.any()


def test_batches_hold_distinct_pages():
    decks = [range(n * 10, n * 10 + 10) for n in range(5)]
    groups = [QueryGroup(list(deck), [(f"q{page}", page) for page in deck] * 2) for deck in decks]
    queries, pages = draw_batch(random.Random(0), groups, size=12, decks=3)
    assert len(queries) == len(set(pages)) == 12


def test_a_query_word_is_pulled_to_the_squares_that_hold_it(processor):
    """Two pages of three squares; 'profit' stands in the second square of each, the query belongs to page 0."""
    retriever_processor = build_retriever_processor(processor)
    grid, tokens = torch.tensor([1, 2, 6]), torch.zeros(3, 4)
    pages = [SeenPage(tokens, grid, [("profit", [1]), ("sales", [2])]), SeenPage(tokens, grid, [("profit", [1])])]
    [prefixes] = query_prefixes(retriever_processor, ['What was "profit" and rent?'])
    whole = [prefix for prefix in ("what", "was", "profit", "and", "rent") if prefix in dict(prefixes).values()]
    assert whole == ["what", "was", "profit", "and", "rent"]
    ids = retriever_processor.process_queries(texts=['What was "profit" and rent?'])["input_ids"][0]
    for place, prefix in prefixes:
        assert any(word.startswith(prefix) for word in whole)
        assert prefix.endswith(retriever_processor.tokenizer.decode(ids[place]).strip(' "?').lower())
    asked = torch.nn.functional.one_hot(torch.zeros(1, 40, dtype=torch.long), 8).float()
    found = torch.nn.functional.one_hot(torch.full((2, 5), 3), 8).float()
    found[:, 2] = asked[0, 0]  # a head of one token, three squares, a tail of one: position 2 is the second square
    targets = word_targets([prefixes], pages, length=5, tail=1)
    loss, right = word_loss(asked, found, targets)
    assert right == 1
    assert loss < 1e-6
    assert word_loss(asked, found.roll(1, 1), targets)[0] > 1
    assert word_loss(asked, found, word_targets([[(0, "prof")]], pages, 5, 1))[0] < 1e-6
    assert word_loss(asked, found, word_targets([[(0, "absent")]], pages, 5, 1))[0] == 0


def test_heads_are_told_the_squares_of_words_and_answers(pool, processor):
    assert covered_squares([(30, 2, 54, 20), (50, 30, 60, 50)], columns=3, rows=2).tolist() == [0, 1, 0, 0, 1, 1]
    rng = random.Random(4)
    samples = [drawn_table(random.Random(2), 0.5)]
    while len(samples) < 12:
        samples.append(DeckTasks(pool).lookups(rng, 1.0))
    batch = collate(samples, processor)
    targets = looking_targets(samples, batch["input_ids"], processor.tokenizer)
    assert (targets.is_square == (batch["mm_token_type_ids"] == 1)).all()
    for name in ("word", "answer"):
        pointers = targets.pointers[name]
        assert len(pointers.rows) > (6 if name == "answer" else 0)
        assert pointers.squares.any(1).all()
        assert not (pointers.squares & ~targets.is_square[pointers.rows]).any()
        before = torch.arange(pointers.squares.shape[1]) < pointers.positions[:, None]
        assert not (pointers.squares & ~before).any()
    for row, sample in enumerate(samples):
        asked = targets.cues[row][targets.is_square[row]]
        assert set(asked.tolist()) <= {0, 1}  # known of every square
        if sample.kind.startswith("table"):
            assert asked.any()  # the label of the row is in the question, and in the table
    assert (targets.cues[~targets.is_square] == UNASKED).all()
    told = targets.glyphs.split([sum(i.width * i.height // 28**2 for i in sample.images) for sample in samples])
    assert all(((glyphs > EMPTY).sum() > 3).item() for glyphs in told)  # something is printed on each image
    table = Counter(CLASS_OF[letter] for word, _ in samples[0].words[0] for letter in word if not letter.isspace())
    assert Counter(told[0][told[0] > EMPTY].tolist()) <= table  # some squares hold too many to be asked
    for sample in samples:
        for look in sample.looks:
            assert sample.turns[look.turn][0] == "assistant"
            assert all(x1 > 0 and x0 < sample.images[look.image].width for x0, _, x1, _ in look.boxes)


def test_letters_to_be_written_are_pointed_at_on_the_image(pool, processor):
    """The token before each one that is read off the image points at the square of its first letter."""
    decode, rng, pointed = processor.tokenizer.decode, random.Random(8), set()
    samples = [drawn_table(rng, 0.9), *(reading_strip(rng, 0.5) for _ in range(4)), *ExpertSamples(pool)(rng, 1.0)]
    while len(samples) < 16:
        samples.append(DeckTasks(pool).lookups(rng, 1.0))
    batch = collate(samples, processor)
    letters = looking_targets(samples, batch["input_ids"], processor.tokenizer).pointers["letter"]
    assert (letters.squares.sum(1) == 1).all()
    for row, sample in enumerate(samples):
        places = letters.positions[letters.rows == row]
        written = "".join(decode(batch["input_ids"][row, place + 1]) for place in places)
        if places.numel() and written.isascii():
            pointed.add(sample.kind)
            printed = "".join("".join(look.printed.split()) for look in sample.looks)
            assert "".join(written.split()) in printed or printed in "".join(written.split())
    assert {"read", "crop"} <= pointed


def test_a_search_repeats_words_of_its_question(pool):
    rng = random.Random(9)
    draw = searches(pool)
    for _ in range(20):
        (_, [prompt]), (_, [turn]) = draw(rng, 1.0).turns
        _, action = actions.parse(turn)
        assert action.kind == "search"
        assert set(action.query.split()) & set(prompt.split())
    quoted = copied_words(rng, 0.0)
    _, action = actions.parse(quoted.turns[1][1][0])
    assert f'"{action.query}"' in quoted.turns[0][1][0]


def test_the_saved_retriever_embeds_as_the_trained_one(pool, processor, tmp_path):
    backbone = build_nano_vlm(processor.tokenizer, TINY)
    model = build_retriever(backbone, text_layers=2).eval()
    retriever_processor = build_retriever_processor(processor)
    pages, _ = pool.pick(random.Random(0))
    image = pages[1].image
    with torch.inference_mode():
        seen = see_pages(model, retriever_processor, [pages[1]])
        page = embed_seen_pages(model, retriever_processor, seen)[0].numpy()
        query = embed_query_texts(model, retriever_processor, ["net profit"])[0].numpy()
    save_checkpoint(model, retriever_processor, tmp_path, torch.float32)
    embedder = load_embedder("nano-colqwen2_5", tmp_path, dtype="float32")
    asked = embedder.embed_queries(["net profit"])[0]
    assert len(asked) == len(query) - 10, "training appends augmentation tokens, searching does not"
    assert abs(asked - query[: len(asked)]).max() < 1e-4
    plain = load_embedder("colqwen2_5", tmp_path, device="cpu")  # one view, with the squares that are bare
    whole = plain.embed_pages([image], [""])[0]
    assert abs(whole - page).max() < 0.05  # the vision tower ran in bfloat16


def test_two_pages_on_a_sheet_keep_their_words_and_letters(pool):
    pages, _ = pool.pick(random.Random(0))
    above, below = pages[0], pages[1]
    sheet = stacked(above, below)
    width, height = above.image.size
    assert sheet.image.size == (width, 2 * height)
    word, box = below.words[0]
    assert sheet.words[len(above.words)] == (word, (box[0], box[1] + height, box[2], box[3] + height))
    assert len(sheet.glyphs) == len(above.glyphs) + len(below.glyphs)
    lines = {glyph.line for glyph in sheet.glyphs if glyph.y < height}
    assert lines.isdisjoint(glyph.line for glyph in sheet.glyphs if glyph.y >= height)
    shown = sheet.part(budget=PAGE_BUDGET)
    assert PAGE_BUDGET.min_pixels <= shown.image.width * shown.image.height <= PAGE_BUDGET.max_pixels


def test_each_query_is_drawn_with_the_page_that_answers_it(pool):
    rng = random.Random(1)
    pages, questions = pool.pick(rng)
    answered = {}
    for question in questions:
        if len(question.needed_facts) == 1:
            fact = question.needed_facts[0]
            answered.update({text: fact["page"] - 1 for text in (question.query, fact["search_hint"])})
    for parts, budget in SIGHTS:
        for queries, shown in draw_pages(rng, pages, questions, 4, parts, budget):
            assert len(queries) == ROUNDS
            assert len({answered[query] for query in queries}) == 1
            assert len(shown) == parts
            assert all(one.image.width * one.image.height <= budget.max_pixels for one in shown)
            words = {word for word, _ in pages[answered[queries[0]]].words}
            read = {word for one in shown for word, _ in one.words}
            assert len(words & read) > 0.4 * len(words)  # some are cut off, others stand beside


def test_a_batch_asks_of_every_page_in_turn(pool, processor):
    model = build_retriever(build_nano_vlm(processor.tokenizer, TINY), text_layers=2)
    ways = set()
    for seed in range(12):
        source = PageSource(pool, decks=1, pages=2)
        batch = next(iter(FindingBatches(source, model, build_retriever_processor(processor), str(seed))))
        matching = batch.matching
        ways.add(matching.parts)
        count = len(batch.images["grid_thw"]) // matching.parts
        assert matching.asked == ROUNDS * count
        assert len(matching.texts["input_ids"]) == (ROUNDS + 1) * count  # and a list of words of every page
        assert matching.pages["mm_token_type_ids"].sum() == len(batch.glyphs)
        assert len(batch.glyphs) * 4 == len(batch.images["patches"])
        asked, right = matching.words
        on_page = right[:, 1] // matching.pages["input_ids"].shape[1] // matching.parts
        assert set(on_page.tolist()) <= set(range(count))
        own = (asked[right[:, 0], 0] % count) == on_page  # a word may stand on other pages too, but on its own it does
        assert set(right[own, 0].tolist()) == set(range(len(asked)))
    assert ways == {1, 2}


def test_no_deck_is_in_a_batch_twice(processor):
    decks = [([], [number]) for number in range(6)]
    drawing = DeckPool(lambda seed: pytest.fail("the pool is full"), size=len(decks), draws_per_deck=10**6)
    drawing.decks = list(decks)
    batches = FindingBatches(PageSource(drawing, len(decks), 1), None, processor, "0")
    assert sorted(marks for _, [marks] in batches._distinct_decks(random.Random(0))) == list(range(6))


@pytest.mark.parametrize(
    ("printed", "text", "found"),
    [
        ("20", "I read 2010: 20, 2011: 7.", [13]),
        ("7", '{"id": "search_7", "value": "1.75, 7.5 and 7."}', [43]),
        ("5%", "15% and 5%", [8]),
        ("$5", "$5, not $5.5", [0]),
    ],
)
def test_a_value_is_met_only_where_it_stands_by_itself(printed: str, text: str, found: list[int]):
    assert list(places(printed, text)) == found


def test_a_checkpoint_has_its_configuration_last(processor, tmp_path, monkeypatch):
    """Who is killed while it is written leaves a folder that is taken for none, or the one that was there."""
    model = build_nano_vlm(processor.tokenizer, TINY)
    moved = []
    real = Path.replace
    monkeypatch.setattr(Path, "replace", lambda file, to: moved.append(to.name) or real(file, to))
    save_checkpoint(model, processor, tmp_path / "made")
    assert moved[-1] == "config.json"
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


def test_the_halves_of_a_page_count_as_one(pool, processor):
    model = build_retriever(build_nano_vlm(processor.tokenizer, TINY), text_layers=2)
    batches = FindingBatches(PageSource(pool, 1, 3), model, build_retriever_processor(processor), "0")
    batch = next(one for one in batches if one.matching.parts == 2)
    linear_patch_embedding(model.visual)
    tokens = seen(model.visual, batch.images)
    matched = match_batch(model, batch.matching, tokens)
    found = embed_tokens(model, batch.matching.pages, tokens)
    asked = model(**batch.matching.texts)[: batch.matching.asked]
    of_parts = torch.einsum("qnd,psd->qpns", asked, found).amax(-1)  # (queries, parts, tokens)
    best = of_parts.unflatten(1, (-1, 2)).amax(2).sum(-1)  # a token meets the better half
    gold = torch.arange(len(best)) % best.shape[1]
    assert matched.right == pytest.approx((best.argmax(1) == gold).float().mean().item())


def test_prose_is_drawn_where_its_words_are_said_to_stand():
    for seed in range(5):
        first, second = drawn_document(random.Random(seed), 2, PAGE_BUDGET)
        assert first.image.size == second.image.size == PAGE_BUDGET.size(*first.image.size)
        pixels = np.asarray(first.image.convert("L"), dtype=float)
        paper = np.median(pixels)
        long = [box for word, box in first.words if len(word) > 3]
        assert len(long) > 10
        inked = [abs(pixels[int(y0) : int(y1), int(x0) : int(x1)] - paper).max() for x0, y0, x1, y1 in long]
        assert min(inked) > 20


def test_finding_trains_the_tower_and_resumes(pool, processor, tmp_path):
    backbone = build_nano_vlm(processor.tokenizer, TINY)
    model = build_retriever(backbone, text_layers=2)
    before = model.visual.blocks[0].attn.qkv.weight.detach().clone()
    retriever_processor = build_retriever_processor(processor)
    source, options = PageSource(pool, decks=1, pages=2), {"workers": 0, "compile_text": False}
    train_finding(model, retriever_processor, source, tmp_path, Schedule(steps=2), **options)
    assert not torch.equal(model.visual.blocks[0].attn.qkv.weight.float(), before)
    assert load_state(tmp_path / "state.pt")["step"] == 2
    again = build_retriever(backbone, text_layers=2)
    train_finding(again, retriever_processor, source, tmp_path, Schedule(steps=3), **options)
    assert load_state(tmp_path / "state.pt")["step"] == 3


def test_the_retriever_learns_on_pages_that_were_seen_once_and_resumes(pool, processor, tmp_path):
    model = build_retriever(build_nano_vlm(processor.tokenizer, TINY), text_layers=2)
    retriever_processor = build_retriever_processor(processor)
    pages, questions = pool.pick(random.Random(0))
    seen = see_pages(model, retriever_processor, pages[:3])
    facts = [question.needed_facts[0] for question in questions if question.needed_facts]
    groups = [QueryGroup([0, 1, 2], [(fact["search_hint"], fact["page"] - 1) for fact in facts if fact["page"] <= 3])]
    tower = model.visual.blocks[0].attn.qkv.weight.detach().clone().to(quick_dtype())
    text = model.language_model.layers[0].mlp.up_proj.weight.detach().clone().to(quick_dtype())
    for steps in (1, 2):
        source = QuerySource(seen, groups, queries=2, decks=1)
        train_retriever(model, retriever_processor, source, tmp_path, Schedule(steps=steps), compile_text=False)
        assert load_state(tmp_path / "state.pt")["step"] == steps
    assert torch.equal(model.visual.blocks[0].attn.qkv.weight, tower)
    assert not torch.equal(model.language_model.layers[0].mlp.up_proj.weight, text)


def test_processes_share_decks_and_none_is_lost(monkeypatch: pytest.MonkeyPatch):
    alone = {id_of(page) for page in word_material(Recipe(), 3, windows=1)[0]}
    monkeypatch.setattr(replicas, "count", lambda: 2)
    parts = []
    for rank in range(2):
        monkeypatch.setattr(replicas, "rank", lambda rank=rank: rank)
        parts.append({id_of(page) for page in word_material(Recipe(), 3, windows=1)[0]})
    assert parts[0] | parts[1] == alone
    assert not parts[0] & parts[1]


def id_of(page: DrawnPage) -> bytes:
    return page.image.tobytes()


def test_memory_steps_are_single_steps_of_vimrags_expert_on_drawn_pages(pool, processor):
    rng, draw = random.Random(0), MemorySteps(pool)
    samples = [sample for _ in range(60) for sample in draw(rng, 0.0)]
    kinds = {"search": "add_search_node", "found": '"is_useful": true', "missed": '"is_useful": false'}
    kinds |= {"answer": "add_answer_node"}
    assert {sample.kind for sample in samples} == set(kinds)
    for sample in samples:
        said = "".join(sample.turns[-1][1])
        assert kinds[sample.kind] in said
        assert sample.learn_from == len(sample.turns) - 1
        assert all(
            BUDGET.min_pixels <= image.width * image.height <= BUDGET.max_pixels
            for image in sample.images[-len(sample.words) :]
            if sample.words
        )
    reading = [sample for sample in samples if any(look.printed for look in sample.looks)]
    assert reading, "no step was told where the value is read"
    assert all(look.printed in "".join(one.turns[-1][1]) for one in reading for look in one.looks)
    batch = collate(reading[:2], processor)
    assert looking_targets(reading[:2], batch["input_ids"], processor.tokenizer).pointers["answer"].rows.tolist()
