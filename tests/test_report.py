# SPDX-License-Identifier: Apache-2.0
"""The report of a fit, in a file and in a browser."""

import dataclasses
import math
import re
import sys
from html import escape
from html.parser import HTMLParser

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import quell
from quell.core import estimate
from quell.diagnostics import khat, report, summarise, variance
from quell.diagnostics.advice import Advice, Level
from quell.diagnostics.contribution import Contribution, Contributions, Dispensable
from quell.diagnostics.page import report_template

HOSTILE = "<script>alert('x')</script> & \"$\\frac{\" _" + "long" * 30
FEATURES = np.column_stack([np.linspace(-1, 1, 12), np.ones(12)])
MODEL = quell.Model(
    lambda z, x: -0.5 * (x[:, 0] - z[HOSTILE][0] - z["<b>many</b>"][0]) ** 2,
    quell.NormalPrior(),
    FEATURES,
    {HOSTILE: jnp.zeros(1), "<b>many</b>": jnp.zeros(1)},
)
PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABAQAAAAA3bvkkAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="
)

NO_TIME = quell.Seconds(0.0, 0.0, 0.0)


class _Parsed(HTMLParser):
    """Links and text of a page."""

    def __init__(self, text):
        super().__init__()
        self.links, self.tags, self.text = [], set(), ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.links += [value for name, value in attrs if name in {"src", "href", "srcset"}]

    def handle_data(self, data):
        self.text += data


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("report")


@pytest.fixture(scope="module")
def fitted():
    """A real fit whose names and labels are hostile."""
    variate = quell.ControlVariate(quell.Prior(), quell.Reparameterization(), quell.ClosedForm(), label=HOSTILE)
    options = {"steps": 60, "optimizer": optax.adam(0.05), "sampler": quell.Sampler(2, 3), "key": jax.random.key(0)}
    return quell.fit(MODEL, quell.MeanField(2), variates=[variate], **options)


@pytest.fixture(scope="module")
def real(fitted, folder):
    path = fitted.report(folder / "real.html", key=jax.random.key(7), seconds=5.0)
    assert path == folder / "real.html"
    return path


@pytest.fixture(scope="module")
def crowded(folder):
    """Made-up numbers of forty variates and many parameters, some of them not finite."""
    path = folder / "crowded.html"
    path.write_text(report_template().render(_contents()))
    return path


def _contents(**changes):
    one, odd = estimate.Estimate, [1.5, math.nan, math.inf, 12345.678]
    names = [f"taylor-z(data): rp - cf <{k}> {'wide' * k}" for k in range(40)]
    variates = [
        Contribution(name, odd[k % 4] - 1.0, 0.5, one(odd[k % 4] / 1e5, 0.1), one(0.1, 0.1), one(odd[k % 4], 0.1), cost)
        for (k, name), cost in zip(enumerate(names), np.linspace(-0.1, 0.9, 40), strict=True)
    ]
    idle = Dispensable(tuple(names[:2]), one(1.01, 0.01), one(0.01, 0.01), 0.6)
    blocks = [
        variance.BlockVariance(f"block {k} {HOSTILE}", one(10.0**k, 1.0), one(odd[k % 4], 1.0), one(odd[k % 4], 1.0))
        for k in range(12)
    ]
    contents = {
        "model": f"Model({HOSTILE})",
        "family": f"Family({HOSTILE})",
        "status": "completed",
        "steps": "1,234,567 steps in 12,345.6 s",
        "elbo": one(-123456789.123, 0.5),
        "khat": khat.Khat(math.inf, 0.7, 1000, "The fitted distribution is far from the posterior."),
        "variance": variance.GradientVariance(tuple(blocks), blocks[0], 1000),
        "contributions": Contributions(tuple(variates), one(1, 1), one(1, 1), one(1, 1), idle, 1e-4, 0.7),
        "advice": [Advice(level, f"Try `variates={names[:3]}` and {HOSTILE}.") for level in Level],
        "figures": {f"{k} {HOSTILE}": {"light": PIXEL, "dark": PIXEL} for k in range(5)},
        "summary": summarise({f"{HOSTILE} {k}": -1e-5 * np.arange(3000.0).reshape(100, 30) for k in range(40)}),
        "settings": {"rule": "Rule(" + "x" * 200 + ")", HOSTILE: "1"},
        "choice_reason": None,
        "is_exact": False,
    }
    return contents | changes


# The file


