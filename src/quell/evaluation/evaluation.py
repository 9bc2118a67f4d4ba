# SPDX-License-Identifier: Apache-2.0
"""One draw, seen at the current parameters: what every estimator of a step is evaluated on."""

from collections.abc import Callable, Hashable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from quell.data.access import on_disk, take_rows
from quell.evaluation.draw import Draw
from quell.evaluation.problem import Problem
from quell.families import AbstractGradientAlgebra, AbstractTransport


class Batch(eqx.Module):
    """Some rows of the data, or all of them.

    Args:
        data: the data's tree with a leading axis of the rows taken, or rows on disk.
        is_full: whether these are all data.
    """

    data: PyTree
    is_full: bool = eqx.field(static=True)

    @property
    def rows(self) -> PyTree:
        """The rows, as arrays; all data at once are refused where they lie on disk."""
        if on_disk(self.data):
            raise ValueError(
                f"Estimators and variates that take all data at once need them in memory, got {self.data}; try "
                "`sampler=quell.Sampler(10, 100)` without `full_data=True`. `Reparameterization` and `ClosedForm` take "
                "all data in blocks."
            )
        return self.data


class Evaluation:
    """One draw at the current parameters.

    It lives within one traced step, so that latents, gathered rows and decompositions are shared by all
    the estimators that ask for them.

    Args:
        problem: model and family.
        params: of the family.
        draw: the randomness of the step.
    """

    def __init__(self, problem: Problem, params: PyTree, draw: Draw) -> None:
        """Carry the noise to latents of the family."""
        self.problem, self.params, self.draw = problem, params, draw
        self.algebra: AbstractGradientAlgebra = problem.family.algebra(params, draw.noise)
        self._computed: dict[Hashable, Any] = {}

    @property
    def dtype(self) -> Any:
        """The precision of the step."""
        return jnp.result_type(*jax.tree.leaves(self.params))

    def once(self, name: Hashable, compute: Callable[[], Any]) -> Any:
        """A value that several estimators of the step share; whoever asks first computes it."""
        if name not in self._computed:
            self._computed[name] = compute()
        return self._computed[name]

    def latents(self, transport: AbstractTransport) -> Float[Array, "sample latent"]:
        """The latents under a transport."""
        return self.once(transport, lambda: self.algebra.latents(transport))

    def _minibatch(self) -> Batch:
        data, draw = self.problem.model.data, self.draw
        if draw.index is None:
            return Batch(data, is_full=True)
        return Batch(take_rows(data, draw.index, draw.upcoming), is_full=False)

    def _batch(self, *, full_data: bool) -> Batch:
        return Batch(self.problem.model.data, is_full=True) if full_data else self.once(Batch, self._minibatch)

    def reads_all(self, *, full_data: bool) -> bool:
        """Whether a function of all data has to go through them in blocks, because they lie on disk."""
        return on_disk(self.problem.model.data) and (full_data or self.draw.index is None)

    def has_batch_axis(self, *, full_data: bool) -> bool:
        """Whether each replicate sees data of its own."""
        return not full_data and self.draw.index is not None and self.draw.index.ndim == 2

    def map_batches(self, function: Callable[[Batch], Any], *, full_data: bool) -> Any:
        """Apply a function of a batch: once where all replicates see the same data, else to each."""
        batch = self._batch(full_data=full_data)
        return jax.vmap(function)(batch) if self.has_batch_axis(full_data=full_data) else function(batch)

    def map(self, function: Callable[[Array, Batch], Any], transport: AbstractTransport, *, full_data: bool) -> Any:
        """Apply a function of one latent and one batch to each replicate."""
        axis = 0 if self.has_batch_axis(full_data=full_data) else None
        return jax.vmap(function, in_axes=(0, axis))(self.latents(transport), self._batch(full_data=full_data))


def batch_factor(problem: Problem, batch: Batch) -> float:
    """How many data each datum of a batch stands for."""
    return problem.model.num_data / jax.tree.leaves(batch.rows)[0].shape[0]
