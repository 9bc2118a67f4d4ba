# SPDX-License-Identifier: Apache-2.0
"""The ELBO on common random numbers: a deterministic function of the parameters."""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from quell.core.checks import first_line
from quell.core.host import compiled_part
from quell.estimators.smoothness import has_no_kinks
from quell.evaluation import Problem
from quell.evaluation.problem import elbo_summands
from quell.fit.common_noise import Draws, Noise, NoiseOfBlock, common_noise
from quell.fit.trust_region import inner
from quell.models import AbstractModel

DRAWS, LEAST_DRAWS = 64, 8
"""Of a block at least, and where there are too many data for that."""

DRAWS_AT_ONCE = 32
"""Of a block, if that is enough for a first round: fewer make no better use of a processor."""

DRAWS_PER_PARAM = 1.5
"""Pairs of a block at least, for each parameter of a coordinate: two in mean field, half the dimension in full rank."""

LARGEST_WHITENED = 128
"""With more coordinates of noise than this, draws are whitened coordinate by coordinate only."""

MOST_VALUES = 2**21
"""Log-likelihoods of single data that a block may take: with more, its draws are fewer and whitened less."""

MOST_DRAWS, MOST_VALUES_OF_ALL = 2**17, 2**22
"""Of all blocks together: some tenths of a second of a gradient on two cores."""

MOST_PARAMS = 100_000
"""With more parameters than this conjugate gradients take too much time and memory, and so does a block of draws."""

VALUES_AT_ONCE = 2**18
"""Of them in memory at a time."""

MOST_LOST = 0.01
"""Share of draws at which the log density or its gradient may be infinite or NaN, as where an ODE solver fails: they
are left out, and one always is. With more of them the ELBO is not finite."""

LARGEST_SEARCH = 2**30
"""Log-likelihoods of single data, in gradients on draws: where another start that takes as many as the first would go
beyond, none is tried. The first takes some ten seconds then. Half of the starts of a mixture of two normal
distributions end thousands of nats below the better optimum, and say that they have converged."""

LARGEST_EXACT_SEARCH, VALUES_OF_PARAM = 2**26, 4
"""The same of addends at nodes, in gradients of an exact ELBO, where the first takes half a second to four then; and
how many of them take as long as a parameter of a product with the Hessian. On five models of 108 to 12,885 latents no
start ended in a better optimum than the first that ended in one."""

DIFFERENCE = 0.1
"""Length, in the chart, of the step to either side in a difference of gradients."""


class LocalElbo(NamedTuple):
    """The ELBO on common random numbers around some parameters.

    Args:
        value: in nats.
        grad: in the coordinates of the geometry's chart.
        noise: half the difference of the gradients of the even and of the odd blocks. It has the distribution that the
            sampling error of `grad` has, and is not correlated with it. Zero for one block, which has no halves.
        lost: share of the draws that was left out.
        size: the sum of the absolute values of what the value is the sum of, which is rounded as they are.
    """

    value: Float[Array, ""]
    grad: PyTree
    noise: PyTree
    lost: Float[Array, ""]
    size: Float[Array, ""]

    @property
    def rounding(self) -> Float[Array, ""]:
        """A unit of it, in nats."""
        return jnp.finfo(self.size.dtype).eps * self.size


class Sums(NamedTuple):
    """Over draws: of the log joint, of its gradient for the parameters, and how many they are."""

    value: Float[Array, ""]
    grad: PyTree
    count: Float[Array, ""]  # pyright: ignore[reportIncompatibleMethodOverride]


