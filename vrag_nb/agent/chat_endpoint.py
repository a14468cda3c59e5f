"""An OpenAI-compatible endpoint: one request, and what comes back, which may be anything.

    endpoint = ChatEndpoint("http://127.0.0.1:8000/v1", endpoint_key("MY_KEY"), retries=3, timeout=120)
    said = endpoint.ask(model="m", messages=[{"role": "user", "content": "What is shown?"}])
    said.thought, said.text, said.calls

What may pass is asked again after growing waits: a broken connection, a rate limit, a server's error, and the same
told inside of an answer whose status is 200, as gateways do. What lasts is an `EndpointError`, which says where was
asked and what to check, and never the key.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeGuard

import httpx
import openai

BROKEN_OFF = frozenset({"content_filter", "error", "abort"})  # reasons to end that are no end of a turn
_PASSING_CODES = (408, 409, 429)  # and those of a server's error
_PASSING = re.compile(r"(?<![a-z])rate|overload|busy|throttl|too.?many|unavailable|server.?error", re.IGNORECASE)
_CHECKS: tuple[tuple[type[Exception], str], ...] = (  # the first that an error is of says what to look at
    (openai.NotFoundError, "is the model named rightly, and does base_url lead to the API, most often to /v1?"),
    (openai.AuthenticationError, "is the key this endpoint's?"),
    (openai.APITimeoutError, "is timeout long enough for so many requests at once?"),
    (openai.APIConnectionError, "does a server listen there?"),
)


class EndpointError(RuntimeError):
    """An endpoint that did not answer, or with no turn of a model. The text is whole, without the key."""


class _BusyError(EndpointError):
    """One that may answer when it is asked again."""


@dataclass(frozen=True)
class Said:
    """What a model said. thought, calls: what the endpoint took out of the text, each call as {name, arguments}.

    finish_reason: the endpoint's, "length" for a turn that was cut off. logprobs: of each token, where it told all.
    prompt_tokens, completion_tokens: 0 where it does not say.
    """

    text: str
    thought: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)
    finish_reason: str = "stop"
    logprobs: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    completion_tokens: int = 0


class ChatEndpoint:
    """Asks at `base_url`, or where the `openai` client asks by itself.

    retries: attempts after the first. timeout: seconds of an attempt until the answer begins, and as many again until
    it is there. Raises ValueError for an address, timeout or number of retries that cannot be.
    """

    def __init__(self, base_url: str | None, key: str, *, retries: int, timeout: float) -> None:
        _check_address(base_url or os.environ.get("OPENAI_BASE_URL"))
        _check_number("timeout", timeout, "a number of seconds", 1e-3)
        _check_number("retries", retries, "a whole number from 0 on", 0)
        within = openai.DefaultHttpxClient(event_hooks={"response": [partial(_read_within, seconds=timeout)]})
        self._key, self._retries = key, retries
        self._client = openai.OpenAI(
            api_key=key, base_url=base_url, max_retries=retries, timeout=timeout, http_client=within
        )

    @property
    def base_url(self) -> str:
        return str(self._client.base_url)

    @property
    def address(self) -> str:
        """Where is asked, without what may be a secret in it."""
        url = httpx.URL(self.base_url)
        port = f":{url.port}" if url.port else ""
        return f"{url.scheme}://{url.host}{port}{self.without_key(url.path.rstrip('/'))}/chat/completions"

    def ask(self, **request: Any) -> Said:
        """The model's turn. Raises EndpointError."""
        for attempt in range(self._retries):
            try:
                return self._once(request)
            except _BusyError:
                time.sleep(min(0.5 * 2**attempt, 8))
        return self._once(request)

    def without_key(self, text: str) -> str:
        """A text that may quote the key, without it."""
        return text.replace(self._key, "[key]")

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _once(self, request: Mapping[str, Any]) -> Said:
        try:
            raw: Any = self._client.chat.completions.with_raw_response.create(**request)
            return read_said(_json_of(raw.http_response))
        except EndpointError as error:
            raise type(error)(f"{self.without_key(str(error))} (asked {self.address})") from None
        except Exception as error:  # of the client, or of an answer that nobody thought of
            cause = f" ({error.__cause__})" if error.__cause__ else ""
            check = next((words for kind, words in _CHECKS if isinstance(error, kind)), "")
            asked = f" (asked {self.address}: {check})" if check else ""
            raise EndpointError(self.without_key(f"{type(error).__name__}: {error}{cause}") + asked) from None


def endpoint_key(api_key_env: str | None, api_key: str | None = None) -> str:
    """The key given, else the one in the variable, or a stand-in where none is needed.

    Raises ValueError, naming the variable, when it is not set, or for a key that no header can carry: an error would
    quote that in another form than the one which is kept out of records.
    """
    if not api_key and api_key_env is None:
        return "none-needed"
    key = (api_key or os.environ.get(api_key_env or "", "")).strip()
    where = "api_key" if api_key else f"the environment variable {api_key_env}"
    if not key:
        raise ValueError(f"{where} is not set: it should hold the endpoint's API key")
    if not (key.isascii() and key.isprintable()):
        raise ValueError(f"{where} holds no API key: there is a line break or a sign in it that no key has")
    return key


