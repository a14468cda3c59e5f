"""The deck generator: exact answers in their regions, disjoint splits, the same bytes every time."""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pymupdf
import pytest

from vrag_nb.documents.decks import generate, plan
from vrag_nb.documents.decks.blocks import deal
from vrag_nb.documents.decks.canvas import Book, Canvas, face
from vrag_nb.documents.decks.elements import READABLE, SHOWN_PIXELS, Sheet, footnote, paragraph
from vrag_nb.documents.decks.generate import generate_corpus, generate_decks, pretraining_deck
from vrag_nb.documents.decks.plan import make_deck
from vrag_nb.documents.decks.statements import stated
from vrag_nb.documents.decks.synthetic import synthetic_series
from vrag_nb.documents.decks.tables import SPLITS, TABLES, Column, load_series
from vrag_nb.documents.decks.themes import FAMILIES, FONTS, PRETRAINING_FONTS, choose_style, families, mixed_family
from vrag_nb.documents.decks.typeset import wrap
from vrag_nb.documents.packaged_fonts import font_file
from vrag_nb.records import Question, read_questions

SIZES = {"train": (12, 300), "dev": (3, 60), "test": (6, 120)}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("decks")
    generate_corpus(out, sizes=SIZES)
    return out


@pytest.fixture(scope="module")
def questions(corpus: Path) -> dict[str, list[Question]]:
    return {split: read_questions(corpus / f"questions.{split}.parquet") for split in SPLITS}


def everything(questions: dict[str, list[Question]]) -> list[Question]:
    return [question for split in SPLITS for question in questions[split]]


def words_in(page: pymupdf.Page, box: list[float], margin: float = 0.5) -> str:
    """The words whose centre lies in a box of page fractions."""
    width, height = page.rect.width, page.rect.height
    x0, y0 = box[0] * width - margin, box[1] * height - margin
    x1, y1 = box[2] * width + margin, box[3] * height + margin
    found = [w for w in page.get_text("words") if x0 <= (w[0] + w[2]) / 2 <= x1 and y0 <= (w[1] + w[3]) / 2 <= y1]
    return " ".join(w[4] for w in found)


# ------------------------------------------------------------------------------------------------------- questions


def test_every_printed_answer_stands_in_its_box_and_in_its_region(corpus, questions):
    checked = 0
    for split in SPLITS:
        for question in questions[split]:
            with pymupdf.open(corpus / "documents" / question.meta_info.file_name) as document:
                for fact in question.meta_info.needed_facts:
                    page = document[fact["page"] - 1]
                    if not fact["printed"]:
                        continue
                    value = " ".join(fact["value"].split())
                    assert value in words_in(page, fact["answer_box"]), question
                    assert value in words_in(page, fact["box"]), question
                    checked += 1
    assert checked > 400


def test_an_answer_is_boxed_where_it_is_said_and_not_where_its_letters_come_first():
    style = choose_style(random.Random(0), FAMILIES[0], "Over Portugal")
    items = [
        stated("Over the 7 cities, the average is {a}.", "7", ("{deck}?",), "average"),
        stated("From Portugal to Turkey {a} comes last.", "Turkey", ("{deck}?",), "lowest"),
    ]
    for draw in (paragraph, footnote):
        sheet = Sheet(Book("Deck", "").page(720, 405), style, random.Random(0), "Deck", 1)
        arguments = (12.0,) if draw is paragraph else ()
        draw(sheet, (40, 40, 640, 200), items, *arguments)
        (first, second), left = sheet.facts, 40.0
        text = f"{items[0].text} {items[1].text}"
        size, font = first.size, style.body
        assert first.box[0] == pytest.approx(left + font.width(text[: items[0].place], size))
        assert second.box[0] == pytest.approx(left + font.width(text[: len(items[0].text) + 1 + items[1].place], size))


def test_questions_name_pages_by_the_titles_they_have(corpus, questions):
    for split in SPLITS:
        for question in questions[split]:
            for title in re.findall(r'the page "([^"]+)"', question.query):
                with pymupdf.open(corpus / "documents" / question.meta_info.file_name) as document:
                    page = document[question.meta_info.reference_page[0] - 1]
                    assert "".join(title.split()) in "".join(page.get_text().split()), question


