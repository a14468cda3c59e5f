"""Servers of a run: real processes that start, answer, die early, never answer, and leave nothing behind."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from rich.console import Console
from test_runs import PARAMETERS, write_notebook
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

from vrag_nb import run_plan
from vrag_nb.paths import REPOSITORY
from vrag_nb.profile_files import ProfileError, first_problem
from vrag_nb.profiles import Profile, load_profile
from vrag_nb.run_plan import load_run, plan_run, server_places
from vrag_nb.runs import RunError, execute_run
from vrag_nb.servers import guard
from vrag_nb.servers.addresses import named_servers, with_addresses
from vrag_nb.servers.declared import ServerPart
from vrag_nb.servers.process import Server, ServerError, last_words
from vrag_nb.servers.started import Servers

FILES = [sys.executable, "-m", "http.server", "{port}", "--bind", "127.0.0.1"]
# Answers with its environment and the pid of a child that left its process group and does not mind SIGTERM.
TALKS = """
import http.server, json, os, subprocess, sys
stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", stubborn], start_new_session=True, stdout=subprocess.PIPE)
child.stdout.readline()
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/die":
            print("the sea is dry", flush=True)
            os._exit(3)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"pids": [os.getpid(), child.pid], "environment": dict(os.environ)}).encode())
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Answer).serve_forever()
"""
# Is healthy when asked the second time; notes which of its kind had been started when it was last asked.
PATIENT = """
import http.server, pathlib, sys
here, name = pathlib.Path(sys.argv[2]), sys.argv[3]
(here / name).touch()
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        asked = here / f"{name} was asked"
        asked.write_text(",".join(sorted(one.name for one in here.iterdir() if " " not in one.name)))
        self.send_response(200 if (here / f"{name} is ready").exists() else 503)
        (here / f"{name} is ready").touch()
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Answer).serve_forever()
"""
SLEEPS = "import time; print('thinking', flush=True); time.sleep(600)"


@pytest.fixture(autouse=True)
def no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VRAG_SERVER_POLICY_URL", raising=False)


@pytest.fixture
def talks(tmp_path: Path) -> Path:
    script = tmp_path / "talks.py"
    script.write_text(TALKS)
    return script


def part(*command: str, **fields: Any) -> ServerPart:
    return ServerPart(command=list(command), **{"start_limit": 60, "stop_limit": 0.5, **fields})


def servers(folder: Path, said: io.StringIO | None = None, **parts: ServerPart) -> Servers:
    return Servers(parts, {"results": folder}, folder / "servers", Console(file=said or io.StringIO(), width=300))


def ask(path: str = "/") -> dict[str, Any]:
    with urllib.request.urlopen(os.environ["VRAG_SERVER_POLICY_URL"] + path, timeout=30) as answer:
        return dict(json.load(answer))


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(pids: list[int], seconds: float = 30) -> bool:
    deadline = time.monotonic() + seconds
    while any(map(alive, pids)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def test_a_server_is_started_where_it_is_needed_has_an_address_and_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = io.StringIO()
    monkeypatch.setenv("NO_PROXY", "example.org")
    monkeypatch.setenv("no_proxy", "")
    with servers(tmp_path, said, policy=part(*FILES, health="{url}/", notebooks=["two", "three"])) as started:
        started.provide("one")
        assert "VRAG_SERVER_POLICY_URL" not in os.environ
        started.provide("two")
        url = os.environ["VRAG_SERVER_POLICY_URL"]
        assert urllib.request.urlopen(url, timeout=30).status == 200
        assert (os.environ["NO_PROXY"], os.environ["no_proxy"]) == ("example.org,127.0.0.1", "127.0.0.1")
        started.provide("three")
        assert os.environ["VRAG_SERVER_POLICY_URL"] == url  # kept for the next that needs it
        assert started.problem() is None
        started.provide("four")
        assert "VRAG_SERVER_POLICY_URL" not in os.environ
        with pytest.raises(OSError, match="refused"):
            urllib.request.urlopen(url, timeout=30)
        started.provide("two")
        assert "VRAG_SERVER_POLICY_URL" in os.environ
    assert "VRAG_SERVER_POLICY_URL" not in os.environ
    assert re.search(r"server policy: healthy after \d+ s, http://127.0.0.1:\d+", said.getvalue())
    assert {path.name for path in (tmp_path / "servers").iterdir()} == {
        ".gitignore",
        "policy.log",
        "policy.previous.log",
    }


@pytest.mark.skipif(sys.platform != "linux", reason="orphans stay with the guard on Linux only")
def test_stopping_ends_children_that_left_the_group_and_ignore_sigterm(tmp_path: Path, talks: Path) -> None:
    with servers(tmp_path, policy=part("{python}", str(talks), "{port}")) as started:
        started.provide("any")
        pids = ask()["pids"]
        assert all(map(alive, pids))
    assert not any(map(alive, pids))


def test_a_server_is_started_once_the_one_declared_before_it_answers(tmp_path: Path) -> None:
    (script := tmp_path / "patient.py").write_text(PATIENT)
    (here := tmp_path / "here").mkdir()
    names = ("search", "policy")  # not in the order of the alphabet
    parts = {name: part("{python}", str(script), "{port}", str(here), name) for name in names}
    said = io.StringIO()
    with servers(tmp_path, said, **parts) as started:
        started.provide("any")
        assert {name: (here / f"{name} was asked").read_text() for name in names} == {
            "search": "search",
            "policy": "policy,search",
        }
    told = re.findall(r"server (\w+): (starting|healthy)", said.getvalue())
    assert told == [(name, what) for name in names for what in ("starting", "healthy")]


def test_after_one_that_fails_none_is_started(tmp_path: Path, talks: Path) -> None:
    first, last = part("{python}", str(talks), "{port}"), part("{python}", str(talks), "{port}")
    with servers(tmp_path, policy=first, broken=part("false"), last=last) as started:
        with pytest.raises(ServerError, match="server broken ended with exit code 1"):
            started.provide("any")
        pids = ask()["pids"]
        assert not (tmp_path / "servers" / "last.log").exists()
    assert gone(pids)
    assert "VRAG_SERVER_POLICY_URL" not in os.environ


@pytest.mark.parametrize("run", ["3b-1gpu", "7b", "7b-trained"])
def test_vllm_is_started_last_and_reserves_memory_for_what_the_agent_shows(run: str) -> None:
    one = load_run(run)
    assert list(one.servers) == ["search", "policy"]
    agent = load_profile(one.profile).agent
    command, _ = one.servers["policy"].filled(server_places(load_profile(one.profile), one, Path("runs.yaml")), 81)
    options = json.loads(command[command.index("--mm-processor-kwargs") + 1])
    assert options == {"max_pixels": agent.max_pixels}
    for size in ((1500, 844), (1240, 1755), (4000, 30), (30, 4000), (20, 20), (700, 700)):
        width, height = agent.budget.size(*size)
        again = smart_resize(height, width, agent.factor, 4 * 784, options["max_pixels"])  # Qwen2.5-VL's min_pixels
        assert again == (height, width)


@pytest.mark.parametrize("run", ["3b-1gpu", "7b"])
def test_a_served_policy_samples_as_one_in_this_process(run: str) -> None:
    """Without the checkpoint's own generation_config, whose repetition penalty no other policy here applies."""
    command = load_run(run).servers["policy"].command
    assert command[:2] == ["vllm", "serve"]
    assert command[command.index("--generation-config") + 1] == "vllm"


