"""What transformers' trainers need to go on after a kill as if nothing had happened, and to leave their curves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, TrainerCallback

from vrag_nb.nano.optimisation import RunLog


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


class CurveLog(TrainerCallback):
    """Writes what a trainer logs to `log.jsonl`, one row per logged step; a resumed run forgets what it repeats."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._log: RunLog | None = None

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if self._log is None:
            self._log = RunLog(self.path, state.global_step - 1)
        numbers = {name: value for name, value in (logs or {}).items() if isinstance(value, int | float)}
        self._log.write(step=state.global_step, **numbers)
