"""Profiles: what ships loads, what does not fit is named, and nothing depends on a profile's name."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pymupdf
import pytest
import yaml
from conftest import RankedEngine, ScriptedPolicy, make_question
from PIL import Image

from vrag_nb.agent.environment import Environment
from vrag_nb.agent.memory_environment import MemoryEnvironment
from vrag_nb.agent.prompting import load_prompt
from vrag_nb.agent.search_client import SearchClient
from vrag_nb.agent.task_settings import MemoryKind, MemorySettings
from vrag_nb.agent.vimrag import VimRAG
from vrag_nb.agent.vrag import VRAG
from vrag_nb.evaluation.baselines import agent_system, known_systems
from vrag_nb.evaluation.of_profile import evaluation_of
from vrag_nb.learning.experts import PrivilegedPlanner
from vrag_nb.learning.memory_expert import MemoryPlanner
from vrag_nb.learning.of_profile import expert_of
from vrag_nb.paths import REPOSITORY, project_path, shown_path
from vrag_nb.profile_parts import POLICIES, VimRAGPart, systems_of
from vrag_nb.profiles import Profile, ProfileError, load_profile, profile_names, sample
from vrag_nb.records import write_questions
from vrag_nb.retrieval.fusion import FusedEngine

BASE = """
profiles:
  base:
    corpus: {folder: CORPUS, kind: documents, documents: docs}
    retriever: {kind: bm25}
    policy: {kind: transformers, checkpoint: data/models/none, options: {batch_size: 2, dtype: float32}}
    agent: {max_turns: 3, padding: 4}
