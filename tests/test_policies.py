"""The policies: token-exact prompts, log-probabilities that training reproduces, errors that stay with their sample."""

from __future__ import annotations

import asyncio
import base64
import io
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import RankedEngine, make_question, serving
from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, StreamingResponse
from PIL import Image as PILImage
from transformers import AutoModelForImageTextToText, AutoProcessor

from vrag_nb.agent import actions, memory_actions
from vrag_nb.agent.encoding import ChatEncoder
from vrag_nb.agent.environment import Environment, replay
from vrag_nb.agent.openai_policy import OpenAIPolicy
from vrag_nb.agent.picking import Picker
from vrag_nb.agent.policy import Conversation, Generation, Image, Message, Text
from vrag_nb.agent.rollout import rollout
from vrag_nb.agent.task_settings import Settings
from vrag_nb.agent.transformers_policy import TransformersPolicy
from vrag_nb.agent.vllm_policy import VLLMPolicy

SMALL, WIDE = (56, 84), (140, 56)  # shown pixels (width, height)


def picture(size: tuple[int, int], colour: str = "white") -> Image:
    return Image(size, PILImage.new("RGB", size, colour), "alpha_1")


def user(*parts: Text | Image | str) -> Message:
    return Message("user", tuple(Text(part) if isinstance(part, str) else part for part in parts))


SHORT: Conversation = [user("What?")]
LONG: Conversation = [
    user("Use <search>. Question: What was the total in 2019?"),
    Message("assistant", (Text("<think>a</think><search>total</search>"),)),
    user(picture(WIDE, "red"), "look ", picture(SMALL, "blue")),
]


@pytest.fixture(scope="module")
def policy(tiny_vlm_folder: Path) -> TransformersPolicy:
    return TransformersPolicy(tiny_vlm_folder, device="cpu", max_new_tokens=12, batch_size=3)


@pytest.fixture
def encoder(policy: TransformersPolicy) -> ChatEncoder:
    return policy.encoder


class Scripted(Picker):
    """Makes the model write given ids: one script per row of the batch, whose last id is repeated."""

    def __init__(self, scripts: Sequence[Sequence[int]]) -> None:
        super().__init__([], [], torch.device("cpu"))
        self.scripts, self.steps = scripts, Counter[int]()

    def __call__(self, rows: Sequence[int], logits: torch.Tensor) -> tuple[list[int], list[float]]:
        forced = torch.full_like(logits, float("-inf"))
        for place, row in enumerate(rows):
            script = self.scripts[row]
            forced[place, script[min(self.steps[row], len(script) - 1)]] = 0
            self.steps[row] += 1
        return super().__call__(rows, forced)


def force(policy: TransformersPolicy, monkeypatch: pytest.MonkeyPatch, scripts: Sequence[Sequence[int]]) -> None:
    monkeypatch.setattr(policy, "_picker", lambda *args: Scripted(scripts))


def ids_of(policy: TransformersPolicy, text: str) -> list[int]:
    return policy.tokenizer(text, add_special_tokens=False)["input_ids"]


# -- encoding


def as_dicts(conversation: Conversation) -> list[dict[str, Any]]:
    """A conversation as chat templates take it."""
    return [
        {
            "role": message.role,
            "content": [
                {"type": "text", "text": part.text} if isinstance(part, Text) else {"type": "image"}
                for part in message.parts
            ],
        }
        for message in conversation
    ]


def images_of(conversation: Conversation) -> list[Image]:
    return [image for message in conversation for image in message.images]


def test_ids_are_those_of_the_chat_template(encoder: ChatEncoder, tiny_vlm_folder: Path) -> None:
    """Text and images in the order and format of the checkpoint's own template."""
    processor = AutoProcessor.from_pretrained(tiny_vlm_folder)
    text = processor.apply_chat_template(as_dicts(LONG), add_generation_prompt=True)
    images = [image.resolved() for image in images_of(LONG)]
    expected = processor(text=[text], images=images, do_resize=False, return_tensors="pt")
    inputs = encoder.collate([encoder.encode(LONG)])
    assert inputs["input_ids"].tolist() == expected["input_ids"].tolist()
    assert inputs["mm_token_type_ids"].tolist() == expected["mm_token_type_ids"].tolist()
    assert inputs["image_grid_thw"].tolist() == expected["image_grid_thw"].tolist() == [[1, 4, 10], [1, 6, 4]]
    assert torch.equal(inputs["pixel_values"], expected["pixel_values"])


# Of Qwen2.5-VL, without videos: it begins a chat that has no system message with one of its own.
QWEN_TEMPLATE = """{% for message in messages %}{% if loop.first and message['role'] != 'system' %}<|im_start|>system
You are a helpful assistant.<|im_end|>
{% endif %}<|im_start|>{{ message['role'] }}
{% if message['content'] is string %}{{ message['content'] }}<|im_end|>
{% else %}{% for content in message['content'] %}{% if content['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ content['text'] }}{% endif %}{% endfor %}<|im_end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""  # noqa: E501


def with_template(folder: Path, template: str | None) -> Any:
    """The folder's processor under another chat template."""
    processor = AutoProcessor.from_pretrained(folder)
    processor.chat_template = processor.tokenizer.chat_template = template
    return processor


@pytest.mark.parametrize("own", [False, True])
def test_the_templates_own_system_message_is_there_unless_the_chat_has_one(tiny_vlm_folder: Path, own: bool) -> None:
    processor = with_template(tiny_vlm_folder, QWEN_TEMPLATE)
    encoder = ChatEncoder(processor)
    conversation: Conversation = [Message("system", (Text("Be brief."),)), *LONG] if own else LONG
    text = processor.apply_chat_template(as_dicts(conversation), add_generation_prompt=True)
    assert text.startswith("<|im_start|>system\n" + ("Be brief." if own else "You are a helpful assistant."))
    images = [image.resolved() for image in images_of(conversation)]
    encoded = encoder.encode(conversation)
    assert encoded.input_ids == processor(text=[text], images=images, do_resize=False)["input_ids"][0]
    written = [i for i, model in zip(encoded.input_ids, encoded.model_mask, strict=True) if model]
    assert encoder.tokenizer.decode(written) == "<think>a</think><search>total</search><|im_end|>"
    before = encoder.before_images(encoded, 1)
    assert encoder.images_in(encoded, 0, before) == images_of(conversation)[:1]
    assert encoder.images_in(encoded, encoded.written, len(encoded.input_ids)) == images_of(conversation)


