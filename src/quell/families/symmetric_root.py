# SPDX-License-Identifier: Apache-2.0
"""The symmetric square root of a covariance, with derivatives that hold at repeated eigenvalues."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float


class SymmetricRoot(eqx.Module):
    r"""\(S = (LL^\top)^{1/2}\) in its eigenbasis, \(S = U \mathrm{diag}(s) U^\top\).

    The derivative solves the Lyapunov equation \(S\,dS + dS\,S = d(LL^\top)\). In the eigenbasis that is a
    division by \(s_i + s_j > 0\), so nothing breaks where eigenvalues meet, as they do at \(L = I\),
    where differentiating an eigendecomposition would divide by \(s_i - s_j = 0\).
    """

    basis: Float[Array, "latent latent"]
    values: Float[Array, "latent"]
    carried: Float[Array, "latent latent"]

    @classmethod
    def from_tril(cls, tril: Float[Array, "latent latent"]) -> "SymmetricRoot":
        r"""Decompose once; the cost is one eigendecomposition.

        The values are the norms of the rows of \(U^\top L\), because the square roots of the eigenvalues of
        \(LL^\top\) lose half of the digits of the small ones.
        """
        _, basis = jnp.linalg.eigh(tril @ tril.T)
        carried = basis.T @ tril
        return cls(basis, jnp.linalg.norm(carried, axis=1), carried)

    def apply(self, rows: Float[Array, "row latent"]) -> Float[Array, "row latent"]:
        r"""Rows times \(S\)."""
        return ((rows @ self.basis) * self.values) @ self.basis.T

    def solve(self, rows: Float[Array, "row latent"]) -> Float[Array, "row latent"]:
        r"""Rows times \(S^{-1}\)."""
        return ((rows @ self.basis) / self.values) @ self.basis.T

    def pullback(self, outer: Float[Array, "latent latent"]) -> Float[Array, "latent latent"]:
        r"""Carry a cotangent of \(S\), given in the eigenbasis, back to a full matrix cotangent of \(L\).

        For \(G = U^\top g\epsilon^\top U\) it returns \(2YL\), where \(SY + YS = \mathrm{sym}(g\epsilon^\top)\).
        """
        solved = (outer + outer.T) / (self.values[:, None] + self.values)
        return self.basis @ (solved @ self.carried)

    def pullback_rows(
        self, cotangent: Float[Array, "sample *batch latent"], noise: Float[Array, "sample latent"]
    ) -> Float[Array, "sample *batch latent latent"]:
        r"""As `pullback`, for each row of cotangents \(g\) and noise \(\epsilon\) by itself.

        All of them are two large products of the form "many rows times one matrix", which is where libraries are
        fastest; \(Y\) is symmetric, so the second one may begin with the transposed first.
        """
        g, e = cotangent @ self.basis, noise @ self.basis
        e = e.reshape(e.shape[0], *(1,) * (g.ndim - 2), e.shape[1])
        outer = g[..., :, None] * e[..., None, :] + e[..., :, None] * g[..., None, :]
        solved = outer / (self.values[:, None] + self.values)
        half = jnp.swapaxes(solved @ self.basis.T, -1, -2)
        return half @ self.carried