def test_the_page_needs_nothing_beside_itself(real):
    text = real.read_text()
    parsed = _Parsed(text)
    assert len([link for link in parsed.links if link.startswith("data:image/png")]) == 2 * 5
    assert all(link.startswith("data:") for link in parsed.links), "no file, no address"
    assert not re.search(r"url\(|@import|<script", text)
    assert "script" not in parsed.tags
    assert len(text) < 600_000


def test_what_a_user_has_named_is_text(real, crowded):
    for path in (real, crowded):
        text = path.read_text()
        assert "<script" not in text
        assert "<b>many" not in text
        assert escape(HOSTILE) in text
        assert HOSTILE in _Parsed(text).text


def test_the_page_tells_what_was_measured(fitted, real):
    text = _Parsed(real.read_text()).text
    key = jax.random.split(jax.random.key(7), 3)[2]
    for expected in (
        "MeanField(dim=2) for Model(num_data=12, dim=2)",
        "completed",
        "60 steps in",
        repr(fitted.elbo(key)).replace("-", "−"),
        f"{fitted.khat(key, 1000).value:.2f}".replace("-", "−"),
        f"{fitted.summary(key).as_dict()['<b>many</b>[0]']['mean']:.3g}".replace("-", "−"),
        "Sampler(num_replicates=2, batch_size=3)",
        f"quell {quell.__version__}",
        f"jax {jax.__version__}",
    ):
        assert expected in text
    assert text.index("Advice") < text.index("Figures") < text.index("Variates") < text.index("Posterior")


def test_numbers_that_are_not_finite_are_named(crowded):
    text = _Parsed(crowded.read_text()).text
    assert "nan" not in text.lower().replace("dominan", "")
    assert "inf " not in text
    assert "not finite" in text


@pytest.mark.parametrize(
    ("value", "words"), [(-math.inf, ("no tail", "good")), (0.3, ("0.30", "good")), (0.8, ("0.80", "doubtful"))]
)
def test_khat_is_shown_with_a_word(value, words):
    text = _Parsed(report_template().render(_contents(khat=khat.Khat(value, 0.7, 1000, "Advice.")))).text
    assert f"{words[0]} {words[1]}" in text


def test_a_fit_that_has_not_begun_and_has_no_variates(folder, fitted):
    gradient = quell.Gradient(fitted.problem, sampler=fitted.gradient.sampler)
    result = quell.FitResult(
        fitted.params,
        gradient,
        gradient.init(fitted.params),
        quell.History.empty(0, 0),
        quell.Status.INTERRUPTED,
        NO_TIME,
    )
    text = _Parsed(result.report(str(folder / "empty.html"), seconds=5.0).read_text()).text
    assert "No variates were used" in text
    assert "0 steps are too few" in text
    assert "Interrupted" in text
    assert "variance without it" not in text


@pytest.fixture(scope="module")
def exact():
    """A fit whose gradient is exact, as was chosen automatically."""
    model = quell.logistic_regression(FEATURES, np.arange(12) % 2)
    return quell.fit(model, quell.FullRank(2), key=jax.random.key(0))


def test_a_fit_whose_gradient_is_exact(folder, exact):
    assert exact.status is quell.Status.CONVERGED
    written = exact.report(folder / "exact.html", seconds=5.0).read_text()
    text = _Parsed(written).text
    assert exact.choice.reason in text
    assert "closed form, without noise" in text
    assert written.count("data:image/png") == 2 * 2, "the ELBO and the norms, each in two themes"
    for absent in ("No variates were used", "too few to see", "Variance by block", "not finite"):
        assert absent not in text


@pytest.mark.slow
def test_the_choice_and_its_variates_are_shown(folder, exact):
    gradient = quell.Gradient(exact.problem, quell.paper.variates("c7"), sampler=quell.Sampler(2))
    params = gradient.problem.family.init()
    steps, weights = np.ones(60), np.full((60, 1), -1.0)
    history = quell.History(steps, steps, steps, weights, weights > 0, weights[:, 0] > 0)
    choice = quell.Choice("sampled", ("c7",), "It is <quick>.")
    state = gradient.init(params)
    result = quell.FitResult(params, gradient, state, history, quell.Status.COMPLETED, NO_TIME, choice)
    written = result.report(folder / "chosen.html", seconds=5.0).read_text()
    choice_at, variates_at, variance_at = (written.index(f'id="{name}"') for name in ("choice", "variates", "variance"))
    assert "It is <quick>." in _Parsed(written[choice_at:variates_at]).text
    assert "c7" in _Parsed(written[variates_at:variance_at]).text


