"""What our trainers on top of TRL share: which weights learn, resuming with them, running to the end, the machine."""

from __future__ import annotations

import shutil
import warnings
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import torch
from accelerate import PartialState
from pydantic import BaseModel, ConfigDict, Field
from transformers import AutoModelForImageTextToText, PreTrainedModel, TrainerState
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from vrag_nb.agent.policy import Frame
from vrag_nb.attention import suit_cpu
from vrag_nb.denormals import flushed_denormals
from vrag_nb.folder_lock import alone_in

# TRL sets these arguments itself, so nobody who reads the warning can do anything about it.
for _name in ("gradient_checkpointing", "is_gradient_checkpointing"):
    warnings.filterwarnings("ignore", message=f"`{_name}` is deprecated", category=FutureWarning)

FINAL = "final"  # below a run's folder: what it ended with
ADAPTER = "adapter"  # beside it, of a run on weights of 4 bits: what it trained
# What QLoRA leaves as it is: small print must look to the adapter as it does to the model that is served.
WHOLE = ["model.visual", "lm_head"]
PATIENCE = timedelta(minutes=30)  # for the slowest process, as in transformers; 10 where a card's group has no other


class ModelSettings(BaseModel):
    """Which weights a training run starts from and which of them learn.

    lora_rank 0 trains all weights that are not frozen. quantise: load the base in 4 bits (QLoRA; needs a CUDA card and
    bitsandbytes), all but the vision tower and the output head. dtype: of the loaded weights; on a CUDA card float32
    ones are trained under bfloat16 autocast. frame: in which the model counts boxes, as of its policy
    (`agent.policy.Frame`).
    """

    model_config = ConfigDict(extra="forbid")
    checkpoint: str
    freeze_vision: bool = True
    freeze_projector: bool = True
    lora_rank: int = Field(default=0, ge=0)
    lora_alpha: int = 64
    quantise: bool = False
    dtype: Literal["float32", "bfloat16"] = "float32"
    gradient_checkpointing: bool = False
    frame: Frame = "absolute"

    def load(self) -> PreTrainedModel:
        """The model, frozen where it is to be. Raises ValueError for 4 bits without a CUDA card or without LoRA."""
        options: dict[str, Any] = {"dtype": getattr(torch, self.dtype)}
        if self.quantise:
            if not torch.cuda.is_available():
                raise ValueError("quantise needs a CUDA card: set it to false, or train where there is one")
            if not self.lora_rank:
                raise ValueError("quantise needs a lora_rank: weights of 4 bits cannot be trained themselves")
            from transformers import BitsAndBytesConfig

            options["quantization_config"] = BitsAndBytesConfig(
                load_in_4bit=True,
                bnb_4bit_quant_type="nf4",
                bnb_4bit_compute_dtype=torch.bfloat16,
                llm_int8_skip_modules=WHOLE,
            )
        model = AutoModelForImageTextToText.from_pretrained(self.checkpoint, **options)
        freeze(model, self.freeze_vision, self.freeze_projector)
        if not torch.cuda.is_available():
            suit_cpu(model)
        return model

    def meets_in_tower(self, accelerator: Any) -> bool:
        """Whether a process that sees no image would keep the others waiting: for its part of the weights, or for its
        part of the tower's gradients."""
        shared = accelerator.num_processes > 1 and not (self.freeze_vision and self.freeze_projector)
        return shared or weights_are_sharded(accelerator)

    def adapter(self) -> Any:
        """The LoRA configuration, or None: low-rank updates of the language model's matrices."""
        if not self.lora_rank:
            return None
        from peft import LoraConfig

        layers = r".*language_model.*\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)"
        return LoraConfig(r=self.lora_rank, lora_alpha=self.lora_alpha, target_modules=layers, task_type="CAUSAL_LM")


def freeze(model: PreTrainedModel, vision: bool, projector: bool) -> None:
    """Stop gradients into the vision tower's blocks, its projector (the mergers), or both."""
    for name, parameter in model.named_parameters():
        if ".visual." in f".{name}":
            merges = ".merger." in name or ".deepstack_merger_list." in name  # Qwen3-VL has several
            parameter.requires_grad_(not (projector if merges else vision))


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
    """Run to the end, from the last checkpoint where there is one; returns a folder that loads without peft.

    A run that was made with so many steps is left as it is. Raises FolderInUseError where another run trains in the
    same folder, ValueError for whole weights of 16 bits.
    """
    out = Path(str(trainer.args.output_dir))
    with alone_in(out) if trainer.is_world_process_zero() else nullcontext():
        if _steps_of(out / FINAL) == trainer.args.max_steps:
            return out / FINAL
        widen_adapter(trainer.model)
        _check_precision(trainer)
        with flushed_denormals():
            trainer.train(resume_from_checkpoint=_last_checkpoint(out))
        return _save(trainer, out)


def widen_adapter(model: Any) -> None:
    """Low-rank updates of a base of 4 bits in float32 again, before there is an optimiser: TRL makes them bfloat16,
    which would round steps away."""
    if getattr(model, "is_loaded_in_4bit", False):
        for weights in model.parameters():
            if weights.requires_grad and weights.dtype == torch.bfloat16:
                weights.data = weights.data.float()


