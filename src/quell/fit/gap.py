# SPDX-License-Identifier: Apache-2.0
"""How far some parameters are from the optimum near them, whatever method found them."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from quell.core.estimate import Estimate
from quell.core.tiers import tiered_jit
from quell.data.access import on_disk
from quell.evaluation import has_exact_elbo
from quell.families import Capability
from quell.fit.algorithm import AlgorithmState
from quell.fit.common_draws import CommonDraws, ExactElbo
from quell.fit.common_noise import Draws
from quell.fit.newton import Newton, NewtonState, Phase
from quell.gradient import Gradient

MEASURED_BLOCKS = 8
"""Of draws that the gap is measured on."""


def measure_gap(gradient: Gradient, params: PyTree) -> Estimate | None:
    """Nats between some parameters and the optimum near them, on fresh draws; `None` where that cannot be measured.

    It cannot where the ELBO is not finite. Far from an optimum, where its quadratic model has no top, it is infinite.

    Args:
        gradient: the problem.
        params: of its family.

    Cost: the phases of `Newton` before a round moves.
    """
    problem = gradient.problem
    if problem.family.refuses(Capability.GEOMETRY, Capability.ENTROPY) is not None or on_disk(problem.model.data):
        return None
    objective = ExactElbo(problem) if has_exact_elbo(problem) else CommonDraws.of(problem)
    if objective is None:
        return None
    newton = Newton(gradient, objective, jnp.asarray(jnp.inf), most_starts=0)  # so that what is measured is not left
    state = newton.init(params)
    begun = state.optimizer._replace(  # no boundary: far from the optimum the model is a guess, but no infinity
        draws=Draws(state.optimizer.draws.seed, *jnp.asarray([MEASURED_BLOCKS // 2, objective.pieces], jnp.int32)),
        radius=jnp.full_like(state.optimizer.radius, jnp.inf),
    )
    found = _judged(newton, AlgorithmState(params, begun, state.gradient))
    return None if found.has_given_up else Estimate(float(found.gap), float(found.gap_error))


@tiered_jit
def _judged(newton: Newton, state: AlgorithmState) -> NewtonState:
    def step(number: Int[Array, ""], state: AlgorithmState) -> AlgorithmState:
        phase = jnp.asarray([Phase.EVALUATE, Phase.MEASURE, Phase.JUDGE], jnp.int32)[number]
        key = jax.random.fold_in(jax.random.key(0), number)
        begun = AlgorithmState(state.params, state.optimizer._replace(phase=phase), state.gradient)
        after = newton.step(key, begun)[0]
        is_lost = state.optimizer.has_given_up | ((number == 0) & after.optimizer.has_given_up)
        return AlgorithmState(after.params, after.optimizer._replace(has_given_up=is_lost), after.gradient)

    return jax.lax.fori_loop(0, 3, step, state).optimizer
