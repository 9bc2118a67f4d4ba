# SPDX-License-Identifier: Apache-2.0
"""Expectations of addends under a Gaussian: closed forms of products, Gauss-Hermite sums for the others."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from quell.core.put import put
from quell.evaluation.node_sum import NodeProgram, node_sum, nodes_for, numbers_kept
from quell.families.gaussian import Gaussian
from quell.models.row_sum import sum_over_rows
from quell.structure.addends import Addends, Structure
from quell.structure.forms import Form
from quell.structure.instructions import Instruction, run

NODES = {1: (4, 6, 12, 24, 48), 2: (2, 4, 10, 20, 40), 3: (2, 4, 8, 16, 24), 4: (2, 4, 6, 10, 14), 5: (2, 3, 4, 6, 8)}
"""For each linear function of an addend that sees one to five of them, by level. Those of the usual level are
even: none is at the mean, where functions that are written with absolute values have no derivative."""

USUAL_LEVEL, MOST_LEVEL = 2, 3
"""The first that a fit takes, and the last; the one above each shows what that misses."""

MANY_EVALUATIONS = 2**22
"""Of addends at nodes of the usual level: with more of them a fit begins with the fewest nodes. Where rows are many the
posterior is narrow, and two nodes for each linear function are exact to its third power."""

ROUNDED = 4.0
"""Units of rounding, of an addend or of a nat, by which sums over other nodes may differ: they are no sign that nodes
are missing."""

SAME = 16.0
"""Units of rounding of a linear function that another may differ from it by, and be the same: what is left of it then
has no direction."""

LOST = 0.05
"""Units of rounding of the addends' absolute values that their sum loses: where polynomials that were multiplied out
cancel, that is more than the sum itself."""

NUMBERS_AT_ONCE = 2**24
"""In memory at a time: addends times coordinates, and what the linear functions of addends make of a covariance."""

MOST_KEPT = 2**26
"""Of second derivatives. They are computed once for all products with a Hessian where all are kept, and again for each
product where not: a quarter of a gigabyte, which a million rows of three linear functions take."""


DENSE = 4
"""Times the coordinates that an addend sees: where all addends together see no more, products with dense matrices take
less time than gathering what each sees."""


class Map(eqx.Module):
    """A linear function of the latent for each addend; with a leading axis of one where it is the same for all.

    Args:
        index: of the coordinates it sees.
        weight: of them.
        offset: a number.
    """

    index: Int[Array, "#addend seen"]
    weight: Float[Array, "#addend seen"]
    offset: Float[Array, "#addend"]

    @classmethod
    def of(cls, linear: Form, dtype: Any) -> "Map":
        """What is the same for all addends is kept once."""
        index, weight, offset = (_once(part) for part in linear)
        return cls(put(index, np.int32), put(weight, dtype), put(offset, dtype))

    def of_vector(self, vector: Float[Array, "latent"]) -> Float[Array, "#addend"]:
        """Without the offset."""
        return self.of_seen(_taken(vector, self.index))

    def of_seen(self, seen: Float[Array, "#addend seen"]) -> Float[Array, "#addend"]:
        """The same, of the coordinates it sees."""
        if self.index.shape[0] == 1:
            return self.weight @ seen[0]
        return jnp.sum(self.weight * seen, axis=1)

    def of_matrix(self, matrix: Float[Array, "latent column"]) -> Float[Array, "#addend column"]:
        """Of each column, without the offset."""
        seen = _taken(matrix, self.index)
        if self.index.shape[0] == 1:
            return self.weight @ seen[0]
        return jnp.einsum("as,asc->ac", self.weight, seen)


class Moments(NamedTuple):
    """Of the linear functions of each addend.

    Args:
        mean: of each.
        variance: of each; `None` where they are correlated.
        rows: a root of their covariance, a row for each; `None` where they are not correlated.
    """

    mean: list[Float[Array, "#addend"]]
    variance: list[Float[Array, "#addend"]] | None
    rows: list[Float[Array, "#addend column"]] | None

    def covariance(self, one: int, two: int) -> Float[Array, "#addend"]:
        """Of two of them."""
        if self.rows is not None:
            return jnp.sum(self.rows[one] * self.rows[two], axis=1)
        assert self.variance is not None
        return self.variance[one] if one == two else jnp.zeros(1, self.mean[0].dtype)

    @property
    def root(self) -> list[list[Float[Array, "#addend"]]]:
        """The Cholesky factor of the covariance, by Gram and Schmidt.

        That of the covariance itself would lose twice the digits where linear functions are nearly the same.
        """
        if self.rows is None:
            none = jnp.zeros(1, self.mean[0].dtype)
            return [[none] * at + [jnp.sqrt(self.covariance(at, at))] for at in range(len(self.mean))]
        root, basis = [], []
        for number, row in enumerate(self.rows):
            made, left = [], row
            for one in basis:
                made.append(jnp.sum(left * one, axis=1))
                left = left - made[-1][:, None] * one
            square, size = jnp.sum(left**2, axis=1), self.covariance(number, number)
            eps = jnp.finfo(row.dtype).eps
            is_there = square > (SAME * eps) ** 2 * size
            made.append(jnp.sqrt(jnp.where(is_there, square, eps**2 * size)))
            basis.append(jnp.where(is_there[:, None], left, 0.0) / made[-1][:, None])
            root.append(made)
        return root


class Group(eqx.Module):
    """Addends of one program; arrays have one entry for each, or one for all.

    Args:
        weight: of each addend.
        maps: linear functions.
        aligned: the same, written as such of the same coordinates; none where no two have one in common, or no
            variances are asked for.
        constants: beside them.
        instructions: of the program.
        factors: of a product: numbers of linear functions.
        exponent: of a product: the number of one.
        is_absolute: whether the one factor of a product is an absolute value.
    """

    weight: Float[Array, "#addend"]
    maps: tuple[Map, ...]
    aligned: tuple[Map, ...]
    constants: tuple[Array, ...]
    instructions: tuple[Instruction, ...] = eqx.field(static=True)
    factors: tuple[int, ...] = eqx.field(static=True)
    exponent: int | None = eqx.field(static=True)
    is_absolute: bool = eqx.field(static=True)

    @classmethod
    def of(cls, addends: Addends, dtype: Any, *, has_variance: bool) -> "Group":
        """With arrays of a type, for Gaussians with or without a variance of their own for each coordinate."""
        functions = addends.functions
        overlap = has_variance and any(_may_overlap(*pair) for pair in itertools.combinations(functions, 2))
        return cls(
            weight=put(addends.weight, dtype),
            maps=tuple(Map.of(_of_shared_coordinates(one), dtype) for one in functions),
            aligned=tuple(Map.of(one, dtype) for one in (aligned(functions) if overlap else ())),
            constants=tuple(_as_constant(one, dtype) for one in addends.constants),
            instructions=addends.instructions,
            factors=addends.factors,
            exponent=addends.exponent,
            is_absolute=addends.is_absolute,
        )

    def expectation(self, gaussian: Gaussian, level: int) -> Float[Array, ""]:
        """Of the sum of all addends.

        Args:
            gaussian: distribution of the latent.
            level: of the nodes.
        """
        return self._sums(gaussian, lambda group, moments: group.weight * group._values(moments, level))

    def value_and_sizes(self, gaussian: Gaussian, level: int) -> tuple[Float[Array, ""], ...]:
        """The expectation, and sums of absolute values: of what the next level changes beyond rounding, and of all.

        Args:
            gaussian: distribution of the latent.
            level: of the nodes.
        """

        def of_each(group: "Group", moments: Moments) -> tuple[Array, ...]:
            values = group._values(moments, level)
            change, size = jnp.zeros_like(values), jnp.abs(values)
            if group.instructions:
                rounding = ROUNDED * jnp.finfo(values.dtype).eps * jnp.maximum(size, 1.0)
                change = jnp.maximum(jnp.abs(group._values(moments, level + 1) - values) - rounding, 0.0)
            return group.weight * values, jnp.abs(group.weight) * change, jnp.abs(group.weight) * size

        return self._sums(gaussian, of_each)

    def _sums(self, gaussian: Gaussian, of_each: Callable[["Group", Moments], PyTree]) -> PyTree:
        """Over all addends, of numbers for each of some of them."""
        num = self.weight.shape[0]
        own, shared = eqx.partition(self, lambda leaf: eqx.is_array(leaf) and leaf.shape[0] == num)
        at_once = max(1, min(NUMBERS_AT_ONCE // self._numbers(gaussian), MOST_KEPT // numbers_kept(len(self.maps))))

        def of_some(rows: PyTree, counts: Bool[Array, "addend"]) -> PyTree:
            group: Group = eqx.combine(rows, shared)
            found = of_each(group, group._moments(gaussian))
            return jax.tree.map(lambda each: jnp.sum(each, where=counts), found)

        return sum_over_rows(of_some, own, at_once=at_once)

    def taken(self, places: Int[Array, "addend"]) -> "Group":
        """Some of the addends; of negative numbers those of no weight."""
        num = self.weight.shape[0]
        own, shared = eqx.partition(self, lambda leaf: eqx.is_array(leaf) and leaf.shape[0] == num)
        some: Group = eqx.combine(jax.tree.map(lambda leaf: leaf[places], own), shared)
        return eqx.tree_at(lambda group: group.weight, some, jnp.where(places < 0, 0.0, some.weight))

    def at(self, z: Float[Array, "latent"]) -> Float[Array, ""]:
        """The sum of all addends at a latent."""
        functions = [one.of_vector(z) + one.offset for one in self.maps]
        if self.instructions:
            values = run(self.instructions, self.constants, [one[:, None] for one in functions])[:, 0]
        else:
            factors = [jnp.abs(functions[at]) if self.is_absolute else functions[at] for at in self.factors]
            growth = [] if self.exponent is None else [jnp.exp(functions[self.exponent])]
            values = functools.reduce(jnp.multiply, [*factors, *growth])
        return jnp.sum(self.weight * values)

    def _numbers(self, gaussian: Gaussian) -> int:
        """In memory for each addend, about, beside its second derivatives."""
        seen = [one.index.shape[1] for one in self.maps]
        gathered = [0 if one.index.shape[0] == 1 else one.index.shape[1] for one in self.maps]
        columns = 0 if gaussian.factor is None else gaussian.factor.shape[1]
        of_rows = len(self.maps) * sum(seen) if gaussian.variance is not None and self._are_correlated(gaussian) else 0
        return max(1, sum(gathered), sum(columns * max(1, number) for number in gathered), of_rows)

    def num_nodes(self, level: int) -> int:
        """That an addend takes."""
        if not self.instructions:
            return 1
        dim, is_double = len(self.maps), self.weight.dtype == jnp.float64
        return len(nodes_for(dim, NODES[dim][level], is_double=is_double)[1])

    def _moments(self, gaussian: Gaussian) -> Moments:
        is_dense = any(one.index.shape[0] == 1 < one.index.shape[1] for one in self.maps)  # a product with a vector
        maps = self.maps if is_dense else self.aligned or self.maps
        mean = [one.of_seen(seen) + one.offset for one, seen in self._with_seen(maps, gaussian.mean)]
        rows = self._rows(gaussian)
        if rows is not None:
            return Moments(mean, None, rows)
        parts = []
        if gaussian.factor is not None:
            parts.append([jnp.sum(one.of_matrix(gaussian.factor) ** 2, axis=1) for one in self.maps])
        if gaussian.variance is not None:
            squared = (Map(one.index, one.weight**2, one.offset) for one in self.maps)
            parts.append([one.of_vector(gaussian.variance) for one in squared])
        return Moments(mean, [functools.reduce(jnp.add, each) for each in zip(*parts, strict=True)], None)

    def _with_seen(self, maps: tuple[Map, ...], vector: Float[Array, "latent"]) -> list[tuple[Map, Array]]:
        """Linear functions with the coordinates of a vector that they see, which are the same of those aligned."""
        if maps is self.aligned:
            seen = _taken(vector, maps[0].index)
            return [(one, seen) for one in maps]
        return [(one, _taken(vector, one.index)) for one in maps]

    def _are_correlated(self, gaussian: Gaussian) -> bool:
        shares = gaussian.variance is not None and bool(self.aligned)
        return len(self.maps) > 1 and (gaussian.factor is not None or shares)

    def _rows(self, gaussian: Gaussian) -> list[Float[Array, "#addend column"]] | None:
        """A root of the covariance, a row for each linear function; `None` where they are not correlated."""
        if not self._are_correlated(gaussian):
            return None
        rows = [] if gaussian.factor is None else [[one.of_matrix(gaussian.factor)] for one in self.maps]
        if gaussian.variance is not None:
            scale, maps = jnp.sqrt(gaussian.variance), self.aligned or self.maps
            own = [one.weight * seen for one, seen in self._with_seen(maps, scale)]
            if not self.aligned:  # each has columns of its own
                own = [_apart(own, at) for at in range(len(own))]
            rows = [[*parts, part] for parts, part in zip(rows or [[]] * len(own), own, strict=True)]
        return [_side_by_side(parts) for parts in rows]

    def _values(self, moments: Moments, level: int) -> Float[Array, "#addend"]:
        if not self.instructions:
            return self._product(moments)
        dim = len(self.maps)
        places = [
            jnp.stack(jnp.broadcast_arrays(mean, *row), axis=1)
            for mean, row in zip(moments.mean, moments.root, strict=True)
        ]
        return node_sum(NodeProgram(self.instructions, NODES[dim][level]), self.constants, places)

    def _product(self, moments: Moments) -> Float[Array, "#addend"]:
        r"""\(E\,u_1 u_2 e^v = e^{m_v + s_v / 2} ((m_1 + c_{1v})(m_2 + c_{2v}) + c_{12})\)."""
        mean, covariance, exponent = moments.mean, moments.covariance, self.exponent
        factor, growth = {at: mean[at] for at in self.factors}, jnp.ones(1, mean[0].dtype)
        if exponent is not None:
            growth = jnp.exp(mean[exponent] + 0.5 * covariance(exponent, exponent))
            factor = {at: one + covariance(exponent, at) for at, one in factor.items()}
        factors = [factor[at] for at in self.factors]
        if self.is_absolute:
            return growth * _absolute(factors[0], covariance(self.factors[0], self.factors[0]))
        if len(factors) < 2:
            return growth * (factors[0] if factors else 1.0)
        return growth * (factors[0] * factors[1] + covariance(*self.factors))


class Missed(NamedTuple):
    """Nats that an expectation may be off.

    Args:
        by_nodes: that the next level would change.
        by_rounding: that no number of nodes would.
    """

    by_nodes: Float[Array, ""] | float
    by_rounding: Float[Array, ""] | float


class Expectation(eqx.Module):
    """The expected log density of a model under a Gaussian.

    Args:
        constant: what does not depend on the latent.
        slope: of what is linear in it.
        groups: of addends.
        level: how many nodes an addend takes that has no closed form.

    Bias: that of Gauss-Hermite sums, which `value_and_missed` shows.
    Cost: of a value, for each addend its program at all nodes, and its linear functions of the covariance.
    """

    constant: Float[Array, ""]
    slope: Float[Array, "latent"]
    groups: tuple[Group, ...]
    level: int = eqx.field(static=True, default=USUAL_LEVEL)

    @classmethod
    def of(
        cls, structure: Structure, dtype: Any, level: int = USUAL_LEVEL, *, has_variance: bool = True
    ) -> "Expectation":
        """With arrays of a type.

        Args:
            structure: of a model.
            dtype: of the arrays.
            level: of the nodes; with 0 the fewest where addends are many, and the usual ones elsewhere.
            has_variance: whether the Gaussians have a variance beside their factor.
        """
        numbers = put(structure.constant, dtype), put(structure.slope, dtype)
        groups = tuple(Group.of(one, dtype, has_variance=has_variance) for one in structure.groups)
        usual = cls(*numbers, groups)
        level = level if level > 0 or usual.num_evaluations > MANY_EVALUATIONS else USUAL_LEVEL
        return cls(*numbers, groups, level)

    def __call__(self, gaussian: Gaussian) -> Float[Array, ""]:
        """Its value."""
        return functools.reduce(jnp.add, self.summands(gaussian))

    def summands(self, gaussian: Gaussian) -> list[Float[Array, ""]]:
        """What is constant, what is linear, and the sum of each group of addends."""
        groups = [group.expectation(gaussian, self.level) for group in self.groups]
        return [self.constant, self.slope @ gaussian.mean, *groups]

    def some(self, num: int) -> "Expectation":
        """That of a random part: so many addends of each group that has more, which stand for all of it."""
        rng, groups = np.random.default_rng(0), []
        for group in self.groups:
            size = group.weight.shape[0]
            if size <= num:
                groups.append(group)
                continue
            part = group.taken(jnp.asarray(np.sort(rng.choice(size, num, replace=False))))
            groups.append(eqx.tree_at(lambda one: one.weight, part, part.weight * (size / num)))
        return dataclasses.replace(self, groups=tuple(groups))

    def at(self, z: Float[Array, "latent"]) -> Float[Array, ""]:
        """What it is the expectation of."""
        return sum((group.at(z) for group in self.groups), self.constant + self.slope @ z)

    def value_and_missed(self, gaussian: Gaussian) -> tuple[Float[Array, ""], Missed]:
        """Its value, by how much the next level changes the addends, beyond rounding, and what their sum may lose."""
        zero = jnp.zeros((), gaussian.mean.dtype)
        found = [(zero, zero, zero), *(group.value_and_sizes(gaussian, self.level) for group in self.groups)]
        value, change, size = (sum(parts, zero) for parts in zip(*found, strict=True))
        value += self.constant + self.slope @ gaussian.mean
        return value, Missed(change, LOST * jnp.finfo(zero.dtype).eps * size)

    @property
    def num_addends(self) -> int:
        """That are not linear."""
        return sum(group.weight.size for group in self.groups)

    @property
    def num_evaluations(self) -> int:
        """Of addends at nodes, for one value."""
        return sum(group.weight.size * group.num_nodes(self.level) for group in self.groups)


def _taken(array: Float[Array, "latent *column"], index: Int[Array, "#addend seen"]) -> Float[Array, "..."]:
    """Rows at indices that are inside: brackets would look for negative ones first, in three operations."""
    return array.at[index].get(mode="promise_in_bounds", wrap_negative_indices=False)


def _absolute(mean: Float[Array, "#addend"], variance: Float[Array, "#addend"]) -> Float[Array, "#addend"]:
    r"""\(E |u|\) of a normal \(u\)."""
    ratio = mean / jnp.sqrt(2.0 * variance)
    return jnp.sqrt(2.0 * variance / math.pi) * jnp.exp(-(ratio**2)) + mean * jax.scipy.special.erf(ratio)


def aligned(functions: list[Form]) -> list[Form]:
    """Linear functions, written as such of all coordinates that any of them sees."""
    firsts = [_once(one.seen) for one in functions]
    if all(np.array_equal(firsts[0], one) for one in firsts) and np.unique(firsts[0]).size == firsts[0].size:
        return functions  # all of the same coordinates, each once: linear predictors of the same features
    index = np.concatenate([one.seen for one in functions], axis=1)
    is_there = np.concatenate([one.weight != 0 for one in functions], axis=1)
    union = Form(index, is_there.astype(float), np.zeros(index.shape[0])).merged()

    def weights(function: Form) -> np.ndarray:
        total = np.zeros(union.seen.shape)
        for seen, weight in zip(function.seen.T, function.weight.T, strict=True):
            total += np.where(union.seen == seen[:, None], weight[:, None], 0.0)
        return np.where(union.weight != 0, total, 0.0)  # padding repeats a coordinate

    return [Form(union.seen, weights(one), one.offset) for one in functions]


def _apart(parts: list[Float[Array, "#addend _"]], at: int) -> Float[Array, "#addend column"]:
    """One of some parts, with zeros where the others are."""
    num = parts[at].shape[0]
    blocks = [part if one == at else jnp.zeros((num, part.shape[1]), part.dtype) for one, part in enumerate(parts)]
    return jnp.concatenate(blocks, axis=1)


def _side_by_side(parts: list[Float[Array, "#addend _"]]) -> Float[Array, "#addend column"]:
    num = max(part.shape[0] for part in parts)
    return jnp.concatenate([jnp.broadcast_to(part, (num, part.shape[1])) for part in parts], axis=1)


def _once(part: np.ndarray) -> np.ndarray:
    """The first row where all are the same."""
    if part.shape[0] > 1 and (part.strides[0] == 0 or (part == part[:1]).all()):
        return part[:1]
    return part


def _of_shared_coordinates(linear: Form) -> Form:
    """Where addends see nearly the same coordinates, as rows of features that have zeros do, a function of them all."""
    union = np.unique(_once(linear.seen))
    if linear.seen.strides[0] == 0 or union.size > DENSE * linear.seen.shape[1]:
        return linear
    weight, rows = np.zeros((linear.size, union.size)), np.arange(linear.size)[:, None]
    np.add.at(weight, (rows, np.searchsorted(union, linear.seen)), linear.weight)
    return Form(np.broadcast_to(union, weight.shape), weight, linear.offset)


def _as_constant(value: np.ndarray, dtype: Any) -> Array:
    return put(value, dtype if np.issubdtype(value.dtype, np.floating) else None)


def _may_overlap(one: Form, two: Form) -> bool:
    """Whether some coordinate is seen by both, for any addends."""
    return bool(np.intersect1d(np.unique(_once(one.seen)), np.unique(_once(two.seen))).size)
