"""Checkpoint folders of random weights and minimal size, of the real classes, for the tests of embedders.

`make_checkpoint(kind, folder, seed)` saves what `load_embedder(kind, folder)` loads: weights, configuration, tokenizer
and processor.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import colpali_engine.models as engine
import torch
import transformers as hf
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from vrag_nb.nano.model import NanoSize, build_processor, nano_config
from vrag_nb.nano.tokenizer import build_tokenizer, token_id

TEXTS = ["What does the page show?", "Describe the image.", "apples and pears", "Find the answer. seconds 0.5"]
IDEFICS_TOKENS = ["<image>", "<fake_token_around_image>", "<end_of_utterance>", "<global-img>", "<|begin_of_text|>"]
TILE, IDEFICS_PATCH, SIGLIP_PATCH = 32, 8, 8  # pixels


def make_checkpoint(kind: str, folder: Path, seed: int = 0) -> Path:
    """Save a tiny checkpoint for a registered embedder; other seeds give other weights."""
    torch.manual_seed(seed)
    model, *parts = MAKERS[kind]()
    with torch.no_grad():  # initial weights are so small that all tokens would be nearly alike
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.mul_(4)
    model.save_pretrained(folder)
    for part in parts:
        part.save_pretrained(folder)
    return folder


# --- Qwen -------------------------------------------------------------------------------------------------------------


def _qwen_tokenizer() -> Any:
    return build_tokenizer(TEXTS, vocab_size=340)


def _qwen25_config(tokenizer: Any) -> Any:
    return nano_config(tokenizer, NanoSize(32, 2, 2, 32, 2, 2))


def _qwen2_config(tokenizer: Any) -> Any:
    fields = _qwen25_config(tokenizer).to_dict()
    vision = {"embed_dim": 32, "hidden_size": 32, "depth": 2, "num_heads": 2, "mlp_ratio": 2, "patch_size": 14}
    ids = {name: fields[name] for name in fields if name.endswith("_token_id")}
    text = {name: value for name, value in fields["text_config"].items() if name != "model_type"}
    return hf.Qwen2VLConfig(text_config=text, vision_config=vision, **ids)


def _qwen3_config(tokenizer: Any) -> Any:
    ids = {
        f"{name}_token_id": token_id(tokenizer, f"<|{token}|>")
        for name, token in [("image", "image_pad"), ("video", "video_pad")]
        + [(f"vision_{edge}", f"vision_{edge}") for edge in ("start", "end")]
    }
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]},
        "pad_token_id": tokenizer.pad_token_id,
    }
    vision = {
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 2,
        "out_hidden_size": 32,
        "num_position_embeddings": 64,
        "deepstack_visual_indexes": [0],
    }
    return hf.Qwen3VLConfig(text_config=text, vision_config=vision, **ids)


def _qwen_processor(tokenizer: Any, processor_class: Any) -> Any:
    parts = build_processor(tokenizer, 4 * 784, 60 * 784)
    return processor_class(parts.image_processor, tokenizer, parts.video_processor, tokenizer.chat_template)


def _qwen3_processor(tokenizer: Any, processor_class: Any) -> Any:
    size = {"shortest_edge": 4 * 1024, "longest_edge": 60 * 1024}
    images = hf.Qwen2VLImageProcessor(size=size, patch_size=16, merge_size=2)
    videos = hf.Qwen3VLVideoProcessor(size={**size, "longest_edge": 240 * 1024})
    return processor_class(images, tokenizer, videos, tokenizer.chat_template)


def _qwen(config: Callable[[Any], Any], processor: Callable[[Any, Any], Any], model_class: Any, processor_class: Any):
    def make() -> tuple[Any, ...]:
        tokenizer = _qwen_tokenizer()
        return model_class(config(tokenizer)), processor(tokenizer, processor_class)

    return make


# --- the others -------------------------------------------------------------------------------------------------------


def _word_tokenizer(special: list[str], **names: str) -> hf.PreTrainedTokenizerFast:
    """Letters and the special tokens; every character of another kind is unknown."""
    letters = [*special, "<unk>", *"abcdefghijklmnopqrstuvwxyzDUA.:?1234567890 \n"]
    core = Tokenizer(models.WordLevel({token: number for number, token in enumerate(letters)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer = hf.PreTrainedTokenizerFast(
        tokenizer_object=core, unk_token="<unk>", model_input_names=["input_ids", "attention_mask"], **names
    )
    tokenizer.add_special_tokens({"additional_special_tokens": [t for t in special if t not in names.values()]})
    return tokenizer


def _pali(model_class: Any, processor_class: Any) -> Callable[[], tuple[Any, ...]]:
    def make() -> tuple[Any, ...]:
        tokenizer = _word_tokenizer(
            ["<pad>", "<bos>", "<eos>", "<image>"], pad_token="<pad>", bos_token="<bos>", eos_token="<eos>"
        )
        images = hf.SiglipImageProcessor(size={"height": 64, "width": 64})
        images.image_seq_length = (64 // SIGLIP_PATCH) ** 2
        processor = processor_class(image_processor=images, tokenizer=tokenizer)
        text = {
            "model_type": "gemma",
            "vocab_size": len(tokenizer),
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 16,
            "pad_token_id": tokenizer.pad_token_id,
        }
        vision = {
            "model_type": "siglip_vision_model",
            "image_size": 64,
            "patch_size": SIGLIP_PATCH,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "projection_dim": 32,
            "vision_use_head": False,
        }
        config = hf.PaliGemmaConfig(
            text_config=text,
            vision_config=vision,
            image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
            vocab_size=len(tokenizer),
            hidden_size=32,
            projection_dim=32,
        )
        return model_class(config), processor

    return make


def _tiled_processor(processor_class: Any) -> Any:
    tags = [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
    tokenizer = _word_tokenizer(["<pad>", *IDEFICS_TOKENS, *tags], pad_token="<pad>", eos_token="<end_of_utterance>")
    images = hf.Idefics3ImageProcessor(size={"longest_edge": 3 * TILE}, max_image_size={"longest_edge": TILE})
    return processor_class(images, tokenizer, image_seq_len=(TILE // IDEFICS_PATCH // 2) ** 2)


def _tiled_parts(processor: Any, vision_type: str) -> tuple[dict[str, Any], dict[str, Any]]:
    tower = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    vision = {"model_type": vision_type, "image_size": TILE, "patch_size": IDEFICS_PATCH, **tower}
    text = {"vocab_size": len(processor.tokenizer), "pad_token_id": processor.tokenizer.pad_token_id, **tower}
    return text, vision


def _idefics3(model_class: Any, processor_class: Any) -> Callable[[], tuple[Any, ...]]:
    def make() -> tuple[Any, ...]:
        processor = _tiled_processor(processor_class)
        text, vision = _tiled_parts(processor, "idefics3_vision")
        config = hf.Idefics3Config(
            text_config={"model_type": "llama", **text},
            vision_config=vision,
            image_token_id=processor.image_token_id,
            scale_factor=2,
        )
        return model_class(config), processor

    return make


def _modernvbert(model_class: Any, processor_class: Any) -> Callable[[], tuple[Any, ...]]:
    def make() -> tuple[Any, ...]:
        processor = _tiled_processor(processor_class)
        text, vision = _tiled_parts(processor, "siglip_vision_model")
        config = hf.ModernVBertConfig(
            text_config={"model_type": "modernbert", **text},
            vision_config=vision,
            image_token_id=processor.image_token_id,
            pixel_shuffle_factor=2,
        )
        return model_class(config), processor

    return make


def _sentences() -> tuple[Any, ...]:
    core = Tokenizer(
        models.WordPiece(
            {
                token: number
                for number, token in enumerate(
                    ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefghijklmnopqrstuvwxyz:"]
                    + [f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"]
                )
            },
            unk_token="[UNK]",
        )
    )
    core.normalizer = normalizers.BertNormalizer()
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer = hf.PreTrainedTokenizerFast(
        tokenizer_object=core,
        unk_token="[UNK]",
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_max_length=64,
    )
    config = hf.BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    return hf.BertModel(config, add_pooling_layer=False), tokenizer


GVE = _qwen(_qwen25_config, _qwen_processor, hf.Qwen2_5_VLForConditionalGeneration, hf.Qwen2_5_VLProcessor)
QWEN3_EMBEDDING = _qwen(_qwen3_config, _qwen3_processor, hf.Qwen3VLForConditionalGeneration, hf.Qwen3VLProcessor)

MAKERS: dict[str, Callable[[], tuple[Any, ...]]] = {
    "colqwen2": _qwen(_qwen2_config, _qwen_processor, engine.ColQwen2, engine.ColQwen2Processor),
    "biqwen2": _qwen(_qwen2_config, _qwen_processor, engine.BiQwen2, engine.BiQwen2Processor),
    "colqwen2_5": _qwen(_qwen25_config, _qwen_processor, engine.ColQwen2_5, engine.ColQwen2_5_Processor),
    "biqwen2_5": _qwen(_qwen25_config, _qwen_processor, engine.BiQwen2_5, engine.BiQwen2_5_Processor),
    "colqwen3": _qwen(_qwen3_config, _qwen3_processor, engine.ColQwen3, engine.ColQwen3Processor),
    "biqwen3": _qwen(_qwen3_config, _qwen3_processor, engine.BiQwen3, engine.BiQwen3Processor),
    "colpali": _pali(engine.ColPali, engine.ColPaliProcessor),
    "bipali": _pali(engine.BiPali, engine.ColPaliProcessor),
    "colidefics3": _idefics3(engine.ColIdefics3, engine.ColIdefics3Processor),
    "biidefics3": _idefics3(engine.BiIdefics3, engine.BiIdefics3Processor),
    "colmodernvbert": _modernvbert(engine.ColModernVBert, engine.ColModernVBertProcessor),
    "bimodernvbert": _modernvbert(engine.BiModernVBert, engine.BiModernVBertProcessor),
    "gve-3b": GVE,
    "gve-7b": GVE,
    "qwen3-vl-embedding-2b": QWEN3_EMBEDDING,
    "qwen3-vl-embedding-8b": QWEN3_EMBEDDING,
    "sentences": _sentences,
}
