# SPDX-License-Identifier: Apache-2.0
"""Gamma and Poisson: every way to differentiate a gamma distribution, and a fit that finds a known posterior.

Counts of two kinds, each Poisson with a rate of its own and a gamma prior. The posterior is a pair of independent
gammas, so the family `quell.Gamma` contains it. At fixed parameters, at the start of a fit and at the posterior, the
score function, the generalized and the implicit reparameterization are compared, and two of them with variates. At the
posterior the implicit one with variates has no noise left: what remains of log p(x, z) − log q(z) is a constant.

    python examples/gamma_poisson.py --out DIR
"""

from pathlib import Path
from typing import Annotated, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import typer
from jax.flatten_util import ravel_pytree
from jax.scipy.special import gammaln
from jax.scipy.stats import gamma
from matplotlib.figure import Figure
from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table

import quell
from quell import literature

PRIOR_SHAPE, PRIOR_RATE = 2.0, 1.0
COUNTS = jnp.array([[3, 0], [1, 1], [4, 0], [2, 0], [2, 1], [5, 0]], float)
FAMILY = quell.Gamma(2)
REPLICATES = 10
PLACES = ("at the start", "at the posterior")
COLORS = ("#0072B2", "#E69F00")


class Row(NamedTuple):
    """One estimator, and the variance of its gradient at each place."""

    estimator: str
    variances: tuple[float, ...]


def make_model() -> quell.Model:
    """Counts with a rate for each column; the latent is the pair of rates itself, since the family is positive."""

    def log_likelihood(rates: jax.Array, counts: jax.Array) -> jax.Array:
        return jnp.sum(counts * jnp.log(rates) - rates - gammaln(counts + 1.0), axis=-1)

    def log_prior(rates: jax.Array) -> jax.Array:
        return jnp.sum(gamma.logpdf(rates, PRIOR_SHAPE, scale=1.0 / PRIOR_RATE))

    return quell.Model(log_likelihood, log_prior, COUNTS, latent=2)


def exact_posterior() -> quell.GammaParams:
    """Prior shape plus the sum of the counts, prior rate plus their number."""
    return quell.GammaParams(
        jnp.log(PRIOR_SHAPE + COUNTS.sum(axis=0)), jnp.full(2, jnp.log(PRIOR_RATE + COUNTS.shape[0]))
    )


@eqx.filter_jit
def run(gradient: quell.Gradient, places: quell.GammaParams, keys: jax.Array) -> jax.Array:
    """The gradient of each step at the fixed parameters of each place, while the weights of the variates converge."""

    def run_at(params: quell.GammaParams) -> jax.Array:
        def step(state: quell.GradientState, key: jax.Array) -> tuple[quell.GradientState, jax.Array]:
            loss_grad, state, _ = gradient.update(key, params, state)
            return state, ravel_pytree(loss_grad)[0]

        return jax.lax.scan(step, gradient.init(params), keys)[1]

    return jax.vmap(run_at)(places)


def make_gradients(problem: quell.Problem) -> dict[str, quell.Gradient]:
    """Base gradients alone, and with variates that suit them."""
    score, generalized, implicit = (
        quell.BaseGradient.of(kind)
        for kind in (quell.ScoreFunction, quell.GeneralizedReparameterization, quell.Reparameterization)
    )
    recipes = {
        "score function": (score, ()),
        "score function, baselines": (score, (literature.ranganath(), literature.leave_one_out())),
        "generalized": (generalized, ()),
        "implicit": (implicit, ()),
        "implicit, default variates": (implicit, quell.default_variates(problem)),
    }
    sampler = quell.Sampler(num_replicates=REPLICATES)
    return {
        name: quell.Gradient(problem, variates, base=base, sampler=sampler)
        for name, (base, variates) in recipes.items()
    }


