# SPDX-License-Identifier: Apache-2.0
"""BlackJAX: Gaussian variational inference with Adam and the sticking-the-landing gradient, and its Pathfinder."""

from typing import Any, NamedTuple

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import optax
from blackjax.optimizers.lbfgs import lbfgs_inverse_hessian_formula_1
from blackjax.vi import fullrank_vi, meanfield_vi

from experiments.bench.adam_runner import cosine_decay
from experiments.bench.gaussian import Gaussian
from experiments.bench.problems import BenchProblem
from experiments.bench.runner import ADAM, ADAM_QUICK, AbstractRunner, Method, structure_label


class State(NamedTuple):
    vi: Any
    rate: Any
    length: Any
    key: Any
    step: Any


class VIRunner(AbstractRunner):
    """All steps of `fullrank_vi.step` or `meanfield_vi.step` in one compiled loop."""

    def __init__(self, bench: BenchProblem, batch_size: int | None, num_samples: int, axes: Any) -> None:
        self.bench, self.batch_size, self.num_samples, self.axes = bench, batch_size, num_samples, axes
        self.label = structure_label(batch_size, num_samples)
        self.vi = fullrank_vi if bench.full_rank else meanfield_vi
        self._advance, self._compiled_gaussian = jax.jit(self._loop), jax.jit(self._gaussian)

    def _optimizer(self, rate, length):
        return optax.adam(lambda count: rate * cosine_decay(count, length))

    def start(self, key, mean, setting):
        optimizer = self._optimizer(setting["rate"], setting["length"])
        log_scale = jnp.full(mean.shape, jnp.log(setting["scale"]))
        if self.bench.full_rank:
            scale = jnp.concatenate([log_scale, jnp.zeros(mean.size * (mean.size - 1) // 2)])
            vi = fullrank_vi.FRVIState(mean, scale, optimizer.init((mean, scale)))
        else:
            vi = meanfield_vi.MFVIState(mean, log_scale, optimizer.init((mean, log_scale)))
        start = State(vi, jnp.float32(setting["rate"]), jnp.float32(setting["length"]), key, jnp.int32(0))
        return jax.tree.map(lambda leaf: jax.lax.convert_element_type(leaf, jnp.asarray(leaf).dtype), start)

    def _loop(self, data, state, until):
        optimizer = self._optimizer(state.rate, state.length)

        def body(now):
            noise_key, data_key = jax.random.split(jax.random.fold_in(now.key, now.step))
            batch = data
            if self.batch_size is not None:
                index = jax.random.randint(data_key, (self.batch_size,), 0, self.bench.num_data)
                batch = jax.tree.map(lambda array: array[index], data)

            def log_density(z):
                return self.bench.log_joint(z, batch)

            after, _ = self.vi.step(noise_key, now.vi, log_density, optimizer, self.num_samples)
            return now._replace(vi=after, step=now.step + 1)

        return jax.lax.while_loop(lambda now: now.step < until, body, state)

    def advance(self, state, until):
        return self._advance(self.bench.problem.model.data, state, np.int32(until))

    def gaussian(self, state):
        return self._compiled_gaussian(state.vi)

    def _gaussian(self, vi):
        if not self.bench.full_rank:
            return Gaussian(vi.mu, jnp.exp(vi.rho))
        dim = self.bench.dim
        lower = jnp.zeros((dim, dim)).at[jnp.tril_indices(dim, k=-1)].set(vi.chol_params[dim:])
        return Gaussian(vi.mu, lower + jnp.diag(jnp.exp(vi.chol_params[:dim])))


class PathfinderRunner(AbstractRunner):
    """One call of Pathfinder: the best Gaussian along the path of L-BFGS."""

    axes: Any = {}  # noqa: RUF012

    def __init__(self, bench: BenchProblem, num_samples: int) -> None:
        self.bench, self.label = bench, f"all rows, {num_samples} samples per iterate"

        def approximate(data, key, mean):
            state, _ = blackjax.vi.pathfinder.approximate(
                key, lambda z: bench.log_joint(z, data), mean, num_samples=num_samples, maxiter=100
            )
            return state

        self._approximate = jax.jit(approximate)

    def start(self, key, mean, setting):
        return key, mean, None

    def advance(self, state, until):
        key, mean, _ = state
        return key, mean, self._approximate(self.bench.problem.model.data, key, mean)

    def gaussian(self, state):
        _, mean, found = state
        if found is None:
            return Gaussian(mean, jnp.eye(self.bench.dim))
        covariance = lbfgs_inverse_hessian_formula_1(found.alpha, found.beta, found.gamma)
        noise_mean = found.position + covariance @ found.grad_position
        return Gaussian(noise_mean, jnp.linalg.cholesky(covariance))

    def most_steps(self, setting):
        return 1


def methods(bench: BenchProblem, quick: bool) -> list[Method]:
    """Variational inference with minibatches and all rows, one sample and ten; Pathfinder where it fits the family."""
    structures = [(bench.batch_size, 1), (bench.batch_size, 10), (None, 1), (None, 10)]
    axes = ADAM_QUICK if quick else ADAM
    found = [Method("blackjax VI", lambda: [VIRunner(bench, *one, axes) for one in structures[: 2 if quick else 4]])]
    if bench.full_rank and not quick:
        found.append(Method("blackjax pathfinder", lambda: [PathfinderRunner(bench, num) for num in (10, 200)]))
    return found
