# SPDX-License-Identifier: Apache-2.0
"""NumPyro: SVI with Adam, on all rows or on some of them, and NUTS for as long as it may."""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import optax
from jax.flatten_util import ravel_pytree
from numpyro import infer
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
from numpyro.infer.autoguide import AutoMultivariateNormal, AutoNormal
from numpyro.infer.util import unconstrain_fn

from experiments.bench.large.methods.base import Clock, Found, Look, descend, flat
from experiments.bench.large.models import LargeModel

CHUNK = 20
"""Steps of SVI between two looks at the clock."""
BATCH = 10_000
"""Rows of a step that does not see all."""
CHAINS, WARM_UP, DRAWS = 4, 500, 250
"""Of NUTS: chains side by side, and draws of each between two looks at the clock."""


def svi(
    large: LargeModel, key: jax.Array, clock: Clock, setting: dict[str, Any], guide_class: Any, batch: int | None = None
) -> Found:
    """Adam with one sample, the rate of which is set between chunks of steps."""
    guide = guide_class(large.model)
    adam = numpyro.optim.optax_to_numpyro(optax.inject_hyperparams(optax.adam)(setting["rate"]))
    loop: Any = infer.SVI(large.model, guide, adam, infer.Trace_ELBO())
    state = loop.init(key, **large.data)
    arrays, static = large.split()
    num_rows = len(arrays[large.by_row[0]]) if large.by_row else 0

    def rows(arrays: dict[str, Any], key: jax.Array) -> dict[str, Any]:
        if batch is None:
            return arrays
        places = jax.random.randint(key, (batch,), 0, num_rows)
        taken = {name: arrays[name][places] for name in large.by_row}
        return {**arrays, **taken, "num_rows": num_rows}

    @jax.jit
    def run(state: Any, arrays: dict[str, Any], rate: jax.Array) -> Any:
        state = eqx.tree_at(lambda one: one.optim_state[1][1].hyperparams["learning_rate"], state, rate)

        def step(state: Any, _: None) -> Any:
            key = jax.random.fold_in(jax.random.key(0), state.optim_state[0])
            return loop.update(state, **rows(arrays, key), **static)[0], None

        return jax.lax.scan(step, state, length=CHUNK)[0]

    def look(state: Any) -> Look:
        found = loop.get_params(state)
        if guide_class is AutoNormal:
            sites = [name.removesuffix("_auto_loc") for name in found if name.endswith("_auto_loc")]
            mean, sd = ({site: found[f"{site}_auto_{part}"] for site in sites} for part in ("loc", "scale"))
            return Look(clock.now, flat(mean), flat(sd))
        places = np.asarray(flat(guide._unpack_latent(jnp.arange(found["auto_loc"].size))), int)
        root = np.asarray(found["auto_scale_tril"], float)[places]
        return Look(clock.now, np.asarray(found["auto_loc"])[places], np.linalg.cholesky(root @ root.T))

    looks, chunks = descend(clock, setting, state, lambda state, rate: run(state, arrays, jnp.float32(rate)), look)
    return Found(looks, {"status": "completed", "steps": chunks * CHUNK, "gradients": chunks * CHUNK})


def nuts(large: LargeModel, key: jax.Array, clock: Clock, setting: dict[str, Any]) -> Found:
    """Chains side by side, until the seconds are over; its own measures say how far their moments can be trusted."""
    options: dict[str, Any] = {"num_warmup": WARM_UP, "num_samples": DRAWS, "num_chains": CHAINS}
    mcmc: Any = infer.MCMC(infer.NUTS(large.model), **options, chain_method="vectorized", progress_bar=False)

    @jax.jit
    def flat_draws(draws: dict[str, Any]) -> jax.Array:
        return jax.vmap(jax.vmap(lambda one: ravel_pytree(unconstrain_fn(large.model, (), large.data, one))[0]))(draws)

    kept, steps = [], 0
    while not kept or clock.now < clock.seconds:
        mcmc.run(key, **large.data, extra_fields=("num_steps", "diverging"))
        mcmc.post_warmup_state, key = mcmc.last_state, mcmc.last_state.rng_key
        kept.append(np.asarray(flat_draws(mcmc.get_samples(group_by_chain=True))))
        steps += int(np.sum(mcmc.get_extra_fields()["num_steps"]))
    seconds, draws = clock.now, np.concatenate(kept, axis=1)
    with np.errstate(invalid="ignore"):
        rhat, effective = split_gelman_rubin(draws), effective_sample_size(draws)
    facts = {
        "status": "completed",
        "draws": int(draws.shape[0] * draws.shape[1]),
        "leapfrogs": steps,
        "largest_rhat": round(float(np.max(rhat)), 3),
        "least_effective": round(float(np.min(effective))),
    }
    return Found([Look(seconds, draws.mean((0, 1)), draws.std((0, 1)))], facts)


mean_field = functools.partial(svi, guide_class=AutoNormal)
full_rank = functools.partial(svi, guide_class=AutoMultivariateNormal)
mean_field_rows = functools.partial(svi, guide_class=AutoNormal, batch=BATCH)
full_rank_rows = functools.partial(svi, guide_class=AutoMultivariateNormal, batch=BATCH)
