"""The paper's ablations on the nano world (VRAG-RL, arXiv 2505.22019, table 2): what is rewarded, what may be done.

    python benchmarks/ablations.py --out results/ablations --run data/runs/ablations --seeds 0 1 2

Every cell is a GRPO run of its own from the same fine-tuned checkpoint, on the same questions:

| reward | `outcome`: right answers alone; `vrag`: with pattern and retrieval, behind the gate |
| actions | search alone (boxes are refused), search and crop |

and is then evaluated on the test questions under its own actions. Printed and written are accuracy and behaviour by
cell, the mean over seeds and their spread, with the checkpoint that all started from beside them. Interrupted, it goes
on.
"""

from __future__ import annotations

import argparse
import statistics
from functools import partial
from pathlib import Path
from typing import Any

from vrag_nb.agent.environment import Environment
from vrag_nb.agent.observers import refuse_crop
from vrag_nb.display import figures, plots
from vrag_nb.evaluation.compare import compare_policies
from vrag_nb.evaluation.report import markdown_table, write_json, write_text
from vrag_nb.learning.stages import reinforcement
from vrag_nb.learning.trainers import train
from vrag_nb.paths import project_path
from vrag_nb.profiles import Profile, load_profile

REWARDS = ("outcome", "vrag")
ACTIONS = {"search": "agent_no_crop", "search and crop": "agent"}  # and the system that evaluates it
FIGURES = ("accuracy", "gold_pages_seen", "crops", "invalid_action_rate", "finish_rate")


def environment(profile: Profile, engine: Any, actions: str) -> Environment:
    """The agent's environment with these actions."""
    if actions == "search and crop":
        return Environment(engine, profile.corpus_folder, profile.settings(), profile.agent.prompt)
    without = profile.settings().model_copy(
        update={"formats": "Use <search>query</search> or <answer>answer</answer>."}
    )
    return Environment(engine, profile.corpus_folder, without, profile.agent.prompt, observers={"bbox": refuse_crop})


def cell(
    profile: Profile, engine: Any, start: Path, run: Path, reward: str, actions: str, seed: int, **changes: Any
) -> Path:
    """Train one cell; its checkpoint."""
    _, questions = profile.training_questions()
    world = environment(profile, engine, actions)
    chosen = profile.load_reward(reward)
    trainer = reinforcement(profile, start, run, questions, (), world, chosen, seed=seed, **changes)
    final = run / "final"
    return final if (final / "config.json").is_file() else train(trainer)


def measured(answers: dict[str, Any]) -> dict[str, float]:
    """The figures of one evaluated policy."""
    found = {"accuracy": answers["accuracy"], **answers["behaviour"]}
    return {name: found[name]["value"] for name in FIGURES if name in found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", default="nano")
    parser.add_argument("--start", default="data/runs/nano-full/sft/final", help="the fine-tuned checkpoint")
    parser.add_argument("--run", default="data/runs/ablations")
    parser.add_argument("--out", default="results/ablations")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=None)
    parser.add_argument("--questions-per-step", type=int, default=None)
    parser.add_argument("--limit", type=int, default=None, help="test questions (default: the profile's)")
    options = parser.parse_args()
    profile = load_profile(options.profile)
    engine, start, out = profile.open_engine(), project_path(options.start), project_path(options.out)
    given = {"steps": options.steps, "questions_per_step": options.questions_per_step}
    changes = {name: value for name, value in given.items() if value}
    rows, tables = [], {}
    for actions, system in ACTIONS.items():
        evaluate = partial(
            compare_policies,
            system=system,
            corpus=profile.corpus_folder,
            questions=profile.questions(options.limit),
            engine=engine,
            settings=profile.task(),
            prompt=profile.agent.prompt,
            concurrency=profile.evaluation.concurrency,
        )
        folder = actions.replace(" ", "_")
        found = evaluate({"start": partial(profile.load_policy, start)}, out / folder)
        tables[f"{actions}, start"] = [measured(found["answers"]["start"])]
        for reward in REWARDS:
            name = f"{actions}, {reward}"
            tables[name] = []
            for seed in options.seeds:
                where = project_path(options.run) / f"{folder}-{reward}-{seed}"
                final = cell(profile, engine, start, where, reward, actions, seed, **changes)
                label = f"{reward}-{seed}"
                found = evaluate({label: partial(profile.load_policy, final)}, out / folder)
                tables[name].append(measured(found["answers"][label]))
    for name, runs in tables.items():
        values = [_spread([one[figure] for one in runs if figure in one]) for figure in FIGURES]
        rows.append([name, str(len(runs)), *values])
    text = markdown_table(["actions, reward", "seeds", *(name.replace("_", " ") for name in FIGURES)], rows)
    write_text(out / "ablations.md", f"# Ablations\n\n{text}\n\nMean over seeds, lowest to highest.\n")
    write_json(out / "ablations.json", tables)
    bars = {name: {"accuracy": _estimate([one["accuracy"] for one in runs])} for name, runs in tables.items()}
    figures.save(plots.accuracy_by_system(bars, "Accuracy by actions and reward"), out / "ablations.png")
    print(text)


def _spread(values: list[float]) -> str:
    if not values:
        return "–"
    mean = f"{statistics.mean(values):.3f}"
    return mean if len(values) == 1 else f"{mean} ({min(values):.3f} to {max(values):.3f})"


def _estimate(values: list[float]) -> dict[str, float]:
    """Mean and range over seeds, as the plots want an interval."""
    return {"value": statistics.mean(values), "low": min(values), "high": max(values)}


if __name__ == "__main__":
    main()
