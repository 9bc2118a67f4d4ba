# SPDX-License-Identifier: Apache-2.0
"""The report of a fit: measure, draw figures, advise, write the page."""

import importlib.metadata
import platform
import re
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Key

from quell.core.atomic import write_atomically
from quell.core.checks import check_key, check_positive
from quell.core.estimate import mean_of
from quell.core.version import VERSION
from quell.diagnostics import advice, plots
from quell.diagnostics.contribution import Contributions, contributions_from
from quell.diagnostics.covariance import affordable_draws, step_covariances
from quell.diagnostics.densities import score_sample
from quell.diagnostics.elbo import exact_elbo_in_chunks
from quell.diagnostics.khat import Khat, khat_of
from quell.diagnostics.page import report_template
from quell.diagnostics.theme import THEMES, check_matplotlib, data_uri, png_bytes
from quell.diagnostics.variance import GradientVariance, variance_from
from quell.evaluation import has_exact_elbo
from quell.fit.result import FitResult
from quell.gradient import Gradient

_DRAWS, _DRAW_SECONDS = 1000, 1.0
_SAMPLES, _FEWEST_SAMPLES, _LIKELIHOODS = 1000, 100, 20_000_000
_TOO_SHORT = 1.0
_DPI = 150


def write_report(path: Path, fit: FitResult, key: Key[Array, ""], *, seconds: float) -> Path:
    """Write one self-contained HTML page about a fit; `FitResult.report` documents it.

    Cost: a few seconds, and one more compilation of the step per variate, the least useful ones first. Large models get
    fewer draws.
    """
    check_key(key)
    check_positive("seconds", seconds)
    check_matplotlib()
    template = report_template()
    if not path.parent.is_dir():
        raise FileNotFoundError(f"`path` must be in an existing folder, got {path}; try `mkdir -p {path.parent}`.")
    html = template.render(_contents(fit, key, seconds=seconds))
    write_atomically(path, lambda file: file.write(html.encode()))
    return path


def _contents(fit: FitResult, key: Key[Array, ""], *, seconds: float) -> dict[str, Any]:
    """Everything that the template shows, by name."""
    began = time.perf_counter()
    gradient, problem = fit.gradient, fit.problem
    draw_key, time_key, sample_key = jax.random.split(key, 3)
    at = (gradient, fit.params, fit.state)
    num = affordable_draws(draw_key, *at, seconds=_DRAW_SECONDS, most=_DRAWS)
    covariances = step_covariances(draw_key, *at, num=num)
    variance = variance_from(covariances, *at, num=num)
    num_samples = int(np.clip(_LIKELIHOODS // problem.model.num_data, _FEWEST_SAMPLES, _SAMPLES))
    sample = score_sample(sample_key, problem, fit.params, num_samples)
    khat = khat_of(sample, problem.family)
    budget = seconds - (time.perf_counter() - began)
    found = contributions_from(time_key, covariances, *at, budget=budget if budget > _TOO_SHORT else 0.0)
    has_exact = has_exact_elbo(problem)
    return {
        "model": repr(problem.model),
        "family": repr(problem.family),
        "status": fit.status.name.lower(),
        "steps": f"{fit.history.num_steps:,} steps in {fit.seconds}",
        "elbo": exact_elbo_in_chunks(problem, fit.params) if has_exact else mean_of(sample.log_ratios),
        "khat": khat,
        "variance": variance,
        "contributions": found,
        "advice": advice_on(fit, khat, variance, found),
        "figures": _figures(fit, variance, found),
        "summary": fit.summary(sample_key, num_samples),
        "settings": _settings(gradient),
        "choice_reason": None if fit.choice is None else fit.choice.reason,
        "is_exact": _is_exact(fit),
    }


def advice_on(fit: FitResult, khat: Khat, variance: GradientVariance, found: Contributions) -> list[advice.Advice]:
    """All advice on a fit, the most urgent first."""
    history, gradient = fit.history, fit.gradient
    reason = None if fit.choice is None else fit.choice.reason
    every = [
        *advice.advise_end(fit.status),
        *(advice.Advice(advice.Level.ACT, text) for text in fit.warnings),
        *([] if _is_exact(fit) else advice.advise_trend(history.taken.elbo)),
        *advice.advise_khat(khat),
        *advice.advise_variance(variance.total.ratio, len(gradient.variates), gradient.rule, reason=reason),
        *advice.advise_variates(found),
        *advice.advise_weights(found.combined, found.best),
        *advice.advise_skipped(history.num_skipped, history.num_steps),
        *advice.advise_dropped(gradient.names, history.dropped.sum(axis=0).tolist(), history.num_steps),
    ]
    return sorted(every, key=lambda one: list(advice.Level).index(one.level))


def _is_exact(fit: FitResult) -> bool:
    return fit.choice is not None and fit.choice.exact


def _figures(fit: FitResult, variance: GradientVariance, found: Contributions) -> dict[str, dict[str, str]]:
    """The figures in both themes, as data URIs, by a title for readers who cannot see them."""
    history, names = fit.history, fit.gradient.weight_names
    figures: dict[str, Callable[..., Any]] = {
        "The ELBO over the steps": partial(plots.plot_elbo, history),
        "Squared norm of the gradient over the steps": partial(plots.plot_norms, history),
    }
    if names:
        ranked = [v.name for v in sorted(found.variates, key=lambda v: -np.nan_to_num(v.growth.value))]
        shown = [name for one in ranked for name in names if name == one or name.startswith(f"{one}[")]
        figures |= {
            "Weights of the variates over the steps": partial(plots.plot_weights, history, names, shown=shown),
            "Contribution and cost of each variate": partial(plots.plot_contributions, found),
        }
    if not _is_exact(fit):
        figures["Variance of the gradient by block"] = partial(plots.plot_variance, variance)
    return {
        title: {theme: data_uri(png_bytes(draw(theme=theme), dpi=_DPI)) for theme in THEMES}
        for title, draw in figures.items()
    }


def _settings(gradient: Gradient) -> dict[str, str]:
    packages = [f"{name} {importlib.metadata.version(name)}" for name in ("jax", "equinox", "optax", "numpy")]
    return {
        "data": f"{gradient.problem.model.num_data:,}",
        "latent coordinates": f"{gradient.problem.family.dim:,}",
        "variational parameters": f"{gradient.problem.family.num_params:,}",
        "variates": f"{len(gradient.variates)}",
        "sampler": _one_line(gradient.sampler),
        "rule": _one_line(gradient.rule),
        "base gradient": _one_line(gradient.base),
        "versions": ", ".join([f"quell {VERSION}", *packages, f"Python {platform.python_version()}"]),
        "device": jax.devices()[0].device_kind,
    }


def _one_line(noun: object) -> str:
    return re.sub(r"(?<=\()\s+|\s+(?=\))", "", " ".join(repr(noun).split()))
