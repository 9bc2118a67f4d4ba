# SPDX-License-Identifier: Apache-2.0
"""Price's theorem as an estimator, and the reading of a density whether it holds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import catalogue
import quell
from exact import exact_draw, expectation, expected_value, gauss_hermite
from quell.estimators.smoothness import has_no_kinks, is_smooth
from quell.evaluation import Evaluation
from quell.models.quadratic import DenseCurvature, DiagonalCurvature, FactoredCurvature, SumCurvature
from tolerances import EXACT, EXPECTATION

PRICE = quell.BonnetPrice()
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
        latents = family.algebra(w, jnp.asarray(nodes)).latents(family.sampling)
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
    found = evaluation.algebra.pullback(PRICE.estimate(evaluation, quell.Data()))
    all_close(found, quell.LocationScale(grad, jnp.tril(hessian @ tril) * chain), EXACT)


def test_of_a_quadratic_no_noise_is_left(key):
    problem = quell.Problem(catalogue.MODELS["gaussian"], quell.FullRank(2))
    params = catalogue.some_params(problem.family)
    for num in (1, 3):
        draw = quell.Sampler(num).draw(key, problem.family, catalogue.NUM_DATA, jnp.float64)
        evaluation = Evaluation(problem, params, draw)
        for term in (quell.Data(), quell.Prior()):
            found = PRICE.estimate(evaluation, term) - quell.ClosedForm().estimate(evaluation, term)
            for leaf in jax.tree.leaves(evaluation.algebra.dense(found)):
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


def relu_layer(z):
    return jax.vmap(jax.nn.relu)(z)


@jax.jit
def nested(z):
    return jnp.where(jnp.arange(3) > 1, jnp.tanh(z), 2.0 * z)


SMOOTH = {
    "normal": lambda z: -0.5 * z**2,
    "student": lambda z: -2.0 * jnp.log1p(z**2 / 3.0),
    "softplus": jax.nn.softplus,
    "log-sigmoid": jax.nn.log_sigmoid,
    "tanh": jnp.tanh,
    "gelu": jax.nn.gelu,
    "gather": lambda z: z[jnp.array([0, 2, 2])],
    "picked by the data": nested,
    "within a support": lambda z: jnp.where(z > 0, jnp.log(z), -jnp.inf),
    "compared in vain": lambda z: (jnp.any(z > 0), jnp.sin(z))[1],
    "loop": lambda z: jax.lax.scan(lambda total, x: (total + jnp.sin(x), None), 0.0, z)[0],
    "a support, added up": lambda z: 2.0 * jnp.sum(jnp.where(z > 0, jnp.log(z), -jnp.inf)) + jnp.sum(z),
    "solved": lambda z: jax.scipy.linalg.solve_triangular(2.0 * jnp.eye(3), z, lower=True),
    "gamma": lambda z: jax.lax.lgamma(jnp.exp(z)),
}
JUMPS = {
    "laplace": lambda z: -jnp.abs(z),
    "hinge": lambda z: -jnp.maximum(z, 0.0),
    "rectified": relu_layer,
    "leaky": jax.nn.leaky_relu,
    "huber": lambda z: jnp.where(jnp.abs(z) < 1, z**2, 2.0 * jnp.abs(z) - 1.0),
    "a root of a square": lambda z: jnp.sqrt(z**2),
    "a norm": lambda z: jnp.linalg.norm(z),
    "a sign": lambda z: z * jnp.sign(z),
    "clipped": lambda z: jnp.clip(z, 0.0, 1.0),
    "a count": lambda z: 1.0 * jnp.sum(z > 0),
    "an index": lambda z: jnp.arange(5.0)[z[0].astype(int)],
    "the largest": lambda z: z[jnp.argmax(z)],
    "a branch": lambda z: jax.lax.cond(z[0] > 0, lambda: z, lambda: -z),
    "sorted": jnp.sort,
    "plus infinity outside": lambda z: jnp.where(z > 0, z, jnp.inf),
    "carried by a loop": lambda z: jax.lax.scan(lambda c, x: (c + x, jnp.abs(c)), 0.0, z)[1],
    "the largest of a loop": lambda z: jax.lax.scan(lambda c, x: (jnp.where(c > x, c, x), None), -jnp.inf, z)[0],
    "a support within a mixture": lambda z: jnp.logaddexp(jnp.where(z > 0, -z, -jnp.inf), -(z**2)),
    "a support, exponentiated": lambda z: jnp.exp(jnp.where(z > 0, -z, -jnp.inf)),
    "a support, inverted": lambda z: 1.0 / jnp.where(z > 0, -z, -jnp.inf),
    "pooled": lambda z: jax.lax.reduce_window(z, -jnp.inf, jax.lax.max, (2,), (1,), "VALID"),
    "an angle": lambda z: jnp.arccos(jnp.cos(z)),
    "stopped": lambda z: jax.lax.stop_gradient(z) * z,
    "a root in disguise": lambda z: z**2 * jax.lax.rsqrt(z**2),
    "rectified in a loop": lambda z: jax.lax.scan(lambda c, x: (c + jnp.maximum(x, 0.0), None), 0.0, z)[0],
}


@pytest.mark.parametrize("name", [*SMOOTH, *JUMPS])
def test_operations_that_may_jump_are_seen(name):
    assert is_smooth({**SMOOTH, **JUMPS}[name], jnp.zeros(3)) == (name in SMOOTH)


def test_the_whole_density_is_read():
    """A kink of the prior counts too, and what does not depend on the latent does not."""

    def model_of(density, prior):
        return quell.Model(lambda z, y: density(jnp.abs(y) - z[0]), prior, jnp.linspace(-1, 1, 5), jnp.zeros(2))

    for density, prior, smooth in (
        (lambda r: -(r**2), lambda z: -jnp.sum(z**2), True),
        (lambda r: -jnp.abs(r), lambda z: -jnp.sum(z**2), False),
        (lambda r: -(r**2), lambda z: -jnp.sum(jnp.abs(z)), False),
    ):
        assert has_no_kinks(quell.Problem(model_of(density, prior), quell.FullRank(2))) == smooth
