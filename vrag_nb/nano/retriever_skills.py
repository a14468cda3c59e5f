"""The skill sheet of a retriever: which pages it finds, and whether it looks at the right words of them.

    python -m vrag_nb.nano.retriever_skills [--profile nano] [--out results/skills/nano-retriever]

Of test questions with one gold page, on decks of our own and on foreign slides:

- pages found: recall@1, recall@5 and nDCG@5 among all pages, and whether the page found first is of the right document,
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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pymupdf
from tqdm.auto import tqdm

from vrag_nb.agent.geometry import Box
from vrag_nb.agent.searching import search_each
from vrag_nb.display.matches import Matches, Word
from vrag_nb.evaluation.evaluate import question_type
from vrag_nb.evaluation.metrics import Interval, bootstrap, ndcg_at_k, recall_at_k, share_interval
from vrag_nb.nano.samples import is_telling
from vrag_nb.nano.skills import PRINT_BINS, Scores, as_markdown, print_bin, print_label, write_sheet
from vrag_nb.profiles import load_profile
from vrag_nb.records import Page, Question, read_questions
from vrag_nb.retrieval.engine import SearchEngine

CUT = 5
FACTOR = 28  # pixels of a patch, both ways
Ranking = dict[str, list[str]]


def ranked_pages(engine: SearchEngine, questions: Sequence[Question], words: Callable[[Question], str]) -> Ranking:
    """The first CUT pages for each question, put as `words` says; none where a search failed."""
    found = search_each(engine, [words(question) for question in questions], CUT)
    return {
        question.uid: [] if isinstance(hits, Exception) else [hit.page_id for hit in hits]
        for question, hits in zip(questions, found, strict=True)
    }


def pages_found(ranked: Ranking, questions: Sequence[Question], engine: SearchEngine) -> Scores:
    """What one way of asking finds, question by question."""
    gold = {question.uid: question.gold_page_ids for question in questions}
    documents = {question.uid: question.document for question in questions}
    scores = {f"recall@{cut}": list(recall_at_k(ranked, gold, cut).values()) for cut in (1, CUT)}
    scores[f"nDCG@{CUT}"] = list(ndcg_at_k(ranked, gold, CUT).values())
    scores["right document first"] = [
        float(bool(pages) and engine.page(pages[0]).document == documents[uid]) for uid, pages in ranked.items()
    ]
    return scores


def by_kind(ranked: Ranking, questions: Sequence[Question]) -> Scores:
    """recall@1 by what is asked."""
    return _grouped(ranked, questions, {question.uid: question_type(question) for question in questions})


def by_print(ranked: Ranking, questions: Sequence[Question], engine: SearchEngine, budget: int) -> Scores:
    """recall@1 by the height of the answer's print, of questions with one fact that is printed; smallest first."""
    groups = {}
    for question in questions:
        facts = question.needed_facts
        if len(facts) == 1 and facts[0]["printed"]:
            page = engine.page(question.gold_page_ids[0])
            groups[question.uid] = print_bin(shown_height(page, facts[0]["answer_box"], budget))
    scores = _grouped(ranked, questions, groups)
    return {label: scores[label] for label in map(print_label, range(len(PRINT_BINS) - 1)) if label in scores}


def shown_height(page: Page, box: Box, budget: int) -> float:
    """Pixels from top to bottom of a box (page fractions) where the page is shown as `budget` patches."""
    scale = min(1.0, (budget * FACTOR**2 / (page.width * page.height)) ** 0.5)
    return (box[3] - box[1]) * page.height * scale


def _grouped(ranked: Ranking, questions: Sequence[Question], groups: dict[str, str]) -> Scores:
    gold = {question.uid: question.gold_page_ids for question in questions if question.uid in groups}
    scores: Scores = {}
    for uid, value in recall_at_k({uid: ranked[uid] for uid in gold}, gold, 1).items():
        scores.setdefault(groups[uid], []).append(value)
    return dict(sorted(scores.items()))


def words_met(engine: SearchEngine, questions: Sequence[Question], documents: Path) -> Scores:
    """Of each telling word of a query that is printed on the gold page: 1 where its best patch lies on one of its
    places, and the share of all patches that do. One value a question, the mean over its words.
    """
    found: Scores = {"best patch lies on the word": [], "a patch at random": []}
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
            hits, chances = zip(*met, strict=True)
            found["best patch lies on the word"].append(float(np.mean(hits)))
            found["a patch at random"].append(float(np.mean(chances)))
    return found


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


def retriever_sheet(
    engine: SearchEngine, questions: Sequence[Question], documents: Path, maps: int, budget: int
) -> dict[str, Scores]:
    """The sections about one corpus; `maps`: so many questions have their words looked at."""
    asked = [question for question in questions if len(question.gold_page_ids) == 1]
    hinted = [question for question in asked if len(question.needed_facts) == 1]
    plain = ranked_pages(engine, asked, lambda question: question.query)
    keywords = ranked_pages(engine, hinted, lambda question: question.needed_facts[0]["search_hint"])
    found = {f"question, {name}": values for name, values in pages_found(plain, asked, engine).items()}
    found |= {f"keywords, {name}": values for name, values in pages_found(keywords, hinted, engine).items()}
    sheet = {
        "pages found": found,
        "recall@1 by what is asked": by_kind(plain, asked),
        "recall@1 by print, pixels": by_print(plain, asked, engine, budget),
    }
    return sheet | ({"words": words_met(engine, asked[:maps], documents)} if engine.embedder.multi_vector else {})


def scored(scores: Scores, seed: int = 0) -> dict[str, Interval]:
    """Intervals: exact ones at the ends where values are shares of hits."""
    whole = {row: all(value in (0.0, 1.0) for value in values) for row, values in scores.items()}
    return {row: (share_interval if whole[row] else bootstrap)(values, seed) for row, values in scores.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", default="nano", help="whose corpus, index and retriever")
    parser.add_argument("--out", type=Path, default=Path("results/skills/nano-retriever"))
    parser.add_argument("--foreign", type=Path, default=Path("data/foreign"))
    parser.add_argument("--split", default="test", choices=("dev", "test"))
    parser.add_argument("--maps", type=int, default=60, help="questions whose words are looked at, of each corpus")
    parser.add_argument("--budget", type=int, default=640, help="patches of a page as the retriever is shown it")
    options = parser.parse_args()
    own = load_profile(options.profile)
    foreign = own.on_documents(options.foreign / "documents", own.corpus_folder.with_name("foreign"))
    foreign.prepare_corpus()
    foreign.build_index()
    sheet: dict[str, Any] = {}
    for name, profile, folder in (("own", own, own.corpus_folder), ("foreign", foreign, options.foreign)):
        questions = read_questions(folder / f"questions.{options.split}.json")
        engine = profile.search_engine()
        if not isinstance(engine, SearchEngine):
            raise SystemExit(f"profile {profile.name} has a {type(engine).__name__}; one retriever is looked at here")
        sections = retriever_sheet(engine, questions, folder / "documents", options.maps, options.budget)
        for section, scores in sections.items():
            rows = {row: interval.model_dump() for row, interval in scored(scores).items()}
            sheet[f"{section}, {name} decks"] = {"": rows}
    write_sheet(sheet, options.out, "vrag_nb.nano.retriever_skills")
    print(as_markdown(sheet))


if __name__ == "__main__":
    main()
