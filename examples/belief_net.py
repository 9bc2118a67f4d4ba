# SPDX-License-Identifier: Apache-2.0
"""A small sigmoid belief net: a few hidden switches, binary observations, and a posterior that can be enumerated.

Five switches are shared by all data; each turns some of the eight bits of a datum on or off through a logistic decoder
whose weights are known. With 2⁵ configurations the evidence, the ELBO of any q and the best q of all are exact, so each
fit can be compared with them. Without variates every score is multiplied by a log joint of some −220 nats, and little
is learned. The decoder takes any number between 0 and 1 for a switch, which REBAR's relaxation needs.

    python examples/belief_net.py --out DIR
"""

from pathlib import Path
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import typer
from jax.scipy.special import logsumexp
from matplotlib.figure import Figure
from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table

import quell
from quell import literature

SWITCHES, BITS, NUM_DATA = 5, 8, 40
PRIOR_LOG_ODDS = -0.5
SAMPLER = quell.Sampler(num_replicates=4)
OPTIMIZER = optax.adam(0.05)
"""At a constant rate, the noise of the gradient stays visible in where the fit ends; one object, one program."""

RUNS = 5
STYLE = {
    "none": {"color": "#000000", "linestyle": ":"},
    "default": {"color": "#0072B2", "linestyle": "--"},
    "rebar": {"color": "#D55E00", "linestyle": "-"},
}


class Fits(NamedTuple):
    """Several fits with the same variates: estimated ELBO per step, exact one at the end, reduction of the norm."""

    history: np.ndarray
    elbo: np.ndarray
    reduction: float


def make_model() -> quell.Model:
    """Bits with log odds `bias + weights @ z`, from switches of which the first, third and fourth are on."""
    weights_key, data_key = jax.random.split(jax.random.key(5))
    weights = 0.3 * jax.random.normal(weights_key, (BITS, SWITCHES))
    bias = -0.5 * jnp.sum(weights, axis=1)
    truth = jnp.array([1.0, 0.0, 1.0, 1.0, 0.0])
    bits = jax.random.bernoulli(data_key, jax.nn.sigmoid(bias + weights @ truth), (NUM_DATA, BITS)).astype(float)

    def log_likelihood(z: jax.Array, batch: jax.Array) -> jax.Array:
        log_odds = bias + weights @ z
        return batch @ log_odds - jnp.sum(jax.nn.softplus(log_odds))

    def log_prior(z: jax.Array) -> jax.Array:
        return jnp.sum(PRIOR_LOG_ODDS * z - jax.nn.softplus(PRIOR_LOG_ODDS))

    return quell.Model(log_likelihood, log_prior, bits, latent=SWITCHES)


def log_joints(model: quell.Model, family: quell.Bernoulli) -> jax.Array:
    """log p(x, z) of all data, for every configuration of the switches."""
    return jax.vmap(lambda z: model.log_likelihood(z, model.data).sum() + model.prior.log_prob(z))(family.support())


def enumerated_elbo(joints: jax.Array, family: quell.Bernoulli, params: quell.Logits) -> jax.Array:
    """The ELBO as a sum over all configurations."""
    mass = jnp.exp(jax.vmap(lambda z: family.log_prob(params, z))(family.support()))
    return mass @ joints + family.entropy(params)


def best_elbo(joints: jax.Array, family: quell.Bernoulli) -> float:
    """What independent switches can reach: exact gradients, until nothing changes."""
    optimizer = optax.adam(0.05)

    def step(carry, _):
        params, state = carry
        grad = jax.grad(lambda w: -enumerated_elbo(joints, family, w))(params)
        updates, state = optimizer.update(grad, state, params)
        return (optax.apply_updates(params, updates), state), None

    start = family.init()
    (params, _), _ = jax.lax.scan(step, (start, optimizer.init(start)), length=3000)
    return float(enumerated_elbo(joints, family, params))


def make_ensembles(problem: quell.Problem) -> dict[str, tuple[quell.ControlVariate, ...]]:
    """None, the cheap ones that suit the problem, and REBAR."""
    return {"none": (), "default": quell.default_variates(problem, SAMPLER), "rebar": (literature.rebar(),)}


def fit_all(model: quell.Model, family: quell.Bernoulli, steps: int) -> dict[str, Fits]:
    """Fit with each set of variates, from several seeds."""
    joints, fits = log_joints(model, family), {}
    for name, variates in make_ensembles(quell.Problem(model, family)).items():
        results = [
            quell.fit(
                model,
                family,
                variates=variates,
                sampler=SAMPLER,
                optimizer=OPTIMIZER,
                steps=steps,
                key=jax.random.key(seed),
            )
            for seed in range(RUNS)
        ]
        histories = [result.history for result in results]
        tail = slice(steps // 2, None)
        base, combined = (
            np.mean([getattr(history, norm)[tail] for history in histories])
            for norm in ("base_sq_norm", "combined_sq_norm")
        )
        elbos = np.array([enumerated_elbo(joints, family, result.params) for result in results])
        fits[name] = Fits(np.mean([history.elbo for history in histories], axis=0), elbos, base / combined)
    return fits


def show(fits: dict[str, Fits], evidence: float, best: float) -> None:
    """Print the exact ELBO and the divergence from the posterior where the fits ended."""
    table = Table("variates", box=MARKDOWN)
    for column in ("squared norm divided by", "ELBO", "KL from the posterior", "of that, avoidable"):
        table.add_column(column, justify="right")
    for name, fit in fits.items():
        kl = evidence - fit.elbo.mean()
        cells = (
            f"{float(f'{fit.reduction:.2g}'):,.0f}×",
            f"{fit.elbo.mean():.4f}",
            f"{kl:.4f}",
            f"{best - fit.elbo.mean():.4f}",
        )
        table.add_row(name, *cells)
    table.add_row("best independent switches", "", f"{best:.4f}", f"{evidence - best:.4f}", "0")
    console = Console(width=120)
    console.print(table)
    console.print(f"Exact log evidence: {evidence:.4f} nats. Fits are means over {RUNS} seeds.", highlight=False)


def draw(fits: dict[str, Fits], evidence: float, best: float, path: Path) -> None:
    """The estimated ELBO against the step, averaged over the seeds and over a window of steps."""
    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    axes = figure.subplots()
    for name, fit in fits.items():
        window = max(1, len(fit.history) // 20)
        smooth = np.convolve(fit.history, np.ones(window) / window, mode="valid")
        axes.plot(np.arange(len(smooth)) + window / 2, smooth, label=f"variates: {name}", **STYLE[name])
    axes.axhline(evidence, color="#666666", linewidth=1, label="log evidence")
    axes.axhline(best, color="#009E73", linewidth=1, label="best independent switches")
    axes.set(xlabel="step", ylabel="ELBO (nats)")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    figure.savefig(path, dpi=150)


def main(
    out: Annotated[Path, typer.Option(help="Folder for the figure.")] = Path("examples-output"),
    steps: Annotated[int, typer.Option(help="Steps a fit.", min=4)] = 1000,
) -> None:
    """Fit, print the table, draw the figure."""
    out.mkdir(parents=True, exist_ok=True)
    model, family = make_model(), quell.Bernoulli(SWITCHES)
    joints = log_joints(model, family)
    evidence, best = float(logsumexp(joints)), best_elbo(joints, family)
    fits = fit_all(model, family, steps)
    show(fits, evidence, best)
    draw(fits, evidence, best, out / "belief_net.png")


if __name__ == "__main__":
    typer.run(main)
