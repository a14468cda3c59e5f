"""The skill sheet of a retriever: which pages it finds, and whether it looks at the right words of them.

    python -m vrag_nb.nano.retriever_skills [--profile nano] [--out results/skills/nano-retriever]

Of test questions with one gold page, on decks of our own and on foreign slides:

- pages found: recall@1, 3 and 5 and nDCG@5 among all pages, and whether the page found first is of the right document,
  for the question as it is asked and for the keywords that an expert would search for;
- recall@1 by what is asked, and by how high the print of the answer is on the page as the retriever is shown it;
- words: of the query's words that are printed on the gold page, how often the patch that is most like them lies on one
  of the places where they stand (`Embedder.similarity_map`), and how often a patch chosen at random would. A retriever
  with one vector a page has no such section.

Scores come with bootstrap intervals. Needs the prepared corpus and its index (`make run`); the foreign slides are
prepared once, below data/corpora.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pymupdf
from tqdm.auto import tqdm

from vrag_nb.agent.geometry import Box
from vrag_nb.evaluation.evaluate import question_type, rank_pages, retrieval_metrics
from vrag_nb.evaluation.metrics import share_interval
from vrag_nb.nano.retriever import PAGE_BUDGET
from vrag_nb.nano.samples import is_telling
from vrag_nb.nano.skills import PRINT_LABELS, as_markdown, on_foreign, print_bin, write_sheet
from vrag_nb.profiles import load_profile, sample
from vrag_nb.records import Hit, Page, Question, read_questions
from vrag_nb.retrieval.engine import SearchEngine
from vrag_nb.retrieval.matches import Matches, Word

Rankings = Mapping[str, list[Hit] | Exception]
Rows = dict[str, dict[str, Any]]  # of a sheet: {value, low, high, n}


def pages_found(rankings: Rankings, questions: Sequence[Question], document: Callable[[str], str]) -> Rows:
    """Recall and nDCG, and how often the page found first is of the right document; `document`: that of a page."""
    found = {uid: [] if isinstance(hits, Exception) else hits for uid, hits in rankings.items()}
    right = [float(any(document(hit.page_id) == one.document for hit in found[one.uid][:1])) for one in questions]
    told = share_interval(right).model_dump()
    return {**retrieval_metrics(questions, rankings), "right document first": told}


def recall_by(rankings: Rankings, questions: Sequence[Question], group: Callable[[Question], str | None]) -> Rows:
    """recall@1 of each group of questions, by its name; None: in no group."""
    groups: dict[str, list[Question]] = {}
    for question in questions:
        if name := group(question):
            groups.setdefault(name, []).append(question)
    return {name: retrieval_metrics(asked, rankings)["recall@1"] for name, asked in sorted(groups.items())}


def answer_print(question: Question, page: Page) -> str | None:
    """Which of PRINT_LABELS the answer's print has where the retriever is shown its page whole; None where it is not
    one printed fact."""
    facts = question.needed_facts
    if len(facts) != 1 or not facts[0]["printed"]:
        return None
    _, top, _, bottom = facts[0]["answer_box"]
    return print_bin((bottom - top) * PAGE_BUDGET.size(page.width, page.height)[1])


def words_met(engine: SearchEngine, questions: Sequence[Question], documents: Path) -> Rows:
    """Of each telling word of a query that is printed on the gold page: whether its best patch lies on one of its
    places, and the share of all patches that do. One value a question, the mean over its words.
    """
    hits, chances = list[float](), list[float]()
    for question in tqdm(questions, desc="similarity maps", unit="question", leave=False):
        page = engine.page(question.gold_page_ids[0])
        printed = printed_words(documents / f"{page.document}.pdf", page.page)
        matches = Matches.of(engine.similarity_map(question.query, page.page_id), question.query)
        met = [
            word_met(matches, word, printed[key])
            for word in matches.words
            if not word.added and is_telling(key := _plain(word.text)) and key in printed
        ]
        if met:
            hit, chance = np.mean(met, axis=0)
            hits.append(float(hit))
            chances.append(float(chance))
    rows = {"best patch lies on the word": hits, "a patch at random": chances}
    return {name: share_interval(values).model_dump() for name, values in rows.items()}


def printed_words(pdf: Path, number: int) -> dict[str, list[Box]]:
    """The words of a page, lower case and without the punctuation around them: where each stands, page fractions."""
    places: dict[str, list[Box]] = {}
    with pymupdf.open(pdf) as document:
        page = document[number - 1]
        width, height = page.rect.width, page.rect.height
        for x0, y0, x1, y1, text, *_ in page.get_text("words"):
            box = (x0 / width, y0 / height, x1 / width, y1 / height)
            places.setdefault(_plain(text), []).append(box)
    return places


def _plain(word: str) -> str:
    return word.lower().strip(".,:;?!()[]{}\"'“”‘’%")


def word_met(matches: Matches, word: Word, places: Sequence[Box]) -> tuple[float, float]:
    """Whether the patch most like a word touches one of its places; the share of all patches that do."""
    rows, columns = matches.grid
    touched = np.zeros((rows, columns), bool)
    for x0, y0, x1, y1 in places:
        down = slice(int(y0 * rows), max(int(y0 * rows) + 1, int(np.ceil(y1 * rows))))
        touched[down, int(x0 * columns) : max(int(x0 * columns) + 1, int(np.ceil(x1 * columns)))] = True
    return float(touched.flat[int(matches.heat(word).argmax())]), float(touched.mean())


def retriever_sheet(engine: SearchEngine, questions: Sequence[Question], documents: Path, maps: int) -> dict[str, Rows]:
    """The sections about one corpus; `maps`: so many questions, of all documents,
    have their words looked at."""
    asked = [question for question in questions if len(question.gold_page_ids) == 1]
    hinted = [question for question in asked if len(question.needed_facts) == 1]
    plain, document = rank_pages(engine, asked), lambda name: engine.page(name).document
    keywords = rank_pages(engine, hinted, lambda question: question.needed_facts[0]["search_hint"])
    found = {f"question, {name}": row for name, row in pages_found(plain, asked, document).items()}
    found |= {f"keywords, {name}": row for name, row in pages_found(keywords, hinted, document).items()}
    prints = recall_by(plain, asked, lambda one: answer_print(one, engine.page(one.gold_page_ids[0])))
    sheet = {
        "pages found": found,
        "recall@1 by what is asked": recall_by(plain, asked, question_type),
        "recall@1 by print, pixels": {label: prints[label] for label in PRINT_LABELS if label in prints},
    }
    return sheet | (
        {"words": words_met(engine, sample(asked, maps), documents)} if engine.embedder.multi_vector else {}
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", default="nano", help="whose corpus, index and retriever")
    parser.add_argument("--out", type=Path, default=Path("results/skills/nano-retriever"))
    parser.add_argument("--foreign", type=Path, default=Path("data/foreign"))
    parser.add_argument("--split", default="test", choices=("dev", "test"))
    parser.add_argument("--maps", type=int, default=60, help="questions whose words are looked at, of each corpus")
    options = parser.parse_args()
    own = load_profile(options.profile)
    foreign = on_foreign(own, options.foreign)
    sheet: dict[str, Any] = {}
    for name, profile, folder in (("own", own, own.corpus_folder), ("foreign", foreign, options.foreign)):
        questions = read_questions(folder / f"questions.{options.split}.json")
        engine = profile.search_engine()
        if not isinstance(engine, SearchEngine):
            raise SystemExit(f"profile {profile.name} has a {type(engine).__name__}; one retriever is looked at here")
        sections = retriever_sheet(engine, questions, folder / "documents", options.maps)
        sheet |= {f"{section}, {name} decks": {"": rows} for section, rows in sections.items()}
    write_sheet(sheet, options.out, "vrag_nb.nano.retriever_skills")
    print(as_markdown(sheet))


if __name__ == "__main__":
    main()
