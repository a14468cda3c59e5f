"""Supervised fine-tuning: the loss is on the assistant's tokens, freezing freezes, a killed run ends the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import KillAt, KilledError, RankedEngine
from datasets import load_dataset
from test_sampling import question
from transformers import AutoModelForImageTextToText, AutoProcessor, TrainerCallback
from transformers.quantizers.quantizers_utils import should_convert_module

from vrag_nb.agent.actions import parse
from vrag_nb.agent.encoding import ChatEncoder
from vrag_nb.agent.environment import Environment
from vrag_nb.agent.pages import PageStore
from vrag_nb.agent.rollout import rollout
from vrag_nb.agent.task_settings import Settings
from vrag_nb.learning.curves import read_log
from vrag_nb.learning.experts import PrivilegedPlanner
from vrag_nb.learning.sampled_data import read_conversation, write_dataset
from vrag_nb.learning.sft import IGNORE, ConversationCollator, SFTSettings, load_rows, sft_trainer
from vrag_nb.learning.trainers import WHOLE, train, widen_adapter


@pytest.fixture(scope="module")
def data(tiny_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six short trajectories of small images."""
    settings = Settings(max_turns=6, min_pixels=784, max_pixels=12 * 784)
    environment = Environment(RankedEngine(), tiny_corpus, settings, "nano")
    questions = [question(f"q{n}", page=1 + n % 2) for n in range(6)]
    trajectories = rollout(PrivilegedPlanner(questions), environment, questions, progress=False)
    return write_dataset(trajectories, PageStore(tiny_corpus), tmp_path_factory.mktemp("sampled"))


def settings(checkpoint: Path, data: Path, out: Path, **changes: Any) -> SFTSettings:
    base = {"learning_rate": 3e-3, "max_steps": 6, "batch_size": 2, "save_steps": 2, "warmup": 0.0}
    return SFTSettings(checkpoint=str(checkpoint), data=str(data), out=str(out), **{**base, **changes})


def test_labels_are_the_assistants_tokens_and_no_others(tiny_vlm_folder: Path, data: Path) -> None:
    processor = AutoProcessor.from_pretrained(tiny_vlm_folder)
    rows = load_dataset("parquet", data_files=str(data), split="train")
    batch = ConversationCollator(ChatEncoder(processor))(list(rows.select(range(3))))
    assert set(batch) > {"input_ids", "attention_mask", "labels", "pixel_values", "image_grid_thw"}
    decode = processor.tokenizer.decode
    for ids, labels, row in zip(batch["input_ids"], batch["labels"], rows, strict=False):
        learned = labels != IGNORE
        assert torch.equal(labels[learned], ids[learned])
        said = [part["text"] for turn in row["messages"] if turn["role"] == "assistant" for part in turn["content"]]
        assert decode(ids[learned]) == "".join(f"{text}<|im_end|>" for text in said)
        pads = ids == processor.tokenizer.convert_tokens_to_ids("<|image_pad|>")
        assert pads.any()
        assert not (learned & pads).any()


def test_boxes_are_learned_in_the_models_frame(tiny_vlm_folder: Path, data: Path) -> None:
    processor = AutoProcessor.from_pretrained(tiny_vlm_folder)
    rows = list(load_dataset("parquet", data_files=str(data), split="train").select(range(1)))
    said = {}
    for frame in ("absolute", "normalised-1000"):
        batch = ConversationCollator(ChatEncoder(processor), frame)(rows)  # type: ignore[arg-type]
        learned = batch["input_ids"][batch["labels"] != IGNORE]
        said[frame] = processor.tokenizer.decode(learned)
    shown = read_conversation(rows[0])
    place = next(n for n, message in enumerate(shown) if message.role == "assistant" and "<bbox>" in message.text)
    width, height = shown[place - 1].images[-1].size
    absolute, thousandths = (parse(text[text.index("<bbox>") :])[1].box for text in said.values())
    assert absolute is not None
    scaled = [1000 * value / side for value, side in zip(absolute, (width, height) * 2, strict=True)]
    assert thousandths == pytest.approx(scaled, abs=1)
    assert said["absolute"].replace(" ", "") != said["normalised-1000"].replace(" ", "")


