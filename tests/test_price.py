# SPDX-License-Identifier: Apache-2.0
"""Price's theorem as an estimator, and the check whether it holds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import catalogue
import quell
from exact import exact_draw, expectation, expected_value, gauss_hermite
from quell.estimators.smoothness import has_price_theorem
from quell.evaluation import Evaluation
from quell.quadratic import DenseCurvature, DiagonalCurvature, FactoredCurvature, SumCurvature
from tolerances import EXACT, EXPECTATION

PRICE = quell.Price()
FAMILIES = catalogue.FAMILIES


def all_close(left, right, tolerance) -> None:
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, **tolerance), left, right)


@pytest.mark.parametrize("model", ["logistic", "function"])
@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_its_mean_is_the_gradient_of_the_expectation(family, model):
    problem = quell.Problem(catalogue.MODELS[model], family)
    draw, mass = exact_draw(problem, 2)
    evaluation = Evaluation(problem, catalogue.some_params(family), draw)

    def value(w):
        data = problem.model.data
        return expected_value(lambda z: jnp.sum(problem.model.log_likelihood(z, data)), problem, w)

    found = expectation(PRICE.estimate(evaluation, quell.Data()), evaluation, mass)
    all_close(found, jax.grad(value)(evaluation.params), EXPECTATION)
    wrong = expectation(PRICE.estimate(evaluation, quell.Data()) * 1.0001, evaluation, mass)
    with pytest.raises(AssertionError):
        all_close(wrong, jax.grad(value)(evaluation.params), EXPECTATION)


def test_for_a_low_rank_gaussian_too():
    """Its noise has more coordinates than the latent."""
    family = quell.LowRank(1, 1, init_scale=0.7)
    model = quell.logistic_regression([[0.5], [-0.4], [0.3]], [1, 0, 1])
    problem = quell.Problem(model, family)
    nodes, mass = gauss_hermite(2)
    params = jax.tree.map(lambda leaf: leaf + 0.3, family.init(dtype=jnp.float64))
    evaluation = Evaluation(problem, params, quell.Draw(jnp.asarray(nodes), None))

    def value(w):
        latents = family.particles(w, jnp.asarray(nodes)).latents(family.sampling)
        return jnp.asarray(mass) @ jax.vmap(lambda z: jnp.sum(model.log_likelihood(z, model.data)))(latents)

    found = expectation(PRICE.estimate(evaluation, quell.Data()), evaluation, jnp.asarray(mass))
    all_close(found, jax.grad(value)(params), EXPECTATION)


@pytest.mark.parametrize("family", [quell.FullRank(2), quell.FullRank(2, log_scale=False)])
def test_it_is_the_formula(family):
    """By hand, for one replicate of a model without a linear predictor."""
    model, noise = catalogue.MODELS["function"], jnp.array([[0.7, -1.2]])
    params = catalogue.some_params(family)
    evaluation = Evaluation(quell.Problem(model, family), params, quell.Draw(noise, None))
    tril = family.scale_tril(params)

    def log_likelihood(z):
        return jnp.sum(model.log_likelihood(z, model.data))

    points = [params.loc + sign * tril @ noise[0] for sign in (1, -1)]
    grad = 0.5 * sum(jax.grad(log_likelihood)(z) for z in points)
    hessian = 0.5 * sum(jax.hessian(log_likelihood)(z) for z in points)
    chain = jnp.where(jnp.eye(2) > 0, tril if family.log_scale else 1.0, 1.0)
    found = evaluation.particles.pullback(PRICE.estimate(evaluation, quell.Data()))
    all_close(found, quell.LocationScale(grad, jnp.tril(hessian @ tril) * chain), EXACT)


def test_of_a_quadratic_no_noise_is_left(key):
    problem = quell.Problem(catalogue.MODELS["gaussian"], quell.FullRank(2))
    params = catalogue.some_params(problem.family)
    for num in (1, 3):
        draw = quell.Sampler(num).draw(key, problem.family, catalogue.NUM_DATA, jnp.float64)
        evaluation = Evaluation(problem, params, draw)
        for term in (quell.Data(), quell.Prior()):
            found = PRICE.estimate(evaluation, term) - quell.ClosedForm().estimate(evaluation, term)
            for leaf in jax.tree.leaves(evaluation.particles.dense(found)):
                np.testing.assert_allclose(leaf, 0.0, **EXACT)


def test_the_mean_of_curvatures():
    def symmetric(seed):
        matrix = np.random.default_rng(seed).normal(size=(2, 3, 3))
        return matrix + matrix.transpose(0, 2, 1)

    rng = np.random.default_rng(0)
    dense, diagonal = DenseCurvature(jnp.asarray(symmetric(1))), DiagonalCurvature(jnp.asarray(rng.normal(size=(2, 3))))
    factored = FactoredCurvature(jnp.asarray(rng.normal(size=(2, 4, 3))), jnp.asarray(rng.normal(size=(2, 4))))
    for curvature in (dense, diagonal, factored, SumCurvature((dense, diagonal, factored))):
        each = [jax.tree.map(lambda leaf, k=k: leaf[k], curvature).matmul(jnp.eye(3)) for k in range(2)]
        np.testing.assert_allclose(curvature.mean().matmul(jnp.eye(3)), 0.5 * (each[0] + each[1]), **EXACT)


def test_what_it_refuses():
    problem = quell.Problem(catalogue.MODELS["logistic"], quell.FullRank(2))
    assert "variational was given" in str(PRICE.refuses(problem, quell.Variational()))
    discrete = quell.Problem(catalogue.MODELS["logistic"], quell.Bernoulli(2))
    assert "needs a Gaussian family" in str(PRICE.refuses(discrete, quell.Data()))

    def loop(z, rows):
        return -jax.lax.while_loop(lambda x: jnp.all(x < 3), lambda x: x + 1, rows - z[0])

    rough = quell.Problem(quell.Model(loop, lambda z: -jnp.sum(z**2), jnp.ones(3), jnp.zeros(2)), quell.FullRank(2))
    assert "the data term cannot be differentiated twice" in str(PRICE.refuses(rough, quell.Data()))


def model_of(density):
    """Thirty rows seen through a density of the residual."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(30, 2))
    data = {"x": jnp.asarray(features), "y": jnp.asarray(features @ [1.0, -0.5] + 0.5 * rng.normal(size=30))}
    return quell.Model(
        lambda z, rows: density(rows["y"] - rows["x"] @ z), lambda z: -0.5 * jnp.sum(z**2), data, jnp.zeros(2)
    )


