"""Profiles: which documents, which retriever, which model, which settings - as data.

    profile = load_profile("nano")                 # from papermill_runs.yaml
    profile.prepare_corpus()                       # documents -> page images
    profile.build_index()
    agent = profile.load_agent()                   # agent.ask("What was revenue in 2019?")

A profile is read from the `profiles:` of a YAML file. `extends: NAME` takes over another profile and changes the fields
it names; `options`, `sizes`, `narrated` and `experts` are replaced whole: what one class takes another does not know.
Likewise an `agent` of another kind replaces the whole part and the systems that were evaluated beside the former one,
and a retriever or policy of another kind is given nothing that belonged to the one before. Unknown fields are errors.
Paths are relative to the repository. A larger machine is another profile, never another branch of code: nothing here or
elsewhere asks for a profile's name.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pydantic import ValidationError, model_validator

from vrag_nb.paths import project_path, shown_path
from vrag_nb.profile_files import ProfileError, first_problem, read_section, resolved
from vrag_nb.profile_models import checkpoint_of, embedder_of, policy_of
from vrag_nb.profile_parts import (
    AgentPart,
    CorpusPart,
    EvaluationPart,
    LearningPart,
    Part,
    PolicyPart,
    RetrieverPart,
    VimRAGPart,
    VRAGPart,
    systems_of,
)
from vrag_nb.servers.addresses import with_addresses

if TYPE_CHECKING:  # torch and its friends take seconds to import: they wait until a model is asked for
    from vrag_nb.agent.environment import Environment
    from vrag_nb.agent.memory_environment import MemoryEnvironment
    from vrag_nb.agent.policy import Policy
    from vrag_nb.agent.search_client import SearchClient
    from vrag_nb.agent.searching import Engine
    from vrag_nb.agent.task_settings import MemorySettings, Settings
    from vrag_nb.agent.vimrag import VimRAG
    from vrag_nb.agent.vrag import VRAG
    from vrag_nb.documents.pages import PrepReport
    from vrag_nb.records import Question
    from vrag_nb.retrieval.building import BuildReport
    from vrag_nb.retrieval.embedders import Embedder
    from vrag_nb.retrieval.engine import SearchEngine

RUNS_FILE = "papermill_runs.yaml"
logger = logging.getLogger(__name__)


class Profile(Part):
    """See the module's docstring. `name` is a label for people and records.

    legible_only: ask only what can be read on a page shown whole (`Question.needs_crop` is false), of an agent that
    cannot crop.
    """

    name: str
    corpus: CorpusPart
    retriever: RetrieverPart
    policy: PolicyPart
    agent: AgentPart = VRAGPart()
    evaluation: EvaluationPart = EvaluationPart()
    learning: LearningPart | None = None
    legible_only: bool = False

    @model_validator(mode="after")
    def _with_systems(self) -> Self:
        if "systems" not in self.evaluation.model_fields_set:
            named = self.evaluation.model_copy(update={"systems": systems_of(self.agent)})
            object.__setattr__(self, "evaluation", named)  # the model is frozen for everyone else
        return self

    @property
    def corpus_folder(self) -> Path:
        return project_path(self.corpus.folder)

    @property
    def documents_folder(self) -> Path:
        return project_path(self.corpus.documents) if self.corpus.documents else self.corpus_folder / "documents"

    @property
    def index_folder(self) -> Path:
        """Where this retriever's index of the corpus lies; each kind has a folder of its own."""
        return self.corpus_folder / "indexes" / self.retriever.kind.replace(":", ".")

    @property
    def checkpoint_folders(self) -> dict[str, Path]:
        """`{"retriever": folder, "policy": folder, "base": folder}` of the checkpoints that lie on this machine."""
        named = {"retriever": self.retriever.checkpoint, "policy": self.policy.checkpoint}
        named |= {"base": self.learning.base} if self.learning else {}
        return {part: project_path(name) for part, name in named.items() if name and project_path(name).is_dir()}

    def on_documents(self, documents: Path, corpus: Path) -> Profile:
        """The profile with documents and corpus folder of one's own."""
        change = {"kind": "documents", "documents": str(documents.resolve()), "folder": str(corpus.resolve())}
        return self.model_copy(update={"corpus": self.corpus.model_copy(update=change)})

    def in_corpus(self, corpus: Path) -> Profile:
        """The profile with its own documents in another corpus folder."""
        change = {"folder": str(corpus.resolve())}
        return self.model_copy(update={"corpus": self.corpus.model_copy(update=change)})

    def with_policy_options(self, **options: Any) -> Profile:
        """The profile with these of its policy's options changed and the others kept."""
        part = self.policy.model_copy(update={"options": {**self.policy.options, **options}})
        return self.model_copy(update={"policy": part})

    def prepare_corpus(self, progress: bool = True) -> PrepReport:
        """Make or find the documents, and bring the page images in step with them. Raises what `pages` raises."""
        from vrag_nb.documents.narrated import narrate_corpus
        from vrag_nb.documents.pages import prepare_corpus
        from vrag_nb.documents.settings import VideoSettings

        try:
            video = VideoSettings(**self.corpus.video)  # type: ignore[arg-type]  # whole numbers come as such
        except (TypeError, ValueError) as error:
            raise ProfileError(f"profile {self.name}, field corpus.video: {error}") from error
        if self.corpus.kind == "decks":
            from vrag_nb.documents.decks.generate import generate_corpus

            folder, part = self.corpus_folder, self.corpus
            generate_corpus(folder, part.seed, part.sizes)
            if part.narrated:
                narrate_corpus(folder, part.narrated, part.seed, video.chunk_seconds, decks=folder)
        return prepare_corpus(
            self.documents_folder,
            self.corpus_folder,
            self.corpus.dpi,
            self.corpus.format,
            progress=progress,
            max_pages=self.corpus.max_pages,
            max_page_pixels=self.corpus.max_page_pixels,
            video=video,
        )

    def load_embedder(self) -> Embedder:
        """The retriever's embedder. Raises ProfileError when its checkpoint is not there or does not fit."""
        return embedder_of(self.name, self.retriever)

    def build_index(self, embedder: Embedder | None = None, progress: bool = True) -> BuildReport:
        """Bring the index in step with the corpus, and that of the retriever it is fused with.

        Raises ProfileError where the second one cannot be built, as BM25 cannot over pages without text.
        """
        from vrag_nb.retrieval.building import build_index

        self.build_fused(progress)
        return build_index(
            self.corpus_folder,
            self.index_folder,
            embedder or self.load_embedder(),
            compression=self.retriever.compression,
            single_vector=self.retriever.single_vector,
            progress=progress,
        )

    def build_fused(self, progress: bool = True) -> None:
        """The index of the retriever that this one is fused with, where there is one. Raises ProfileError."""
        if other := self.fused:
            try:
                other.build_index(progress=progress)
            except ValueError as error:
                raise ProfileError(
                    f"profile {self.name}, field retriever.fused_with: {error}; or leave fused_with out"
                ) from error

    def open_engine(self, embedder: Embedder | None = None) -> SearchEngine:
        """The search engine over the built index. Raises what `SearchEngine.open` raises."""
        from vrag_nb.retrieval.engine import SearchEngine

        part = self.retriever.single_vector
        embedder = embedder or self.load_embedder()
        return SearchEngine.open(self.corpus_folder, self.index_folder, embedder, single_vector=part)

    @property
    def fused(self) -> Profile | None:
        """The profile with the second retriever in the place of the first; None where there is none. Raises
        ProfileError for one of the same kind, whose index would lie where the first one's does."""
        other = self.retriever.fused_with
        if other and other.kind == self.retriever.kind and not self.retriever.server:
            raise ProfileError(
                f"profile {self.name}, field retriever.fused_with.kind: {other.kind} is the first retriever's as well, "
                "and an index has one folder a kind: fuse two kinds"
            )
        return self.model_copy(update={"retriever": other}) if other else None

    def search_engine(self) -> Engine:
        """What agents search with: the retriever's server where the profile names one, else `open_engine`, fused with
        that of a second retriever where it names one."""
        from vrag_nb.retrieval.fusion import FusedEngine

        other = self.fused
        engine: Any = self._search_client() if self.retriever.server else self.open_engine()
        return FusedEngine([engine, other.open_engine()]) if other else engine

    def _search_client(self) -> SearchClient:
        from vrag_nb.agent.chat_endpoint import endpoint_key
        from vrag_nb.agent.search_client import SearchClient

        part = self.retriever
        try:
            token = endpoint_key(part.server_token_env) if part.server_token_env else None
        except ValueError as error:
            raise ProfileError(f"profile {self.name}, field retriever.server_token_env: {error}") from error
        try:
            return SearchClient(with_addresses(part.server), token=token)
        except ValueError as error:
            raise ProfileError(f"profile {self.name}, field retriever.server: {error}") from error

    def load_policy(self, checkpoint: str | Path | None = None) -> Policy:
        """The model that acts, or another `checkpoint` in its place, run as `learning.acting` says.

        Raises ProfileError when a checkpoint, key or server is not there, an option is unknown, or `agent.factor`
        is not the model's.
        """
        if not checkpoint:
            return self._policy("policy", self.policy)
        acting = self.learning.acting if self.learning else None
        if acting is None and self.policy.kind == "openai" and project_path(checkpoint).is_dir():
            raise ProfileError(
                f"profile {self.name}, field policy.kind: an endpoint cannot run the folder "
                f"{shown_path(project_path(checkpoint))}: name what can in learning.acting"
            )
        changes: dict[str, Any] = {"checkpoint": str(checkpoint)} | (acting.model_dump() if acting else {})
        if acting and self.frame != "absolute":  # in which it was trained
            changes["options"] = {**acting.options, "frame": self.frame}
        return self._policy("policy" if acting is None else "learning.acting", self.policy.model_copy(update=changes))

    def _policy(self, field: str, part: PolicyPart) -> Policy:
        return policy_of(self.name, field, part, self.agent.factor)

    def settings(self) -> Settings:
        """What VRAG's task is: the `agent` part without the prompt. Raises ProfileError for another kind of agent, or
        an action that is not there."""
        from vrag_nb.agent.action_kinds import grammar_with, load_kinds
        from vrag_nb.agent.task_settings import Settings

        if not isinstance(self.agent, VRAGPart):
            raise self.other_agent("this works on VRAG's turns of search, crop and answer")
        try:
            grammar_with(load_kinds(self.agent.actions))
        except ValueError as error:
            raise ProfileError(f"profile {self.name}, field agent.actions: {error}") from error
        return Settings(**self.agent.model_dump(exclude={"prompt"}))

    @property
    def frame(self) -> str:
        """In which the model that is trained, or that acts, counts boxes (`agent.policy.Frame`)."""
        acting = self.learning.acting if self.learning else None
        return str((acting.options if acting else {}).get("frame", self.policy.options.get("frame", "absolute")))

    def memory_settings(self) -> MemorySettings:
        """What VimRAG's task is, likewise."""
        from vrag_nb.agent.task_settings import MemorySettings

        if not isinstance(self.agent, VimRAGPart):
            raise self.other_agent("this works on VimRAG's memory graph")
        return MemorySettings(**self.agent.model_dump(exclude={"prompt"}))

    def task(self) -> Settings | MemorySettings:
        """What the profile's kind of agent has to do, without the prompt."""
        return self.settings() if isinstance(self.agent, VRAGPart) else self.memory_settings()

    def other_agent(self, why: str) -> ProfileError:
        """The error that says what the profile's kind of agent has no use for."""
        return ProfileError(
            f"profile {self.name}, field agent.kind: {why}, and the profile's agent is {self.agent.kind}"
        )

    def load_agent(self, policy: Policy | None = None, engine: Engine | None = None) -> VRAG | VimRAG:
        """Policy, engine and corpus as one agent of the profile's kind that can be asked."""
        from vrag_nb.agent.vimrag import VimRAG
        from vrag_nb.agent.vrag import VRAG

        policy, engine = policy or self.load_policy(), engine or self.search_engine()
        settings = self.task().model_dump()
        if isinstance(self.agent, VRAGPart):
            return VRAG(policy, engine, self.corpus_folder, self.agent.prompt, **settings)
        return VimRAG(policy=policy, engine=engine, corpus=self.corpus_folder, prompt=self.agent.prompt, **settings)

    def load_environment(self, engine: Engine | None = None, training: bool = False) -> Environment | MemoryEnvironment:
        """The search engine and the corpus behind the actions of the profile's kind of agent.

        training: what experts are sampled and policies trained in, where VimRAG's kept images share the pixels equally
        in place of by their energies (arXiv 2602.12735, appendix F).
        """
        from vrag_nb.agent.environment import Environment
        from vrag_nb.agent.memory_environment import MemoryEnvironment

        engine, agent = engine or self.search_engine(), self.agent
        if isinstance(agent, VRAGPart):
            return Environment(engine, self.corpus_folder, self.settings(), agent.prompt)
        settings = self.memory_settings()
        if training and settings.memory == "energy":
            settings = settings.model_copy(update={"memory": "multimodal"})
        return MemoryEnvironment(engine, self.corpus_folder, settings, agent.prompt)

    def questions(self, limit: int | None = None) -> list[Question]:
        """The evaluation's questions: `limit` of them (default: the profile's own limit), drawn with the profile's
        seed, in the file's order. Raises FileNotFoundError and ValueError naming the file."""
        part = self.evaluation
        return sample(self._read_questions(part.questions), limit or part.limit, part.seed)

    def _read_questions(self, name: str) -> list[Question]:
        from vrag_nb.documents.benchmarks import read_benchmark
        from vrag_nb.documents.names import resolve_questions

        inside = self.corpus_folder / name
        reading = read_benchmark(inside if inside.is_file() else project_path(name))
        if skipped := reading.skipped:
            logger.warning("%s: %d records are no questions, such as %s", reading.path, len(skipped), skipped[0])
        found = resolve_questions(reading.questions, self.corpus_folder)
        return [one for one in found if not (self.legible_only and one.needs_crop)]

    def _to_learn_from(self, name: str) -> list[Question]:
        """Those of a file whose document is there, less gold that is not, which is said: the expert would look for it.

        All of them while no corpus has been made.
        """
        from vrag_nb.documents.annotations import check_pages
        from vrag_nb.records import read_pages

        questions = self._read_questions(name)
        if not (self.corpus_folder / "pages.parquet").is_file():
            return questions
        fitting, problems = check_pages(questions, read_pages(self.corpus_folder))
        if problems:
            logger.warning("%s: %d things do not fit the corpus, such as %s", name, len(problems), problems[0])
        return fitting

    # learning

    @property
    def taught(self) -> LearningPart:
        """The learning part. Raises ProfileError where the profile has none."""
        if self.learning is None:
            raise ProfileError(f"profile {self.name} has no field learning, so there is nothing to train")
        return self.learning

    @property
    def base_checkpoint(self) -> str:
        """The folder or hub id that training starts from."""
        return checkpoint_of(self.name, "learning.base", self.taught.base)

    def training_questions(self) -> tuple[list[Question], list[Question]]:
        """Questions for expert sampling, and for reinforcement learning: no document is in both."""
        from vrag_nb.document_split import disjoint

        part = self.taught
        return disjoint(self._to_learn_from(part.train_questions), part.sampling.share, part.seed)

    def dev_questions(self, limit: int | None = None) -> list[Question]:
        """Questions to watch training on; the evaluation's are kept for the end."""
        part = self.taught
        return sample(self._to_learn_from(part.dev_questions), limit or part.dev_limit, part.seed)


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
    fields = resolved(name, profiles, path)
    try:
        return Profile.model_validate({**fields, "name": name})
    except ValidationError as error:
        raise ProfileError(f"{shown_path(path)}: profile {name}, {first_problem(error)}") from None


def profile_names(file: Path | str | None = None) -> list[str]:
    """The names `load_profile` knows."""
    return list(read_section(project_path(file or RUNS_FILE), "profiles"))
