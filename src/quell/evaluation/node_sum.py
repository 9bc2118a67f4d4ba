# SPDX-License-Identifier: Apache-2.0
"""Gauss-Hermite sums of addends, whose derivatives are a few numbers for each."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from quell.models.quadrature import gauss_hermite
from quell.structure.instructions import Instruction, run

LEAST_WEIGHT, LEAST_SINGLE_WEIGHT = 1e-12, 1e-8
"""Of a node, as a share of the largest, in double and in single precision; others are left out: they count for nothing,
and so far from the mean a density may underflow."""

NUMBERS_AT_ONCE = 2**18
"""Addends times nodes in memory at a time."""

Places = list[Float[Array, "#addend _"]]
"""Of each linear function of an addend its mean, and its row of a triangular root of their covariance."""


class NodeProgram(NamedTuple):
    """The program of an addend, and the number of nodes for each of its linear functions."""

    instructions: tuple[Instruction, ...]
    number: int


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def node_sum(program: NodeProgram, constants: tuple[Array, ...], places: Places) -> Float[Array, "#addend"]:
    r"""\(\sum_s w_s f(u_s)\) of each addend \(f\), at nodes \(u_{si} = \sum_j R_{ij} \eta_{sj}\).

    The row \(R_i\) has the mean, for which \(\eta_{s0} = 1\), and what multiplies the noise of function \(i\) and of
    those before it. Derivatives are sums over the same nodes: \(\sum_s w_s f_i(u_s)\, \eta_{sj}\) in \(R_{ij}\), and
    \(\sum_s w_s f_{ik}(u_s)\, \eta_{sj} \eta_{sl}\) in \(R_{ij}\) and \(R_{kl}\). So a product with the Hessian goes
    through no node.

    Args:
        program: of the addends.
        constants: of the program, one for each addend or one for all; they are data, and not differentiated.
        places: the rows \(R_i\).

    Cost: of a value the program at all nodes, of slopes about three times that, of the second derivatives about twice
    that again for each linear function. Memory is that of some addends at their nodes.
    """
    return _jet(program, 0, constants, places)[0]


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _sum_and_slopes(program: NodeProgram, constants: tuple[Array, ...], places: Places) -> tuple[Array, Places]:
    return _jet(program, 1, constants, places)


@node_sum.defjvp
def _node_sum_jvp(program: NodeProgram, primals: tuple[Any, Places], tangents: tuple[Any, Places]) -> Any:
    value, slopes = _sum_and_slopes(program, *primals)
    return value, _directional(slopes, tangents[1])


@_sum_and_slopes.defjvp
def _sum_and_slopes_jvp(program: NodeProgram, primals: tuple[Any, Places], tangents: tuple[Any, Places]) -> Any:
    value, slopes, hessian = _jet(program, 2, *primals)
    moved, products = tangents[1], [jnp.zeros_like(slope) for slope in slopes]
    for one, row in enumerate(hessian):
        for two, block in enumerate(row):
            products[one] += jnp.sum(block * moved[two][:, None, :], axis=2)
            if two < one:
                products[two] += jnp.sum(block * moved[one][:, :, None], axis=1)
    return (value, slopes), (_directional(slopes, moved), products)


def _directional(slopes: Places, moved: Places) -> Float[Array, "addend"]:
    """The derivatives along a tangent."""
    pairs = zip(slopes, moved, strict=True)
    return functools.reduce(jnp.add, (jnp.sum(slope * tangent, axis=1) for slope, tangent in pairs))


def _jet(program: NodeProgram, order: int, constants: tuple[Array, ...], places: Places) -> Any:
    """Sums of values, slopes and second derivatives up to an order, some addends at a time."""
    num = max(leaf.shape[0] for leaf in jax.tree.leaves((constants, places)))
    nodes, _ = nodes_for(len(places), program.number, is_double=places[0].dtype == jnp.float64)
    size = max(1, NUMBERS_AT_ONCE // len(nodes))
    of_some = functools.partial(_jet_of_some, program, order)
    if size >= num:
        return of_some(num, constants, places)

    def some(number: Array) -> Any:
        def part(leaf: Array) -> Array:
            return leaf if leaf.shape[0] == 1 else jax.lax.dynamic_slice_in_dim(leaf, number * size, size)

        return of_some(size, *jax.tree.map(part, (constants, places)))

    def fill(number: Array, every: PyTree) -> PyTree:
        def put(all_of_them: Array, part: Array) -> Array:
            return jax.lax.dynamic_update_slice_in_dim(all_of_them, part, number * size, 0)

        return jax.tree.map(put, every, some(number))  # slices that would leave an array are moved into it

    return jax.lax.fori_loop(0, -(-num // size), fill, _empty_jet(order, num, places[0].dtype, len(places)))


def _empty_jet(order: int, num: int, dtype: Any, dim: int) -> Any:
    """Zeros in the place of what some addends are put into."""
    slopes = [jnp.zeros((num, one + 2), dtype) for one in range(dim)]
    seconds = [[jnp.zeros((num, one + 2, two + 2), dtype) for two in range(one + 1)] for one in range(dim)]
    return (jnp.zeros(num, dtype), slopes, seconds)[: order + 1]


def _jet_of_some(program: NodeProgram, order: int, num: int, constants: tuple[Array, ...], places: Places) -> Any:
    dim, dtype = len(places), places[0].dtype
    nodes, weights = nodes_for(dim, program.number, is_double=dtype == jnp.float64)
    noise = [np.concatenate([np.ones((len(nodes), 1)), nodes[:, : one + 1]], axis=1) for one in range(dim)]
    at = [_at_nodes(place, jnp.asarray(row.T, dtype), num) for place, row in zip(places, noise, strict=True)]

    def values(functions: list[Float[Array, "addend node"]]) -> Float[Array, "addend node"]:
        return jnp.broadcast_to(run(program.instructions, constants, functions), at[0].shape).astype(dtype)

    def slopes(functions: list[Float[Array, "addend node"]]) -> tuple[list[Array], Array]:
        found, pull = jax.vjp(values, functions)
        return pull(jnp.ones_like(found))[0], found

    def slopes_in(one: int) -> Callable[[Array], tuple[list[Array], Array]]:
        return lambda function: slopes([*at[:one], function, *at[one + 1 :]])

    if order == 0:
        return (_mean(values(at), nodes, weights),)
    dims = range(dim if order == 2 else 0)
    seconds = [jax.jvp(slopes_in(one), (at[one],), (jnp.ones_like(at[one]),), has_aux=True) for one in dims]
    firsts, found = (seconds[0][0], seconds[0][2]) if seconds else slopes(at)
    weighted = [weights[:, None] * row for row in noise]
    pairs = zip(firsts, weighted, strict=True)
    jet = _mean(found, nodes, weights), [first @ jnp.asarray(row, dtype) for first, row in pairs]
    if order == 1:
        return jet

    def block(one: int, two: int) -> Float[Array, "addend _ _"]:
        both = weighted[one][:, :, None] * noise[two][:, None, :]
        return (seconds[one][1][two] @ jnp.asarray(both.reshape(len(nodes), -1), dtype)).reshape(num, *both.shape[1:])

    return *jet, [[block(one, two) for two in range(one + 1)] for one in range(dim)]


def _at_nodes(
    place: Float[Array, "#addend place"], noise: Float[Array, "place node"], num: int
) -> Float[Array, "addend node"]:
    parts = (place[:, one : one + 1] * noise[one] for one in range(1, place.shape[1]))
    return jnp.broadcast_to(functools.reduce(jnp.add, parts, place[:, :1]), (num, noise.shape[1]))


def _mean(found: Float[Array, "addend node"], nodes: np.ndarray, weights: np.ndarray) -> Float[Array, "addend"]:
    near = int(np.argmin(np.sum(nodes**2, axis=1)))
    middle = found[:, near : near + 1]  # differences from it are rounded less than values
    return middle[:, 0] + (found - middle) @ jnp.asarray(weights, found.dtype)


def numbers_kept(dim: int) -> int:
    """Second derivatives of an addend that sees so many linear functions."""
    return sum((one + 2) * (two + 2) for one in range(dim) for two in range(one + 1))


@functools.cache
def nodes_for(dim: int, number: int, *, is_double: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Hermite nodes on a grid, without those of no weight."""
    nodes, weights = gauss_hermite(number)
    grid = np.stack([axis.ravel() for axis in np.meshgrid(*[nodes] * dim, indexing="ij")], axis=1)
    weight = np.prod([axis.ravel() for axis in np.meshgrid(*[weights] * dim, indexing="ij")], axis=0)
    keeps = weight > (LEAST_WEIGHT if is_double else LEAST_SINGLE_WEIGHT) * weight.max()
    return grid[keeps], weight[keeps] / weight[keeps].sum()
