# SPDX-License-Identifier: Apache-2.0
"""Every family, estimator, approximation and variate has one entry here, and each law runs over all entries.

An entry is a constructor with what makes it exact: parameters away from every special point, a quadrature of the noise
and one of the latent. To add a class, add a line; a family or a model also needs one in `CASES`.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from flowjax.bijections import Affine
from flowjax.distributions import StandardNormal
from flowjax.flows import coupling_flow

import quell
from exact import Rule, enumeration, exact_draw, gauss_hermite, gaussian_plane, half_line, unit_interval
from quell.approximations import AbstractApproximation, approximate, refuses_to_approximate
from quell.estimators import AbstractEstimator
from quell.evaluation import Evaluation
from quell.families import AbstractFamily
from quell.families.gaussian import Gaussian
from quell.models import AbstractModel
from quell.terms import AbstractTerm, elbo, joint

# Models: few data each, so that all minibatches can be listed

_features = np.array([[1.0, 0.3], [-0.4, 1.1], [0.7, -0.9], [0.2, 0.5], [-1.0, -0.6]])


def _function_model() -> quell.Model:
    """A logistic regression as plain functions on a tree, with a prior that is not a quadratic."""

    def log_likelihood(latent: dict, batch: dict) -> jax.Array:
        weights = jnp.stack([latent["a"], latent["b"]])
        return jax.nn.log_sigmoid(batch["sign"] * (batch["x"] @ weights))

    def log_prior(latent: dict) -> jax.Array:
        return -0.5 * latent["a"] ** 2 - jnp.log1p(latent["b"] ** 2 / 8.0)

    data = {"x": jnp.asarray(_features), "sign": jnp.array([1.0, -1.0, 1.0, 1.0, -1.0])}
    return quell.Model(log_likelihood, log_prior, data, {"a": jnp.zeros(()), "b": jnp.zeros(())})


def _rates(z: jax.Array, batch: dict) -> jax.Array:
    """Counts whose rates are positive combinations of positive latents."""
    rate = batch["x"] @ z
    return batch["y"] * jnp.log(rate) - rate


def _chances(z: jax.Array, batch: dict) -> jax.Array:
    """Successes where a chance and the latent must both come true."""
    chance = batch["x"] * z[0]
    return batch["y"] * jnp.log(chance) + (1 - batch["y"]) * jnp.log1p(-chance)


def _waves(dim: int) -> quell.Model:
    """A likelihood that takes any latent, discrete or not."""
    centers = jnp.array([[0.6, 0.1, -0.3], [0.2, 0.9, 0.4], [-0.5, 0.3, 0.8]])[:, :dim]
    weights = jnp.array([0.3, -0.7, 1.1])[:dim]
    return quell.Model(
        lambda z, x: -0.5 * jnp.sum((z - x) ** 2, axis=-1) + jnp.sin(x @ z),
        lambda z: -jnp.sum(weights * z) - 0.3 * jnp.sum(z**2) + 0.2 * jnp.prod(z + 0.5),
        centers,
        dim,
    )


MODELS: dict[str, AbstractModel] = {
    "logistic": quell.logistic_regression(_features, [1, 0, 1, 1, 0]),
    "poisson": quell.poisson_regression(0.4 * _features, [2, 0, 1, 3, 1], prior=quell.NormalPrior(0.1, 0.7)),
    "gaussian": quell.gaussian_regression(_features, [0.3, -1.0, 2.0, 0.1, 0.5], noise=0.8),
    "function": _function_model(),
    "rates": quell.Model(
        _rates, quell.NormalPrior(1.0, 0.8), {"x": jnp.abs(jnp.asarray(_features[:3])), "y": jnp.array([2, 0, 3])}, 2
    ),
    "chances": quell.Model(
        _chances,
        lambda z: 0.5 * jnp.log(z[0]) - z[0],
        {"x": jnp.array([0.9, 0.3, 0.6]), "y": jnp.array([1, 0, 1])},
        1,
    ),
    "waves in two": _waves(2),
    "waves in three": _waves(3),
}

# Families


class FamilyEntry(NamedTuple):
    """A family with parameters away from every special point, and quadratures of its noise and of its latent."""

    family: AbstractFamily
    params: Any
    noise: Rule
    latent: Rule


class ShiftedLogNormal(AbstractFamily):
    r"""Sampling and a log density, and nothing else: \(z = \mu + \sigma e^{0.4\epsilon}\)."""

    dim: int

    def init(self, *, dtype=None):
        return {"loc": jnp.full(self.dim, -0.1, dtype), "log_scale": jnp.full(self.dim, -2.0, dtype)}

    def sample(self, params, noise):
        return params["loc"] + jnp.exp(params["log_scale"] + 0.4 * noise)

    def log_prob(self, params, z):
        log_distance = jnp.log(z - params["loc"])
        noise = (log_distance - params["log_scale"]) / 0.4
        return jnp.sum(-0.5 * noise**2 - 0.5 * jnp.log(2 * jnp.pi) - log_distance - jnp.log(0.4))


def _gaussian(family: AbstractFamily, params: Any, num: int = 20) -> FamilyEntry:
    covariance = np.asarray(family.covariance_product(params, jnp.eye(family.dim)))
    noise_dim = jax.eval_shape(lambda: family.noise(jax.random.key(0), 1, jnp.float64)).shape[1]
    noise = gauss_hermite(num if noise_dim == 2 else 14).power(noise_dim)
    return FamilyEntry(family, params, noise, gaussian_plane(np.asarray(family.mean(params)), covariance, num))


def _location_scale(family: Any) -> FamilyEntry:
    """Where the scale is stored as it is, one of its diagonal's entries is negative."""
    params = family.init(dtype=jnp.float64)
    by_diagonal = jnp.array([-0.3, -0.2 if family.log_scale else -1.8])
    by_matrix = jnp.diag(by_diagonal).at[1, 0].set(0.25)
    scale = params.scale + (by_diagonal if params.scale.ndim == 1 else by_matrix)
    return _gaussian(family, quell.LocationScale(params.loc + jnp.array([0.3, -0.2]), scale))


