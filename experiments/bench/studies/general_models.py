# SPDX-License-Identifier: Apache-2.0
"""Variance reduction and cost per step of ensembles on general models.

Models are plain functions with scales on a logarithmic scale; each is fitted with all variates together, and at the
end of the fit each ensemble's own weights, learned on the way, are judged on fresh draws. `x` is how many times the
variance of the base gradient is that of the combined one, `t` how many times a step takes as long.

    python -m experiments.bench.studies.general_models --out general_models.json
"""

import argparse
import functools
import json
import math
import platform
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import quell
from quell.combine import MomentState
from quell.core.compilation import quick_jit
from quell.evaluation import Evaluation
from quell.terms import joint


def normal(x, loc, log_scale):
    return -0.5 * ((x - loc) * jnp.exp(-log_scale)) ** 2 - log_scale - 0.5 * math.log(2 * math.pi)


def schools(*, centred: bool) -> quell.Model:
    data = {
        "effect": jnp.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0]),
        "error": jnp.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0]),
        "school": jnp.arange(8),
    }

    def hyper(z):
        half_cauchy = z["log_tau"] - jnp.log1p((jnp.exp(z["log_tau"]) / 5.0) ** 2)
        return normal(z["mu"], 0.0, math.log(5.0)) + half_cauchy

    def log_likelihood(z, batch):
        theta = z["theta"] if centred else z["mu"] + jnp.exp(z["log_tau"]) * z["theta"]
        return normal(batch["effect"], theta[batch["school"]], jnp.log(batch["error"]))

    def log_prior(z):
        inner = normal(z["theta"], z["mu"], z["log_tau"]) if centred else normal(z["theta"], 0.0, 0.0)
        return hyper(z) + jnp.sum(inner)

    latent = {"mu": jnp.zeros(()), "log_tau": jnp.zeros(()), "theta": jnp.zeros(8)}
    return quell.Model(log_likelihood, log_prior, data, latent)


def varying_intercepts() -> quell.Model:
    rng = np.random.default_rng(0)
    group = rng.integers(0, 40, size=400)
    x = rng.normal(size=400)
    y = 1.0 + 0.7 * rng.normal(size=40)[group] - 0.8 * x + 0.5 * rng.normal(size=400)

    def log_likelihood(z, batch):
        predictor = z["intercepts"][batch["group"]] + z["slope"] * batch["x"]
        return normal(batch["y"], predictor, z["log_noise"])

    def log_prior(z):
        top = normal(z["mean"], 0.0, 0.0) + normal(z["slope"], 0.0, 0.0)
        scales = normal(z["log_noise"], 0.0, 0.0) + normal(z["log_spread"], 0.0, 0.0)
        return top + scales + jnp.sum(normal(z["intercepts"], z["mean"], z["log_spread"]))

    data = {"group": jnp.asarray(group), "x": jnp.asarray(x), "y": jnp.asarray(y)}
    names = ("mean", "slope", "log_noise", "log_spread")
    return quell.Model(
        log_likelihood, log_prior, data, {n: jnp.zeros(()) for n in names} | {"intercepts": jnp.zeros(40)}
    )


def student_t() -> quell.Model:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(500, 10))
    y = x @ rng.normal(size=10) + 0.5 * rng.standard_t(3.0, size=500)

    def log_likelihood(z, batch):
        df = 2.0 + jnp.exp(z["log_df"])
        residual = (batch["y"] - batch["x"] @ z["weights"]) * jnp.exp(-z["log_scale"])
        constant = jax.scipy.special.gammaln(0.5 * (df + 1)) - jax.scipy.special.gammaln(0.5 * df)
        return constant - 0.5 * jnp.log(df * math.pi) - z["log_scale"] - 0.5 * (df + 1) * jnp.log1p(residual**2 / df)

    def log_prior(z):
        return (
            jnp.sum(normal(z["weights"], 0.0, 1.0)) + normal(z["log_scale"], 0.0, 0.0) + normal(z["log_df"], 0.0, 0.0)
        )

    data = {"x": jnp.asarray(x), "y": jnp.asarray(y)}
    latent = {"weights": jnp.zeros(10), "log_scale": jnp.zeros(()), "log_df": jnp.zeros(())}
    return quell.Model(log_likelihood, log_prior, data, latent)


