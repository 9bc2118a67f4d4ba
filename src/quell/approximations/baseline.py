# SPDX-License-Identifier: Apache-2.0
"""Constants in place of a function: the baselines of the score-function estimator."""

from typing import Literal

import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from quell.approximations.base import AbstractApproximation
from quell.core.checks import check_name
from quell.evaluation import Evaluation, Problem
from quell.families import AbstractTransport, FactoredGradient
from quell.terms import AbstractTerm
from quell.terms.base import Latents, Values


class Baseline(AbstractApproximation):
    r"""Replace \(f(z)\) by a constant that does not depend on the replicate's own noise.

    The gradient of the expectation of a constant is zero, and its score-function estimator is the constant times the
    score; so the difference is a baseline.

    Args:
        kind: `"leave-one-out"`, the average of \(f\) over the other replicates of the step (zero if there is none), or
            `"moving-average"`, the exponential average over earlier steps.
        decay: of the moving average: the share of each new value.

    Bias: none in a variate, where the replicates have noise of their own. With a single replicate the leave-one-out
    baseline is zero; with two or three of them its weight is a little off, because the replicates then share values.
    Cost: one evaluation of \(f\) per replicate, which the score-function estimator needs anyway.

    References: Mnih & Gregor (2014); Kool et al. (2019).
    """

    kind: Literal["leave-one-out", "moving-average"] = "leave-one-out"
    decay: float = 0.1

    def __check_init__(self) -> None:
        """Refuse a kind that is not known."""
        check_name("`kind`", self.kind, ("leave-one-out", "moving-average"))
        if not 0 < self.decay <= 1:
            raise ValueError(f"`decay` must be above 0 and at most 1, got {self.decay}.")

    @property
    def name(self) -> str:
        return self.kind

    @property
    def by_parts(self) -> bool:
        return False

    def refuses(self, problem: Problem, term: AbstractTerm) -> str | None:
        return "its function is a constant already" if term.is_constant else None

    def init(self, problem: Problem) -> PyTree:
        return {"mean": jnp.zeros(()), "mass": jnp.zeros(())} if self.kind == "moving-average" else None

    def apply(self, term: AbstractTerm, state: PyTree) -> AbstractTerm:
        if self.kind == "leave-one-out":
            return Constant(term, None)
        return Constant(term, state["mean"] / jnp.maximum(state["mass"], 1e-30))

    def update(self, term: AbstractTerm, evaluation: Evaluation, state: PyTree, grad: PyTree) -> PyTree:
        if self.kind == "leave-one-out":
            return state
        now = jnp.mean(term.values(evaluation, term.sampling(evaluation.problem), full_data=False))
        now = jnp.where(jnp.isfinite(now), now, state["mean"] / jnp.maximum(state["mass"], 1e-30))
        return {
            "mean": (1.0 - self.decay) * state["mean"] + self.decay * now,
            "mass": (1.0 - self.decay) * state["mass"] + self.decay,
        }


class Constant(AbstractTerm):
    """A term whose function is a constant for each replicate.

    Args:
        term: whose values the constant is made of.
        value: the constant; `None` for the average over the other replicates.
    """

    term: AbstractTerm
    value: Float[Array, ""] | None

    @property
    def name(self) -> str:
        return f"constant({self.term.name})"

    @property
    def is_constant(self) -> bool:
        return True

    def values(self, evaluation: Evaluation, transport: AbstractTransport, *, full_data: bool) -> Values:
        values = self.term.values(evaluation, transport, full_data=full_data)
        if self.value is not None:
            return jnp.full_like(values, self.value)
        return (jnp.sum(values) - values) / max(values.shape[0] - 1, 1)

    def grads(self, evaluation: Evaluation, transport: AbstractTransport, *, full_data: bool) -> Latents:
        return jnp.zeros_like(evaluation.latents(transport))

    def closed_form(self, evaluation: Evaluation, *, full_data: bool) -> FactoredGradient:
        return FactoredGradient()

    def refuses_closed_form(self, problem: Problem) -> str | None:
        return None