def _low_rank() -> FamilyEntry:
    factor = jnp.array([[0.4], [-0.5]])
    params = quell.LowRankParams(jnp.array([0.3, -0.2]), jnp.log(jnp.array([0.6, 0.5])), factor)
    return _gaussian(quell.LowRank(2, rank=1), params)


def _gamma() -> FamilyEntry:
    """One shape is below one."""
    params = quell.GammaParams(jnp.log(jnp.array([0.7, 2.3])), jnp.log(jnp.array([0.9, 1.6])))
    return FamilyEntry(quell.Gamma(2), params, unit_interval(36).power(2), half_line(50).power(2))


def _beta() -> FamilyEntry:
    params = quell.BetaParams(jnp.log(jnp.array([0.8])), jnp.log(jnp.array([2.4])))
    return FamilyEntry(quell.Beta(1), params, unit_interval(36).power(2), unit_interval(60))


def _discrete(family: Any, logits: jax.Array) -> FamilyEntry:
    params, values = quell.Logits(logits), np.asarray(family.support())
    return FamilyEntry(family, params, enumeration(family, params), Rule(values, np.ones(len(values))))


def _product(blocks: dict[str, AbstractFamily]) -> FamilyEntry:
    """Every block's nodes times those of the others."""
    family, params = quell.Product(blocks), {}
    entries = {}
    for name, block in blocks.items():
        leaves, tree = jax.tree.flatten(block.init(dtype=jnp.float64))
        moved = [leaf + 0.2 * jnp.cos(jnp.arange(leaf.size)).reshape(leaf.shape) for leaf in leaves]
        params[name] = jax.tree.unflatten(tree, moved)
        is_discrete = not block.transports
        entries[name] = _discrete(block, params[name].logits) if is_discrete else _gaussian(block, params[name], 14)
    rules = [(entry.noise, entry.latent) for entry in entries.values()]
    noise, latent = (functools.reduce(lambda one, two: one * two, some) for some in zip(*rules, strict=True))
    return FamilyEntry(family, params, noise, latent)


