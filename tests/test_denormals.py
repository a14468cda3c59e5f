"""Denormal numbers are zero where they are to be, and numbers again afterwards."""

from __future__ import annotations

import pytest
import torch

from vrag_nb.denormals import flushed_denormals


def _kept() -> bool:
    return bool((torch.full((1,), 1e-40) * 1.0 != 0).item())


@pytest.mark.skipif(not torch.set_flush_denormal(False), reason="this processor cannot flush denormals")
def test_denormals_are_flushed_inside_and_kept_outside():
    assert _kept()
    with flushed_denormals():
        assert not _kept()
        with flushed_denormals():
            assert not _kept()
        assert not _kept(), "an inner one must not end the outer one"
    assert _kept()
    with pytest.raises(KeyError), flushed_denormals():
        raise KeyError
    assert _kept()
