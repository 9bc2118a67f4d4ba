# SPDX-License-Identifier: Apache-2.0
"""The page of the whole reproduction, in a file and in a browser."""

import dataclasses
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from markupsafe import escape
from typer.testing import CliRunner

from experiments.common.store import Store
from experiments.paper.commands import app
from experiments.paper.outputs import write_output
from experiments.paper.page import Contents, write_page
from experiments.paper.plans import figure1_plan, figure4_plan, sweep_plan, table1_plan
from experiments.paper.sweep import COLUMNS
from experiments.paper.table1 import Cell
from made_up import made_up_figure1, made_up_panels, made_up_sweeps
from quell.paper import load

pytestmark = pytest.mark.release

FIGURES = ("table1", "figure1", "figure2", "figure3", "figure4")


def _table():
    """One cell has lost some of its runs."""
    sweeps = made_up_sweeps(factors=(1.0,))
    curves = sweeps[0].curves.copy()
    curves[0, :3, -1] = np.nan
    return [dataclasses.replace(sweeps[0], curves=curves), *sweeps[1:]]


def _write(out, cells, *, quick=False):
    """Pictures, reports and page of made-up results."""
    sweeps = [sweep for sweep in made_up_sweeps() if sweep.dataset != "ionosphere-full"]
    contents = {"table1": cells, "figure1": made_up_figure1(), "figure2": sweeps, "figure3": sweeps}
    contents["figure4"] = made_up_panels()
    verdicts = [verdict for name in FIGURES for verdict in write_output(name, contents[name], out)]
    contents = Contents(cells, sweeps, contents["figure1"], contents["figure4"], verdicts, 0, 1.0, quick)
    write_page(out / "index.html", contents)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A whole reproduction with made-up numbers."""
    out = tmp_path_factory.mktemp("all")
    _write(out, [Cell.from_sweep(sweep) for sweep in _table()])
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
    for cell in map(Cell.from_sweep, _table()):
        assert f"{cell.mean:.1f}".replace("-", "−") in text
        assert cell.paper is None or f"{cell.paper:.1f}".replace("-", "−") in text
    assert "(3 not finite)" in text
    verdicts = [v for name in FIGURES for v in json.loads((folder / f"{name}.json").read_text())["verdicts"]]
    assert len(verdicts) == 14
    for verdict in verdicts:
        assert escape(verdict["claim"]) in text
        assert escape(verdict["evidence"]) in text
    assert f"<b>{sum(v['outcome'] == 'holds' for v in verdicts)}</b> hold" in text
    assert "Not part of this run" not in text
    assert all((folder / f"{name}.png").exists() for name in FIGURES)


def test_the_command_shows_what_an_earlier_run_has_kept(tmp_path):
    data = load("ionosphere")
    table = table1_plan([data], COLUMNS, runs=50, steps=500, seed=0, quick=True)
    sweep = sweep_plan([data], runs=10, seed=0, quick=True)
    figure1 = figure1_plan(data, steps=300, seed=0, quick=True)
    panels = figure4_plan(data, repetitions=200, seed=0, quick=True)
    store = Store(tmp_path / "cells")

    def made_up(experiments, **options):
        sweeps = {(one.dataset, one.variates): one for one in made_up_sweeps(**options)}
        return [sweeps["ionosphere", experiment.column] for experiment in experiments]

    results = [*made_up(table, factors=(1.0,)), *made_up(sweep), made_up_figure1(), *made_up_panels()]
    for experiment, result in zip([*table, *sweep, figure1, *panels], results, strict=True):
        store.keep(experiment, result)
    done = CliRunner().invoke(app, ["all", "--quick", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert f"{len(results)} of {len(results)} results were kept by an earlier run" in done.stderr
    assert "index.html" in done.stdout
    text = (tmp_path / "index.html").read_text()
    assert "too few runs to judge by" in text
    assert "Not part of this run: australian, sonar." in text
    assert "claims" not in text.split("</header>")[0], "nothing is counted"
    assert f"{Cell.from_sweep(results[0]).mean:.1f}".replace("-", "−") in text


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
    assert all((high > across) == (width < 700) for _, across, high, _ in shown), "panels are stacked on a phone"
    assert page.evaluate("document.documentElement.scrollWidth") <= width, "nothing sticks out"
    boxes = page.eval_on_selector_all(
        "td, th, .chip", "some => some.map(e => [e.scrollWidth - e.clientWidth, e.getBoundingClientRect().right])"
    )
    assert all(over <= 1 and right <= width for over, right in boxes), "no cell is cut off"
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == {"light": "rgb(255, 255, 255)", "dark": "rgb(22, 24, 29)"}[scheme]
    page.close()
