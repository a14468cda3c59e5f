"""Copies the measured tables of `results/` to where they are read: the README, between its two `measured` comments, has
the main ones, `results/README.md` the others.

    python benchmarks/readme.py            # rewrite both
    python benchmarks/readme.py --check    # exit 1 if one of them says something else than results/

Run it after `make nano-eval`, `make realdocs DIR=...`, `make run`, `benchmarks/search.py --out results/search` and what
writes to `results/benchmarks`, `results/table_1`, `results/ablations`, `results/nano-look`, `results/nano-brief`,
`results/memory`, `results/long`, its variants (LONG), `results/algorithms`, `results/credit` and
`results/credit-14` (`benchmarks/credit.py --generations 14`).
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vrag_nb.evaluation.ablation_table import ablation_differences, ablation_table, is_ablation
from vrag_nb.evaluation.realdocs import realdocs_markdown
from vrag_nb.evaluation.report import answers_markdown, markdown, markdown_table
from vrag_nb.evaluation.result_folders import SystemResult, read_results

ROOT = Path(__file__).resolve().parent.parent
SEARCHED = (
    "The pages of the default index, then pages put together from runs of their patches and moved by noise, "
    "{patches} patches of 128 dimensions each; {queries} test questions, {threads}. Recall against exact "
    "MaxSim in float32; the peer is colpali-engine's `score_multi_vector`, all queries in one call, in "
    "bfloat16 or float32, whichever is faster. p50 and p95 are of one query a call. all: every page by its codes, all "
    "queries in one call."
)
GAINS = ("nano-look", "nano-brief")  # runs of one trained cell
ENDS = ("lowest", "highest")
BETWEEN = re.compile(r"(<!-- measured -->\n).*(<!-- /measured -->)", re.DOTALL)


def measured() -> str:
    """The README's tables, headings one level below its section."""
    return (
        "\n" + re.sub(r"^## ", "### ", _joined(nano(), gains(), real_documents(), search()), flags=re.MULTILINE) + "\n"
    )


def further() -> str:
    """What results/README.md holds."""
    parts = _joined(
        hybrid(),
        foreign(),
        learned(),
        table_1(),
        ablations(),
        looking(),
        brief(),
        memory(),
        long(),
        algorithms(),
        credit(),
        benchmarks(),
    )
    about = "Written by `python benchmarks/readme.py`; the main tables are in the README."
    return f"# Further measurements\n\n{about}\n\n{parts}"


def _joined(*parts: str) -> str:
    return "\n".join(part for part in parts if part)


def nano() -> str:
    found = _json("results/nano/metrics.json")
    if found["run"].get("limit"):
        raise SystemExit("results/nano holds a sample of the questions (make run): make nano-eval first")
    text = markdown(found).removeprefix("# Evaluation\n")
    return f"`make nano-eval` (results/nano/metrics.json):\n{text}"


def hybrid() -> str:
    """The agent over fused rankings: what its retriever costs it."""
    return _agent_alone(
        "The same agent, page images and text layer fused",
        "nano-hybrid",
        "--corpus data/corpora/decks --questions data/corpora/decks/questions.test.parquet",
        profile="nano-hybrid",
    )


def foreign() -> str:
    """The agent on slides that another engine drew."""
    return _agent_alone(
        "Slides that another engine drew",
        "foreign",
        "--documents data/foreign/documents --questions data/foreign/questions.test.json",
    )


def _agent_alone(heading: str, name: str, asked: str, profile: str = "nano") -> str:
    if not (found := _json(f"results/{name}/metrics.json")):
        return ""
    command = f"python -m vrag_nb evaluate --profile {profile} {asked} --out results/{name} --systems agent"
    body = re.sub(r"^## ", "### ", markdown(found).removeprefix("# Evaluation\n"), flags=re.MULTILINE)
    return f"## {heading}\n\n`{command}`:\n{body}"


def learned() -> str:
    """Base, fine-tuned and reinforced, after the few minutes of `make run` and after the hour of `nano-full`."""
    parts = []
    for name, command in (("nano", "make run"), ("nano-full", ".venv/bin/python -m vrag_nb run nano-full")):
        file = f"results/{name}/checkpoints/comparison.json"
        if found := _json(file):
            body = re.sub(r"^## ", "### ", answers_markdown(found), flags=re.MULTILINE)
            parts.append(f"## Learning in the run `{name}`\n\n`{command}`, one seed ({file}):\n\n{body}")
    return "\n".join(parts)


