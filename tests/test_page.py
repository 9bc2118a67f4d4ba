# SPDX-License-Identifier: Apache-2.0
"""The page of the whole reproduction, in a file and in a browser."""

import re
import shutil
from html.parser import HTMLParser

import pytest
from typer.testing import CliRunner

from made_up import made_up_cells, made_up_figure1, made_up_panels, made_up_sweeps
from quell.cli import everything
from quell.cli.app import app
from quell.paper.sweep import SweepExperiment

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
FIGURES = ("table1", "figure1", "figure2", "figure3", "figure4")
QUIET = ("--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run")


def _results(experiments, out):
    """What `run_all` would return, without running anything; the command's own plan says how much of each."""
    names = [experiment.name.split()[0] for experiment in experiments]
    kinds = {kind: names.count(kind) for kind in ("table1", "sweep", "figure1", "figure4")}
    assert sum(kinds.values()) == len(experiments)
    assert (kinds["figure1"], kinds["figure4"]) == (1, 3)
    columns = [e.column for e in experiments if isinstance(e, SweepExperiment)]
    cells = [s for s in made_up_sweeps(factors=(1.0,)) if s.variates in columns[: kinds["table1"]]]
    sweeps = [s for s in made_up_sweeps() if s.variates in columns[kinds["table1"] :]]
    return [*cells[: kinds["table1"]], *sweeps[: kinds["sweep"]], made_up_figure1(), *made_up_panels()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What `quell reproduce all` writes, with made-up numbers."""
    out = tmp_path_factory.mktemp("all")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(everything, "run_all", _results)
        result = CliRunner().invoke(app, ["reproduce", "all", "--quick", "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert "index.html" in result.stdout
    return out


class _Links(HTMLParser):
    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        self.found += [(tag, name, value) for name, value in attrs if name in {"src", "href", "srcset"}]


def test_the_page_needs_nothing_beside_itself(folder):
    text = (folder / "index.html").read_text()
    links = _Links()
    links.feed(text)
    assert len([link for link in links.found if link[2].startswith("data:image/png")]) == 4 * len(FIGURES)
    assert all(value.startswith("data:") for _, _, value in links.found), "no file, no address"
    assert not re.search(r"url\(|@import|<script", text)


def test_the_page_holds_every_number_of_the_table_and_every_verdict(folder):
    text = (folder / "index.html").read_text()
    for cell in made_up_cells():
        if cell.dataset == "ionosphere" and cell.variates in {"none", "S7", "c7"}:
            assert f"{cell.mean:.1f}".replace("-", "−") in text
            assert f"{cell.paper:.1f}".replace("-", "−") in text
    for source in ("Table 1", "Figure 1", "Figure 4"):
        assert f"<b>{source}.</b>" in text
    assert "too few runs to judge by" in text, "a small version says so"
    for name in FIGURES:
        assert (folder / f"{name}.png").exists()
        assert (folder / f"{name}.json").exists()


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine; install it (Debian: apt-get install chromium) to open the page")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu", *QUIET])
        yield chromium
        chromium.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_in_a_browser(folder, browser, width, scheme):
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    complaints, requests = [], []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto((folder / "index.html").as_uri(), wait_until="load")
    assert not complaints
    assert all(url.startswith(("file://", "data:")) for url in requests)
    assert sum(url.startswith("file://") for url in requests) == 1
    shown = page.eval_on_selector_all(
        "img",
        "images => images.map(i => [i.complete, i.naturalWidth, i.naturalHeight, i.getBoundingClientRect().width])",
    )
    assert len(shown) == len(FIGURES)
    assert all(complete and high > 300 and 300 < wide <= width for complete, _, high, wide in shown)
    assert all((high > 0.8 * across) == (width < 700) for _, across, high, _ in shown), "panels are stacked on a phone"
    assert page.evaluate("document.documentElement.scrollWidth") <= width, "nothing sticks out"
    boxes = page.eval_on_selector_all(
        "td, th, .chip", "some => some.map(e => [e.scrollWidth - e.clientWidth, e.getBoundingClientRect().right])"
    )
    assert all(over <= 1 and right <= width for over, right in boxes), "no cell is cut off"
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == {"light": "rgb(255, 255, 255)", "dark": "rgb(22, 24, 29)"}[scheme]
    page.close()
