# SPDX-License-Identifier: Apache-2.0
"""The report of a fit: measure, draw, advise, write."""

import dataclasses
import importlib.metadata
import platform
import re
import time
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np
from jaxtyping import Array, Key, PyTree

from quell.core.atomic import write_atomically
from quell.core.checks import check_key, check_positive
from quell.core.version import VERSION
from quell.diagnostics import advice, plots
from quell.diagnostics.contribution import Contributions, contributions_from
from quell.diagnostics.covariance import LEAST_DRAWS, affordable_draws, step_covariances
from quell.diagnostics.densities import score_sample
from quell.diagnostics.elbo import elbo_of, exact_elbo_in_chunks
from quell.diagnostics.khat import Khat, khat_of
from quell.diagnostics.looks import check_matplotlib, data_uri, png_bytes
from quell.diagnostics.noise import GradientVariance, variance_from
from quell.diagnostics.page import page
from quell.diagnostics.page_contents import Chosen, Contents, Picture
from quell.diagnostics.subset import keep_variates, used_variates
from quell.diagnostics.summary import summarise
from quell.evaluation import has_exact_elbo
from quell.fit.history import History
from quell.fit.status import Status
from quell.gradient import Gradient, GradientState

_DRAWS, _DRAW_SECONDS = 1000, 1.0
_SAMPLES, _FEWEST_SAMPLES, _LIKELIHOODS = 1000, 100, 20_000_000
_TOO_SHORT = 1.0
_DPI = 150


@runtime_checkable
class FinishedFit(Protocol):
    """What a report is about: the fields of a `FitResult`."""

    @property
    def params(self) -> PyTree:
        """Of the family."""
        ...

    @property
    def gradient(self) -> Gradient:
        """Problem, variates and settings."""
        ...

    @property
    def state(self) -> GradientState:
        """Of the gradient."""
        ...

    @property
    def history(self) -> History:
        """One entry a step."""
        ...

    @property
    def status(self) -> Status:
        """How the fit ended."""
        ...

    @property
    def seconds(self) -> float:
        """Wall-clock time."""
        ...

    @property
    def choice(self) -> Chosen | None:
        """What was chosen automatically."""
        ...


def write_report(path: Path, fit: FinishedFit, key: Key[Array, ""], *, seconds: float) -> Path:
    """Write one self-contained HTML page about a fit.

    Args:
        path: of the page.
        fit: that has ended, in whatever way.
        key: for the draws behind the numbers.
        seconds: after which no more costs of variates are measured, the least useful ones coming first.

    Returns:
        The path.

    Cost: a few seconds, and one more compilation of the step for each variate. Large models get fewer draws.
    """
    check_key(key)
    check_positive("seconds", seconds)
    check_matplotlib()
    if not path.parent.is_dir():
        raise FileNotFoundError(
            f"The report was to be written to {path}. The folder {path.parent} was needed, and is not there. "
            f"Type `mkdir -p {path.parent}` first."
        )
    html = page(gather(fit, key, seconds=seconds))
    write_atomically(path, lambda file: file.write(html.encode()))
    return path