@pytest.mark.parametrize("template", [None, "{{ nothing.of_this.kind }}", "{{ raise_exception('no') }}", "[INST]"])
def test_without_a_template_for_it_nothing_comes_first(tiny_vlm_folder: Path, template: str | None) -> None:
    encoder = ChatEncoder(with_template(tiny_vlm_folder, template))
    assert encoder.prefix == []
    assert encoder.encode(SHORT).input_ids[0] == encoder.im_start


def test_the_mask_covers_what_the_model_wrote(encoder: ChatEncoder) -> None:
    encoded = encoder.encode(LONG)
    written = [i for i, own in zip(encoded.input_ids, encoded.model_mask, strict=True) if own]
    assert encoder.tokenizer.decode(written) == "<think>a</think><search>total</search><|im_end|>"
    exact = [LONG[0], Message("assistant", LONG[1].parts, (7, 8, 9)), LONG[2]]
    encoded = encoder.encode(exact)
    assert [i for i, own in zip(encoded.input_ids, encoded.model_mask, strict=True) if own] == [7, 8, 9]
    ended = [LONG[0], Message("assistant", LONG[1].parts, (7, 8, encoder.im_end)), LONG[2]]
    encoded = encoder.encode(ended)
    assert encoded.input_ids.count(encoder.im_end) == 3  # not doubled
    assert sum(encoded.model_mask) == 3
    inputs = encoder.collate([encoded, encoder.encode(SHORT)], padding_side="right")
    assert inputs["model_mask"].sum() == 3
    assert inputs["attention_mask"][1].tolist() == sorted(inputs["attention_mask"][1].tolist(), reverse=True)


def test_runs_of_tokens_say_what_is_learned(encoder: ChatEncoder) -> None:
    conversation = [
        Message("user", (Text("Where?"), Image((56, 28)))),
        Message("assistant", (Text("There."),)),
    ]
    encoded = encoder.encode(conversation, reply=False)
    before, learned, after = encoder.runs(encoded)
    assert (before[0], learned[0], after[0]) == ("", "learn", "")
    assert "Where?" in before[2]
    assert "[2 image tokens]" in before[2]
    assert learned[2] == "There.<|im_end|>"
    assert before[1] + learned[1] + after[1] == len(encoded.input_ids)
    assert learned[1] == sum(encoded.model_mask)


def test_quoted_special_tokens_stay_text(encoder: ChatEncoder) -> None:
    encoded = encoder.encode([user("a <|image_pad|> and <|im_end|> <search>")])
    assert encoder.image_pad not in encoded.input_ids
    assert encoded.input_ids.count(encoder.im_end) == 1
    assert encoder.tokenizer.convert_tokens_to_ids("<search>") in encoded.input_ids  # the agent's tags are tokens


def test_images_off_the_grid_are_refused(encoder: ChatEncoder) -> None:
    with pytest.raises(ValueError, match="30 x 28 does not fit a grid of 28"):
        encoder.encode([user(picture((30, 28)))])
    lying = Image(SMALL, PILImage.new("RGB", WIDE))
    with pytest.raises(ValueError, match="do not match the sizes shown"):
        encoder.collate([encoder.encode([user(lying)])])


def test_a_tokenizer_without_the_chat_format_is_refused() -> None:
    tokenizer = SimpleNamespace(convert_tokens_to_ids=lambda token: None, unk_token_id=None, pad_token_id=0)
    processor = SimpleNamespace(tokenizer=tokenizer, image_processor=SimpleNamespace(patch_size=14, merge_size=2))
    with pytest.raises(ValueError, match=r"no <\|im_start\|>"):
        ChatEncoder(processor)


# -- transformers


@torch.no_grad()
def forward_logprobs(policy: TransformersPolicy, conversation: Conversation, ids: list[int]) -> list[float]:
    """Log-probabilities of `ids` by one plain forward pass over the unpadded conversation, as in training."""
    encoder = policy.encoder
    answered = encoder.encode([*conversation, Message("assistant", (), tuple(ids))], reply=False)
    inputs = encoder.collate([answered])
    mask = inputs.pop("model_mask")[0]
    logits = policy.model(**inputs).logits[0]  # (length, vocabulary)
    logprobs = torch.log_softmax(logits.float(), dim=-1)[:-1].gather(1, inputs["input_ids"][0, 1:, None])[:, 0]
    return logprobs[mask[1:]].tolist()[-len(ids) :]


def test_a_batch_gives_what_each_gives_alone_and_training_recomputes_it(policy: TransformersPolicy) -> None:
    conversations = [SHORT, LONG, [user(picture(SMALL)), *LONG], SHORT]
    together = policy.generate(conversations)
    for conversation, generation in zip(conversations, together, strict=True):
        [alone] = policy.generate([conversation])
        assert generation.token_ids == alone.token_ids
        assert generation.prompt_tokens == len(policy.encoder.encode(conversation).input_ids)
        assert len(generation.logprobs) == len(generation.token_ids) > 0
        expected = forward_logprobs(policy, conversation, generation.token_ids)
        assert generation.logprobs == pytest.approx(expected, abs=1e-3)


def test_the_model_sees_the_image(policy: TransformersPolicy) -> None:
    [red, blue] = policy.generate([[user(picture(WIDE, colour), "What?")] for colour in ("white", "black")])
    assert red.logprobs[0] != pytest.approx(blue.logprobs[0], abs=1e-5)


