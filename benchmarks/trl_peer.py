"""TRL's own way to multi-turn GRPO, as a peer: `GRPOTrainer(environment_factory=...)` around our environment.

Its chat template and response template are written so that the nano agent's own format is rendered and parsed; what a
search or a crop shows comes from our environment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForImageTextToText, AutoProcessor
from trl import GRPOConfig, GRPOTrainer

from vrag_nb.agent.environment import Environment
from vrag_nb.agent.policy import Generation, Image, Message
from vrag_nb.agent.prompting import fill_prompt
from vrag_nb.learning.trainers import freeze
from vrag_nb.paths import project_path
from vrag_nb.profiles import Profile
from vrag_nb.records import Question

# The nano format with tools: a call is written as its tag, a tool's answer as a user turn.
CHAT_TEMPLATE = """{%- for message in messages -%}
{{- '<|im_start|>' + ('user' if message.role == 'tool' else message.role) + '\\n' -}}
{%- if message.content is string -%}{{- message.content -}}
{%- else -%}
{%- for part in message.content or [] -%}
{%- if part.type == 'image' -%}{{- '<|vision_start|><|image_pad|><|vision_end|>' -}}
{%- else -%}{{- part.text -}}{%- endif -%}
{%- endfor -%}
{%- endif -%}
{%- for call in message.tool_calls or [] -%}
{{- '<' + call.function.name + '>' -}}
{%- for key, value in call.function.arguments.items() -%}{{- ('' if key == 'text' else key) + value -}}{%- endfor -%}
{{- '</' + call.function.name + '>' -}}
{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"""
RESPONSE_TEMPLATE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "reasoning_content": {"open": "<think>", "close_pattern": r"</think>\s*", "content": "text"},
        "tool_calls": {
            "open_pattern": r"<(?P<name>search|bbox)>",
            "close_pattern": r"</(?:search|bbox)>\s*",
            "repeats": True,
            "content": "text",
            "transform": {"type": "function", "function": {"name": "{name}", "arguments": {"text": "{content}"}}},
        },
        "content": {"close_pattern": r"<\|im_end\|>\s*", "content": "text"},
    },
}


def tools_of(environment: Environment, questions: dict[str, Question]) -> Callable[[], Any]:
    """What TRL calls for each rollout: our environment behind methods that the model calls as tools."""

    class Tools:
        def reset(self, uid: str, **row: Any) -> None:
            self._session = environment.start(questions[uid])

        def search(self, text: str) -> list[dict[str, Any]]:
            """Show the best-ranked page not shown yet.

            Args:
                text: what to search for
            """
            return self._act(f"<search>{text}</search>")

        def bbox(self, text: str) -> list[dict[str, Any]]:
            """Show a part of the last image, enlarged.

            Args:
                text: the corners [x1, y1, x2, y2]
            """
            return self._act(f"<bbox>{text}</bbox>")

        def _act(self, written: str) -> list[dict[str, Any]]:
            if self._session.done:
                return [{"type": "text", "text": "no turns are left."}]
            environment.advance([self._session], [Generation(written)])
            return _parts(self._session.conversation[-1])

    return Tools


def _parts(message: Message) -> list[dict[str, Any]]:
    return [
        {"type": "image", "image": part.resolved()} if isinstance(part, Image) else {"type": "text", "text": part.text}
        for part in message.parts
    ]


def turn_environment(profile: Profile) -> Environment:
    """A profile's environment; TRL's tool loop plays conversations, so that VimRAG's memory graph will not do."""
    environment = profile.load_environment()
    if not isinstance(environment, Environment):
        raise SystemExit(f"profile {profile.name}: this benchmark needs an agent of kind vrag")
    return environment


def length_reward(completions: list[Any], **_: Any) -> list[float | None]:
    return [float(len(one)) for one in completions]


def stock_trainer(
    checkpoint: Path,
    environment: Environment,
    questions: Sequence[Question],
    *,
    group_size: int = 2,
    rows: int | None = None,
    micro_batch: int | None = None,
    max_length: int = 3072,
    **options: Any,
) -> GRPOTrainer:
    """TRL's trainer on `questions`. rows: trajectories of a step (default: a question each); options: of GRPOConfig."""
    processor = AutoProcessor.from_pretrained(checkpoint)
    processor.chat_template = processor.tokenizer.chat_template = CHAT_TEMPLATE
    processor.tokenizer.response_template = RESPONSE_TEMPLATE
    processor.tokenizer.eos_token = "<|im_end|>"
    processor.image_processor.size = {"shortest_edge": 1, "longest_edge": 10**9}  # images come at their shown size
    rows = rows or len(questions)
    settings = {
        "output_dir": str(project_path("data/runs/benchmark")),
        "use_cpu": not torch.cuda.is_available(),
        "bf16": False,
        "beta": 0.0,
        "temperature": 1.0,
        "max_completion_length": max_length,
        "max_tool_calling_iterations": environment.settings.max_turns,
        "num_generations": group_size,
        "per_device_train_batch_size": micro_batch or rows,
        "gradient_accumulation_steps": rows // (micro_batch or rows),
        "gradient_checkpointing": False,
        "save_strategy": "no",
        "report_to": "none",
    }
    model = AutoModelForImageTextToText.from_pretrained(checkpoint, dtype=torch.float32)
    freeze(model, vision=True, projector=True)  # as GRPOSettings does: both learn the same weights
    return GRPOTrainer(
        model=model,
        reward_funcs=length_reward,
        args=GRPOConfig(**{**settings, **options}),
        train_dataset=Dataset.from_list(prompts(environment, questions)),
        processing_class=processor,
        environment_factory=tools_of(environment, {one.uid: one for one in questions}),
    )


def prompts(environment: Environment, questions: Sequence[Question]) -> list[dict[str, Any]]:
    """The questions as rows that TRL takes."""
    return [
        {"prompt": [{"role": "user", "content": fill_prompt(environment.template, one.query)}], "uid": one.uid}
        for one in questions
    ]