"""


def write_pdfs(folder: Path) -> Path:
    """Two PDFs with a line of text a page: alpha.pdf (3 pages) and beta.pdf (2)."""
    folder.mkdir()
    for name, pages in (("alpha", 3), ("beta", 2)):
        with pymupdf.open() as document:
            for word in ("one", "two", "three")[:pages]:
                document.new_page(width=300, height=170).insert_text((20, 40), f"Page {word} of {name}")
            document.save(folder / f"{name}.pdf")
    return folder


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "runs.yaml"
    path.write_text(BASE.replace("CORPUS", str(tmp_path / "corpus")))
    return path


def add(file: Path, text: str) -> Path:
    file.write_text(file.read_text() + text)
    return file


@pytest.mark.parametrize("name", profile_names())
def test_every_shipped_profile_loads_and_its_settings_are_possible(name: str) -> None:
    profile = load_profile(name)
    assert profile.name == name
    settings = profile.settings() if profile.agent.kind == "vrag" else profile.memory_settings()
    assert settings.budget.most_tokens > 0
    assert profile.policy.kind in POLICIES


def test_the_issues_profiles_are_there() -> None:
    assert {"nano", "3b-1gpu", "7b", "api", "api-vimrag"} <= set(profile_names())


def test_a_profile_that_extends_another_changes_fields_and_replaces_options(file: Path) -> None:
    add(file, "  more:\n    extends: base\n    policy: {options: {max_new_tokens: 5}}\n    agent: {padding: 9}\n")
    profile = load_profile("more", file)
    assert profile.policy.options == {"max_new_tokens": 5}
    assert profile.policy.checkpoint == "data/models/none"
    assert (profile.agent.max_turns, profile.agent.padding) == (3, 9)


def test_a_part_of_another_kind_is_given_nothing_of_the_one_before(file: Path) -> None:
    add(file, "  own:\n    extends: base\n    retriever: {kind: mine, checkpoint: there, options: {width: 3}}\n")
    add(file, "  text:\n    extends: own\n    retriever: {kind: bm25}\n    policy: {kind: openai}\n")
    profile = load_profile("text", file)
    assert (profile.retriever.checkpoint, profile.retriever.options) == (None, {})
    assert (profile.policy.checkpoint, profile.policy.options) == ("data/models/none", {})
    add(file, "  same:\n    extends: own\n    retriever: {kind: mine, server: 'http://there'}\n")
    assert load_profile("same", file).retriever.options == {"width": 3}


def test_an_evaluation_is_told_all_that_the_profile_says_of_it(file: Path, tmp_path: Path) -> None:
    add(file, "  drawn:\n    extends: base\n    evaluation: {seed: 7, concurrency: 3}\n")
    profile = load_profile("drawn", file)
    told = evaluation_of(profile, limit=5)
    assert (told["corpus"], told["seed"], told["concurrency"]) == (tmp_path / "corpus", 7, 3)
    assert (told["settings"], told["prompt"]) == (profile.settings(), profile.agent.prompt)
    assert told["run_info"] == {"profile": "drawn", "retriever": "bm25", "corpus": str(tmp_path / "corpus"), "limit": 5}
    assert evaluation_of(profile, seed=0)["seed"] == 0


def test_a_profile_may_name_a_benchmarks_own_question_file(file: Path, tmp_path: Path) -> None:
    rows = [{"deck_name": "alpha", "deck_url": "", "question": "Which?", "answer": "one", "qa_id": 3,
             "evidence_pages": [2], "arithmetic_expression": "None", "answer_type": "Single-Span"}]  # fmt: skip
    (tmp_path / "slides.json").write_text(json.dumps(rows))
    add(file, f"  slides:\n    extends: base\n    evaluation: {{questions: {tmp_path}/slides.json}}\n")
    [question] = load_profile("slides", file).questions()
    assert question.gold_page_ids == ["alpha_2"]


def test_an_endpoint_that_a_run_starts_is_known_by_its_place_and_weights(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = tmp_path / "agent"
    weights.mkdir()
    options = "{base_url: '{servers.policy.url}/v1', api_key_env: null}"
    add(
        file, f"  served:\n    extends: base\n    policy: {{kind: openai, checkpoint: {weights}, options: {options}}}\n"
    )
    found = []
    for port, content in ((7001, "a"), (7002, "a"), (7002, "b")):
        monkeypatch.setenv("VRAG_SERVER_POLICY_URL", f"http://127.0.0.1:{port}")
        (weights / "model.safetensors").write_text(content)
        found.append(load_profile("served", file).load_policy().identity)
    assert found[0] == found[1] != found[2]


def test_another_corpus_folder_keeps_the_documents(file: Path, tmp_path: Path) -> None:
    profile = load_profile("base", file).in_corpus(tmp_path / "elsewhere")
    assert profile.corpus_folder == (tmp_path / "elsewhere").resolve()
    assert profile.documents_folder == project_path("docs")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("  x:\n    extends: base\n    agent: {paddin: 9}\n", "runs.yaml: profile x, field agent.paddin: Extra inputs"),
        ("  x:\n    extends: base\n    agent: {max_turns: many}\n", "field agent.max_turns"),
        ("  x:\n    extends: base\n    agent: {kind: magic}\n", "field agent: its kind should be 'vrag' or 'vimrag'"),
        ("  x:\n    extends: base\n    agent: {kind: vimrag, max_turns: 3}\n", "field agent.max_turns: Extra inputs"),
        (
            "  x:\n    extends: base\n    agent: {kind: vimrag, memory: all}\n",
            "field agent.memory: Input should be 'summ",
        ),
        ("  x:\n    extends: base\n    agent: {kind: vrag, max_steps: 3}\n", "field agent.max_steps: Extra inputs"),
        ("  x:\n    extends: base\n    agent: vimrag\n", "field agent: Input should be a valid dictionary"),
        ("  x:\n    extends: base\n    policy: {kind: magic}\n", "field policy.kind"),
        (
            "  x:\n    extends: base\n    policy: {options: {api_key: s3cret}}\n",
            "field policy.options: a key has no place",
        ),
        ("  x:\n    extends: nobody\n", "field extends: there is no profile 'nobody'; known: base, x"),
        ("  x: {extends: y}\n  y: {extends: x}\n", "in a circle"),
        ("  x: 3\n", "profile x: expected a mapping"),
        ("  x:\n    corpus: {folder: a}\n", "profile x, field retriever: Field required"),
        ("  x: [1\n", "runs.yaml cannot be read as YAML"),
        ("  base:\n    extends: base\n", "runs.yaml cannot be read as YAML: line 8: 'base' stood in line 3 already"),
        ("  x: {extends: a, extends: b}\n", "line 8: 'extends' stood in line 8 already: keep one"),
        ("  2024:\n    extends: base\n", "there is no profile 'x'; known: base, 2024"),
    ],
)
def test_what_does_not_fit_is_named(file: Path, text: str, words: str) -> None:
    add(file, text)
    with pytest.raises(ProfileError, match=re.escape(words)):
        load_profile("x", file)


def test_merged_keys_are_no_repetition(file: Path) -> None:
    """Whichever of the mappings is made first."""
    add(file, "  a: &a {extends: base, legible_only: true}\n  b: &b {<<: *a, extends: a}\n")
    add(file, "  c: {<<: *b, extends: b, legible_only: false}\n  d: {<<: [*a, *b]}\n")
    assert [load_profile(name, file).legible_only for name in "abcd"] == [True, True, False, True]


def test_a_file_that_is_no_utf8_is_named(file: Path) -> None:
    file.write_bytes(file.read_bytes() + "  # déjà vu\n".encode("latin-1"))
    with pytest.raises(ProfileError, match=r"runs\.yaml, line 8: this is no UTF-8: save the file as UTF-8"):
        load_profile("base", file)


def test_an_unknown_profile_and_a_missing_file_are_named(file: Path, tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="no profile 'nope'; known: base"):
        load_profile("nope", file)
    with pytest.raises(ProfileError, match=r"there is no file .*none\.yaml"):
        load_profile("nano", tmp_path / "none.yaml")


def test_a_checkpoint_that_is_not_there_is_named_before_anything_is_loaded(file: Path) -> None:
    with pytest.raises(ProfileError, match=r"field policy\.checkpoint: no checkpoint folder at data/models/none"):
        load_profile("base", file).load_policy()


def test_policies_and_options_come_from_the_profile(file: Path, tiny_vlm_folder: Path) -> None:
    options = "{max_new_tokens: 7, dtype: float32}"
    policy = f"{{kind: transformers, checkpoint: {tiny_vlm_folder}, options: {options}}}"
    add(
        file,
        f"  tiny:\n    extends: base\n    policy: {policy}\n"
        "  odd:\n    extends: tiny\n    policy: {options: {a: 1}}\n",
    )
    assert load_profile("tiny", file).load_policy().max_new_tokens == 7
    with pytest.raises(ProfileError, match=r"profile odd, field policy\.options: .*'a'"):
        load_profile("odd", file).load_policy()


def test_a_factor_other_than_the_models_is_an_error_at_once(file: Path, tiny_vlm_folder: Path) -> None:
    options = "{max_new_tokens: 7, dtype: float32}"
    policy = f"{{kind: transformers, checkpoint: {tiny_vlm_folder}, options: {options}}}"
    agent = "{factor: 32, min_pixels: 262144, max_pixels: 524288}"
    add(
        file,
        f"  wide:\n    extends: base\n    policy: {policy}\n    agent: {agent}\n"
        f"    learning: {{base: {tiny_vlm_folder}, sampling: {{experts: {{e: {{policy: {policy}}}}}}}}}\n",
    )
    words = r"profile wide, field agent\.factor: the agent's factor is 32, .* is 28 pixels wide: set factor to 28"
    wide = load_profile("wide", file)
    loads = (wide.load_policy, lambda: wide.load_policy(tiny_vlm_folder), lambda: expert_of(wide, "e", []))
    for load in loads:
        with pytest.raises(ProfileError, match=words):
            load()


def test_the_row_of_the_readme_for_models_that_count_in_thousandths_is_a_profile(file: Path) -> None:
    [row] = [one for one in (REPOSITORY / "README.md").read_text().splitlines() if "as Qwen3-VL does" in one]
    policy, agent = (yaml.safe_load(found) for found in re.findall(r"`((?:policy|agent): .*?\})`", row))
    fields = {"extends": "base", **policy, **agent}
    add(file, f"  thousandths: {json.dumps(fields)}\n")
    settings = load_profile("thousandths", file).settings()
    assert load_profile("thousandths", file).frame == "normalised-1000"
    assert {side % 32 for side in settings.budget.size(1500, 844)} == {0}
    assert settings.budget.least_tokens * 2 == settings.budget.most_tokens == 512


@pytest.mark.parametrize("name", ["3b-1gpu", "7b", "3b-1gpu-served", "7b-served"])
def test_vllm_in_this_process_takes_what_the_agent_shows(name: str) -> None:
    profile = load_profile(name)
    acting = profile.learning.acting if profile.learning else None
    parts = [part for part in (profile.policy, acting) if part is not None and part.kind == "vllm"]
    assert parts
    assert all(part.options["max_pixels"] == profile.agent.max_pixels for part in parts)


def test_a_policy_of_ones_own_is_named_by_its_class(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_policy.py").write_text(
        "from vrag_nb.agent.policy import Policy\n"
        "class Mine(Policy):\n"
        "    def __init__(self, checkpoint, calm=False):\n        self.given = checkpoint, calm\n"
        "    def generate(self, conversations, seeds=None):\n        return []\n"
        "class Plain:\n    def __init__(self, checkpoint, calm=False):\n        pass\n"
    )
    add(
        file,
        '  own:\n    extends: base\n    policy: {kind: "own_policy:Mine", checkpoint: me, options: {calm: true}}\n'
        '  lost:\n    extends: own\n    policy: {kind: "own_policy:Yours"}\n'
        '  plain:\n    extends: own\n    policy: {kind: "own_policy:Plain", options: {}}\n'
        "  odd:\n    extends: own\n    policy: {options: {loud: 1}}\n"
        "  typo:\n    extends: own\n    policy: {kind: transformer}\n",
    )
    assert load_profile("own", file).load_policy().given == ("me", True)  # type: ignore[attr-defined]
    with pytest.raises(ProfileError, match=r"profile lost, field policy\.kind: .*'Yours'"):
        load_profile("lost", file).load_policy()
    with pytest.raises(ProfileError, match=r"profile plain, field policy\.kind: 'own_policy:Plain' is no subclass of"):
        load_profile("plain", file).load_policy()
    with pytest.raises(ProfileError, match=r"profile odd, field policy\.options: .*'loud'"):
        load_profile("odd", file).load_policy()
    with pytest.raises(ProfileError, match=r"field policy\.kind: should be one of transformers, .* module:Class"):
        load_profile("typo", file)


def test_what_a_policy_of_ones_own_was_made_from_counts_by_its_content(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint that is a single file once counted by its name, and answers of its former content were kept."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "from_file.py").write_text(
        "from vrag_nb.agent.policy import Policy\n"
        "class FromFile(Policy):\n"
        "    def __init__(self, checkpoint):\n        self.checkpoint = checkpoint\n"
        "    def generate(self, conversations, seeds=None):\n        return []\n"
    )
    weights = tmp_path / "weights.gguf"
    add(file, f'  own:\n    extends: base\n    policy: {{kind: "from_file:FromFile", checkpoint: {weights}}}\n')
    declared = []
    for content in (b"first", b"second", b"first"):
        weights.write_bytes(content)
        declared.append(load_profile("own", file).load_policy().declared)
    assert declared[0] == declared[2] != declared[1]
    add(file, "  ours:\n    extends: own\n    policy: {checkpoint: pyproject.toml}\n")
    policy = load_profile("ours", file).load_policy()
    assert policy.checkpoint == str(REPOSITORY / "pyproject.toml")  # type: ignore[attr-defined]


def test_a_retriever_of_ones_own_takes_any_checkpoint(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of word vectors, say; only a built-in class wants a folder that holds a model."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_retriever.py").write_text(
        "from test_index import Toy\n"
        "class WordVectors(Toy):\n"
        "    def __init__(self, checkpoint):\n"
        "        super().__init__(checkpoint)\n        self.checkpoint = checkpoint\n"
    )
    vectors = tmp_path / "vectors.bin"
    vectors.touch()
    add(
        file,
        f'  own:\n    extends: base\n    retriever: {{kind: "own_retriever:WordVectors", checkpoint: {vectors}}}\n',
    )
    embedder = load_profile("own", file).load_embedder()
    assert (embedder.checkpoint, embedder.name) == (str(vectors), "own_retriever:WordVectors")


def test_an_endpoint_needs_its_key(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    policy = "{kind: openai, checkpoint: m, options: {api_key_env: NO_SUCH_KEY}}"
    add(file, f"  remote:\n    extends: base\n    policy: {policy}\n")
    with pytest.raises(ProfileError, match=r"profile remote, field policy: .*NO_SUCH_KEY"):
        load_profile("remote", file).load_policy()


def test_a_profile_names_the_agents_protocol(file: Path, tiny_corpus: Path) -> None:
    file.write_text(file.read_text().replace(str(file.parent / "corpus"), str(tiny_corpus)))
    add(
        file,
        "  memory:\n    extends: base\n    agent: {kind: vimrag, memory: graph, max_steps: 5}\n"
        "  more:\n    extends: memory\n    agent: {top_k: 1, prompt: vimrag}\n"
        "  same:\n    extends: base\n    agent: {kind: vrag, top_k: 1}\n"
        "  qwen3:\n    extends: base\n    agent: {kind: vimrag, factor: 32}\n"
        "    policy: {options: {frame: normalised-1000}}\n",
    )
    engine: Any = RankedEngine()
    environment = load_profile("base", file).load_environment(engine)
    assert isinstance(environment, Environment)
    assert environment.settings == load_profile("base", file).settings()
    assert (load_profile("same", file).agent.top_k, load_profile("same", file).settings().max_turns) == (1, 3)
    memory = load_profile("memory", file)
    environment = memory.load_environment(engine)
    assert isinstance(environment, MemoryEnvironment)
    assert environment.settings == memory.memory_settings() == MemorySettings(memory="graph", max_steps=5)
    assert environment.template == load_prompt("vimrag_graph")
    more = load_profile("more", file)
    assert more.memory_settings() == MemorySettings(memory="graph", max_steps=5, top_k=1)
    assert memory.load_environment(engine, training=True).settings == memory.memory_settings()
    qwen3 = load_profile("qwen3", file)
    assert (qwen3.memory_settings().factor, qwen3.memory_settings().memory, qwen3.frame) == (
        32,
        "energy",
        "normalised-1000",
    )
    equal = qwen3.load_environment(engine, training=True)
    assert equal.settings == MemorySettings(memory="multimodal", factor=32)
    assert memory.frame == "absolute"
    agent = more.load_agent(ScriptedPolicy([""]), engine)
    assert isinstance(agent, VimRAG)
    assert agent.environment.template == load_prompt("vimrag")
    assert isinstance(load_profile("base", file).load_agent(ScriptedPolicy([""]), engine), VRAG)
    with pytest.raises(ProfileError, match=r"profile memory, field agent\.kind: this works on VRAG's .* is vimrag"):
        memory.settings()
    with pytest.raises(ProfileError, match=r"profile base, field agent\.kind: this works on VimRAG's .* is vrag"):
        load_profile("base", file).memory_settings()


def test_what_is_evaluated_follows_the_agent_unless_a_profile_says(file: Path) -> None:
    """A VimRAG profile that extends VRAG's once paid for VRAG's systems, and for none of its own."""
    add(
        file,
        "  told:\n    extends: base\n    evaluation: {systems: [vanilla_top1, agent], seed: 3}\n"
        "  more:\n    extends: told\n    agent: {padding: 9}\n"
        "  memory:\n    extends: told\n    agent: {kind: vimrag}\n"
        "  graph:\n    extends: memory\n    agent: {memory: graph}\n"
        "  named:\n    extends: told\n    agent: {kind: vimrag}\n    evaluation: {systems: [vimrag]}\n"
        "  none:\n    extends: told\n    evaluation: {systems: []}\n",
    )
    beside = ["no_retrieval", "vanilla_top1", "vanilla_top3"]
    expected = {"base": [*beside, "agent"], "more": ["vanilla_top1", "agent"], "named": ["vimrag"], "none": []}
    expected |= {"memory": [*beside, "vimrag"], "graph": [*beside, "vimrag_graph"]}
    assert {name: load_profile(name, file).evaluation.systems for name in expected} == expected
    assert load_profile("memory", file).evaluation.seed == 3
    for name in profile_names():  # the repository's own
        shipped = load_profile(name)
        assert shipped.evaluation.systems[-1].startswith("vimrag" if shipped.agent.kind == "vimrag" else "agent")


def test_a_profile_sets_any_field_of_its_agents_task(file: Path) -> None:
    add(
        file,
        "  told:\n    extends: base\n    agent: {system: Be brief., forced_text: Answer., min_crop: 9}\n"
        "  memory:\n    extends: base\n    agent: {kind: vimrag, system: Be brief., memorise_text: Note it.}\n"
        "  none:\n    extends: base\n    agent: {min_pixels: 100000, max_pixels: 90000}\n",
    )
    told = load_profile("told", file).settings()
    assert (told.system, told.forced_text, told.min_crop) == ("Be brief.", "Answer.", 9)
    assert load_profile("memory", file).memory_settings() == MemorySettings(
        system="Be brief.", memorise_text="Note it."
    )
    with pytest.raises(ProfileError, match=r"profile none, field agent: no image size .* between 100000 and 90000"):
        load_profile("none", file)


def test_the_planner_that_is_told_the_gold_plays_by_the_agents_rules(file: Path) -> None:
    model = "{kind: openai, checkpoint: m, options: {api_key_env: null}}"
    glancing = f"glancing: {{crops: false}}, sampled: {{crops: false, policy: {model}}}"
    experts = f"{{told: {{}}, {glancing}, grounded: {{grounder: {model}}}, vague: {{vague: 0.5}}}}"
    add(
        file,
        f"  taught:\n    extends: base\n    learning: {{base: a/b, sampling: {{experts: {experts}}}}}\n"
        "  memory:\n    extends: taught\n    agent: {kind: vimrag}\n",
    )
    questions = [make_question("q")]
    assert isinstance(expert_of(load_profile("taught", file), "told", questions), PrivilegedPlanner)
    assert isinstance(expert_of(load_profile("memory", file), "told", questions), MemoryPlanner)
    assert expert_of(load_profile("taught", file), "glancing", questions).name == "glancing-planner"
    with pytest.raises(ProfileError, match=r"experts\.glancing\.crops: this is the planner's of an agent that crops"):
        expert_of(load_profile("memory", file), "glancing", questions)
    with pytest.raises(ProfileError, match=r"experts\.sampled\.crops: this is the planner's"):
        expert_of(load_profile("taught", file), "sampled", questions)
    assert expert_of(load_profile("memory", file), "vague", questions).name == "vague-memory-planner-0.5"
    with pytest.raises(ProfileError, match=r"experts\.vague\.vague: this is the planner's of an agent with a memory"):
        expert_of(load_profile("taught", file), "vague", questions)
    with pytest.raises(ProfileError, match=r"experts\.grounded\.grounder redraws the boxes .* agent is vimrag"):
        expert_of(load_profile("memory", file), "grounded", questions)


@pytest.mark.parametrize("name", ["api", "api-vimrag"])
def test_the_hosted_profiles_want_their_key_only_for_the_model(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DASHSCOPE_API_KEY", raising=False)
    profile = load_profile(name)
    assert profile.policy.options["base_url"].startswith("https://")
    assert "api_key" not in profile.policy.options  # a file is no place for one
    with pytest.raises(ProfileError, match=rf"profile {name}, field policy: .*DASHSCOPE_API_KEY is not set"):
        profile.load_policy()
    with pytest.raises(ProfileError, match="DASHSCOPE_API_KEY"):
        profile.load_agent()  # before index or corpus are opened
    monkeypatch.setenv("DASHSCOPE_API_KEY", "sk-very-secret")
    policy = profile.load_policy()
    assert policy.name == profile.policy.checkpoint
    assert "sk-very-secret" not in f"{profile!r} {policy!r} {profile.model_dump_json()}"
    policy.close()


def test_the_hosted_memory_is_the_official_demos() -> None:
    assert load_profile("api-vimrag").memory_settings() == MemorySettings()  # 20 steps, 3 pages, lambda 0.1, gamma 0.3
    assert load_profile("api").settings().max_turns == 4


def test_documents_become_an_engine(file: Path, tmp_path: Path) -> None:
    file.write_text(file.read_text().replace("documents: docs", f"documents: {write_pdfs(tmp_path / 'docs')}"))
    profile = load_profile("base", file)
    assert profile.prepare_corpus(progress=False).pages == 5
    report = profile.build_index(progress=False)
    assert (report.pages, profile.index_folder.name) == (5, "bm25")
    [[hit]] = profile.open_engine().search(["page two of alpha"], top_k=1)
    assert hit.page_id == "alpha_2"
    add(file, "  hybrid:\n    extends: base\n    retriever: {fused_with: {kind: nano-colqwen2_5}}\n")
    hybrid = load_profile("hybrid", file)
    assert hybrid.build_index(progress=False).pages == 5
    engine = hybrid.search_engine()
    assert isinstance(engine, FusedEngine)
    assert [one.index.manifest.embedder for one in engine.engines] == ["bm25", "nano-colqwen2_5"]
    assert profile.open_engine().fingerprint in engine.fingerprint


def test_what_cannot_be_fused_is_said_by_its_field(file: Path, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    Image.new("RGB", (90, 60)).save(tmp_path / "docs" / "scan.png")
    file.write_text(file.read_text().replace("documents: docs", f"documents: {tmp_path / 'docs'}"))
    add(
        file,
        "  scans:\n    extends: base\n    retriever: {kind: nano-colqwen2_5, fused_with: {kind: bm25}}\n"
        "  twice:\n    extends: base\n    retriever: {fused_with: {kind: bm25}}\n",
    )
    scans = load_profile("scans", file)
    assert scans.prepare_corpus(progress=False).pages == 1
    with pytest.raises(ProfileError, match=r"field retriever\.fused_with: no page .* or leave fused_with out"):
        scans.build_index(progress=False)
    with pytest.raises(ProfileError, match=r"fused_with\.kind: bm25 is the first retriever's as well"):
        load_profile("twice", file).build_index(progress=False)


def test_limits_of_pages_are_the_profiles(file: Path, tmp_path: Path) -> None:
    file.write_text(
        file.read_text().replace("documents: docs", f"documents: {write_pdfs(tmp_path / 'docs')}, max_pages: 2")
    )
    report = load_profile("base", file).prepare_corpus(progress=False)
    assert report.skipped
    assert all("max_pages" in one.reason for one in report.skipped)


def test_questions_are_found_beside_the_corpus_and_a_sample_is_always_the_same(file: Path, tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    questions = [make_question(f"q{number}") for number in range(20)]
    write_questions(tmp_path / "corpus" / "questions.test.parquet", questions)
    profile = load_profile("base", file)
    assert len(profile.questions()) == 20
    assert profile.questions(5) == sample(questions, 5, 0) != questions[:5]
    uids = [int(question.uid[1:]) for question in profile.questions(5)]
    assert uids == sorted(uids)


def test_paths_mean_the_same_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert project_path("data/x") == REPOSITORY / "data" / "x"
    assert project_path(tmp_path) == tmp_path
    assert shown_path(REPOSITORY / "data" / "x") == "data/x"
    assert shown_path(tmp_path) == str(tmp_path)


def test_options_of_the_policy_change_and_the_others_stay() -> None:
    profile = load_profile("nano")
    changed = profile.with_policy_options(views=1, temperature=0.3)
    assert changed.policy.options == {**profile.policy.options, "views": 1, "temperature": 0.3}
    assert profile.policy.options["views"] == 9  # the profile itself is as it was


def test_reading_a_profile_imports_no_model_library() -> None:
    code = "import sys\nfrom vrag_nb.profiles import load_profile\nload_profile('nano').settings()"
    code += "\nprint('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("memory", get_args(MemoryKind))
def test_a_vimrag_agent_is_evaluated_under_the_name_of_its_memory(memory: MemoryKind) -> None:
    name = agent_system(MemorySettings(memory=memory))
    assert systems_of(VimRAGPart(kind="vimrag", memory=memory))[-1] == name
    assert known_systems()[name].memory == memory  # type: ignore[attr-defined]


def test_no_code_asks_for_a_profiles_name() -> None:
    names = "|".join(map(re.escape, profile_names()))
    branch = re.compile(rf"""(?:==|!=|\bin)\s*[\[(]?["'](?:{names})["']""")
    found = [path for path in (REPOSITORY / "vrag_nb").rglob("*.py") if branch.search(path.read_text())]
    assert not found


def test_a_served_retriever_is_fused_with_one_of_this_machine(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add(
        file,
        "  served:\n    extends: base\n    retriever: {server: 'http://127.0.0.1:9', fused_with: {kind: bm25}}\n"
        "  locked:\n    extends: base\n    retriever: {server: 'http://127.0.0.1:9', server_token_env: MY_TOKEN}\n"
        "  bare:\n    extends: base\n    retriever: {server: '127.0.0.1:9'}\n",
    )
    local = RankedEngine()
    monkeypatch.setattr(Profile, "open_engine", lambda one: local if one.retriever.kind == "bm25" else None)
    engine: Any = load_profile("served", file).search_engine()
    assert [type(one) for one in engine.engines] == [SearchClient, RankedEngine]
    locked = load_profile("locked", file)
    with pytest.raises(
        ProfileError, match=r"profile locked, field retriever\.server_token_env: .* MY_TOKEN is not set"
    ):
        locked.search_engine()
    monkeypatch.setenv("MY_TOKEN", "s3cret\n")
    client = locked.search_engine()
    assert client._http.headers["Authorization"] == "Bearer s3cret"
    assert "s3cret" not in locked.model_dump_json()
    with pytest.raises(ProfileError, match=r"profile bare, field retriever\.server: .* begins with http://"):
        load_profile("bare", file).search_engine()


def test_only_records_that_are_no_questions_are_counted(
    file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    meta = {"file_name": "alpha.pdf", "source_type": "2d_layout", "query_type": "riddle"}
    rows = [{"uid": "q", "query": "What?", "reference_answer": "That", "meta_info": meta}]
    (tmp_path / "corpus").mkdir(exist_ok=True)
    where = tmp_path / "corpus" / "seek.json"
    where.write_text(json.dumps(rows))
    add(file, "  seek:\n    extends: base\n    evaluation: {questions: seek.json}\n")
    assert len(load_profile("seek", file).questions()) == 1  # mended, and kept
    assert "no questions" not in caplog.text
    where.write_text(json.dumps([*rows, *rows]))
    assert len(load_profile("seek", file).questions()) == 1
    assert "1 records are no questions" in caplog.text


def test_gold_that_the_corpus_does_not_have_is_said_and_not_learned_from(
    file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    documents = write_pdfs(tmp_path / "docs")
    learning = "    learning: {base: b, train_questions: train.json, sampling: {share: 0.9, experts: {planner: {}}}}\n"
    file.write_text(file.read_text().replace("documents: docs", f"documents: {documents}"))
    add(file, f"  taught:\n    extends: base\n{learning}")
    profile = load_profile("taught", file)
    gold = {"a": ("alpha.pdf", [1]), "b": ("alpha.pdf", [99]), "c": ("gone.pdf", [1])}
    rows = [
        {"uid": uid, "query": "?", "reference_answer": "1", "meta_info": {"file_name": name, "reference_page": pages}}
        for uid, (name, pages) in gold.items()
    ]
    profile.corpus_folder.mkdir(parents=True, exist_ok=True)
    (profile.corpus_folder / "train.json").write_text(json.dumps(rows))
    assert len(profile.training_questions()[0]) == 3, "nothing is known of a corpus that is not made yet"
    profile.prepare_corpus(progress=False)
    assert {one.uid: one.gold_page_ids for one in profile.training_questions()[0]} == {"a": ["alpha_1"], "b": []}
    assert "2 things do not fit the corpus" in caplog.text


def test_questions_about_a_twin_are_its_own(file: Path, tmp_path: Path) -> None:
    documents = write_pdfs(tmp_path / "docs")
    pymupdf.open(documents / "alpha.pdf")[0].get_pixmap().save(documents / "alpha.png")
    file.write_text(file.read_text().replace("documents: docs", f"documents: {documents}"))
    profile = load_profile("base", file)
    profile.prepare_corpus(progress=False)
    question = make_question("a")
    question.meta_info.file_name = "alpha.png"
    write_questions(tmp_path / "corpus" / "questions.test.parquet", [question, make_question("b")])
    assert [one.gold_page_ids for one in profile.questions()] == [["alpha.png_2"], ["alpha_2"]]