SMOOTH = {
    "normal": lambda r: -0.5 * r**2,
    "student": lambda r: -2.0 * jnp.log1p(r**2 / 3.0),
    "logistic": lambda r: -r - 2.0 * jax.nn.softplus(-r),
    "flat beyond two": lambda r: -jnp.where(jnp.abs(r) < 2, (1.0 - (r / 2.0) ** 2) ** 3, 0.0),
    "network": lambda r: -0.5 * jnp.tanh(2.0 * r) ** 2,
}
JUMPS = {
    "laplace": lambda r: -jnp.abs(r),
    "hinge": lambda r: -jnp.maximum(r, 0.0),
    "a small jump": lambda r: -0.5 * r**2 - 0.1 * jnp.abs(r),
    "rectified": lambda r: -0.5 * jax.nn.relu(r) ** 2 - jax.nn.relu(-r),
}


@pytest.mark.parametrize("name", [*SMOOTH, *JUMPS])
@pytest.mark.parametrize("scale", [0.1, 1.0])
def test_jumps_of_the_gradient_are_seen(name, scale):
    problem = quell.Problem(model_of({**SMOOTH, **JUMPS}[name]), quell.FullRank(2, init_scale=scale))
    found = [has_price_theorem(problem, problem.family.init(), jax.random.key(seed)) for seed in range(3)]
    assert found == [name in SMOOTH] * 3
