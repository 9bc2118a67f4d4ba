# SPDX-License-Identifier: Apache-2.0
"""The quiet gradient as `init` and `update`, for any loop."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key, PyTree

from quell.combine import Moments, MomentState, Rule, expected_sq_norm, finite_rows
from quell.draw import Draw, Sampler
from quell.evaluation import Evaluation
from quell.parts import Parts
from quell.problem import Problem
from quell.variates import BaseGradient, ControlVariate


def list_variates(variates: Any) -> tuple[ControlVariate, ...]:
    """Refuse what is not a list of control variates."""
    if isinstance(variates, Iterable) and not isinstance(variates, str):
        listed = tuple(variates)
        if all(isinstance(variate, ControlVariate) for variate in listed):
            return listed
    raise TypeError(
        f"`variates` was given as {variates!r}. A list of control variates was needed. "
        "Write for example `variates=quell.paper.variates('S7')`, or `variates=()` for none."
    )


class GradientState(eqx.Module):
    """What the next step needs.

    Args:
        moments: averages of the inner products seen so far.
        variates: the state of each variate's approximation.
    """

    moments: MomentState
    variates: tuple[PyTree, ...]


class GradientInfo(eqx.Module):
    """What one step tells.

    Args:
        elbo: an unbiased estimate, in nats, over all data.
        base_sq_norm: squared norm of the base gradient of one independent unit (a replicate, or all of them where
            they share a minibatch), averaged over units, for the ELBO a datum.
        combined_sq_norm: the same of the combined gradient: what the rule makes small.
        weights: of the variates, as used.
        dropped: variates left out of this step because they were not finite.
    """

    elbo: Float[Array, ""]
    base_sq_norm: Float[Array, ""]
    combined_sq_norm: Float[Array, ""]
    weights: Float[Array, "variate"]
    dropped: Bool[Array, "variate"]


class Gradient(eqx.Module):
    r"""The combined gradient \(\hat g = h + \sum_k a_k c_k\), as pure functions.

    It is the gradient of the **loss** \(-\mathrm{ELBO}/N\), ready for any optax optimiser.

    Args:
        problem: model and family.
        variates: any number of control variates; none gives the base gradient alone.
        base: the unbiased gradient they are added to.
        sampler: replicates and minibatches.
        rule: how the weights are learned.

    Bias: none, because the weights come from earlier draws.
    Cost: the base gradient, the variates, their inner products, one pull-back a transport.

    Example:
        >>> import jax, quell
        >>> model = quell.logistic_regression([[1.0, 2.0], [1.0, -1.0], [1.0, 0.5]], [0, 1, 1])
        >>> gradient = quell.Gradient(quell.Problem(model, quell.FullRank(2)), quell.paper.variates("S7"))
        >>> params = gradient.problem.family.init()
        >>> state = gradient.init(params)
        >>> loss_grad, state, info = gradient.update(jax.random.key(0), params, state)
        >>> info.weights.shape
        (7,)
    """

    problem: Problem
    variates: tuple[ControlVariate, ...] = eqx.field(default=(), converter=list_variates)
    base: BaseGradient = BaseGradient()
    sampler: Sampler = Sampler()
    rule: Rule = Rule()

    def __check_init__(self) -> None:
        """Refuse variates that the problem does not allow, and names that are not unique."""
        self.sampler.check(self.problem)
        refused = {"the base gradient": self.base.refuses(self.problem)}
        refused |= {repr(variate): variate.refuses(self.problem) for variate in self.variates}
        for what, reason in refused.items():
            if reason is not None:
                raise ValueError(
                    f"{what} was given for {self.problem.model} with {type(self.problem.family).__name__}. "
                    f"It cannot be used: {reason}. Leave it out, or change its estimators."
                )
        if self.rule.prior is not None and self.rule.prior.cross.shape != (len(self.variates),):
            raise ValueError(
                f"A prior for {self.rule.prior.cross.shape[0]} variates was given for {len(self.variates)}. "
                "Equal numbers were needed. Write `NormalWishart(gram, cross)` with one row for each variate."
            )
        twice = [name for name, count in Counter(self.names).items() if count > 1]
        if twice:
            raise ValueError(
                f"Several variates are named {twice[0]!r}. Different names were needed. "
                "Leave one out, or give it a `label`."
            )

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the variates, in the order of the weights."""
        return tuple(variate.name for variate in self.variates)

    def init(self, params: PyTree) -> GradientState:
        """The state before the first step."""
        dtype = jnp.result_type(*jax.tree.leaves(params))
        return GradientState(
            moments=self.rule.init(len(self.variates), dtype),
            variates=tuple(variate.init(self.problem) for variate in self.variates),
        )

    def update(
        self, key: Key[Array, ""], params: PyTree, state: GradientState
    ) -> tuple[PyTree, GradientState, GradientInfo]:
        """Draw, combine with the weights learned so far, and learn.

        Args:
            key: for the noise and the minibatches of this step.
            params: of the family.
            state: from `init` or the step before.

        Returns:
            The gradient of the loss, the next state, and what the step tells.
        """
        dtype = jnp.result_type(*jax.tree.leaves(params))
        draw = self.sampler.draw(key, self.problem.family, self.problem.model.num_data, dtype)
        return self.update_from_draw(draw, params, state)

    def update_from_draw(
        self, draw: Draw, params: PyTree, state: GradientState
    ) -> tuple[PyTree, GradientState, GradientInfo]:
        """As `update`, on a draw of your own."""
        evaluation = Evaluation(self.problem, params, draw)
        samples = self.samples(evaluation, state)
        joint = self.inner_products(evaluation, samples)
        keep = finite_rows(joint)[1:]
        weights = jnp.where(keep, self.weights(state), 0.0)
        total = samples[0]
        for k, sample in enumerate(samples[1:]):
            total = total + sample.where(keep[k]) * weights[k]
        per_datum = 1.0 / self.problem.model.num_data
        loss_grad = jax.tree.map(lambda g: -per_datum * g, evaluation.particles.pullback(total))
        now = Moments.from_joint(jnp.where(jnp.isfinite(joint), joint, 0.0))
        info = GradientInfo(
            elbo=self.base.elbo(evaluation),
            base_sq_norm=joint[0, 0],
            combined_sq_norm=expected_sq_norm(now, weights),
            weights=weights,
            dropped=~keep,
        )
        after = GradientState(
            self.rule.observe(state.moments, joint), self._refreshed(evaluation, samples, state, weights, keep)
        )
        return loss_grad, after, info

    def _refreshed(
        self,
        evaluation: Evaluation,
        samples: list[Parts],
        state: GradientState,
        weights: Float[Array, "variate"],
        keep: Bool[Array, "variate"],
    ) -> tuple[PyTree, ...]:
        """The variates' states for the next step; those that learn go down the squared norm of the whole gradient."""
        learners = [k for k, variate in enumerate(self.variates) if variate.learns]
        grads: list[PyTree] = [None] * len(self.variates)
        if learners:
            fixed = samples[0]
            for k, sample in enumerate(samples[1:]):
                fixed = fixed if k in learners else fixed + sample.where(keep[k]) * weights[k]

            def sq_norm(states: list[PyTree]) -> Float[Array, ""]:
                total = fixed
                for k, learned in zip(learners, states, strict=True):
                    total = total + self.variates[k].sample(evaluation, learned) * weights[k]
                return self.inner_products(evaluation, [total])[0, 0]

            for k, grad in zip(learners, eqx.filter_grad(sq_norm)([state.variates[k] for k in learners]), strict=True):
                grads[k] = grad
        return tuple(
            variate.update(evaluation, before, grad)
            for variate, before, grad in zip(self.variates, state.variates, grads, strict=True)
        )

    def weights(self, state: GradientState) -> Float[Array, "variate"]:
        """The weights that the next step will use."""
        num_params = self.problem.family.num_params
        return self.rule.weights(state.moments, num_units=self.sampler.num_units, num_params=num_params)

    def samples(self, evaluation: Evaluation, state: GradientState) -> list[Parts]:
        """The base gradient and the variates at one draw, factored, in nats."""
        variates = zip(self.variates, state.variates, strict=True)
        return [self.base.sample(evaluation), *(v.sample(evaluation, s) for v, s in variates)]

    def inner_products(self, evaluation: Evaluation, samples: list[Parts]) -> Float[Array, "joint joint"]:
        """Averaged inner products of independent units, for gradients of the ELBO a datum."""
        particles = evaluation.particles
        joint = particles.mean_gram(samples) if evaluation.draw.is_shared else particles.gram(samples)
        return joint / self.problem.model.num_data**2
