# SPDX-License-Identifier: Apache-2.0
"""pymc-extras: the Laplace approximation and Pathfinder, each one call."""

import logging
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pymc_extras as pmx

from experiments.bench.gaussian import Gaussian
from experiments.bench.peers import pymc_peer
from experiments.bench.problems import BenchProblem
from experiments.bench.runner import AbstractRunner, Method

NUM_DRAWS = 10_000
"""Pathfinder hands out draws; its Gaussian is that of their moments."""


class OneShotRunner(AbstractRunner):
    """One call is one step; what the library compiles anew at each call is on the clock."""

    axes: Any = {}  # noqa: RUF012

    def __init__(self, bench: BenchProblem) -> None:
        self.bench, self.label = bench, "one call"
        self.model = pymc_peer.pymc_model(bench, None)

    def start(self, key, mean, setting):
        seed = int(jax.random.randint(key, (), 0, 2**31 - 1))
        return {"seed": seed, "found": None, "mean": mean}

    def advance(self, state, until):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            logging.disable(logging.WARNING)
            try:
                return state | {"found": self.call(state["seed"])}
            finally:
                logging.disable(logging.NOTSET)

    def call(self, seed: int) -> Any:
        raise NotImplementedError

    def moments(self, found: Any) -> tuple[np.ndarray, np.ndarray]:
        raise NotImplementedError

    def gaussian(self, state):
        if state["found"] is None:
            return Gaussian(state["mean"], jnp.eye(self.bench.dim))
        names = [variable.name for variable in self.model.continuous_value_vars]
        back = np.argsort(pymc_peer.flat_order(self.bench, names))
        mean, covariance = self.moments(state["found"])
        return Gaussian(jnp.asarray(mean[back]), jnp.linalg.cholesky(jnp.asarray(covariance[back][:, back])))

    def most_steps(self, setting):
        return 1


class LaplaceRunner(OneShotRunner):
    def call(self, seed):
        options = {"optimize_method": "trust-ncg", "draws": 2, "progressbar": False}
        return pmx.fit_laplace(model=self.model, random_seed=seed, **options)

    def moments(self, found):
        return found.fit["mean_vector"].to_numpy(), found.fit["covariance_matrix"].to_numpy()


class PathfinderRunner(OneShotRunner):
    def call(self, seed):
        options = {"num_paths": 1, "jitter": 0.1, "importance_sampling": None, "concurrent": None}
        draws = {"num_draws": NUM_DRAWS, "num_draws_per_path": NUM_DRAWS}
        return pmx.fit_pathfinder(
            model=self.model, random_seed=seed, progressbar=False, display_summary=False, **options, **draws
        )

    def moments(self, found):
        columns = []
        for variable in self.model.continuous_value_vars:
            is_log = variable.name.endswith("_log__")
            draws = found.posterior[variable.name.removesuffix("_log__")].to_numpy()
            flat = draws.reshape(draws.shape[0] * draws.shape[1], -1)
            columns.append(np.log(flat) if is_log else flat)
        table = np.concatenate(columns, axis=1)
        return table.mean(axis=0), np.cov(table.T)


def methods(bench: BenchProblem, quick: bool) -> list[Method]:
    """Both have all correlations, so they run where the family has; and on data that one call can take in."""
    if not bench.full_rank or quick or bench.num_data > 20_000:
        return []
    return [
        Method("pymc-extras laplace", lambda: [LaplaceRunner(bench)]),
        Method("pymc-extras pathfinder", lambda: [PathfinderRunner(bench)]),
    ]