def _shifted_log_normal() -> FamilyEntry:
    params = {"loc": jnp.array([-0.3, -0.8]), "log_scale": jnp.log(jnp.array([0.6, 0.5]))}
    noise = gauss_hermite(26).power(2)
    distance = np.exp(np.asarray(params["log_scale"]) + 0.4 * noise.nodes)
    density = np.exp(-0.5 * noise.nodes**2) / np.sqrt(2 * np.pi) / (0.4 * distance)
    latent = Rule(np.asarray(params["loc"]) + distance, noise.weights / np.prod(density, axis=1))
    return FamilyEntry(ShiftedLogNormal(2), params, noise, latent)


def _flow() -> FamilyEntry:
    """Small, around a Gaussian, and moved from it."""
    made = coupling_flow(
        jax.random.key(0),
        base_dist=StandardNormal((2,)),
        transformer=Affine(),
        flow_layers=2,
        nn_width=2,
        nn_activation=jnp.sin,  # which is entire, so that few nodes are exact
        invert=False,
    )
    factor = jnp.array([[0.6, 0.0], [0.2, 0.5]])
    family = quell.Flow(2, made).around(Gaussian(jnp.array([0.3, -0.2]), factor=factor))
    params = jax.tree.map(lambda x: x + 0.1 * jnp.cos(jnp.arange(x.size)).reshape(x.shape), family.init(dtype=float))
    noise = gauss_hermite(30).power(2)
    latents = jax.vmap(lambda row: family.sample(params, row))(noise.nodes)
    density = np.exp(jax.vmap(lambda row: family.forward_log_prob(params, row))(noise.nodes))
    return FamilyEntry(family, params, noise, Rule(np.asarray(latents), noise.weights / density))


FAMILIES: dict[str, FamilyEntry] = {
    "mean-field": _location_scale(quell.MeanField(2, init_scale=1.0)),
    "mean-field raw": _location_scale(quell.MeanField(2, log_scale=False, init_scale=1.0)),
    "full-rank": _location_scale(quell.FullRank(2, init_scale=1.0)),
    "full-rank raw": _location_scale(quell.FullRank(2, log_scale=False, init_scale=1.0)),
    "low-rank": _low_rank(),
    "gamma": _gamma(),
    "beta": _beta(),
    "bernoulli": _discrete(quell.Bernoulli(2), jnp.array([0.4, -1.1])),
    "two categories": _discrete(quell.Categorical(1, 2), jnp.array([[0.3, -0.8]])),
    "categorical": _discrete(quell.Categorical(1, 3), jnp.array([[0.3, -0.8, 0.9]])),
    "blocks": _product({"plain": quell.MeanField(1, init_scale=0.7), "pair": quell.FullRank(2, init_scale=0.5)}),
    "mixed blocks": _product({"weight": quell.MeanField(1, init_scale=0.7), "switch": quell.Bernoulli(2)}),
    "sampling and density": _shifted_log_normal(),
    "flow": _flow(),
}


def problem(model: str, family: str) -> quell.Problem:
    """A model of the catalogue with a family of it."""
    return quell.Problem(MODELS[model], FAMILIES[family].family)


def at_nodes(model: str, family: str, size: int | None = None) -> tuple[Evaluation, jax.Array]:
    """Their exact draw with minibatches of a size, and the probability of each replicate."""
    draw, mass = exact_draw(FAMILIES[family].noise, MODELS[model].num_data, size)
    return Evaluation(problem(model, family), FAMILIES[family].params, draw), mass


def at_random(model: str, family: str, num: int = 3, size: int | None = 2) -> Evaluation:
    """A draw of a few replicates for them."""
    draw = quell.Sampler(num, size).draw(
        jax.random.key(3), FAMILIES[family].family, MODELS[model].num_data, jnp.float64
    )
    return Evaluation(problem(model, family), FAMILIES[family].params, draw)


