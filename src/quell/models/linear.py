# SPDX-License-Identifier: Apache-2.0
"""Models that see the latent only through a linear predictor x·z."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree
from numpy.typing import ArrayLike

from quell.core.checks import check_positive
from quell.data import DiskRows
from quell.data.access import like_rows
from quell.models.base import AbstractDataExpansion, AbstractModel
from quell.models.linear_data import LinearData, counted_data, folded_data, linear_data
from quell.models.prior import AbstractPrior, NormalPrior
from quell.models.quadratic import FactoredCurvature, Quadratic
from quell.models.quadrature import normal_expectation
from quell.models.row_moments import RowMoments, row_moments

LogDensity = Callable[[Array, Array], Array]
ExpectedLogDensity = Callable[[Array, Array, Array], Array]
Vector = Float[Array, "datum"]
Expectations = Callable[[Vector, Vector, Vector], tuple[Vector, Vector, Vector]]


class LinearPredictor(AbstractModel):
    r"""Independent data with \(\log p(y_i \mid x_i^\top z)\).

    The structure makes derivatives cheap (one number a datum carries them), the Hessian of a datum
    rank one, a Taylor expansion in the data a matter of cached moments, and the exact ELBO a
    one-dimensional quadrature a datum.

    Args:
        data: features and targets, or the same on disk.
        log_density: \(\log p(y \mid t)\) as a function of the predictor `t` and the target `y`, scalars.
        prior: over the flat latent.
        is_quadratic: whether `log_density` is a quadratic in `t`.
        is_smooth: whether it bends no more sharply in `t` than the logistic one and grows no faster, so that
            expectations under a predictor that hardly moves take a few evaluations only.
        expected: \(E \log p(y \mid t)\) for \(t \sim N(m, v)\) as a function of `m`, `v` and `y`, where it has a
            closed form; by quadrature else.

    Where `log_density` has a kink, as that of a Laplace distribution, and where a unit of `t` is many times the
    distance over which it bends, quadrature is off by some percent without notice; write `expected` there.
    """

    data: LinearData | DiskRows
    prior: AbstractPrior
    log_density: LogDensity = eqx.field(static=True)
    is_quadratic: bool = eqx.field(static=True, default=False)
    is_smooth: bool = eqx.field(static=True, default=False)
    expected: ExpectedLogDensity | None = eqx.field(static=True, default=None)

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

    def expand_expected(
        self,
        mean: Float[Array, "latent"],
        variance: Float[Array, "datum"],
        batch: PyTree,
        *,
        where: Bool[Array, "datum"] | None = None,
        coarse: bool = False,
    ) -> Quadratic:
        r"""The quadratic closest in mean square to the summed log-likelihood of a batch, under a Gaussian latent.

        Datum \(i\) sees \(t \sim N(x_i^\top \mu, v_i)\). The quadratic around \(\mu\) has the expected gradient
        \(\sum_i x_i E f_i'(t)\) and the expected Hessian \(\sum_i x_i x_i^\top E f_i''(t)\), so that its expectation
        has the same gradient in \(\mu\) and in the covariance as that of the log-likelihood.

        Args:
            mean: \(\mu\), of the latent.
            variance: \(v_i\), of each predictor.
            batch: features and targets.
            where: the data that count; all of them by default.
            coarse: take a few nodes only, the same for all data, for a quadratic that need not be the closest.

        References: Challis & Barber (2013), "Gaussian Kullback-Leibler approximate inference", section 2.
        """
        found = self._expectations(batch.features @ mean, variance, batch.targets, coarse=coarse)
        value, first, second = (e if where is None else jnp.where(where, e, 0.0) for e in found)
        constant = jnp.sum(value - 0.5 * second * variance)
        return Quadratic(mean, constant, first @ batch.features, FactoredCurvature(batch.features, second))

    def data_expansion(self) -> AbstractDataExpansion | None:
        return LinearDataExpansion.from_data(self.data, self.log_density)

    @property
    def has_cheap_expansion(self) -> bool:
        return True

    @property
    def likelihood_is_quadratic(self) -> bool:
        return self.is_quadratic

    def unravel(self, z: Float[Array, "latent"]) -> Float[Array, "latent"]:
        return z

    def expected_log_likelihood(
        self, predictor: Float[Array, "datum"], variance: Float[Array, "datum"], batch: PyTree
    ) -> Float[Array, "datum"]:
        r"""\(E \log p(y_i \mid t)\) for \(t \sim N(m_i, v_i)\), with `predictor` \(m\).

        Its derivatives in the mean and in the variance are \(E f'(t)\) and \(E f''(t) / 2\), of the same quadrature.
        """
        return _expected_value(self._expectations, predictor, variance, batch.targets)

    def _expectations(
        self, mean: Vector, variance: Vector, targets: Vector, *, coarse: bool = False
    ) -> tuple[Vector, Vector, Vector]:
        r"""\(E f(t)\), \(E f'(t)\) and \(E f''(t)\) for each datum.

        By quadrature the last is \(E[f'(t)\,\eta] / s\) with \(t = m + s\eta\): no second derivative is evaluated, and
        a kink of \(f\) has its share.
        """
        closed = _of_quadratic(self.log_density) if self.is_quadratic else self.expected
        if closed is not None:
            return jax.vmap(_two_derivatives(closed))(mean, variance, targets)
        is_fixed = variance == 0  # a row of zeros: its predictor does not move, and there is no dividing by its scale
        divisor = jnp.sqrt(jnp.where(is_fixed, 1.0, variance))

        def expect(function: LogDensity) -> tuple[Vector, Vector]:
            of_all = jax.vmap(jax.vmap(function, (0, None)))
            scale = jnp.where(is_fixed, 0.0, divisor)
            return normal_expectation(
                lambda at: of_all(at, targets), mean, scale, is_smooth=self.is_smooth, coarse=coarse
            )

        first, tilt = expect(jax.grad(self.log_density))
        return expect(self.log_density)[0], first, jnp.where(is_fixed, 0.0, tilt / divisor)

    def __repr__(self) -> str:
        """Likelihood and size in one line."""
        name = getattr(self.log_density, "__name__", repr(self.log_density))
        return f"LinearPredictor({name}, num_data={self.num_data}, dim={self.dim})"


class LinearDataExpansion(AbstractDataExpansion):
    r"""Second-order expansion of \(\log p(y \mid x^\top z)\) in \((x, y)\) around the data's mean.

    With \(\delta t = (x - \bar x)^\top z\) and \(\delta y = y - \bar y\) it is a quadratic in the two
    numbers, so that its average over the data needs only their second moments.

    References: Wang et al. (2013), "Variance reduction for stochastic gradient optimization".
    """

    center: LinearData
    covariance: Float[Array, "latent latent"]
    cross: Float[Array, "latent"]
    variance: Float[Array, ""]
    log_density: LogDensity = eqx.field(static=True)

    @classmethod
    def from_data(cls, data: LinearData | DiskRows, log_density: LogDensity) -> "LinearDataExpansion":
        """Cache the first two moments of the data."""
        if isinstance(data, DiskRows):
            return cls.from_moments(row_moments(data), log_density)
        center = jax.tree.map(lambda x: jnp.mean(x, axis=0), data)
        features, targets = data.features - center.features, data.targets - center.targets
        num = targets.shape[0]
        return cls(
            center=LinearData(center.features[None], center.targets[None]),
            covariance=features.T @ features / num,
            cross=targets @ features / num,
            variance=targets @ targets / num,
            log_density=log_density,
        )

    @classmethod
    def from_moments(cls, moments: RowMoments, log_density: LogDensity) -> "LinearDataExpansion":
        """The same where the moments of features and target together are known; the target is the last number."""
        center, matrix = moments.center, moments.covariance
        return cls(
            center=LinearData(center.features[None], center.targets[None]),
            covariance=matrix[:-1, :-1],
            cross=matrix[-1, :-1],
            variance=matrix[-1, -1],
            log_density=log_density,
        )

    def log_likelihood(self, z: Float[Array, "latent"], batch: PyTree) -> Float[Array, "datum"]:
        predictor = (batch.features - self.center.features) @ z
        target = batch.targets - self.center.targets
        value, (slope_t, slope_y), ((tt, ty), (_, yy)) = self._derivatives(z)
        linear = slope_t * predictor + slope_y * target
        return value + linear + 0.5 * (tt * predictor**2 + yy * target**2) + ty * predictor * target

    def mean_log_likelihood(self, z: Float[Array, "latent"]) -> Float[Array, ""]:
        value, _, ((tt, ty), (_, yy)) = self._derivatives(z)
        return value + 0.5 * (tt * z @ self.covariance @ z + yy * self.variance) + ty * self.cross @ z

    def _derivatives(self, z: Float[Array, "latent"]) -> Any:
        at = (self.center.features[0] @ z, self.center.targets[0])
        first = jax.grad(self.log_density, (0, 1))
        return self.log_density(*at), first(*at), jax.jacfwd(first, (0, 1))(*at)


def logistic_regression(
    features: ArrayLike | DiskRows, labels: ArrayLike | DiskRows, *, prior: AbstractPrior | None = None
) -> LinearPredictor:
    r"""Bayesian logistic regression, \(\log p(y \mid x, z) = \log \mathrm{sigmoid}(y\, x^\top z)\).

    The label is folded into the features, \(u = y x\), so that a Taylor expansion in the data is one
    in \(u\).

    Args:
        features: one row a datum; append a column of ones for an intercept. With `quell.DiskRows` they stay on disk.
        labels: in {0, 1} or in {-1, 1}; on disk where the features are.
        prior: over the weights; a standard normal by default.

    Example:
        >>> import quell
        >>> quell.logistic_regression([[1.0, 2.0], [1.0, -1.0]], [0, 1])
        LinearPredictor(log_sigmoid, num_data=2, dim=2)
    """
    return LinearPredictor(folded_data(features, labels), prior or NormalPrior(), log_sigmoid, is_smooth=True)


def poisson_regression(
    features: ArrayLike | DiskRows, counts: ArrayLike | DiskRows, *, prior: AbstractPrior | None = None
) -> LinearPredictor:
    r"""Bayesian Poisson regression with log link, \(y \sim \mathrm{Poisson}(\exp x^\top z)\).

    Args:
        features: one row a datum, or `quell.DiskRows`.
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
        features: one row a datum, or `quell.DiskRows`.
        targets: real numbers; on disk where the features are.
        noise: \(\sigma\), the standard deviation.
        prior: over the weights; a standard normal by default.
    """
    check_positive("noise", noise)
    return LinearPredictor(linear_data(features, targets), prior or NormalPrior(), Gaussian(noise), is_quadratic=True)


@jax.custom_jvp
def log_sigmoid(predictor: Float[Array, ""], target: Float[Array, ""]) -> Float[Array, ""]:
    """Log-likelihood of a label folded into the features; the target is not looked at."""
    return jax.nn.log_sigmoid(predictor)


@log_sigmoid.defjvp
def _log_sigmoid_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    """One exponential, where the derivative of the stable logarithm takes it and a logarithm too."""
    return log_sigmoid(*primals), jax.nn.sigmoid(-primals[0]) * tangents[0]


def poisson(predictor: Float[Array, ""], target: Float[Array, ""]) -> Float[Array, ""]:
    """Poisson log-likelihood with a log link."""
    return target * predictor - jnp.exp(predictor) - jax.lax.lgamma(target + 1.0)


def expected_poisson(mean: Float[Array, ""], variance: Float[Array, ""], target: Float[Array, ""]) -> Float[Array, ""]:
    """Its expectation under a normal predictor, from the mean of a log-normal."""
    return target * mean - jnp.exp(mean + 0.5 * variance) - jax.lax.lgamma(target + 1.0)


@dataclasses.dataclass(frozen=True)
class Gaussian:
    """Normal log-likelihood with known noise."""

    noise: float

    def __call__(self, predictor: Float[Array, ""], target: Float[Array, ""]) -> Float[Array, ""]:
        """Log density of the target around the predictor."""
        constant = math.log(self.noise) + 0.5 * math.log(2 * math.pi)
        return -0.5 * ((target - predictor) / self.noise) ** 2 - constant


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _expected_value(expectations: Expectations, mean: Vector, variance: Vector, targets: Vector) -> Vector:
    return expectations(mean, variance, targets)[0]


@_expected_value.defjvp
def _expected_value_jvp(
    expectations: Expectations, primals: tuple[Vector, ...], tangents: tuple[Vector, ...]
) -> tuple[Vector, Vector]:
    """Price's theorem; the targets are data, and not differentiated."""
    value, first, second = expectations(*primals)
    return value, first * tangents[0] + 0.5 * second * tangents[1]


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