def gather(fit: FinishedFit, key: Key[Array, ""], *, seconds: float) -> Contents:
    """Everything that the page shows."""
    began = time.perf_counter()
    used = used_variates(fit.gradient)
    gradient, state = keep_variates(fit.gradient, fit.state, used)
    gradient, problem = dataclasses.replace(gradient, active=None), gradient.problem
    draw_key, time_key, sample_key = jax.random.split(key, 3)
    at = (gradient, fit.params, state)
    num = max(LEAST_DRAWS, affordable_draws(draw_key, *at, seconds=_DRAW_SECONDS, most=_DRAWS))
    covariances = step_covariances(draw_key, *at, num=num)
    variance = variance_from(covariances, *at, num=num)
    num_samples = int(np.clip(_LIKELIHOODS // problem.model.num_data, _FEWEST_SAMPLES, _SAMPLES))
    sample = score_sample(sample_key, problem, fit.params, num_samples)
    khat = khat_of(sample, problem.family)
    elbo = exact_elbo_in_chunks(problem, fit.params) if has_exact_elbo(problem) else elbo_of(sample)
    budget = seconds - (time.perf_counter() - began)
    found = contributions_from(time_key, covariances, *at, budget=budget if budget > _TOO_SHORT else 0.0)
    return Contents(
        model=repr(problem.model),
        family=repr(problem.family),
        status=fit.status.name.lower(),
        steps=f"{fit.history.num_steps:,} steps in {fit.seconds:.1f} s",
        elbo=elbo,
        khat=khat,
        variance=variance,
        contributions=found,
        advice=advice_on(fit, khat, variance, found),
        pictures=_pictures(
            _history_of(fit, gradient.weight_names), gradient.weight_names, variance, found, is_exact=is_exact(fit)
        ),
        summary=summarise(jax.vmap(problem.model.constrain)(sample.latents)),
        settings=_settings(gradient),
        choice=fit.choice,
    )


def is_exact(fit: FinishedFit) -> bool:
    """Whether the gradient has no noise."""
    return fit.choice is not None and fit.choice.exact


def _history_of(fit: FinishedFit, weight_names: tuple[str, ...]) -> History:
    """With the weights of some variates only."""
    columns = [fit.gradient.weight_names.index(name) for name in weight_names]
    return fit.history._replace(weights=fit.history.weights[:, columns])


def advice_on(fit: FinishedFit, khat: Khat, variance: GradientVariance, found: Contributions) -> list[advice.Advice]:
    """All advice on a fit, the most urgent first."""
    history, names, choice = fit.history, fit.gradient.names, fit.choice
    dropped = history.dropped.sum(axis=0).tolist()
    num_used = len(used_variates(fit.gradient))
    return advice.most_urgent_first(
        [
            *advice.advise_end(fit.status),
            *advice.advise_trend(history.taken.elbo, is_exact=is_exact(fit)),
            *advice.advise_khat(khat),
            *advice.advise_noise(
                variance.total.ratio, num_used, fit.gradient.rule, reason=choice.reason if choice else None
            ),
            *advice.advise_variates(found),
            *advice.advise_weights(found.combined, found.best),
            *advice.advise_skipped(history.num_skipped, history.num_steps),
            *advice.advise_dropped(names, dropped, history.num_steps),
        ]
    )


def _pictures(
    history: History, names: tuple[str, ...], variance: GradientVariance, found: Contributions, *, is_exact: bool
) -> list[Picture]:
    ranked = [v.name for v in sorted(found.variates, key=lambda v: -np.nan_to_num(v.growth.value))]
    shown = [name for one in ranked for name in names if name == one or name.startswith(f"{one}[")]
    figures: dict[str, Any] = {
        "The ELBO over the steps": lambda ground: plots.plot_elbo(history, ground=ground),
        "Squared norm of the gradient over the steps": lambda ground: plots.plot_norms(history, ground=ground),
    }
    if names:
        figures |= {
            "Weights of the variates over the steps": lambda ground: plots.plot_weights(
                history, names, shown=shown, ground=ground
            ),
            "What each variate is good for and what it costs": lambda ground: plots.plot_contributions(
                found, ground=ground
            ),
        }
    if not is_exact:
        figures["Variance of the gradient by block"] = lambda ground: plots.plot_variance(variance, ground=ground)
    return [Picture(title, _drawn(draw("light")), _drawn(draw("dark"))) for title, draw in figures.items()]


def _drawn(figure: Any) -> str:
    return data_uri(png_bytes(figure, dpi=_DPI))


def _settings(gradient: Gradient) -> dict[str, str]:
    return {
        "data": f"{gradient.problem.model.num_data:,}",
        "latent coordinates": f"{gradient.problem.family.dim:,}",
        "variational parameters": f"{gradient.problem.family.num_params:,}",
        "variates": f"{len(gradient.variates)}",
        "sampler": _one_line(gradient.sampler),
        "rule": _one_line(gradient.rule),
        "base gradient": _one_line(gradient.base),
        "versions": _versions(),
        "device": jax.devices()[0].device_kind,
    }


def _one_line(noun: object) -> str:
    return re.sub(r"(?<=\()\s+|\s+(?=\))", "", " ".join(repr(noun).split()))


def _versions() -> str:
    packages = ("jax", "equinox", "optax", "numpy")
    listed = [f"{name} {importlib.metadata.version(name)}" for name in packages]
    return ", ".join([f"quell {VERSION}", *listed, f"Python {platform.python_version()}"])
