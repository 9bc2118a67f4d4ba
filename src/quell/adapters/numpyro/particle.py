# SPDX-License-Identifier: Apache-2.0
"""One sample of a guide and the model at it, as functions of the parameters whose gradients are estimators."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array, Float, Key, PyTree
from numpyro import handlers
from numpyro.infer.util import compute_log_probs
from numpyro.primitives import Messenger

from quell.adapters.numpyro.call import Inputs
from quell.adapters.numpyro.trace import Site, base_distribution, is_latent

LogProbs = Mapping[str, Array]

Run = tuple[LogProbs, dict[str, Site]]
"""Log densities by site, and the trace."""

Values = Mapping[str, PyTree]
"""Of `param` and `mutable` sites, by name."""

MOST_SITES = 16
"""With more sites than this, their scores are added up to one variate."""

WIDEST_FLOW = 128
"""The score of a flow over more coordinates than this is left out: it takes one pass per coordinate."""


class Particle:
    """One sample of the guide's random variables, and the model at that sample, as functions of the parameters.

    Attributes:
        elbo: log density of the model minus that of the guide.
        mutable: values of the `mutable` sites after the run, by name.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        guide: Callable[..., Any],
        key: Key[Array, ""],
        values: Values,
        inputs: Inputs,
        *,
        is_multi_sample: bool = False,
    ) -> None:
        """Run guide and model."""
        (args, kwargs), (model_key, guide_key) = inputs, jax.random.split(key)
        seeded = handlers.seed(guide, guide_key)
        with _PathlessFixed():
            self.guide_log_probs, guide_sites = _log_probs(seeded, inputs, values)
        held = {
            name: jax.lax.stop_gradient(site["value"])
            for name, site in guide_sites.items()
            if site["type"] == "plate" or is_latent(site)
        }
        again = handlers.substitute(handlers.substitute(seeded, data=dict(values)), data=held)
        self.held_sites = handlers.trace(again).get_trace(*args, **kwargs)
        self.guide_sites = {name: site for name, site in guide_sites.items() if is_latent(site)}
        self.is_multi_sample = is_multi_sample
        run_model = _at_each_sample if is_multi_sample else _at_the_sample
        given = {**values, **_mutable(guide_sites)}  # the model sees what the guide has changed
        self.model_log_probs, self.model_sites = run_model(model, model_key, guide_sites, given, inputs)
        self.mutable = _mutable(guide_sites) | _mutable(self.model_sites)
        self.elbo = _total(self.model_log_probs) - _total(self.guide_log_probs)

    @property
    def num_data(self) -> Float[Array, ""]:
        """Number of observations, scaled up for a minibatch."""
        observed = [site for site in self.model_sites.values() if site["type"] == "sample" and site["is_observed"]]
        sizes = [jnp.size(self.model_log_probs[site["name"]]) for site in observed]
        counts = [
            size * (1.0 if site["scale"] is None else site["scale"]) for size, site in zip(sizes, observed, strict=True)
        ]
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
        """Functions whose gradients are the scores of the sites at fixed latents, where they can be had."""
        sites = self._random().items()
        found = {name: _flow_score(site) if _is_flow(site) else self._held(name) for name, site in sites}
        return {name: jnp.sum(value) for name, value in found.items() if value is not None}

    def _random(self) -> dict[str, Site]:
        """The guide's latent sites whose distributions are not points."""
        return {name: site for name, site in self.guide_sites.items() if not _is_delta(site)}

    def _held(self, name: str) -> Array | None:
        """The log density of a site at fixed latents, if it has one."""
        site = self.held_sites[name]
        return _known(site["fn"].log_prob, site["value"])

    def _expectations(self) -> dict[str, Float[Array, ""]]:
        """For each site, a sampled value minus its expectation, if NumPyro has it in closed form."""
        in_model = [name for name in self.model_sites if name in self.guide_sites]
        if not all(site["fn"].has_rsample for site in self.guide_sites.values()) or len(in_model) > MOST_SITES:
            return {}
        found = {}
        same_order = in_model == [name for name in self.guide_sites if name in in_model]
        for name, site in self._random().items():
            prior = self.model_sites.get(name) if same_order and not self.is_multi_sample else None
            if prior is not None and _same_scale(prior["scale"], site["scale"]):
                kl = _known(dist.kl_divergence, site["fn"], prior["fn"])
                if kl is not None:
                    sampled = jnp.sum(self.guide_log_probs[name]) - jnp.sum(self.model_log_probs[name])
                    found[f"kl({name})"] = sampled - _scaled(kl, site)
                    continue
            if (entropy := _known(site["fn"].entropy)) is not None:
                found[f"entropy({name})"] = jnp.sum(self.guide_log_probs[name]) + _scaled(entropy, site)
        return found