def read_said(answer: Any) -> Said:
    """A chat completion's first choice. Raises EndpointError for what is none, or holds no whole turn."""
    if not isinstance(answer, dict) or not {"choices", "error"} & answer.keys():
        raise EndpointError("the endpoint's answer is no chat completion: is base_url its address?")
    choices = answer.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, dict):
        raise _told(answer.get("error"), "the endpoint answered without a choice")
    message, reason = choice.get("message"), choice.get("finish_reason")
    if reason in BROKEN_OFF or (choice.get("error") and not message):
        refusal = message.get("refusal") if isinstance(message, dict) else None
        raise _told(choice.get("error"), f"the endpoint broke the turn off: {reason} {refusal or ''}".strip())
    if not isinstance(message, dict):
        raise EndpointError("the endpoint answered without a message")
    usage = answer.get("usage")
    return Said(
        text=_words(message.get("content")),
        thought=_words(message.get("reasoning_content") or message.get("reasoning")).strip(),
        calls=_calls(message),
        finish_reason=reason if isinstance(reason, str) else "stop",
        logprobs=_logprobs(choice.get("logprobs")),
        prompt_tokens=_count(usage, "prompt_tokens"),
        completion_tokens=_count(usage, "completion_tokens"),
    )


def _json_of(response: Any) -> Any:
    """The body of a response. Raises EndpointError for what is no JSON: one that may pass, unless it is a page."""
    try:
        return json.loads(response.content)
    except (ValueError, RecursionError):
        if "html" in response.headers.get("content-type", ""):
            raise EndpointError("the endpoint's answer is no chat completion: is base_url its address?") from None
        body = response.content[:80].decode("utf-8", "replace")
        raise _BusyError(f"the endpoint's answer is {f'no JSON: {body!r}' if body else 'empty'}") from None


def _told(error: Any, words: str) -> EndpointError:
    """The error that an answer tells of in these words."""
    told = f"{words}: {error}" if error else words
    return _BusyError(told) if error and _passes(error) else EndpointError(told)


def _passes(error: Any) -> bool:
    """Whether an error told inside of an answer may pass, by its code or the names it has."""
    names = [error]
    if isinstance(error, dict):
        names = [error[one] for one in ("code", "type", "status") if error.get(one)] or [error.get("message")]
    return any(_names_a_passing_one(str(name)) for name in names)


def _names_a_passing_one(name: str) -> bool:
    if re.fullmatch(r"\d{1,6}", name):
        return int(name) in _PASSING_CODES or int(name) >= 500
    return bool(_PASSING.search(name))


def _words(content: Any) -> str:
    """A text, which some endpoints cut into parts; "" for what is none."""
    if isinstance(content, list):
        return "".join(_words(part.get("text")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _calls(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The tool calls that were taken out of the text, in the present form and the one before it."""
    calls = message.get("tool_calls") or []
    listed = calls if isinstance(calls, list) else [calls]
    functions = [
        call.get("function") for call in listed if isinstance(call, dict) and call.get("type") in (None, "", "function")
    ]
    functions.append(message.get("function_call"))
    return [
        {"name": function.get("name"), "arguments": function.get("arguments")}
        for function in functions
        if isinstance(function, dict)
    ]


def _logprobs(logprobs: Any) -> list[float]:
    """Every token's, or none where one is missing."""
    tokens = logprobs.get("content") if isinstance(logprobs, dict) else None
    values = [token.get("logprob") if isinstance(token, dict) else None for token in tokens or []]
    known = [float(value) for value in values if _is_number(value)]
    return known if len(known) == len(values) else []


def _count(usage: Any, name: str) -> int:
    value = usage.get(name) if isinstance(usage, dict) else None
    return int(value) if _is_number(value) and 0 <= value < math.inf else 0


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_address(base_url: str | None) -> None:
    if base_url is None:
        return
    try:
        url = httpx.URL(base_url)
    except (httpx.InvalidURL, TypeError):
        url = httpx.URL("")
    if url.scheme not in ("http", "https") or not url.host:
        shown = f" is {base_url!r}" if "@" not in str(base_url) else ""  # what stands before it may be a password
        raise ValueError(f"base_url{shown}: it should be an address such as http://127.0.0.1:8000/v1")


def _check_number(name: str, value: Any, what: str, least: float) -> None:
    if not _is_number(value) or not least <= value < math.inf:
        raise ValueError(f"{name} is {value!r}: it should be {what}")


def _read_within(response: Any, seconds: float) -> None:
    """Let reading the response's body take so many seconds: the client's own limit is for every piece of it alone.

    response: of httpx, or of what the `openai` client has in its place; both want a stream of their own class.
    """
    stream, end = response.stream, time.monotonic() + seconds
    library: Any = sys.modules[type(response).__module__.partition(".")[0]]

    def pieces(_: Any) -> Iterator[bytes]:
        for piece in stream:
            if time.monotonic() > end:  # the library's own kind of error, after which the client asks again
                raise library.ReadTimeout(f"the answer was not there after {seconds:g} seconds")
            yield piece

    own = {"__init__": lambda _: None, "__iter__": pieces, "close": lambda _: stream.close()}
    response.stream = type("Within", (type(stream),), own)()
