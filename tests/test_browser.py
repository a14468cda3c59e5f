"""The inspector in a real Chromium against a real JupyterLab: rendered, stepped, dragged, and read back.

Skipped, with the reason, where no Chromium is installed (Debian: `apt-get install chromium`). CHROMIUM names another
executable. Screenshots are left in pytest's temporary folder.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from display_world import write_world

from vrag_nb.agent.geometry import View
from vrag_nb.agent.trajectory import read_trajectories
from vrag_nb.display import scenes

CHROMIUM = os.environ.get("CHROMIUM") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium executable found (Debian: apt-get install chromium)"),
]
playwright_api = pytest.importorskip("playwright.sync_api", reason="the Python package playwright is not installed")

SECONDS = 1000
CODE = """from test_inspector import ExplainingEngine
from vrag_nb.display.inspector import TrajectoryInspector
inspector = TrajectoryInspector("trajectories.jsonl", "corpus", engine=ExplainingEngine())
inspector"""
MEMORY = """from conftest import RankedEngine, ScriptedPolicy
from test_memory_dag import SCRIPT
from vrag_nb.agent.vimrag import VimRAG
from vrag_nb.display.memory_dag import MemoryDag
from vrag_nb.records import read_pages
told, pages = iter(SCRIPT), [page.page_id for page in read_pages("corpus")]
policy = ScriptedPolicy(lambda conversation: next(told))
asked = VimRAG(policy=policy, engine=RankedEngine(pages), corpus="corpus", memory_pixels=90 * 784)
dag = MemoryDag("corpus", asked.environment.settings)
display(dag)
_ = dag.follow(asked.run("Who?"))"""
READ_BACK = "import json; print('OWN', json.dumps(inspector.own), 'END')"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lab")
    write_world(folder)
    for name, cells in {"inspector": [CODE, READ_BACK], "memory": [MEMORY]}.items():
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        kernel = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
        notebook.metadata["kernelspec"] = kernel
        nbformat.write(notebook, folder / f"{name}.ipynb")
    return folder


@pytest.fixture(scope="module")
def lab(world: Path) -> Iterator[str]:
    """The address of a running JupyterLab that serves `world`, token included."""
    port, token = _free_port(), secrets.token_hex(16)
    private = {f"JUPYTER_{name}_DIR": str(world / ".jupyter" / name.lower()) for name in ("CONFIG", "DATA", "RUNTIME")}
    settings = world / ".jupyter" / "settings" / "@jupyterlab" / "apputils-extension"
    settings.mkdir(parents=True)  # a question about news would lie on top of what is clicked
    (settings / "notification.jupyterlab-settings").write_text('{"fetchNews": "false", "checkForUpdates": false}')
    private["JUPYTERLAB_SETTINGS_DIR"] = str(settings.parents[1])
    tests = Path(__file__).parent
    environment = {**os.environ, **private, "PYTHONPATH": os.pathsep.join([str(tests), str(tests.parent)])}
    command = [sys.executable, "-m", "jupyter", "lab", "--no-browser", "--ip=127.0.0.1", f"--port={port}"]
    command += [f"--IdentityProvider.token={token}", f"--ServerApp.root_dir={world}", "--ServerApp.port_retries=0"]
    command += ["--allow-root", "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"]
    with (world / "lab.log").open("wb") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        _wait_for(f"http://127.0.0.1:{port}/api/status?token={token}", server, world / "lab.log")
        yield f"http://127.0.0.1:{port}/lab/tree/inspector.ipynb?token={token}"
    finally:
        _stop(server)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if server.poll() is not None:
            break
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    raise RuntimeError(f"JupyterLab did not start:\n{log.read_text(errors='replace')[-2000:]}")


def _stop(server: subprocess.Popen[bytes]) -> None:
    """End the server; it ends its kernels."""
    if server.poll() is None:
        os.killpg(server.pid, signal.SIGTERM)
    try:
        server.wait(10)
    except subprocess.TimeoutExpired:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait(5)


@pytest.fixture(scope="module")
def page(lab: str, world: Path) -> Iterator[playwright_api.Page]:
    """The notebook, open in a browser, its first cell run."""
    with playwright_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1500, "height": 1750})
        playwright_api.expect.set_options(timeout=60 * SECONDS)
        page.set_default_timeout(120 * SECONDS)  # only a machine that is busy with something else needs this long
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        try:
            page.goto(lab)
            _idle(page)
            page.locator(".jp-CodeCell .cm-content").first.click()
            page.keyboard.press("Control+Enter")
            page.locator(".vrag-inspector .vrag-surface--page img[src]").wait_for()
            _idle(page)
        except playwright_api.Error:
            page.screenshot(path=world / "failed.png")
            raise
        page.set_default_timeout(30 * SECONDS)
        yield page
        browser.close()
    assert not [error for error in errors if "vrag" in error], errors


def _idle(page: playwright_api.Page) -> None:
    page.get_by_text(re.compile(r"Python 3 \(ipykernel\) \| Idle")).first.wait_for()


def _trajectory(world: Path) -> tuple[scenes.Scene, list[scenes.Scene]]:
    played = scenes.scenes(read_trajectories(world / "trajectories.jsonl")[0], scenes.page_store(world / "corpus"))
    return played[2], played


def _drag(page: playwright_api.Page, surface: str, part: tuple[float, float, float, float]) -> None:
    """Drag a box, in fractions of the picture, with a real mouse."""
    image = page.locator(f".vrag-surface--{surface} img")
    image.scroll_into_view_if_needed()
    area = image.bounding_box()
    assert area is not None
    page.mouse.move(area["x"] + part[0] * area["width"], area["y"] + part[1] * area["height"])
    page.mouse.down()
    page.mouse.move(area["x"] + (part[0] + part[2]) / 2 * area["width"], area["y"] + part[3] * area["height"], steps=3)
    page.mouse.move(area["x"] + part[2] * area["width"], area["y"] + part[3] * area["height"], steps=3)
    page.mouse.up()


def _own(page: playwright_api.Page) -> dict:
    """What the kernel holds: the second cell prints it."""
    page.locator(".jp-CodeCell").nth(1).locator(".cm-content").click()
    page.keyboard.press("Control+Enter")
    output = page.locator(".jp-CodeCell").nth(1).locator(".jp-OutputArea-output", has_text="END")
    output.wait_for()
    _idle(page)
    return json.loads(output.inner_text().split("OWN", 1)[1].rsplit("END", 1)[0])


def _natural_size(page: playwright_api.Page, surface: str) -> list[int]:
    size = page.locator(f".vrag-surface--{surface} img").evaluate(
        "i => i.decode().then(() => [i.naturalWidth, i.naturalHeight])"
    )
    return list(size)


def _numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", text)]


def test_stepping_shows_the_models_crop(page: playwright_api.Page, world: Path, tmp_path: Path) -> None:
    page.locator(".vrag-next").click()
    page.get_by_text("Turn 2 of 6").wait_for()
    page.locator(".vrag-place").click()  # into the widget, then by keyboard
    page.locator(".vrag-inspector").focus()
    page.keyboard.press("ArrowRight")
    page.get_by_text("Turn 3 of 6").wait_for()
    scene, _ = _trajectory(world)
    view = scene.shown[0].view
    playwright_api.expect(page.locator(".vrag-seen-size")).to_have_text(
        f"{view.shown_size[0]} × {view.shown_size[1]} px"
    )
    playwright_api.expect(page.locator(".vrag-seen-tokens")).to_have_text(f"{view.tokens} tokens")
    assert _natural_size(page, "seen") == list(view.shown_size)
    image = page.locator(".vrag-surface--page img").bounding_box()
    mark = page.locator(".vrag-surface--page .vrag-mark--model").bounding_box()
    assert image is not None
    assert mark is not None
    assert view.crop_box is not None
    left = (mark["x"] - image["x"]) / image["width"] * view.page_size[0]
    right = (mark["x"] + mark["width"] - image["x"]) / image["width"] * view.page_size[0]
    assert [left, right] == pytest.approx([view.crop_box[0], view.crop_box[2]], abs=3)
    playwright_api.expect(page.locator(".vrag-page .vrag-badge--gold")).to_be_visible()
    page.locator(".vrag-gold-toggle").uncheck()
    playwright_api.expect(page.locator(".vrag-surface--page .vrag-mark--gold")).to_be_hidden()
    page.locator(".vrag-gold-toggle").check()
    page.locator(".vrag-inspector").screenshot(path=tmp_path / "stepped.png")


def test_a_drag_shows_what_geometry_says(page: playwright_api.Page, world: Path, tmp_path: Path) -> None:
    scene, played = _trajectory(world)
    page.locator(".vrag-step").nth(2).click()
    page.get_by_text("Turn 3 of 6").wait_for()
    _drag(page, "page", (0.1, 0.2, 0.6, 0.8))
    page.locator(".vrag-own-written").wait_for()
    own = _own(page)
    base = View.whole(scene.shown[0].view.page_size, played[0].shown[0].view.budget)
    view = base.crop(tuple(own["written"]), padding=4)
    expected = [part * side for part, side in zip((0.1, 0.2, 0.6, 0.8), base.shown_size * 2, strict=True)]
    assert own["written"] == pytest.approx(expected, abs=2)
    assert own["crop_box"] == list(view.crop_box or ())
    assert own["size"] == list(view.shown_size) == _natural_size(page, "own")
    assert own["tokens"] == view.tokens
    assert _numbers(page.locator(".vrag-own-written").inner_text()) == own["written"]
    assert _numbers(page.locator(".vrag-own-page").inner_text()) == own["page_box"]
    assert own["page_box"] == pytest.approx(base.to_page(tuple(own["written"])), abs=0.06)
    playwright_api.expect(page.locator(".vrag-surface--page .vrag-mark--yours")).to_be_visible()
    page.locator(".vrag-inspector").screenshot(path=tmp_path / "dragged.png")


def test_search_and_page_through_hits(page: playwright_api.Page, tmp_path: Path) -> None:
    page.locator(".vrag-query").fill("hydro power")
    page.locator(".vrag-query").press("Enter")
    page.get_by_text("your search: “hydro power”").wait_for()
    playwright_api.expect(page.locator(".vrag-hit")).to_have_count(5)
    page.locator(".vrag-hits-next").click()
    playwright_api.expect(page.locator(".vrag-hit")).to_have_count(1)
    page.locator(".vrag-hit").click()
    playwright_api.expect(page.locator(".vrag-page-id")).to_have_text("report_3")
    page.locator(".vrag-row").nth(2).click()  # the heading is the first row
    page.get_by_text("Turn 1 of 2").wait_for()
    playwright_api.expect(page.locator(".vrag-question .vrag-badge--wrong")).to_be_visible()
    page.locator(".vrag-inspector").screenshot(path=tmp_path / "searched.png")


def test_matches_lie_over_the_page(page: playwright_api.Page, tmp_path: Path) -> None:
    page.locator(".vrag-row").nth(1).click()
    page.locator(".vrag-step").nth(1).click()
    page.get_by_text("Turn 2 of 6").wait_for()
    playwright_api.expect(page.locator(".vrag-cell")).to_have_count(0)
    page.locator(".vrag-match-toggle").check()
    playwright_api.expect(page.locator(".vrag-chip")).to_have_text(
        ["all 2.60", "hydro 0.50", "power 0.60", "share 0.70", "table 0.80"]
    )
    playwright_api.expect(page.locator(".vrag-cell")).to_have_count(2)
    image = page.locator(".vrag-surface--page img").bounding_box()
    cell = page.locator('.vrag-cell[title="power, table: adds 1.40"]').bounding_box()
    assert image is not None
    assert cell is not None
    place = [(cell["x"] - image["x"]) / image["width"], (cell["y"] - image["y"]) / image["height"]]
    assert place == pytest.approx([3 / 4, 2 / 3], abs=0.01)
    heat = page.locator(".vrag-heat").evaluate("e => getComputedStyle(e).backgroundImage")
    assert heat.startswith('url("blob:')
    page.locator(".vrag-inspector").screenshot(path=tmp_path / "matches.png")
    page.locator(".vrag-chip").nth(1).click()
    playwright_api.expect(page.locator(".vrag-cell")).to_have_count(1)
    playwright_api.expect(page.locator(".vrag-match-scale")).to_have_text("01.00 cosine with the patch")
    page.locator(".vrag-inspector").focus()
    page.keyboard.press("m")
    playwright_api.expect(page.locator(".vrag-cell")).to_have_count(0)
    playwright_api.expect(page.locator(".vrag-match-toggle")).not_to_be_checked()


def test_a_memory_grows_and_its_searches_open(page: playwright_api.Page, lab: str, tmp_path: Path) -> None:
    page.set_default_timeout(120 * SECONDS)  # another kernel starts
    page.goto(lab.replace("/lab/tree/inspector.ipynb", "/lab/workspaces/memory/tree/memory.ipynb"))  # alone on its page
    _idle(page)
    page.locator(".jp-CodeCell .cm-content").first.click()
    page.keyboard.press("Control+Enter")
    page.get_by_role("button", name="a", exact=True).click()
    page.locator(".vrag-inspector:visible .vrag-surface--page img[src]").wait_for()
    page.screenshot(path=tmp_path / "memory.png")
    output = page.locator(".jp-OutputArea-output").first.bounding_box()
    picture = page.locator(".jp-OutputArea img.widget-image").first.bounding_box()
    words = page.get_by_text("answered").first.bounding_box()
    assert output is not None
    assert picture is not None
    assert words is not None
    assert 300 < picture["width"] < words["x"] - output["x"]  # the log stands beside the picture, and both are in view
    assert words["x"] + words["width"] <= output["x"] + output["width"]
