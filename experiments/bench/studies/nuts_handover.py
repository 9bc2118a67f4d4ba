# SPDX-License-Identifier: Apache-2.0
"""Gradients that NUTS takes from a fit, and from nowhere: `result.nuts` against NumPyro's NUTS.

NumPyro's has the diagonal mass matrix of its defaults, or a dense one.

All draw as many times, with four chains. Gradients are all that were taken: of the fit, of the warm-up and of the
draws. Draws are compared by the largest differences of two means and of two variances, in standard errors by the
effective sample sizes.

    python -m experiments.bench.studies.nuts_handover --out nuts_handover.json
"""

import argparse
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.diagnostics import effective_sample_size
from numpyro.infer import MCMC, NUTS

import quell
from quell.adapters.numpyro.nuts import sampler_and_starts

CHAINS, DRAWS, WARMUP = 4, 1000, 1000
SHORT_WARMUP = 100
"""The default of `result.nuts`."""


def sonar() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Logistic regression on 60 correlated features of 208 echoes."""
    data = quell.paper.load("sonar")
    features, labels = np.asarray(data.features), (np.asarray(data.labels) > 0).astype(int)

    def model(features, labels):
        slopes = numpyro.sample("slopes", dist.Normal(0.0, 1.0).expand([features.shape[1]]).to_event(1))
        numpyro.sample("label", dist.Bernoulli(logits=features @ slopes), obs=labels)

    return model, (features, labels)


def varying_slopes(groups: int = 60, rows: int = 900) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """An intercept and a slope for each of 60 groups."""
    rng = np.random.default_rng(0)
    group, x = rng.integers(0, groups, rows), rng.normal(3.0, 1.0, rows)
    levels, slopes = rng.normal(1.0, 0.7, groups), rng.normal(-0.5, 0.4, groups)
    y = levels[group] + slopes[group] * x + rng.normal(0.0, 0.8, rows)

    def model(group, x, y):
        means = numpyro.sample("means", dist.Normal(0.0, 5.0).expand([2]).to_event(1))
        spreads = numpyro.sample("spreads", dist.HalfNormal(2.0).expand([2]).to_event(1))
        noise = numpyro.sample("noise", dist.HalfNormal(2.0))
        with numpyro.plate("groups", groups):
            level = numpyro.sample("level", dist.Normal(means[0], spreads[0]))
            slope = numpyro.sample("slope", dist.Normal(means[1], spreads[1]))
        numpyro.sample("y", dist.Normal(level[group] + slope[group] * x, noise), obs=y)

    return model, (group, x, y)


def counts(length: int = 100) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Counts whose logarithmic rate is a random walk."""
    rng = np.random.default_rng(1)
    y = rng.poisson(np.exp(1.0 + np.cumsum(rng.normal(0.0, 0.15, length))))

    def model(y):
        step = numpyro.sample("step", dist.HalfNormal(0.5))
        steps = numpyro.sample("steps", dist.Normal(0.0, 1.0).expand([len(y)]).to_event(1))
        start = numpyro.sample("start", dist.Normal(1.0, 1.0))
        numpyro.sample("y", dist.Poisson(jnp.exp(start + step * jnp.cumsum(steps))), obs=y)

    return model, (y,)


MODELS = {"sonar": sonar, "varying slopes": varying_slopes, "counts": counts}


def run(mcmc: MCMC, key: jax.Array, *args: Any, **options: Any) -> tuple[dict[str, np.ndarray], int, int]:
    """Draws by chain, gradients of the warm-up and of the draws."""
    mcmc.warmup(key, *args, collect_warmup=True, extra_fields=("num_steps",), **options)
    warmup = int(mcmc.get_extra_fields()["num_steps"].sum())
    mcmc.run(jax.random.fold_in(key, 1), *args, extra_fields=("num_steps",))
    draws = int(mcmc.get_extra_fields()["num_steps"].sum())
    return {name: np.asarray(one) for name, one in mcmc.get_samples(group_by_chain=True).items()}, warmup, draws


def apart(one: dict[str, np.ndarray], other: dict[str, np.ndarray], power: int) -> float:
    """The largest difference of two moments, in standard errors."""
    largest = 0.0
    for name in one:
        centre = one[name].mean((0, 1)) if power > 1 else 0.0
        pair = [(each[name] - centre) ** power for each in (one, other)]
        errors = [np.var(each, axis=(0, 1)) / effective_sample_size(each) for each in pair]
        gap = np.abs(pair[0].mean((0, 1)) - pair[1].mean((0, 1))) / np.sqrt(sum(errors))
        largest = max(largest, float(np.max(gap)))
    return round(largest, 2)


def compare(name: str) -> dict[str, Any]:
    """One model."""
    model, args = MODELS[name]()
    sizes = {"num_warmup": WARMUP, "num_samples": DRAWS, "num_chains": CHAINS}
    cold, facts = {}, {}
    for kind in ("diagonal", "dense"):
        began = time.perf_counter()
        kernel = NUTS(model, dense_mass=kind == "dense")
        mcmc = MCMC(kernel, **sizes, chain_method="vectorized", progress_bar=False)
        cold[kind], *gradients = run(mcmc, jax.random.key(0), *args)
        facts[kind] = _facts(cold[kind], gradients, time.perf_counter() - began)
    began = time.perf_counter()
    result = quell.fit(model, *args, key=jax.random.key(0))
    sizes = {"num_warmup": SHORT_WARMUP, "num_samples": DRAWS, "num_chains": CHAINS}
    mcmc, starts = sampler_and_starts(result, jax.random.key(1), **sizes)  # as `result.nuts` does
    drawn, *gradients = run(mcmc, jax.random.key(2), init_params=starts)
    ended = time.perf_counter()
    total = result.num_gradients + sum(gradients)
    return {
        "model": name,
        "dim": result.problem.model.dim,
        "khat": round(result.final_khat.value, 3),
        "family": type(result.problem.family).__name__,
        **facts,
        "from_fit": {"fit": result.num_gradients, **_facts(drawn, gradients, ended - began)},
        "share": {kind: round(total / (one["warmup"] + one["draws"]), 3) for kind, one in facts.items()},
        "apart": {kind: [apart(drawn, cold[kind], power) for power in (1, 2)] for kind in cold},
    }


def _facts(draws: dict[str, np.ndarray], gradients: list[int], seconds: float) -> dict[str, Any]:
    least = min(float(np.min(effective_sample_size(each))) for each in draws.values())
    return {
        "warmup": gradients[0],
        "draws": gradients[1],
        "least_effective": round(least),
        "seconds": round(seconds, 2),
    }


def main() -> None:
    """All models."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--out", type=Path, default=Path("nuts_handover.json"))
    given = parser.parse_args()
    about = {
        "what": "gradients of NUTS from a fit and from nowhere, four chains of 1,000 draws",
        "machine": platform.machine(),
        "jax": jax.__version__,
        "command": "python -m experiments.bench.studies.nuts_handover",
    }
    records = []
    for name in given.models.split(","):
        records.append(compare(name))
        print(records[-1], flush=True)
        given.out.write_text(json.dumps({"about": about, "records": records}, indent=1) + "\n")


if __name__ == "__main__":
    main()
