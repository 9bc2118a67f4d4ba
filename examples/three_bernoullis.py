# SPDX-License-Identifier: Apache-2.0
"""Three Bernoullis: how far the control variates of the literature lower the variance of the score function.

The toy of the papers on REBAR and RELAX: f(z) = Σ (z − p)² with p = (0.6, 0.51, 0.48) and z from three independent
Bernoullis. The parameters stay where they are; only the weights of the variates and the network learn. Once they have
converged, the gradients of many steps give a variance, and a mean to compare with the gradient by enumeration.

    python examples/three_bernoullis.py --out DIR
"""

from pathlib import Path
from typing import Annotated, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import typer
from matplotlib.figure import Figure
from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table

import quell
from quell import literature

TARGETS = jnp.array([0.6, 0.51, 0.48])
PLACES = {"at the start": (0.0, 0.0, 0.0), "later": (1.5, -1.0, -2.0)}
"""Log odds at which the gradients are compared."""

REPLICATES = 20
COLORS = {"at the start": "#0072B2", "later": "#E69F00"}


class Row(NamedTuple):
    """One estimator at one place: its variance, and how far its mean is from the truth in standard errors."""

    estimator: str
    place: str
    variance: float
    distance: float


def make_problem() -> quell.Problem:
    """One datum, the targets, and a flat prior: the ELBO is f plus the entropy, which is exact and adds no noise."""
    model = quell.Model(lambda z, p: jnp.sum((z - p) ** 2, axis=-1), lambda z: 0.0 * z[0], TARGETS[None], latent=3)
    return quell.Problem(model, quell.Bernoulli(3))


def make_ensembles() -> dict[str, list[quell.ControlVariate]]:
    """Each variate alone, and all of them together."""
    network = eqx.nn.MLP(3, "scalar", width_size=8, depth=1, activation=jnp.tanh, key=jax.random.key(0))
    variates = [
        literature.ranganath(),
        literature.leave_one_out(),
        literature.moving_average(),
        literature.rebar_plain(),
        literature.rebar(),
        literature.relax(network, optimizer=optax.adam(0.02)),
    ]
    return {"score function": [], **{v.name: [v] for v in variates}, "all together": variates}


def exact_gradient(problem: quell.Problem, params: quell.Logits) -> jax.Array:
    """The gradient of the loss −ELBO, by enumeration of the eight values."""
    family, values = problem.family, problem.family.support()
    f = jax.vmap(lambda z: problem.model.log_likelihood(z, problem.model.data).sum())(values)

    def loss(params: quell.Logits) -> jax.Array:
        mass = jnp.exp(jax.vmap(lambda z: family.log_prob(params, z))(values))
        return -(mass @ f + family.entropy(params))

    return jax.grad(loss)(params).logits


@eqx.filter_jit
def run(gradient: quell.Gradient, params: quell.Logits, keys: jax.Array) -> jax.Array:
    """The gradient of each step at fixed parameters, while weights and network learn."""

    def step(state: quell.GradientState, key: jax.Array) -> tuple[quell.GradientState, jax.Array]:
        loss_grad, state, _ = gradient.update(key, params, state)
        return state, loss_grad.logits

    return jax.lax.scan(step, gradient.init(params), keys)[1]


def compare(ensembles: dict[str, list[quell.ControlVariate]], steps: int) -> list[Row]:
    """Variance and bias of every estimator at every place, over the second half of the steps."""
    problem, rows = make_problem(), []
    keys = jax.random.split(jax.random.key(1), steps)
    for name, variates in ensembles.items():
        gradient = quell.Gradient(
            problem, variates, base=quell.default_base(problem), sampler=quell.Sampler(num_replicates=REPLICATES)
        )
        for place, logits in PLACES.items():
            params = quell.Logits(jnp.array(logits))
            grads = np.asarray(run(gradient, params, keys)[steps // 2 :], dtype=float)
            errors = grads.std(axis=0, ddof=1) / np.sqrt(len(grads))
            distance = np.abs(grads.mean(axis=0) - exact_gradient(problem, params)) / errors
            rows.append(Row(name, place, float(grads.var(axis=0, ddof=1).sum()), float(distance.max())))
    return rows


def show(rows: list[Row]) -> None:
    """Print one line per estimator; `off by` is the coordinate of the mean that is farthest from the exact gradient."""
    table = Table("estimator", box=MARKDOWN)
    for place in PLACES:
        for column in (f"variance {place}", "reduction", "off by"):
            table.add_column(column, justify="right")
    for name in dict.fromkeys(row.estimator for row in rows):
        cells = [name]
        for place in PLACES:
            here = {row.estimator: row for row in rows if row.place == place}
            plain, row = here["score function"], here[name]
            cells += [f"{row.variance:.2e}", f"{plain.variance / row.variance:.0f}×", f"{row.distance:.1f} s.e."]
        table.add_row(*cells)
    Console(width=120).print(table)


def draw(rows: list[Row], path: Path) -> None:
    """Bars of the variance, on a logarithmic axis."""
    names = list(dict.fromkeys(row.estimator for row in rows))
    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    axes = figure.subplots()
    for k, (place, logits) in enumerate(PLACES.items()):
        values = [row.variance for row in rows if row.place == place]
        label = f"{place}, log odds ({', '.join(f'{w:g}' for w in logits)})"
        axes.barh(np.arange(len(names)) + 0.4 * k - 0.2, values, height=0.38, color=COLORS[place], label=label)
    lowest = min(row.variance for row in rows)
    axes.set(xscale="log", xlim=(lowest / 2, None))
    axes.set_xlabel(f"variance of the gradient, {REPLICATES} replicates per step")
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    figure.savefig(path, dpi=150)


def main(
    out: Annotated[Path, typer.Option(help="Folder for the figure.")] = Path("examples-output"),
    steps: Annotated[int, typer.Option(help="Steps per estimator, the first half as warm-up.", min=4)] = 10_000,
) -> None:
    """Compare the gradients, print the table, draw the figure."""
    out.mkdir(parents=True, exist_ok=True)
    rows = compare(make_ensembles(), steps)
    show(rows)
    draw(rows, out / "three_bernoullis.png")


if __name__ == "__main__":
    typer.run(main)
