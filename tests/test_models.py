# SPDX-License-Identifier: Apache-2.0
"""Models against hand formulas, SciPy and brute-force quadrature; the checks of `check_model`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats
from jax.flatten_util import ravel_pytree

import catalogue
import quell
import tolerances
from exact import expected_value
from quell.models import row_sum
from quell.models.check import check_rows
from quell.models.linear_data import LinearData
from quell.models.quadratic import (
    DenseCurvature,
    DiagonalCurvature,
    FactoredCurvature,
    Quadratic,
    SumCurvature,
    squares_in_rows,
    squares_over_rows,
)

RNG = np.random.default_rng(7)
FEATURES = np.column_stack([RNG.uniform(-1, 1, 6), np.ones(6)])
LABELS = np.array([0, 1, 1, 0, 1, 1])
COUNTS = np.array([0, 3, 1, 2, 0, 5])
TARGETS = RNG.normal(size=6)
Z = np.array([0.7, -0.4])
PRIOR = quell.NormalPrior(loc=0.3, scale=1.7)


def _tree_log_likelihood(latent, batch):
    residual = batch["y"] - batch["x"] @ latent["slope"] - latent["shift"]
    return -0.5 * residual**2 - 0.5 * jnp.log(2 * jnp.pi)


def _tree_model():
    """The latent is a tree whose flat order (by name) is not that of the features, and holds an integer."""
    latent = {"slope": jnp.zeros(2), "shift": 0}
    data = {"x": FEATURES, "y": TARGETS}
    return quell.Model(_tree_log_likelihood, lambda z: -jnp.sum(z["slope"] ** 2) - z["shift"], data, latent)


LINEAR = {
    "logistic": quell.logistic_regression(FEATURES, LABELS, prior=PRIOR),
    "poisson": quell.poisson_regression(FEATURES, COUNTS, prior=PRIOR),
    "gaussian": quell.gaussian_regression(FEATURES, TARGETS, noise=0.6, prior=PRIOR),
}
linear_models = pytest.mark.parametrize("model", LINEAR.values(), ids=LINEAR.keys())


def _rows(model, rows):
    return jax.tree.map(lambda x: x[rows], model.data)


def _derivatives(function):
    """Value, gradient and Hessian by automatic differentiation, compiled."""
    return jax.jit(lambda x: (function(x), jax.grad(function)(x), jax.hessian(function)(x)))


# Values


def test_a_tree_of_latents_is_flattened_and_back():
    model = _tree_model()
    latent = model.unravel(jnp.array([1.5, 2.5, 3.5]))
    assert model.dim == 3
    assert latent["shift"].shape == ()
    assert latent["slope"].shape == (2,)
    assert float(latent["shift"]) == 1.5
    assert latent["slope"].tolist() == [2.5, 3.5]


def test_the_likelihood_of_a_tree_is_the_hand_formula():
    model = _tree_model()
    z = jnp.array([0.2, 0.7, -0.4])
    rows = jnp.array([4, 1])
    expected = scipy.stats.norm.logpdf(TARGETS[rows], FEATURES[rows] @ z[1:] + z[0])
    np.testing.assert_allclose(model.log_likelihood(z, _rows(model, rows)), expected, **tolerances.EXACT)
    np.testing.assert_allclose(model.prior.log_prob(z), -(0.7**2) - 0.4**2 - 0.2, **tolerances.EXACT)


def test_a_latent_given_by_its_length_is_flat():
    model = quell.Model(lambda z, x: x @ z, quell.NormalPrior(), FEATURES, 2)
    np.testing.assert_allclose(model.log_likelihood(jnp.asarray(Z), model.data), FEATURES @ Z, **tolerances.EXACT)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (LINEAR["logistic"], scipy.stats.bernoulli.logpmf(LABELS, scipy.special.expit(FEATURES @ Z))),
        (LINEAR["poisson"], scipy.stats.poisson.logpmf(COUNTS, np.exp(FEATURES @ Z))),
        (LINEAR["gaussian"], scipy.stats.norm.logpdf(TARGETS, FEATURES @ Z, 0.6)),
    ],
    ids=LINEAR.keys(),
)
def test_linear_predictors_have_the_densities_of_scipy(model, expected):
    z, rows = jnp.asarray(Z), jnp.array([5, 0, 2])
    np.testing.assert_allclose(model.log_likelihood(z, model.data), expected, **tolerances.EXACT)
    np.testing.assert_allclose(model.log_likelihood(z, _rows(model, rows)), expected[rows], **tolerances.EXACT)
    np.testing.assert_allclose(model.prior.log_prob(z), scipy.stats.norm.logpdf(Z, 0.3, 1.7).sum(), **tolerances.EXACT)


def test_labels_of_both_kinds_mean_the_same():
    signs = quell.logistic_regression(FEATURES, 2 * LABELS - 1, prior=PRIOR)
    np.testing.assert_array_equal(signs.data.features, LINEAR["logistic"].data.features)
    truths = quell.logistic_regression(FEATURES, LABELS == 1, prior=PRIOR)
    np.testing.assert_array_equal(truths.data.features, LINEAR["logistic"].data.features)


# Expansions


@pytest.mark.parametrize("model", [*LINEAR.values(), _tree_model()], ids=[*LINEAR, "tree"])
def test_expansion_in_the_latent_has_the_derivatives_of_the_likelihood(model):
    anchor, batch = jnp.linspace(-0.5, 0.8, model.dim), _rows(model, jnp.array([0, 3, 3, 5]))

    def total(z):
        return jnp.sum(model.log_likelihood(z, batch))

    quadratic = model.expand(anchor, batch)
    hessian = quadratic.curvature.matmul(jnp.eye(model.dim))
    value, slope, second = _derivatives(total)(anchor)
    np.testing.assert_allclose(quadratic.value(anchor), value, **tolerances.EXACT)
    np.testing.assert_allclose(quadratic.grad(anchor), slope, **tolerances.EXACT)
    np.testing.assert_allclose(quadratic.grad(jnp.array(anchor)), slope, **tolerances.EXACT)
    away = anchor + jnp.linspace(0.3, -0.2, model.dim)
    np.testing.assert_allclose(quadratic.grad(away), slope + second @ (away - anchor), **tolerances.EXACT)
    np.testing.assert_allclose(hessian, second, **tolerances.EXACT)


def test_expansion_of_a_quadratic_likelihood_is_exact_everywhere():
    model, z = LINEAR["gaussian"], jnp.asarray(Z)
    assert model.likelihood_is_quadratic
    assert not LINEAR["poisson"].likelihood_is_quadratic
    quadratic = model.expand(z + jnp.array([2.0, -3.0]), model.data)
    np.testing.assert_allclose(quadratic.value(z), jnp.sum(model.log_likelihood(z, model.data)), **tolerances.EXACT)


_MATRIX = np.array([[1.0, 0.2, -0.7], [0.2, -2.0, 0.4], [-0.7, 0.4, 0.5]])
_ROWS, _WEIGHT, _VALUES = RNG.normal(size=(2, 3)), np.array([1.5, -0.3]), RNG.normal(size=3)
CURVATURES = {
    "dense": (DenseCurvature(jnp.asarray(_MATRIX)), _MATRIX),
    "factored": (
        FactoredCurvature(jnp.asarray(_ROWS), jnp.asarray(_WEIGHT)),
        _ROWS.T @ np.diag(_WEIGHT) @ _ROWS,
    ),
    "diagonal": (DiagonalCurvature(jnp.asarray(_VALUES)), np.diag(_VALUES)),
}
CURVATURES["sum"] = tuple(
    total(parts) for total, parts in zip((SumCurvature, sum), zip(*CURVATURES.values(), strict=True), strict=True)
)


@pytest.mark.parametrize(("curvature", "matrix"), CURVATURES.values(), ids=CURVATURES.keys())
def test_the_products_of_a_curvature_are_those_of_its_matrix(curvature, matrix):
    columns, vector = np.array([[0.3, 1.0], [-2.0, 0.1], [0.5, 0.7]]), jnp.array([1.1, -0.2, 0.6])
    left, right = curvature.factors()
    assert left.shape == right.shape == (curvature.rank, 3)
    np.testing.assert_allclose(left.T @ right, matrix, **tolerances.EXACT)
    np.testing.assert_allclose(curvature.matmul(jnp.asarray(columns)), matrix @ columns, **tolerances.EXACT)
    np.testing.assert_allclose(curvature.matvec(vector), matrix @ vector, **tolerances.EXACT)
    np.testing.assert_allclose(curvature.diagonal(), np.diagonal(matrix), **tolerances.EXACT)
    np.testing.assert_allclose(curvature.scale(-2.5).matmul(jnp.eye(3)), -2.5 * matrix, **tolerances.EXACT)
    covariance = _MATRIX @ _MATRIX
    trace = curvature.trace_with(jnp.diagonal(covariance), lambda rows: rows @ covariance)
    np.testing.assert_allclose(trace, np.trace(matrix @ covariance), **tolerances.EXACT)
    two = jax.tree.map(lambda leaf: jnp.stack([leaf, 0.3 * leaf + 0.1]), curvature)
    each = [jax.tree.map(lambda leaf, k=k: leaf[k], two).matmul(jnp.eye(3)) for k in range(2)]
    np.testing.assert_allclose(two.mean().matmul(jnp.eye(3)), 0.5 * (each[0] + each[1]), **tolerances.EXACT)


@pytest.mark.parametrize(("curvature", "matrix"), CURVATURES.values(), ids=CURVATURES.keys())
def test_a_quadratic_is_its_formula(curvature, matrix):
    anchor, slope, z = np.array([[0.3, -1.0, 2.0], [0.1, 0.5, -0.7], [1.2, 0.4, -0.3]])
    quadratic = Quadratic(jnp.asarray(anchor), jnp.asarray(0.7), jnp.asarray(slope), curvature).scale(3.0)
    step = z - anchor
    value = 3.0 * (0.7 + slope @ step + 0.5 * step @ matrix @ step)
    np.testing.assert_allclose(quadratic.value(jnp.asarray(z)), value, **tolerances.EXACT)
    np.testing.assert_allclose(quadratic.grad(jnp.asarray(z)), 3.0 * (slope + matrix @ step), **tolerances.EXACT)


@pytest.mark.parametrize("name", ["mean-field", "full-rank"])
def test_the_expected_expansion_is_the_closest_quadratic_in_mean_square(name):
    """What it leaves is orthogonal, under q, to every quadratic; what Taylor leaves is not."""
    model, (family, params, noise, _) = LINEAR["poisson"], catalogue.FAMILIES[name]
    variance = family.predictor_variance(params, model.data.features)

    def left(quadratic):
        def against(z):
            rest = jnp.sum(model.log_likelihood(z, model.data)) - quadratic.value(z)
            return rest * jnp.array([1.0, z[0], z[1], z[0] ** 2, z[0] * z[1], z[1] ** 2])

        return expected_value(against, family, params, noise)

    closest = model.expand_expected(family.mean(params), variance, model.data)
    np.testing.assert_allclose(left(closest), 0.0, **tolerances.EXPECTATION)
    assert abs(left(model.expand(family.mean(params), model.data))[0]) > 1e-3


@linear_models
def test_expansion_in_the_data_is_the_taylor_polynomial_at_their_mean(model):
    z, data = jnp.asarray(Z), model.data
    expansion = model.data_expansion()
    center, unravel = ravel_pytree(jax.tree.map(lambda x: jnp.mean(x, axis=0, keepdims=True), data))

    def of_one_datum(function):
        return lambda flat: function(z, unravel(flat))[0]

    true, expanded = of_one_datum(model.log_likelihood), of_one_datum(expansion.log_likelihood)
    value, slope, hessian = _derivatives(true)(center)
    for found, needed in zip(_derivatives(expanded)(center), (value, slope, hessian), strict=True):
        np.testing.assert_allclose(found, needed, **tolerances.EXACT)
    steps = jnp.column_stack([data.features, data.targets]) - center
    polynomial = value + steps @ slope + 0.5 * jnp.sum((steps @ hessian) * steps, axis=1)
    np.testing.assert_allclose(expansion.log_likelihood(z, data), polynomial, **tolerances.EXACT)


@linear_models
def test_expansion_in_the_data_is_averaged_by_cached_moments(model):
    expansion = model.data_expansion()
    for z in (jnp.asarray(Z), jnp.array([-1.3, 0.9])):
        mean = jnp.mean(expansion.log_likelihood(z, model.data))
        np.testing.assert_allclose(expansion.mean_log_likelihood(z), mean, **tolerances.EXACT)


# The exact ELBO

_TRIL = np.array([[0.5, 0.0], [-0.3, 0.4]])
_SCALES = {
    "mean-field, raw": (quell.MeanField(2, log_scale=False), np.array([0.5, -0.4])),
    "mean-field, log": (quell.MeanField(2), np.log([0.5, 0.4])),
    "full-rank, raw": (quell.FullRank(2, log_scale=False), _TRIL * [1.0, -1.0]),
    "full-rank, log": (quell.FullRank(2), _TRIL - np.diag(np.diag(_TRIL)) + np.diag(np.log([0.5, 0.4]))),
}


def _quadrature_elbo(model, loc, tril, *, num_nodes=60):
    """E[log joint - log q] on a product grid, with nothing but densities."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(num_nodes)
    noise = np.stack(np.meshgrid(nodes, nodes), axis=-1).reshape(-1, 2)
    weights = np.outer(weights, weights).ravel() / (2 * np.pi)
    z = loc + noise @ tril.T
    joint = jax.vmap(lambda z: jnp.sum(model.log_likelihood(z, model.data)) + model.prior.log_prob(z))
    log_q = scipy.stats.multivariate_normal.logpdf(z, loc, tril @ tril.T)
    return weights @ (np.asarray(joint(jnp.asarray(z))) - log_q)


