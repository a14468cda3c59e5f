"""A tiny corpus with a real trajectory on it: three slides and a portrait report, drawn with PyMuPDF.

The trajectory is played by the real environment from scripted words, so what the display draws is what agents record.
"""

from __future__ import annotations

from pathlib import Path

import pymupdf

from vrag_nb.agent.environment import Environment, Settings
from vrag_nb.agent.policy import Generation
from vrag_nb.agent.trajectory import Trajectory, write_trajectories
from vrag_nb.records import Hit, MetaInfo, Page, Question, Region, page_id, write_pages

SETTINGS = Settings(min_pixels=96 * 784, max_pixels=168 * 784, max_turns=5, top_k=8, padding=4)
GOLD_BOX = (0.08, 0.55, 0.62, 0.67)

QUESTION = Question(
    uid="energy-1",
    query="What share of electricity came from hydro power in 2019, in percent?",
    reference_answer="43.6",
    meta_info=MetaInfo(
        file_name="energy.pdf",
        reference_page=[2],
        source_type="table",
        query_type="single_hop",
        reference_regions=[Region(page=2, box=GOLD_BOX)],
    ),
)
WRITTEN = [
    "<think>I need the electricity table.</think>\n<search>electricity mix by source 2019</search>",
    "<think>This is the title page; the table comes later.</think>\n<search>hydro power share table</search>",
    "<think>The hydro row is too small to read. I crop it.</think>\n<bbox>[36, 120, 330, 190]</bbox>",
    "<think>Closer still, to the row itself.</think>\n<bbox>[0, 30, 420, 500]</bbox>",
    "<think>Let me look here.</think>\n<bbox>[900, 900, 950, 960]</bbox>",
    "<think>The row reads 43.6.</think>\n<answer>43.6</answer>",
]


class FixedEngine:
    """Ranks the pages by a fixed order that depends on one word of the query."""

    def search(self, queries: list[str], top_k: int = 3) -> list[list[Hit]]:
        return [self._one(query)[:top_k] for query in queries]

    def _one(self, query: str) -> list[Hit]:
        ids = [
            page_id("energy", 1),
            page_id("energy", 2),
            page_id("energy", 3),
            *(page_id("report", n) for n in (1, 2, 3)),
        ]
        if "hydro" in query:
            ids = [ids[1], *ids[:1], *ids[2:]]
        return [Hit(page_id=one, score=14.2 - 1.37 * rank, rank=rank) for rank, one in enumerate(ids, start=1)]


def make_corpus(folder: Path) -> Path:
    """Write the corpus: page images at 150 dpi and `pages.parquet`."""
    (folder / "pages").mkdir(parents=True)
    pages = []
    for document, draw, size in (("energy", _slide, (720, 405)), ("report", _report, (420, 594))):
        for number in (1, 2, 3):
            pdf = pymupdf.open()
            page = pdf.new_page(width=size[0], height=size[1])
            draw(page, number)
            image = f"pages/{document}_{number}.png"
            pixmap = page.get_pixmap(dpi=150)
            pixmap.save(folder / image)
            pages.append(
                Page(
                    page_id=page_id(document, number),
                    document=document,
                    page=number,
                    image=image,
                    width=pixmap.width,
                    height=pixmap.height,
                )
            )
    write_pages(folder, pages)
    return folder


def _slide(page: pymupdf.Page, number: int) -> None:
    page.draw_rect(pymupdf.Rect(0, 0, 720, 62), color=None, fill=(0.11, 0.23, 0.42))
    titles = {1: "Energy in Norway", 2: "Electricity by source", 3: "Consumption per head"}
    page.insert_text((40, 42), titles[number], fontsize=28, color=(1, 1, 1))
    if number == 2:
        rows = [("Source", "2018", "2019"), ("Coal", "0.1", "0.1"), ("Wind", "2.6", "4.1"), ("Gas", "1.8", "1.9")]
        rows += [("Hydro", "45.0", "43.6"), ("Solar", "0.0", "0.1"), ("Other", "50.5", "50.2")]
        for place, row in enumerate(rows):
            top = 100 + 33 * place
            page.draw_line((58, top + 24), (446, top + 24), color=(0.7, 0.7, 0.7))
            for x, cell in zip((65, 245, 355), row, strict=True):
                page.insert_text((x, top + 16), cell, fontsize=11 if place else 13)
    else:
        for place in range(5):
            page.insert_text((60, 120 + 40 * place), f"- Plain statement number {place + 1} about energy", fontsize=16)
    page.insert_text((40, 392), f"Source: national statistics, page {number}", fontsize=7, color=(0.4, 0.4, 0.4))


def _report(page: pymupdf.Page, number: int) -> None:
    page.insert_text((40, 60), f"Annual report, part {number}", fontsize=18)
    text = "Prices rose by $3 in spring and fell by $2 in autumn, as they did in the years before. " * 12
    page.insert_textbox(pymupdf.Rect(40, 90, 200, 560), text, fontsize=8)
    page.insert_textbox(pymupdf.Rect(220, 90, 380, 560), text, fontsize=8)


def play(corpus: Path, written: list[str] | None = None, question: Question = QUESTION) -> Trajectory:
    """The scripted turns, carried out by the real environment."""
    environment = Environment(FixedEngine(), corpus, SETTINGS)
    session = environment.start(question)
    for text in written or WRITTEN:
        generation = Generation(text=text, token_ids=list(range(len(text) // 4)), prompt_tokens=240)
        environment.advance([session], [generation])
    return environment.finish(session, policy="scripted")


def trajectories(corpus: Path) -> list[Trajectory]:
    """The scripted trajectory, a wrong one on a portrait page, and one that never saw a page."""
    wrong = question("report-1", "By how many $ did prices fall?", "2", "report", 1)
    blind = question("blind-1", "Who wrote the report?", "not answerable", "report", 3)
    long_way = ["<think>Prices.</think><search>prices</search>", "<think>x</think><answer>3 $</answer>"]
    return [play(corpus), play(corpus, long_way, wrong), play(corpus, ["<answer>nobody</answer>"], blind)]


def question(uid: str, query: str, answer: str, document: str, page: int) -> Question:
    meta = MetaInfo(file_name=f"{document}.pdf", reference_page=[page], source_type="text", query_type="single_hop")
    return Question(uid=uid, query=query, reference_answer=answer, meta_info=meta)


def write_world(folder: Path) -> tuple[Path, Path]:
    """A corpus and a JSONL file of trajectories under `folder`; returns both paths."""
    corpus = make_corpus(folder / "corpus")
    write_trajectories(folder / "trajectories.jsonl", trajectories(corpus))
    return corpus, folder / "trajectories.jsonl"
