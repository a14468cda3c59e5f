"""The paper's table 1 (VRAG-RL, arXiv 2505.22019) on the nano world: text baselines, visual ones, the agent; by seeds.

    python benchmarks/table_1.py --seeds 0 1 2 [--limit 60] [--out results/table_1]

Every system answers the same test questions with the same weights, sampled at `--temperature`, once for each seed; each
seed's run is a folder like any evaluation's, and all of them become one report (`report.html`, CSV, JSON) whose figures
are means over seeds with the bootstrap interval over questions and the seeds' spread. Whether the paper's order is kept
is a table of its own there. Interrupted, it asks no question twice. With a VimRAG profile the systems are by default
those of its `evaluation` part: the memory ablation of arXiv 2602.12735.

    python benchmarks/table_1.py --profile nano-vimrag --out results/memory
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from vrag_nb.display.report_page import write_report_page
from vrag_nb.evaluation.evaluate import evaluate
from vrag_nb.evaluation.measured import accuracy_table
from vrag_nb.evaluation.of_profile import evaluation_of
from vrag_nb.evaluation.report import print_table
from vrag_nb.evaluation.result_folders import read_results
from vrag_nb.paths import project_path, shown_path
from vrag_nb.profiles import load_profile

TEXT = ("text_top1", "react_text", "search_r1")
VISUAL = ("vanilla_top1", "react", "search_r1_vl", "agent_no_crop", "agent")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", default="nano")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--temperature", type=float, default=0.3)
    parser.add_argument("--limit", type=int, default=None, help="test questions (default: the profile's)")
    parser.add_argument("--systems", nargs="+", default=None, help="default: the table's, or the VimRAG profile's")
    parser.add_argument("--out", type=Path, default=Path("results/table_1"))
    options = parser.parse_args()
    profile = load_profile(options.profile).with_policy_options(temperature=options.temperature)
    engine, out = profile.search_engine(), project_path(options.out)
    questions, folders = profile.questions(options.limit), []
    policy = profile.load_policy()
    systems = options.systems or ([*TEXT, *VISUAL] if profile.agent.kind == "vrag" else profile.evaluation.systems)
    for seed in options.seeds:
        folders.append(out / f"seed-{seed}")
        evaluate(
            questions=questions,
            engine=engine,
            policy=policy,
            systems=systems,
            out=folders[-1],
            **evaluation_of(profile, seed, temperature=options.temperature, limit=options.limit),
        )
    page, _ = write_report_page(folders, out, corpus=profile.corpus_folder)
    table = accuracy_table(read_results(folders))
    print_table(
        table.title, ["system", f"all, n = {len(questions)}"], [[str(row[0]), _shown(row[1])] for row in table.rows]
    )
    print(f"the report: {shown_path(page)}")


def _shown(cell: Any) -> str:
    spread = ", seeds {:.3f} to {:.3f}".format(*cell["spread"]) if cell.get("spread") else ""
    return f"{cell['value']:.3f} [{cell['low']:.3f}, {cell['high']:.3f}]{spread}"


if __name__ == "__main__":
    main()