def test_a_loss_on_observations_is_no_loss_of_ours(tiny_vlm_folder: Path, data: Path) -> None:
    """Other words in the user's turns change the inputs and leave the labels' positions alone."""
    processor = AutoProcessor.from_pretrained(tiny_vlm_folder)
    rows = [dict(row) for row in load_dataset("parquet", data_files=str(data), split="train").select(range(1))]
    batch = ConversationCollator(ChatEncoder(processor))(rows)
    model = AutoModelForImageTextToText.from_pretrained(tiny_vlm_folder)
    output = model(**{name: value for name, value in batch.items() if name != "labels"})
    shifted = batch["labels"][:, 1:]
    chosen = shifted != IGNORE
    by_hand = -output.logits[:, :-1].float().log_softmax(-1)[chosen].gather(1, shifted[chosen][:, None]).mean()
    assert by_hand.item() == pytest.approx(model(**batch).loss.item(), abs=1e-5)


def test_rows_without_an_image_get_one_that_teaches_nothing(tiny_vlm_folder: Path, data: Path) -> None:
    """Where weights lie in parts on several cards, all processes go through the vision tower or none."""
    processor = AutoProcessor.from_pretrained(tiny_vlm_folder)
    [row] = [dict(row) for row in load_dataset("parquet", data_files=str(data), split="train").select(range(1))]
    said = [part for part in row["messages"][-1]["content"] if part["type"] == "text"]
    row |= {"images": [], "messages": [row["messages"][0], {**row["messages"][-1], "content": said}]}
    collator = ConversationCollator(ChatEncoder(processor))
    plain = collator([row])
    collator.blank_images = True
    blank = collator([row])
    assert "pixel_values" not in plain
    assert len(blank["image_grid_thw"]) == 1
    model = AutoModelForImageTextToText.from_pretrained(tiny_vlm_folder)
    assert model(**blank).loss.item() == pytest.approx(model(**plain).loss.item(), abs=1e-5)


def test_freezing_and_curves(tiny_vlm_folder: Path, data: Path, tmp_path: Path) -> None:
    before = AutoModelForImageTextToText.from_pretrained(tiny_vlm_folder).state_dict()
    final = train(sft_trainer(settings(tiny_vlm_folder, data, tmp_path, max_steps=12)))
    after = AutoModelForImageTextToText.from_pretrained(final).state_dict()
    moved = {name for name in before if not torch.equal(before[name].float(), after[name].float())}
    assert moved
    assert not any("visual" in name for name in moved)
    losses = [row["loss"] for row in read_log(tmp_path / "log.jsonl") if "loss" in row]
    assert len(losses) == 12
    assert losses[-1] < losses[0] - 0.3
    assert AutoProcessor.from_pretrained(final).tokenizer.chat_template


def test_lora_trains_few_weights_and_saves_a_whole_model(tiny_vlm_folder: Path, data: Path, tmp_path: Path) -> None:
    trainer = sft_trainer(settings(tiny_vlm_folder, data, tmp_path, lora_rank=4, max_steps=2))
    trained = [name for name, parameter in trainer.model.named_parameters() if parameter.requires_grad]
    assert trained
    assert all("lora_" in name and "language_model" in name for name in trained)
    final = train(trainer)
    assert (final / "model.safetensors").is_file()
    AutoModelForImageTextToText.from_pretrained(final)


def test_adapters_of_4_bit_weights_learn_in_32_bits_and_leave_the_tower_whole(
    tiny_vlm_folder: Path, data: Path, tmp_path: Path
) -> None:
    model = sft_trainer(settings(tiny_vlm_folder, data, tmp_path, lora_rank=4)).model
    learns = [weights for weights in model.parameters() if weights.requires_grad]
    for weights in learns:
        weights.data = weights.data.to(torch.bfloat16)  # as TRL does with what learns on weights of 4 bits
    widen_adapter(model)
    assert {weights.dtype for weights in learns} == {torch.bfloat16}  # whose own they are: refused
    model.get_base_model().is_loaded_in_4bit = True
    widen_adapter(model)
    assert {weights.dtype for weights in learns} == {torch.float32}
    names = [name for name, part in model.get_base_model().named_modules() if isinstance(part, torch.nn.Linear)]
    made_small = [name for name in names if should_convert_module(name, WHOLE)]
    assert made_small
    assert all(name.startswith("model.language_model.") for name in made_small)
    assert any(name.startswith("model.visual.") for name in names)


class SaysFourBits(TrainerCallback):
    """Weights of 4 bits need a CUDA card; a model that says it has them is saved in the same way."""

    def on_train_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        model.get_base_model().is_loaded_in_4bit = True