def test_one_that_ends_early_is_told_with_command_code_and_last_words(tmp_path: Path) -> None:
    loud = "import sys\nfor n in range(50): print('line', n)\nsys.exit('no weights in here')"
    with servers(tmp_path, policy=part("{python}", "-c", loud)) as started, pytest.raises(ServerError) as caught:
        started.provide("any")
    words = str(caught.value)
    assert "server policy ended with exit code 1; command:" in words
    assert "no weights in here" in words
    assert "line 31\n" in words
    assert "line 30\n" not in words  # twenty lines
    with servers(tmp_path, policy=part("no-such-program")) as started:
        with pytest.raises(ServerError, match=r"exit code 127 \(there is no such command\)") as caught:
            started.provide("any")
        assert "no-such-program: No such file" in str(caught.value)


def test_one_that_never_answers_is_told_after_its_limit_and_is_gone(tmp_path: Path) -> None:
    started = servers(tmp_path, policy=part("{python}", "-c", SLEEPS, start_limit=1.0))
    with started, pytest.raises(ServerError) as caught:
        started.provide("any")
    words = str(caught.value)
    assert re.search(r"not healthy within 1 s \(start_limit\): http://\S+/health answers nothing \(", words)
    assert "    thinking" in words
    assert "VRAG_SERVER_POLICY_URL" not in os.environ