CASES: dict[str, tuple[str, str, int | None]] = {
    f"{model}, {family}, {'all data' if size is None else f'minibatch of {size}'}": (model, family, size)
    for model, family, size in (
        ("logistic", "mean-field", 2),
        ("logistic", "full-rank raw", 1),
        ("logistic", "full-rank", None),
        ("poisson", "mean-field raw", 2),
        ("poisson", "low-rank", 2),
        ("gaussian", "full-rank", 2),
        ("function", "mean-field", None),
        ("function", "full-rank", 2),
        ("function", "sampling and density", 2),
        ("function", "flow", 2),
        ("rates", "gamma", 2),
        ("chances", "beta", 2),
        ("waves in two", "bernoulli", 1),
        ("waves in three", "categorical", 2),
        ("waves in three", "blocks", 2),
        ("waves in three", "mixed blocks", None),
    )
}
"""Every model, every family and every kind of minibatch, though not each with each."""

# Terms, estimators, approximations

TERMS: dict[str, AbstractTerm] = {
    "data": quell.Data(),
    "prior": quell.Prior(),
    "variational": quell.Variational(),
    "score": quell.Score(),
    "elbo": elbo(),
}

SEE_DATA = ("data", "elbo")
"""Those whose values depend on the minibatch."""

ESTIMATORS: dict[str, AbstractEstimator] = {
    estimator.name: estimator
    for estimator in (
        quell.Reparameterization(),
        quell.Reparameterization(full_data=True),
        quell.Reparameterization(quell.SYMMETRIC),
        quell.Reparameterization(quell.SYMMETRIC, full_data=True),
        quell.Reparameterization(quell.MIRRORED),
        quell.TransposedReparameterization(),
        quell.TransposedReparameterization(full_data=True),
        quell.BonnetPrice(),
        quell.BonnetPrice(full_data=True),
        quell.LocalReparameterization(),
        quell.LocalReparameterization(full_data=True),
        quell.GeneralizedReparameterization(),
        quell.GeneralizedReparameterization(full_data=True),
        quell.ScoreFunction(),
        quell.ScoreFunction(full_data=True),
        quell.ScoreFunction(quell.SYMMETRIC),
        quell.ScoreFunction(quell.MIRRORED),
        quell.ConditionalScoreFunction(),
        quell.ChangeOfVariables(),
        quell.ClosedForm(),
        quell.ClosedForm(full_data=True),
    )
}

BASIC = {"data": ("rp", "rp[all]", "sf", "cf", "cf[all]"), "prior": ("rp", "sf", "cf")}
"""What approximated terms are estimated with in the quick form of a law: estimators never know the approximation, so
that one for values, one for gradients and one for closed forms is enough, on the minibatch and on all data."""


def network(dim: int, seed: int = 0) -> eqx.nn.MLP:
    """From a latent to a number."""
    return eqx.nn.MLP(dim, "scalar", 4, 1, activation=jnp.tanh, key=jax.random.key(seed), dtype=jnp.float64)


def approximations(dim: int) -> dict[str, AbstractApproximation]:
    """Every approximation, for a latent of some length."""
    return {
        "taylor in latent": quell.TaylorInLatent(),
        "taylor at an anchor": quell.TaylorInLatent(anchor=0.2 * jnp.cos(jnp.arange(dim))),
        "taylor in data": quell.TaylorInData(),
        "bound": quell.JaakkolaJordan(),
        "anchored, dense": quell.AnchoredQuadratic(rows_at_once=4),
        "anchored, low-rank": quell.AnchoredQuadratic(curvature="low-rank", rank=1),
        "anchored, diagonal": quell.AnchoredQuadratic(curvature="diagonal"),
        "fitted, dense": quell.FittedQuadratic(),
        "fitted, diagonal": quell.FittedQuadratic(curvature="diagonal"),
        "moving average": quell.Baseline("moving-average"),
        "network": quell.Surrogate(network(dim)),
    }


EXCEPTIONS = {
    "rebar, rebar-plain, relax": "their latents are relaxed as those of `Concrete` are",
    "LowRank's geometry": "it damps its solve, so that its norm is smaller than that of the Fisher matrix",
    "mixed blocks, exact variance": "the exact draw of a normal block with two switches has too many nodes",
    "jit equals eager": "of families whose operations are those of another one, and of a step's later variates: each"
    " operation that is not compiled costs a compilation of its own",
    "Concrete": "its latents are relaxed, so that its expectation is not one under q:"
    " `test_estimators_of_relaxed_terms_agree`",
    "Baseline('leave-one-out')": "it depends on the other replicates, which an exact draw does not have as a fit does:"
    " `test_leave_one_out_has_mean_zero`",
}
"""What has no entry above, and the law of its own that it has instead."""


