# SPDX-License-Identifier: Apache-2.0
r"""Gradients of a full-rank Gaussian in coordinates where its inverse Fisher metric is plain.

Moving \(\mu\) by \(Lm\) and \(L\) to \(L(I + A)\), with \(A\) lower triangular, changes the distribution by
\((\|m\|^2 + \sum_{i>j} A_{ij}^2)/2 + \sum_i A_{ii}^2\) nats, to second order. A gradient \((g, X)\) with
respect to \((\mu, L)\) is \((L^\top g, \mathrm{tril}(L^\top X))\) in these coordinates.
"""

import math

import jax.numpy as jnp
from jaxtyping import Array, Float

from quell.families.factored import Exact, FactoredGradient, Outer
from quell.families.full_rank_draw import FullRankDraw
from quell.families.location_scale import LocationScale


class WhiteFullRank:
    r"""The map to white coordinates.

    Paths stay paths with the same noise, because \(\mathrm{tril}(L^\top \mathrm{tril}(g\epsilon^\top))\) is
    \(\mathrm{tril}((L^\top g)\epsilon^\top)\); symmetric ones become dense.

    Args:
        before: the draw that the gradients were taken at.
    """

    def __init__(self, before: FullRankDraw) -> None:
        """Make the draw that the white gradients are carried by: its slope is the root of one half."""
        self.before = before
        slope = jnp.full_like(before.slope, math.sqrt(0.5))
        self.at = FullRankDraw(
            jnp.zeros_like(before.loc), jnp.eye(*before.tril.shape, dtype=slope.dtype), slope, before.noise
        )

    def parts(self, sample: FactoredGradient) -> FactoredGradient:
        """One sample, still factored."""
        before, tril = self.before, self.before.tril
        sample = before.without_mirror(sample)
        dense = None if sample.dense is None else self._value(sample.dense)
        if "symmetric" in sample.paths:
            cotangent = sample.paths["symmetric"]
            raw = before.root.pullback_rows(cotangent, before.noise)
            path = LocationScale(cotangent @ tril, self.at.mask * (tril.T @ raw))
            dense = path if dense is None else LocationScale(dense.loc + path.loc, dense.scale + path.scale)
        return FactoredGradient(
            {name: cotangent @ tril for name, cotangent in sample.paths.items() if name != "symmetric"},
            tuple(Exact(self._value(exact.value), exact.weight) for exact in sample.exacts),
            tuple(Outer(outer.location @ tril, outer.left @ tril, outer.right) for outer in sample.outers),
            dense,
        )

    def _value(self, value: LocationScale) -> LocationScale:
        loc = value.loc @ self.before.tril
        if value.scale.ndim == value.loc.ndim:  # a diagonal matrix stays one
            return LocationScale(loc, self._diagonal(value.scale / self.before.slope))
        raw = value.scale * (jnp.tril(jnp.ones_like(self.before.tril), -1) + jnp.diag(1.0 / self.before.slope))
        return LocationScale(loc, self.at.mask * (self.before.tril.T @ raw))

    def _diagonal(self, raw: Float[Array, "latent"]) -> Float[Array, "latent"]:
        return self.at.slope * jnp.diagonal(self.before.tril) * raw