def compare(gradients: dict[str, quell.Gradient], steps: int) -> list[Row]:
    """Trace of the covariance of each gradient at each place, over the second half of the steps."""
    keys, rows = jax.random.split(jax.random.key(0), steps), []
    places = jax.tree.map(lambda *leaves: jnp.stack(leaves), FAMILY.init(), exact_posterior())
    for name, gradient in gradients.items():
        grads = np.asarray(run(gradient, places, keys)[:, steps // 2 :], dtype=float)
        rows.append(Row(name, tuple(grads.var(axis=1, ddof=1).sum(axis=-1).tolist())))
    return rows


def fit_posterior(model: quell.Model, steps: int) -> quell.GammaParams:
    """Fit with everything at its default but the number of replicates."""
    sampler = quell.Sampler(num_replicates=REPLICATES)
    return quell.fit(model, FAMILY, sampler=sampler, steps=steps, key=jax.random.key(1)).params


def show(rows: list[Row], fitted: quell.GammaParams) -> None:
    """Print the variances, and the fitted parameters beside the exact ones."""
    table = Table("estimator", box=MARKDOWN)
    for place in PLACES:
        table.add_column(f"variance {place}", justify="right")
    for row in rows:
        table.add_row(row.estimator, *(f"{value:.2g}" for value in row.variances))
    posterior = Table("posterior of", box=MARKDOWN)
    for column in ("exact shape", "fitted shape", "exact rate", "fitted rate"):
        posterior.add_column(column, justify="right")
    exact = exact_posterior()
    for k, name in enumerate(("first rate", "second rate")):
        pairs = (exact.log_shape, fitted.log_shape, exact.log_rate, fitted.log_rate)
        posterior.add_row(name, *(f"{float(jnp.exp(logs[k])):.3f}" for logs in pairs))
    Console(width=120).print(table, posterior)


def draw(rows: list[Row], fitted: quell.GammaParams, path: Path) -> None:
    """Bars of the variance, on a logarithmic axis, and the densities of the fit on those of the posterior."""
    figure = Figure(figsize=(10.0, 4.2), layout="constrained")
    bars, densities = figure.subplots(1, 2, width_ratios=(1.3, 1.0))
    for k, place in enumerate(PLACES):
        values = [row.variances[k] for row in rows]
        bars.barh(np.arange(len(rows)) + 0.4 * k - 0.2, values, height=0.38, color=COLORS[k], label=place)
    lowest = min(min(row.variances) for row in rows)
    bars.set(xscale="log", xlim=(lowest / 2, None))
    bars.set_xlabel(f"variance of the gradient, {REPLICATES} replicates per step")
    bars.set_yticks(range(len(rows)), [row.estimator.replace(", ", ",\n") for row in rows])
    bars.invert_yaxis()
    bars.grid(axis="x", alpha=0.3)
    bars.set_axisbelow(True)
    bars.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)

    grid = jnp.linspace(0.01, 5.0, 400)[:, None]
    for params, style in ((exact_posterior(), {"linewidth": 5, "alpha": 0.35}), (fitted, {"linestyle": "--"})):
        density = gamma.pdf(grid, jnp.exp(params.log_shape), scale=jnp.exp(-params.log_rate))
        for k, name in enumerate(("first rate", "second rate")):
            label = f"{name}, {'fit' if params is fitted else 'exact'}"
            densities.plot(grid[:, 0], density[:, k], color=("#009E73", "#D55E00")[k], label=label, **style)
    densities.set(xlabel="rate", ylabel="posterior density", ylim=(0.0, None))
    densities.grid(alpha=0.3)
    densities.legend(frameon=False)
    for axes in (bars, densities):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def main(
    out: Annotated[Path, typer.Option(help="Folder for the figure.")] = Path("examples-output"),
    steps: Annotated[
        int, typer.Option(help="Steps per estimator, the first half as warm-up, and of the fit.", min=4)
    ] = 2000,
) -> None:
    """Compare the gradients, fit, print the tables, draw the figure."""
    out.mkdir(parents=True, exist_ok=True)
    model = make_model()
    rows = compare(make_gradients(quell.Problem(model, FAMILY)), steps)
    fitted = fit_posterior(model, steps)
    show(rows, fitted)
    draw(rows, fitted, out / "gamma_poisson.png")


if __name__ == "__main__":
    typer.run(main)
