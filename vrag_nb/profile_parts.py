"""The parts of a profile and their fields, as `papermill_runs.yaml` may set them. Unknown fields are errors."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag, field_validator
from pydantic_core import PydanticCustomError

from vrag_nb.agent.task_settings import MemorySettings, Settings
from vrag_nb.retrieval.storage import Compression
from vrag_nb.retrieval.structure import SingleVectorSettings


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class CorpusPart(Part):
    """kind `decks`: generated below `folder`, `sizes` maps a split to (decks, questions); `documents`: read from
    the folder `documents`. dpi and format are those of the page images, video the fields of
    `documents.settings.VideoSettings`. narrated: of decks, so many of each split are filmed too
    (`documents.narrated`). max_pages, max_page_pixels: limits of `documents.settings.RenderSettings`."""

    folder: str
    kind: Literal["decks", "documents"] = "decks"
    documents: str | None = None
    dpi: int = Field(default=150, ge=20, le=600)
    format: Literal["png", "jpg"] = "png"
    max_pages: int = Field(default=2000, ge=1)
    max_page_pixels: int = Field(default=16_000_000, ge=10_000)
    video: dict[str, int | float] = Field(default_factory=dict)
    sizes: dict[str, tuple[int, int]] | None = None
    narrated: dict[str, int] = Field(default_factory=dict)
    seed: int = 0


class RetrieverPart(Part):
    """A registered embedder (`retrieval.embedders`), its checkpoint and options.

    compression: of a large corpus's index (`retrieval.compact`); by default the vectors are stored whole.
    single_vector: the index of an embedder of one vector a page (`retrieval.structure`); by default its size decides.
    server: the address of a search server over this profile's index, which agents then ask instead of loading the
    embedder themselves. server_token_env: the environment variable with the token which that server wants. fused_with:
    a second retriever, whose ranking is fused with this one's (`retrieval.fusion`).
    """

    kind: str
    checkpoint: str | None = None
    options: dict[str, Any] = Field(default_factory=dict)
    compression: Compression | None = None
    single_vector: SingleVectorSettings | None = None
    server: str | None = None
    server_token_env: str | None = None
    fused_with: RetrieverPart | None = None


POLICIES = {  # kind: the class that is given (checkpoint, **options)
    "transformers": "vrag_nb.agent.transformers_policy:TransformersPolicy",
    "openai": "vrag_nb.agent.openai_policy:OpenAIPolicy",
    "vllm": "vrag_nb.agent.vllm_policy:VLLMPolicy",
}


def _policy_kind(kind: str) -> str:
    if kind not in POLICIES and not re.fullmatch(r"\w+(\.\w+)*:\w+", kind):
        known = ", ".join(POLICIES)
        raise PydanticCustomError("policy_kind", f"should be one of {known}, or a class of your own as module:Class")
    return kind


class PolicyPart(Part):
    """A kind of policy, what it runs (a folder, a hub id, an endpoint's model name) and its class's options.

    kind: one of POLICIES, or a class of one's own as `module:Class`, given (checkpoint, **options) like those. A key is
    never one of the options: profiles are committed and written into records.
    """

    kind: Annotated[str, AfterValidator(_policy_kind)]
    checkpoint: str
    options: dict[str, Any] = Field(default_factory=dict)

    @field_validator("options", mode="before")
    @classmethod
    def _no_key(cls, options: Any) -> Any:
        if isinstance(options, dict) and "api_key" in options:
            raise PydanticCustomError("api_key", "a key has no place in a file: name its variable with api_key_env")
        return options


class VRAGPart(Settings):
    """VRAG-RL's agent: the fields of its task, and the prompt template's name or path."""

    kind: Literal["vrag"] = Field(default="vrag", exclude=True)  # dumped parts are told apart by their fields
    prompt: str = "vrag"


class VimRAGPart(MemorySettings):
    """VimRAG's agent: the fields of its task, and the prompt template's name or path, by default its memory's."""

    kind: Literal["vimrag"] = Field(exclude=True)
    prompt: str = ""


AGENTS = ("vrag", "vimrag")


def agent_kind(given: Any) -> Any:
    """The kind of an agent's part, or of the mapping it is made from: vrag where it names none."""
    return given.get("kind", "vrag") if isinstance(given, dict) else getattr(given, "kind", "vrag")


def _known_kind(given: Any) -> str | None:
    kind = agent_kind(given)
    return kind if kind in AGENTS else None


AgentPart = Annotated[
    Annotated[VRAGPart, Tag("vrag")] | Annotated[VimRAGPart, Tag("vimrag")],
    Discriminator(
        _known_kind,
        custom_error_type="agent_kind",
        custom_error_message=f"its kind should be {' or '.join(map(repr, AGENTS))}",
    ),
]


def systems_of(agent: VRAGPart | VimRAGPart) -> list[str]:
    """What is evaluated where a profile names no systems: the baselines, and the agent itself."""
    own = "agent"
    if isinstance(agent, VimRAGPart):
        own = "vimrag" if agent.memory == "energy" else f"vimrag_{agent.memory}"
    return ["no_retrieval", "vanilla_top1", "vanilla_top3", own]


class EvaluationPart(Part):
    """questions: a file, below the corpus folder or a path of its own. limit: so many of them, drawn with `seed`.

    systems: by default those of the profile's agent (`systems_of`). judge: arguments of `learning.judge.Judge`, for
    answers that a model is to judge as well; by default learning's.
    """

    questions: str = "questions.test.parquet"
    limit: int | None = Field(default=None, ge=1)
    systems: list[str] = Field(default_factory=list)
    seed: int = 0
    concurrency: int = Field(default=16, ge=1)
    judge: dict[str, Any] | None = None


class ExpertPart(Part):
    """Whose trajectories are sampled for fine-tuning.

    policy: a model, at a temperature of its own options; none for the planner that is told the gold. grounder: redraws
    the boxes. crops: whether the planner that is told the gold enlarges small print, or answers as if it could read it.
    vague: the share of its searches that the planner of VimRAG's protocol makes with half of their words. questions: so
    many of those for sampling. samples: trajectories per question.
    """

    policy: PolicyPart | None = None
    grounder: PolicyPart | None = None
    crops: bool = True
    vague: float = Field(default=0.0, ge=0, le=1)
    questions: int | None = Field(default=None, ge=1)
    samples: int = Field(default=1, ge=1)


class SamplingPart(Part):
    """share: of the training documents, whose questions are for sampling; the others' are for reinforcement learning.

    size: trajectories kept, balanced; all that pass for none. turns: fewest and most.
    """

    experts: dict[str, ExpertPart] = Field(default_factory=lambda: {"planner": ExpertPart()}, min_length=1)
    share: float = Field(default=0.5, gt=0, lt=1)
    size: int | None = Field(default=None, ge=1)
    turns: tuple[int, int] = (2, 6)

    @field_validator("turns")
    @classmethod
    def _fewest_first(cls, turns: tuple[int, int]) -> tuple[int, int]:
        if not 1 <= turns[0] <= turns[1]:
            raise PydanticCustomError("turns", "it should be the fewest and the most turns, from 1 on")
        return turns


class ActingPart(Part):
    """The kind and options of the policy that runs a checkpoint trained here."""

    kind: Literal["transformers", "vllm"]
    options: dict[str, Any] = Field(default_factory=dict)


class LearningPart(Part):
    """How an agent is trained, from a checkpoint that cannot act (`base`).

    train_questions, dev_questions: files, below the corpus folder or paths of their own. sft, grpo: fields of
    `learning.sft.SFTSettings` and `learning.grpo_settings.GRPOSettings`, but for what a notebook fills in. reward: a
    preset of `learning.rewards` or parts and gate. judge: arguments of `learning.judge.Judge`, for a part so named.
    acting: how what was trained is run afterwards; by default as the profile's policy, which must not be an endpoint.
    dev_limit: so many development questions are rolled out before, between and after.
    """

    base: str
    train_questions: str = "questions.train.parquet"
    dev_questions: str = "questions.dev.parquet"
    dev_limit: int = Field(default=32, ge=1)
    sampling: SamplingPart = SamplingPart()
    sft: dict[str, Any] = Field(default_factory=dict)
    reward: str | dict[str, Any] = "vrag"
    judge: dict[str, Any] | None = None
    acting: ActingPart | None = None
    grpo: dict[str, Any] = Field(default_factory=dict)
    seed: int = 0
