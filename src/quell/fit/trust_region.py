# SPDX-License-Identifier: Apache-2.0
"""The step of a trust-region method: conjugate gradients that stop at the boundary."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

MOST_PRODUCTS = 1000
"""Of conjugate gradients in one step: a random walk of 250 steps takes 500."""

MOST_PRODUCTS_ON_DRAWS = 200
"""Where each sees many draws, and the model is that of their noise too."""


class TrustStep(NamedTuple):
    """The step of a quadratic model.

    Args:
        step: in the coordinates of the gradient.
        slope: the inner product of step and gradient.
        gain: that the model predicts.
        length: of the step.
        is_inside: whether the boundary was not met, and no direction of positive curvature seen.
        is_solved: whether it is besides the maximum of the model, to the accuracy asked for.
        curvature: of minus the model along the gradient, which is near the largest; zero for no product.
        products: with the Hessian that it took.
    """

    step: PyTree
    slope: Float[Array, ""]
    gain: Float[Array, ""]
    length: Float[Array, ""]
    is_inside: Bool[Array, ""]
    is_solved: Bool[Array, ""]
    curvature: Float[Array, ""]
    products: Int[Array, ""]

    @classmethod
    def of_nothing(cls, grad: PyTree) -> "TrustStep":
        """No step, where none is asked for."""
        step = jax.tree.map(jnp.zeros_like, grad)
        zero = inner(step, step)
        return cls(step, zero, zero, zero, jnp.asarray(True), jnp.asarray(True), zero, jnp.zeros((), jnp.int32))


def inner(left: PyTree, right: PyTree) -> Float[Array, ""]:
    """The inner product of two trees."""
    pairs = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    return sum((jnp.vdot(one, other) for one, other in pairs), jnp.asarray(0.0))


def trust_step(
    grad: PyTree,
    product: Callable[[PyTree], PyTree],
    radius: Float[Array, ""],
    tolerance: Float[Array, ""],
    most: int = MOST_PRODUCTS,
) -> TrustStep:
    r"""Maximise \(g^\top x + \tfrac12 x^\top H x\) over \(|x| \le r\), nearly.

    Conjugate gradients on \(-Hx = g\) from zero. The model grows along their path, which ends where it leaves the
    region, where the curvature along a direction is not negative (there it goes to the boundary), or where the residual
    is small.

    Args:
        grad: \(g\).
        product: with \(H\).
        radius: \(r\).
        tolerance: size of the residual, as a share of that of the gradient.
        most: products; twice the number of coordinates, where they are few.

    Cost: a product per iteration.

    References: Steihaug (1983), "The conjugate gradient method and trust regions in large scale optimization".
    """
    most = min(most, 2 * sum(leaf.size for leaf in jax.tree.leaves(grad)))
    target = tolerance**2 * inner(grad, grad)
    zero = jax.tree.map(jnp.zeros_like, grad)

    def add(left: PyTree, right: PyTree, share: Float[Array, ""]) -> PyTree:
        return jax.tree.map(lambda one, other: one + share * other, left, right)

    def is_going(carry: tuple) -> Bool[Array, ""]:
        _, _, residual, _, _, number, is_out = carry
        return ~is_out & (number < most) & (inner(residual, residual) > target)

    def advance(carry: tuple) -> tuple:
        x, bent_x, residual, way, first, number, _ = carry
        bent = jax.tree.map(jnp.negative, product(way))
        curvature, size = inner(way, bent), inner(residual, residual)
        share = size / curvature
        ahead = add(x, way, share)
        is_out = ~(curvature > 0) | ~(inner(ahead, ahead) < radius**2)
        share = jnp.where(is_out, _to_boundary(x, way, radius), share)
        left = add(residual, bent, -share)
        turned = add(left, way, inner(left, left) / size)
        first = jnp.where(number == 0, curvature / size, first)
        return add(x, way, share), add(bent_x, bent, share), left, turned, first, number + 1, is_out

    start = (zero, zero, grad, grad, jnp.zeros_like(target), jnp.zeros((), jnp.int32), jnp.asarray(False))
    x, bent_x, residual, _, first, number, is_out = jax.lax.while_loop(is_going, advance, start)
    slope = inner(grad, x)
    gain = slope - 0.5 * inner(x, bent_x)
    is_solved = inner(residual, residual) <= target
    return TrustStep(x, slope, gain, jnp.sqrt(inner(x, x)), ~is_out, ~is_out & is_solved, first, number)


def _to_boundary(x: PyTree, way: PyTree, radius: Float[Array, ""]) -> Float[Array, ""]:
    """How far along a way the boundary is, from inside; a region without a boundary has none."""
    square, slope, rest = inner(way, way), inner(x, way), radius**2 - inner(x, x)
    root = jnp.sqrt(jnp.maximum(slope**2 + square * rest, 0.0))
    return jnp.where(jnp.isfinite(radius), rest / jnp.maximum(slope + root, jnp.finfo(root.dtype).tiny), 0.0)