def _check_precision(trainer: Any) -> None:
    """Raises ValueError where steps would be rounded away: AdamW's are below half a unit in the last place of most
    bfloat16 weights, and only DeepSpeed and FSDP keep weights of 32 bits beside them."""
    if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
        return
    if any(weights.requires_grad and weights.dtype == torch.bfloat16 for weights in trainer.model.parameters()):
        raise ValueError(
            "dtype: bfloat16 rounds most of a step away where the weights themselves are trained: set a lora_rank or "
            "dtype: float32, or launch with DeepSpeed (accelerate launch --config_file vrag_nb/learning/zero3.yaml)"
        )


def _save(trainer: Any, out: Path) -> Path:
    final, unfinished = out / FINAL, out / f"{FINAL}.partial"  # renamed when whole: a kill leaves none that is not
    if trainer.is_world_process_zero():
        shutil.rmtree(unfinished, ignore_errors=True)
    trainer.accelerator.wait_for_everyone()
    model = trainer.accelerator.unwrap_model(trainer.model)
    if not hasattr(model, "merge_and_unload"):
        trainer.save_model(str(unfinished))  # gathers weights that lie in parts on several cards
    elif getattr(model, "is_loaded_in_4bit", False):
        trainer.save_model(str(out / ADAPTER))
        if trainer.is_world_process_zero():
            merged_anew(model.get_base_model().name_or_path, out / ADAPTER).save_pretrained(unfinished)
    else:
        merged = model.merge_and_unload()
        if trainer.is_world_process_zero():
            merged.save_pretrained(unfinished)
    if trainer.is_world_process_zero():
        trainer.processing_class.save_pretrained(unfinished)
        trainer.state.save_to_json(str(unfinished / TRAINER_STATE_NAME))
        shutil.rmtree(final, ignore_errors=True)
        unfinished.rename(final)
    trainer.accelerator.wait_for_everyone()
    return final


def merged_anew(base: str | Path, adapter: Path) -> PreTrainedModel:
    """The checkpoint `base`, loaded in bfloat16, with the LoRA adapter of a folder in its weights.

    For adapters trained on weights of 4 bits, which would round away what is merged into them.
    """
    from peft import PeftModel

    model = AutoModelForImageTextToText.from_pretrained(base, dtype=torch.bfloat16)
    merged: PreTrainedModel = PeftModel.from_pretrained(model, str(adapter)).merge_and_unload()
    return merged


def epoch_of(trainer: Any) -> int:
    """The epoch that a trainer is in, from 0, or begins; also after it was resumed."""
    return int(trainer.state.epoch or 0)


def steps_made(folder: Path) -> int:
    """After how many steps the run in `folder` has last been saved; 0 where it has not."""
    last = _last_checkpoint(folder)
    return max(_steps_of(Path(last)) if last else 0, _steps_of(folder / FINAL))


def _steps_of(checkpoint: Path) -> int:
    """The steps a checkpoint was trained for; 0 where there is none."""
    state = checkpoint / TRAINER_STATE_NAME
    return TrainerState.load_from_json(str(state)).global_step if state.is_file() else 0


def _last_checkpoint(folder: Path) -> str | None:
    """The last one that is whole: its state is written last, so a kill while saving leaves a checkpoint without."""
    whole = [path.parent for path in folder.glob(f"{PREFIX_CHECKPOINT_DIR}-*/{TRAINER_STATE_NAME}")]
    return str(max(whole, key=lambda path: int(path.name.rpartition("-")[2]))) if whole else None


def process_group() -> PartialState:
    """The processes of this run, joined where a launcher started several; trainers find and keep what it made.

    Without a CUDA card accelerate has to be told so, or each process takes itself for the only one.
    """
    return PartialState(cpu=not torch.cuda.is_available(), timeout=PATIENCE)


def weights_are_sharded(accelerator: Any) -> bool:
    """Whether each process holds a part of the weights only: DeepSpeed's ZeRO-3, or FSDP."""
    plugin = getattr(accelerator.state, "deepspeed_plugin", None)
    fully = getattr(accelerator.state, "fsdp_plugin", None) is not None
    return fully or (plugin is not None and plugin.zero_stage == 3)


def trainer_arguments(settings: Any) -> dict[str, Any]:
    """What trainers are told alike, by their settings and by the machine."""
    return {
        "output_dir": settings.out,
        "gradient_checkpointing": settings.gradient_checkpointing,
        "bf16": torch.cuda.is_available(),
        "save_steps": settings.save_steps,
        "save_total_limit": 2,
        "logging_steps": 1,
        "report_to": settings.report_to or "none",
        "seed": settings.seed,
        "remove_unused_columns": False,
        **machine_arguments(),
    }


def machine_arguments() -> dict[str, Any]:
    """Training arguments that depend on whether there is a CUDA card."""
    card = torch.cuda.is_available()
    return {"use_cpu": not card, "dataloader_pin_memory": card}
