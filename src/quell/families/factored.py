# SPDX-License-Identifier: Apache-2.0
"""Factored gradients: what an estimator returns instead of a vector as long as the parameters.

One reparameterization gradient of a full-rank Gaussian in d dimensions has d numbers of information in
d + d(d+1)/2 slots. So a sample is kept as a small sum of parts, added and scaled as they are; the family
carries the final sum back to its parameters once per step.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from quell.core.trees import all_finite
from quell.families.transport import AbstractTransport


class Path(eqx.Module):
    """Cotangents of what a transport makes, a latent or a log density, one per replicate, to be carried back."""

    transport: AbstractTransport = eqx.field(static=True)
    cotangent: Float[Array, "sample *image"]


class Exact(eqx.Module):
    """A parameter-shaped value, the same for every replicate up to a scalar weight.

    Args:
        value: shaped like the parameters.
        weight: one factor per replicate; `None` stands for ones.
    """

    value: PyTree[Float[Array, "..."]]
    weight: Float[Array, "sample"] | None = None


class Outer(eqx.Module):
    r"""Per replicate: `location` for the mean and \(\sum_k a_k b_k^\top\) for the scale matrix."""

    location: Float[Array, "sample latent"]
    left: Float[Array, "sample rank latent"]
    right: Float[Array, "sample rank latent"]


class FactoredGradient(eqx.Module):
    """A gradient for each replicate, as a sum of parts.

    Args:
        paths: at most one for each transport.
        exacts: parameter-shaped values shared by the replicates.
        outers: low-rank forms, one per replicate.
        dense: the fallback, parameter-shaped with a leading replicate axis.
    """

    paths: tuple[Path, ...] = ()
    exacts: tuple[Exact, ...] = ()
    outers: tuple[Outer, ...] = ()
    dense: PyTree[Float[Array, "sample ..."]] | None = None

    @classmethod
    def from_path(cls, transport: AbstractTransport, cotangent: Float[Array, "sample *image"]) -> "FactoredGradient":
        """One path and nothing else."""
        return cls(paths=(Path(transport, cotangent),))

    @classmethod
    def from_exact(cls, value: PyTree, weight: Float[Array, "sample"] | None = None) -> "FactoredGradient":
        """One shared value and nothing else."""
        return cls(exacts=(Exact(value, weight),))

    def cotangent(self, transport: AbstractTransport) -> Float[Array, "sample *image"] | None:
        """Of the path through a transport; `None` if there is none."""
        return next((path.cotangent for path in self.paths if path.transport == transport), None)

    def without(self, transport: AbstractTransport) -> "FactoredGradient":
        """The sum of all other parts."""
        paths = tuple(path for path in self.paths if path.transport != transport)
        return FactoredGradient(paths, self.exacts, self.outers, self.dense)

    def __add__(self, other: "FactoredGradient") -> "FactoredGradient":
        """Sum of two samples, still factored."""
        paths = {path.transport: path.cotangent for path in self.paths}
        for path in other.paths:
            before = paths.get(path.transport)
            paths[path.transport] = path.cotangent if before is None else before + path.cotangent
        return FactoredGradient(
            paths=tuple(Path(transport, cotangent) for transport, cotangent in paths.items()),
            exacts=self.exacts + other.exacts,
            outers=self.outers + other.outers,
            dense=_add(self.dense, other.dense),
        )

    def __mul__(self, factor: float | Float[Array, ""]) -> "FactoredGradient":
        """The sample times one number."""
        return FactoredGradient(
            paths=tuple(Path(path.transport, factor * path.cotangent) for path in self.paths),
            exacts=tuple(Exact(_scale(factor, e.value), e.weight) for e in self.exacts),
            outers=tuple(Outer(factor * o.location, factor * o.left, o.right) for o in self.outers),
            dense=_scale(factor, self.dense),
        )

    def __neg__(self) -> "FactoredGradient":
        """The sample with its sign changed."""
        return self * -1.0

    def __sub__(self, other: "FactoredGradient") -> "FactoredGradient":
        """Difference of two samples, still factored."""
        return self + (-other)

    def where(self, keep: Bool[Array, ""]) -> "FactoredGradient":
        """The sample itself, or exact zeros (also in place of NaN) where it is not kept."""
        return jax.tree.map(lambda leaf: jnp.where(keep, leaf, 0), self)

    def is_finite(self) -> Bool[Array, ""]:
        """Whether every number is."""
        return all_finite(self)


def _add(left: Any, right: Any) -> Any:
    if left is None or right is None:
        return right if left is None else left
    return jax.tree.map(jnp.add, left, right)


def _scale(factor: float | Float[Array, ""], tree: Any) -> Any:
    return jax.tree.map(lambda leaf: factor * leaf, tree)
