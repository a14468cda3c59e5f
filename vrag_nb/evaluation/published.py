"""Published figures, each with where it stands, and measured ones beside them: never in one column, never averaged.

    published_tables()                 # the papers' own tables, as data
    beside_table(results)              # a method a row: the paper's overall accuracy, and what its counterpart got here
    order_table(results)               # is the paper's order of methods kept?

Other corpora, other judges, other models: only the order can be compared, and that carefully. The same predictions
were scored 37.9 and 80.1 by two judges (arXiv 2609.37349), and VRAG-RL's "overall" does not follow from its own
columns. Figures are in percent, as printed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vrag_nb.evaluation.measured import difference
from vrag_nb.evaluation.result_folders import Results, SystemResult
from vrag_nb.evaluation.tables import Cell, Column, Table

VRAG, VIMRAG, SCORE, UNIDOC = "arXiv 2505.22019", "arXiv 2602.12735", "arXiv 2609.15800", "arXiv 2604.14967"
_COLUMNS = (
    "SlideVQA single", "SlideVQA multi", "ViDoSeek extraction", "ViDoSeek logic",
    "MMLB text", "MMLB table", "MMLB chart", "MMLB figure", "MMLB layout", "overall",
)  # fmt: skip
TABLE_1 = {
    "3B": {
        "OCR vanilla RAG": (15.1, 12.1, 8.8, 14.3, 3.9, 5.1, 1.7, 3.1, 2.5, 11.2),
        "OCR ReAct": (11.8, 9.9, 5.3, 7.4, 6.5, 3.7, 3.9, 5.2, 2.5, 8.4),
        "OCR Search-R1": (17.5, 13.8, 13.3, 20.7, 3.4, 3.2, 4.5, 4.1, 6.8, 14.1),
        "visual vanilla RAG": (19.4, 12.2, 10.1, 17.3, 2.2, 4.1, 5.2, 4.7, 4.3, 13.2),
        "visual ReAct": (15.7, 10.9, 6.7, 14.2, 2.7, 3.6, 3.4, 3.1, 5.1, 10.9),
        "Search-R1-VL": (26.3, 20.1, 20.1, 29.8, 8.5, 7.8, 7.9, 9.3, 7.6, 21.3),
        "VRAG-RL": (65.3, 38.6, 63.1, 73.8, 22.7, 16.1, 21.9, 21.4, 19.5, 53.5),
    },
    "7B": {
        "OCR vanilla RAG": (26.1, 10.6, 24.7, 30.9, 8.5, 5.4, 11.7, 4.4, 3.3, 20.9),
        "OCR ReAct": (21.2, 13.3, 14.3, 21.3, 5.9, 5.1, 7.3, 5.5, 1.7, 15.8),
        "OCR Search-R1": (28.4, 19.7, 20.8, 30.6, 9.9, 6.0, 7.9, 10.1, 5.9, 22.2),
        "visual vanilla RAG": (29.1, 17.4, 26.4, 41.3, 13.1, 14.7, 15.9, 4.3, 7.6, 24.2),
        "visual ReAct": (34.8, 20.4, 27.5, 42.1, 10.1, 12.4, 10.2, 6.2, 7.1, 26.9),
        "Search-R1-VL": (48.3, 42.3, 40.5, 50.3, 19.9, 13.4, 12.9, 11.4, 10.2, 37.4),
        "VRAG-RL": (69.3, 43.1, 60.6, 74.8, 26.1, 26.3, 24.8, 25.9, 21.2, 57.1),
    },
}
TABLE_2 = {("outcome", "search"): 47.2, ("outcome", "search and crop"): 49.3,
           ("vrag", "search"): 54.9, ("vrag", "search and crop"): 57.1}  # fmt: skip
COUNTERPARTS = {  # which system here plays which method
    "OCR vanilla RAG": "text_top1",
    "OCR ReAct": "react_text",
    "OCR Search-R1": "search_r1",
    "visual vanilla RAG": "vanilla_top1",
    "visual ReAct": "react",
    "Search-R1-VL": "search_r1_vl",
    "VRAG-RL": "agent",
}
ORDER = (  # above, below: the paper's order, true of both of its model sizes
    ("VRAG-RL", "Search-R1-VL"), ("Search-R1-VL", "visual ReAct"), ("Search-R1-VL", "visual vanilla RAG"),
    ("Search-R1-VL", "OCR Search-R1"), ("visual ReAct", "OCR ReAct"), ("visual vanilla RAG", "OCR vanilla RAG"),
)  # fmt: skip
_VIMRAG_SETS = ("HotpotQA", "SQuAD", "WebQA", "SlideVQA", "MMLB", "LVBench", "WikiHowQA", "SyntheticQA", "XVBench")
VIMRAG_8B = {
    "vanilla RAG": (64.0, 64.2, 48.1, 48.5, 16.2, 14.8, 15.7, 37.0, 29.7, 37.6),
    "ReAct": (70.8, 65.5, 40.0, 50.0, 15.4, 15.9, 23.0, 35.0, 24.0, 37.7),
    "VideoRAG": (62.0, 62.2, 42.1, 35.5, 18.2, 23.8, 25.7, 49.5, 30.7, 38.9),
    "MemAgent": (71.1, 74.8, 47.1, 45.3, 14.7, 22.2, 23.1, 37.5, 26.9, 40.3),
    "Mem1": (73.0, 68.4, 44.5, 55.7, 32.6, 22.4, 19.9, 43.4, 32.2, 43.6),
    "VimRAG": (79.1, 76.4, 53.9, 62.4, 33.4, 24.5, 29.7, 54.5, 37.1, 50.1),
}
_AS_IN_SCORE = f"as printed in {SCORE}"
SUCCESSORS: tuple[tuple[str, float | None, float | None, float | None, str], ...] = (  # SlideVQA, ViDoSeek, MMLB
    ("Search-R1-VL", 46.76, 44.77, None, f"worked out from {VRAG}, table 1"),
    ("VRAG-RL", 62.59, 66.78, None, _AS_IN_SCORE),
    ("ViDoRAG (arXiv 2502.18017)", 63.88, 69.00, 25.50, _AS_IN_SCORE),
    ("MMSearch-R1 (arXiv 2506.20670)", 49.03, 57.53, 18.42, _AS_IN_SCORE),
    ("R1-Router", 63.43, 66.11, 26.92, _AS_IN_SCORE),
    ("M3RAG", 65.82, 69.36, None, _AS_IN_SCORE),
    ("EVisRAG (arXiv 2510.09733)", 69.09, 69.79, 27.98, f"reproduced by {SCORE}"),
    ("VISOR (arXiv 2604.09508)", 72.37, 74.87, 28.45, _AS_IN_SCORE),
    ("SCoRE", 77.16, 75.31, 31.52, SCORE),
    ("UniDoc-RL", 81.85, 79.60, None, f"worked out from the columns of {UNIDOC}; another judge and more training data"),
)


def published_tables() -> list[Table]:
    """The papers' tables that this project's systems take after."""
    found = []
    for size, rows in TABLE_1.items():
        title = f"VRAG-RL, table 1, Qwen2.5-VL-{size}-Instruct"
        caption = "Accuracy by a judge model; one merged corpus of about 70,000 pages. MMLB: MMLongBench-Doc."
        found.append(_published(f"published_vrag_table_1_{size.lower()}", title, caption, _COLUMNS, rows, VRAG))
    rows_2 = {f"{reward_words(reward)}, {actions}": (value,) for (reward, actions), value in TABLE_2.items()}
    title = "VRAG-RL, table 2: reward and actions, 7B"
    found.append(_published("published_vrag_table_2", title, "Overall accuracy.", ("overall",), rows_2, VRAG))
    rows_3 = {"after SFT": (9.4, 84.2), "after RL": (5.1, 97.1)}
    names = ("invalid actions", "finished")
    found.append(_published("published_vrag_table_3", "VRAG-RL, table 3: conduct", "Rates.", names, rows_3, VRAG))
    found.append(_successors())
    title, sets = "VimRAG, Qwen3-VL-8B", (*_VIMRAG_SETS, "overall")
    caption = "Accuracy by a judge model; corpora of its own, so not comparable with VRAG-RL's table."
    found.append(_published("published_vimrag", title, caption, sets, VIMRAG_8B, VIMRAG))
    steps = {"iterative summary": (43.6,), "and graph": (47.1,), "and images": (48.9,), "and energy": (50.1,)}
    title = "VimRAG, ablation of the memory, 8B"
    found.append(_published("published_vimrag_memory", title, "Overall accuracy.", ("overall",), steps, VIMRAG))
    return found


def reward_words(reward: str) -> str:
    """The paper's name for a reward preset."""
    words = {"outcome": "outcome reward alone", "vrag": "VRAG-RL's reward", "unidoc": "UniDoc-RL's reward"}
    return words.get(reward, f"reward {reward}")


