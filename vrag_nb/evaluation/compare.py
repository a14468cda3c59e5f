"""Several checkpoints of one agent on the same questions: base, fine-tuned, reinforced.

    found = compare_policies({"base": load_base, "sft": load_sft}, out=out, questions=questions, ...)

Every checkpoint is evaluated as `evaluate` does it, into a folder of its own below `out`; `comparison.json`,
`comparison.md` and `comparison.png` put them side by side. Each is compared with the one before it, question by
question.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from vrag_nb.agent.policy import Policy
from vrag_nb.evaluation.baselines import agent_system
from vrag_nb.evaluation.evaluate import evaluate
from vrag_nb.evaluation.metrics import paired_bootstrap
from vrag_nb.evaluation.report import answers_markdown
from vrag_nb.files import write_json, write_text


def compare_policies(
    policies: Mapping[str, Callable[[], Policy]], out: Path, *, system: str = "", seed: int = 0, **options: Any
) -> dict[str, Any]:
    """`{"answers": {name: ...}, "comparisons": {...}}` as in metrics.json, by policy instead of by system.

    policies: what loads each, by name, in the order of training; one at a time is in memory. options: of `evaluate`,
    apart from policy, systems and out. system: what every policy acts as; by default the agent that `settings` are of.
    Nothing is written for no policies.
    """
    out = Path(out)
    if not policies:
        return {"answers": {}, "comparisons": {}}
    system = system or agent_system(options["settings"])
    answers: dict[str, Any] = {}
    right: dict[str, dict[str, float]] = {}
    for name, load in policies.items():
        policy = load()
        metrics = evaluate(policy=policy, systems=[system], out=out / name, seed=seed, **options)
        policy.close()
        answers[name] = metrics["answers"][system]
        right[name] = _right(out / name / "predictions.jsonl")
    differences = {
        f"{after}_minus_{before}": paired_bootstrap(right[after], right[before], seed).model_dump(mode="json")
        for before, after in pairwise(policies)
    }
    found = {"answers": answers, "comparisons": differences}
    write_text(out / "comparison.md", answers_markdown(found))
    _draw(found, out / "comparison.png")
    write_json(out / "comparison.json", found)
    return found


def _right(predictions: Path) -> dict[str, float]:
    rows = [json.loads(line) for line in predictions.read_text(encoding="utf-8").split("\n") if line]
    return {row["uid"]: float(row["correct"]) for row in rows}


def _draw(found: Mapping[str, Any], path: Path) -> None:
    from vrag_nb.plotting import figures, plots

    figures.save(plots.accuracy_by_system(found["answers"], "Answer accuracy by stage of training"), path)