@pytest.mark.slow
def test_a_fit_of_a_product_with_discrete_blocks(folder):
    family = quell.Product({"weight": quell.MeanField(1), "switch": quell.Bernoulli(1)})
    model = quell.Model(lambda z, x: -((x - z[0] * z[1]) ** 2), lambda z: -0.5 * z @ z, jnp.arange(3.0), 2)
    problem = quell.Problem(model, family)
    gradient = quell.Gradient(problem, base=quell.default_base(problem))
    params = family.init()
    result = quell.FitResult(
        params, gradient, gradient.init(params), quell.History.empty(0, 0), quell.Status.COMPLETED, NO_TIME
    )
    text = _Parsed(result.report(folder / "product.html", seconds=5.0).read_text()).text
    assert "switch" in text
    assert "k-hat" in text


def test_skipped_steps_and_dropped_variates_are_told(fitted):
    history = fitted.history
    many = quell.History(
        history.elbo, history.base_sq_norm, history.combined_sq_norm, history.weights, history.dropped | True,
        np.arange(60) < 20,
    )  # fmt: skip
    fit = dataclasses.replace(fitted, history=many, status=quell.Status.DIVERGED)
    made_up = _contents()
    found = report.advice_on(fit, khat.Khat(0.8, 0.7, 1000, "Narrow."), made_up["variance"], made_up["contributions"])
    texts = " ".join(one.text for one in found)
    assert "20 of 60 steps were skipped" in texts
    assert "dropped at some of the 60 steps" in texts
    assert quell.Status.DIVERGED.value in texts
    levels = [list(Level).index(one.level) for one in found]
    assert levels == sorted(levels), "the most urgent first"
    assert found[0].level is Level.ACT


@pytest.mark.slow
def test_a_report_that_fails_leaves_the_old_one(folder, fitted):
    class Unspeakable(quell.Model):
        def constrain(self, z):
            raise RuntimeError("no scale")

    model = Unspeakable(MODEL.likelihood, MODEL.prior, MODEL.data, MODEL.unflatten(MODEL.flat_latent))
    gradient = dataclasses.replace(fitted.gradient, problem=quell.Problem(model, fitted.problem.family))
    path = folder / "old.html"
    path.write_text("old")
    with pytest.raises(RuntimeError, match="no scale"):
        dataclasses.replace(fitted, gradient=gradient).report(path, seconds=0.1)
    assert path.read_text() == "old"


def test_a_report_without_jinja_is_refused(folder, fitted, monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'quell\[plots\]'"):
        fitted.report(folder / "none.html")


def test_a_missing_folder_is_refused(folder, fitted):
    with pytest.raises(FileNotFoundError, match=r"`path` .* got .*nowhere.*mkdir -p"):
        fitted.report(folder / "nowhere" / "report.html")


@pytest.mark.usefixtures("unchecked")
def test_what_is_no_key_is_refused(folder, fitted):
    with pytest.raises(TypeError, match=r"`key` must be one typed random key, got 3"):
        fitted.report(folder / "keyless.html", key=3)


# The browser


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
@pytest.mark.parametrize("width", [390, pytest.param(1280, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["real", "crowded"])
def test_the_page_in_a_browser(request, browser, name, width, scheme):
    path = request.getfixturevalue(name)
    tab = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    complaints, requests = [], []
    tab.on("console", lambda message: complaints.append(message.text))
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.on("dialog", lambda dialog: complaints.append(dialog.message))
    tab.on("request", lambda asked: requests.append(asked.url))
    tab.goto(path.as_uri(), wait_until="load")
    assert not complaints
    assert sum(url.startswith("file://") for url in requests) == 1
    assert all(url.startswith(("file://", "data:")) for url in requests)
    shown = tab.eval_on_selector_all("img", "some => some.map(i => [i.complete, i.getBoundingClientRect().width])")
    assert len(shown) == 5
    assert all(complete and 300 < wide <= width for complete, wide in shown)
    assert tab.evaluate("document.documentElement.scrollWidth") <= width, "nothing sticks out"
    boxes = tab.eval_on_selector_all(
        "td, th, .chip, .card, li, code, p", "some => some.map(e => e.getBoundingClientRect().right)"
    )
    assert max(boxes) <= width - 15, "the margin stays empty"
    cut = tab.eval_on_selector_all("td, th, .card", "some => some.map(e => e.scrollWidth - e.clientWidth)")
    assert max(cut) <= 1, "no cell is cut off"
    assert "<script>alert('x')</script>" in tab.inner_text("body")
    ground = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == {"light": "rgb(255, 255, 255)", "dark": "rgb(22, 24, 29)"}[scheme]
    tab.close()