class _PathlessFixed(Messenger):
    """Stops gradients at sites without `has_rsample`, as NumPyro's losses for discrete sites do."""

    def postprocess_message(self, msg: Site) -> None:
        if is_latent(msg) and not msg["fn"].has_rsample:
            msg["value"], msg["intermediates"] = jax.lax.stop_gradient(msg["value"]), None


def _log_probs(fn: Callable[..., Any], inputs: Inputs, values: Values) -> Run:
    """Run a function with primitives."""
    args, kwargs = inputs
    return compute_log_probs(fn, args, dict(kwargs), dict(values), sum_log_prob=False)


def _at_the_sample(
    model: Callable[..., Any], key: Key[Array, ""], guide_sites: Any, values: Values, inputs: Inputs
) -> Run:
    """The model at the guide's sample."""
    return _log_probs(handlers.replay(handlers.seed(model, key), guide_sites), inputs, values)


def _at_each_sample(
    model: Callable[..., Any], key: Key[Array, ""], guide_sites: Any, values: Values, inputs: Inputs
) -> Run:
    """The model at each of the samples that one run of the guide proposes; the trace is that of the first."""
    plates = {name: site["value"] for name, site in guide_sites.items() if site["type"] == "plate"}
    proposed = [site for site in guide_sites.values() if is_latent(site) or site["type"] == "deterministic"]
    samples = {site["name"]: site["value"] for site in proposed if jnp.size(site["value"])}

    def run(one: Key[Array, ""], sample: dict[str, Array]) -> Run:
        return _log_probs(handlers.substitute(handlers.seed(model, one), data=sample | plates), inputs, values)

    keys = jax.random.split(key, len(next(iter(samples.values()))))
    log_probs = jax.vmap(lambda *sample: run(*sample)[0])(keys, samples)
    return log_probs, run(keys[0], jax.tree.map(lambda leaf: leaf[0], samples))[1]


def _mutable(sites: Mapping[str, Site]) -> dict[str, PyTree]:
    return {name: site["value"] for name, site in sites.items() if site["type"] == "mutable"}


def _total(log_probs: LogProbs) -> Float[Array, ""]:
    return sum((jnp.sum(value) for value in log_probs.values()), jnp.zeros(()))


def _is_flow(site: Site) -> bool:
    """Whether a sample went through transforms with a network, whose inverse is slow or unknown."""
    return any(inner is not None for _, inner in site["intermediates"] or ())


def _flow_score(site: Site) -> Float[Array, "..."] | None:
    r"""A function whose gradient is the score of a flow \(z = T_w(x)\) at fixed \(z\), without inverting it.

    The derivative of \(\log q_w(T_w(x))\) is the score plus \(\nabla_z \log q_w \cdot \partial_w T_w\), and
    \(\nabla_z \log q_w\) solves a linear system with the Jacobian of \(T_w\), which is one matrix per element of the
    site's batch.

    References: Vaitl et al. (2022), section 3.
    """
    fn, x = site["fn"], jax.lax.stop_gradient(site["intermediates"][0][0])
    if fn.event_dim != 1 or x.shape != site["value"].shape or x.shape[-1] > WIDEST_FLOW:
        return None

    def push(x: Array) -> tuple[Array, Float[Array, ""]]:
        steps = []
        for transform in fn.transforms:
            before = x
            x, inner = transform.call_with_intermediates(before)
            steps.append([before, inner])
        return x, jnp.sum(fn.log_prob(x, steps))

    def along(direction: Float[Array, "latent"]) -> Array:
        return jax.jvp(lambda at: push(at)[0], (x,), (jnp.broadcast_to(direction, x.shape),))[1]

    jacobian = jnp.moveaxis(jax.vmap(along)(jnp.eye(x.shape[-1], dtype=x.dtype)), 0, -2)
    slope = jax.grad(lambda at: push(at)[1])(x)
    grad_z = jnp.linalg.solve(jacobian, slope[..., None])[..., 0]
    total = fn.log_prob(site["value"], site["intermediates"])
    return total - jnp.sum(jax.lax.stop_gradient(grad_z) * site["value"], axis=-1)


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