def test_image_features_are_made_once_and_change_nothing(tiny_vlm_folder: Path, monkeypatch: Any) -> None:
    cached = TransformersPolicy(tiny_vlm_folder, device="cpu", max_new_tokens=6)
    plain = TransformersPolicy(tiny_vlm_folder, device="cpu", max_new_tokens=6, vision_cache_bytes=0)
    encoded: list[int] = []
    original = cached.encoder.pixel_inputs
    monkeypatch.setattr(cached.encoder, "pixel_inputs", lambda images: encoded.append(len(images)) or original(images))
    longer = [*LONG, Message("assistant", (Text("hm"),)), user(picture(WIDE, "green"))]
    for conversations in ([LONG, SHORT], [longer, LONG], [SHORT]):
        pairs = zip(cached.generate(conversations), plain.generate(conversations), strict=True)
        for with_cache, without in pairs:
            assert with_cache.token_ids == without.token_ids
            assert with_cache.logprobs == pytest.approx(without.logprobs, abs=1e-3)
    assert encoded == [2, 1]  # the two images of LONG, then only the new one
    tight = TransformersPolicy(tiny_vlm_folder, device="cpu", max_new_tokens=6, vision_cache_bytes=1)
    assert tight.generate([longer])[0].token_ids == plain.generate([longer])[0].token_ids


def test_the_next_prompt_continues_from_the_exact_ids(policy: TransformersPolicy) -> None:
    [generation] = policy.generate([LONG])
    before = policy.encoder.encode(LONG).input_ids
    turn = Message("assistant", (Text(generation.text),), tuple(generation.token_ids))
    after = policy.encoder.encode([*LONG, turn, user(picture(SMALL))]).input_ids
    assert after[: len(before) + len(generation.token_ids)] == before + generation.token_ids


def test_turns_end_at_the_closing_tag(policy: TransformersPolicy, monkeypatch: pytest.MonkeyPatch) -> None:
    eos = policy.encoder.im_end
    tag = ids_of(policy, "<think>a</think><search>total</search>")
    spelled = ids_of(policy, "<answer>7")
    for piece in ("</", "ans", "wer", ">"):  # the same text in other tokens, as a model may write it
        spelled += ids_of(policy, piece)
    ended, long = [*ids_of(policy, "hm"), eos], ids_of(policy, "a")
    force(policy, monkeypatch, [tag, spelled, ended])
    conversations = [SHORT] * 3
    first, second, third = policy.generate(conversations)
    assert (first.text, first.token_ids, first.finish_reason) == (
        "<think>a</think><search>total</search>", tag, "action",
    )  # fmt: skip
    assert (second.text, second.token_ids, second.finish_reason) == ("<answer>7</answer>", spelled, "action")
    assert (third.text, third.token_ids, third.finish_reason) == ("hm", ended, "stop")
    assert [len(generation.logprobs) for generation in (first, second, third)] == [len(tag), len(spelled), len(ended)]
    monkeypatch.undo()
    force(policy, monkeypatch, [long])
    [generation] = policy.generate([SHORT])
    assert (generation.text, generation.finish_reason) == ("a" * 12, "length")


def test_turns_end_at_a_tool_call(policy: TransformersPolicy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "max_new_tokens", 60)
    call = ids_of(policy, '<tool_call>{"name": "add_answer_node"}</tool_call>')
    force(policy, monkeypatch, [[*call, *ids_of(policy, "and more")]])
    [generation] = policy.generate([SHORT])
    assert (generation.token_ids, generation.finish_reason) == (call, "action")
    assert generation.text == '<tool_call>{"name": "add_answer_node"}</tool_call>'


def test_a_closing_tag_in_the_prompt_stops_nothing(policy: TransformersPolicy, monkeypatch: pytest.MonkeyPatch) -> None:
    force(policy, monkeypatch, [ids_of(policy, ">a")])
    [generation] = policy.generate([[user("x"), Message("assistant", (Text("</answer>"),))]])
    assert len(generation.token_ids) == 12


def test_sampling_is_seeded_and_never_writes_vision_tokens(tiny_vlm_folder: Path) -> None:
    policy = TransformersPolicy(tiny_vlm_folder, device="cpu", max_new_tokens=24, temperature=3.0, batch_size=16)
    first = policy.generate([SHORT] * 12, seeds=range(12))
    again = policy.generate([SHORT] * 3 + [LONG], seeds=[5, 0, 11, 1])
    assert [generation.token_ids for generation in again[:3]] == [first[i].token_ids for i in (5, 0, 11)]
    assert len({tuple(generation.token_ids) for generation in first}) == 12
    unseeded = policy.generate([SHORT] * 2) + policy.generate([SHORT])
    assert len({tuple(generation.token_ids) for generation in unseeded}) == 3
    written = {token_id for generation in first for token_id in generation.token_ids}
    assert written.isdisjoint(policy.suppressed_ids)
    assert policy.encoder.image_pad in policy.suppressed_ids
    assert policy.encoder.im_end not in policy.suppressed_ids
    assert all(value <= 0 for generation in first for value in generation.logprobs)


def test_gumbel_noise_draws_from_the_distribution() -> None:
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().repeat(4000, 1)
    drawn, logprobs = Picker(range(4000), [], torch.device("cpu"), temperature=1.0)(range(4000), logits)
    assert logprobs == pytest.approx(logits[range(4000), drawn].tolist())
    frequencies = torch.bincount(torch.tensor(drawn), minlength=4) / 4000
    assert frequencies.tolist() == pytest.approx([0.5, 0.3, 0.15, 0.05], abs=0.03)


def test_errors_stay_with_their_sample(tiny_vlm_folder: Path) -> None:
    policy = TransformersPolicy(tiny_vlm_folder, device="cpu", max_new_tokens=2, max_prompt_tokens=40)
    unresolved = [user(Image(SMALL, None, "alpha_1"))]
    good, long, blind = policy.generate([SHORT, LONG, unresolved])
    assert good.error is None
    assert "the limit is 40" in (long.error or "")
    assert "has no pixels" in (blind.error or "")


def test_a_model_in_memory_keeps_its_mode(tiny_vlm_folder: Path) -> None:
    model = AutoModelForImageTextToText.from_pretrained(tiny_vlm_folder, dtype="float32").train()
    with pytest.raises(ValueError, match="needs its processor"):
        TransformersPolicy(model)
    policy = TransformersPolicy(model, AutoProcessor.from_pretrained(tiny_vlm_folder), max_new_tokens=2)
    policy.generate([SHORT])
    assert model.training


