# SPDX-License-Identifier: Apache-2.0
"""Ensembles for any guide, from the distributions of its sites alone."""

import dataclasses
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Key, PyTree

from quell.adapters.numpyro.call import Inputs
from quell.adapters.numpyro.particle import Particle
from quell.combine import MomentState, Rule, finite_rows

Params = Mapping[str, PyTree]
"""Values of `param` sites by name; that of a neural network is a tree."""

Mutable = Mapping[str, PyTree]
"""Values of `mutable` sites by name."""


@dataclasses.dataclass(frozen=True)
class TraceEnsemble:
    r"""The gradient of a guide's own ELBO, with variates that need only densities.

    The base gradient is a reparameterization gradient for sites with `has_rsample`, and a score-function gradient for
    the others (discrete ones). The variates:

    - `score(site)`: \(\nabla_w \log q_w(z)\) of one site at fixed latents. For a reparameterized site a weight of one
      is sticking the landing; for a discrete site the weight is a learned baseline. That of a flow needs no inverse.
    - `kl(site)`: the gradient of \(\log q - \log p\) at the sample minus that of its expectation, the
      Kullback-Leibler divergence, if NumPyro has it and model and guide have their sites in the same order.
    - `entropy(site)`: the same for \(\log q\) alone, if NumPyro has the entropy but not the divergence.

    Factors and observed sites of the guide are terms of its ELBO, as in NumPyro; not being random, they give no scores.

    Args:
        model: with NumPyro primitives.
        guide: with NumPyro primitives.
        num_particles: samples per step.
        rule: how the weights are learned.
        vectorize: maps a function over the keys of several particles.
        is_multi_sample: whether the first axis of the guide's sites counts samples, for each of which the model runs.
        is_forward: whether to differentiate in forward mode, at the cost of one pass per parameter.
        mutable: values of `mutable` sites before the step.

    Bias: none.
    Cost: one backward pass through the densities of the sites per variate.

    References: Roeder et al. (2017); Ranganath et al. (2014).
    """

    model: Callable[..., Any]
    guide: Callable[..., Any]
    num_particles: int
    rule: Rule
    vectorize: Callable[..., Any]
    is_multi_sample: bool = False
    is_forward: bool = False
    mutable: Mutable = dataclasses.field(default_factory=dict)

    def init(self, params: Params, inputs: Inputs) -> MomentState:
        """The state before the first step."""
        if self.rule.metric == "natural":
            raise ValueError(
                "`metric` must be 'euclidean' for a guide whose Fisher metric is unknown, got 'natural'; try "
                "`Rule(metric='euclidean')`, or `AutoNormal`, `AutoDiagonalNormal` or `AutoMultivariateNormal`."
            )
        dtype = jnp.result_type(float, *jax.tree.leaves(params))
        return self.rule.init(len(self.names(params, inputs)), dtype, num_leaves=len(params))

    def names(self, params: Params, inputs: Inputs) -> tuple[str, ...]:
        """Of the variates, in the order of the weights."""
        found: list[str] = []
        with numpyro.validation_enabled(False):  # a sample outside of the support is no reason to stop
            # The parameters are no arguments of the traced function, so a model may look at their values.
            jax.eval_shape(lambda: found.extend(self.particle(jax.random.key(0), params, inputs).variates()))
        return tuple(found)

    def update(
        self, key: Key[Array, ""], params: Params, state: MomentState, inputs: Inputs
    ) -> tuple[Float[Array, ""], PyTree, MomentState, Mutable]:
        """The loss, its gradient with respect to the constrained parameters, the next state and the mutable sites."""
        flat, unflatten = ravel_pytree(dict(params))

        differentiate = jax.jacfwd if self.is_forward else jax.jacrev

        def base(vector: Array, one: Key[Array, ""]) -> tuple[Float[Array, ""], tuple[Array, Array, Mutable]]:
            particle = self.particle(one, unflatten(vector), inputs)
            return particle.surrogate(), (particle.elbo, particle.num_data, particle.mutable)

        def variates(vector: Array, one: Key[Array, ""]) -> Float[Array, "variate"]:
            values = self.particle(one, unflatten(vector), inputs).variates().values()
            return jnp.stack(list(values)) if values else jnp.zeros(0)

        def gradients(one: Key[Array, ""]) -> tuple[Float[Array, "joint param"], tuple[Array, Array, Mutable]]:
            # Apart, because the variates know no likelihood; the compiler runs the guide once for both.
            grad, seen = differentiate(base, has_aux=True)(flat, one)
            return jnp.concatenate([grad[None], differentiate(variates)(flat, one)]), seen

        grads, (elbos, num_data, mutable) = self._over_particles(gradients, key)
        blocks = jnp.split(grads, list(itertools.accumulate(self._sizes(params)))[:-1], axis=-1)
        joints = [jnp.einsum("rip,rjp->ij", block, block) for block in blocks]
        joint = (jnp.stack(joints) if self.rule.by_leaf else joints[0]) / (self.num_particles * num_data[0] ** 2)
        keep = jnp.all(jnp.atleast_2d(finite_rows(joint)), axis=0)[1:]
        weights = jnp.atleast_2d(jnp.where(keep, self._weights(params, state), 0.0))
        means = [jnp.mean(block, axis=0) for block in blocks]
        total = jnp.concatenate(
            [m[0] + row @ jnp.where(keep[:, None], m[1:], 0.0) for m, row in zip(means, weights, strict=True)]
        )
        return -jnp.mean(elbos), unflatten(-total), self.rule.observe(state, joint), _of_first(mutable)

    def particle(self, key: Key[Array, ""], params: Params, inputs: Inputs) -> Particle:
        """One sample."""
        values = {**params, **self.mutable}
        return Particle(self.model, self.guide, key, values, inputs, is_multi_sample=self.is_multi_sample)

    def weights(self, params: Params, state: MomentState, inputs: Inputs) -> dict[str, Array]:
        """The weights that the next step will use, by name."""
        names = self.names(params, inputs)
        if self.rule.by_leaf:
            names = tuple(f"{name}[{leaf}]" for leaf in sorted(params) for name in names)
        return dict(zip(names, self._weights(params, state).ravel(), strict=True))

    def stick_the_landing(
        self, key: Key[Array, ""], params: Params, inputs: Inputs
    ) -> tuple[Float[Array, ""], Mutable]:
        """Minus the ELBO, with a gradient without the scores of reparameterized sites, and the mutable sites."""

        def value(one: Key[Array, ""]) -> tuple[Float[Array, ""], Mutable]:
            particle = self.particle(one, params, inputs)
            surrogate = particle.surrogate() + particle.path_scores()
            return jax.lax.stop_gradient(particle.elbo - surrogate) + surrogate, particle.mutable

        elbos, mutable = self._over_particles(value, key)
        return -jnp.mean(elbos), _of_first(mutable)

    def _over_particles(self, function: Callable[[Key[Array, ""]], PyTree], key: Key[Array, ""]) -> PyTree:
        """Values of a function for every particle; like NumPyro's losses, one particle takes the key as it is."""
        if self.num_particles == 1:
            return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], function(key))
        return self.vectorize(function, jax.random.split(key, self.num_particles))

    def _weights(self, params: Params, state: MomentState) -> Float[Array, "*leaf variate"]:
        sizes = self._sizes(params)
        num_params = sizes if self.rule.by_leaf else sizes[0]
        return self.rule.weights(state, num_units=self.num_particles, num_params=num_params)

    def _sizes(self, params: Params) -> list[int]:
        """Lengths of the parts of the flat gradient that have weights of their own."""
        sizes = [sum(jnp.size(leaf) for leaf in jax.tree.leaves(params[name])) for name in sorted(params)]
        return sizes if self.rule.by_leaf else [sum(sizes)]


def _of_first(mutable: Mutable) -> Mutable:
    """The mutable sites of the first particle: one run's state, which a mean would not be."""
    return jax.tree.map(lambda leaf: leaf[0], mutable)
