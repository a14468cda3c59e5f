"""What an agent's task is: the fields that a profile's `agent` may set, and that every trajectory records.

`Settings` are VRAG-RL's (search, crop, answer), `MemorySettings` VimRAG's (search, memorise, answer).
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from vrag_nb.agent.geometry import MIN_CROP, Budget

FORMATS = "Use <search>query</search>, <bbox>[x1, y1, x2, y2]</bbox> or <answer>answer</answer>."
DECAY, FEEDBACK = 0.1, 0.3  # lambda and gamma of `memory_energy`
BUDGET, TOP_K = 5 * 256 * 32 * 32, 5  # pixels, items

# summary: one running summary; graph: the graph's text; multimodal: and the kept items, with equal shares of the
# pixels; energy: with shares by energy. Each adds to the one before, as in the paper's ablation.
MemoryKind = Literal["summary", "graph", "multimodal", "energy"]


class Task(BaseModel):
    """What the tasks of both agents say of images. Raises ValidationError for a budget that no image fits.

    min_pixels, max_pixels: of one image that is shown. factor: the side of an image token in pixels; Qwen3-VL's is 32.
    system: the conversation's system message.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    min_pixels: int = 256 * 28 * 28
    max_pixels: int = 512 * 28 * 28
    factor: int = 28
    system: str | None = None

    @property
    def budget(self) -> Budget:
        return Budget(self.min_pixels, self.max_pixels, self.factor)

    @model_validator(mode="after")
    def _has_a_budget(self) -> Self:
        try:
            self.budget  # noqa: B018 - raises where there is none
        except ValueError as error:  # in these words, without pydantic's own before them
            raise PydanticCustomError("budget", "{why}", {"why": str(error)}) from None
        return self


class Settings(Task):
    """VRAG-RL's task.

    max_turns: action turns before the forced answer. top_k: how far down the ranked list a search looks.
    images_per_search: unseen pages shown per search. padding: shown pixels added on every side of a box. min_crop: page
    pixels a box must cover. formats, forced_text, nothing_new_text, nothing_found_text: what the environment says.
    caption: what it says before a page or a crop; {question} stands for the question. actions: those beside search,
    crop and answer, as `module:Class` of an `action_kinds.ActionKind`.
    """

    max_turns: int = Field(default=4, ge=0)
    top_k: int = Field(default=10, ge=1)
    images_per_search: int = Field(default=1, ge=1)
    padding: float = Field(default=0, ge=0)
    min_crop: int = Field(default=MIN_CROP, ge=1)
    formats: str = FORMATS
    forced_text: str = "No more actions are left. Answer now: <answer>answer</answer>."
    caption: str = ""
    nothing_new_text: str = "Every page found has been shown already. Search for something else, or answer."
    nothing_found_text: str = "The search found no page. Search for something else, or answer."
    actions: tuple[str, ...] = Field(default=(), exclude_if=lambda names: not names)


class MemorySettings(Task):
    """VimRAG's task.

    memory: what is remembered between cycles. max_steps: generations at most; the last one is asked for the answer.
    top_k: pages one search shows. items: as what a page is offered (`memory_items.KINDS`): "image", "text", "video".
    memory_pixels, memory_items: pixels of all remembered images together, and how many there are at most. decay,
    feedback: lambda and gamma of the energies. text_chars: characters of one text at most. caption: what is said before
    each item that a search shows; {query} stands for its query. formats, memorise_text, forced_text,
    nothing_found_text: what the environment says.
    """

    memory: MemoryKind = "energy"
    max_steps: int = Field(default=20, ge=1)
    top_k: int = Field(default=3, ge=1)
    items: tuple[str, ...] = Field(default=("image",), min_length=1)
    min_pixels: int = 4 * 28 * 28
    max_pixels: int = 1280 * 28 * 28
    memory_pixels: int = Field(default=BUDGET, ge=1)
    memory_items: int = Field(default=TOP_K, ge=1)
    decay: float = Field(default=DECAY, ge=0)
    feedback: float = Field(default=FEEDBACK, ge=0)
    text_chars: int = Field(default=4000, ge=1)
    caption: str = ""
    formats: str = "Call one of add_search_node, summarize_and_memorize and add_answer_node, as JSON in <tool_call>."
    memorise_text: str = "Write down now what this brought: call summarize_and_memorize."
    forced_text: str = "This is the last step. Answer now: call add_answer_node."
    nothing_found_text: str = "The search found nothing."

    @property
    def keeps_graph(self) -> bool:
        """Whether contexts show the graph, and not just its last summary."""
        return self.memory != "summary"

    @property
    def keeps_items(self) -> bool:
        """Whether items are kept beside the summaries."""
        return self.memory in ("multimodal", "energy")
