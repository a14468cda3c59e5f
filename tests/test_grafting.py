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


def test_what_the_new_tower_sees_is_said_beside_what_the_earlier_one_said():
    torch.manual_seed(0)
    earlier, other = (build_nano_vlm(tokenizer(), TINY, seed=seed).model.visual for seed in (0, 1))
    own, fitted, both = (copy.deepcopy(other) for _ in range(3))
    batches, kept = _batches(12), 8
    graft(fitted, earlier, batches)
    met = graft(both, earlier, batches, kept=kept)
    assert 0 < met < 1
    ((pixels, grid),) = batches
    said, theirs, together = (tower(pixels, grid_thw=grid).pooler_output.double() for tower in (own, fitted, both))
    said, theirs, together = (tokens - tokens.mean(0) for tokens in (said, theirs, together))
    spread, directions = torch.linalg.eigh(theirs.T @ theirs / len(theirs))
    loud, quiet = directions[:, -kept:], directions[:, :-kept]
    # in the directions kept, nothing has changed ...
    assert torch.allclose(together @ loud, theirs @ loud, atol=1e-3 * theirs.abs().max().item())
    # ... and in the others the tower's own first components are as loud as the loudest of these was
    added = (together - theirs) @ quiet
    assert torch.allclose(added.std(0), spread[-kept - 1].sqrt().expand(len(quiet.T)).to(added.dtype), rtol=0.05)
    first = torch.linalg.eigh(said.T @ said / len(said))[1][:, -1]
    solved = torch.linalg.lstsq(added, (said @ first)[:, None]).solution
    assert torch.allclose(added @ solved, (said @ first)[:, None], atol=1e-2 * said.abs().max().item())