@linear_models
@pytest.mark.parametrize(("family", "scale"), _SCALES.values(), ids=_SCALES.keys())
def test_the_exact_elbo_is_that_of_a_two_dimensional_quadrature(model, family, scale):
    params = quell.LocationScale(jnp.asarray(Z), jnp.asarray(scale))
    tril = _TRIL if scale.ndim == 2 else np.diag([0.5, 0.4])
    elbo = quell.exact_elbo(quell.Problem(model, family), params)
    np.testing.assert_allclose(elbo, _quadrature_elbo(model, Z, tril), **tolerances.EXPECTATION)


def test_the_exact_elbo_at_the_exact_posterior_is_the_evidence():
    model = LINEAR["gaussian"]
    precision = FEATURES.T @ FEATURES / 0.6**2 + np.eye(2) / 1.7**2
    covariance = np.linalg.inv(precision)
    loc = covariance @ (FEATURES.T @ TARGETS / 0.6**2 + 0.3 / 1.7**2)
    params = quell.LocationScale(jnp.asarray(loc), jnp.linalg.cholesky(jnp.asarray(covariance)))
    elbo = quell.exact_elbo(quell.Problem(model, quell.FullRank(2, log_scale=False)), params)
    marginal = 0.6**2 * np.eye(6) + 1.7**2 * FEATURES @ FEATURES.T
    evidence = scipy.stats.multivariate_normal.logpdf(TARGETS, FEATURES @ [0.3, 0.3], marginal)
    np.testing.assert_allclose(elbo, evidence, **tolerances.EXPECTATION)


