# SPDX-License-Identifier: Apache-2.0
"""Every public class has an entry here, and each law runs over all of them."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np

import quell
from quell.approximations import AbstractApproximation
from quell.estimators import AbstractEstimator
from quell.evaluation import Evaluation
from quell.families import AbstractFamily
from quell.models import AbstractModel
from quell.terms import AbstractTerm

NUM_DATA = 5

_features = np.array([[1.0, 0.3], [-0.4, 1.1], [0.7, -0.9], [0.2, 0.5], [-1.0, -0.6]])


def _function_model() -> quell.Model:
    """The same logistic regression as plain functions on a tree, with a prior that is not a quadratic."""
    signs = jnp.array([1.0, -1.0, 1.0, 1.0, -1.0])

    def log_likelihood(latent: dict, batch: dict) -> jax.Array:
        weights = jnp.stack([latent["a"], latent["b"]])
        return jax.nn.log_sigmoid(batch["sign"] * (batch["x"] @ weights))

    def log_prior(latent: dict) -> jax.Array:
        return -0.5 * latent["a"] ** 2 - jnp.log1p(latent["b"] ** 2 / 8.0)

    data = {"x": jnp.asarray(_features), "sign": signs}
    return quell.Model(log_likelihood, log_prior, data, {"a": jnp.zeros(()), "b": jnp.zeros(())})


MODELS: dict[str, AbstractModel] = {
    "logistic": quell.logistic_regression(_features, [1, 0, 1, 1, 0]),
    "poisson": quell.poisson_regression(0.4 * _features, [2, 0, 1, 3, 1], prior=quell.NormalPrior(0.1, 0.7)),
    "gaussian": quell.gaussian_regression(_features, [0.3, -1.0, 2.0, 0.1, 0.5], noise=0.8),
    "function": _function_model(),
}

FAMILIES: dict[str, AbstractFamily] = {
    "mean-field": quell.MeanField(2, init_scale=1.0),
    "mean-field raw": quell.MeanField(2, log_scale=False, init_scale=1.0),
    "full-rank": quell.FullRank(2, init_scale=1.0),
    "full-rank raw": quell.FullRank(2, log_scale=False, init_scale=1.0),
}

TERMS: dict[str, AbstractTerm] = {
    "data": quell.Data(),
    "prior": quell.Prior(),
    "variational": quell.Variational(),
    "score": quell.Score(),
}

ESTIMATORS: dict[str, AbstractEstimator] = {
    estimator.name: estimator
    for estimator in (
        quell.Reparameterization(),
        quell.Reparameterization(full_data=True),
        quell.Reparameterization("symmetric"),
        quell.Reparameterization("symmetric", full_data=True),
        quell.TransposedReparameterization(),
        quell.TransposedReparameterization(full_data=True),
        quell.BonnetPrice(),
        quell.BonnetPrice(full_data=True),
        quell.ScoreFunction(),
        quell.ScoreFunction(full_data=True),
        quell.ScoreFunction("symmetric"),
        quell.ClosedForm(),
        quell.ClosedForm(full_data=True),
    )
}

APPROXIMATIONS: dict[str, AbstractApproximation | None] = {
    "exact": None,
    "taylor-z": quell.TaylorInLatent(),
    "taylor-x": quell.TaylorInData(),
    "anchored": quell.AnchoredQuadratic(rows_at_once=4),
    "fitted": quell.FittedQuadratic(),
}


def problems() -> dict[str, quell.Problem]:
    """Every model with every family."""
    pairs = itertools.product(MODELS.items(), FAMILIES.items())
    return {f"{m}, {f}": quell.Problem(model, family) for (m, model), (f, family) in pairs}


def some_params(family: AbstractFamily) -> quell.LocationScale:
    """Parameters away from every special point."""
    params = family.init(dtype=jnp.float64)
    scale = params.scale + (
        jnp.array([-0.3, -0.2]) if params.scale.ndim == 1 else jnp.array([[-0.3, 0.0], [0.25, -0.2]])
    )
    return quell.LocationScale(params.loc + jnp.array([0.3, -0.2]), scale)


def state(approximation: AbstractApproximation, problem: quell.Problem, term: AbstractTerm, *, num_updates: int = 1):
    """What an approximation keeps after a few steps at other parameters than `some_params`."""
    params = jax.tree.map(lambda leaf: leaf - 0.2, some_params(problem.family))
    keys = jax.random.split(jax.random.key(0), num_updates)
    draws = [quell.Sampler(2, 2).draw(key, problem.family, problem.model.num_data, jnp.float64) for key in keys]

    @jax.jit
    def after(found, draw):
        return approximation.update(term, Evaluation(problem, params, draw), found, None)

    return functools.reduce(after, draws, approximation.init(problem))


def variates(problem: quell.Problem) -> dict[str, quell.ControlVariate]:
    """Every valid recipe: term, approximation, pair of estimators."""
    found = {}
    for term, approximation in itertools.product(TERMS.values(), APPROXIMATIONS.values()):
        for left, right in itertools.combinations(ESTIMATORS.values(), 2):
            variate = quell.ControlVariate(term, left, right, approximation=approximation)
            if variate.refuses(problem) is None:
                found[variate.name] = variate
    return found