def test_a_model_in_memory_keeps_its_mode_through_an_error(
    tiny_vlm_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = AutoModelForImageTextToText.from_pretrained(tiny_vlm_folder, dtype="float32").train()
    policy = TransformersPolicy(model, AutoProcessor.from_pretrained(tiny_vlm_folder), max_new_tokens=2)

    def full(*_: Any) -> Any:
        raise torch.OutOfMemoryError("no memory is left")

    monkeypatch.setattr(policy, "_write", full)
    with pytest.raises(torch.OutOfMemoryError):
        policy.generate([SHORT])
    assert model.training


def test_normalised_boxes_are_converted_at_the_edge(
    policy: TransformersPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "frame", "normalised-1000")
    monkeypatch.setattr(policy, "max_new_tokens", 40)
    script = ids_of(policy, "<bbox>[0, 500, 1000, 1000]</bbox>")
    force(policy, monkeypatch, [script])
    [generation] = policy.generate([LONG])
    assert generation.text == "<bbox>[0, 42, 56, 84]</bbox>"  # of the last image, 56 x 84
    assert generation.token_ids == script


def test_a_whole_rollout(tiny_vlm_folder: Path, tiny_corpus: Path, tmp_path: Path) -> None:
    """A random model mostly babbles; everything still holds: exact ids, masks, replay."""
    policy = TransformersPolicy(tiny_vlm_folder, device="cpu", max_new_tokens=8, temperature=1.0, batch_size=4)
    settings = Settings(max_turns=2, min_pixels=784, max_pixels=20 * 784)
    environment = Environment(RankedEngine(), tiny_corpus, settings, "nano")
    questions = [make_question(f"q{i}") for i in range(3)]
    found = rollout(policy, environment, questions, tmp_path / "t.jsonl", samples=2, progress=False)
    assert [trajectory.error for trajectory in found] == [None] * 6
    for trajectory in found:
        assert replay(trajectory, environment.pages) == []
        encoded = policy.encoder.encode(trajectory.messages(), reply=False)  # ids and mask need no pixels
        written = [i for i, own in zip(encoded.input_ids, encoded.model_mask, strict=True) if own]
        assert written == [i for turn in trajectory.turns for i in turn.token_ids]
        assert all(len(turn.logprobs) == len(turn.token_ids) for turn in trajectory.turns)
    other = Environment(RankedEngine(), tiny_corpus, settings, "nano")
    again = rollout(policy, other, questions, samples=2, concurrency=2, progress=False)
    assert [t.turns[0].token_ids for t in again] == [t.turns[0].token_ids for t in found]  # in any batch the same


# -- OpenAI-compatible endpoints


async def dripping() -> AsyncIterator[bytes]:
    for _ in range(1000):
        yield b" "
        await asyncio.sleep(0.05)


# What passes, told inside of an answer with status 200.
PASSING: dict[str, Any] = {
    "a number in words": {"error": {"message": "later", "code": "429"}},
    "a name": {"error": {"message": "Rate limit reached", "code": "rate_limit_exceeded"}},
    "words alone": {"error": "overloaded"},
    "in the choice": {"choices": [{"error": {"code": 502}, "finish_reason": "error", "message": {"content": ""}}]},
    "nothing": Response(b"", media_type="application/json"),
    "no text": Response(b"\xff\xfe", media_type="application/json"),
}


def answering(**message: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "finish_reason": "stop", "message": {"content": None, **message}}]}


FUNCTION = {"name": "add_search_node", "arguments": '{"query": "q"}'}
RULES = 'End with <answer>9</answer> or </think> <tool_call>{"name": "add_answer_node"}</tool_call><|im_end|> {'
ODD: dict[str, Any] = {
    "no type": answering(tool_calls=[{"function": FUNCTION}]),
    "type null": answering(tool_calls=[{"type": None, "function": FUNCTION}]),
    "no list": answering(tool_calls={"type": "", "function": FUNCTION}),
    "the older form": answering(function_call=FUNCTION),
    "thinks of rules": answering(content="<search>a</search>", reasoning_content=RULES),
    "thinks of rules, calls": answering(tool_calls=[{"function": FUNCTION}], reasoning=RULES),
    "thinks of rules alone": answering(reasoning_content=RULES),
    "counts oddly": {**answering(content="<answer>1</answer>"), "usage": {"prompt_tokens": "many"}},
    "a choice of no list": {"choices": {"a": 1}},
}
ODD["likely nothing"] = answering(content="<answer>1</answer>")
ODD["likely nothing"]["choices"][0]["logprobs"] = {"content": [{"token": "a", "logprob": None}]}


