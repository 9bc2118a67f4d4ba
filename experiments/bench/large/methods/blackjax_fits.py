# SPDX-License-Identifier: Apache-2.0
"""BlackJAX: mean-field variational inference with Adam, on NumPyro's unconstrained density."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from blackjax.vi import meanfield_vi

from experiments.bench.large.methods.base import Clock, Found, Look, descend
from experiments.bench.large.models import LargeModel
from experiments.bench.posteriordb.methods.base import Unconstrained
from experiments.bench.posteriordb.ports.port import Port

CHUNK, SAMPLES = 10, 10
"""Steps between two looks at the clock, and samples of a step, as in its documentation."""


def mean_field(large: LargeModel, key: jax.Array, clock: Clock, setting: dict[str, Any]) -> Found:
    """Adam, the rate of which is set between chunks of steps."""
    posterior = Unconstrained(Port(lambda: large.model(**large.data), (), {}), key)
    adam: Any = optax.inject_hyperparams(optax.adam)(setting["rate"])

    @jax.jit
    def run(state: Any, key: jax.Array, rate: jax.Array) -> Any:
        state = eqx.tree_at(lambda one: one.opt_state.hyperparams["learning_rate"], state, rate)

        def step(state: Any, key: jax.Array) -> Any:
            return meanfield_vi.step(key, state, posterior.log_density, adam, SAMPLES)[0], None

        return jax.lax.scan(step, state, jax.random.split(key, CHUNK))[0]

    def advance(counted: tuple[int, Any], rate: float) -> tuple[int, Any]:
        number, state = counted
        return number + 1, run(state, jax.random.fold_in(key, number), jnp.float32(rate))

    def look(counted: tuple[int, Any]) -> Look:
        return Look(clock.now, np.asarray(counted[1].mu), np.exp(counted[1].rho))

    looks, chunks = descend(clock, setting, (0, meanfield_vi.init(posterior.start, adam)), advance, look)
    return Found(looks, {"status": "completed", "steps": chunks * CHUNK, "gradients": chunks * CHUNK * SAMPLES})