def network(hidden: int = 10) -> quell.Model:
    rng = np.random.default_rng(2)
    x = rng.uniform(-2.0, 2.0, size=300)
    y = np.sin(2.0 * x) + 0.2 * rng.normal(size=300)

    def log_likelihood(z, batch):
        hidden = jnp.tanh(batch["x"][:, None] * z["in"] + z["bias"])
        return normal(batch["y"], hidden @ z["out"] + z["offset"], z["log_noise"])

    def log_prior(z):
        return sum(jnp.sum(normal(leaf, 0.0, 0.0)) for leaf in z.values())

    data = {"x": jnp.asarray(x), "y": jnp.asarray(y)}
    shapes = {"in": (hidden,), "bias": (hidden,), "out": (hidden,), "offset": (), "log_noise": ()}
    return quell.Model(log_likelihood, log_prior, data, {name: jnp.zeros(shape) for name, shape in shapes.items()})


MODELS = {
    "schools, centred": lambda: schools(centred=True),
    "schools, non-centred": lambda: schools(centred=False),
    "intercepts": varying_intercepts,
    "student-t": student_t,
    "network": network,
}

RP, CF, CF_ALL = quell.Reparameterization(), quell.ClosedForm(), quell.ClosedForm(full_data=True)
TAYLOR, ANCHORED, FITTED = quell.TaylorInLatent(), quell.AnchoredQuadratic(), quell.FittedQuadratic()
VARIATES = {
    "landing": quell.ControlVariate(quell.Variational(), RP, CF),
    "taylor data": quell.ControlVariate(quell.Data(), RP, CF, TAYLOR),
    "taylor prior": quell.ControlVariate(quell.Prior(), RP, CF, TAYLOR),
    "anchored data": quell.ControlVariate(quell.Data(), RP, CF_ALL, ANCHORED),
    "anchored prior": quell.ControlVariate(quell.Prior(), RP, CF, ANCHORED),
    "fitted joint": quell.ControlVariate(joint(), RP, CF, FITTED),
}
ENSEMBLES = {
    "base": (),
    "landing": ("landing",),
    "taylor": ("taylor data", "taylor prior"),
    "anchored": ("anchored data", "anchored prior"),
    "fitted": ("fitted joint",),
    "anch+land": ("landing", "anchored data", "anchored prior"),
    "anch+land+tayl": ("landing", "taylor data", "anchored data", "anchored prior"),
    "anch+land+fit": ("landing", "anchored data", "anchored prior", "fitted joint"),
    "all": tuple(VARIATES),
}
NUM_FRESH, NUM_ROUNDS, RATE = 250, 4, 0.01


def make_gradient(problem: quell.Problem, names: tuple[str, ...], batch_size: int | None) -> quell.Gradient:
    """Some of the variates, those that the default has too as the default has them."""
    sampler = quell.Sampler(1, batch_size)
    default = {variate.name: variate for variate in quell.default_variates(problem, sampler)}
    variates = [default.get(VARIATES[name].name, VARIATES[name]) for name in names]
    return quell.Gradient(problem, variates, sampler=sampler)


@quick_jit
def run(gradient: quell.Gradient, carry: Any, keys: jax.Array) -> Any:
    """Steps of Adam, whose rate falls to zero in a straight line."""
    optimizer = optax.scale_by_adam()

    def step(carry: Any, key_and_rate: tuple[jax.Array, jax.Array]) -> tuple[Any, Any]:
        (params, moments, state), (key, rate) = carry, key_and_rate
        loss_grad, state, info = gradient.update(key, params, state)
        updates, moments = optimizer.update(loss_grad, moments)
        params = jax.tree.map(lambda leaf, move: leaf - rate * move, params, updates)
        return (params, moments, state), info.elbo

    return jax.lax.scan(step, carry, (keys, RATE * jnp.linspace(1.0, 0.0, keys.shape[0])))


def start(gradient: quell.Gradient) -> Any:
    params = gradient.problem.family.init()
    return params, optax.scale_by_adam().init(params), gradient.init(params)


