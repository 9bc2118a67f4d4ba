# SPDX-License-Identifier: Apache-2.0
"""`python -m experiments.bench.tables`: the tables of README and documentation, out of the results that are committed.

A table stands between `<!-- table NAME -->` and `<!-- end -->`.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.bench.large.compare import by_model
from experiments.bench.large.methods import REFERENCE
from experiments.bench.large.models import MILLION_ROWS
from experiments.bench.page import LARGE, POSTERIORDB
from experiments.bench.posteriordb.accuracy import MEAN_ERRORS
from experiments.bench.posteriordb.page import rows_of
from experiments.bench.proof import RESULTS

ROOT = Path(__file__).parents[2]
FILES = ("README.md", "docs/benchmark.md")

LABELS = {
    "quell": "quell, full-rank, the default",
    "quell-plain": "quell, full-rank, draws of the Gaussian itself",
    "quell-mf": "quell, mean-field",
    "quell-mf-response": "quell, mean-field, linear response",
    "quell-flow": "quell, flow",
    "nuts": "NumPyro's NUTS, 1,000 draws after 1,000 steps of warm-up",
    "nutpie": "nutpie's NUTS, one chain at its defaults",
    "gsm": "Gaussian score matching, in double precision, from the mode",
    "batch-and-match": "Batch and match, the same",
    "dadvi": "pymc-extras' deterministic ADVI, at its defaults",
    "numpyro-svi-best": "NumPyro's SVI, full-rank, best of four settings",
    "numpyro-svi": "NumPyro's SVI, full-rank, 5,000 steps of Adam",
    "blackjax-vi": "BlackJAX's VI, full-rank, 5,000 steps of Adam",
    "pathfinder": "BlackJAX's Pathfinder",
    "pymc-advi": "PyMC's ADVI, at its defaults",
    "pymc-advi-full": "PyMC's full-rank ADVI, at its defaults",
}
MODELS = {
    "bradley-terry": "Bradley–Terry: skills of 5,013 players, 164,936 matches",
    "crossed": "crossed effects, logistic, 100,000 rows",
    "occupancy": "occupancy: 400 species at 60 sites",
    "polls": "polls: random walks of 50 states over 250 days",
    "households": "profits of households, tails at seven sites, 35,000 rows",
    "horseshoe": "regularised horseshoe on 2,000 features, 400 rows",
    "noise-scale": "linear regression with unknown noise, a million rows",
    "robust": "Student-t with unknown scale and freedom, a million rows",
}


def filled(text: str, tables: dict[str, str]) -> str:
    """The text with its tables."""
    pattern = re.compile(r"(<!-- table (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
    return pattern.sub(lambda found: f"{found[1]}\n{tables[found[2]]}\n{found[3]}", text)


def tables(results: Path = RESULTS) -> dict[str, str]:
    """By name."""
    posteriors, large = (json.loads((results / name).read_text()) for name in (POSTERIORDB, LARGE))
    rows = rows_of(posteriors["records"])
    found = {"posteriordb": _posteriors(rows, is_short=False), "headline": _posteriors(rows, is_short=True)}
    for run in dict.fromkeys(record.get("run", "") for record in large["records"]):
        models = by_model({"records": [record for record in large["records"] if record.get("run", "") == run]})
        found[f"large-{run}"] = _large([model for model in models if model["name"] not in MILLION_ROWS])
        found[f"million-{run}"] = _large([model for model in models if model["name"] in MILLION_ROWS])
        found[f"errors-{run}"] = _errors(models)
    return found


def _posteriors(rows: Sequence[dict[str, Any]], *, is_short: bool) -> str:
    heads = [
        "",
        "run",
        "cold s, median",
        "of NUTS",
        "warm s",
        *(f"all means within {most:g} sd" for most in MEAN_ERRORS),
    ]
    more = [] if is_short else ["largest cold s", "sds within 20%", "gradients, median"]
    lines = [heads + more]
    for row in rows:
        cells = [
            _label(LABELS, row["method"]),
            row["run"] or "",
            _number(row["median_seconds"]),
            _number(row["of_nuts"]),
        ]
        cells += [_number(row["median_warm"])]
        cells += [f"{row[f'mean_error_below_{most:g}']} of {row['posteriors']}" for most in MEAN_ERRORS]
        full = [_number(row["largest_seconds"]), str(row["sds_within_20_percent"]), _number(row["median_gradients"])]
        lines.append(cells + ([] if is_short else full))
    return _table(lines)


def _large(models: Sequence[dict[str, Any]]) -> str:
    """Our seconds, ELBO, memory and word; peers at the best of their settings; who is near the best how soon."""
    methods = list(dict.fromkeys(row["method"] for model in models for row in model["rows"]))
    peers = [method for method in methods if method != REFERENCE]
    lines = [["model", "latents", *peers, "seconds of ours to near the best, of the soonest peer's"]]
    for model in models:
        rows = {row["method"]: row for row in model["rows"]}
        line = [_label(MODELS, model["name"]), f"{model['dim']:,}"]
        line += [_cell(rows[method]) if method in rows else "" for method in peers]
        lines.append([*line, _share(rows)])
    return _table(lines)


def _cell(row: dict[str, Any]) -> str:
    if row["elbo"] is None:
        return row["status"]
    near = "never near" if row["near"] is None else f"near after {_number(row['near'])}"
    memory = f"; {row['peak_mb']:,} MB" if row["peak_mb"] else ""
    said = f", `{row['status']}`" if row["method"].startswith("quell") else f", {near}"
    return f"{_number(row['seconds'])} s; {_minus(row['elbo'])}{said}{memory}"


def _share(rows: dict[str, dict[str, Any]]) -> str:
    ours = [row["near"] for name, row in rows.items() if name.startswith("quell") and row["near"] is not None]
    peers = [row for name, row in rows.items() if not name.startswith("quell") and name != REFERENCE]
    near = [row["near"] for row in peers if row["near"] is not None]
    if not ours or not peers:
        return "–"
    if near:
        return _number(min(ours) / min(near))
    longest = max(row["seconds"] for row in peers if row["seconds"] is not None)
    return f"below {_number(min(ours) / longest)}"


def _errors(models: Sequence[dict[str, Any]]) -> str:
    lines: list[list[str]] = [
        ["model", "method", "means, rms", "largest", "sds, median", "of some sds", "by linear response"]
    ]
    for model in models:
        for row in model["rows"]:
            found = row["errors"]
            if found and row["method"].startswith("quell"):
                shares = [found.get(name) for name in ("sd_median", "sd_of_some", "response")]
                texts = ["–" if share is None else f"{100 * share:.1f}%" for share in shares]
                means = [f"{found['mean_rms']:.3f}", f"{found['mean_largest']:.2f}"]
                lines.append([_label(MODELS, model["name"]), row["method"], *means, *texts])
    return _table(lines)


def _label(labels: dict[str, str], name: str) -> str:
    """Its own name where it has no other."""
    return labels.get(name, name)


def _table(lines: Sequence[Sequence[str]]) -> str:
    rows = [f"| {' | '.join(line)} |\n" for line in lines]
    return "".join([rows[0], f"|{'---|' * len(lines[0])}\n", *rows[1:]])


def _number(value: float | None) -> str:
    """Two digits, or whole numbers."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 20 else f"{value:.1f}" if value >= 2 else f"{value:.2f}"


def _minus(value: float) -> str:
    return f"{value:,.2f}".replace("-", "−")


if __name__ == "__main__":
    made = tables()
    for name in FILES:
        path = ROOT / name
        path.write_text(filled(path.read_text(), made))
