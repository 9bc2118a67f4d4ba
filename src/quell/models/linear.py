# SPDX-License-Identifier: Apache-2.0
"""Models that see the latent only through a linear predictor x·z."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree
from numpy.typing import ArrayLike

from quell.core.checks import check_positive
from quell.data import DiskRows
from quell.data.access import like_rows
from quell.models.base import AbstractDataExpansion, AbstractModel
from quell.models.data_expansion import LinearDataExpansion
from quell.models.likelihood import (
    ExpectedLogDensity,
    Gaussian,
    LogDensity,
    QuadraticBound,
    expected_poisson,
    jaakkola_jordan,
    log_sigmoid,
    poisson,
)
from quell.models.linear_data import LinearData, counted_data, folded_data, linear_data
from quell.models.predictor import AbstractPredictor, Vector
from quell.models.prior import AbstractPrior, NormalPrior
from quell.models.quadratic import FactoredCurvature, Quadratic
from quell.models.quadrature import normal_expectation


class LinearPredictor(AbstractModel, AbstractPredictor):
    r"""Independent data with \(\log p(y_i \mid x_i^\top z)\).

    The structure makes derivatives cheap (one number per datum carries them), the Hessian of a datum
    rank one, a Taylor expansion in the data a matter of cached moments, and the exact ELBO a
    one-dimensional quadrature per datum.

    Args:
        data: features and targets, or the same on disk.
        log_density: \(\log p(y \mid t)\) as a function of the predictor `t` and the target `y`, scalars.
        prior: over the flat latent.
        is_quadratic: whether `log_density` is a quadratic in `t`.
        is_smooth: whether it bends no more sharply in `t` than the logistic one and grows no faster, so that
            expectations under a predictor that hardly moves take a few evaluations only.
        expected: \(E \log p(y \mid t)\) for \(t \sim N(m, v)\) as a function of `m`, `v` and `y`, where it has a
            closed form; by quadrature else.
        bound: a quadratic in `t` below `log_density`, as a function of `m` and `v`, where one is known.

    Where `log_density` has a kink, as that of a Laplace distribution, and where a unit of `t` is many times the
    distance over which it bends, quadrature is off by some percent without notice; write `expected` there.
    """

    data: LinearData | DiskRows
    prior: AbstractPrior
    log_density: LogDensity = eqx.field(static=True)
    is_quadratic: bool = eqx.field(static=True, default=False)
    is_smooth: bool = eqx.field(static=True, default=False)
    expected: ExpectedLogDensity | None = eqx.field(static=True, default=None)
    bound: QuadraticBound | None = eqx.field(static=True, default=None)

    @property
    def has_exact_expectations(self) -> bool:
        """Whether expectations of the log-likelihood under a normal predictor are known to be exact."""
        return self.is_quadratic or self.is_smooth or self.expected is not None

    @property
    def dim(self) -> int:
        return like_rows(self.data, 1).features.shape[-1]

    def log_likelihood(self, z: Float[Array, "latent"], batch: PyTree) -> Float[Array, "datum"]:
        return jax.vmap(self.log_density)(batch.features @ z, batch.targets)

    def expand(self, anchor: Float[Array, "latent"], batch: PyTree) -> Quadratic:
        predictor = batch.features @ anchor
        value, first, second = jax.vmap(_two_derivatives(self.log_density))(predictor, batch.targets)
        curvature = FactoredCurvature(batch.features, second)
        return Quadratic(anchor, jnp.sum(value), first @ batch.features, curvature)

    def data_expansion(self) -> AbstractDataExpansion | None:
        return LinearDataExpansion.from_data(self.data, self.log_density)

    @property
    def has_cheap_expansion(self) -> bool:
        return True

    @property
    def has_independent_rows(self) -> bool:
        return True

    @property
    def likelihood_is_quadratic(self) -> bool:
        return self.is_quadratic

    def unravel(self, z: Float[Array, "latent"]) -> Float[Array, "latent"]:
        return z

    @property
    def predictor(self) -> AbstractPredictor:
        return self

    def rows(self, batch: PyTree) -> Float[Array, "datum latent"]:
        return batch.features

    def slopes(self, predictor: Float[Array, "datum"], batch: PyTree) -> Float[Array, "datum"]:
        return jax.vmap(jax.grad(self.log_density))(predictor, batch.targets)

    def quadratic_bound(self, mean: Vector, variance: Vector) -> tuple[Vector, Vector, Vector] | None:
        return None if self.bound is None else self.bound(mean, variance)

    def expectations(
        self, mean: Vector, variance: Vector, batch: PyTree, *, coarse: bool = False
    ) -> tuple[Vector, Vector, Vector]:
        r"""By quadrature \(E f''(t)\) is \(E[f'(t)\,\eta] / s\) with \(t = m + s\eta\).

        No second derivative is evaluated, and a kink of \(f\) has its share.
        """
        targets = batch.targets
        closed = _of_quadratic(self.log_density) if self.is_quadratic else self.expected
        if closed is not None:
            return jax.vmap(_two_derivatives(closed))(mean, variance, targets)
        is_fixed = variance == 0  # a row of zeros: its predictor does not move, and there is no dividing by its scale
        divisor = jnp.sqrt(jnp.where(is_fixed, 1.0, variance))

        of_all = jax.vmap(jax.vmap(jax.value_and_grad(self.log_density), (0, None)))
        (value, _), (first, tilt) = normal_expectation(
            lambda at: of_all(at, targets),
            mean,
            jnp.where(is_fixed, 0.0, divisor),
            is_smooth=self.is_smooth,
            coarse=coarse,
        )
        return value, first, jnp.where(is_fixed, 0.0, tilt / divisor)

    def __repr__(self) -> str:
        """Likelihood and size in one line."""
        name = getattr(self.log_density, "__name__", repr(self.log_density))
        return f"LinearPredictor({name}, num_data={self.num_data}, dim={self.dim})"


def logistic_regression(
    features: ArrayLike | DiskRows, labels: ArrayLike | DiskRows, *, prior: AbstractPrior | None = None
) -> LinearPredictor:
    r"""Bayesian logistic regression, \(\log p(y \mid x, z) = \log \mathrm{sigmoid}(y\, x^\top z)\).

    The label is folded into the features, \(u = y x\), so that a Taylor expansion in the data is one
    in \(u\).

    Args:
        features: one row per datum; append a column of ones for an intercept. With `quell.DiskRows` they stay on disk.
        labels: in {0, 1} or in {-1, 1}; on disk where the features are.
        prior: over the weights; a standard normal by default.

    Example:
        >>> import quell
        >>> quell.logistic_regression([[1.0, 2.0], [1.0, -1.0]], [0, 1])
        LinearPredictor(log_sigmoid, num_data=2, dim=2)
    """
    return LinearPredictor(
        folded_data(features, labels), prior or NormalPrior(), log_sigmoid, is_smooth=True, bound=jaakkola_jordan
    )


def poisson_regression(
    features: ArrayLike | DiskRows, counts: ArrayLike | DiskRows, *, prior: AbstractPrior | None = None
) -> LinearPredictor:
    r"""Bayesian Poisson regression with log link, \(y \sim \mathrm{Poisson}(\exp x^\top z)\).

    Args:
        features: one row per datum, or `quell.DiskRows`.
        counts: non-negative integers; on disk where the features are.
        prior: over the weights; a standard normal by default.
    """
    return LinearPredictor(counted_data(features, counts), prior or NormalPrior(), poisson, expected=expected_poisson)


def gaussian_regression(
    features: ArrayLike | DiskRows,
    targets: ArrayLike | DiskRows,
    *,
    noise: float = 1.0,
    prior: AbstractPrior | None = None,
) -> LinearPredictor:
    r"""Bayesian linear regression, \(y \sim N(x^\top z, \sigma^2)\) with known noise.

    Args:
        features: one row per datum, or `quell.DiskRows`.
        targets: real numbers; on disk where the features are.
        noise: \(\sigma\), the standard deviation.
        prior: over the weights; a standard normal by default.
    """
    check_positive("noise", noise)
    return LinearPredictor(linear_data(features, targets), prior or NormalPrior(), Gaussian(noise), is_quadratic=True)


def _of_quadratic(log_density: LogDensity) -> ExpectedLogDensity:
    def expected(mean: Array, variance: Array, target: Array) -> Array:
        value, _, second = _two_derivatives(log_density)(mean, target)
        return value + 0.5 * variance * second

    return expected


def _two_derivatives(function: Callable[..., Array]) -> Callable[..., tuple[Array, Array, Array]]:
    """Value and two derivatives in the first argument."""

    def evaluate(predictor: Array, *others: Array) -> tuple[Array, Array, Array]:
        def first(t: Array) -> tuple[Array, Array]:
            value, slope = jax.value_and_grad(function)(t, *others)
            return slope, value

        slope, second, value = jax.jvp(first, (predictor,), (jnp.ones_like(predictor),), has_aux=True)
        return value, slope, second

    return evaluate
