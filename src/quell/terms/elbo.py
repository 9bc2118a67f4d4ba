# SPDX-License-Identifier: Apache-2.0
"""The four terms of the ELBO's gradient: data, prior, variational and score."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from quell.core.program import returns_none
from quell.evaluation import Batch, Evaluation, Problem, batch_factor
from quell.families import AbstractTransport, Capability, FactoredGradient
from quell.models.quadratic import Quadratic, expand_function
from quell.terms.base import AbstractTerm, Latents, Values
from quell.terms.expansion import average, expand_each, refuses_second_derivative
from quell.terms.expectation import (
    Expectation,
    expected_by_structure,
    expected_grad,
    expected_on_all,
    expected_on_batches,
    sum_over_data,
)

Offsets = Float[Array, "point latent"]


class Data(AbstractTerm):
    r"""The data term \(g_1 = \nabla_w E_{q_w} \log p(x \mid Z)\), where a minibatch stands for all data."""

    @property
    def name(self) -> str:
        return "data"

    def values(self, evaluation: Evaluation, transport: AbstractTransport, *, full_data: bool) -> Values:
        if evaluation.reads_all(full_data=full_data):
            return sum_over_data(evaluation, lambda likelihood: likelihood, transport)
        return evaluation.map(_log_likelihood(evaluation.problem), transport, full_data=full_data)

    def grads(self, evaluation: Evaluation, transport: AbstractTransport, *, full_data: bool) -> Latents:
        if evaluation.reads_all(full_data=full_data):
            return sum_over_data(evaluation, jax.grad, transport)
        return evaluation.map(jax.grad(_log_likelihood(evaluation.problem)), transport, full_data=full_data)

    def closed_form(self, evaluation: Evaluation, *, full_data: bool) -> FactoredGradient:
        problem = evaluation.problem
        predictor = problem.predictor
        if problem.rows is not None:
            return expected_by_structure(evaluation, full_data=full_data)
        if predictor is None:
            anchor = problem.family.mean(evaluation.params)
            return expected_grad(evaluation, lambda batch: self.expand(evaluation, anchor, batch), full_data=full_data)
        if full_data or evaluation.draw.index is None:
            return self.expectation(evaluation).grad
        return expected_on_batches(evaluation, predictor)

    def expectation(self, evaluation: Evaluation) -> Expectation:
        """The expected log-likelihood of all data and its gradient, from one pass, for `problem.predictor`."""
        predictor = evaluation.problem.predictor
        assert predictor is not None, "asked of linear predictors under a Gaussian family"
        return evaluation.once("expected log-likelihood", lambda: expected_on_all(evaluation, predictor))

    def refuses_closed_form(self, problem: Problem) -> str | None:
        if problem.predictor is not None or problem.rows is not None:
            return None
        if problem.model.likelihood_is_quadratic:
            return problem.family.refuses(Capability.MOMENTS)
        if problem.model.predictor is None:
            return "the log-likelihood is neither a quadratic in the latent nor one of a linear predictor"
        return problem.family.refuses(Capability.GAUSSIAN)

    def expand(
        self, evaluation: Evaluation, anchor: Float[Array, "latent"], batch: Batch, *, offsets: Offsets | None = None
    ) -> Quadratic:
        model, factor = evaluation.problem.model, batch_factor(evaluation.problem, batch)
        if offsets is None:
            return model.expand(anchor, batch.rows).scale(factor)
        if model.has_cheap_expansion:
            return expand_each(lambda z: model.expand(z, batch.rows), anchor, offsets).scale(factor)
        function = _log_likelihood(evaluation.problem)
        return expand_function(average(lambda z: function(z, batch), offsets), anchor)

    def refuses_expansion(self, problem: Problem) -> str | None:
        return refuses_second_derivative(problem.model, self.name)


class Prior(AbstractTerm):
    r"""The prior term \(g_2 = \nabla_w E_{q_w} \log p(Z)\)."""

    @property
    def name(self) -> str:
        return "prior"

    def values(self, evaluation: Evaluation, transport: AbstractTransport, *, full_data: bool) -> Values:
        return jax.vmap(evaluation.problem.model.prior.log_prob)(evaluation.latents(transport))

    def grads(self, evaluation: Evaluation, transport: AbstractTransport, *, full_data: bool) -> Latents:
        return jax.vmap(jax.grad(evaluation.problem.model.prior.log_prob))(evaluation.latents(transport))

    def closed_form(self, evaluation: Evaluation, *, full_data: bool) -> FactoredGradient:
        problem = evaluation.problem
        quadratic = problem.model.prior.quadratic(problem.family.mean(evaluation.params))
        assert quadratic is not None, "refused before"
        return evaluation.algebra.expected_quadratic_grad(quadratic, per_sample=False)

    def refuses_closed_form(self, problem: Problem) -> str | None:
        if returns_none(lambda: problem.model.prior.quadratic(jnp.zeros(problem.model.dim))):
            return "the log-prior is not known to be a quadratic (give the model a `NormalPrior` if it is one)"
        return problem.family.refuses(Capability.MOMENTS)

    def expand(
        self, evaluation: Evaluation, anchor: Float[Array, "latent"], batch: Batch, *, offsets: Offsets | None = None
    ) -> Quadratic:
        prior = evaluation.problem.model.prior
        quadratic = prior.quadratic(anchor)
        if quadratic is None:
            return expand_function(prior.log_prob if offsets is None else average(prior.log_prob, offsets), anchor)
        return quadratic if offsets is None else expand_each(lambda _: quadratic, anchor, offsets)

    def refuses_expansion(self, problem: Problem) -> str | None:
        return refuses_second_derivative(problem.model, self.name)


class Variational(AbstractTerm):
    r"""The variational term \(g_3 = \nabla_w E_{q_w} \log q_v(Z)\) at \(v = w\); the ELBO subtracts it.

    Its closed form is minus the gradient of the entropy, because the score term, which is the rest of
    that gradient, has expectation zero.
    """

    @property
    def name(self) -> str:
        return "variational"

    def values(self, evaluation: Evaluation, transport: AbstractTransport, *, full_data: bool) -> Values:
        log_prob = functools.partial(evaluation.problem.family.log_prob, evaluation.params)
        return jax.vmap(log_prob)(evaluation.latents(transport))

    def grads(self, evaluation: Evaluation, transport: AbstractTransport, *, full_data: bool) -> Latents:
        return evaluation.algebra.log_prob_grads(transport)

    def closed_form(self, evaluation: Evaluation, *, full_data: bool) -> FactoredGradient:
        return -evaluation.algebra.entropy_grad()

    def refuses_closed_form(self, problem: Problem) -> str | None:
        return problem.family.refuses(Capability.ENTROPY)

    def expand(
        self, evaluation: Evaluation, anchor: Float[Array, "latent"], batch: Batch, *, offsets: Offsets | None = None
    ) -> Quadratic:
        log_prob = functools.partial(evaluation.problem.family.log_prob, evaluation.params)
        return expand_function(log_prob if offsets is None else average(log_prob, offsets), anchor)

    def refuses_expansion(self, problem: Problem) -> str | None:
        return None


class Score(AbstractTerm):
    r"""The score term \(g_4 = E_{q_w} \nabla_w \log q_w(Z) = 0\).

    It is the gradient of the expectation of the constant one: its score-function estimator is
    \(\nabla_w \log q_w(Z)\) and its closed form is zero.
    """

    @property
    def name(self) -> str:
        return "score"

    @property
    def is_constant(self) -> bool:
        return True

    def values(self, evaluation: Evaluation, transport: AbstractTransport, *, full_data: bool) -> Values:
        return jnp.ones_like(evaluation.latents(transport)[:, 0])

    def grads(self, evaluation: Evaluation, transport: AbstractTransport, *, full_data: bool) -> Latents:
        return jnp.zeros_like(evaluation.latents(transport))

    def closed_form(self, evaluation: Evaluation, *, full_data: bool) -> FactoredGradient:
        return FactoredGradient()

    def refuses_closed_form(self, problem: Problem) -> str | None:
        return None


def _log_likelihood(problem: Problem) -> Callable[[Array, Batch], Array]:
    def scaled(z: Array, batch: Batch) -> Array:
        return batch_factor(problem, batch) * jnp.sum(problem.model.log_likelihood(z, batch.rows))

    return scaled