def counterpart(results: Results, method: str) -> SystemResult | None:
    """The system of these results that plays a paper's method, or None; the first where names give several."""
    return next((one for one in results.systems if one.system == COUNTERPARTS[method]), None)


def beside_table(results: Results) -> Table:
    """The methods of VRAG-RL's table 1: what the paper says of them, and what their counterparts got here."""
    rows: list[list[Cell]] = []
    for method in TABLE_1["7B"]:
        system = counterpart(results, method)
        said = [TABLE_1[size][method][-1] for size in TABLE_1]
        rows.append(
            [
                method,
                *said,
                system.name if system else f"{COUNTERPARTS[method]}: not run",
                system.estimate("accuracy") if system else None,
            ]
        )
    columns = [Column("method"), *(Column(f"published, {size} overall", "printed", True) for size in TABLE_1)]
    columns += [Column("system here"), Column("measured here", "share")]
    caption = (
        f"Published: {VRAG}, table 1, percent. Measured: this report's questions, model and corpus, judged by "
        f"{results.judge}. The two sides differ in all of these; only the order of rows can be compared."
    )
    return Table("beside_published", "Beside the paper's table 1", caption, columns, rows)


def order_table(results: Results) -> Table:
    """Every step of the paper's order, and whether it was measured the same way."""
    rows: list[list[Cell]] = []
    for above, below in ORDER:
        first, second = counterpart(results, above), counterpart(results, below)
        said = [round(TABLE_1[size][above][-1] - TABLE_1[size][below][-1], 1) for size in TABLE_1]
        found = difference(first, second) if first and second else None
        rows.append([f"{above} above {below}", *said, found, _verdict(found)])
    columns = [
        Column("the paper's order"),
        *(Column(f"published, {size} overall", "printed", True) for size in TABLE_1),
    ]
    columns += [Column("measured here", "points"), Column("verdict")]
    caption = (
        "Differences in accuracy, published and measured (paired by question, 95%). As published: above zero with its "
        f"whole interval. Judged by {results.judge}."
    )
    return Table("paper_order", "Is the paper's order kept?", caption, columns, rows)


def _verdict(found: Mapping[str, Any] | None) -> str:
    if found is None or not found["n"]:
        return "not measured"
    if found["low"] > 0:
        return "as published"
    return "reversed" if found["high"] < 0 else "undecided"


def _published(
    name: str, title: str, caption: str, columns: Sequence[str], rows: Mapping[str, Sequence[float]], source: str
) -> Table:
    heads = [Column("method"), *(Column(column, "printed", True) for column in columns)]
    return Table(name, title, caption, heads, [[method, *row] for method, row in rows.items()], source, True)


def _successors() -> Table:
    heads = [Column("method"), *(Column(one, "printed", True) for one in ("SlideVQA", "ViDoSeek", "MMLB"))]
    caption = "Accuracy by a judge model, Qwen2.5-VL-7B; protocols of one family, judges and training data differ."
    rows = [list(row) for row in SUCCESSORS]
    title = "VRAG-RL and what came after it, 7B"
    return Table("published_successors", title, caption, [*heads, Column("where")], rows, "see each row", True)
