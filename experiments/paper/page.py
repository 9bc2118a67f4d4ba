# SPDX-License-Identifier: Apache-2.0
"""The whole reproduction on one page that needs nothing beside itself."""

import dataclasses
from collections.abc import Sequence
from html import escape
from pathlib import Path

from experiments.paper.figure1 import Figure1
from experiments.paper.figure4 import Panel
from experiments.paper.plots import picture_files
from experiments.paper.sweep import Sweep
from experiments.paper.table1 import Cell
from experiments.paper.verdicts import FAILS, HOLDS, PAPER_DATASETS, UNDECIDED, Verdict
from quell.core.atomic import write_atomically
from quell.diagnostics.theme import STYLE, data_uri

PAPER = "Geffner and Domke, “Using Large Ensembles of Control Variates for Variational Inference”, 2018"
_CLASSES = {HOLDS: "holds", FAILS: "fails", UNDECIDED: "open"}


@dataclasses.dataclass(frozen=True)
class Contents:
    """What the page shows; the pictures lie beside it.

    Attributes:
        cells: of Table 1.
        sweeps: of figures 2 and 3.
        figure1: squared norms along one sequence of weights.
        panels: of figure 4.
        verdicts: of all claims.
        seed: of all draws.
        work: seconds of all pieces together.
        quick: whether this is a small version.
    """

    cells: Sequence[Cell]
    sweeps: Sequence[Sweep]
    figure1: Figure1
    panels: Sequence[Panel]
    verdicts: Sequence[Verdict]
    seed: int
    work: float
    quick: bool


def write_page(path: Path, contents: Contents) -> None:
    """Write the page; the five pictures are read from its folder and become part of it."""
    write_atomically(path, lambda file: file.write(_page(contents, path.parent).encode()))


