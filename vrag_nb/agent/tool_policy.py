"""VimRAG's endpoint: `OpenAIPolicy` with what a model that thinks at length and calls tools needs."""

from __future__ import annotations

from typing import Any

from vrag_nb.agent.openai_policy import OpenAIPolicy


class ToolCallPolicy(OpenAIPolicy):
    """An `OpenAIPolicy` with other defaults: long replies, time for them, no stop strings, which a thought may quote.

    Takes what `OpenAIPolicy` takes (api_key, enable_thinking, ...), and raises what it raises. 4096 new tokens are the
    official demo's limit.
    """

    def __init__(
        self,
        model: str,
        base_url: str | None = None,
        *,
        max_new_tokens: int = 4096,
        timeout: float = 300.0,
        stop: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(model, base_url, max_new_tokens=max_new_tokens, timeout=timeout, stop=stop, **options)
