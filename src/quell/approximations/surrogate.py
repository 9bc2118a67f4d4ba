# SPDX-License-Identifier: Apache-2.0
"""A network in place of the function, trained to lower the variance of the combined gradient."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import PyTree

from quell.approximations.base import AbstractApproximation
from quell.approximations.concrete import Concrete
from quell.core.checks import first_line
from quell.core.trees import all_finite, select
from quell.evaluation import Evaluation, Problem
from quell.families import AbstractTransport
from quell.terms import AbstractTerm
from quell.terms.base import Latents, Values


class SurrogateState(NamedTuple):
    """What is learned: the network's arrays and the optimiser's state."""

    network: PyTree
    optimizer: optax.OptState


class Surrogate(AbstractApproximation):
    r"""Replace \(f(z)\) by a network \(r_\phi(z)\), which learns to lower the variance of the whole gradient.

    The variance of an unbiased estimator is its expected squared norm less a constant, so the gradient of the squared
    norm at the draw is an unbiased gradient of the variance. The new network is used from the next step on.

    Args:
        network: an Equinox module from a latent to a number.
        optimizer: for \(\phi\); Adam by default.
        relaxation: for a discrete family, how its latents become continuous.

    Bias: none in a variate.
    Cost: the network and its gradient per replicate, and once more for training.

    References: Grathwohl et al. (2018), "Backpropagation through the void".
    """

    network: Any
    optimizer: optax.GradientTransformation = eqx.field(static=True, default=optax.adam(0.01))
    relaxation: Concrete | None = None

    @property
    def name(self) -> str:
        return "surrogate" if self.relaxation is None else f"surrogate-{self.relaxation.name}"

    @property
    def learns(self) -> bool:
        return True

    @property
    def by_parts(self) -> bool:
        return False

    def refuses(self, problem: Problem, term: AbstractTerm) -> str | None:
        reason = None if self.relaxation is None else self.relaxation.refuses(problem, term)
        return reason or self._refuses_network(problem)

    def _refuses_network(self, problem: Problem) -> str | None:
        latent = jax.ShapeDtypeStruct((problem.family.dim,), jnp.result_type(float))
        try:
            out = eqx.filter_eval_shape(self.network, latent)
        except Exception as error:  # whatever the user's module raises for a wrong shape
            return f"the network does not take a latent of length {problem.family.dim} ({first_line(error)})"
        shape = getattr(out, "shape", None)
        if shape != ():
            return f"the network gives shape {shape} for a latent of length {problem.family.dim} instead of one number"
        return None

    def init(self, problem: Problem) -> SurrogateState:
        arrays = eqx.filter(self.network, eqx.is_inexact_array)
        return SurrogateState(arrays, self.optimizer.init(arrays))

    def apply(self, term: AbstractTerm, state: SurrogateState) -> AbstractTerm:
        static = eqx.filter(self.network, eqx.is_inexact_array, inverse=True)
        learned = LearnedTerm(term, eqx.combine(state.network, static))
        return learned if self.relaxation is None else self.relaxation.apply(learned, None)

    def update(
        self, term: AbstractTerm, evaluation: Evaluation, state: SurrogateState, grad: SurrogateState
    ) -> SurrogateState:
        updates, optimizer = self.optimizer.update(grad.network, state.optimizer, state.network)
        after = SurrogateState(optax.apply_updates(state.network, updates), optimizer)
        return select(all_finite(grad.network), after, state)


class LearnedTerm(AbstractTerm):
    """A term whose function is a network.

    Args:
        term: what the network stands for.
        network: from a latent to a number.
    """

    term: AbstractTerm
    network: Any

    @property
    def name(self) -> str:
        return f"surrogate({self.term.name})"

    def values(self, evaluation: Evaluation, transport: AbstractTransport, *, full_data: bool) -> Values:
        return jax.vmap(self.network)(evaluation.latents(transport))

    def grads(self, evaluation: Evaluation, transport: AbstractTransport, *, full_data: bool) -> Latents:
        return jax.vmap(jax.grad(self.network))(evaluation.latents(transport))

    def refuses_closed_form(self, problem: Problem) -> str | None:
        return "the expectation of a network has no closed form"
