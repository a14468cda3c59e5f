"""Supervised fine-tuning on sampled trajectories: TRL's SFTTrainer over our own token-exact encoding.

The loss covers what the assistant wrote, its end-of-turn token included, and nothing else: the labels come from
`ChatEncoder`'s mask over token ids, never from searching the text for turns.

    trainer = sft_trainer(SFTSettings(checkpoint="data/models/nano-base", data="data/sampled/train.parquet", out=...))
    train(trainer)          # goes on from the last checkpoint in `out`, where there is one

Defaults are those of the paper (VRAG-RL, tables 4 and 5): full fine-tuning, vision tower and projector frozen, three
epochs, cosine schedule with a tenth of warm-up, learning rate 1e-5; a nano model wants a hundred times that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from pydantic import Field
from transformers import AutoProcessor, TrainerCallback
from trl import SFTConfig, SFTTrainer

from vrag_nb.agent.encoding import ChatEncoder, Encoded
from vrag_nb.agent.policy import Frame, in_frame
from vrag_nb.learning.curves import CurveLog
from vrag_nb.learning.length_groups import LengthGroups
from vrag_nb.learning.rows import with_blank_behind
from vrag_nb.learning.sampled_data import read_conversation, read_rows
from vrag_nb.learning.trainers import ModelSettings, RestoresWeights, epoch_of, trainer_arguments

IGNORE = -100
LENGTH = "length"


class SFTSettings(ModelSettings):
    """One run. batch_size: of each process. max_length: rows with more tokens, image tokens included, are left out and
    counted, since a conversation cut short would teach to stop. epochs count unless max_steps is above 0.
    """

    data: str
    out: str
    epochs: float = Field(default=3, gt=0)
    max_steps: int = -1
    batch_size: int = Field(default=2, ge=1)
    accumulation: int = Field(default=1, ge=1)
    learning_rate: float = Field(default=1e-5, gt=0)
    warmup: float = Field(default=0.1, ge=0, lt=1)
    max_length: int = Field(default=16_384, ge=1)
    save_steps: int = Field(default=100, ge=1)
    report_to: list[str] = Field(default_factory=list)
    seed: int = 0


class ConversationCollator:
    """Rows of `sampled_data.write_dataset` to model inputs, with labels on the assistant's tokens only.

    blank_images: rows without an image get a blank one (`rows.with_blank_image`).
    """

    def __init__(self, encoder: ChatEncoder, frame: Frame = "absolute") -> None:
        self.encoder = encoder
        self.frame: Frame = frame
        self.blank_images = False

    def __call__(self, rows: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
        encoded = [_encoded(row, self.encoder, self.frame) for row in rows]
        if self.blank_images:
            encoded = [with_blank_behind(one, self.encoder) for one in encoded]
        inputs = self.encoder.collate(encoded, padding_side="right")
        written = inputs.pop("model_mask")
        inputs["labels"] = inputs["input_ids"].masked_fill(~written, IGNORE)
        return inputs


def load_rows(
    path: str | Path, encoder: ChatEncoder, max_length: int, frame: Frame = "absolute"
) -> tuple[Dataset, int]:
    """The rows that fit, with their tokens in column LENGTH (in place of one the file may have), and how many did not.

    Raises ValueError naming the file when none is left.
    """
    rows = read_rows(path)
    lengths = [len(_encoded(row, encoder, frame).input_ids) for row in rows]
    fits = [index for index, length in enumerate(lengths) if length <= max_length]
    if not fits:
        raise ValueError(f"{path}: no trajectory has at most {max_length} tokens: raise max_length, or sample again")
    if LENGTH in rows.column_names:
        rows = rows.remove_columns(LENGTH)
    return rows.select(fits).add_column(LENGTH, [lengths[index] for index in fits]), len(rows) - len(fits)


def _encoded(row: dict[str, Any], encoder: ChatEncoder, frame: Frame) -> Encoded:
    return encoder.encode(in_frame(read_conversation(row), frame), reply=False)


class ResumableTrainer(RestoresWeights, SFTTrainer):
    """TRL's trainer, where resuming brings the weights back and a step's loss is the mean over all its learned tokens,
    however its rows fall to processes and to batches that are accumulated; no row counts twice an epoch.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Qwen-VL's own loss takes no count of tokens, so transformers gives none. TRL's, which is used here, takes one;
        # without it, each batch has the same weight, whatever is in it.
        self.model_accepts_loss_kwargs = True

    def _get_train_sampler(self, train_dataset: Any = None) -> LengthGroups:
        """Batches of similar lengths; the longest of a step costs what all of it does."""
        rows: Any = self.train_dataset if train_dataset is None else train_dataset
        batch = self.args.per_device_train_batch_size * self.args.gradient_accumulation_steps * self.args.world_size
        return LengthGroups(rows[LENGTH], batch, self.args.seed, lambda: epoch_of(self))

    def get_batch_samples(self, epoch_iterator: Iterator[Any], num_batches: int, device: Any) -> Any:
        """As transformers', which counts the learned tokens here, after the repeated rows have lost theirs."""
        return super().get_batch_samples(map(self._unrepeated, epoch_iterator), num_batches, device)

    def _unrepeated(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The batch without labels of rows that only fill up: accelerate ends an epoch with some of its first rows,
        where they do not come out even for the processes."""
        state = self.accelerator.gradient_state
        if state.end_of_dataloader and state.remainder > 0:
            own = state.remainder - self.accelerator.process_index * self.args.per_device_train_batch_size
            batch["labels"][max(0, own) :] = IGNORE
        return batch


def sft_trainer(settings: SFTSettings, callbacks: Sequence[TrainerCallback] = ()) -> ResumableTrainer:
    """A trainer, ready to run. Raises ValueError for data that does not fit, or QLoRA without a CUDA card."""
    processor = AutoProcessor.from_pretrained(settings.checkpoint)
    encoder = ChatEncoder(processor)
    rows, too_long = load_rows(settings.data, encoder, settings.max_length, settings.frame)
    if too_long:
        print(f"{too_long} trajectories have more than {settings.max_length} tokens and are left out")
    collator = ConversationCollator(encoder, settings.frame)
    args = _arguments(settings)  # first: with ZeRO-3 weights are loaded in parts
    trainer = ResumableTrainer(
        model=settings.load(),
        args=args,
        train_dataset=rows,
        processing_class=processor,
        data_collator=collator,
        peft_config=settings.adapter(),
        callbacks=[CurveLog(Path(settings.out) / "log.jsonl"), *callbacks],
    )
    collator.blank_images = settings.meets_in_tower(trainer.accelerator)
    return trainer


def _arguments(settings: SFTSettings) -> SFTConfig:
    return SFTConfig(
        num_train_epochs=settings.epochs,
        max_steps=settings.max_steps,
        per_device_train_batch_size=settings.batch_size,
        gradient_accumulation_steps=settings.accumulation,
        learning_rate=settings.learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=settings.warmup,
        max_length=None,
        **trainer_arguments(settings),
    )
