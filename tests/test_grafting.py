"""A tower that has learned on speaks as the one before it."""

from __future__ import annotations

import copy
import random

import torch

from vrag_nb.nano.grafting import graft
from vrag_nb.nano.model import NanoSize, build_nano_vlm, build_processor
from vrag_nb.nano.plan import tokenizer
from vrag_nb.nano.windows import printed_window

TINY = NanoSize(text_width=32, text_layers=1, text_heads=2, vision_width=32, vision_layers=2, vision_heads=2)


def _batches(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    rng = random.Random(0)
    images = [printed_window(rng)[0] for _ in range(count)]
    inputs = build_processor(tokenizer()).image_processor(images=images, do_resize=False, return_tensors="pt")
    return [(inputs["pixel_values"], inputs["image_grid_thw"])]


def test_a_turned_last_layer_is_turned_back():
    torch.manual_seed(0)
    earlier = build_nano_vlm(tokenizer(), TINY).model.visual
    turned = copy.deepcopy(earlier)
    with torch.no_grad():
        turned.merger.mlp[-1].weight.normal_()
        turned.merger.mlp[-1].bias.normal_()
    batches = _batches(12)
    assert graft(turned, earlier, batches, ridge=1e-9) > 0.999
    pixels, grid = batches[0]
    one, other = (tower(pixels, grid_thw=grid).pooler_output for tower in (turned, earlier))
    assert torch.allclose(one, other, atol=1e-3)


def test_of_a_tower_that_knows_little_of_it_part_is_met():
    torch.manual_seed(0)
    earlier, other = (build_nano_vlm(tokenizer(), TINY, seed=seed).model.visual for seed in (0, 1))
    before = {name: weight.clone() for name, weight in other.state_dict().items()}
    met = graft(other, earlier, _batches(12))
    assert 0 < met < 1
    changed = [name for name, weight in other.state_dict().items() if not torch.equal(weight, before[name])]
    assert changed == ["merger.mlp.2.weight", "merger.mlp.2.bias"]