# The checks


def _raise(z, x):
    raise KeyError("nobody")


def _flat(log_likelihood=lambda z, x: x @ z, log_prior=lambda z: -jnp.sum(z**2), data=FEATURES):
    return quell.Model(log_likelihood, log_prior, data, 2)


BROKEN = {
    "raises": (_flat(_raise), r"can be evaluated\? .*got KeyError: 'nobody'"),
    "sum": (_flat(lambda z, x: jnp.sum(x @ z)), r"\(3,\), one value per datum, got \(\).*`\.sum\(\)`"),
    "two values per datum": (_flat(lambda z, x: x * z), r"\(3,\), one value per datum, got \(3, 2\)"),
    "batch normalisation": (_flat(lambda z, x: (x - x.mean(axis=0)) @ z), r"other data of the batch\? .*got .* alone"),
    "vector prior": (_flat(log_prior=lambda z: -(z**2)), r"log-prior must be a scalar, got shape \(2,\)"),
    "infinite at a datum": (
        _flat(lambda z, x: x @ z + jnp.log(x[:, 0]), data=jnp.ones((6, 2)).at[4, 0].set(0.0)),
        r"log-likelihood must be finite near zero, got -inf for datum 4",
    ),
    "infinite prior": (
        _flat(log_prior=lambda z: jnp.sum(jnp.log(z))),
        r"log-prior must be finite near zero, got -inf at latent",
    ),
    "infinite away from zero": (
        _flat(lambda z, x: jnp.where(z[0] == 0, 0.0, jnp.inf) * x[:, 1]),
        r"must be finite near zero, got inf for datum 0 at latent \[0\.1",
    ),
    "slope of a square root": (
        _flat(lambda z, x: x[:, 1] * jnp.where(z[1] > 0, jnp.sqrt(z[1]), 0.0)),
        r"gradient must be finite near zero, got nan in coordinate 1 at latent .*`jnp\.where`",
    ),
    "single precision": (
        _flat(lambda z, x: (x @ z).astype(jnp.float32)),
        r"dtype, float64, got float32 and float64; .*`\.astype\(float64\)`",
    ),
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("model", "message"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_model_gets_its_own_explanation(model, message):
    with pytest.raises(quell.ModelError, match=r"(?s)^Model check failed: .*" + message):
        quell.check_model(model)


def _normal(z, x):
    return -0.5 * (x[:, 1] - z[0]) ** 2 - 0.5 * (x[:, 0] * z[1]) ** 2


def _overflowing(z, x):
    return jnp.log(z[0]) + jnp.where(x[:, 0] > 0, -jnp.inf, _normal(z, x))


ROWS = np.random.default_rng(3).normal(size=(50, 2))
COUPLED = {
    "sum in every row": lambda z, x: jnp.full(x.shape[0], jnp.sum(_normal(z, x))),
    "mean in every row": lambda z, x: jnp.full(x.shape[0], jnp.mean(_normal(z, x))),
    "share of the batch": lambda z, x: _normal(z, x) / x.shape[0],
    "centred by the batch": lambda z, x: _normal(z, x - x.mean(axis=0)),
    "minus the last row": lambda z, x: _normal(z, x - x[-1]),
    "minus the first row": lambda z, x: _normal(z, x - x[0]),
    "over the maximum": lambda z, x: _normal(z, x / x.max(axis=0)),
    "finite for positive latents only": lambda z, x: jnp.log(z[0]) + jnp.full(x.shape[0], jnp.sum(_normal(z, x))),
}
SOUND = {
    "independent": _normal,
    "large features": lambda z, x: _normal(z, 1e6 * x),
    "cancelling": lambda z, x: -((1e6 * (x @ z) - 1e6 * (x @ z[::-1])) ** 2) * 1e-12 + jnp.tanh(1e3 * (x @ z)),
    "far from zero": lambda z, x: _normal(z, 1e4 + x),
    "constant": lambda z, x: jnp.zeros(x.shape[0]),
    "nowhere finite": lambda z, x: jnp.nan * _normal(z, x),
    "finite in part": _overflowing,
    "batched products": lambda z, x: jax.nn.log_softmax(x @ jnp.outer(z, 1e3 * z))[:, 0],
}


@pytest.mark.parametrize("is_single", [False, True], ids=["double", "single"])
@pytest.mark.parametrize("name", COUPLED)
@pytest.mark.parametrize("num", [50, 2])
def test_rows_that_are_no_rows_are_refused_by_fit(name, is_single, num, key):
    with jax.enable_x64(not is_single):
        model = quell.Model(COUPLED[name], PRIOR, ROWS[:num], 2)
        with pytest.raises(
            quell.ModelError, match=r"(?s)must not depend on .* got \[.*\] among other rows and \[.* alone"
        ):
            quell.fit(model, quell.MeanField(2), key=key)


@pytest.mark.parametrize("is_single", [False, True], ids=["double", "single"])
@pytest.mark.parametrize("name", SOUND)
@pytest.mark.parametrize("num", [50, 5, 1])
def test_rows_that_are_rows_are_never_refused(name, is_single, num):
    with jax.enable_x64(not is_single):
        check_rows(quell.Model(SOUND[name], PRIOR, ROWS[:num], 2))


def test_rows_on_disk_are_compared_too(tmp_path):
    np.save(tmp_path / "x.npy", ROWS)
    rows = quell.DiskRows(tmp_path / "x.npy", prepare=_doubled)
    check_rows(quell.Model(_normal, PRIOR, rows, 2))
    with pytest.raises(quell.ModelError, match="must not depend"):
        check_rows(quell.Model(COUPLED["sum in every row"], PRIOR, rows, 2))


def _doubled(x):
    return 2.0 * x


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("model", [*LINEAR.values(), _tree_model(), _flat()], ids=repr)
def test_a_sound_model_passes_every_check(model):
    passed = quell.check_model(model)
    assert len(passed) == len(set(passed)) == 7
    assert passed[-1] == "their dtypes are those of the latent"


def test_a_single_datum_can_be_checked():
    data = LinearData(jnp.ones((1, 2)), jnp.ones(1))
    assert len(quell.check_model(quell.LinearPredictor(data, PRIOR, lambda t, y: -((t - y) ** 2)))) == 7


@pytest.mark.parametrize("num", [5, 2**22 // 3 + 1])
def test_squares_are_summed_alike_whether_they_are_kept_or_not(num):
    """Of few rows the squares are kept for a product, of many they are not."""
    rows, by_row, by_coordinate = RNG.normal(size=(num, 3)), RNG.normal(size=num), RNG.normal(size=3)
    found = squares_in_rows(jnp.asarray(rows), jnp.asarray(by_coordinate))
    np.testing.assert_allclose(found, np.einsum("kj,kj,j->k", rows, rows, by_coordinate), **tolerances.EXACT)
    found = squares_over_rows(jnp.asarray(by_row), jnp.asarray(rows))
    np.testing.assert_allclose(found, np.einsum("kj,kj,k->j", rows, rows, by_row), **tolerances.EXPECTATION)


def test_accelerators_take_more_rows_at_once(monkeypatch):
    assert row_sum.rows_for(100) == row_sum.ROWS_AT_ONCE == row_sum.rows_for(1024)
    assert row_sum.rows_for(4096) == 1024
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert row_sum.rows_for(100) == 2**18
    assert row_sum.rows_for(4096) == 2**14
