# SPDX-License-Identifier: Apache-2.0
"""Weights by leaf against one set of weights, and moments every few steps: remaining noise and time per step.

Moments by leaf add up to those of all parameters, so that one fit teaches both sets of weights, and both are judged on
the same fresh draws at its end. Times are ratios of alternating runs, each at its fastest.

    python -m experiments.bench.studies.block_weights --data DIRECTORY --out block_weights.json
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
import optax

import quell
from experiments.bench.studies import general_models, step_cost
from quell.combine import MomentState
from quell.diagnostics.covariance import step_covariances, variance_with

ONE, LEAF, RATE = quell.Rule(), quell.Rule(by_leaf=True), 0.02
CHEAP = ["c1", "c2", "c5", "c7"]
EVERY = (5, 10)


def problems(data_dir: Path | None) -> dict[str, tuple[quell.Problem, quell.Sampler, Any]]:
    """Problem, sampler and variates by name."""
    ten, fifty = quell.Sampler(10, 1), quell.Sampler(1, 50)
    found = {}
    for name in ("australian", "sonar"):
        data = quell.paper.load(name, data_dir=data_dir)
        model = quell.logistic_regression(data.features, data.labels)
        full = quell.Problem(model, quell.FullRank(model.dim))
        found |= {
            f"{name}, {which}": (full, ten, quell.paper.variates(names))
            for which, names in {"S7": "S7", "cheap four": CHEAP}.items()
        }
        diagonal = quell.Problem(model, quell.MeanField(model.dim))
        for which, problem in (("full-rank", full), ("mean-field", diagonal)):
            found[f"{name}, {which}, default"] = (problem, fifty, quell.default_variates(problem, fifty))
    model = general_models.varying_intercepts()
    for family in (quell.MeanField(model.dim), quell.FullRank(model.dim)):
        problem = quell.Problem(model, family)
        name = f"intercepts, {type(family).__name__}, default"
        found[name] = (problem, fifty, quell.default_variates(problem, fifty))
    return found


def program(gradient: quell.Gradient, num_steps: int, rate: float) -> tuple[Callable[[Any], Any], Any]:
    """Steps of Adam, whose rate falls to zero in a straight line."""
    optimizer = optax.scale_by_adam()

    def step(carry: Any, key_and_rate: Any) -> tuple[Any, None]:
        (params, memory, state), (key, size) = carry, key_and_rate
        grad, state, _ = gradient.update(key, params, state)
        updates, memory = optimizer.update(grad, memory)
        return (jax.tree.map(lambda leaf, move: leaf - size * move, params, updates), memory, state), None

    keys = jax.random.split(jax.random.key(0), num_steps), rate * jnp.linspace(1.0, 0.0, num_steps)
    params = gradient.problem.family.init()
    start = params, optimizer.init(params), gradient.init(params)
    return jax.jit(lambda carry: jax.lax.scan(step, carry, keys)[0]), start


def ratios(programs: dict[str, tuple[Callable[[Any], Any], Any]], repeats: int) -> dict[str, float]:
    """Times over that of the first program."""
    for run, start in programs.values():
        jax.block_until_ready(run(start))
    best = dict.fromkeys(programs, float("inf"))
    for _ in range(repeats):
        for name, (run, start) in programs.items():
            began = time.perf_counter()
            jax.block_until_ready(run(start))
            best[name] = min(best[name], time.perf_counter() - began)
    first = next(iter(best.values()))
    return {name: round(value / first, 3) for name, value in best.items()}


def compare(problem: quell.Problem, sampler: quell.Sampler, variates: Any, steps: int) -> dict[str, Any]:
    """Remaining variance with one set of weights and with one per leaf, over that of the base gradient."""
    leaf, one = (quell.Gradient(problem, variates, sampler=sampler, rule=rule) for rule in (LEAF, ONE))
    run, start = program(leaf, steps, RATE)
    params, _, state = run(start)
    covariances = step_covariances(jax.random.key(1), leaf, params, state, num=400)
    by_leaf = np.asarray(leaf.weights(state), float)
    summed = MomentState(state.moments.total.sum(axis=0), state.moments.mass[0])
    together = np.asarray(ONE.weights(summed, num_units=sampler.num_units, num_params=problem.family.num_params), float)
    base = covariances[..., 0, 0].mean(axis=0)
    left = {
        name: variance_with(covariances, np.broadcast_to(weights, by_leaf.shape)).mean(axis=0)
        for name, weights in (("one", together), ("leaf", by_leaf))
    }
    timed = ratios({"one": program(one, 100, 0.0), "leaf": program(leaf, 100, 0.0)}, 5)
    return {
        "left_one": left["one"].sum() / base.sum(),
        "left_by_leaf": left["leaf"].sum() / base.sum(),
        "gain": left["one"].sum() / left["leaf"].sum(),
        "gain_of_each_leaf": dict(zip(leaf.leaves, (left["one"] / left["leaf"]).tolist(), strict=True)),
        "step_time": timed["leaf"],
    }


def every(num_data: int, dim: int, names: Any, repeats: int) -> dict[str, float]:
    """Time of a step with moments every few steps, over that with moments at each step."""
    model = quell.logistic_regression(*step_cost.simulate(num_data, dim))
    problem, sampler = quell.Problem(model, quell.FullRank(model.dim)), quell.Sampler(10, 1)
    steps = max(20, 3000 // dim)
    rules = {"every 1": ONE} | {f"every {k}": quell.Rule(every=k) for k in EVERY}
    some = {
        name: program(quell.Gradient(problem, quell.paper.variates(names), sampler=sampler, rule=rule), steps, 0.0)
        for name, rule in rules.items()
    }
    bare = program(quell.Gradient(problem, (), sampler=sampler), steps, 0.0)
    return ratios(some | {"no variates": bare}, repeats)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with australian.csv")
    parser.add_argument("--out", help="JSON file for the figures")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", choices=["leaf", "every"], help="one of the two tables")
    options = parser.parse_args()
    leaf_rows, every_rows = [], []
    if options.only != "every":
        for name, (problem, sampler, variates) in problems(options.data).items():
            row = {"problem": name, **compare(problem, sampler, variates, options.steps)}
            leaf_rows.append(row)
            print(
                f"{name:40} gain {row['gain']:.3f}, step {row['step_time']:.2f}", row["gain_of_each_leaf"], flush=True
            )
    if options.only != "leaf":
        for name, size in step_cost.PROBLEMS.items():
            for which, names in (("cheap four", CHEAP), ("S7", "S7")):
                every_rows.append({"problem": name, "variates": which, **every(*size, names, options.repeats)})
                print(every_rows[-1], flush=True)
    if options.out:
        facts = {"jax": jax.__version__, "machine": platform.machine()}
        Path(options.out).write_text(json.dumps({"by_leaf": leaf_rows, "every": every_rows, **facts}, indent=2) + "\n")


if __name__ == "__main__":
    main()
