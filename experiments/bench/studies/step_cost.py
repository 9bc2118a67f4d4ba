# SPDX-License-Identifier: Apache-2.0
"""Microseconds per step: base gradient, the paper's seven variates, four cheap ones, and NumPyro's full-rank SVI.

All of them in one run, at batch 10 with Adam, in one `lax.scan` each, so that the ratios mean something on a noisy
machine. Every method is timed several times in turn and its fastest time counts.

    python -m experiments.bench.studies.step_cost --out step_cost.json
"""

import argparse
import json
import platform
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoMultivariateNormal

import quell

BATCH = 10
PROBLEMS = {"australian-sized": (690, 15), "sonar-sized": (208, 61), "d = 200": (1000, 200)}
ENSEMBLES: dict[str, list[str] | str] = {"base_us": "none", "s7_us": "S7", "cheap_us": ["c1", "c2", "c5", "c7"]}

Program = tuple[Callable[[Any], Any], Any]


def simulate(num_data: int, dim: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(num_data, dim)) / np.sqrt(dim)
    return features, (features @ rng.normal(size=dim) + rng.logistic(size=num_data) > 0).astype(float)


def quell_program(features: np.ndarray, labels: np.ndarray, names: list[str] | str, steps: int) -> Program:
    model = quell.logistic_regression(features, labels)
    sampler = quell.Sampler(num_replicates=BATCH, batch_size=1)
    problem = quell.Problem(model, quell.FullRank(model.dim))
    gradient = quell.Gradient(problem, quell.paper.variates(names), sampler=sampler)
    optimizer = optax.adam(1e-3)

    def step(carry: Any, key: jax.Array) -> tuple[Any, Any]:
        params, optimizer_state, state = carry
        loss_grad, state, info = gradient.update(key, params, state)
        updates, optimizer_state = optimizer.update(loss_grad, optimizer_state)
        return (optax.apply_updates(params, updates), optimizer_state, state), info.elbo

    params = problem.family.init()
    keys = jax.random.split(jax.random.key(0), steps)
    program = jax.jit(lambda carry: jax.lax.scan(step, carry, keys))
    return program, (params, optimizer.init(params), gradient.init(params))


def numpyro_program(features: np.ndarray, labels: np.ndarray, steps: int) -> Program:
    x, y = jnp.asarray(features), jnp.asarray(labels)

    def model() -> None:
        weights = numpyro.sample("weights", dist.Normal(jnp.zeros(x.shape[1]), 1.0).to_event(1))
        with numpyro.plate("data", len(y), subsample_size=BATCH) as rows:
            numpyro.sample("y", dist.Bernoulli(logits=x[rows] @ weights), obs=y[rows])

    svi = SVI(model, AutoMultivariateNormal(model), optax.adam(1e-3), Trace_ELBO())
    program = jax.jit(lambda state: jax.lax.scan(lambda s, _: svi.update(s), state, None, length=steps))
    return program, svi.init(jax.random.key(0))


def microseconds(programs: dict[str, Program], steps: int, repeats: int) -> dict[str, float]:
    for program, start in programs.values():
        jax.block_until_ready(program(start))
    best = dict.fromkeys(programs, float("inf"))
    for _ in range(repeats):
        for name, (program, start) in programs.items():
            began = time.perf_counter()
            jax.block_until_ready(program(start))
            best[name] = min(best[name], (time.perf_counter() - began) / steps * 1e6)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", help="JSON file for the figures")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--work", type=float, default=15_000.0, help="steps times dimension of one timing")
    options = parser.parse_args()
    rows = []
    print(f"jax {jax.__version__} on {jax.devices()[0].device_kind}, {platform.machine()}")
    print(f"{'problem':18}{'NumPyro':>10}{'base':>10}{'S7':>10}{'cheap':>10}{'base/NumPyro':>14}{'cheap/base':>12}")
    for problem, (num_data, dim) in PROBLEMS.items():
        features, labels = simulate(num_data, dim)
        steps = max(50, int(options.work / dim))
        programs = {"numpyro_us": numpyro_program(features, labels, steps)}
        programs |= {key: quell_program(features, labels, names, steps) for key, names in ENSEMBLES.items()}
        us = microseconds(programs, steps, options.repeats)
        rows.append({"problem": problem, **{key: round(value, 1) for key, value in us.items()}})
        ratios = us["base_us"] / us["numpyro_us"], us["cheap_us"] / us["base_us"]
        times = (us["numpyro_us"], us["base_us"], us["s7_us"], us["cheap_us"])
        print(f"{problem:18}" + "".join(f"{t:10.0f}" for t in times) + f"{ratios[0]:14.2f}{ratios[1]:12.2f}")
    if options.out:
        with open(options.out, "w") as file:
            json.dump({"rows": rows, "jax": jax.__version__, "machine": platform.machine()}, file, indent=2)


if __name__ == "__main__":
    main()
