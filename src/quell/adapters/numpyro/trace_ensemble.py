# SPDX-License-Identifier: Apache-2.0
"""Ensembles for any guide, from the distributions of its sites alone."""

import dataclasses
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Key, PyTree
from numpyro import handlers
from numpyro.infer.util import get_importance_trace

from quell.adapters.numpyro.call import Inputs
from quell.adapters.numpyro.trace import Site, base_distribution, is_latent
from quell.combine import MomentState, Rule, finite_rows

Params = Mapping[str, Array]

MOST_SITES = 16
"""With more sites than this, their scores are added up to one variate."""


@dataclasses.dataclass(frozen=True)
class TraceEnsemble:
    r"""The gradient of a guide's own ELBO, with variates that need only densities.

    The base gradient is a reparameterization gradient for sites with `has_rsample`, and a score-function gradient for
    the others (discrete ones). The variates:

    - `score(site)`: \(\nabla_w \log q_w(z)\) of one site at fixed latents. For a reparameterized site a weight of one
      is sticking the landing; for a discrete site the weight is a learned baseline.
    - `kl(site)`: the gradient of \(\log q - \log p\) at the sample minus that of its expectation, the
      Kullback-Leibler divergence, if NumPyro has it and model and guide have their sites in the same order.
    - `entropy(site)`: the same for \(\log q\) alone, if NumPyro has the entropy but not the divergence.

    Factors and observed sites of the guide are terms of its ELBO, as in NumPyro; not being random, they give no scores.

    Bias: none.
    Cost: one backward pass through the densities of the sites per variate.

    References: Roeder et al. (2017); Ranganath et al. (2014).
    """

    model: Callable[..., Any]
    guide: Callable[..., Any]
    num_particles: int
    rule: Rule

    def init(self, params: Params, inputs: Inputs) -> MomentState:
        """The state before the first step."""
        if self.rule.metric == "natural":
            raise ValueError(
                "`metric` must be 'euclidean' for a guide whose Fisher metric is unknown, got 'natural'; try "
                "`Rule(metric='euclidean')`, or `AutoNormal`, `AutoDiagonalNormal` or `AutoMultivariateNormal`."
            )
        dtype = jnp.result_type(*params.values())
        return self.rule.init(len(self.names(params, inputs)), dtype, num_leaves=len(params))

    def names(self, params: Params, inputs: Inputs) -> tuple[str, ...]:
        """Of the variates, in the order of the weights."""
        found: list[str] = []
        jax.eval_shape(lambda given: found.extend(self.particle(jax.random.key(0), given, inputs).variates()), params)
        return tuple(found)

    def update(
        self, key: Key[Array, ""], params: Params, state: MomentState, inputs: Inputs
    ) -> tuple[Float[Array, ""], PyTree, MomentState]:
        """The loss, its gradient with respect to the constrained parameters, and the next state."""
        flat, unflatten = ravel_pytree(dict(params))

        def values(vector: Array, one: Key[Array, ""]) -> tuple[Float[Array, "joint"], tuple[Array, Array]]:
            particle = self.particle(one, unflatten(vector), inputs)
            stacked = jnp.stack([particle.surrogate(), *particle.variates().values()])
            return stacked, (particle.elbo, particle.num_data)

        keys = jax.random.split(key, self.num_particles)
        grads, (elbos, num_data) = jax.vmap(jax.jacrev(values, has_aux=True), (None, 0))(flat, keys)
        blocks = jnp.split(grads, list(itertools.accumulate(self._sizes(params)))[:-1], axis=-1)
        joints = [jnp.einsum("rip,rjp->ij", block, block) for block in blocks]
        joint = (jnp.stack(joints) if self.rule.by_leaf else joints[0]) / (self.num_particles * num_data[0] ** 2)
        keep = jnp.all(jnp.atleast_2d(finite_rows(joint)), axis=0)[1:]
        weights = jnp.atleast_2d(jnp.where(keep, self._weights(params, state), 0.0))
        means = [jnp.mean(block, axis=0) for block in blocks]
        total = jnp.concatenate(
            [m[0] + row @ jnp.where(keep[:, None], m[1:], 0.0) for m, row in zip(means, weights, strict=True)]
        )
        return -jnp.mean(elbos), unflatten(-total), self.rule.observe(state, joint)

    def particle(self, key: Key[Array, ""], params: Params, inputs: Inputs) -> "Particle":
        """One sample."""
        return Particle(self.model, self.guide, key, params, inputs)

    def weights(self, params: Params, state: MomentState, inputs: Inputs) -> dict[str, Array]:
        """The weights that the next step will use, by name."""
        names = self.names(params, inputs)
        if self.rule.by_leaf:
            names = tuple(f"{name}[{leaf}]" for leaf in sorted(params) for name in names)
        return dict(zip(names, self._weights(params, state).ravel(), strict=True))

    def stick_the_landing(self, key: Key[Array, ""], params: Params, inputs: Inputs) -> Float[Array, ""]:
        """Minus the ELBO, with a gradient without the scores of reparameterized sites."""

        def value(one: Key[Array, ""]) -> Float[Array, ""]:
            particle = self.particle(one, params, inputs)
            surrogate = particle.surrogate() + particle.path_scores()
            return jax.lax.stop_gradient(particle.elbo - surrogate) + surrogate

        return -jnp.mean(jax.vmap(value)(jax.random.split(key, self.num_particles)))

    def _weights(self, params: Params, state: MomentState) -> Float[Array, "*leaf variate"]:
        sizes = self._sizes(params)
        num_params = sizes if self.rule.by_leaf else sizes[0]
        return self.rule.weights(state, num_units=self.num_particles, num_params=num_params)

    def _sizes(self, params: Params) -> list[int]:
        """Lengths of the parts of the flat gradient that have weights of their own."""
        sizes = [jnp.size(params[name]) for name in sorted(params)]
        return sizes if self.rule.by_leaf else [sum(sizes)]


