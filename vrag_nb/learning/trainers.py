"""What our trainers on top of TRL share: resuming with the weights, running to the end, what follows the machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.trainer_utils import get_last_checkpoint


class RestoresWeights:
    """Mixed into a trainer: resuming loads the weights of the checkpoint.

    transformers (5.23) writes a Qwen-VL checkpoint under the names of an older release and on resuming loads the file
    by the new ones: nothing fits, a warning is logged, and training goes on from the untrained weights.
    """

    def _load_from_checkpoint(self: Any, resume_from_checkpoint: str, model: Any = None) -> None:
        model = model or self.model
        whole = (Path(resume_from_checkpoint) / "config.json").is_file() and isinstance(model, PreTrainedModel)
        if not whole or self.is_deepspeed_enabled or self.is_fsdp_enabled:
            super()._load_from_checkpoint(resume_from_checkpoint, model)  # type: ignore[misc]
            return
        saved = type(model).from_pretrained(resume_from_checkpoint, dtype=model.dtype)
        model.load_state_dict(saved.state_dict())


def train(trainer: Any) -> Path:
    """Run to the end, from the last checkpoint where there is one; returns a folder that loads without peft."""
    out = Path(str(trainer.args.output_dir))
    trainer.train(resume_from_checkpoint=get_last_checkpoint(str(out)) if out.is_dir() else None)
    model = trainer.accelerator.unwrap_model(trainer.model)
    if hasattr(model, "merge_and_unload") and not getattr(model, "is_loaded_in_4bit", False):
        model = model.merge_and_unload()
    final = out / "final"
    model.save_pretrained(final)
    trainer.processing_class.save_pretrained(final)
    return final


def machine_arguments() -> dict[str, Any]:
    """Training arguments that depend on whether there is a CUDA card."""
    card = torch.cuda.is_available()
    return {"use_cpu": not card, "dataloader_pin_memory": card}