def test_an_unhealthy_answer_is_no_health(tmp_path: Path) -> None:
    wrong = part(*FILES, health="{url}/no/such/page", start_limit=6.0)
    with servers(tmp_path, policy=wrong) as started, pytest.raises(ServerError, match="answers 404"):
        started.provide("any")


def test_a_taken_port_is_said_and_the_other_server_left_alone(tmp_path: Path) -> None:
    with servers(tmp_path, policy=part(*FILES, health="{url}/")) as first:
        first.provide("any")
        port = int(os.environ["VRAG_SERVER_POLICY_URL"].rpartition(":")[2])
        second = Server("other", part(*FILES, port=port), {}, tmp_path)
        with pytest.raises(ServerError, match=f"server other: port {port} is taken on this machine"):
            second.start()
        assert first.problem() is None


def test_secrets_are_passed_on_by_name_only(tmp_path: Path, talks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_TOKEN", "OTHER_API_KEY", "TOKENIZERS_PARALLELISM"):
        monkeypatch.setenv(name, "x")
    command = ("{python}", str(talks), "{port}")
    declared = part(*command, pass_on=["HF_TOKEN"], variables={"SPACE": 1})
    with servers(tmp_path, policy=declared) as started:
        started.provide("any")
        seen = ask()["environment"]
    assert {"HF_TOKEN", "TOKENIZERS_PARALLELISM", "SPACE"} <= seen.keys()
    assert "OTHER_API_KEY" not in seen
    monkeypatch.delenv("HF_TOKEN")
    with servers(tmp_path, policy=declared) as started, pytest.raises(ServerError, match=r"needs .* HF_TOKEN, which"):
        started.provide("any")


def test_ones_own_server_is_used_and_none_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VRAG_SERVER_POLICY_URL", "http://elsewhere:8000/")
    said = io.StringIO()
    with servers(tmp_path, said, policy=part("false")) as started:
        started.provide("any")
        assert with_addresses({"base_url": "{servers.policy.url}/v1"}) == {"base_url": "http://elsewhere:8000/v1"}
    assert "server policy: your own, as VRAG_SERVER_POLICY_URL is set" in said.getvalue()
    assert os.environ["VRAG_SERVER_POLICY_URL"]


def test_addresses_are_found_in_nested_fields_and_must_be_known() -> None:
    fields = {"a": ["{servers.policy.url}", 1], "b": {"c": "{servers.search.url}/x {servers.policy.url}"}, "d": None}
    assert named_servers(fields) == {"policy", "search"}
    with pytest.raises(ValueError, match=r"no server 'policy' is running: .* set VRAG_SERVER_POLICY_URL"):
        with_addresses(fields)
    with pytest.raises(ValueError, match=r"\{servers\.policy\.uri\} is not known; .*\{servers\.policy\.url\}"):
        named_servers(["{servers.policy.uri}"])
    assert with_addresses({"a": [1, "x {y}", None]}) == {"a": [1, "x {y}", None]}


def test_placeholders_are_filled_and_jsons_braces_left() -> None:
    declared = part("serve", "{policy}", "--limit", '{"image": 8}', "{port}")
    assert declared.filled({"policy": "some/model"}, 81) == (
        ["serve", "some/model", "--limit", '{"image": 8}', "81"],
        "http://127.0.0.1:81/health",
    )
    with pytest.raises(ValueError, match=r"there is no \{polcy\} to fill in; known: policy, port, url, python"):
        part("{polcy}").filled({"policy": "x"}, 81)


def test_a_misspelt_field_is_named() -> None:
    with pytest.raises(ValidationError) as caught:
        ServerPart.model_validate({"command": ["x"], "helth": "y"})
    assert first_problem(caught.value) == "field helth: Extra inputs are not permitted"
    assert ServerPart.model_validate({"command": ["x", 8, 0.5]}).command == ["x", "8", "0.5"]


def test_last_words_have_no_colours_and_no_overwritten_bars(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"x" * 100_000 + b"\n\x1b[31mred\x1b[0m\n 10%\r 50%\r100%\n\n  \r\nend\xff\r\n")
    assert last_words(log, 3) == ["red", "100%", "end\ufffd"]
    assert last_words(tmp_path / "none") == []


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a killed guard leaves its server")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_server_ends_with_its_guard(tmp_path: Path, number: signal.Signals) -> None:
    script = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    command = [sys.executable, str(guard.__file__), "1", sys.executable, "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as started:
        assert started.stdout is not None
        pid = int(started.stdout.readline())
        started.send_signal(number)
        assert gone([pid])
        assert started.wait(30) == {signal.SIGTERM: 128 + signal.SIGTERM, signal.SIGKILL: -signal.SIGKILL}[number]


# In a run

YAML = """
profiles:
  p:
    corpus: {{folder: {here}/corpus}}
    retriever: {{kind: bm25}}
    policy: {{kind: openai, checkpoint: m, options: {{base_url: "{{servers.policy.url}}/v1"}}}}
notebooks:
  01_first: {{}}
runs:
  r:
    profile: p
    results: {here}/results
    notebooks: {{02_second: {{}}}}
    servers:
      policy:
        command: ["{{python}}", {script}, "{{port}}"]
        notebooks: [02_second]
        stop_limit: 0.5
"""
ASKS = """import json, os, urllib.request
from pathlib import Path
pids = json.load(urllib.request.urlopen(os.environ["VRAG_SERVER_POLICY_URL"]))["pids"]
Path(results_folder, "pids").write_text(json.dumps(pids))"""
LOADS = """from vrag_nb.profiles import load_profile
str(load_profile("p", Path(results_folder).parent / "runs.yaml").load_policy()._endpoint.base_url)"""


@pytest.fixture
def world(tmp_path: Path, talks: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(run_plan, "NOTEBOOKS", tmp_path / "notebooks")
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    write_notebook(tmp_path / "notebooks", "02_second", ASKS)
    (tmp_path / "runs.yaml").write_text(YAML.format(here=tmp_path, script=talks))
    yield tmp_path
    if (tmp_path / "results" / "pids").is_file():
        assert gone(pids(tmp_path))


def run(world: Path) -> str:
    said = io.StringIO()
    execute_run("r", world / "runs.yaml", console=Console(file=said, width=300))
    return said.getvalue()


def pids(world: Path) -> list[int]:
    return list(json.loads((world / "results" / "pids").read_text()))


def test_a_notebook_finds_its_server_in_the_profile(world: Path) -> None:
    write_notebook(world / "notebooks", "01_first", "import os\n'VRAG_SERVER_POLICY_URL' in os.environ")
    write_notebook(world / "notebooks", "02_second", ASKS, LOADS)
    file = world / "runs.yaml"
    file.write_text(file.read_text().replace("notebooks: {02_second", "notebooks: {01_first: {}, 02_second"))
    said = run(world)
    assert said.index("01_first: done") < said.index("server policy: starting") < said.index("02_second: done")
    executed = json.loads((world / "results" / "02_second.ipynb").read_text())
    assert re.search(r"http://127\.0\.0\.1:\d+/v1/", json.dumps(executed))
    assert "'text/plain': ['False']" in str(json.loads((world / "results" / "01_first.ipynb").read_text()))
    assert not any(map(alive, pids(world)))
    file.write_text(file.read_text().replace('"{port}"]', '"{port}", more]'))
    steps = plan_run(load_run("r", file), file)
    assert [step.fresh for step in steps][1] is False  # it asked another server than this one


@pytest.mark.parametrize("last", ["raise ValueError('no answer')", "print('nothing happened')"])
def test_a_server_that_dies_meanwhile_fails_the_notebook_and_is_named(world: Path, last: str) -> None:
    ends = "try:\n    urllib.request.urlopen(os.environ['VRAG_SERVER_POLICY_URL'] + '/die')\nexcept OSError:\n    pass"
    waits = "import time\nwhile os.path.exists(f'/proc/{pids[0]}'): time.sleep(0.1)"
    write_notebook(world / "notebooks", "02_second", ASKS, ends, f"{waits}\ntime.sleep(1)", last)
    with pytest.raises(RunError) as caught:
        run(world)
    words = str(caught.value)
    assert re.match(r"02_second: server policy ended with exit code 3; command: ", words)
    assert "    the sea is dry" in words
    assert ("ValueError: no answer" in words) == ("ValueError" in last)
    assert "02_second.failed.ipynb" in words
    assert not any(step.fresh for step in plan_run(load_run("r", world / "runs.yaml"), world / "runs.yaml"))


def test_a_failing_notebook_leaves_no_server(world: Path) -> None:
    write_notebook(world / "notebooks", "02_second", ASKS, "1 / 0")
    with pytest.raises(RunError, match=r"02_second: cell \d+: ZeroDivisionError"):
        run(world)
    assert not any(map(alive, pids(world)))


def test_a_server_that_does_not_start_fails_the_run_before_its_notebook(world: Path, talks: Path) -> None:
    talks.write_text("raise SystemExit('no weights')")
    with pytest.raises(RunError, match=r"could not begin: server policy ended with exit code 1(.|\n)*no weights"):
        run(world)


DRIVER = """
import signal
import sys
from pathlib import Path
from vrag_nb import run_plan, runs
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job is started deaf to it
world = Path(sys.argv[1])
run_plan.NOTEBOOKS = world / "notebooks"
runs.execute_run("r", world / "runs.yaml")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="orphans stay with the guard on Linux only")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_stays_behind_an_interrupted_or_killed_run(world: Path, number: signal.Signals) -> None:
    write_notebook(world / "notebooks", "02_second", ASKS, "import time\ntime.sleep(600)", parameters=PARAMETERS)
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(world)], env=environment, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not (world / "results" / "pids").is_file() and driver.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    time.sleep(0.2)
    assert all(map(alive, pids(world)))
    driver.send_signal(number)
    try:
        driver.wait(60)
    finally:
        driver.kill()
    assert gone(pids(world))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("stop_limit: 0.5", "stop_limt: 0.5", "run r, field servers.policy.stop_limt: Extra"),
        ("notebooks: [02_second]", "notebooks: [03_third]", r"servers\.policy\.notebooks: '03_third' is none of the"),
        ('"{port}"]', '"{prt}"]', r"run r, field servers\.policy: there is no \{prt\} to fill in"),
        (
            "      policy:\n",
            "      polcy:\n",
            "the server 'policy', which the run does not declare; declared: polcy",
        ),
        ("      policy:\n", "      a-b:\n", r"field servers\.a-b\.\[key\]: String should match"),
        ("servers.policy.url", "servers.policy.port", r"\{servers\.policy\.port\} is not known"),
    ],
)
def test_what_does_not_fit_is_named(world: Path, old: str, new: str, words: str) -> None:
    file = world / "runs.yaml"
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))
    with pytest.raises(ProfileError, match=words):
        plan_run(load_run("r", file), file)


# In a profile


def profile(**fields: Any) -> Profile:
    given = {"corpus": {"folder": "c"}, "retriever": {"kind": "bm25"}, "name": "p", **fields}
    return Profile.model_validate({"policy": {"kind": "openai", "checkpoint": "m"}, **given})


def test_a_profile_says_which_server_is_missing(world: Path) -> None:
    asks = load_profile("p", world / "runs.yaml")
    with pytest.raises(ProfileError, match="profile p, field policy: no server 'policy' is running"):
        asks.load_policy()
    with pytest.raises(ProfileError, match=r"profile p, field retriever\.server: no server 'search' is running"):
        profile(retriever={"kind": "bm25", "server": "{servers.search.url}"}).search_engine()


def test_a_trained_folder_is_run_as_the_profile_says(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"field policy\.kind: an endpoint cannot run .* learning\.acting"):
        profile().load_policy(tmp_path)
    acting = {"base": "b", "acting": {"kind": "transformers", "options": {"no_such_option": 1}}}
    with pytest.raises(ProfileError, match=r"field learning\.acting\.checkpoint: .* holds no config\.json"):
        profile(learning=acting).load_policy(tmp_path)
    (tmp_path / "config.json").touch()
    with pytest.raises(ProfileError, match=r"field learning\.acting\.options: .*no_such_option"):
        profile(learning=acting).load_policy(tmp_path)
