# SPDX-License-Identifier: Apache-2.0
"""The template of the self-contained HTML page about a fit, and how it writes numbers."""

import math
import re
from html import escape
from typing import Any

from quell.diagnostics.advice import percent


def report_template() -> Any:
    """The Jinja2 template; it escapes all text, and refuses a page without one of its values."""
    try:
        import jinja2
        from markupsafe import Markup
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("The report needs Jinja2; try `pip install 'quell[plots]'`.") from error
    loader = jinja2.PackageLoader("quell.diagnostics")
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
    environment.filters |= {
        "code": lambda text: Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))),
        "duration": _duration,
        "minus": _minus,
        "number": _number,
        "share": _share,
        "times": _times,
    }
    environment.tests["finite"] = math.isfinite
    return environment.get_template("report.html")


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
