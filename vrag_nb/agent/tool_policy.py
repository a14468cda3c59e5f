"""A policy that calls tools behind an OpenAI-compatible endpoint, whichever way the endpoint hands its words over.

`agent.openai_policy` reads the text of a reply. Endpoints of thinking models put the thought elsewhere
(`reasoning_content` or `reasoning`), and some take tool calls out of the text into `tool_calls`. Here both come back
as the one text that `agent.memory_actions` reads: `<think>...</think><tool_call>{...}</tool_call>`.

The key may be given as it is or by the name of an environment variable; it is kept out of errors and records.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

from openai import OpenAI, OpenAIError

from vrag_nb.agent.openai_policy import data_url, endpoint_key
from vrag_nb.agent.policy import Conversation, Generation, Message, Policy, Text


class ToolCallPolicy(Policy):
    """Asks `model` at `base_url` for each step.

    api_key: the key itself; else api_key_env: the variable that holds it, None for a server that wants none.
    enable_thinking: asks the model to think first, or not to, as DashScope and vLLM take it; None says nothing about
    it. temperature and top_p are by default 0.6 and 0.95 for a model that thinks, else 0 and 1 (official demo).
    concurrency, retries, timeout, image_format, extra_body: as in `OpenAIPolicy`. Raises ValueError when the variable
    is not set.
    """

    batched = False

    def __init__(
        self,
        model: str,
        base_url: str | None = None,
        *,
        api_key: str | None = None,
        api_key_env: str | None = "OPENAI_API_KEY",
        enable_thinking: bool | None = None,
        max_new_tokens: int = 4096,
        temperature: float | None = None,
        top_p: float | None = None,
        concurrency: int = 8,
        retries: int = 3,
        timeout: float = 300.0,
        image_format: Literal["png", "jpeg"] = "png",
        token_limit_field: str = "max_tokens",
        extra_body: dict[str, Any] | None = None,
    ) -> None:
        self._key = api_key or endpoint_key(api_key_env)
        self._client = OpenAI(api_key=self._key, base_url=base_url, max_retries=retries, timeout=timeout)
        self.model, self.name = model, model
        self.concurrency, self.image_format = concurrency, image_format
        self.temperature = temperature if temperature is not None else 0.6 if enable_thinking else 0.0
        top_p = top_p if top_p is not None else 0.95 if enable_thinking else 1.0
        said = {} if enable_thinking is None else {"enable_thinking": enable_thinking}
        template = {"chat_template_kwargs": said} if said else {}
        self._options: dict[str, Any] = {
            "temperature": self.temperature,
            "top_p": top_p,
            token_limit_field: max_new_tokens,
            "extra_body": {**said, **template, **(extra_body or {})},
        }

    def generate(self, conversations: Sequence[Conversation], seeds: Sequence[int] | None = None) -> list[Generation]:
        """See `Policy.generate`. A request that fails for good is its sample's error; the others go on."""
        wanted: list[int | None] = list(seeds) if seeds is not None else [None] * len(conversations)
        if len(conversations) == 1:
            return [self._one(conversations[0], wanted[0])]
        with ThreadPoolExecutor(max_workers=max(1, self.concurrency)) as pool:
            return list(pool.map(self._one, conversations, wanted))

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _one(self, conversation: Conversation, seed: int | None) -> Generation:
        options = dict(self._options)
        if seed is not None and self.temperature > 0:
            options["seed"] = seed % 2**31
        try:
            messages: Any = [self._message(message) for message in conversation]
            return _read(self._client.chat.completions.create(model=self.model, messages=messages, **options))
        except (OpenAIError, ValueError, OSError) as error:
            return Generation.failed(f"{type(error).__name__}: {error}".replace(self._key, "[key]"))

    def _message(self, message: Message) -> dict[str, Any]:
        if not message.images:
            return {"role": message.role, "content": message.text}
        content: list[dict[str, Any]] = []
        for part in message.parts:
            if isinstance(part, Text):
                content.append({"type": "text", "text": part.text})
            else:
                url = data_url(part.resolved(), self.image_format)
                content.append({"type": "image_url", "image_url": {"url": url}})
        return {"role": message.role, "content": content}


def _read(response: Any) -> Generation:
    if not response.choices:
        raise ValueError("the endpoint answered without a choice")
    choice = response.choices[0]
    message = choice.message
    text = message.content or ""
    for call in message.tool_calls or []:
        if call.type == "function":
            named = {"name": call.function.name, "arguments": call.function.arguments}
            text += f"<tool_call>{json.dumps(named, ensure_ascii=False)}</tool_call>"
    thought = getattr(message, "reasoning_content", None) or getattr(message, "reasoning", None)
    if isinstance(thought, str) and thought.strip() and "</think>" not in text:
        text = f"<think>{thought.strip()}</think>\n{text}"
    return Generation(
        text=text,
        finish_reason="length" if choice.finish_reason == "length" else "stop",
        prompt_tokens=response.usage.prompt_tokens if response.usage else 0,
    )
