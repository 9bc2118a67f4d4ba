# SPDX-License-Identifier: Apache-2.0
"""The combined gradient as `init` and `update`, for any loop."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key, PyTree

from quell.combine import Moments, MomentState, Rule, expected_sq_norm, finite_rows
from quell.data.access import on_disk
from quell.evaluation import Draw, Evaluation, Problem, Sampler
from quell.families import Capability, FactoredGradient
from quell.gradient.base import BaseGradient
from quell.variates import ControlVariate


def list_variates(variates: Any) -> tuple[ControlVariate, ...]:
    """Refuse what is not a list of control variates."""
    if isinstance(variates, Iterable) and not isinstance(variates, str):
        listed = tuple(variates)
        if all(isinstance(variate, ControlVariate) for variate in listed):
            return listed
    raise TypeError(
        f"`variates` must be a list of control variates, got {variates!r}; try `quell.paper.variates('S7')`, or `()`."
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
    """Per-step diagnostics.

    Args:
        elbo: an unbiased estimate, in nats, over all data.
        base_sq_norm: squared norm of the base gradient of one independent unit (a replicate, or all of them where
            they share a minibatch), averaged over units, for the ELBO per datum; in the rule's metric, which is in nats
            where it is the natural one.
        combined_sq_norm: the same of the combined gradient: what the rule makes small.
        weights: of the variates, as used; one row per leaf where the rule learns them by leaf.
        dropped: variates left out of this step because they were not finite.
    """

    elbo: Float[Array, ""]
    base_sq_norm: Float[Array, ""]
    combined_sq_norm: Float[Array, ""]
    weights: Float[Array, "*leaf variate"]
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
    Cost: the base gradient, the variates, their inner products, one pull-back per transport (and per leaf, where
    weights are learned by leaf).

    Example:
        >>> import equinox as eqx, jax, quell
        >>> model = quell.logistic_regression([[1.0, 2.0], [1.0, -1.0], [1.0, 0.5]], [0, 1, 1])
        >>> gradient = quell.Gradient(quell.Problem(model, quell.FullRank(2)), quell.paper.variates("S7"))
        >>> params = gradient.problem.family.init()
        >>> state = gradient.init(params)
        >>> loss_grad, state, info = eqx.filter_jit(gradient.update)(jax.random.key(0), params, state)
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
                raise ValueError(f"{what} cannot be used for {self.problem.model}: {reason}.")
        if self.rule.prior is not None and self.rule.prior.cross.shape != (len(self.variates),):
            raise ValueError(
                f"`rule.prior` must have one row for each of {len(self.variates)} variates, got "
                f"{self.rule.prior.cross.shape[0]}."
            )
        lacks_metric = self.problem.family.refuses(Capability.NATURAL_METRIC)
        if self.rule.metric == "natural" and lacks_metric:
            raise ValueError(f"`rule.metric` cannot be 'natural': {lacks_metric}; try `Rule(metric='euclidean')`.")
        self._check_reads()
        twice = [name for name, count in Counter(self.names).items() if count > 1]
        if twice:
            raise ValueError(f"Names of variates must be unique, got {twice[0]!r} twice; give one of them a `label`.")

    def _check_reads(self) -> None:
        """Where a step may see all data, and they lie on disk, let it be traced now: it raises what a fit would."""
        estimators = (self.base.data, *(side for variate in self.variates for side in (variate.left, variate.right)))
        sees_all = self.sampler.batch_size is None or any(getattr(one, "full_data", False) for one in estimators)
        if on_disk(self.problem.model.data) and sees_all:
            params = jax.eval_shape(self.problem.family.init)
            state = eqx.filter_eval_shape(self.init, params)
            eqx.filter_eval_shape(self.update, jax.random.key(0), params, state)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the variates."""
        return tuple(variate.name for variate in self.variates)

    @property
    def leaves(self) -> tuple[str, ...]:
        """Names of the leaves of the family's parameters, such as `loc` and `scale`."""
        paths = jax.tree_util.tree_leaves_with_path(jax.eval_shape(self.problem.family.init))
        return tuple(jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in paths)

    @property
    def weight_names(self) -> tuple[str, ...]:
        """Names of the weights in their order: those of the variates, for each leaf where there are weights by leaf."""
        if not self.rule.by_leaf:
            return self.names
        return tuple(f"{name}[{leaf}]" for leaf in self.leaves for name in self.names)

    def init(self, params: PyTree) -> GradientState:
        """The state before the first step."""
        variates = tuple(variate.init(self.problem) for variate in self.variates)
        return GradientState(self.init_moments(params), variates)

    def init_moments(self, params: PyTree) -> MomentState:
        """The moments before the first step."""
        dtype, num_leaves = jnp.result_type(*jax.tree.leaves(params)), len(jax.tree.leaves(params))
        return self.rule.init(len(self.variates), dtype, num_leaves=num_leaves)

    def update(
        self, key: Key[Array, ""], params: PyTree, state: GradientState, *, next_key: Key[Array, ""] | None = None
    ) -> tuple[PyTree, GradientState, GradientInfo]:
        """Draw, combine with the weights learned so far, and learn.

        Args:
            key: for the noise and the minibatches of this step.
            params: of the family.
            state: from `init` or the step before.
            next_key: of the step after this one, where it is known; data on disk are read ahead by it.

        Returns:
            The gradient of the loss, the next state, and diagnostics of the step.
        """
        dtype, model = jnp.result_type(*jax.tree.leaves(params)), self.problem.model
        draw = self.sampler.draw(key, self.problem.family, model.num_data, dtype)
        if next_key is not None and on_disk(model.data):
            upcoming = self.sampler.draw(next_key, self.problem.family, model.num_data, dtype).index
            draw = Draw(draw.noise, draw.index, upcoming)
        return self.update_from_draw(draw, params, state)

    def update_from_draw(
        self, draw: Draw, params: PyTree, state: GradientState
    ) -> tuple[PyTree, GradientState, GradientInfo]:
        """As `update`, on a draw of your own."""
        evaluation = Evaluation(self.problem, params, draw)
        samples = self.samples(evaluation, state)
        joint = self._joint(evaluation, samples, state)
        keep = self._usable(joint, samples)
        weights = jnp.where(keep, self.weights(state), 0.0)
        totals = self._combined(samples[0], {k: sample.where(keep[k]) for k, sample in enumerate(samples[1:])}, weights)
        per_datum = 1.0 / self.problem.model.num_data
        loss_grad = jax.tree.map(lambda g: -per_datum * g, self._pullback(evaluation, totals))
        now = Moments.from_joint(jnp.where(jnp.isfinite(joint), joint, 0.0))
        info = GradientInfo(
            elbo=self.base.elbo(evaluation),
            base_sq_norm=jnp.sum(joint[..., 0, 0]),
            combined_sq_norm=expected_sq_norm(now, weights),
            weights=weights,
            dropped=~keep,
        )
        after = GradientState(
            self.rule.observe(state.moments, joint), self._refreshed(evaluation, samples, state, weights, keep)
        )
        return loss_grad, after, info

    def _joint(
        self, evaluation: Evaluation, samples: list[FactoredGradient], state: GradientState
    ) -> Float[Array, "*leaf joint joint"]:
        """The inner products of this step, or the latest ones where none are due."""
        held = state.moments.held
        if held is None:
            return self.inner_products(evaluation, samples)

        def products() -> Float[Array, "*leaf joint joint"]:
            # On an evaluation of its own: what an algebra keeps must not leave the branch that computed it.
            return self.inner_products(Evaluation(self.problem, evaluation.params, evaluation.draw), samples)

        return jax.lax.cond(self.rule.is_due(state.moments), products, lambda: held.joint)

    def _usable(
        self, joint: Float[Array, "*leaf joint joint"], samples: list[FactoredGradient]
    ) -> Bool[Array, "variate"]:
        """Which variates are finite: seen from the inner products, where each step takes them."""
        if self.rule.every > 1:
            return jnp.stack([sample.is_finite() for sample in samples])[1:]
        rows = finite_rows(joint)[..., 1:]
        return jnp.all(rows, axis=0) if self.rule.by_leaf else rows

    def _combined(
        self, base: FactoredGradient, some: dict[int, FactoredGradient], weights: Float[Array, "*leaf variate"]
    ) -> list[FactoredGradient]:
        """Base gradient and some weighted variates, for each set of weights."""
        totals = []
        for row in weights if self.rule.by_leaf else [weights]:
            total = base
            for k, sample in some.items():
                total = total + sample * row[k]
            totals.append(total)
        return totals

    def _pullback(self, evaluation: Evaluation, totals: list[FactoredGradient]) -> PyTree:
        """Carry back to the parameters; from the total of each leaf that leaf alone is taken."""
        trees = [evaluation.algebra.pullback(total) for total in totals]
        if not self.rule.by_leaf:
            return trees[0]
        leaves = [jax.tree.leaves(tree)[k] for k, tree in enumerate(trees)]
        return jax.tree.unflatten(jax.tree.structure(trees[0]), leaves)

    def _sq_norm(self, evaluation: Evaluation, totals: list[FactoredGradient]) -> Float[Array, ""]:
        if not self.rule.by_leaf:
            return self.inner_products(evaluation, totals)[0, 0]
        own = [self.inner_products(evaluation, [total])[k, 0, 0] for k, total in enumerate(totals)]
        return jnp.sum(jnp.stack(own))

    def _refreshed(
        self,
        evaluation: Evaluation,
        samples: list[FactoredGradient],
        state: GradientState,
        weights: Float[Array, "*leaf variate"],
        keep: Bool[Array, "variate"],
    ) -> tuple[PyTree, ...]:
        """The variates' states for the next step; those that learn go down the squared norm of the whole gradient."""
        learners = [k for k, variate in enumerate(self.variates) if variate.learns]
        grads: list[PyTree] = [None] * len(self.variates)
        if learners:
            rest = {k: s.where(keep[k]) for k, s in enumerate(samples[1:]) if k not in learners}

            def sq_norm(states: list[PyTree]) -> Float[Array, ""]:
                pairs = zip(learners, states, strict=True)
                learned = {k: self.variates[k].sample(evaluation, one) for k, one in pairs}
                return self._sq_norm(evaluation, self._combined(samples[0], rest | learned, weights))

            for k, grad in zip(learners, eqx.filter_grad(sq_norm)([state.variates[k] for k in learners]), strict=True):
                grads[k] = grad
        triples = zip(self.variates, state.variates, grads, strict=True)
        return tuple(variate.update(evaluation, before, grad) for variate, before, grad in triples)

    def weights(self, state: GradientState) -> Float[Array, "*leaf variate"]:
        """The weights that the next step will use; one row per leaf where the rule learns them by leaf."""
        family = self.problem.family
        num_params = family.num_leaf_params if self.rule.by_leaf else family.num_params
        return self.rule.weights(state.moments, num_units=self.sampler.num_units, num_params=num_params)

    def samples(self, evaluation: Evaluation, state: GradientState) -> list[FactoredGradient]:
        """The base gradient and the variates at one draw, factored, in nats."""
        variates = zip(self.variates, state.variates, strict=True)
        return [self.base.sample(evaluation), *(variate.sample(evaluation, one) for variate, one in variates)]

    def inner_products(
        self, evaluation: Evaluation, samples: list[FactoredGradient]
    ) -> Float[Array, "*leaf joint joint"]:
        """Inner products averaged over independent units: of gradients of ELBO per datum, or in the natural metric."""
        algebra = evaluation.algebra
        is_natural = self.rule.metric == "natural"
        if is_natural:
            algebra, samples = algebra.whitened(samples)
        if self.rule.by_leaf:
            joint = algebra.mean_leaf_grams(samples) if evaluation.draw.is_shared else algebra.leaf_grams(samples)
        else:
            joint = algebra.mean_gram(samples) if evaluation.draw.is_shared else algebra.gram(samples)
        return joint if is_natural else joint / float(self.problem.model.num_data) ** 2
