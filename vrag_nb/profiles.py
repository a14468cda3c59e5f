"""Profiles: which documents, which retriever, which model, which settings - as data.

    profile = load_profile("nano")                 # from papermill_runs.yaml
    profile.prepare_corpus()                       # documents -> page images
    profile.build_index()
    agent = profile.load_agent()                   # agent.run("What was revenue in 2019?")

A profile is read from the `profiles:` of a YAML file. `extends: NAME` takes over another profile and changes the fields
it names; `options` and `sizes` are replaced as a whole, because what one class takes another does not know. Unknown
fields are errors. Paths are relative to the repository. A larger machine is another profile, never another branch of
code: nothing here or elsewhere asks for a profile's name.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from vrag_nb.paths import project_path, shown_path

if TYPE_CHECKING:  # torch and its friends take seconds to import: they wait until a model is asked for
    from vrag_nb.agent.observers import Settings
    from vrag_nb.agent.policy import Policy
    from vrag_nb.agent.vrag import VRAG
    from vrag_nb.documents.pages import PrepReport
    from vrag_nb.records import Question
    from vrag_nb.retrieval.building import BuildReport
    from vrag_nb.retrieval.embedders import Embedder
    from vrag_nb.retrieval.engine import SearchEngine

RUNS_FILE = "papermill_runs.yaml"
POLICIES = {  # kind: the class that is given (checkpoint, **options)
    "transformers": "vrag_nb.agent.transformers_policy:TransformersPolicy",
    "openai": "vrag_nb.agent.openai_policy:OpenAIPolicy",
    "vllm": "vrag_nb.agent.vllm_policy:VLLMPolicy",
}
_WHOLE = ("options", "sizes")  # fields that `extends` replaces instead of merging


class ProfileError(ValueError):
    """A profile or run that is not there or does not fit; the text names file and field."""


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class CorpusPart(Part):
    """kind `decks`: generated below `folder`, `sizes` maps a split to (decks, questions); `documents`: read from
    the folder `documents`. dpi and format are those of the page images."""

    folder: str
    kind: Literal["decks", "documents"] = "decks"
    documents: str | None = None
    dpi: int = Field(default=150, ge=20, le=600)
    format: Literal["png", "jpg"] = "png"
    sizes: dict[str, tuple[int, int]] | None = None
    seed: int = 0


class RetrieverPart(Part):
    """A registered embedder (`retrieval.embedders`), its checkpoint and options."""

    kind: str
    checkpoint: str | None = None
    options: dict[str, Any] = Field(default_factory=dict)


class PolicyPart(Part):
    """A kind of policy, what it runs (a folder, a hub id, an endpoint's model name) and its class's options."""

    kind: Literal["transformers", "openai", "vllm"]
    checkpoint: str
    options: dict[str, Any] = Field(default_factory=dict)


class AgentPart(Part):
    """The prompt template's name or path, and the fields of `agent.observers.Settings` that a profile may set."""

    prompt: str = "vrag"
    max_turns: int = Field(default=4, ge=0)
    top_k: int = Field(default=10, ge=1)
    images_per_search: int = Field(default=1, ge=1)
    padding: float = Field(default=0, ge=0)
    min_pixels: int = Field(default=256 * 784, ge=784)
    max_pixels: int = Field(default=512 * 784, ge=784)
    caption: str = ""


class EvaluationPart(Part):
    """questions: a file, below the corpus folder or a path of its own. limit: so many of them, drawn with `seed`."""

    questions: str = "questions.test.parquet"
    limit: int | None = Field(default=None, ge=1)
    systems: list[str] = Field(default_factory=lambda: ["no_retrieval", "vanilla_top1", "vanilla_top3", "agent"])
    seed: int = 0
    concurrency: int = Field(default=16, ge=1)


class Profile(Part):
    """See the module's docstring. `name` is a label for people and records."""

    name: str
    corpus: CorpusPart
    retriever: RetrieverPart
    policy: PolicyPart
    agent: AgentPart = AgentPart()
    evaluation: EvaluationPart = EvaluationPart()

    @property
    def corpus_folder(self) -> Path:
        return project_path(self.corpus.folder)

    @property
    def documents_folder(self) -> Path:
        return project_path(self.corpus.documents) if self.corpus.documents else self.corpus_folder / "documents"

    @property
    def index_folder(self) -> Path:
        """Where this retriever's index of the corpus lies; each kind has a folder of its own."""
        return self.corpus_folder / "indexes" / self.retriever.kind

    @property
    def checkpoint_folders(self) -> dict[str, Path]:
        """`{"retriever": folder, "policy": folder}` of the checkpoints that lie on this machine."""
        named = {"retriever": self.retriever.checkpoint, "policy": self.policy.checkpoint}
        return {part: project_path(name) for part, name in named.items() if name and project_path(name).is_dir()}

    def prepare_corpus(self, progress: bool = True) -> PrepReport:
        """Make or find the documents, and bring the page images in step with them. Raises what `pages` raises."""
        from vrag_nb.documents.pages import prepare_corpus

        if self.corpus.kind == "decks":
            from vrag_nb.documents.decks.generate import generate_corpus

            generate_corpus(self.corpus_folder, self.corpus.seed, self.corpus.sizes)
        return prepare_corpus(
            self.documents_folder, self.corpus_folder, self.corpus.dpi, self.corpus.format, progress=progress
        )

    def load_embedder(self) -> Embedder:
        """The retriever's embedder. Raises ProfileError when its checkpoint is not there or does not fit."""
        from vrag_nb.retrieval.embedders import load_embedder

        part = self.retriever
        checkpoint = self._checkpoint("retriever", part.checkpoint) if part.checkpoint else None
        try:
            return load_embedder(part.kind, checkpoint, **part.options)
        except (ValueError, FileNotFoundError) as error:
            raise ProfileError(f"profile {self.name}, field retriever: {error}") from error

    def build_index(self, embedder: Embedder | None = None, progress: bool = True) -> BuildReport:
        """Bring the index in step with the corpus."""
        from vrag_nb.retrieval.building import build_index

        return build_index(self.corpus_folder, self.index_folder, embedder or self.load_embedder(), progress=progress)

    def open_engine(self, embedder: Embedder | None = None) -> SearchEngine:
        """The search engine over the built index. Raises what `SearchEngine.open` raises."""
        from vrag_nb.retrieval.engine import SearchEngine

        return SearchEngine.open(self.corpus_folder, self.index_folder, embedder or self.load_embedder())

    def load_policy(self) -> Policy:
        """The model that acts. Raises ProfileError when its checkpoint or key is not there or an option is unknown."""
        checkpoint = self.policy.checkpoint
        if self.policy.kind != "openai":  # an endpoint's model is a name, never a folder
            checkpoint = self._checkpoint("policy", checkpoint)
        module, _, name = POLICIES[self.policy.kind].partition(":")
        cls = getattr(importlib.import_module(module), name)
        try:
            return cls(checkpoint, **self.policy.options)
        except TypeError as error:
            raise ProfileError(f"profile {self.name}, field policy.options: {error}") from error
        except (ValueError, OSError, ImportError) as error:
            raise ProfileError(f"profile {self.name}, field policy: {str(error).splitlines()[0]}") from error

    def settings(self) -> Settings:
        """What the agent's task is: the `agent` part without the prompt."""
        from vrag_nb.agent.observers import Settings

        return Settings(**self.agent.model_dump(exclude={"prompt"}))

    def load_agent(self, policy: Policy | None = None, engine: SearchEngine | None = None) -> VRAG:
        """Policy, engine and corpus as one agent that can be asked."""
        from vrag_nb.agent.vrag import VRAG

        engine = engine or self.open_engine()
        settings = self.agent.model_dump(exclude={"prompt"})
        return VRAG(policy or self.load_policy(), engine, self.corpus_folder, self.agent.prompt, **settings)

    def questions(self, limit: int | None = None) -> list[Question]:
        """The evaluation's questions: `limit` of them (default: the profile's own limit), drawn with the profile's
        seed, in the file's order. Raises FileNotFoundError and ValueError naming the file."""
        from vrag_nb.records import read_questions

        name = self.evaluation.questions
        inside = self.corpus_folder / name
        questions = read_questions(inside if inside.is_file() else project_path(name))
        return sample(questions, limit or self.evaluation.limit, self.evaluation.seed)

    def _checkpoint(self, part: str, checkpoint: str) -> str:
        """The checkpoint's folder, or a hub id as it is. Raises ProfileError for a folder that is not there."""
        folder = project_path(checkpoint)
        if folder.is_dir():
            return str(folder)
        if checkpoint.count("/") == 1 and not checkpoint.startswith((".", "/", "~", "data/", "results/")):
            return checkpoint
        raise ProfileError(
            f"profile {self.name}, field {part}.checkpoint: there is no folder {shown_path(folder)}; "
            "check it out, make it with notebook 00_nano_pretraining, or name another checkpoint"
        )


def sample(questions: Sequence[Question], limit: int | None, seed: int = 0) -> list[Question]:
    """`limit` questions drawn at random with `seed`, in their own order; all of them for None."""
    if limit is None or limit >= len(questions):
        return list(questions)
    chosen = sorted(random.Random(seed).sample(range(len(questions)), limit))
    return [questions[index] for index in chosen]


def load_profile(name: str, file: Path | str | None = None) -> Profile:
    """The profile `name` of a YAML file (default: the repository's papermill_runs.yaml).

    Raises ProfileError naming the file and the field; the known names for an unknown one.
    """
    path = project_path(file or RUNS_FILE)
    profiles = read_section(path, "profiles")
    fields = _resolve(name, profiles, path, ())
    try:
        return Profile.model_validate({**fields, "name": name})
    except ValidationError as error:
        raise ProfileError(f"{shown_path(path)}: profile {name}, {first_problem(error)}") from None


def profile_names(file: Path | str | None = None) -> list[str]:
    """The names `load_profile` knows."""
    return list(read_section(project_path(file or RUNS_FILE), "profiles"))


def read_section(path: Path, section: str) -> dict[str, Any]:
    """A top-level mapping of a YAML file. Raises ProfileError naming the file when it is not there or no mapping."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ProfileError(f"there is no file {shown_path(path)}") from None
    except (OSError, yaml.YAMLError) as error:
        raise ProfileError(f"{shown_path(path)} cannot be read as YAML: {' '.join(str(error).split())}") from None
    found = content.get(section) if isinstance(content, dict) else None
    if not isinstance(found, dict):
        raise ProfileError(f"{shown_path(path)}: field {section}: expected a mapping of names")
    return found


def first_problem(error: ValidationError) -> str:
    """A validation error's first problem in words: `field a.b: what is wrong`."""
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"]) or "(all)"
    return f"field {field}: {first['msg']}"


def _resolve(name: str, profiles: Mapping[str, Any], path: Path, above: tuple[str, ...]) -> dict[str, Any]:
    """A profile's fields with those of the profiles it extends."""
    if name not in profiles:
        where = f"profile {above[-1]}, field extends: " if above else ""
        known = ", ".join(profiles)
        raise ProfileError(f"{shown_path(path)}: {where}there is no profile {name!r}; known: {known}")
    if name in above:
        raise ProfileError(f"{shown_path(path)}: profile {name}, field extends: profiles extend each other in a circle")
    if not isinstance(profiles[name], dict):
        raise ProfileError(f"{shown_path(path)}: profile {name}: expected a mapping of fields")
    fields = dict(profiles[name])
    parent = fields.pop("extends", None)
    return fields if parent is None else _merged(_resolve(str(parent), profiles, path, (*above, name)), fields)


def _merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `changes`: mappings merged field by field, apart from those replaced as a whole."""
    merged = dict(base)
    for key, value in changes.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict) and key not in _WHOLE
        merged[key] = _merged(merged[key], value) if both else value
    return merged
