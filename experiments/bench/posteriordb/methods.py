# SPDX-License-Identifier: Apache-2.0
"""The methods: each fits a posterior at its defaults and draws 1,000 times on the clock."""

import functools
import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import numpyro
from numpyro import infer
from numpyro.infer import autoguide
from numpyro.infer.util import initialize_model

from experiments.bench.posteriordb.ports.port import Port
from experiments.bench.posteriordb.stopwatch import Stopwatch

NUM_DRAWS = 1_000
NUM_EVALUATED = 10_000
"""Draws of variational methods after the clock has stopped, so that errors are not those of a thousand draws."""

SVI_STEPS = 5_000
SVI_RATE = 0.01


class Fitted(NamedTuple):
    """Draws to evaluate a fit by, and facts about it."""

    draws: dict[str, Any]
    facts: dict[str, Any]


Evaluate = Callable[[], Fitted]
"""What is done after the clock has stopped."""


def run_quell(port: Port, key: jax.Array, watch: Stopwatch, family_name: str) -> Evaluate:
    """`quell.from_numpyro` and `quell.fit` at their defaults."""
    import quell

    model = quell.from_numpyro(port.model, *port.args)
    watch.mark("read")
    result = quell.fit(model, getattr(quell, family_name)(model.dim), key=key)
    jax.block_until_ready(result.params)
    watch.mark("fit")
    _as_arrays(result.sample(jax.random.key(1), NUM_DRAWS), port)
    watch.mark("draws")

    def evaluate() -> Fitted:
        facts = {
            "status": result.status.name,
            "steps": result.history.num_steps,
            "gradients": result.num_gradients,
            "gap": None if result.gap is None else [result.gap.value, result.gap.standard_error],
            "khat": result.final_khat.value,
            "elbo": result.final_elbo.value,
            "result_warnings": list(result.warnings),
            "num_data": model.num_data,
            "dim": model.dim,
        }
        if result.choice is not None:
            facts |= {"chosen": result.choice.reason, "base": result.choice.base}
        return Fitted(result.sample(jax.random.key(2), NUM_EVALUATED), facts)

    return evaluate


def run_svi(port: Port, key: jax.Array, watch: Stopwatch, guide_class: Any) -> Evaluate:
    """NumPyro's SVI as its documentation shows it."""
    guide = guide_class(port.model)
    svi = infer.SVI(port.model, guide, numpyro.optim.Adam(SVI_RATE), infer.Trace_ELBO())
    result = svi.run(key, SVI_STEPS, *port.args, progress_bar=False)
    jax.block_until_ready(result.params)
    watch.mark("fit")

    def draw(seed: int, num: int) -> dict[str, Any]:
        one, two = jax.random.split(jax.random.key(seed))
        found = guide.sample_posterior(one, result.params, sample_shape=(num,))
        return _with_deterministic(port, found, two)

    _as_arrays(draw(1, NUM_DRAWS), port)
    watch.mark("draws")

    def evaluate() -> Fitted:
        losses = np.asarray(result.losses)
        facts: dict[str, Any] = {"status": "completed", "steps": SVI_STEPS}
        if guide_class is not autoguide.AutoLaplaceApproximation:
            loss: Any = infer.Trace_ELBO(num_particles=1000)
            facts["elbo"] = -float(loss.loss(jax.random.key(3), result.params, port.model, guide, *port.args))
        if not np.isfinite(losses[-1]):
            facts["status"] = f"not finite from step {int(np.argmax(~np.isfinite(losses)))}"
        return Fitted(draw(2, NUM_EVALUATED), facts)

    return evaluate


def run_nuts(port: Port, key: jax.Array, watch: Stopwatch) -> Evaluate:
    """NumPyro's NUTS, one chain."""
    mcmc = infer.MCMC(infer.NUTS(port.model), num_warmup=1000, num_samples=NUM_DRAWS, progress_bar=False)
    mcmc.run(key, *port.args, extra_fields=("num_steps", "diverging"))
    draws = _as_arrays(mcmc.get_samples(), port)
    watch.mark("fit")

    def evaluate() -> Fitted:
        extra = mcmc.get_extra_fields()
        facts = {
            "status": "completed",
            "steps": 2000,
            "divergences": int(np.sum(extra["diverging"])),
            "leapfrogs_per_draw": round(float(np.mean(extra["num_steps"])), 1),
        }
        return Fitted(draws, facts)

    return evaluate


def run_pathfinder(port: Port, key: jax.Array, watch: Stopwatch) -> Evaluate:
    """BlackJAX's single-path Pathfinder on NumPyro's unconstrained potential, from NumPyro's initial point."""
    pathfinder: Any = importlib.import_module("blackjax.vi.pathfinder")

    start_key, path_key = jax.random.split(key)
    info = initialize_model(start_key, port.model, model_args=port.args)
    watch.mark("read")
    approximate = jax.jit(lambda k, z: pathfinder.approximate(k, lambda at: -info.potential_fn(at), z, maxiter=100))
    state, path = jax.block_until_ready(approximate(path_key, info.param_info.z))
    watch.mark("fit")

    def draw(seed: int, num: int) -> dict[str, Any]:
        found, _ = pathfinder.sample(jax.random.key(seed), state, num)
        return _with_deterministic(port, jax.vmap(info.postprocess_fn)(found), jax.random.key(seed + 1))

    _as_arrays(draw(1, NUM_DRAWS), port)
    watch.mark("draws")

    def evaluate() -> Fitted:
        elbo, steps = float(state.elbo), int(np.sum(np.isfinite(np.asarray(path.path.elbo))))
        status = "completed" if np.isfinite(elbo) else "no point of the path has a finite ELBO"
        return Fitted(draw(2, NUM_EVALUATED), {"status": status, "steps": steps, "elbo": elbo})

    return evaluate


METHODS: dict[str, Callable[[Port, jax.Array, Stopwatch], Evaluate]] = {
    "quell": functools.partial(run_quell, family_name="FullRank"),
    "quell-mf": functools.partial(run_quell, family_name="MeanField"),
    "numpyro-svi": functools.partial(run_svi, guide_class=autoguide.AutoMultivariateNormal),
    "numpyro-svi-mf": functools.partial(run_svi, guide_class=autoguide.AutoNormal),
    "laplace": functools.partial(run_svi, guide_class=autoguide.AutoLaplaceApproximation),
    "nuts": run_nuts,
    "pathfinder": run_pathfinder,
}


def import_library(method: str) -> None:
    """Import what a method needs, before the clock starts."""
    if method.startswith("quell"):
        importlib.import_module("quell")
    elif method == "pathfinder":
        importlib.import_module("blackjax.vi.pathfinder")


def _as_arrays(draws: dict[str, Any], port: Port) -> dict[str, np.ndarray]:
    """The sites of the reference as NumPy arrays."""
    return {site: np.asarray(draws[site]) for site in port.names}


def _with_deterministic(port: Port, draws: dict[str, Any], key: jax.Array) -> dict[str, Any]:
    """Add draws of deterministic sites, where a guide has latents only."""
    missing = [site for site in port.names if site not in draws]
    if not missing:
        return draws
    return {**draws, **infer.Predictive(port.model, draws, return_sites=missing)(key, *port.args)}