def test_no_page_is_a_title_alone(corpus):
    for file in sorted((corpus / "documents").glob("*.pdf")):
        with pymupdf.open(file) as document:
            assert all(len(page.get_text("words")) > 12 for page in document if page.number), file


def test_a_killed_run_of_another_seed_leaves_no_corpus_that_counts_as_finished(tmp_path, monkeypatch):
    sizes = {"train": (1, 5)}
    generate_corpus(tmp_path, 0, sizes)
    before = {path: path.read_bytes() for path in sorted((tmp_path / "documents").iterdir())}
    monkeypatch.setattr(generate, "write_questions", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        generate_corpus(tmp_path, 1, sizes)
    monkeypatch.undo()
    assert generate_corpus(tmp_path, 0, sizes).fresh
    assert {path: path.read_bytes() for path in sorted((tmp_path / "documents").iterdir())} == before


def test_a_corpus_of_other_documents_is_left_alone(tmp_path):
    for name in ("pages.parquet", "questions.test.parquet"):
        (tmp_path / name).write_bytes(b"mine")
    with pytest.raises(ValueError, match="is a corpus of other documents"):
        generate_corpus(tmp_path, sizes=SIZES)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pages.parquet", "questions.test.parquet"]
    assert (tmp_path / "questions.test.parquet").read_bytes() == b"mine"


def test_names_in_tables_have_no_blanks_around_them():
    for split in SPLITS:
        for series in load_series(split):
            assert all(label == label.strip() for table in series.tables for label in table.labels), series.name


def test_regions_lie_inside_the_page_and_inside_the_answer_lies_in_its_region(questions):
    for question in everything(questions):
        meta = question.meta_info
        assert {region.page for region in meta.reference_regions} == set(meta.reference_page)
        for fact in meta.needed_facts:
            x0, y0, x1, y1 = fact["box"]
            a0, b0, a1, b1 = fact["answer_box"]
            assert 0 <= x0 < x1 <= 1
            assert 0 <= y0 < y1 <= 1
            assert x0 - 0.01 <= a0 < a1 <= x1 + 0.01
            assert y0 - 0.01 <= b0 < b1 <= y1 + 0.01


def test_small_print_is_lost_on_the_page_and_clear_in_the_crop(corpus, questions):
    sizes: dict[str, tuple[float, float]] = {}
    for question in everything(questions):
        if question.document not in sizes:
            with pymupdf.open(corpus / "documents" / question.meta_info.file_name) as document:
                sizes[question.document] = (document[0].rect.width, document[0].rect.height)
        area = math.prod(sizes[question.document])
        for fact in question.meta_info.needed_facts:
            x0, y0, x1, y1 = fact["box"]
            share = (x1 - x0) * (y1 - y0)
            on_page = fact["font_size"] * math.sqrt(SHOWN_PIXELS / area)
            assert fact["needs_crop"] == (on_page < READABLE)
            if fact["needs_crop"]:
                assert share < 0.4, question
                assert on_page / math.sqrt(share) > READABLE, question


def test_questions_are_unique_and_name_their_deck(questions):
    everyone = everything(questions)
    assert len({question.uid for question in everyone}) == len(everyone)
    assert len({question.query for question in everyone}) == len(everyone)
    for question in everyone:
        words = re.sub(r"[^a-z0-9]+", "-", question.query.lower())
        assert question.document in words
        for fact in question.meta_info.needed_facts:
            assert fact["search_hint"]


def test_every_kind_of_question_appears(questions):
    train = questions["train"]
    assert {q.meta_info.source_type for q in train} == {"text", "table", "chart", "layout"}
    kinds = Counter(q.meta_info.query_type for q in train)
    assert set(kinds) == {"single_hop", "multi_hop", "comparison", "arithmetic", "unanswerable"}
    assert min(kinds.values()) >= 3
    assert len({q.reference_answer for q in train}) > 0.6 * len(train)
    share = sum(q.meta_info.needs_crop for q in train) / len(train)
    assert 0.4 < share < 0.9


def test_unanswerable_questions_point_nowhere(questions):
    found = [q for q in everything(questions) if q.meta_info.query_type == "unanswerable"]
    assert found
    for question in found:
        assert question.reference_answer == "not answerable"
        assert question.meta_info.reference_page == []
        assert question.meta_info.needed_facts == []


def number(text: str) -> float:
    return float(re.sub(r"[^\d.-]", "", text))


def test_answers_of_several_values_follow_from_the_values(questions):
    checked: Counter[str] = Counter()
    for question in everything(questions):
        kind = question.meta_info.query_type
        if kind not in ("multi_hop", "comparison", "arithmetic"):
            continue
        first, second = (number(fact["value"]) for fact in question.meta_info.needed_facts)
        if kind == "arithmetic":
            adds = "add up" in question.query
            expected = first + second if adds else abs(first - second)
            assert number(question.reference_answer) == pytest.approx(expected, abs=1e-6)
        else:
            assert question.reference_answer in question.query
            lower = re.search(r"which is lower:|figure lower:|has the lower |lower for ", question.query) is not None
            wanted = 0 if (first < second) == lower else 1
            assert question.reference_answer == question.meta_info.needed_facts[wanted]["name"]
            one, other = (fact["number"] for fact in question.meta_info.needed_facts)
            assert (one < other) == (first < second)
        if kind == "multi_hop":
            assert len(question.meta_info.reference_page) == 2
        checked[kind] += 1
    assert len(checked) == 3


# ---------------------------------------------------------------------------------------------------------- splits


def test_source_tables_and_families_are_disjoint_between_splits(questions):
    for kind in ("source", "layout_family"):
        seen = [{getattr(q.meta_info, kind) for q in questions[split]} for split in SPLITS]
        assert all(seen)
        assert sum(map(len, seen)) == len(set.union(*seen))
    for split in SPLITS:
        assert {q.meta_info.layout_family for q in questions[split]} <= {f.name for f in families(split)}


def test_pretraining_uses_training_families_and_reads_training_tables_only(monkeypatch):
    asked = set()

    def watched(split: str, *args: object):
        asked.add(split)
        return load_series(split, *args)

    monkeypatch.setattr(generate, "load_series", watched)
    train = {family.name for family in families("train")}
    sources = {series.dataset for split in ("dev", "test") for series in load_series(split)}
    for seed in range(12):
        pdf, questions = pretraining_deck(seed)
        assert pdf.startswith(b"%PDF")
        assert len(questions) >= 8
        assert {q.meta_info.layout_family for q in questions} <= train
        assert not {q.meta_info.source for q in questions} & sources
    assert asked == {"train"}


def test_mixed_families_stay_training_families():
    rng = random.Random(0)
    known = {family.title for family in families("train")} | {"aside", "foot"}
    unknown = {family.title for split in ("dev", "test") for family in families(split)} - known
    assert "sidebar" in unknown
    mixed = [mixed_family(rng) for _ in range(200)]
    assert {family.split for family in mixed} == {"train"}
    assert {family.title for family in mixed} == known
    assert {family.title for family in mixed if family.kind == "report"} <= {"underline", "band"}


def test_mixed_families_leave_room_on_paper_of_many_shapes():
    rng = random.Random(0)
    mixed = [mixed_family(rng) for _ in range(60)]
    assert len({family.page_size for family in mixed}) > 20
    for family in mixed:
        (width, height), (left, top, right, bottom) = family.page_size, family.margins
        column = family.column * width if family.title == "aside" else 0
        assert width - left - right - column >= 0.55 * width
        assert top + bottom <= 0.15 * height


@pytest.mark.parametrize("title", ["aside", "foot"])
@pytest.mark.parametrize("filled", [False, True])
def test_titles_beside_and_under_the_content_stand_clear_of_it(title: str, filled: bool):
    family = next(family for family in FAMILIES if family.name == "plain")
    margins = (60.0, 12.0, 8.0, 20.0)
    family = replace(family, title=title, margins=margins, filled=filled, column=0.3, cut=0.42, flipped=True)
    deck = make_deck(random.Random(3), load_series("train")[0], family, "deck")
    with pymupdf.open(stream=deck.pdf, filetype="pdf") as document:
        spans = [_headings(page) for page in document]
    checked = 0
    for fact in deck.facts:
        x0, _, x1, y1 = fact.region
        if fact.page == 1:
            continue
        for text, box in spans[fact.page - 1]:
            if fact.page_title.startswith(text):
                apart = box[0] >= x1 - 1 if title == "aside" else box[1] >= y1 - 9
                assert apart, (fact.page, text, box, fact.region)
                checked += 1
        assert x0 >= 60 - 1
    assert checked > 20


def _headings(page: pymupdf.Page) -> list[tuple[str, tuple[float, ...]]]:
    """The lines in a title's size, with where they stand, in points."""
    lines = [line for block in page.get_text("dict")["blocks"] for line in block.get("lines", ())]
    spans = [span for line in lines for span in line["spans"] if "Bold" in span["font"] and span["size"] > 11]
    return [(span["text"].strip(), span["bbox"]) for span in spans if len(span["text"].strip()) > 3]


def test_filled_margins_are_coloured_and_panels_stand_where_pages_are_cut():
    family = next(family for family in FAMILIES if family.name == "journal")
    series = load_series("train")[0]
    bare, filled = (
        make_deck(
            random.Random(3), series, replace(family, margins=(40.0, 30.0, 20.0, 0.0), filled=fill, cut=0.4), "deck"
        )
        for fill in (False, True)
    )
    assert [fact.region for fact in bare.facts] == [fact.region for fact in filled.facts]
    with pymupdf.open(stream=bare.pdf) as plain, pymupdf.open(stream=filled.pdf) as coloured:
        assert plain[2].get_pixmap().pixel(10, 400) == plain[2].get_pixmap().pixel(300, 838)
        assert coloured[2].get_pixmap().pixel(10, 400) != coloured[2].get_pixmap().pixel(300, 838)
    width = 595 - 2 * 46 - 60
    panels = [fact.region for fact in bare.facts if fact.page > 1 and fact.source_type in ("chart", "table")]
    assert {round(x0) for x0, *_ in panels} <= {
        round(left + shift) for left in (86, 86 + 0.4 * (width - 20) + 20) for shift in (-3, -2, -1, 0, 1)
    }


@pytest.mark.parametrize(
    ("name", "paper", "side", "foot"), [("plain", (720.0, 500.0), 40, 34), ("journal", (595.0, 800.0), 46, 48)]
)
def test_margins_stay_empty(name: str, paper: tuple[float, float], side: float, foot: float):
    family = next(family for family in FAMILIES if family.name == name)
    family = replace(family, margins=(50.0, 30.0, 20.0, 25.0), paper=paper)
    deck = make_deck(random.Random(3), load_series("train")[0], family, "deck")
    with pymupdf.open(stream=deck.pdf, filetype="pdf") as document:
        words = [word[:4] for page in document if page.number for word in page.get_text("words")]
    width, height = paper
    assert min(x0 for x0, *_ in words) >= 50 + side - 1
    assert max(x1 for _, _, x1, _ in words) <= width - 20 - side + 1
    assert min(y0 for _, y0, *_ in words) >= 30
    above_the_footer = [y1 for _, y0, _, y1 in words if y0 < height - foot]
    assert max(above_the_footer) <= height - 25 - foot + 3


# ----------------------------------------------------------------------------------------------------- determinism


def test_the_same_seed_gives_the_same_bytes_in_another_process():
    pdf, questions = pretraining_deck(11)
    code = (
        "import hashlib\nfrom vrag_nb.documents.decks.generate import pretraining_deck\n"
        "pdf, questions = pretraining_deck(11)\n"
        "print(hashlib.sha256(pdf).hexdigest(), len(questions), questions[-1].query)"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "321"}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    expected = f"{hashlib.sha256(pdf).hexdigest()} {len(questions)} {questions[-1].query}"
    assert run.stdout.strip() == expected
    assert pretraining_deck(12)[0] != pdf


def snapshot(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_a_killed_run_is_finished_by_the_next_with_the_same_bytes(tmp_path, monkeypatch):
    sizes = {"train": (2, 30), "dev": (1, 10), "test": (1, 10)}
    generate_corpus(tmp_path / "calm", sizes=sizes)
    write, calls = generate._write, []

    def dying(path: Path, content: bytes) -> None:
        calls.append(path)
        if len(calls) == 3:
            path.with_name(f".{path.name}.partial").write_bytes(content[: len(content) // 2])
            raise KeyboardInterrupt
        write(path, content)

    monkeypatch.setattr(generate, "_write", dying)
    with pytest.raises(KeyboardInterrupt):
        generate_corpus(tmp_path / "killed", sizes=sizes)
    assert not (tmp_path / "killed" / generate.MARKER).exists()
    monkeypatch.setattr(generate, "_write", write)
    assert generate_corpus(tmp_path / "killed", sizes=sizes).fresh
    assert snapshot(tmp_path / "killed") == snapshot(tmp_path / "calm")


def test_a_finished_corpus_is_left_alone_and_another_seed_replaces_it(tmp_path):
    sizes = {"train": (2, 20), "dev": (1, 5), "test": (1, 5)}
    assert generate_corpus(tmp_path, sizes=sizes).fresh
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    again = generate_corpus(tmp_path, sizes=sizes)
    assert not again.fresh
    assert again.questions == {"train": 20, "dev": 5, "test": 5}
    assert times == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    (tmp_path / "documents" / "mine.pdf").write_bytes(b"%PDF-")
    assert generate_corpus(tmp_path, seed=5, sizes=sizes).fresh
    listed = set(json.loads((tmp_path / generate.MARKER).read_text())["files"])
    there = {f"documents/{path.name}" for path in (tmp_path / "documents").iterdir()}
    assert there == {name for name in listed if name.startswith("documents/")} | {"documents/mine.pdf"}


def test_counts_are_exact_and_impossible_ones_refused(tmp_path, corpus, questions):
    assert {split: len(questions[split]) for split in SPLITS} == {split: SIZES[split][1] for split in SPLITS}
    assert len(list((corpus / "documents").glob("*.pdf"))) == sum(decks for decks, _ in SIZES.values())
    with pytest.raises(ValueError, match="ask for more decks"):
        generate_decks(tmp_path, "dev", decks=1, questions=5000)
    with pytest.raises(ValueError, match="no split 'exam'"):
        generate_decks(tmp_path, "exam", decks=1, questions=1)
    with pytest.raises(FileNotFoundError, match="run `python -m"):
        generate_decks(tmp_path, "dev", decks=1, questions=1, tables_dir=tmp_path)


def test_more_decks_than_series_become_editions(tmp_path):
    count = len(load_series("dev")) + 2
    questions = generate_decks(tmp_path, "dev", decks=count, questions=3 * count)
    assert len(list((tmp_path / "documents").glob("*.pdf"))) == count
    assert len({question.document for question in questions}) == count


def test_the_default_corpus_is_large_enough():
    decks = sum(decks for decks, _ in generate.DEFAULT_SIZES.values())
    assert decks >= 60
    assert generate.DEFAULT_SIZES["train"][1] >= 2000
    assert min(generate.DEFAULT_SIZES[split][1] for split in ("dev", "test")) >= 300


# ----------------------------------------------------------------------------------------------------------- pages


@pytest.fixture(scope="module")
def drawn() -> list[tuple[str, list]]:
    """Every family drawn twice, from a real and from a made-up series: its name and its sheets."""
    kept: list = []
    original = plan._Writer.__init__

    def remember(self, *args: object) -> None:
        original(self, *args)
        kept.append(self)

    patch = pytest.MonkeyPatch()
    patch.setattr(plan._Writer, "__init__", remember)
    for number, family in enumerate(FAMILIES * 2):
        rng = random.Random(number)
        made_up = number >= len(FAMILIES)
        series = synthetic_series(rng) if made_up else rng.choice(load_series(family.split))
        plan.make_deck(rng, series, family, "deck")
    patch.undo()
    return [(writer.style.family.name, writer.sheets) for writer in kept]


def test_decks_have_8_to_14_pages_with_titles_of_their_own(drawn):
    for name, sheets in drawn:
        assert 8 <= len(sheets) <= 14, name
        titles = [sheet.title for sheet in sheets]
        assert all(titles)
        assert len(set(titles)) == len(titles), name


def test_no_text_leaves_the_page_or_runs_into_another(drawn):
    for name, sheets in drawn:
        for sheet in sheets:
            canvas = sheet.canvas
            for index, (x0, y0, x1, y1) in enumerate(canvas.ink):
                inside = x0 >= 0 and y0 >= -1 and x1 <= canvas.width + 0.5 and y1 <= canvas.height
                assert inside, (name, sheet.number)
                for a0, b0, a1, b1 in canvas.ink[:index]:
                    # A line box is taller than its letters: what may overlap is the empty fifth above and below.
                    apart = (
                        x0 >= a1 - 0.3 or a0 >= x1 - 0.3 or y0 >= b1 - 0.22 * (b1 - b0) or b0 >= y1 - 0.22 * (y1 - y0)
                    )
                    assert apart, (name, sheet.number, sheet.title)


def test_each_cell_stands_on_one_page_only(drawn):
    for name, sheets in drawn:
        places = Counter()
        for sheet in sheets:
            for fact in sheet.facts:
                if fact.mark is not None:
                    block, mark = fact.cell
                    places[(id(block.table), mark.row, mark.column)] += 1
        assert max(places.values()) == 1, name


def test_blocks_of_a_series_share_no_cell():
    for seed in range(20):
        rng = random.Random(seed)
        seen = Counter(
            (block.table.table_id, row, column)
            for block in deal(rng, synthetic_series(rng), 20)
            for row in block.rows
            for column in block.columns
        )
        assert max(seen.values()) == 1


# ---------------------------------------------------------------------------------------------------------- sources


def test_every_table_has_a_licence_and_enough_rows():
    entries = json.loads((TABLES / "sources.json").read_text(encoding="utf-8"))["series"]
    assert len(entries) >= 60
    assert sum(len(entry["tables"]) for entry in entries) >= 120
    assert len({entry["name"] for entry in entries}) == len(entries)
    split_of: dict[str, str] = {}
    for entry in entries:
        assert entry["licence"]
        assert entry["origin"]
        assert split_of.setdefault(entry["dataset"], entry["split"]) == entry["split"]
    listed = {table["file"] for entry in entries for table in entry["tables"]}
    assert listed == {path.name for path in TABLES.glob("*.csv")}
    assert sum(path.stat().st_size for path in TABLES.iterdir()) < 3_000_000
    for split in SPLITS:
        for series in load_series(split):
            for table in series.tables:
                assert len(table.labels) >= 4
                assert len(set(table.labels)) == len(table.labels)
                assert all(math.isfinite(value) for row in table.values for value in row)


def test_sources_markdown_names_every_data_set():
    text = (TABLES / "SOURCES.md").read_text(encoding="utf-8")
    for entry in json.loads((TABLES / "sources.json").read_text(encoding="utf-8"))["series"]:
        assert entry["title"] in text
        assert entry["licence"] in text


# ------------------------------------------------------------------------------------------------------ small parts


def test_numbers_are_printed_as_their_column_says():
    assert Column("Price", prefix="$", decimals=2).show(1234.5) == "$1,234.50"
    assert Column("Change", suffix="%", decimals=1).show(-3.14) == "-3.1%"
    assert Column("Balance", prefix="$").show(-12) == "-$12"
    assert Column("Zero", decimals=1).show(-0.04) == "0.0"


def test_wrapping_keeps_every_word_and_the_width():
    font = face("helv")
    text = "The quick brown fox jumps over the lazy dog and runs away"
    lines = wrap(text, font, 12, 90)
    assert " ".join(lines) == text
    assert all(font.width(line, 12) <= 90 for line in lines)


def test_a_font_that_lacks_a_character_says_so():
    with pytest.raises(ValueError, match="has no glyph"):
        Canvas(100, 100).text(0, 50, "\u4e2d", face("helv"), 10, (0, 0, 0))


def test_pretraining_draws_twenty_families_of_fonts_and_corpora_only_their_own() -> None:
    names = {key: face(regular).font.name for key, (regular, _) in FONTS.items()}
    assert len(set(names.values())) == len(FONTS) >= 20
    assert all(face(file).has("In 2019: 1,234.5% of £7 – and $8°") for pair in FONTS.values() for file in pair)
    of_corpora = {key for family in FAMILIES for pair in family.fonts for key in pair}
    of_pretraining = {key for pair in PRETRAINING_FONTS for key in pair}
    assert not of_corpora & of_pretraining
    assert of_corpora | of_pretraining == set(FONTS)
    rng = random.Random(0)
    drawn = {key for _ in range(200) for pair in mixed_family(rng).fonts for key in pair}
    assert of_pretraining <= drawn


def test_a_font_whose_package_is_missing_is_named() -> None:
    with pytest.raises(FileNotFoundError, match="install the package font-nowhere"):
        font_file("font_nowhere/Nowhere-Regular.ttf")