class CommonDraws(eqx.Module):
    r"""The mean of \(\log p(x, z_s)\) over draws \(z_s = \mu + L\epsilon_s\) of fixed noise, plus the entropy.

    The noise is [whitened][quell.fit.common_noise.common_noise].

    Args:
        problem: model and Gaussian family.
        pairs: of a block, in two halves.
        few: pairs of a block that are enough far from the optimum.
        is_smooth: whether derivatives of second order are known to be there, and to see all curvature. Otherwise a
            product is a difference of gradients over a fifth of a standard deviation, which sees that of kinks too.
        is_alone: whether no other fit is beside this one. Then some starts are near the mode, of few coordinates too.

    Bias: that of the noise. The ELBO of a result is free of it.
    Cost: of a value one pass over all data for each draw; a gradient takes about three, a product five.
    """

    problem: Problem
    pairs: int = eqx.field(static=True)
    few: int = eqx.field(static=True)
    is_smooth: bool = eqx.field(static=True)
    is_alone: bool = eqx.field(static=True, default=True)

    is_exact = False

    @property
    def pieces(self) -> int:
        """That the draws of a block come in, so that memory holds the log-likelihoods of one; a divisor."""
        draws, at_once = 2 * self.pairs, max(1, VALUES_AT_ONCE // self.problem.model.num_data)
        most = min(at_once, max(DRAWS_AT_ONCE, 2 * self.few))
        least = 4 if most >= 4 else 1  # of both halves and with their mirror, where memory allows that
        sizes = (size for size in range(min(most, draws), 0, -1) if draws % size == 0 and size % least == 0)
        return draws // next(sizes)

    @property
    def draws_at_once(self) -> int:
        """Of a piece."""
        return 2 * self.pairs // self.pieces

    @property
    def has_many_coordinates(self) -> bool:
        """More than a block can be whitened for."""
        return self.problem.model.dim > LARGEST_WHITENED

    @property
    def search_share(self) -> float:
        """Of the longest search, that a gradient is."""
        return self.problem.model.num_data / LARGEST_SEARCH

    @property
    def first_pieces(self) -> int:
        """Of each block in the first round: all where they are few, or where coordinates are many.

        A part of a block is not whitened, and its noise grows with the number of coordinates.
        """
        if 2 * self.few > self.pairs or self.has_many_coordinates:
            return self.pieces
        return min(self.pieces, math.ceil(self.few * self.pieces / self.pairs))

    @property
    def most_blocks(self) -> int:
        """An even number."""
        draws = min(MOST_DRAWS, MOST_VALUES_OF_ALL // self.problem.model.num_data)
        return max(2, draws // (2 * self.pairs) // 2 * 2)

    def cost(
        self, draws: Draws, values: Int[Array, ""] | int = 0, products: Int[Array, ""] | int = 0
    ) -> Float[Array, ""]:
        """Gradients of the log density that values and products take."""
        return (values + 2 * products) * draws.total * float(self.draws_at_once)

    @classmethod
    def of(cls, problem: Problem, *, is_alone: bool = True) -> "CommonDraws | None":
        """For a problem; `None` where a block would take too long."""
        noise = jax.eval_shape(lambda: problem.family.noise(jax.random.key(0), 1, float))
        size, num_data = noise.shape[1], problem.model.num_data
        whole = max(DRAWS // 2, 2 * size)
        # A coordinate with more parameters than draws could fit each of them, and its entropy would have no bound.
        few = max(LEAST_DRAWS // 2, 2 * math.ceil(DRAWS_PER_PARAM / 2 * problem.family.num_params / problem.model.dim))
        some = min(DRAWS // 2, MOST_VALUES // (2 * num_data) // 2 * 2)
        pairs = whole if size <= LARGEST_WHITENED and 2 * whole * num_data <= MOST_VALUES else max(few, some)
        if 2 * pairs * num_data > MOST_VALUES_OF_ALL or problem.family.num_params > MOST_PARAMS:
            return None
        is_smooth = has_no_kinks(problem) and _refuses_products(problem) is None
        return cls(problem, pairs, few, is_smooth, is_alone)

    def around(self, params: PyTree, draws: Draws) -> LocalElbo:
        """Value and gradient."""
        return self._at(params, self.problem.family.geometry.origin(params), draws, self._noise(params, draws))

    def product(self, params: PyTree, draws: Draws) -> Callable[[PyTree], PyTree]:
        """The Hessian in the chart, as a function of a vector."""
        return functools.partial(self._product, params, draws, self._noise(params, draws))

    def _noise(self, params: PyTree, draws: Draws) -> NoiseOfBlock:
        return common_noise(self.problem.family, self.pairs, draws, jax.tree.leaves(params)[0].dtype)

    def log_joints(self, points: Float[Array, "point latent"]) -> Float[Array, "point"]:
        """The log joint at some points, in pieces as those of a block."""
        num, size = points.shape[0], self.draws_at_once
        whole = points[np.arange(math.ceil(num / size) * size) % num].reshape(-1, size, points.shape[1])
        return jax.lax.map(lambda piece: log_joints(self.problem.model, piece)[0], whole).reshape(-1)[:num]

    def _product(self, params: PyTree, draws: Draws, noise: NoiseOfBlock, vector: PyTree) -> PyTree:
        origin = self.problem.family.geometry.origin(params)

        def slope(at: PyTree) -> PyTree:
            return self._at(params, at, draws, noise, with_halves=False).grad

        if self.is_smooth:
            return jax.jvp(slope, (origin,), (vector,))[1]
        length = jnp.sqrt(inner(vector, vector))
        step = DIFFERENCE / jnp.maximum(length, jnp.finfo(length.dtype).tiny)

        def add(side: Int[Array, ""], total: PyTree) -> PyTree:
            sign = 1 - 2 * side.astype(step.dtype)
            there = jax.tree.map(lambda leaf: sign * step * leaf, vector)
            return jax.tree.map(lambda sum_, leaf: sum_ + sign / (2 * step) * leaf, total, slope(there))

        return jax.lax.fori_loop(0, 2, add, origin)

    def _at(
        self, params: PyTree, at: PyTree, draws: Draws, noise: NoiseOfBlock, *, with_halves: bool = True
    ) -> LocalElbo:
        """Value and gradient at a point of the chart around the parameters."""
        family = self.problem.family
        there, pull = jax.vjp(lambda at: family.geometry.chart(params, at), at)
        entropy, widening = jax.value_and_grad(family.entropy)(there)
        nothing = Sums(jnp.zeros_like(entropy), jax.tree.map(jnp.zeros_like, there), jnp.zeros_like(entropy))

        def add(piece: Noise, block: Int[Array, ""], sums: tuple[Sums, ...]) -> tuple[Sums, ...]:
            found, sign = self._on_piece(there, piece), 1 - 2 * (block % 2).astype(entropy.dtype)
            signed = (found, jax.tree.map(lambda leaf: sign * leaf, found))
            return jax.tree.map(jnp.add, sums, signed[: len(sums)])

        def slope(sums: Sums) -> PyTree:
            (grad,) = pull(jax.tree.map(lambda leaf, wide: leaf + sums.count * wide, sums.grad, widening))
            return jax.tree.map(lambda leaf: leaf / present, grad)

        found, *differ = self._over(draws, noise, add, (nothing, nothing) if with_halves else (nothing,))
        count = draws.total * self.draws_at_once
        lost, present = count - found.count, jnp.maximum(found.count, 1.0)
        mean = found.value / present
        value, size = mean + entropy, jnp.abs(mean) + jnp.abs(entropy)
        value = jnp.where(lost > jnp.maximum(MOST_LOST * count, 1.0), jnp.nan, value)
        halves = [jax.tree.map(lambda leaf: jnp.where(draws.blocks > 1, leaf, 0.0), slope(one)) for one in differ]
        return LocalElbo(value, slope(found), halves[0] if halves else (), lost / count, size)

    def _over(self, draws: Draws, noise: NoiseOfBlock, add: Callable[..., PyTree], start: PyTree) -> PyTree:
        """Go through the pieces of each block."""

        def over_block(number: Int[Array, ""], total: PyTree) -> PyTree:
            block = noise(number)
            pieces = block.reshape(self.pieces, -1, block.shape[1])
            return jax.lax.fori_loop(0, draws.pieces, lambda at, sums: add(pieces[at], number, sums), total)

        return jax.lax.fori_loop(0, draws.blocks, over_block, start)

    def _on_piece(self, params: PyTree, noise: Noise) -> Sums:
        """Sums over those of some draws at which the log density and its gradient are finite."""

        def latents(params: PyTree) -> Float[Array, "draw latent"]:
            return jax.vmap(lambda one: self.problem.family.sample(params, one))(noise)

        z, pull = jax.vjp(latents, params)
        values, slopes = log_joints(self.problem.model, z)
        is_there = jnp.isfinite(values) & jnp.all(jnp.isfinite(slopes), axis=1)
        (grad,) = pull(jnp.where(is_there[:, None], slopes, 0.0))
        return Sums(jnp.sum(values, where=is_there), grad, jnp.sum(is_there, dtype=values.dtype))


@compiled_part
def log_joints(model: AbstractModel, z: Float[Array, "draw latent"]) -> tuple[Float[Array, "draw"], Any]:
    """The log joint of each draw, and its gradient: the work of a round."""
    return jax.vmap(jax.value_and_grad(model.log_joint))(z)


class ExactElbo(eqx.Module):
    """The same without draws, where every term has a closed form on all data.

    Args:
        problem: with an exact ELBO.
        is_alone: whether no other fit is beside this one. Then a trial computes second derivatives too, which the step
            after it begins with: value and gradient alone would be one program more to compile.

    Cost: about three passes over all data for a gradient, six with the second derivatives of all addends; a product
    then goes through no node. Where a part is compiled by itself a trial takes six, and the step after it none.
    """

    problem: Problem
    is_alone: bool = eqx.field(static=True, default=True)

    is_exact, pieces, first_pieces, has_many_coordinates = True, 1, 1, False
    most_blocks = 2**20
    """Which are all the same."""

    @property
    def search_share(self) -> float:
        """Of the longest search, that a gradient is, or a product."""
        expectation = self.problem.expectation
        evaluations = self.problem.model.num_data if expectation is None else expectation.num_evaluations
        return (evaluations + VALUES_OF_PARAM * self.problem.family.num_params) / LARGEST_EXACT_SEARCH

    def cost(
        self, draws: Draws, values: Int[Array, ""] | int = 0, products: Int[Array, ""] | int = 0
    ) -> Float[Array, ""]:
        """Gradients of the log density that values and products take: one each, though a product takes less time."""
        return jnp.asarray(values + products, jnp.float32)

    def around(self, params: PyTree, draws: Draws) -> LocalElbo:
        """Value and gradient."""
        origin = self.problem.family.geometry.origin(params)
        if self.is_alone:
            grad, _, (value, size) = self._linearized(params, origin)
        else:
            grad, (value, size) = _slope(self, params, origin)
        return LocalElbo(value, grad, origin, jnp.zeros_like(value), size)

    def product(self, params: PyTree, draws: Draws) -> Callable[[PyTree], PyTree]:
        """The Hessian in the chart, as a function of a vector: what does not depend on that is computed once."""
        return self._linearized(params, self.problem.family.geometry.origin(params))[1]

    def _linearized(
        self, params: PyTree, origin: PyTree
    ) -> tuple[PyTree, Callable[[PyTree], PyTree], tuple[Float[Array, ""], ...]]:
        """Gradient in the chart, how it changes, value and size."""
        grad, push, numbers = _slope_and_push(self, params, origin)
        return grad, functools.partial(_pushed, push), numbers

    def log_joints(self, points: Float[Array, "point latent"]) -> Float[Array, "point"]:
        """The log joint at some points."""
        return _heights(self.problem, points)

    def _summands(self, params: PyTree, at: PyTree) -> list[Float[Array, ""]]:
        """Of the ELBO at a point of the chart around the parameters."""
        return elbo_summands(self.problem, self.problem.family.geometry.chart(params, at))


@compiled_part
def _slope_and_push(
    objective: ExactElbo, params: PyTree, at: PyTree
) -> tuple[PyTree, Callable[[PyTree], PyTree], tuple[Float[Array, ""], ...]]:
    """The work of a step: the slope, its derivative as a function of a vector, value and size."""
    return jax.linearize(functools.partial(_slope_and_value, objective, params), at, has_aux=True)


@compiled_part
def _pushed(push: Callable[[PyTree], PyTree], vector: PyTree) -> PyTree:
    """A product with the Hessian."""
    return push(vector)


def _slope_and_value(objective: ExactElbo, params: PyTree, at: PyTree) -> tuple[PyTree, tuple[Float[Array, ""], ...]]:
    """The slope of the ELBO at a point of a chart; its value, and the sum of its summands without their signs."""

    def value_and_size(at: PyTree) -> tuple[Float[Array, ""], tuple[Float[Array, ""], ...]]:
        summands = objective._summands(params, at)
        value = functools.reduce(jnp.add, summands)
        return value, (value, functools.reduce(jnp.add, map(jnp.abs, summands)))

    return jax.grad(value_and_size, has_aux=True)(at)


_slope = compiled_part(_slope_and_value)
"""The work of a step that takes no second derivatives."""


@compiled_part
def _heights(problem: Problem, points: Float[Array, "point latent"]) -> Float[Array, "point"]:
    """The log joint at some points."""
    model, known = problem.model, problem.expectation
    log_joint, size = (model.log_joint, model.num_data) if known is None else (known.at, known.num_addends)
    return jax.lax.map(log_joint, points, batch_size=max(1, VALUES_AT_ONCE // max(1, size)))


def _refuses_products(problem: Problem) -> str | None:
    """Why the log joint has no second derivative forward over reverse; `None` if it has.

    It is traced under `vmap`: some functions refuse there only, or when they are lowered.
    """
    model = problem.model

    def product(z: Float[Array, "latent"]) -> Any:
        return jax.jvp(jax.grad(model.log_joint), (z,), (z,))

    try:
        jax.eval_shape(lambda: jax.vmap(product)(jnp.zeros((2, model.dim))))
    except TypeError as error:
        return first_line(error)
    return None