@quick_jit
def fresh_moments(gradient: quell.Gradient, params: Any, state: Any, keys: jax.Array) -> jax.Array:
    """Centred second moments of base gradient and variates, within each round of fresh draws, averaged."""
    batch_size, family = gradient.sampler.batch_size, gradient.problem.family

    def one_round(key: jax.Array) -> jax.Array:
        sampler = quell.Sampler(NUM_FRESH, batch_size)
        draw = sampler.draw(key, family, gradient.problem.model.num_data, jnp.result_type(float))
        evaluation = Evaluation(gradient.problem, params, draw)
        samples = gradient.samples(evaluation, state)
        return evaluation.algebra.gram(samples) - evaluation.algebra.mean_gram(samples)

    return jnp.mean(jax.lax.map(one_round, keys), axis=0)


def variance_ratio(gradient: quell.Gradient, moments: MomentState, fresh: np.ndarray, names: tuple[str, ...]) -> float:
    """Variance of the base gradient over that of the base gradient plus some of the variates."""
    rows = np.array([0, *(1 + list(VARIATES).index(name) for name in names)])
    some = MomentState(moments.total[np.ix_(rows, rows)], moments.mass[np.ix_(rows, rows)])
    weights = gradient.rule.weights(some, num_units=1, num_params=gradient.problem.family.num_params)
    direction = np.concatenate([[1.0], np.asarray(weights)])
    return float(fresh[0, 0] / (direction @ fresh[np.ix_(rows, rows)] @ direction))


def step_seconds(programs: dict[str, Callable[[], Any]], num_steps: int, repeats: int = 3) -> dict[str, float]:
    best = dict.fromkeys(programs, math.inf)
    for repeat in range(repeats + 1):
        for name, program in programs.items():
            began = time.perf_counter()
            jax.block_until_ready(program())
            if repeat:
                best[name] = min(best[name], (time.perf_counter() - began) / num_steps)
    return best


def measure(problem: quell.Problem, batch_size: int | None, steps: int, timed: list[str]) -> dict[str, Any]:
    gradient = make_gradient(problem, tuple(VARIATES), batch_size)
    carry, elbo = run(gradient, start(gradient), jax.random.split(jax.random.key(0), steps))
    params, _, state = carry
    fresh = np.asarray(fresh_moments(gradient, params, state, jax.random.split(jax.random.key(1), NUM_ROUNDS)))
    found = {name: variance_ratio(gradient, state.moments, fresh, names) for name, names in ENSEMBLES.items()}
    keys = jax.random.split(jax.random.key(2), 100)
    programs = {}
    for name in timed:
        some = make_gradient(problem, ENSEMBLES[name], batch_size)
        programs[name] = functools.partial(run, some, start(some), keys)
    seconds = step_seconds(programs, keys.shape[0])
    times = {name: value / seconds["base"] for name, value in seconds.items()}
    return {"elbo": float(jnp.mean(elbo[-100:])), "variance_ratio": found, "step_time": times}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", help="JSON file for the figures")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--only", nargs="*", default=list(MODELS), help="some of the models")
    parser.add_argument("--timed", nargs="*", default=["base", "taylor", "anchored", "fitted"])
    options = parser.parse_args()
    print(f"jax {jax.__version__} on {jax.devices()[0].device_kind}, {platform.machine()}")
    print(f"{'model':22}{'family':12}{'batch':>6}{'elbo':>9}" + "".join(f"{name:>15}" for name in ENSEMBLES))
    rows = []
    for name in options.only:
        model = MODELS[name]()
        for family in (quell.MeanField(model.dim), quell.FullRank(model.dim)):
            for batch_size in (None,) if model.num_data < 50 else (None, 50):
                found = measure(quell.Problem(model, family), batch_size, options.steps, options.timed)
                row = {"model": name, "family": type(family).__name__, "batch_size": batch_size, **found}
                rows.append(row)
                cells = [
                    f"{x:.1f}x" + (f" {found['step_time'][e]:.1f}t" if e in found["step_time"] else "")
                    for e, x in found["variance_ratio"].items()
                ]
                print(
                    f"{name:22}{row['family']:12}{batch_size or 'all':>6}{found['elbo']:9.1f}"
                    + "".join(f"{cell:>15}" for cell in cells),
                    flush=True,
                )
    if options.out:
        with open(options.out, "w") as file:
            json.dump({"rows": rows, "jax": jax.__version__, "machine": platform.machine()}, file, indent=2)


if __name__ == "__main__":
    main()
