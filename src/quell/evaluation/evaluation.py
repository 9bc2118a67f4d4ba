# SPDX-License-Identifier: Apache-2.0
"""One draw, seen at the current parameters: what every estimator of a step is evaluated on."""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array, Float, PyTree

from quell.data.access import on_disk, take_rows
from quell.evaluation.draw import Draw
from quell.evaluation.problem import Problem
from quell.families import AbstractGradientAlgebra


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
                f"An estimator or a variate asked for all data at once, and {self.data} lie on disk. One that takes "
                "minibatches, or sums over the data, was needed. Write for example `sampler=quell.Sampler(10, 100)` "
                "without `full_data=True`; `Reparameterization` and `ClosedForm` take all data in blocks."
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
        """Carry the noise to particles of the family."""
        self.problem, self.params, self.draw = problem, params, draw
        self.algebra: AbstractGradientAlgebra = problem.family.algebra(params, draw.noise)
        self._latents: dict[str, Float[Array, "sample latent"]] = {}
        self.known_values: dict[str, Float[Array, "sample"]] = {}
        """Log-likelihoods of all data by transport, where a pass over them has left them."""

    def latents(self, transport: str) -> Float[Array, "sample latent"]:
        """The latents under a transport."""
        if transport not in self._latents:
            self._latents[transport] = self.algebra.latents(transport)
        return self._latents[transport]

    @functools.cached_property
    def _minibatch(self) -> Batch:
        data, draw = self.problem.model.data, self.draw
        if draw.index is None:
            return Batch(data, is_full=True)
        return Batch(take_rows(data, draw.index, draw.upcoming), is_full=False)

    def reads_all(self, *, full_data: bool) -> bool:
        """Whether a function of all data has to go through them in blocks, because they lie on disk."""
        return on_disk(self.problem.model.data) and (full_data or self.draw.index is None)

    def has_batch_axis(self, *, full_data: bool) -> bool:
        """Whether each replicate sees data of its own."""
        return not full_data and self.draw.index is not None and self.draw.index.ndim == 2

    def map_batches(self, function: Callable[[Batch], Any], *, full_data: bool) -> Any:
        """Apply a function of a batch: once where all replicates see the same data, else to each."""
        batch = Batch(self.problem.model.data, is_full=True) if full_data else self._minibatch
        return jax.vmap(function)(batch) if self.has_batch_axis(full_data=full_data) else function(batch)

    def map(self, function: Callable[[Array, Batch], Any], transport: str, *, full_data: bool) -> Any:
        """Apply a function of one latent and one batch to each replicate."""
        batch = Batch(self.problem.model.data, is_full=True) if full_data else self._minibatch
        axis = 0 if self.has_batch_axis(full_data=full_data) else None
        return jax.vmap(function, in_axes=(0, axis))(self.latents(transport), batch)
