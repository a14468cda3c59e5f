"""A policy behind any OpenAI-compatible endpoint: a vLLM server, DashScope, OpenAI itself.

Images travel as base64 data URLs at the size they are shown, which is a fixed point of the Qwen processors' resizing,
so the endpoint sees the same pixels. Text is all such an endpoint gives back: token ids stay empty.

Endpoints of thinking models may put the thought elsewhere (`reasoning_content` or `reasoning`), and some take tool
calls out of the text into `tool_calls`. Both come back into the one text that is parsed: `<think>...</think>` before
it, `<tool_call>{...}</tool_call>` after it. What the endpoint has told to be thought is never an action: tags and
braces that it quotes stand there in signs that nobody reads as such (`thinking.quoted`).

The API key is given as it is or, better, by the name of an environment variable; it is kept out of errors and records.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

from PIL import Image as PILImage

from vrag_nb.agent import actions, thinking
from vrag_nb.agent.chat_endpoint import ChatEndpoint, EndpointError, Said, endpoint_key
from vrag_nb.agent.policy import (
    Conversation,
    FinishReason,
    Frame,
    Generation,
    Policy,
    Text,
    boxes_to_model,
    boxes_to_shown,
    check_frame,
    check_sampling,
    grammar_of,
)

NOTHING_SAID = "(no words)"  # in the place of a turn without any, which endpoints refuse to be sent
MOST_STOPS = 4  # OpenAI takes no more; what follows the closing tags of further actions is cut off here


class OpenAIPolicy(Policy):
    """Asks `model` at `base_url` for each turn.

    api_key: the key itself; else api_key_env: the environment variable that holds it, None for a server that wants
    none. enable_thinking: asks the model to think first, or not to, as DashScope and vLLM take it; None says nothing.
    temperature and top_p are by default 0.6 and 0.95 for a model asked to think (VimRAG's official demo), else 0 and 1.
    concurrency: requests at once within one `generate`. retries: attempts after the first, with growing waits, on
    connection errors, rate limits and server errors. timeout: seconds of an attempt until the answer begins, and as
    many again until it is there. image_format: "png" is exact, "jpeg" smaller. frame: "normalised-1000" for models
    such as Qwen3-VL whose boxes run from 0 to 1000. stop: send the closing tags as stop strings (a server that drops
    them from the text has them put back); a model that thinks may quote one too early. logprobs: ask for
    log-probabilities. token_limit_field: what the endpoint calls the limit on new tokens.
    extra_body: anything else it should be sent. omit: fields of the request that are left out, for a model that refuses
    them (the GPT-5 family takes no temperature, top_p or stop); the endpoint's own defaults then hold.
    address: what `identity` says in place of base_url, for a server whose port is drawn anew in every run.
    Raises ValueError when the variable named by api_key_env is not set or holds no key, base_url is no address, or omit
    names what is no field of the request.
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
        max_new_tokens: int = 1024,
        temperature: float | None = None,
        top_p: float | None = None,
        concurrency: int = 8,
        retries: int = 3,
        timeout: float = 120.0,
        image_format: Literal["png", "jpeg"] = "png",
        frame: Frame = "absolute",
        stop: bool = True,
        logprobs: bool = False,
        token_limit_field: str = "max_tokens",
        extra_body: dict[str, Any] | None = None,
        omit: Sequence[str] = (),
        address: str | None = None,
    ) -> None:
        key = endpoint_key(api_key_env, api_key)
        self._endpoint = ChatEndpoint(base_url, key, retries=retries, timeout=timeout)
        self.model, self.name, self.address = model, model, address
        self.temperature = temperature if temperature is not None else 0.6 if enable_thinking else 0.0
        self.top_p = top_p if top_p is not None else 0.95 if enable_thinking else 1.0
        check_sampling(self.temperature, self.top_p, max_new_tokens)
        check_frame(frame)
        self.concurrency, self.image_format, self.frame = concurrency, image_format, frame
        self._limit = {token_limit_field: max_new_tokens}
        thinking: dict[str, Any] = {} if enable_thinking is None else {"enable_thinking": enable_thinking}
        if thinking:
            thinking["chat_template_kwargs"] = dict(thinking)
        extra = {**thinking, **(extra_body or {})}
        self.omit = _fields(omit, {"temperature", "top_p", "stop", "logprobs", "seed", token_limit_field, *extra})
        self.stop, self.logprobs = stop and "stop" not in self.omit, logprobs
        self._extra_body = {name: value for name, value in extra.items() if name not in self.omit}

    @property
    def identity(self) -> dict[str, Any]:
        """What is asked of which model and how it is sent; a checksum of what may hold a secret."""
        asked = [self.address or self._endpoint.base_url, json.dumps(self._extra_body, sort_keys=True, default=str)]
        digest = hashlib.sha256("\n".join(asked).encode()).hexdigest()[:16]
        omitted = {"omit": sorted(self.omit)} if self.omit else {}  # none: as before there was such an option
        form = {"limit": self._limit, "image_format": self.image_format, "stop": self.stop}
        sampling = {"temperature": self.temperature, "top_p": self.top_p, "frame": self.frame}
        return {"name": self.name, **sampling, "endpoint": digest, **form, **omitted}

    def generate(self, conversations: Sequence[Conversation], seeds: Sequence[int] | None = None) -> list[Generation]:
        """See `Policy.generate`. A request that fails for good is its sample's error; the others go on."""
        wanted: list[int | None] = list(seeds) if seeds is not None else [None] * len(conversations)
        if len(conversations) == 1:
            return [self._one(conversations[0], wanted[0])]
        with ThreadPoolExecutor(max_workers=max(1, self.concurrency)) as pool:
            return list(pool.map(self._one, conversations, wanted))

    def close(self) -> None:
        """Close the connections."""
        self._endpoint.close()

    def _one(self, conversation: Conversation, seed: int | None) -> Generation:
        try:
            return self._read(self._endpoint.ask(**self._request(conversation, seed)), conversation)
        except EndpointError as error:
            return Generation.failed(str(error))
        except Exception as error:  # of a conversation that cannot be sent
            return Generation.failed(self._endpoint.without_key(f"{type(error).__name__}: {error}"))

    def _request(self, conversation: Conversation, seed: int | None) -> dict[str, Any]:
        request: dict[str, Any] = {
            "model": self.model,
            "messages": [self._message(conversation, index) for index in range(len(conversation))],
            "temperature": self.temperature,
            "top_p": self.top_p,
            **self._limit,
        }
        if self.stop:
            request["stop"] = grammar_of(conversation).stops[:MOST_STOPS]
        if self.logprobs:
            request["logprobs"] = True
        if seed is not None and self.temperature > 0:
            request["seed"] = seed % 2**31
        if self._extra_body:
            request["extra_body"] = self._extra_body
        return {name: value for name, value in request.items() if name not in self.omit}

    def _message(self, conversation: Conversation, index: int) -> dict[str, Any]:
        message = conversation[index]
        if not message.images:
            text = boxes_to_model(conversation, index, self.frame)
            said = text if text.strip() or message.role != "assistant" else NOTHING_SAID
            return {"role": message.role, "content": said}
        content: list[dict[str, Any]] = []
        for part in message.parts:
            if isinstance(part, Text):
                content.append({"type": "text", "text": part.text})
            else:
                url = data_url(part.resolved(), self.image_format)
                content.append({"type": "image_url", "image_url": {"url": url}})
        return {"role": message.role, "content": content}

    def _read(self, said: Said, conversation: Conversation) -> Generation:
        text, calls = said.text, _written(said.calls)
        grammar = grammar_of(conversation)
        if said.finish_reason == "stop" and self.stop and not calls:
            text = actions.close_action(text, grammar)
        end = actions.end_of_action(text, grammar) if not calls else None
        text = _with_thought(said.thought, f"{text[:end]}{calls}")
        reason: FinishReason = "length" if said.finish_reason == "length" else "stop"
        return Generation(
            text=boxes_to_shown(text, conversation, self.frame),
            logprobs=said.logprobs,
            finish_reason="action" if calls or end is not None else reason,
            prompt_tokens=said.prompt_tokens,
        )


def _fields(omit: Sequence[str], known: set[str]) -> frozenset[str]:
    """The names in `omit`. Raises ValueError for one that is not in `known`."""
    unknown = sorted(set(omit) - known)
    if unknown:
        raise ValueError(f"omit names {', '.join(unknown)}; what can be left out: {', '.join(sorted(known))}")
    return frozenset(omit)


def _written(calls: Sequence[Mapping[str, Any]]) -> str:
    """Tool calls that the endpoint took out of the text, as they stand in one."""
    return "".join(f"<tool_call>{json.dumps(one, ensure_ascii=False)}</tool_call>" for one in calls)


def _with_thought(thought: str, text: str) -> str:
    """The text after the thought that the endpoint took out of it, unless the text holds one itself."""
    if not thought or "</think>" in text:
        return text
    return f"<think>{thinking.quoted(thought)}</think>\n{text}"


def data_url(image: PILImage.Image, image_format: Literal["png", "jpeg"] = "png") -> str:
    """An image as a base64 data URL."""
    buffer = io.BytesIO()
    image.save(buffer, format=image_format.upper(), **({"quality": 92} if image_format == "jpeg" else {}))
    return f"data:image/{image_format};base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"