class Particle:
    """One sample of the guide's random variables, and the model at that sample, as functions of the parameters."""

    def __init__(
        self,
        model: Callable[..., Any],
        guide: Callable[..., Any],
        key: Key[Array, ""],
        params: Params,
        inputs: Inputs,
    ) -> None:
        """Run guide and model."""
        (args, kwargs), (model_key, guide_key) = inputs, jax.random.split(key)
        seeded = handlers.seed(guide, guide_key)
        self.model_sites, guide_sites = get_importance_trace(
            handlers.seed(model, model_key), seeded, args, kwargs, params
        )
        held = {
            name: jax.lax.stop_gradient(site["value"])
            for name, site in guide_sites.items()
            if site["type"] == "plate" or is_latent(site)
        }
        again = handlers.substitute(handlers.substitute(seeded, data=dict(params)), data=held)
        self.held_sites = handlers.trace(again).get_trace(*args, **kwargs)
        self.guide_sites = {name: site for name, site in guide_sites.items() if is_latent(site)}
        densities = [jnp.sum(site["log_prob"]) for site in self.model_sites.values() if site["type"] == "sample"]
        own = [jnp.sum(site["log_prob"]) for site in guide_sites.values() if site["type"] == "sample"]
        self.elbo = sum(densities, jnp.zeros(())) - sum(own, jnp.zeros(()))

    @property
    def num_data(self) -> Float[Array, ""]:
        """Number of observations, scaled up for a minibatch."""
        observed = [site for site in self.model_sites.values() if site["type"] == "sample" and site["is_observed"]]
        counts = [jnp.size(site["log_prob"]) * (1.0 if site["scale"] is None else site["scale"]) for site in observed]
        return jnp.maximum(sum(counts, jnp.zeros(())), 1.0)

    def surrogate(self) -> Float[Array, ""]:
        """The function whose gradient is the base gradient: the ELBO, plus scores of sites without `has_rsample`."""
        pathless = [site for site in self.guide_sites.values() if not site["fn"].has_rsample]
        # Their values are fixed already; the parameters of their distributions are not, and may be reparameterized.
        scores = [jnp.sum(site["fn"].log_prob(site["value"])) for site in pathless]
        return self.elbo + jax.lax.stop_gradient(self.elbo) * sum(scores, jnp.zeros(()))

    def path_scores(self) -> Float[Array, ""]:
        """Scores of the reparameterized sites, scaled as in the ELBO, where adding them cancels them."""
        sites = self.guide_sites
        scaled = [
            _scaled(score, sites[name]) for name, score in self._scores().items() if sites[name]["fn"].has_rsample
        ]
        return sum(scaled, jnp.zeros(()))

    def variates(self) -> dict[str, Float[Array, ""]]:
        """The functions whose gradients are the variates."""
        scores = {f"score({name})": value for name, value in self._scores().items()}
        if len(scores) > MOST_SITES:
            scores = {"score": sum(scores.values(), jnp.zeros(()))}
        return scores | self._expectations()

    def _scores(self) -> dict[str, Float[Array, ""]]:
        """Log densities of the sites at fixed latents, if they have one; a flow may have no inverse."""
        held = {name: self.held_sites[name] for name, site in self.guide_sites.items() if not _is_delta(site)}
        found = {name: _known(site["fn"].log_prob, site["value"]) for name, site in held.items()}
        return {name: jnp.sum(value) for name, value in found.items() if value is not None}

    def _expectations(self) -> dict[str, Float[Array, ""]]:
        """For each site, a sampled value minus its expectation, if NumPyro has it in closed form."""
        in_model = [name for name in self.model_sites if name in self.guide_sites]
        if not all(site["fn"].has_rsample for site in self.guide_sites.values()) or len(in_model) > MOST_SITES:
            return {}
        found = {}
        same_order = in_model == [name for name in self.guide_sites if name in in_model]
        for name, site in self.guide_sites.items():
            prior = self.model_sites.get(name) if same_order else None
            if prior is not None and _same_scale(prior["scale"], site["scale"]):
                kl = _known(dist.kl_divergence, site["fn"], prior["fn"])
                if kl is not None:
                    sampled = jnp.sum(site["log_prob"]) - jnp.sum(prior["log_prob"])
                    found[f"kl({name})"] = sampled - _scaled(kl, site)
                    continue
            if (entropy := _known(site["fn"].entropy)) is not None:
                found[f"entropy({name})"] = jnp.sum(site["log_prob"]) + _scaled(entropy, site)
        return found


def _known(function: Callable[..., Array], *args: Any) -> Array | None:
    try:
        return function(*args)
    except NotImplementedError:
        return None


def _same_scale(one: Any, two: Any) -> bool:
    """Whether two scales are known to be equal; traced values are not."""
    return one is two or (isinstance(one, int | float) and isinstance(two, int | float) and one == two)


def _scaled(values: Array, site: Site) -> Float[Array, ""]:
    return jnp.sum(values) if site["scale"] is None else site["scale"] * jnp.sum(values)


def _is_delta(site: Site) -> bool:
    return isinstance(base_distribution(site["fn"]), dist.Delta)
