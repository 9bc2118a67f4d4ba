# SPDX-License-Identifier: Apache-2.0
"""Control variates in a NumPyro script, by changing one line."""

import dataclasses
import functools
import inspect
import warnings
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree
from numpyro import infer
from numpyro.optim import Minimize

from quell.adapters.numpyro import family_ensemble
from quell.adapters.numpyro.call import Inputs
from quell.adapters.numpyro.family_ensemble import FamilyEnsemble
from quell.adapters.numpyro.trace_ensemble import TraceEnsemble
from quell.combine import Rule
from quell.core.checks import check_count
from quell.gradient import list_variates
from quell.models import ModelError
from quell.variates import ControlVariate


class EnsembleELBO(infer.Trace_ELBO):
    """The ELBO, with gradients of lower variance through an ensemble of control variates.

    For `AutoDiagonalNormal`, `AutoNormal`, `AutoMultivariateNormal` and `AutoLowRankMultivariateNormal` the variates
    are those of `quell.fit`; for every other guide those that need only the densities of its sites. The weights are
    learned from step to step, which needs `quell.adapters.SVI`: NumPyro's own class keeps no state for a loss, and
    there this loss is sticking the landing, with a warning.

    Args:
        num_particles: samples per step.
        vectorize_particles: as in NumPyro's losses: whether to vectorize over the particles, or a function that maps
            over them. The particles of the guides above are always vectorized.
        multi_sample_guide: as in `Trace_ELBO`: whether one run of the guide proposes several samples.
        sum_sites: whether `loss` and `SVI.evaluate` add up the terms of the sites, or return them by name; steps follow
            the sum in either case.
        variates: for the guides above; by default the cheap ones that suit the problem.
        rule: how the weights are learned.
        same_data: whether all calls of `update` have the same arguments, as those of `run` have. Then statistics of
            all data are reused over many steps, and correct for a subsampled plate too.

    Bias: none, unless `same_data=True` and the arguments change.

    Example:
        >>> import jax, numpyro, numpyro.distributions as dist
        >>> from numpyro.infer.autoguide import AutoNormal
        >>> from quell.adapters import SVI, EnsembleELBO
        >>> def model(y):
        ...     mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
        ...     with numpyro.plate("data", y.shape[0]):
        ...         numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)
        >>> svi = SVI(model, AutoNormal(model), numpyro.optim.Adam(0.1), loss=EnsembleELBO())
        >>> result = svi.run(jax.random.key(0), 100, jax.numpy.arange(5.0), progress_bar=False)
        >>> sorted(result.params)
        ['mean_auto_loc', 'mean_auto_scale']
    """

    can_infer_discrete = True

    def __init__(
        self,
        num_particles: int = 1,
        *,
        vectorize_particles: bool | Callable[..., Any] = True,
        multi_sample_guide: bool = False,
        sum_sites: bool = True,
        variates: Iterable[ControlVariate] | None = None,
        rule: Rule | None = None,
        same_data: bool = False,
    ) -> None:
        """Check and store the settings."""
        check_count("num_particles", num_particles)
        how: Any = vectorize_particles
        super().__init__(num_particles, how, multi_sample_guide, sum_sites)
        self.variates = None if variates is None else list_variates(variates)
        self.rule = rule or Rule()
        self.same_data = same_data

    def ensemble(self, model: Callable[..., Any], guide: Callable[..., Any]) -> FamilyEnsemble | TraceEnsemble:
        """The ensemble for a guide."""
        if family_ensemble.knows(guide) and not self.multi_sample_guide:
            return FamilyEnsemble(model, guide, self.variates, self.num_particles, self.rule, self.same_data)
        if self.variates is not None:
            raise ValueError(
                "`variates` need one of NumPyro's Gaussian autoguides without `multi_sample_guide`, got "
                f"{type(guide).__name__}; leave them out, or try `AutoMultivariateNormal`."
            )
        return self.generic(model, guide)

    def generic(self, model: Callable[..., Any], guide: Callable[..., Any]) -> TraceEnsemble:
        """The ensemble that works for every guide."""
        vectorize: Any = self.vectorize_particles_fn
        return TraceEnsemble(model, guide, self.num_particles, self.rule, vectorize, self.multi_sample_guide)

    def without_variates(self) -> infer.Trace_ELBO:
        """NumPyro's loss with the same settings."""
        how: Any = self.vectorize_particles
        return infer.Trace_ELBO(self.num_particles, how, self.multi_sample_guide, self.sum_sites)

    def loss_with_mutable_state(
        self,
        rng_key: Key[Array, ""],
        param_map: dict[str, PyTree],
        model: Callable[..., Any],
        guide: Callable[..., Any],
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """The loss for NumPyro's own `SVI`, where weights are not learned."""
        if not self.sum_sites:
            return super().loss_with_mutable_state(rng_key, param_map, model, guide, *args, **kwargs)
        _warn_once()
        loss, mutable = self.generic(model, guide).stick_the_landing(rng_key, param_map, (args, kwargs))
        return {"loss": loss, "mutable_state": mutable or None}


@functools.cache
def _warn_once() -> None:
    warnings.warn(
        "NumPyro's own SVI keeps no state for a loss, so the weights of the variates cannot be learned, and the "
        "gradient is sticking the landing; try `from quell.adapters import SVI`.",
        stacklevel=4,
    )


class EnsembleSVIState(NamedTuple):
    """State of `SVI`: NumPyro's three fields, and the state of the ensemble."""

    optim_state: Any
    mutable_state: Any
    rng_key: Key[Array, ""]
    ensemble: PyTree


class SVI(infer.SVI):
    """NumPyro's `SVI`, which also carries the state of an `EnsembleELBO` from step to step.

    All methods are those of `numpyro.infer.SVI`: `init`, `update`, `stable_update`, `run`, `evaluate`, `get_params`.
    With any other loss it behaves like NumPyro's class.

    Args:
        model: with NumPyro primitives.
        guide: with NumPyro primitives.
        optim: of NumPyro, JAX or optax.
        loss: an `EnsembleELBO`.
        static_kwargs: of model and guide.
    """

    def __init__(self, model: Any, guide: Any, optim: Any, loss: Any = None, **static_kwargs: Any) -> None:
        """Store the settings; the loss is an `EnsembleELBO` by default."""
        loss = loss or EnsembleELBO()
        if isinstance(optim, Minimize) and isinstance(loss, EnsembleELBO):
            warnings.warn(
                "`Minimize` evaluates the loss at many points with the same samples, where variates have nothing to "
                "learn, so the loss is `Trace_ELBO`; try `numpyro.optim.Adam(0.01)` unless the guide is a point.",
                stacklevel=2,
            )
            loss = loss.without_variates()
        super().__init__(model, guide, optim, loss, **static_kwargs)
        self._ensemble: FamilyEnsemble | TraceEnsemble | None = None

    def init(self, rng_key: Any, *args: Any, init_params: Any = None, **kwargs: Any) -> Any:
        """The state before the first step."""
        state = super().init(rng_key, *args, init_params=init_params, **kwargs)
        if not isinstance(self.loss, EnsembleELBO):
            return state
        if state.mutable_state is not None and self.loss.num_particles > 1:
            warnings.warn(
                "The mutable state of a step is that of its first particle; NumPyro's losses ignore it if "
                "`num_particles` > 1.",
                stacklevel=2,
            )
        state, inputs = EnsembleSVIState(*state, ensemble=None), self._inputs(args, kwargs)
        one_particle = infer.Trace_ELBO(multi_sample_guide=self.loss.multi_sample_guide)
        jax.eval_shape(lambda: self._value(one_particle, state, inputs))  # for NumPyro's checks of model and guide
        self._ensemble = self.loss.ensemble(self.model, self.guide)
        params = self.get_params(state)
        try:
            learned = self._ensemble_at(state).init(params, inputs)
        except ModelError as error:  # for example a model with `param` sites
            if self.loss.variates is not None:
                raise
            warnings.warn(f"Using the variates for any guide, because: {error}", stacklevel=2)
            self._ensemble = self.loss.generic(self.model, self.guide)
            learned = self._ensemble_at(state).init(params, inputs)
        return state._replace(ensemble=learned)

    def update(self, svi_state: Any, *args: Any, forward_mode_differentiation: bool = False, **kwargs: Any) -> Any:
        """One step: the new state and the loss."""
        mode = forward_mode_differentiation
        if self._ensemble is None:
            return super().update(svi_state, *args, forward_mode_differentiation=mode, **kwargs)
        ensemble = self._ensemble_at(svi_state, is_forward=mode)
        return self._step(ensemble, self.optim.eval_and_update, svi_state, self._inputs(args, kwargs))

    def stable_update(
        self, svi_state: Any, *args: Any, forward_mode_differentiation: bool = False, **kwargs: Any
    ) -> Any:
        """One step, which is skipped if the loss or its gradient is not finite."""
        mode = forward_mode_differentiation
        if self._ensemble is None:
            return super().stable_update(svi_state, *args, forward_mode_differentiation=mode, **kwargs)
        ensemble = self._ensemble_at(svi_state, is_forward=mode)
        state, loss = self._step(ensemble, self.optim.eval_and_stable_update, svi_state, self._inputs(args, kwargs))
        taken = jnp.isfinite(loss)
        new, old = ((one.mutable_state, one.ensemble) for one in (state, svi_state))
        mutable, learned = jax.tree.map(lambda new, old: jnp.where(taken, new, old), new, old)
        return state._replace(mutable_state=mutable, ensemble=learned), loss

    def run(self, rng_key: Any, num_steps: int, *args: Any, init_state: Any = None, **kwargs: Any) -> Any:
        """Many steps with the same arguments; options and result are those of `numpyro.infer.SVI.run`."""
        if not isinstance(self.loss, EnsembleELBO):
            return super().run(rng_key, num_steps, *args, init_state=init_state, **kwargs)
        if isinstance(init_state, EnsembleSVIState) and isinstance(self._ensemble, FamilyEnsemble):
            options = inspect.signature(infer.SVI.run).parameters
            inputs = self._inputs(args, {name: value for name, value in kwargs.items() if name not in options})
            kept = self._ensemble.forget_data(init_state.ensemble, inputs)
            init_state = init_state._replace(ensemble=kept)  # the state may come from steps on other data
        promised, self.loss.same_data = self.loss.same_data, True
        try:
            return super().run(rng_key, num_steps, *args, init_state=init_state, **kwargs)
        finally:
            self.loss.same_data = promised

    def evaluate(self, svi_state: Any, *args: Any, **kwargs: Any) -> Any:
        """The loss at the parameters of a state, at new samples; by site if the loss has `sum_sites=False`."""
        if not isinstance(self.loss, EnsembleELBO):
            return super().evaluate(svi_state, *args, **kwargs)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="mutable state is currently ignored")  # only here, where it ends
            return self._value(self.loss.without_variates(), svi_state, self._inputs(args, kwargs))

    def weights(self, svi_state: Any, *args: Any, **kwargs: Any) -> dict[str, Array]:
        """The weights of the variates that the next step will use, by name."""
        if self._ensemble is None:
            raise ValueError(
                "`weights` needs an `EnsembleELBO` and a call of `init` or `run` before; try "
                "`SVI(model, guide, optim, loss=EnsembleELBO())`."
            )
        ensemble, inputs = self._ensemble_at(svi_state), self._inputs(args, kwargs)
        return ensemble.weights(self.get_params(svi_state), svi_state.ensemble, inputs)

    def _inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Inputs:
        """The arguments of model and guide."""
        return args, {**kwargs, **self.static_kwargs}

    def _value(self, loss: Any, state: EnsembleSVIState, inputs: Inputs) -> Any:
        """The value of a loss at a state."""
        _, key = jax.random.split(state.rng_key)
        values = {**self.get_params(state), **(state.mutable_state or {})}
        return loss.loss(key, values, self.model, self.guide, *inputs[0], **inputs[1])

    def _ensemble_at(self, state: EnsembleSVIState, *, is_forward: bool = False) -> FamilyEnsemble | TraceEnsemble:
        """The ensemble with the settings and the mutable sites of one step."""
        if isinstance(self._ensemble, FamilyEnsemble):
            return dataclasses.replace(self._ensemble, same_data=self.loss.same_data)
        ensemble: Any = self._ensemble
        return dataclasses.replace(ensemble, is_forward=is_forward, mutable=state.mutable_state or {})

    def _step(
        self,
        ensemble: FamilyEnsemble | TraceEnsemble,
        optimise: Callable[..., Any],
        state: EnsembleSVIState,
        inputs: Inputs,
    ) -> tuple[EnsembleSVIState, Float[Array, ""]]:
        """One step of an optimiser on a function of the unconstrained parameters whose gradient is the combined one."""
        constrain: Any = self.constrain_fn  # set by `init`
        rng_key, step_key = jax.random.split(state.rng_key)

        def loss_fn(unconstrained: PyTree) -> tuple[Float[Array, ""], PyTree]:
            held = jax.lax.stop_gradient(unconstrained)
            params, pull_back = jax.vjp(constrain, held)
            loss, grads, *after = ensemble.update(step_key, params, state.ensemble, inputs)
            (grad,) = pull_back(grads)
            linear = jax.tree.map(lambda g, u, h: jnp.vdot(jax.lax.stop_gradient(g), u - h), grad, unconstrained, held)
            return jax.lax.stop_gradient(loss) + sum(jax.tree.leaves(linear)), jax.lax.stop_gradient(after)

        (loss, (learned, mutable)), optim_state = optimise(loss_fn, state.optim_state)
        return EnsembleSVIState(optim_state, mutable or None, rng_key, learned), loss
