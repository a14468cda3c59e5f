"""What a square's knowing its column is worth: the same short training with and without it.

    python benchmarks/nano_positions.py [--steps 150] [--seed 0]

A fresh language model on the shipped vision tower learns to look cells up in small drawn tables, three times: with
Qwen2.5-VL's shares of the rotary components and a base of 10,000; with the nano model's base and shares; and with these
and the head that asks every square for its column and row. Printed on fresh tables: how far a linear map from the
squares' hidden states to their column is off, how often the best square lies in the answer, how many answers are exact
(given the true letters so far). Same seed, samples and number of steps.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForImageTextToText, Qwen2_5_VLForConditionalGeneration

from vrag_nb.nano.aligning import Stream, Teaching, train_streams
from vrag_nb.nano.lookups import drawn_table
from vrag_nb.nano.model import build_processor, nano_config
from vrag_nb.nano.optimisation import Schedule
from vrag_nb.nano.plan import tokenizer
from vrag_nb.nano.samples import Sample, collate, exact_match, looking_targets

VARIANTS: dict[str, tuple[float, list[int], Mapping[str, float]]] = {
    "base 10,000, Qwen's shares": (10_000.0, [8, 12, 12], {"place": 0.0}),
    "base 500, nano's shares": (500.0, [2, 7, 23], {"place": 0.0}),
    "the same, squares asked for their place": (500.0, [2, 7, 23], {}),
}
DIFFICULTY = 0.4


def lookup(rng: random.Random, difficulty: float) -> Sample:
    return drawn_table(rng, DIFFICULTY)


def trained(base: float, shares: list[int], weights: Mapping[str, float], steps: int, seed: int) -> tuple:
    """A model trained for so many steps, and the folder's log is thrown away."""
    config = nano_config(tokenizer())
    text: Any = config.text_config
    text.rope_parameters.update(rope_theta=base, mrope_section=shares)
    torch.manual_seed(seed)
    model = Qwen2_5_VLForConditionalGeneration(config)
    shipped = AutoModelForImageTextToText.from_pretrained("data/models/nano-base", dtype=torch.float32)
    model.model.visual.load_state_dict(shipped.model.visual.state_dict())
    processor = build_processor(tokenizer())
    with tempfile.TemporaryDirectory() as folder:
        streams = [Stream("table", lookup, 40, promote_at=2)]
        schedule = Schedule(steps=steps, muon_lr=4e-3, adamw_lr=1.5e-3)
        teaching = Teaching(looking_weights=weights, compile_text=False)
        train_streams(model, processor, streams, Path(folder), schedule, teaching, seed=seed)
    return model.eval(), processor


@torch.inference_mode()
def measure(model: Qwen2_5_VLForConditionalGeneration, processor, seed: int) -> tuple[float, float]:
    """(error of a linear map to the column, in squares; share of exact answers) over 240 fresh tables."""
    rng = random.Random(f"{seed}/fresh")
    hidden: list[torch.Tensor] = []
    depth = len(model.model.language_model.layers) // 3 - 1
    model.model.language_model.layers[depth].register_forward_hook(
        lambda _, __, output: hidden.append((output[0] if isinstance(output, tuple) else output).float())
    )
    states, columns, right = [], [], []
    for _ in range(10):
        samples = [drawn_table(rng, DIFFICULTY) for _ in range(24)]
        batch = collate(samples, processor)
        places = looking_targets(samples, batch["input_ids"], processor.tokenizer).places[..., 0]
        output = model(**batch, use_cache=False)
        right += exact_match(output.logits, batch["labels"])[1].tolist()
        states.append(hidden.pop()[places >= 0])
        columns.append(places[places >= 0].float())
    return _column_error(states, columns), sum(right) / len(right)


def _column_error(states: list[torch.Tensor], columns: list[torch.Tensor]) -> float:
    """Mean error of the last half after a ridge regression on the first."""
    half = len(states) // 2
    x = torch.cat(states[:half])
    scale = x.std(0).clamp(min=1e-3)
    with_one = [torch.cat([part / scale, torch.ones(len(part), 1)], 1) for part in states]
    x, y = torch.cat(with_one[:half]), torch.cat(columns[:half])
    weights = torch.linalg.solve(x.T @ x + 10 * torch.eye(x.shape[1]), x.T @ y)
    return (torch.cat(with_one[half:]) @ weights - torch.cat(columns[half:])).abs().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    table = Table(
        "variant", "column off by", "exact answers", title=f"{options.steps} steps of 40 tables, seed {options.seed}"
    )
    for name, (base, shares, weights) in VARIANTS.items():
        model, processor = trained(base, shares, weights, options.steps, options.seed)
        error, exact = measure(model, processor, options.seed)
        table.add_row(name, f"{error:.2f} squares", f"{exact:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
