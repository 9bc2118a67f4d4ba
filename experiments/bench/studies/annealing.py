# SPDX-License-Identifier: Apache-2.0
"""Natural-gradient steps with a decaying rate, on networks, whose ELBO has many optima: where many seeds end.

The steps are those of an automatic fit whose density is far from a Gaussian: ten samples, the gradient with the path of
log q, a cosine to zero. What varies is the rate of the location, the share of it that the scale has, and the power that
the likelihood begins with and leaves in the first third. All seeds of all settings are one program: on a GPU it
takes seconds per network, on a CPU minutes.

    python -m experiments.bench.studies.annealing --seeds 32 --out annealing.json
"""

import argparse
import dataclasses
import functools
import itertools
import json
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import quell
from experiments.bench import models, problems
from quell.families.full_rank_geometry import WhitenedDirection

SAMPLES, MAX_KL, START_SCALE, HOT = 10, 5.0, 0.1, 0.35
NETWORKS = {
    "7 units, 2 inputs, 300 rows": (11, 7, 300, 2, True),
    "7 units, 2 inputs, 300 rows, from zero": (12, 7, 300, 2, False),
    "15 units, 3 inputs, 500 rows": (13, 15, 500, 3, True),
    "20 units, 2 inputs, 300 rows, from zero": (14, 20, 300, 2, False),
    "5 units, 1 input, 200 rows": (15, 5, 200, 1, True),
    "10 units, 2 inputs, 1000 rows": (16, 10, 1000, 2, True),
}


class Setting(NamedTuple):
    """A number, or one for each run."""

    rate: Any
    scale_rate: Any
    power: Any


SETTINGS = [Setting(0.15, 1.0, 1.0), Setting(0.3, 0.5, 1.0), Setting(0.6, 0.3, 1.0), Setting(0.2, 1.0, 0.1)]


def network(seed: int, units: int, rows: int, inputs: int, from_mode: bool) -> problems.BenchProblem:
    """A regression whose function a network of few units does not have exactly."""
    rng = np.random.default_rng(seed)
    x, w = rng.uniform(-2, 2, size=(rows, inputs)), rng.normal(size=(inputs, 3))
    y = np.sin(1.2 * x @ w[:, 0]) + 0.5 * np.tanh(2 * x @ w[:, 1]) * (x @ w[:, 2]) + 0.3 * rng.normal(size=rows)
    function = functools.partial(models.network, units=units)
    bench = problems.from_numpyro(str(seed), function, (jnp.asarray(x), jnp.asarray(y)), full_rank=True)
    return dataclasses.replace(bench, start=problems.mode_of(bench)) if from_mode else bench


def run(bench: problems.BenchProblem, settings: list[Setting], seeds: int, steps: int) -> Float[Array, "setting seed"]:
    """The ELBO that each seed of each setting ends with, on draws that all have in common."""
    model, dim = bench.problem.model, bench.dim
    family = quell.FullRank(dim)
    geometry = family.geometry

    def log_joint(z: Float[Array, "latent"], power: Any = 1.0) -> Float[Array, ""]:
        return power * jnp.sum(model.log_likelihood(z, model.data)) + model.prior.log_prob(z)

    def step(setting: Setting, key: Array, params: Any, count: Array) -> tuple[Any, None]:
        part, tril = count / steps, family.scale_tril(params)
        noise = jax.random.normal(jax.random.fold_in(key, count), (SAMPLES, dim))
        power = setting.power ** jnp.maximum(0.0, 1.0 - part / HOT)
        white = jax.vmap(jax.grad(log_joint), (0, None))(params.loc + noise @ tril.T, power) @ tril + noise
        direction = WhitenedDirection(jnp.mean(white, axis=0), jnp.tril(white.T @ noise) / SAMPLES)
        slower = direction._replace(scale=setting.scale_rate * direction.scale)
        rate = 0.5 * setting.rate * (1.0 + jnp.cos(jnp.pi * part))
        rate = jnp.minimum(rate, jnp.sqrt(2.0 * MAX_KL / geometry.sq_norm(params, slower)))
        return geometry.move(params, direction, rate, setting.scale_rate), None

    def one(setting: Setting, key: Array) -> Float[Array, ""]:
        start = family.init()._replace(loc=bench.start, scale=jnp.log(START_SCALE) * jnp.eye(dim))
        end, _ = jax.lax.scan(functools.partial(step, setting, key), start, jnp.arange(steps))
        common = jax.random.normal(jax.random.key(99), (2000, dim))
        latents = end.loc + common @ family.scale_tril(end).T
        return jnp.mean(jax.lax.map(log_joint, latents, batch_size=100)) + family.entropy(end)

    pairs = list(itertools.product(settings, jax.random.split(jax.random.key(5), seeds)))
    stacked = Setting(*(jnp.asarray(column) for column in zip(*(setting for setting, _ in pairs), strict=True)))
    elbos = jax.jit(jax.vmap(one))(stacked, jnp.stack([key for _, key in pairs]))
    return elbos.reshape(len(settings), seeds)


def main() -> None:
    """Print and keep quantiles over seeds for each network and setting."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=32)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--networks", type=int, default=len(NETWORKS), help="how many, after that of the benchmark")
    parser.add_argument("--out", type=Path, default=Path("annealing.json"))
    options = parser.parse_args()
    rows = []
    for name in ["network of the benchmark", *list(NETWORKS)[: options.networks]]:
        bench = network(*NETWORKS[name]) if name in NETWORKS else problems.make_problem("network")
        elbos = np.asarray(run(bench, SETTINGS, options.seeds, options.steps))
        print(f"{name}, {bench.dim} coordinates", flush=True)
        for setting, found in zip(SETTINGS, elbos, strict=True):
            low, middle, high = (round(float(q), 2) for q in np.quantile(found, (0.1, 0.5, 0.9)))
            near = float(np.mean(found > elbos.max() - 1.0))
            rows.append({"network": name, **setting._asdict(), "elbo": [low, middle, high], "within a nat": near})
            print(f"  {setting}: {low} {middle} {high}, {near:.0%} within a nat of the best")
    machine = {"backend": jax.default_backend(), "seeds": options.seeds, "steps": options.steps}
    options.out.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
