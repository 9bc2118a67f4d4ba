# SPDX-License-Identifier: Apache-2.0
"""The self-contained HTML page about a fit, from a Jinja2 template."""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from quell.diagnostics.advice import Advice, percent
from quell.diagnostics.contribution import Contributions
from quell.diagnostics.estimate import Estimate
from quell.diagnostics.khat import Khat
from quell.diagnostics.summary import Summary, summary_table
from quell.diagnostics.variance import GradientVariance


@dataclasses.dataclass(frozen=True)
class ThemedFigure:
    """A figure in both themes, as data URIs; the title is for readers who cannot see it."""

    title: str
    light: str
    dark: str


@dataclasses.dataclass(frozen=True)
class Contents:
    """What the page shows; the template escapes all text.

    Attributes:
        model: in one line.
        family: in one line.
        status: in one word.
        steps: how many, in what time.
        elbo: over all data.
        khat: with its advice.
        variance: of the gradient at the final parameters.
        contributions: of the variates.
        advice: the most urgent first.
        figures: in order.
        summary: of the posterior.
        settings: by name.
        choice_reason: of an automatic choice, if there was one.
        is_exact: whether the gradient has no noise.
    """

    model: str
    family: str
    status: str
    steps: str
    elbo: Estimate
    khat: Khat
    variance: GradientVariance
    contributions: Contributions
    advice: Sequence[Advice]
    figures: Sequence[ThemedFigure]
    summary: Summary
    settings: Mapping[str, str]
    choice_reason: str | None = None
    is_exact: bool = False


def page(contents: Contents) -> str:
    """The page as HTML."""
    fields = {field.name: getattr(contents, field.name) for field in dataclasses.fields(contents)}
    return _environment().get_template("report.html").render(fields)


def check_jinja() -> None:
    """Refuse to write a page without Jinja2."""
    _environment()


def _environment() -> Any:
    try:
        import jinja2
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("The report needs Jinja2; try `pip install 'quell[plots]'`.") from error
    loader = jinja2.PackageLoader("quell.diagnostics")
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
    environment.filters |= {
        "code": lambda text: _html(re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))),
        "duration": _duration,
        "html_table": lambda summary: _html(summary_table(summary)),
        "is_finite": math.isfinite,
        "khat_value": lambda khat: "no tail" if khat.value == -math.inf else _number(khat.value, ".2f"),
        "minus": _minus,
        "number": _number,
        "share": _share,
        "times": _times,
        "variates_text": _variates_text,
    }
    return environment


def _variates_text(found: Contributions) -> str:
    text = (
        "Current weight; fraction of the base gradient's variance that each removes alone; factor by which the "
        "variance grows without it, the others at their best weights; fraction of the time per step that is saved "
        "without it."
    )
    if math.isfinite(found.step_seconds):
        text += f" A gradient takes {_duration(found.step_seconds)}"
        text += f", of which the variates take {_share(found.cost)}." if math.isfinite(found.cost) else "."
    if any(math.isnan(variate.cost) for variate in found.variates):
        text += " A dash stands for a time that was not measured: `quell.diagnostics.contributions` measures all."
    return text


def _html(text: str) -> Any:
    import markupsafe

    return markupsafe.Markup(text)


def _minus(text: str) -> str:
    """With the typographic minus sign."""
    return text.replace("-", "−")


def _number(value: float, form: str) -> str:
    return _minus(f"{value:{form}}") if math.isfinite(value) else "not finite"


def _times(ratio: float, form: str | None = None) -> str:
    form = form or (".2f" if ratio < 10 else ".3g")
    return _number(ratio, form) + (" ×" if math.isfinite(ratio) else "")


def _share(share: float) -> str:
    """A fraction for a narrow column; noise leaves some a little below zero."""
    return percent(max(share, 0.0)).replace("less than ", "< ") if math.isfinite(share) else "not finite"


def _duration(seconds: float) -> str:
    if seconds >= 1.0:
        return f"{seconds:.3g} s"
    return f"{1e3 * seconds:.3g} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.3g} µs"
