"""A policy behind any OpenAI-compatible endpoint: a vLLM server, DashScope, OpenAI itself.

Images travel as base64 data URLs at the size they are shown, which is a fixed point of the Qwen processors' resizing,
so the endpoint sees the same pixels. Text is all such an endpoint gives back: token ids stay empty.

The API key is read from an environment variable, named and never its value; it is kept out of errors and records.
"""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

from openai import OpenAI, OpenAIError
from PIL import Image as PILImage

from vrag_nb.agent import actions
from vrag_nb.agent.policy import (
    Conversation,
    Frame,
    Generation,
    Policy,
    Text,
    boxes_to_model,
    boxes_to_shown,
)

STOP = ["</search>", "</bbox>", "</region>", "</answer>"]


class OpenAIPolicy(Policy):
    """Asks `model` at `base_url` for each turn.

    api_key_env: the environment variable that holds the key; None for a server that wants none. concurrency: requests
    at once within one `generate`. retries: attempts after the first, with growing waits, on connection errors, rate
    limits and server errors. timeout: seconds per attempt. image_format: "png" is exact, "jpeg" smaller. frame:
    "normalised-1000" for models such as Qwen3-VL whose boxes run from 0 to 1000. stop: send the closing tags as stop
    strings (a server that drops them from the text has them put back). logprobs: ask for log-probabilities.
    token_limit_field: what the endpoint calls the limit on new tokens. extra_body: anything else it should be sent.
    Raises ValueError when the variable named by api_key_env is not set.
    """

    batched = False

    def __init__(
        self,
        model: str,
        base_url: str | None = None,
        *,
        api_key_env: str | None = "OPENAI_API_KEY",
        max_new_tokens: int = 1024,
        temperature: float = 0.0,
        top_p: float = 1.0,
        concurrency: int = 8,
        retries: int = 3,
        timeout: float = 120.0,
        image_format: Literal["png", "jpeg"] = "png",
        frame: Frame = "absolute",
        stop: bool = True,
        logprobs: bool = False,
        token_limit_field: str = "max_tokens",
        extra_body: dict[str, Any] | None = None,
    ) -> None:
        self._key = endpoint_key(api_key_env)
        self._client = OpenAI(api_key=self._key, base_url=base_url, max_retries=retries, timeout=timeout)
        self.model, self.name = model, model
        self.temperature, self.top_p, self.concurrency = temperature, top_p, concurrency
        self.image_format, self.frame, self.stop, self.logprobs = image_format, frame, stop, logprobs
        self._limit = {token_limit_field: max_new_tokens}
        self._extra_body = extra_body

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
        try:
            response = self._client.chat.completions.create(**self._request(conversation, seed))
            return self._read(response, conversation)
        except (OpenAIError, ValueError, OSError) as error:
            return Generation.failed(f"{type(error).__name__}: {error}".replace(self._key, "[key]"))

    def _request(self, conversation: Conversation, seed: int | None) -> dict[str, Any]:
        request: dict[str, Any] = {
            "model": self.model,
            "messages": [self._message(conversation, index) for index in range(len(conversation))],
            "temperature": self.temperature,
            "top_p": self.top_p,
            **self._limit,
        }
        if self.stop:
            request["stop"] = STOP
        if self.logprobs:
            request["logprobs"] = True
        if seed is not None and self.temperature > 0:
            request["seed"] = seed % 2**31
        if self._extra_body:
            request["extra_body"] = self._extra_body
        return request

    def _message(self, conversation: Conversation, index: int) -> dict[str, Any]:
        message = conversation[index]
        if not message.images:
            return {"role": message.role, "content": boxes_to_model(conversation, index, self.frame)}
        content: list[dict[str, Any]] = []
        for part in message.parts:
            if isinstance(part, Text):
                content.append({"type": "text", "text": part.text})
            else:
                url = data_url(part.resolved(), self.image_format)
                content.append({"type": "image_url", "image_url": {"url": url}})
        return {"role": message.role, "content": content}

    def _read(self, response: Any, conversation: Conversation) -> Generation:
        if not response.choices:
            raise ValueError("the endpoint answered without a choice")
        choice = response.choices[0]
        text = choice.message.content or ""
        if choice.finish_reason == "stop" and self.stop:
            text = actions.close_action(text)
        end = actions.end_of_action(text)
        reason: Literal["action", "stop", "length"] = "length" if choice.finish_reason == "length" else "stop"
        logprobs = [token.logprob for token in (choice.logprobs.content or [])] if choice.logprobs else []
        return Generation(
            text=boxes_to_shown(text[:end], conversation, self.frame),
            logprobs=logprobs,
            finish_reason="action" if end is not None else reason,
            prompt_tokens=response.usage.prompt_tokens if response.usage else 0,
        )


def data_url(image: PILImage.Image, image_format: Literal["png", "jpeg"] = "png") -> str:
    """An image as a base64 data URL."""
    buffer = io.BytesIO()
    image.save(buffer, format=image_format.upper(), **({"quality": 92} if image_format == "jpeg" else {}))
    return f"data:image/{image_format};base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"


def endpoint_key(api_key_env: str | None) -> str:
    """The key in the variable, or a stand-in where none is needed. Raises ValueError when the variable is not set."""
    if api_key_env is None:
        return "none-needed"
    key = os.environ.get(api_key_env)
    if not key:
        raise ValueError(f"the environment variable {api_key_env} is not set: it should hold the endpoint's API key")
    return key