def _page(contents: Contents, folder: Path) -> str:
    sections = [
        _section("Verdicts", "verdicts", _verdict_table(contents.verdicts)),
        _section("Table 1", "table1", _table1(contents, folder)),
        *_figures(contents, folder),
    ]
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>The paper, reproduced by quell</title>
<style>{STYLE}{_STYLE}</style>
</head>
<body>
<main>
<header>
<h1>The paper, reproduced</h1>
<p>{escape(PAPER)}. Every number and picture on this page was computed by quell; beside the numbers of Table 1
stand the paper's own.{_summary(contents)}</p>
{_notes(contents)}
</header>
{"".join(sections)}
<footer><p>Seed {contents.seed}; {contents.work / 60:.1f} minutes of work on one core. The numbers behind each picture
are in the JSON file of the same name, in the folder that this page was written to.</p></footer>
</main>
</body>
</html>
"""


def _summary(contents: Contents) -> str:
    """How the claims fared; a small version has nothing to say about them."""
    if contents.quick:
        return ""
    held, failed, still_open = (sum(v.outcome == outcome for v in contents.verdicts) for outcome in _CLASSES)
    return (
        f" Of {len(contents.verdicts)} claims, <b>{held}</b> hold, <b>{failed}</b> do not, and <b>{still_open}</b> are "
        "undecided."
    )


def _notes(contents: Contents) -> str:
    """What a reader must know before anything else."""
    notes = ["This is the small version (<code>--quick</code>): too few runs to judge by."] if contents.quick else []
    absent = [name for name in PAPER_DATASETS if name not in {cell.dataset for cell in contents.cells}]
    notes += [f"Not part of this run: {', '.join(absent)}."] if absent else []
    return "".join(f"<p class='note'>{note}</p>" for note in notes)


def _figures(contents: Contents, folder: Path) -> list[str]:
    sweep = contents.sweeps[0]
    num_runs, num_rates = sweep.curves.shape[1], sweep.rates.size
    return [
        _section(
            "Figure 1",
            "figure1",
            _picture(folder, "figure1", "Squared norm and variance of the gradient against the iteration"),
            f"Along one and the same sequence of weights on {contents.figure1.dataset}, the gradient of every ensemble "
            f"is measured with {contents.figure1.evaluations:,} fresh evaluations at each point. The paper's message: "
            "the more variates, the lower the curve.",
        ),
        _section(
            "Figure 2",
            "figure2",
            _picture(folder, "figure2", "ELBO against iteration at two learning rates and at the best one"),
            f"Median of {num_runs} runs. The right column takes, for each iteration, the best of {num_rates} learning "
            "rates. The y-axis leaves out the first steps and what is far below the optimum. The paper's message: "
            "larger ensembles dominate, at a given rate and at the best one.",
        ),
        _section(
            "Figure 3",
            "figure3",
            _picture(folder, "figure3", "Final ELBO against learning rate"),
            f"{num_rates} learning rates, median of {num_runs} runs; lines leave the picture where they are very low. "
            "The paper's message: the gain is largest at large rates, and the best rate grows with the ensemble.",
        ),
        _section(
            "Figure 4",
            "figure4",
            _picture(folder, "figure4", "Expected squared norm against the strength of the prior"),
            f"Weights from M evaluations, used on fresh ones; averages of {contents.panels[0].sq_norm.shape[2]} "
            "repetitions. The paper's message: with few evaluations, or moments that are ten iterations old, a larger "
            "v0 is better; v0 = 0.001 serves all of its experiments.",
        ),
    ]


def _section(title: str, name: str, body: str, caption: str = "") -> str:
    text = f"<p>{escape(caption)}</p>" if caption else ""
    return f'<section id="{name}"><h2>{title}</h2>{text}{body}</section>\n'


def _verdict_table(verdicts: Sequence[Verdict]) -> str:
    items = [
        f'<li><span class="chip {_CLASSES[v.outcome]}">{v.outcome}</span> <b>{v.source}.</b> {escape(v.claim)}'
        f"<small>{escape(v.evidence)}</small></li>"
        for v in verdicts
    ]
    text = (
        "<p>Each claim is a set of comparisons between runs that saw the same draws (in figure 1 between blocks of "
        "evaluations, in figure 4 between repetitions): the trimmed mean of the differences with its standard error. A "
        "claim is decided at the 1% level: it holds if each comparison does, and does not hold if one of them, with "
        "the level divided by their number, speaks against it. Fewer than five runs decide nothing.</p>"
    )
    return f'{text}<ul class="verdicts">{"".join(items)}</ul>'


def _table1(contents: Contents, folder: Path) -> str:
    names = dict.fromkeys(cell.dataset for cell in contents.cells)
    cards = [_card([cell for cell in contents.cells if cell.dataset == name]) for name in names]
    cell = contents.cells[0]
    text = (
        f"<p>ELBO in nats after {cell.steps} iterations, mean ± standard error of {cell.curves.shape[0]} runs, and the "
        "paper's figure. The bar is the distance to the optimum of the family, the tick the paper's. The paper's "
        "ionosphere row is of an unknown random half of the rows; ours is another half, so compare its shape.</p>"
    )
    picture = _picture(folder, "table1", "Median ELBO against iteration for every ensemble and data set")
    return f'{text}<div class="cards">{"".join(cards)}</div>{picture}'


def _card(cells: Sequence[Cell]) -> str:
    first = cells[0]
    gaps = [first.optimum - value for cell in cells for value in (cell.mean, cell.paper) if value is not None]
    widest = max([gap for gap in gaps if gap == gap], default=1.0)
    rows = []
    for cell in cells:
        width = 100 * min(1.0, max(0.0, (first.optimum - cell.mean) / widest)) if cell.final.size else 100
        error = f" <span>± {cell.stderr:.1f}</span>" if cell.final.size > 1 else ""
        lost = cell.curves.shape[0] - cell.final.size
        ours = f"{_number(cell.mean)}{error}" if cell.final.size else "not finite"
        ours += f" <span>({lost} not finite)</span>" if lost and cell.final.size else ""
        paper, tick = "", ""
        if cell.paper is not None:
            paper = _number(cell.paper)
            at = 100 * min(1.0, max(0.0, (first.optimum - cell.paper) / widest))
            tick = f'<i style="left:{at:.1f}%"></i>'
        name = "−" if cell.variates == "none" else cell.variates
        bar = f'<div class="bar"><b style="width:{width:.1f}%"></b>{tick}</div>'
        rows.append(f'<tr><th scope="row">{name}</th><td>{ours}</td><td>{paper}</td><td class="wide">{bar}</td></tr>')
    return (
        f'<div class="card"><h3>{escape(first.dataset)}</h3><p>learning rate {first.learning_rate:g}, '
        f"{first.num_data} rows, optimum {_number(first.optimum)}</p><table><thead><tr><th></th><th>quell</th>"
        f'<th>paper</th><th class="wide"></th></tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
    )


def _number(value: float) -> str:
    return f"{value:.1f}".replace("-", "−")


def _picture(folder: Path, name: str, description: str) -> str:
    uris = {variant: data_uri(path.read_bytes()) for variant, path in picture_files(folder / f"{name}.png").items()}
    conditions = {
        ("tall", "dark"): "(max-width: 700px) and (prefers-color-scheme: dark)",
        ("tall", "light"): "(max-width: 700px)",
        ("wide", "dark"): "(prefers-color-scheme: dark)",
    }
    sources = [f'<source media="{media}" srcset="{uris[variant]}">' for variant, media in conditions.items()]
    image = f'<img src="{uris["wide", "light"]}" alt="{escape(description)}">'
    return f"<figure><picture>{''.join(sources)}{image}</picture></figure>"


_STYLE = """
.note{border-left:4px solid var(--open);padding-left:10px}
.wide{width:40%}
.bar{position:relative;height:10px;background:var(--line);border-radius:3px;min-width:60px}
.bar b{position:absolute;left:0;top:0;bottom:0;background:var(--bar);border-radius:3px}
.bar i{position:absolute;top:-3px;bottom:-3px;width:2px;background:var(--tick)}
"""