def gains() -> str:
    """What GRPO brings to test questions, a run a row."""
    rows = [row for name in GAINS if (row := _gain(name))]
    if not rows:
        return ""
    head = [
        "run",
        "seeds",
        "questions",
        "right before",
        "right after",
        "difference",
        "crops",
        "invalid actions",
        "answers asked for",
    ]
    title = "## What GRPO brings\n\n`.venv/bin/python -m vrag_nb run nano-look`, and so on (ablations.md there):\n\n"
    notes = (
        "Greedy, the same test questions before and after, question by question; the mean over the seeds, with the "
        "lowest and the highest. Answers asked for: those that came on the extra turn only."
    )
    return f"{title}{markdown_table(head, rows)}\n\n{notes}\n"


def _gain(name: str) -> list[str]:
    """The start and the one trained cell of a run; nothing where it has not been made."""
    folder = ROOT / "results" / name
    if not is_ablation(folder):
        return []
    (start, trained), (difference,) = ablation_table(folder, "rules").records(), ablation_differences(folder).records()
    runs = sorted((folder / "search_and_crop").glob("*/metrics.json"), key=lambda path: path.parent.name != "start")
    conduct = [json.loads(path.read_text())["answers"]["agent"]["behaviour"] for path in runs]
    told = [_interval(start), f"{_interval(trained)}, {_spread([trained[f'accuracy {end} seed'] for end in ENDS])}"]
    moves = [_move([one[part]["value"] for one in conduct]) for part in ("crops", "invalid_action_rate", "forced_rate")]
    return [f"`{name}`", str(trained["seeds"]), str(trained["accuracy n"]), *told, _interval(difference), *moves]


def _interval(row: Mapping[str, Any]) -> str:
    low, value, high = (_share(row[f"accuracy{end}"]) for end in (" low", "", " high"))
    return f"{value} [{low}, {high}]"


def _move(values: Sequence[float]) -> str:
    """Of the start and of its seeds."""
    return f"{_share(values[0])} to {_spread(values[1:])}"


def _spread(values: Sequence[float]) -> str:
    low, high = _share(min(values)), _share(max(values))
    return low if low == high else f"{low}–{high}"


def _share(value: float) -> str:
    return f"{value:.2f}".removeprefix("0")


def real_documents() -> str:
    if not (found := _json("results/realdocs/metrics.json")):
        return ""
    body = realdocs_markdown(found).removeprefix("# Real documents\n")
    return f"## Real documents\n\n`make realdocs DIR=...` (results/realdocs/metrics.json):\n{body}"


def table_1() -> str:
    return by_seeds("The paper's table 1, by seeds", "table_1")


def ablations() -> str:
    return told("The paper's table 2, reward and actions", "results/ablations/ablations.md", "ablations.png")


def looking() -> str:
    """GRPO from a start that seldom looks."""
    return told("Does GRPO find out that looking pays?", "results/nano-look/ablations.md", "curves.png")


def brief() -> str:
    """GRPO from a start that was barely taught."""
    return told("Does GRPO teach the format?", "results/nano-brief/ablations.md", "curves.png")


def memory() -> str:
    return by_seeds("VimRAG's memory ablation, by seeds", "memory")


def by_seeds(title: str, name: str) -> str:
    """Accuracy by system over the seeds' folders that `benchmarks/table_1.py` left."""
    folders = sorted(path.parent for path in (ROOT / "results" / name).glob("seed-*/metrics.json"))
    if not folders:
        return ""
    results = read_results(folders)
    run = next(iter(results.folders.values()))["run"]
    rows = [[one.name, *_over_seeds(one)] for one in results.systems]
    wanted = " ".join(one.name for one in results.systems)
    limit = f"--limit {run['limit']} " if run["limit"] else ""
    command = (
        f"python benchmarks/table_1.py --profile {run['profile']} {limit}--systems {wanted} "
        f"--seeds {' '.join(folder.name.removeprefix('seed-') for folder in folders)} --out results/{name}"
    )
    about = (
        f"Seeds: {len(folders)}; the same {len(results.systems[0].uids)} test questions, temperature "
        f"{run['temperature']}. Brackets: 95% bootstrap over questions; beside them the lowest and highest seed."
    )
    table = markdown_table(["system", "accuracy [95%]", "seeds"], rows)
    return f"## {title}\n\n`{command}` (report.html there):\n\n{table}\n\n{about}\n"


