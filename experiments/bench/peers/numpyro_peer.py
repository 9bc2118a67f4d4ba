# SPDX-License-Identifier: Apache-2.0
"""NumPyro's SVI with an automatic Gaussian guide and Adam."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro.distributions import biject_to
from numpyro.infer import SVI, Trace_ELBO, init_to_value
from numpyro.infer.autoguide import AutoDiagonalNormal, AutoMultivariateNormal
from numpyro.infer.svi import SVIState

from experiments.bench.adam_runner import cosine_decay
from experiments.bench.gaussian import Gaussian
from experiments.bench.problems import BenchProblem
from experiments.bench.runner import ADAM, ADAM_QUICK, AbstractRunner, Method, structure_label


class State(NamedTuple):
    svi: Any
    rate: Any
    length: Any
    key: Any
    step: Any


class SVIRunner(AbstractRunner):
    """All steps of `SVI.update` in one compiled loop; the rows of a minibatch are handed to the model."""

    def __init__(self, bench: BenchProblem, batch_size: int | None, num_particles: int, axes: Any) -> None:
        self.bench, self.batch_size, self.axes = bench, batch_size, axes
        self.label = structure_label(batch_size, num_particles)
        self.loss = Trace_ELBO(num_particles=num_particles)
        guide = AutoMultivariateNormal if bench.full_rank else AutoDiagonalNormal
        self.guide = guide(bench.numpyro_model, init_loc_fn=init_to_value(values={}))
        self.svi = SVI(bench.numpyro_model, self.guide, numpyro.optim.Adam(0.1), self.loss)
        self.svi.init(jax.random.key(0), *bench.rows, num_data=bench.num_data)  # sets up the guide
        self.order = self._order()
        self.is_in_order = bool(jnp.all(self.order == jnp.arange(bench.dim)))
        self._advance, self._compiled_gaussian = jax.jit(self._loop), jax.jit(self._gaussian)

    def _order(self):
        """NumPyro's coordinates, counted in quell's: each has the sites in an order of its own."""
        numbers = jnp.arange(self.bench.dim, dtype=float)
        ours = self.bench.problem.model.unravel(numbers)
        ours = ours if isinstance(ours, dict) else {"z": ours}
        theirs = self.guide._unpack_latent(numbers)
        where = jnp.concatenate([jnp.ravel(theirs[name]) for name in ours]).astype(int)
        return (
            jnp.zeros(self.bench.dim, int)
            .at[where]
            .set(jnp.concatenate([jnp.ravel(ours[name]) for name in ours]).astype(int))
        )

    def _with_optimizer(self, rate: Any, length: Any) -> SVI:
        optimizer = numpyro.optim.Adam(lambda count: rate * cosine_decay(count, length))
        svi = SVI(self.bench.numpyro_model, self.guide, optimizer, self.loss)
        svi.constrain_fn = self.svi.constrain_fn
        return svi

    def start(self, key, mean, setting):
        state = SVIState(self._optimizer_state(mean, setting["scale"]), None, key)
        start = State(state, jnp.float32(setting["rate"]), jnp.float32(setting["length"]), key, jnp.int32(0))
        return jax.tree.map(lambda leaf: jax.lax.convert_element_type(leaf, jnp.asarray(leaf).dtype), start)

    def _optimizer_state(self, mean, scale):
        """That of `SVI.init`, which would run the model without a compiler."""
        scales = jnp.full(self.bench.dim, scale)
        if self.bench.full_rank:
            name, constraint, scales = "auto_scale_tril", self.guide.scale_tril_constraint, jnp.diag(scales)
        else:
            name, constraint = "auto_scale", self.guide.scale_constraint
        return self.svi.optim.init({"auto_loc": mean[self.order], name: biject_to(constraint).inv(scales)})

    def _loop(self, rows, state, until):
        svi = self._with_optimizer(state.rate, state.length)

        def body(now):
            batch = rows
            if self.batch_size is not None:
                key = jax.random.fold_in(now.key, now.step)
                index = jax.random.randint(key, (self.batch_size,), 0, self.bench.num_data)
                batch = tuple(array[index] for array in rows)
            after, _ = svi.update(now.svi, *batch, num_data=self.bench.num_data)
            return now._replace(svi=after, step=now.step + 1)

        return jax.lax.while_loop(lambda now: now.step < until, body, state)

    def advance(self, state, until):
        return self._advance(self.bench.rows, state, np.int32(until))

    def gaussian(self, state):
        return self._compiled_gaussian(state.svi)

    def _gaussian(self, state):
        params, back = self.svi.get_params(state), jnp.argsort(self.order)
        if not self.bench.full_rank:
            return Gaussian(params["auto_loc"][back], params["auto_scale"][back])
        if self.is_in_order:
            return Gaussian(params["auto_loc"], params["auto_scale_tril"])
        rows = params["auto_scale_tril"][back]
        return Gaussian(params["auto_loc"][back], jnp.linalg.cholesky(rows @ rows.T))


def methods(bench: BenchProblem, quick: bool) -> list[Method]:
    """One method; minibatches and all rows, one sample and ten."""
    structures = [(bench.batch_size, 1), (bench.batch_size, 10), (None, 1), (None, 10)]
    axes = ADAM_QUICK if quick else ADAM
    return [Method("numpyro SVI", lambda: [SVIRunner(bench, *one, axes) for one in structures[: 2 if quick else 4]])]
