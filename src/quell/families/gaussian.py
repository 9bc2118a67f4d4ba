# SPDX-License-Identifier: Apache-2.0
"""A normal distribution with a covariance of any structure."""

from typing import NamedTuple

from jaxtyping import Array, Float


class Gaussian(NamedTuple):
    r"""A normal distribution with covariance \(\mathrm{diag}(v) + FF^\top\).

    Args:
        mean: of the latent.
        variance: \(v\); `None` for zero.
        factor: \(F\); `None` for zero.
    """

    mean: Float[Array, "latent"]
    variance: Float[Array, "latent"] | None = None
    factor: Float[Array, "latent factor"] | None = None