def _over_seeds(system: SystemResult) -> list[str]:
    found = system.estimate("accuracy")
    spread = found.get("spread") or (found["value"], found["value"])
    return [f"{found['value']:.3f} [{found['low']:.3f}, {found['high']:.3f}]", "{:.3f} to {:.3f}".format(*spread)]


LONG = {
    "long": "Long questions",
    "long-3": "Long questions, three pages a search",
    "long-across": "Long questions, of four documents",
    "long-across-3": "Long questions, of four documents, three pages a search",
}


def long() -> str:
    return _joined(*(told(title, f"results/{name}/long_questions.md", "long.png") for name, title in LONG.items()))


def algorithms() -> str:
    parts = {
        "GGPO and GSPO": "algorithms",
        "GGPO and GSPO at a smaller rate, one seed": "algorithms-slow",
        "GGPO and GSPO from a start that searches vaguely": "algorithms-vague",
    }
    return _joined(*(told(title, f"results/{name}/algorithms.md", "algorithms.png") for title, name in parts.items()))


def credit() -> str:
    parts = {"20 generations": "credit", "14 generations": "credit-14"}
    title = "GGPO and GSPO where only searching is to be learned"
    return _joined(*(told(f"{title}, {n}", f"results/{name}/credit.md", "credit.png") for n, name in parts.items()))


def told(title: str, name: str, picture: str) -> str:
    """What a benchmark wrote of itself, its command included, with its picture."""
    path = ROOT / name
    if not path.is_file():
        return ""
    body = path.read_text(encoding="utf-8")
    return f"## {title}\n\n{body}\n![{title}]({path.parent.name}/{picture})\n"


def search() -> str:
    if not (found := _json("results/search/search.json")):
        return ""
    settings, rows = found["settings"], found["rows"]
    pages = " ".join(str(count) for count in dict.fromkeys(row["pages"] for row in rows))
    candidates = " ".join(map(str, settings["candidates"]))
    threads = settings["threads"]
    command = (
        f"python benchmarks/search.py --kinds perturbed --pages {pages} --candidates {candidates} "
        f"--threads {threads} --out results/search"
    )
    told = SEARCHED.format(
        patches=round(rows[-1]["patches"] / rows[-1]["pages"]),
        queries=settings["queries"],
        threads="one thread" if threads == 1 else f"{threads} threads",
    )
    return f"## Search in large corpora\n\n`{command}` (search.json there):\n\n{searched(rows)}\n\n{told}\n"


def benchmarks() -> str:
    told = sorted((ROOT / "results/benchmarks").glob("*.md"))
    texts = [path.read_text(encoding="utf-8") for path in told]
    return "\n".join(["## Speed, beside peers\n", *texts]) if texts else ""


def _json(name: str) -> Any:
    """What a file of results holds; None where it is not there."""
    path = ROOT / name
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def searched(rows: Sequence[Mapping[str, Any]]) -> str:
    """The compact index by pages and candidates."""
    header = [
        "pages",
        "candidates",
        "recall@10",
        "p50, ms",
        "p95, ms",
        "queries/s, times the peer's",
        "disk, of bfloat16",
        "memory, MB",
        "build, min",
    ]
    return markdown_table(
        header,
        [
            [
                f"{row['pages']:,}",
                row["candidates"],
                f"{row['recall']:.3f}",
                *("–" if row["candidates"] == "all" else f"{row[one]:.0f}" for one in ("p50", "p95")),
                f"{row['ratio']:.0f}",
                f"1/{1 / row['disk_share']:.1f}",
                f"{row['memory_bytes_a_page'] * row['pages'] / 1e6:.0f}",
                f"{row['build_seconds'] / 60:.0f}",
            ]
            for row in rows
        ],
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only say whether README.md is up to date")
    check = parser.parse_args().check
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    wanted = {
        ROOT / "README.md": BETWEEN.sub(lambda found: found[1] + measured() + found[2], readme),
        ROOT / "results/README.md": further(),
    }
    old = [path for path, text in wanted.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    for path in old:
        if check:
            print(f"{path.relative_to(ROOT)} says something else than results/: run benchmarks/readme.py")
        else:
            path.write_text(wanted[path], encoding="utf-8")
    return int(check and bool(old))


if __name__ == "__main__":
    sys.exit(main())
