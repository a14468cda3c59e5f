"""Trajectories a second: our rollout driver against TRL's own tool loop; same model, environment, questions, machine.

    python benchmarks/rollout.py --questions 40

TRL (`GRPOTrainer(environment_factory=...)`) drives the model turn by turn: all conversations in lock-step, tools called
one after another, every turn's prompt computed anew with all its images. Its chat template and response template are
written so that the nano agent's own format is rendered and parsed; what a search or a crop shows comes from our
environment in both. Two things stay different, and TRL has no setting for them: a reply that is no valid action ends
TRL's conversation, and its turns end at the end-of-turn token where ours end at the closing tag. So tokens and turns
are printed beside the speed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForImageTextToText, AutoProcessor
from trl import GRPOConfig, GRPOTrainer

from vrag_nb.agent.environment import Environment
from vrag_nb.agent.policy import Generation, Image, Message
from vrag_nb.agent.prompting import fill_prompt
from vrag_nb.agent.rollout import rollout
from vrag_nb.agent.transformers_policy import TransformersPolicy
from vrag_nb.evaluation.report import print_table
from vrag_nb.paths import project_path
from vrag_nb.profiles import load_profile, sample
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


def trl_rollouts(
    checkpoint: Path, environment: Environment, questions: list[Question], max_length: int
) -> tuple[float, int, float]:
    """Seconds, generated tokens and turns a question of TRL's tool loop."""
    processor = AutoProcessor.from_pretrained(checkpoint)
    processor.chat_template = processor.tokenizer.chat_template = CHAT_TEMPLATE
    processor.tokenizer.response_template = RESPONSE_TEMPLATE
    processor.tokenizer.eos_token = "<|im_end|>"
    processor.image_processor.size = {"shortest_edge": 1, "longest_edge": 10**9}  # images come at their shown size
    prompts = [
        {"prompt": [{"role": "user", "content": fill_prompt(environment.template, one.query)}], "uid": one.uid}
        for one in questions
    ]
    trainer = GRPOTrainer(
        model=AutoModelForImageTextToText.from_pretrained(checkpoint, dtype=torch.float32),
        reward_funcs=lambda completions, **kwargs: [0.0] * len(completions),
        args=GRPOConfig(
            output_dir=str(project_path("data/runs/benchmark")),
            use_cpu=not torch.cuda.is_available(),
            bf16=False,
            beta=0.0,
            temperature=1.0,
            max_completion_length=max_length,
            max_tool_calling_iterations=environment.settings.max_turns,
            num_generations=2,
            per_device_train_batch_size=len(prompts),
            gradient_accumulation_steps=1,
            report_to="none",
        ),
        train_dataset=Dataset.from_list(prompts),
        processing_class=processor,
        environment_factory=tools_of(environment, {one.uid: one for one in questions}),
    )
    trainer.model.train()
    started = time.perf_counter()
    batch = trainer._generate_and_score_completions(prompts)
    seconds = time.perf_counter() - started
    turns = trainer._metrics["train"]["tools/call_frequency"][-1] + 1
    return seconds, int((batch["completion_mask"] * batch["tool_mask"]).sum()), turns


def our_rollouts(
    checkpoint: Path, environment: Environment, questions: list[Question], new_tokens: int
) -> tuple[float, int, float]:
    """The same figures of our driver."""
    policy = TransformersPolicy(
        checkpoint, dtype="float32", temperature=1.0, max_new_tokens=new_tokens, batch_size=len(questions)
    )
    started = time.perf_counter()
    found = rollout(policy, environment, questions, concurrency=len(questions), progress=False)
    seconds = time.perf_counter() - started
    return seconds, sum(one.generated_tokens for one in found), sum(len(one.turns) for one in found) / len(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", default="nano")
    parser.add_argument("--questions", type=int, default=40)
    parser.add_argument("--max-length", type=int, default=3072, help="tokens of a whole conversation, for TRL")
    parser.add_argument("--new-tokens", type=int, default=128, help="tokens of a turn, for ours")
    parser.add_argument("--threads", type=int, default=None)
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    profile = load_profile(arguments.profile)
    environment = profile.load_environment()
    questions = sample(profile.questions(), arguments.questions, 1)
    checkpoint = profile.checkpoint_folders["policy"]
    ours = our_rollouts(checkpoint, environment, questions, arguments.new_tokens)
    theirs = trl_rollouts(checkpoint, environment, questions, arguments.max_length)
    count = len(questions)
    rows = [
        [
            name,
            f"{count / seconds:.2f}",
            f"{seconds:.1f}",
            f"{tokens / count:.0f}",
            f"{turns:.2f}",
            f"{tokens / seconds:.0f}",
        ]
        for name, (seconds, tokens, turns) in (("our driver", ours), ("TRL's tool loop", theirs))
    ]
    head = ["driver", "trajectories/s", "seconds", "tokens/trajectory", "turns", "tokens/s"]
    print_table(f"{count} questions, {checkpoint.name}, {torch.get_num_threads()} threads", head, rows)
    print(f"ours is {theirs[0] / ours[0]:.2f} times as fast per trajectory")


if __name__ == "__main__":
    main()
