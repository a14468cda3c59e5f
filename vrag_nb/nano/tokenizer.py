"""The nano tokenizer: byte-level BPE of a few hundred tokens, with Qwen's special tokens and chat format.

The vocabulary is small on purpose. A model that has to learn spelling from the pictures it sees learns it sooner with
few, short tokens; and digits stand alone, so that a number is read digit by digit.
"""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

SPECIAL_TOKENS = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
]
# The agent's tags are plain text to every parser, but one token each here: a nano model should not have to spell them.
TAGS = [f"<{slash}{name}>" for name in ("think", "search", "bbox", "answer") for slash in ("", "/")]

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{ '<|im_start|>' + message.role + '\n' }}"
    "{%- if message.content is string -%}{{ message.content }}"
    "{%- else -%}{%- for part in message.content -%}"
    "{%- if part.type == 'image' -%}<|vision_start|><|image_pad|><|vision_end|>"
    "{%- elif part.type == 'video' -%}<|vision_start|><|video_pad|><|vision_end|>"
    "{%- else -%}{{ part.text }}{%- endif -%}"
    "{%- endfor -%}{%- endif -%}"
    "{{ '<|im_end|>\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}"
)


def token_id(tokenizer: PreTrainedTokenizerBase, token: str) -> int:
    """The id of one token. Raises ValueError when the vocabulary lacks it."""
    found = tokenizer.convert_tokens_to_ids(token)
    if not isinstance(found, int) or found == tokenizer.unk_token_id:
        raise ValueError(f"the tokenizer has no token {token}")
    return found


def build_tokenizer(texts: Iterable[str], vocab_size: int = 512) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE of `vocab_size` tokens (special tokens and tags included) on `texts`."""
    tokenizer = Tokenizer(models.BPE())
    words = Regex(r" ?[A-Za-z]+| ?[0-9]|[^A-Za-z0-9]")  # a digit is a token; words do not cross punctuation
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(words, behavior="isolated"),
            pre_tokenizers.Split(Regex(r"[0-9]"), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(TAGS),
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
        max_token_length=8,
    )
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=[t for t in SPECIAL_TOKENS if t not in ("<|im_end|>", "<|endoftext|>")],
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
    )
    fast.add_tokens(TAGS)
    fast.chat_template = CHAT_TEMPLATE
    return fast