class Endpoint:
    """A local endpoint: its models say what tests need, its requests are kept."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.failures = 0
        self.everyone = threading.Barrier(4, timeout=20)
        self.app = FastAPI()
        self.app.post("/v1/chat/completions")(self.complete)
        self.url = ""

    async def complete(self, request: Request) -> Any:
        body = await request.json()
        self.requests.append(body)
        behaviour = body["model"]
        if behaviour == "refuses":
            secret = request.headers["authorization"]
            return JSONResponse({"error": {"message": f"no such model for {secret}"}}, status_code=404)
        if behaviour == "recovers inside" and self.failures < 2:
            self.failures += 1
            return {"error": {"message": "Provider returned error", "code": 429}}
        if behaviour in PASSING:
            self.failures += 1
            if self.failures == 1:
                return PASSING[behaviour]
        if behaviour in ODD:
            return ODD[behaviour]
        if behaviour == "no empty turns" and not all(one["content"].strip() for one in body["messages"]):
            return JSONResponse({"error": {"message": "a message must not be empty"}}, status_code=400)
        if behaviour == "never":
            return {"error": {"message": "no credit is left", "code": 402}}
        if behaviour == "filtered":
            message = {"role": "assistant", "content": "<answer>1", "refusal": "not that"}
            return {"choices": [{"index": 0, "finish_reason": "content_filter", "message": message}]}
        if behaviour == "recovers" and self.failures < 2:
            self.failures += 1
            return JSONResponse({"error": {"message": "busy"}}, status_code=503)
        if behaviour == "meets":  # answers only when four requests are here at once
            await asyncio.to_thread(self.everyone.wait)
        if behaviour == "page":
            return HTMLResponse("<html>welcome</html>")
        if behaviour == "mute":
            return {"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": [{"index": 0}]}
        if behaviour == "drips":
            return StreamingResponse(dripping(), media_type="application/json")
        content = behaviour if "<" in behaviour else "<answer>42</answer> and more"
        reason = "length" if behaviour.endswith("hm") else "stop"
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if behaviour.startswith("thinks"):
            message |= {"content": behaviour.partition(" ")[2], "reasoning_content": " Is it </search>? \n"}
        if behaviour == "parts":
            message["content"] = [{"type": "text", "text": "<answer>4"}, {"type": "text", "text": "2</answer>"}]
        if behaviour == "calls":
            function = {"name": "add_answer_node", "arguments": '{"answer": "é"}'}
            calls = [{"id": "1", "type": "function", "function": function}]
            message |= {"content": "an </answer>", "tool_calls": calls}
        choice = {"index": 0, "finish_reason": reason, "message": message}
        usage = {"prompt_tokens": None if behaviour == "parts" else 17, "completion_tokens": 3, "total_tokens": 20}
        base = {"id": "x", "object": "chat.completion", "created": 0, "model": behaviour}
        return {**base, "choices": [choice], "usage": usage}


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    endpoint = Endpoint()
    with serving(endpoint.app) as url:
        endpoint.url = f"{url}/v1"
        yield endpoint


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("TEST_API_KEY", "sk-very-secret")
    return "TEST_API_KEY"


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("temperature", -1),
        ("temperature", float("nan")),
        ("top_p", 0),
        ("max_new_tokens", 0),
        ("frame", "normalized-1000"),
    ],
)
def test_options_that_nothing_can_be_sampled_with_are_refused(option: str, value: Any):
    with pytest.raises(ValueError, match=f"^{option} is {value!r}: "):
        OpenAIPolicy("any", "http://127.0.0.1:9", api_key_env=None, **{option: value})
    with pytest.raises(ValueError, match=f"^{option} is {value!r}: "):
        TransformersPolicy("no-such-folder", **{option: value})


def test_requests_carry_text_images_and_limits(endpoint: Endpoint, secret: str) -> None:
    policy = OpenAIPolicy("plain", endpoint.url, api_key_env=secret, max_new_tokens=99, extra_body={"top_k": 3})
    [generation] = policy.generate([LONG], seeds=[3])
    assert (generation.text, generation.finish_reason) == ("<answer>42</answer>", "action")
    assert generation.prompt_tokens == 17
    request = endpoint.requests[-1]
    assert (request["max_tokens"], request["temperature"], request["top_k"]) == (99, 0.0, 3)
    assert "</search>" in request["stop"]
    assert "seed" not in request  # greedy
    assert [message["role"] for message in request["messages"]] == ["user", "assistant", "user"]
    first, text, second = request["messages"][2]["content"]
    assert text == {"type": "text", "text": "look "}
    for part, size, colour in ((first, WIDE, (255, 0, 0)), (second, SMALL, (0, 0, 255))):
        head, data = part["image_url"]["url"].split(",")
        assert head == "data:image/png;base64"
        image = PILImage.open(io.BytesIO(base64.b64decode(data)))
        assert image.size == size
        assert image.getpixel((0, 0)) == colour
    policy.close()


def test_dropped_stop_strings_are_put_back(endpoint: Endpoint) -> None:
    policy = OpenAIPolicy("<think>a</think><search>total", endpoint.url, api_key_env=None, temperature=0.5)
    [generation] = policy.generate([SHORT], seeds=[2**40])
    assert generation.text == "<think>a</think><search>total</search>"
    assert endpoint.requests[-1]["seed"] < 2**31
    policy = OpenAIPolicy("<think>hm", endpoint.url, api_key_env=None, image_format="jpeg")
    [generation] = policy.generate([LONG])
    assert (generation.text, generation.finish_reason) == ("<think>hm", "length")
    assert endpoint.requests[-1]["messages"][2]["content"][0]["image_url"]["url"].startswith("data:image/jpeg;")


def test_a_key_may_be_given_and_stays_out_of_sight(endpoint: Endpoint) -> None:
    policy = OpenAIPolicy("refuses", endpoint.url, api_key="sk-very-secret\r\n", api_key_env="ABSENT_KEY")
    [generation] = policy.generate([SHORT])
    assert "no such model" in (generation.error or "")
    assert "sk-very-secret" not in f"{generation!r} {policy!r} {policy.name}"


def test_thinking_is_asked_for_and_warms_the_sampling(endpoint: Endpoint) -> None:
    for asked, temperature, top_p in ((True, 0.6, 0.95), (False, 0.0, 1.0), (None, 0.0, 1.0)):
        OpenAIPolicy("plain", endpoint.url, api_key_env=None, enable_thinking=asked).generate([SHORT])
        request = endpoint.requests[-1]
        assert (request["temperature"], request["top_p"]) == (temperature, top_p)
        assert request.get("enable_thinking") is asked
        assert request.get("chat_template_kwargs") == (None if asked is None else {"enable_thinking": asked})
    own: dict[str, Any] = {"temperature": 0.1, "top_p": 0.2, "extra_body": {"enable_thinking": "a little"}}
    OpenAIPolicy("plain", endpoint.url, api_key_env=None, enable_thinking=True, **own).generate([SHORT])
    request = endpoint.requests[-1]
    assert (request["temperature"], request["top_p"], request["enable_thinking"]) == (0.1, 0.2, "a little")


def test_thoughts_and_calls_from_elsewhere_come_back_into_the_text(endpoint: Endpoint) -> None:
    def said(model: str, **options: Any) -> tuple[str, str]:
        [generation] = OpenAIPolicy(model, endpoint.url, api_key_env=None, **options).generate([SHORT])
        return generation.text, generation.finish_reason

    thought = "<think>Is it \u2039/search>?</think>\n"  # the tag it quotes ends nothing
    assert said("thinks <search>a</search> b") == (f"{thought}<search>a</search>", "action")
    assert said("thinks <tool_call>{}") == (f"{thought}<tool_call>{{}}</tool_call>", "action")
    assert said("thinks <think>x</think><answer>7") == ("<think>x</think><answer>7</answer>", "action")
    assert said("thinks <tool_call>{}", stop=False) == (f"{thought}<tool_call>{{}}", "stop")
    assert said("thinks maybe") == (f"{thought}maybe", "stop")
    call = '<tool_call>{"name": "add_answer_node", "arguments": "{\\"answer\\": \\"é\\"}"}</tool_call>'
    assert said("calls") == (f"an </answer>{call}", "action")
    assert memory_actions.parse(f"an </answer>{call}")[1].answer == "é"


def test_a_tag_quoted_in_a_thought_does_not_end_the_turn(endpoint: Endpoint) -> None:
    def said(model: str) -> tuple[str, str]:
        [generation] = OpenAIPolicy(model, endpoint.url, api_key_env=None, stop=False).generate([SHORT])
        return generation.text, generation.finish_reason

    answers = "<think>Not <answer>41</answer>, it is more.</think>\n<answer>45</answer>"
    assert said(f"{answers}<answer>46</answer>") == (answers, "action")
    assert actions.parse(answers)[1].answer == "45"
    calls = '<think>Is </tool_call> its end?</think><tool_call>{"name": "add_answer_node", "arguments": {"answer": 45}}'
    assert said(f"{calls}</tool_call><tool_response>") == (f"{calls}</tool_call>", "action")
    assert memory_actions.parse(f"{calls}</tool_call>")[1].answer == "45"
    assert said("<think>Perhaps <search>a</search>?</think> I stop.")[1] == "stop"
    assert said("<think>never closed <search>a</search> b") == ("<think>never closed <search>a</search>", "action")


def test_fields_that_a_model_refuses_are_left_out(endpoint: Endpoint) -> None:
    options: dict[str, Any] = {"api_key_env": None, "token_limit_field": "max_completion_tokens"}
    options["enable_thinking"] = True
    plain = OpenAIPolicy("plain", endpoint.url, **options)
    refused = ["temperature", "top_p", "stop", "chat_template_kwargs"]
    policy = OpenAIPolicy("plain", endpoint.url, omit=refused, **options)
    [generation] = policy.generate([SHORT], seeds=[3])
    assert generation.text == "<answer>42</answer>"
    assert set(endpoint.requests[-1]) == {"model", "messages", "max_completion_tokens", "seed", "enable_thinking"}
    assert policy.identity != plain.identity
    assert "omit" not in plain.identity
    for name in ("model", "max_tokens", "topp"):
        with pytest.raises(ValueError, match=f"omit names {name}; what can be left out: .*max_completion_tokens"):
            OpenAIPolicy("plain", endpoint.url, omit=[name], **options)


def test_openai_takes_four_stop_strings(endpoint: Endpoint) -> None:
    OpenAIPolicy("plain", endpoint.url, api_key_env=None).generate([SHORT])
    assert set(endpoint.requests[-1]["stop"]) == {"</search>", "</bbox>", "</answer>", "</tool_call>"}
    [generation] = OpenAIPolicy("<region>[1, 2, 3, 4]</region> more", endpoint.url, api_key_env=None).generate([SHORT])
    assert generation.text == "<region>[1, 2, 3, 4]</region>"
    OpenAIPolicy("plain", endpoint.url, api_key_env=None, stop=False).generate([SHORT])
    assert "stop" not in endpoint.requests[-1]


def test_thousandths_are_converted_both_ways(endpoint: Endpoint) -> None:
    said = "<bbox>[0, 333, 1000, 667]</bbox>"
    policy = OpenAIPolicy(said, endpoint.url, api_key_env=None, frame="normalised-1000")
    [generation] = policy.generate([LONG])
    assert generation.text == "<bbox>[0, 27.97, 56, 56.03]</bbox>"
    policy.generate([[*LONG, Message("assistant", (Text(generation.text),)), user(picture(WIDE))]])
    assert endpoint.requests[-1]["messages"][3]["content"] == said  # the model meets its own words again


def test_requests_run_at_once(endpoint: Endpoint) -> None:
    policy = OpenAIPolicy("meets", endpoint.url, api_key_env=None, concurrency=4)
    assert [generation.error for generation in policy.generate([SHORT] * 4)] == [None] * 4


def test_passing_failures_are_retried_and_lasting_ones_reported(endpoint: Endpoint, secret: str) -> None:
    [generation] = OpenAIPolicy("recovers", endpoint.url, api_key_env=secret).generate([SHORT])
    assert generation.text == "<answer>42</answer>"
    assert endpoint.failures == 2
    [generation] = OpenAIPolicy("refuses", endpoint.url, api_key_env=secret).generate([SHORT])
    assert generation.finish_reason == "error"
    assert "no such model" in (generation.error or "")
    assert "sk-very-secret" not in (generation.error or "")
    [generation] = OpenAIPolicy("gone", "http://127.0.0.1:9/v1", api_key_env=secret, retries=0).generate([SHORT])
    assert "APIConnectionError" in (generation.error or "")


def test_an_endpoint_may_answer_anything(endpoint: Endpoint) -> None:
    for behaviour, words in (("page", "is no chat completion: is base_url"), ("mute", "without a message")):
        found = OpenAIPolicy(behaviour, endpoint.url, api_key_env=None, retries=0).generate([SHORT] * 3)
        assert all(words in str(one.error) for one in found), [one.error for one in found]
    [found] = OpenAIPolicy("parts", endpoint.url, api_key_env=None).generate([SHORT])
    assert (found.text, found.prompt_tokens) == ("<answer>42</answer>", 0)


def test_an_error_inside_of_an_answer_is_told_or_asked_again(endpoint: Endpoint) -> None:
    endpoint.failures = 0
    [found] = OpenAIPolicy("recovers inside", endpoint.url, api_key_env=None).generate([SHORT])
    assert (found.error, endpoint.failures) == (None, 2)
    [found] = OpenAIPolicy("never", endpoint.url, api_key_env=None).generate([SHORT])
    assert "no credit is left" in (found.error or "")
    [found] = OpenAIPolicy("filtered", endpoint.url, api_key_env=None).generate([SHORT])
    assert "the endpoint broke the turn off: content_filter not that" in str(found.error)


@pytest.mark.parametrize("busy", PASSING)
def test_an_endpoint_that_is_busy_in_any_words_is_asked_again(endpoint: Endpoint, busy: str) -> None:
    endpoint.failures = 0
    [found] = OpenAIPolicy(busy, endpoint.url, api_key_env=None, retries=1).generate([SHORT])
    assert (found.error, found.text, endpoint.failures) == (None, "<answer>42</answer>", 2)


@pytest.mark.parametrize("form", ["no type", "type null", "no list", "the older form", "thinks of rules, calls"])
def test_calls_are_read_in_every_form(endpoint: Endpoint, form: str) -> None:
    [found] = OpenAIPolicy(form, endpoint.url, api_key_env=None).generate([SHORT])
    assert (memory_actions.parse(found.text)[1].query, found.finish_reason) == ("q", "action")


def test_what_an_endpoint_calls_thought_is_no_action(endpoint: Endpoint) -> None:
    def said(model: str) -> Generation:
        [found] = OpenAIPolicy(model, endpoint.url, api_key_env=None).generate([SHORT])
        return found

    thought, action = actions.parse(said("thinks of rules").text)
    assert action == actions.Action(kind="search", query="a")
    assert thought.startswith("End with \u2039answer>9")
    only = said("thinks of rules alone").text
    assert (actions.parse(only)[1].kind, memory_actions.parse(only)[1].kind) == ("invalid", "invalid")


def test_odd_numbers_and_empty_turns_are_no_errors(endpoint: Endpoint) -> None:
    for odd in ("counts oddly", "likely nothing"):
        [found] = OpenAIPolicy(odd, endpoint.url, api_key_env=None).generate([SHORT])
        assert (found.error, found.logprobs, found.prompt_tokens) == (None, [], 0)
    silent = [*SHORT, Message("assistant", (Text(""),)), user("Invalid action.")]
    [found] = OpenAIPolicy("no empty turns", endpoint.url, api_key_env=None).generate([silent])
    assert (found.error, endpoint.requests[-1]["messages"][-2]["content"]) == (None, "(no words)")


@pytest.mark.parametrize(
    ("model", "beyond", "words"),
    [
        ("plain", "/no/v1", "(asked {}/no/v1/chat/completions: is the model named rightly, and does base_url lead to"),
        ("a choice of no list", "", "without a choice (asked {}/chat/completions)"),
        ("page", "", "no chat completion: is base_url its address? (asked {}/chat/completions)"),
    ],
)
def test_an_error_says_where_was_asked_and_what_to_check(
    endpoint: Endpoint, model: str, beyond: str, words: str
) -> None:
    secretly = endpoint.url.replace("http://", "http://me:word@")
    [found] = OpenAIPolicy(model, secretly + beyond, api_key_env=None, retries=0).generate([SHORT])
    assert words.format(endpoint.url) in str(found.error)
    assert "word" not in str(found.error)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"base_url": "127.0.0.1:8000/v1"}, "base_url is '127.0.0.1:8000/v1': it should be an address such as http://"),
        ({"base_url": "http://me:word@127.0.0.1:x/v1"}, "base_url: it should be"),
        ({"timeout": "20"}, "timeout is '20': it should be a number of seconds"),
        ({"retries": -1}, "retries is -1: "),
    ],
)
def test_an_endpoint_that_cannot_be_asked_is_refused_at_once(option: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(words)):
        OpenAIPolicy("m", **{"base_url": "http://127.0.0.1:9/v1", "api_key_env": None, **option})


@pytest.mark.parametrize("key", ["sk-one\nsk-two", "sk-one\x01", "sk-\u00fcber", "sk-\u2026"])
def test_a_key_that_no_header_can_carry_is_refused_unquoted(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("ODD_KEY", key)
    for given, name in (({"api_key_env": "ODD_KEY"}, "ODD_KEY"), ({"api_key": key}, "api_key")):
        with pytest.raises(ValueError, match=name) as caught:
            OpenAIPolicy("m", "http://127.0.0.1:9/v1", **given)
        assert "sk-" not in str(caught.value)


def test_an_answer_that_comes_drop_by_drop_is_not_waited_for(endpoint: Endpoint) -> None:
    started = time.monotonic()
    [found] = OpenAIPolicy("drips", endpoint.url, api_key_env=None, retries=0, timeout=0.3).generate([SHORT])
    assert "the answer was not there after 0.3 seconds" in str(found.error)
    assert time.monotonic() - started < 25  # it would go on for 50


def test_answers_of_another_endpoint_are_others(endpoint: Endpoint) -> None:
    one = OpenAIPolicy("m", endpoint.url, api_key="sk-secret")
    others = [
        OpenAIPolicy("m", "http://127.0.0.1:9/v1", api_key_env=None),
        OpenAIPolicy("m", endpoint.url, api_key_env=None, max_new_tokens=7),
        OpenAIPolicy("m", endpoint.url, api_key_env=None, enable_thinking=True),
        OpenAIPolicy("m", endpoint.url, api_key_env=None, extra_body={"a": 1}),
    ]
    assert one.identity == OpenAIPolicy("m", endpoint.url, api_key="sk-other").identity
    assert all(other.identity != one.identity for other in others)
    assert "sk-" not in str(one.identity)
    drawn = [
        OpenAIPolicy("m", url, api_key_env=None, address="{servers.policy.url}/v1")
        for url in ("http://a:1", "http://a:2")
    ]
    assert drawn[0].identity == drawn[1].identity != one.identity


def test_a_missing_key_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ABSENT_KEY", raising=False)
    with pytest.raises(ValueError, match="ABSENT_KEY is not set"):
        OpenAIPolicy("model", api_key_env="ABSENT_KEY")


def test_a_rollout_over_http(endpoint: Endpoint, tiny_corpus: Path) -> None:
    policy = OpenAIPolicy("<answer>42</answer>", endpoint.url, api_key_env=None)
    settings = Settings(min_pixels=784, max_pixels=20 * 784)
    environment = Environment(RankedEngine(), tiny_corpus, settings, "vrag")
    found = rollout(policy, environment, [make_question(f"q{i}") for i in range(5)], progress=False)
    assert [trajectory.answer for trajectory in found] == ["42"] * 5


# -- vLLM: the engine itself needs a GPU; what is checked here is what goes in and what is made of what comes out


class FakeLLM:
    """Expands image placeholders as vLLM does, then says one scripted turn."""

    expansion = 1

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.prompts: list[dict[str, Any]] = []
        self.params: list[Any] = []

    def generate(self, prompts: list[dict[str, Any]], params: list[Any], use_tqdm: bool) -> list[Any]:
        self.prompts, self.params = prompts, params
        return [self._output(prompt) for prompt in prompts]

    def _output(self, prompt: dict[str, Any]) -> Any:
        images = iter(prompt.get("multi_modal_data", {}).get("image", []))
        pad = self.options["pad"]
        ids: list[int] = []
        for token in prompt["prompt_token_ids"]:
            ids += [pad] * (next(images).width // 28 * self.expansion) if token == pad else [token]
        steps = [{token: SimpleNamespace(logprob=-0.5)} for token in (7, 8)]
        completion = SimpleNamespace(token_ids=[7, 8], logprobs=steps, text="<answer>1</answer>", finish_reason="stop")
        return SimpleNamespace(prompt_token_ids=ids, outputs=[completion])


def test_vllm_gets_one_placeholder_per_image(
    tiny_vlm_folder: Path, encoder: ChatEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = SimpleNamespace(LLM=FakeLLM, SamplingParams=lambda **options: SimpleNamespace(**options))
    monkeypatch.setitem(sys.modules, "vllm", fake)
    policy = VLLMPolicy(tiny_vlm_folder, temperature=1.0, pad=encoder.image_pad)
    one_row = [user(picture((84, 28)), picture((140, 28)), "What?")]
    first, second, third = policy.generate([SHORT, one_row, [user(Image(SMALL))]], seeds=[1, 2, 3])
    llm = policy._llm
    assert llm is not None
    assert first.text == second.text == "<answer>1</answer>"
    assert "weights" in policy.identity, "other weights by the same name are another policy"
    assert (first.token_ids, first.logprobs, first.finish_reason) == ([7, 8], [-0.5, -0.5], "action")
    assert llm.params[0].logprobs == 0
    assert (llm.options["logprobs_mode"], "mm_processor_kwargs" in llm.options) == ("raw_logprobs", False)
    assert llm.prompts[1]["prompt_token_ids"].count(encoder.image_pad) == 2
    assert [image.size for image in llm.prompts[1]["multi_modal_data"]["image"]] == [(84, 28), (140, 28)]
    assert "multi_modal_data" not in llm.prompts[0]
    assert [params.seed for params in llm.params] == [1, 2]
    assert llm.params[0].logit_bias[encoder.image_pad] == -100
    assert second.prompt_tokens == len(encoder.encode(one_row).input_ids)
    assert "no pixels" in (third.error or "")
    FakeLLM.expansion = 2  # an image that vLLM resized would shift every box
    [resized] = policy.generate([one_row])
    assert "16 image tokens where 8 are shown" in (resized.error or "")
    llm.llm_engine = SimpleNamespace(
        model_config=SimpleNamespace(max_model_len=len(llm.prompts[0]["prompt_token_ids"]) + 1)
    )
    policy.max_images = 1
    kept, lost = policy.generate([SHORT, one_row])
    assert kept.error is None
    assert "2 images, and max_images is 1" in (lost.error or "")
    policy.max_images = 16
    kept, lost = policy.generate([SHORT, one_row])
    assert kept.error is None
    assert "max_model_len" in (lost.error or "")


def test_vllm_gets_earlier_boxes_in_the_models_frame(
    tiny_vlm_folder: Path, encoder: ChatEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = SimpleNamespace(LLM=FakeLLM, SamplingParams=lambda **options: SimpleNamespace(**options))
    monkeypatch.setitem(sys.modules, "vllm", fake)
    monkeypatch.setattr(FakeLLM, "expansion", 1)
    policy = VLLMPolicy(tiny_vlm_folder, frame="normalised-1000", pad=encoder.image_pad)
    box = Message("assistant", (Text("<bbox>[0, 14, 84, 28]</bbox>"),))
    policy.generate([[user(picture((84, 28))), box, user("And?")]])
    assert policy._llm is not None
    assert "<bbox>[0, 500, 1000, 1000]</bbox>" in encoder.tokenizer.decode(policy._llm.prompts[0]["prompt_token_ids"])


def test_vllm_reserves_memory_for_the_largest_image_that_it_is_told_of(
    tiny_vlm_folder: Path, encoder: ChatEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = SimpleNamespace(LLM=FakeLLM, SamplingParams=lambda **options: SimpleNamespace(**options))
    monkeypatch.setitem(sys.modules, "vllm", fake)
    llm: Any = VLLMPolicy(tiny_vlm_folder, max_pixels=401408, gpu_memory_utilization=0.6)._llm
    assert llm.options["mm_processor_kwargs"] == {"max_pixels": 401408}
    assert llm.options["gpu_memory_utilization"] == 0.6
    with pytest.raises(ValueError, match="the engine is there already: max_pixels cannot be set"):
        VLLMPolicy(tiny_vlm_folder, max_pixels=401408, engine=FakeLLM(pad=encoder.image_pad))


@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logprobs", "raw_logits", None])
def test_only_an_engine_in_raw_mode_tells_log_probabilities(
    tiny_vlm_folder: Path, encoder: ChatEncoder, monkeypatch: pytest.MonkeyPatch, mode: str | None
) -> None:
    """Processed ones are after temperature and bans, which is not what a generation promises."""
    fake = SimpleNamespace(LLM=FakeLLM, SamplingParams=lambda **options: SimpleNamespace(**options))
    monkeypatch.setitem(sys.modules, "vllm", fake)
    engine: Any = FakeLLM(pad=encoder.image_pad)
    if mode is not None:
        engine.llm_engine = SimpleNamespace(model_config=SimpleNamespace(logprobs_mode=mode))
    policies = [VLLMPolicy(tiny_vlm_folder, engine=engine)]
    if mode is not None:
        policies.append(VLLMPolicy(tiny_vlm_folder, logprobs_mode=mode, pad=encoder.image_pad))
    for policy in policies:
        [said] = policy.generate([SHORT])
        assert said.token_ids == [7, 8]
        assert said.logprobs == ([-0.5, -0.5] if mode == "raw_logprobs" else [])
        assert policy._llm.params[0].logprobs == (0 if mode == "raw_logprobs" else None)


def test_without_vllm_the_error_says_what_to_do(tiny_vlm_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ImportError, match="pip install 'vrag-nb\\[gpu\\]'"):
        VLLMPolicy(tiny_vlm_folder)