def test_an_adapter_on_weights_of_4_bits_ends_in_whole_ones(tiny_vlm_folder: Path, data: Path, tmp_path: Path) -> None:
    one = sft_trainer(settings(tiny_vlm_folder, data, tmp_path, lora_rank=4, max_steps=2), [SaysFourBits()])
    final = train(one)
    assert (final / "config.json").is_file()  # what later stages look for
    assert not (final / "adapter_config.json").exists()
    assert (tmp_path / "adapter" / "adapter_model.safetensors").is_file()
    before, after = (AutoModelForImageTextToText.from_pretrained(path) for path in (tiny_vlm_folder, final))
    assert after.dtype == torch.bfloat16
    wanted = one.accelerator.unwrap_model(one.model).merge_and_unload().state_dict()
    moved = 0
    for name, weight in after.state_dict().items():
        assert torch.allclose(weight.float(), wanted[name].float(), rtol=0.02, atol=1e-3), name
        moved += not torch.allclose(weight.float(), before.state_dict()[name].float(), rtol=0.02, atol=1e-3)
    assert moved


def test_a_killed_run_ends_with_the_weights_of_an_unbroken_one(
    tiny_vlm_folder: Path, data: Path, tmp_path: Path
) -> None:
    whole = train(sft_trainer(settings(tiny_vlm_folder, data, tmp_path / "whole")))
    with pytest.raises(KilledError):
        train(sft_trainer(settings(tiny_vlm_folder, data, tmp_path / "broken"), [KillAt(5)]))
    resumed = train(sft_trainer(settings(tiny_vlm_folder, data, tmp_path / "broken")))
    one, other = (AutoModelForImageTextToText.from_pretrained(path).state_dict() for path in (whole, resumed))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert [row["step"] for row in read_log(tmp_path / "broken" / "log.jsonl") if "loss" in row] == [1, 2, 3, 4, 5, 6]


def test_what_does_not_fit_is_left_out_or_said(tiny_vlm_folder: Path, data: Path, tmp_path: Path) -> None:
    encoder = ChatEncoder(AutoProcessor.from_pretrained(tiny_vlm_folder))
    rows, dropped = load_rows(data, encoder, 10_000)
    assert (len(rows), dropped) == (6, 0)
    lengths = sorted(len(encoder.encode(read_conversation(row), reply=False).input_ids) for row in rows)
    assert lengths[0] < lengths[-1]
    assert load_rows(data, encoder, lengths[0])[1] == 6 - lengths.count(lengths[0])
    own = tmp_path / "own.parquet"  # somebody else's rows may have a column of that name
    rows.remove_columns("length").add_column("length", ["long"] * 6).to_parquet(own)
    assert load_rows(own, encoder, 10_000)[0]["length"] == rows["length"]
    with pytest.raises(ValueError, match=r"train\.parquet: no trajectory has at most 5 tokens"):
        load_rows(data, encoder, 5)
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="CUDA"):
            sft_trainer(settings(tiny_vlm_folder, data, tmp_path, quantise=True))


def test_batches_are_of_similar_lengths(tiny_vlm_folder: Path, data: Path, tmp_path: Path) -> None:
    trainer = sft_trainer(settings(tiny_vlm_folder, data, tmp_path, accumulation=2))
    sampler = trainer._get_train_sampler()
    encoder = ChatEncoder(AutoProcessor.from_pretrained(tiny_vlm_folder))
    rows = [encoder.encode(read_conversation(row), reply=False).input_ids for row in trainer.train_dataset]
    assert sampler.lengths == [len(ids) for ids in rows]
    assert sampler.batch_size == 4  # of a step, accumulated batches together
    assert trainer.get_train_dataloader().batch_sampler.sampler.lengths == sampler.lengths


def test_every_epoch_has_an_order_of_its_own(tiny_vlm_folder: Path, data: Path, tmp_path: Path) -> None:
    trainer = sft_trainer(settings(tiny_vlm_folder, data, tmp_path))
    orders = []
    for epoch in (0.0, 1.0, 1.5, 2.0):
        trainer.state.epoch = epoch  # 1.5: of a run that is resumed in its second epoch
        orders.append(list(trainer._get_train_sampler()))
    assert orders[1] == orders[2]
    assert orders[0] != orders[1] != orders[3]
