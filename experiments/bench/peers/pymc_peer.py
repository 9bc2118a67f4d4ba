# SPDX-License-Identifier: Apache-2.0
"""PyMC: ADVI and full-rank ADVI with Adam, stepped as `pm.fit` steps them."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt

from experiments.bench.gaussian import Gaussian
from experiments.bench.models import GROUPS, HIDDEN
from experiments.bench.problems import BenchProblem
from experiments.bench.runner import ADAM, AbstractRunner, Axis, Method, structure_label


def pymc_model(bench: BenchProblem, batch_size: int | None) -> pm.Model:
    """The benchmark's density in PyMC."""
    rows: list[Any] = [np.asarray(array, np.float64) for array in bench.rows]
    whole = WHOLE_NUMBERS[bench.numpyro_model.__name__]
    rows = [array.astype(np.int32) if number in whole else array for number, array in enumerate(rows)]
    if batch_size is not None:
        rows = list(pm.Minibatch(*rows, batch_size=batch_size))
    with pm.Model() as model:
        BUILD[bench.numpyro_model.__name__](*rows, total_size=bench.num_data)
    return model


def _logistic(features, labels, total_size):
    z = pm.Normal("z", 0.0, 1.0, shape=features.type.shape[1] if hasattr(features, "type") else features.shape[1])
    pm.Bernoulli("y", logit_p=pt.dot(features, z), observed=labels, total_size=total_size)


def _poisson(features, counts, total_size):
    z = pm.Normal("z", 0.0, 1.0, shape=features.type.shape[1] if hasattr(features, "type") else features.shape[1])
    pm.Poisson("y", pt.exp(pt.dot(features, z)), observed=counts, total_size=total_size)


def _hierarchical(group, floor, level, total_size):
    mean, slope = pm.Normal("mean", 0.0, 2.0), pm.Normal("slope", 0.0, 1.0)
    spread, noise = pm.HalfNormal("spread", 1.0), pm.HalfNormal("noise", 1.0)
    intercept = pm.Normal("intercept", mean, spread, shape=GROUPS)
    pm.Normal("level", intercept[group] + slope * floor, noise, observed=level, total_size=total_size)


def _network(inputs, targets, total_size):
    noise = pm.HalfNormal("noise", 1.0)
    first, shift = pm.Normal("first", 0.0, 1.0, shape=(2, HIDDEN)), pm.Normal("shift", 0.0, 1.0, shape=HIDDEN)
    second, offset = pm.Normal("second", 0.0, 1.0, shape=HIDDEN), pm.Normal("offset", 0.0, 1.0)
    outputs = pt.dot(pt.tanh(pt.dot(inputs, first) + shift), second) + offset
    pm.Normal("y", outputs, noise, observed=targets, total_size=total_size)


BUILD = {"logistic": _logistic, "poisson": _poisson, "hierarchical": _hierarchical, "network": _network}
WHOLE_NUMBERS = {"logistic": {1}, "poisson": {1}, "hierarchical": {0}, "network": set()}
"""Which of the rows' arrays hold whole numbers."""


def flat_order(bench: BenchProblem, names: list[str]) -> np.ndarray:
    """For each of PyMC's coordinates, with its variables in this order, the number of quell's."""
    sites = bench.problem.model.unravel(jnp.arange(bench.dim, dtype=float))
    sites = sites if isinstance(sites, dict) else {"z": sites}
    plain = [name.removesuffix("_log__") for name in names]
    return np.concatenate([np.asarray(sites[name]).ravel() for name in plain]).astype(int)


class ADVIRunner(AbstractRunner):
    """One compiled step of `pm.ADVI` or `pm.FullRankADVI` in a Python loop, which is what `pm.fit` does.

    The rate, the cosine and all parameters are shared variables, so that one compilation serves all settings. The loss
    is computed at each step, as `pm.fit` does by default: without it the compiled step (PyMC 5.28) never advances its
    random numbers.
    """

    def __init__(self, bench: BenchProblem, batch_size: int | None, num_samples: int, axes: Any) -> None:
        self.bench, self.axes = bench, axes
        self.label = structure_label(batch_size, num_samples)
        self.batch_size, self.num_samples, self.step = batch_size, num_samples, None

    def _compile(self) -> None:
        self.rate = pytensor.shared(np.float64(0.1), name="rate")
        model = pymc_model(self.bench, self.batch_size)
        kind = pm.FullRankADVI if self.bench.full_rank else pm.ADVI
        self.approx = kind(model=model)
        self.step = self.approx.objective.step_function(
            obj_n_mc=self.num_samples, obj_optimizer=pm.adam(learning_rate=self.rate), score=True
        )
        self.group = self.approx.approx.groups[0]
        self.order = flat_order(self.bench, list(self.group.ordering))
        shared = self.step.get_shared()
        self.generators = [one for one in shared if isinstance(one.get_value(), np.random.Generator)]
        self.begin = [(one, one.get_value()) for one in shared if one not in self.generators]

    def start(self, key, mean, setting):
        if self.step is None:
            self._compile()
        for variable, value in self.begin:
            variable.set_value(value)
        for number, generator in enumerate(self.generators):
            generator.set_value(np.random.default_rng([*np.asarray(jax.random.key_data(key)).tolist(), number]))
        params = self.group.params_dict
        params["mu"].set_value(np.asarray(mean, float)[self.order])
        rho = np.log(np.expm1(setting["scale"]))  # PyMC keeps scales and diagonals under a softplus
        if self.bench.full_rank:
            rows, columns = np.tril_indices(self.bench.dim)
            params["L_tril"].set_value(np.where(rows == columns, rho, 0.0))
        else:
            params["rho"].set_value(np.full(self.bench.dim, rho))
        return {"step": 0, "setting": setting}

    def advance(self, state, until):
        rate, length = state["setting"]["rate"], state["setting"]["length"]
        for step in range(state["step"], until):
            self.rate.set_value(0.5 * rate * (1.0 + np.cos(np.pi * min(step / length, 1.0))))
            self.step()
        return {"step": until, "setting": state["setting"]}

    def gaussian(self, state):
        params, back = self.group.params_dict, np.argsort(self.order)
        mean = params["mu"].get_value()[back]
        if not self.bench.full_rank:
            return Gaussian(jnp.asarray(mean), jnp.asarray(np.logaddexp(0.0, params["rho"].get_value())[back]))
        lower = np.zeros((self.bench.dim, self.bench.dim))
        lower[np.tril_indices(self.bench.dim)] = params["L_tril"].get_value()
        np.fill_diagonal(lower, np.logaddexp(0.0, np.diagonal(lower)))
        covariance = (lower @ lower.T)[back][:, back]
        return Gaussian(jnp.asarray(mean), jnp.linalg.cholesky(jnp.asarray(covariance)))  # not finite where it fails


QUICK = {"rate": Axis((0.03, 0.1), 0), "length": Axis((300.0,), 0), "scale": Axis((0.1,), 0)}


def methods(bench: BenchProblem, quick: bool) -> list[Method]:
    """ADVI of the problem's family on all rows, or on minibatches of very many; one sample and ten."""
    batch_size = None if bench.num_data <= 20_000 else bench.batch_size
    if quick:
        return [Method("pymc ADVI", lambda: [ADVIRunner(bench, batch_size, 10, QUICK)])]
    return [Method("pymc ADVI", lambda: [ADVIRunner(bench, batch_size, num, ADAM) for num in (1, 10)])]
