# SPDX-License-Identifier: Apache-2.0
"""A fit on one page that needs nothing beside itself."""

import math
import re
from collections.abc import Mapping, Sequence
from html import escape

from quell.diagnostics.advice import Advice, Level, percent
from quell.diagnostics.contribution import Contribution, Contributions
from quell.diagnostics.estimate import Estimate
from quell.diagnostics.khat import Khat
from quell.diagnostics.looks import STYLE
from quell.diagnostics.noise import BlockVariance, GradientVariance
from quell.diagnostics.page_contents import Chosen, Contents, Picture
from quell.diagnostics.summary import summary_table

_CLASSES = {Level.GOOD: "holds", Level.NOTE: "open", Level.ACT: "fails"}


def page(contents: Contents) -> str:
    """The page as HTML."""
    sections = [
        _section("Advice", "advice", _advice(contents.advice)),
        _section("Figures", "figures", f'<div class="figures">{"".join(map(_picture, contents.pictures))}</div>'),
        *_choice(contents.choice),
        *_variates(contents),
        *_variance(contents),
        _section(
            "Posterior", "posterior", f'<div class="scroll">{summary_table(contents.summary)}</div>', _summary(contents)
        ),
        _section("Settings", "settings", _facts(contents.settings)),
    ]
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>A fit by quell</title>
<style>{STYLE}{_STYLE}</style>
</head>
<body>
<main>
<header>
<h1>A fit by quell</h1>
<p class="what">{escape(contents.family)} for {escape(contents.model)}</p>
{_headline(contents)}
</header>
{"".join(sections)}
</main>
</body>
</html>
"""


def _headline(contents: Contents) -> str:
    khat, ratio = contents.khat, contents.variance.total.ratio
    kind, word = ("holds", "good") if khat.is_good else ("open", "doubtful") if khat.value <= 1 else ("fails", "bad")
    chip = f'<span class="chip {kind}">{word}</span>'
    elbo_note = "exact, over all data" if contents.elbo.is_exact else "nats, over all data"
    quieter = f"{ratio.value:.3g} ×" if math.isfinite(ratio.value) else "not finite"
    cards = [
        ("Status", escape(contents.status), escape(contents.steps)),
        ("ELBO", _estimate(contents.elbo), elbo_note),
        ("k-hat", f"{_khat(khat)} {chip}", f"good up to {khat.threshold:.2f} with {khat.num:,} samples"),
        ("Gradient", quieter, "quieter than the base gradient"),
    ]
    if contents.is_exact:
        cards[-1] = ("Gradient", "exact", "closed form, without noise")
    elif not contents.contributions.variates:
        cards[-1] = ("Gradient", "base", "no variates were used")
    items = [f'<div class="card"><h2>{title}</h2><b>{value}</b><p>{note}</p></div>' for title, value, note in cards]
    return f'<div class="headline">{"".join(items)}</div>'


def _khat(khat: Khat) -> str:
    if khat.value == -math.inf:
        return "no tail"
    return _number(khat.value, ".2f")


def _advice(advice: Sequence[Advice]) -> str:
    items = [
        f'<li><span class="chip {_CLASSES[one.level]}">{one.level.value}</span> {_text(one.text)}</li>'
        for one in advice
    ]
    return f'<ul class="verdicts">{"".join(items)}</ul>'


def _choice(choice: Chosen | None) -> list[str]:
    if choice is None:
        return []
    return [_section("Choice", "choice", "", choice.reason)]


def _variates(contents: Contents) -> list[str]:
    found = contents.contributions
    if not found.variates:
        return []
    rows = "".join(_variate_row(variate) for variate in found.variates)
    columns = ("weight", "alone removes", "variance without it", "time")
    head = "".join(f'<th scope="col">{column}</th>' for column in columns)
    table = f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{rows}</tbody></table>"
    return [_section("Variates", "variates", table, _variates_text(found))]


def _variates_text(found: Contributions) -> str:
    text = (
        "Weight in use; share of the base gradient's variance that each removes alone; how many times larger the "
        "variance is without it, the others at their best weights; share of a step's time that is saved without it."
    )
    if math.isfinite(found.step_seconds):
        text += f" A step's gradient takes {_duration(found.step_seconds)}"
        text += f", of which the variates take {percent(max(found.cost, 0.0))}." if math.isfinite(found.cost) else "."
    if any(math.isnan(variate.cost) for variate in found.variates):
        text += " A dash stands for a time that was not measured: `quell.diagnostics.contributions` measures all."
    return text


def _variate_row(variate: Contribution) -> str:
    cells = (
        _weight(variate.weight),
        _share(variate.alone.value),
        _times(variate.growth.value),
        "–" if math.isnan(variate.cost) else _share(variate.cost),
    )
    return f'<tr><th scope="row">{escape(variate.name)}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'


def _weight(weight: float | dict[str, float]) -> str:
    if isinstance(weight, dict):
        return "<br>".join(f"{_number(value, '+.2f')} {escape(leaf)}" for leaf, value in weight.items())
    return _number(weight, "+.2f")


_VARIANCE_TEXT = (
    "Of the gradient of one step where the fit ended, summed over the coordinates of each block, for the loss "
    "`-ELBO / num_data`; from fresh draws, with standard errors."
)


def _variance(contents: Contents) -> list[str]:
    if contents.is_exact:
        return []
    return [_section("Variance by block", "variance", _variance_table(contents.variance), _VARIANCE_TEXT)]


def _variance_table(variance: GradientVariance) -> str:
    head = "".join(f'<th scope="col">{column}</th>' for column in ("base", "combined", "quieter"))
    rows = "".join(_block_row(block) for block in (*variance.blocks, variance.total))
    return f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _block_row(block: BlockVariance) -> str:
    ratio = f"{_number(block.ratio.value, '.3g')} <span>± {_number(block.ratio.standard_error, '.1g')}</span>"
    cells = (_number(block.base.value, ".3g"), _number(block.combined.value, ".3g"), ratio)
    return f'<tr><th scope="row">{escape(block.name)}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'


def _summary(contents: Contents) -> str:
    return (
        f"From {contents.summary.num:,} samples, on the scale of the model. {contents.khat.advice} "
        "`result.summary(key)` has every number."
    )


def _facts(facts: Mapping[str, str]) -> str:
    rows = [f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>' for name, value in facts.items()]
    return f'<table class="facts"><tbody>{"".join(rows)}</tbody></table>'


def _picture(picture: Picture) -> str:
    dark = f'<source media="(prefers-color-scheme: dark)" srcset="{picture.dark}">'
    image = f'<img src="{picture.light}" alt="{escape(picture.title)}">'
    return f"<figure><picture>{dark}{image}</picture></figure>"


def _section(title: str, name: str, body: str, caption: str = "") -> str:
    text = f"<p>{_text(caption)}</p>" if caption else ""
    return f'<section id="{name}"><h2>{title}</h2>{text}{body}</section>\n'


def _text(text: str) -> str:
    """Text as it is, with code between backticks."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _estimate(estimate: Estimate) -> str:
    return escape(repr(estimate)).replace("-", "−")