@dataclasses.dataclass(frozen=True)
class Case:
    """A model with a family and a size of minibatches, ready for exact expectations."""

    name: str

    @property
    def entry(self) -> FamilyEntry:
        return FAMILIES[CASES[self.name][1]]

    @property
    def batch_size(self) -> int | None:
        return CASES[self.name][2]

    @functools.cached_property
    def problem(self) -> quell.Problem:
        return quell.Problem(MODELS[CASES[self.name][0]], self.entry.family)

    def refreshed(self, learns: bool, update: Callable[..., Any], state: Any) -> Any:
        """What is kept after two steps at other parameters; of what learns by the variance, the start."""
        problem = self.problem
        params = jax.tree.map(lambda leaf: leaf - 0.1, self.entry.params)

        def step(number: Any, state: Any) -> Any:
            key = jax.random.fold_in(jax.random.key(0), number)
            draw = quell.Sampler(2, 2).draw(key, problem.family, problem.model.num_data, jnp.float64)
            return update(Evaluation(problem, params, draw), state, None)

        return state if learns or state is None else jax.lax.fori_loop(0, 2, step, state)

    @functools.cache  # noqa: B019 - cases live as long as the tests
    def state(self, how: str) -> Any:
        """What an approximation keeps after two steps with the log joint: any term may be approximated by it."""
        one, problem = approximations(self.problem.model.dim)[how], self.problem
        update = functools.partial(one.update, joint())
        return jax.jit(lambda: self.refreshed(one.learns, update, one.init(problem)))()

    def approximated(self, name: str, *hows: str) -> Iterator[tuple[str, AbstractTerm]]:
        """The approximations of a term that the problem allows: some of them, by default all."""
        for how, approximation in approximations(self.problem.model.dim).items():
            allowed = refuses_to_approximate(approximation, self.problem, TERMS[name]) is None
            if allowed and how in (hows or (how,)):
                yield f"{how} of {name}", approximate(approximation, TERMS[name], self.problem, self.state(how))

    def pairs(self, *, everything: bool = False) -> list[tuple[str, AbstractTerm, AbstractEstimator]]:
        """Terms, approximated or not, with the estimators that do not refuse them."""
        return [*self.plain_pairs(everything=everything), *self.approximated_pairs(everything=everything)]

    def approximated_pairs(
        self, *hows: str, everything: bool = False
    ) -> list[tuple[str, AbstractTerm, AbstractEstimator]]:
        """Those of approximated terms.

        Args:
            hows: some approximations; by default all.
            everything: all terms with every estimator, not only data and prior with the basic ones.
        """
        chosen = dict.fromkeys(TERMS, tuple(ESTIMATORS)) if everything else BASIC
        return [
            (name, term, ESTIMATORS[one])
            for of, estimators in chosen.items()
            for name, term in self.approximated(of, *hows)
            for one in estimators
            if ESTIMATORS[one].refuses(self.problem, term) is None
        ]

    def plain_pairs(self, *, everything: bool = False) -> list[tuple[str, AbstractTerm, AbstractEstimator]]:
        """The same of terms as they are; on all data only where a term sees data, unless everything is asked for."""
        return [
            (name, term, estimator)
            for (name, term), estimator in itertools.product(TERMS.items(), ESTIMATORS.values())
            if everything or name in SEE_DATA or not getattr(estimator, "full_data", False)
            if estimator.refuses(self.problem, term) is None
        ]


def variates(problem: quell.Problem) -> dict[str, quell.ControlVariate]:
    """Variates of the paper, the literature and the defaults that a problem allows, each recipe once."""
    dim = problem.model.dim
    made = [quell.literature.lax(network(dim)), quell.literature.relax(network(dim))]
    made += [entry.make() for name, entry in quell.literature.LITERATURE.items() if name not in ("lax", "relax")]
    made += [*quell.paper.VARIATES.values(), *quell.default_variates(problem)]
    once = {variate.formula: variate for variate in reversed(made)}
    return {variate.name: variate for variate in once.values() if variate.refuses(problem) is None}
