"""Foreign decks on disk: HTML slides printed to PDF by Chromium, with measured gold regions.

    python -m vrag_nb.documents.foreign.generate data/foreign

needs a Chromium (CHROMIUM names one), the Python package playwright, and the fonts that `data/foreign/README.md`
names. What it makes is committed, so that the models can be measured where there is no browser. Nothing in
`vrag_nb.nano` reads it.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pymupdf
from tqdm.auto import tqdm

from vrag_nb.documents.decks.elements import Fact
from vrag_nb.documents.decks.plan import Deck
from vrag_nb.documents.decks.questions import make_questions
from vrag_nb.documents.decks.tables import TABLES, load_series
from vrag_nb.documents.foreign.slides import Writer, write_deck
from vrag_nb.records import Question, write_questions

SLIDE = (1280.0, 720.0)  # CSS pixels
SIZES = {"dev": (6, 90), "test": (24, 300)}  # split: (decks, questions)
EDITIONS = ("Slides", "Talk", "Handout", "Lecture")

# Per fact: where its text stands on its slide, the nearest region around it, its print size, and whether it is whole.
MEASURE = """() => Object.fromEntries([...document.querySelectorAll('[data-fact]')].map(element => {
  const slide = element.closest('.slide').getBoundingClientRect();
  const place = box => [box.left - slide.left, box.top - slide.top, box.right - slide.left, box.bottom - slide.top];
  const range = document.createRange(); range.selectNodeContents(element);
  const own = place(range.getBoundingClientRect());
  const region = place((element.closest('[data-region]') || element).getBoundingClientRect());
  const label = element.closest('.card')?.querySelector('.what') || element;  // what names the value is smaller print
  const size = Math.min(...[element, label].map(one => parseFloat(getComputedStyle(one).fontSize)));
  const inside = box => box[0] >= 0 && box[1] >= 0 && box[2] <= slide.width && box[3] <= slide.height;
  const whole = inside(own) && inside(region);
  return [element.dataset.fact, {box: own, region, size, whole}];
}))"""


@contextmanager
def chromium() -> Iterator[Any]:
    """A playwright browser. Raises RuntimeError that says what is missing."""
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise RuntimeError("foreign decks need the Python package playwright (extra `dev`)") from None
    if found is None:
        raise RuntimeError(
            "foreign decks need a Chromium: install one (Debian: apt-get install chromium) or set CHROMIUM"
        )
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


def print_deck(browser: Any, writer: Writer, deck_id: str) -> Deck:
    """Lay the slides out, print them, and measure the facts; facts that are cut off are dropped."""
    page = browser.new_page(viewport={"width": int(SLIDE[0]), "height": int(SLIDE[1])})
    page.set_content(writer.document(), wait_until="load")
    page.evaluate("() => document.fonts.ready")
    places = page.evaluate(MEASURE)
    pdf = page.pdf(prefer_css_page_size=True, print_background=True)
    page.close()
    facts = measured(writer.facts, places)
    return Deck(
        deck_id, writer.name, writer.series, f"foreign {writer.theme}", clean(pdf), facts, [SLIDE] * len(writer.slides)
    )


def measured(facts: Mapping[int, Fact], places: Mapping[str, Mapping[str, Any]]) -> list[Fact]:
    """The facts with their boxes, in CSS pixels of their slide; without those that are not wholly on it."""
    found = []
    for key, fact in facts.items():
        place = places[str(key)]
        if place["whole"]:
            x0, y0, x1, y1 = place["region"]
            region = (max(0.0, x0 - 3), max(0.0, y0 - 3), min(SLIDE[0], x1 + 3), min(SLIDE[1], y1 + 3))
            found.append(replace(fact, box=tuple(place["box"]), region=region, size=place["size"]))
    return found


def clean(pdf: bytes) -> bytes:
    """The PDF without dates and identifiers, so that the same pages are the same bytes."""
    with pymupdf.open(stream=pdf, filetype="pdf") as document:
        document.set_metadata({})
        document.del_xml_metadata()
        return document.tobytes(garbage=4, deflate=True, no_new_id=True)


def generate_foreign(out: Path, seed: int = 0, tables: Path = TABLES) -> dict[str, int]:
    """Write `documents/*.pdf` and `questions.{dev,test}.json` to `out`; questions per split."""
    documents = Path(out) / "documents"
    documents.mkdir(parents=True, exist_ok=True)
    counts = {}
    with chromium() as browser:
        for split, (decks, wanted) in SIZES.items():
            questions: list[Question] = []
            for number in tqdm(range(decks), desc=f"{split} decks", unit="deck"):
                rng = random.Random(f"{seed}/foreign/{split}/{number}")
                series = load_series(split, tables)
                one = series[number % len(series)]
                name = f"{one.name} {EDITIONS[number // len(series)]}"
                deck = print_deck(browser, write_deck(rng, one, name), name.lower().replace(" ", "-"))
                (documents / f"{deck.deck_id}.pdf").write_bytes(deck.pdf)
                questions += make_questions(rng, deck, -(-wanted // decks))
            write_questions(Path(out) / f"questions.{split}.json", questions)
            counts[split] = len(questions)
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    print(generate_foreign(parser.parse_args().out))


if __name__ == "__main__":
    main()