def _number(value: float, form: str) -> str:
    return f"{value:{form}}".replace("-", "−") if math.isfinite(value) else "not finite"


def _times(ratio: float) -> str:
    return _number(ratio, ".2f" if ratio < 10 else ".3g") + (" ×" if math.isfinite(ratio) else "")


def _share(share: float) -> str:
    """For a narrow column; draws and clocks leave some shares a little below zero."""
    if not math.isfinite(share):
        return "not finite"
    return percent(max(share, 0.0)).replace("less than ", "&lt; ")


def _duration(seconds: float) -> str:
    if seconds >= 1.0:
        return f"{seconds:.3g} s"
    return f"{1e3 * seconds:.3g} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.3g} µs"


_STYLE = """
.what{overflow-wrap:anywhere;color:var(--soft)}
.headline{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,155px),1fr));gap:12px}
.headline h2{font-size:.85rem;font-weight:500;color:var(--soft);margin:0;border:0}
.headline b{font-size:1.35rem;overflow-wrap:anywhere}
.headline .card p{margin:0}
.headline .chip{min-width:0;vertical-align:middle}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,350px),1fr));gap:14px;align-items:start}
.figures figure{margin:0;border:1px solid var(--line);border-radius:8px;padding:8px}
code{font-size:.88em;overflow-wrap:anywhere;background:var(--card);padding:1px 4px;border-radius:4px}
th[scope=row]{font-weight:500;white-space:normal;overflow-wrap:anywhere}
th[scope=col]{white-space:normal;vertical-align:bottom}
table{max-width:860px}
th[scope=row]{min-width:4.5em}
td[colspan]{text-align:left;color:var(--soft)}
tbody tr{border-top:1px solid var(--line)}
.facts td{text-align:left;white-space:normal;overflow-wrap:anywhere}
.facts th{width:30%}
@media(max-width:700px){table{font-size:.78rem}th,td{padding:3px 3px}th[scope=row]{min-width:3.6em}}
"""
