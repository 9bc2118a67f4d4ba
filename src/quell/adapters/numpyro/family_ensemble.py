# SPDX-License-Identifier: Apache-2.0
"""Ensembles for NumPyro's Gaussian autoguides, which are quell families in other parameters."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree
from numpyro.infer import autoguide

from quell.adapters.numpyro.addends import Likelihood
from quell.adapters.numpyro.call import Call, Inputs
from quell.adapters.numpyro.checks import first_structure
from quell.adapters.numpyro.model import NumPyroModel, build
from quell.adapters.numpyro.structure import Access, Structure
from quell.approximations import AnchoredQuadratic
from quell.combine import Rule
from quell.estimators import ClosedForm
from quell.evaluation import Problem, Sampler
from quell.families import AbstractFamily, FullRank, LocationScale, LowRank, LowRankParams, MeanField
from quell.gradient import Gradient, GradientState, default_variates
from quell.models import ModelError
from quell.variates import ControlVariate

Params = Mapping[str, Array]

_GUIDES = (
    autoguide.AutoDiagonalNormal,
    autoguide.AutoNormal,
    autoguide.AutoMultivariateNormal,
    autoguide.AutoLowRankMultivariateNormal,
)


def knows(guide: Any) -> bool:
    """Whether a guide is a quell family."""
    return type(guide) in _GUIDES


def _family(guide: Any, structure: Structure) -> tuple[AbstractFamily, Callable[[Params], PyTree]]:
    """A guide as a family, with the map from the guide's constrained parameters to the family's."""
    dim = structure.latent_dim

    def named(params: Params, *fields: str) -> list[Array]:
        return [params[f"{guide.prefix}_{field}"] for field in fields]

    def of_sites(params: Params, field: str) -> Float[Array, "latent"]:
        return jnp.concatenate([params[f"{name}_{guide.prefix}_{field}"].ravel() for name in structure.names])

    def low_rank(params: Params) -> LowRankParams:
        loc, scale, factor = named(params, "loc", "scale", "cov_factor")
        return LowRankParams(loc, jnp.log(scale), factor * scale[:, None])

    if isinstance(guide, autoguide.AutoMultivariateNormal):
        return FullRank(dim, log_scale=False), lambda params: LocationScale(*named(params, "loc", "scale_tril"))
    if isinstance(guide, autoguide.AutoLowRankMultivariateNormal):
        return LowRank(dim, round(dim**0.5) if guide.rank is None else guide.rank), low_rank
    if isinstance(guide, autoguide.AutoNormal):
        by_site = MeanField(dim, log_scale=False)
        return by_site, lambda params: LocationScale(of_sites(params, "loc"), of_sites(params, "scale"))
    return MeanField(dim, log_scale=False), lambda params: LocationScale(*named(params, "loc", "scale"))


@dataclasses.dataclass(frozen=True)
class FamilyEnsemble:
    """The combined gradient of a guide for which `knows` is true; `EnsembleELBO` documents the settings."""

    model: Callable[..., Any]
    guide: Any
    variates: tuple[ControlVariate, ...] | None
    num_particles: int
    rule: Rule
    same_data: bool = False

    def init(self, params: Params, inputs: Inputs) -> GradientState:
        """The state before the first step."""
        gradient, to_params = self.gradient(inputs)
        return gradient.init(to_params(params))

    def update(
        self, key: Key[Array, ""], params: Params, state: GradientState, inputs: Inputs
    ) -> tuple[Float[Array, ""], PyTree, GradientState, dict[str, Array]]:
        """The loss, its gradient with respect to the constrained parameters, the next state and no mutable sites."""
        gradient, to_params = self.gradient(inputs)
        family_params, pull_back = jax.vjp(to_params, dict(params))
        loss_grad, state, info = gradient.update(key, family_params, state)
        num_data = gradient.problem.model.num_data
        return -info.elbo, pull_back(jax.tree.map(lambda leaf: num_data * leaf, loss_grad))[0], state, {}

    def forget_data(self, state: GradientState, inputs: Inputs) -> GradientState:
        """The state without quadratics of earlier data; the moments of the variates stay."""
        gradient, _ = self.gradient(inputs)
        pairs = zip(gradient.variates, state.variates, strict=True)
        variates = tuple(v.init(gradient.problem) if _keeps_data(v) else kept for v, kept in pairs)
        return GradientState(state.moments, variates)

    def weights(self, params: Params, state: GradientState, inputs: Inputs) -> dict[str, Array]:
        """The weights that the next step will use, by name."""
        gradient, _ = self.gradient(inputs)
        return dict(zip(gradient.weight_names, gradient.weights(state).ravel(), strict=True))

    def gradient(self, inputs: Inputs) -> tuple[Gradient, Callable[[Params], PyTree]]:
        """The gradient for one set of arguments, and the map from the guide's parameters to the family's."""
        model = _model_of_step(self.model, inputs, self.guide)
        family, to_params = _family(self.guide, model.structure)
        sampler = Sampler(self.num_particles, model.structure.subsample_size)
        problem = Problem(model, family)
        variates = default_variates(problem, sampler) if self.variates is None else self.variates
        if not self.same_data:
            variates = tuple(_without_kept_data(variate) for variate in variates)
        return Gradient(problem, variates, sampler=sampler, rule=self.rule), to_params


def _without_kept_data(variate: ControlVariate) -> ControlVariate:
    """An anchored variate both of whose estimators use the minibatch, so that its quadratic may be of other data."""
    if not _keeps_data(variate) or variate.right != ClosedForm(full_data=True):
        return variate
    return ControlVariate(variate.term, variate.left, ClosedForm(), variate.approximation, variate.label)


def _keeps_data(variate: ControlVariate) -> bool:
    return isinstance(variate.approximation, AnchoredQuadratic)


def _model_of_step(model: Callable[..., Any], inputs: Inputs, guide: Any) -> NumPyroModel:
    """A model for the arguments of one step, which may be traced, because only their shapes are used.

    The plate that the model subsamples is restricted to our rows. If the arguments are a minibatch themselves, plates
    stay as they are. The flat latent has the order of the guide's.
    """
    try:
        call = Call(model, inputs)
        structure = first_structure(call)
    except ModelError:
        call = Call(model, inputs, is_minibatch=True)
        structure = dataclasses.replace(first_structure(call), subsample_size=None)
    if isinstance(guide, autoguide.AutoContinuous):
        order: Any = guide._unpack_latent(jnp.zeros(guide.latent_dim))  # a tree map would sort the names
        shapes = tuple(leaf.shape for leaf in order.values())
        structure = dataclasses.replace(structure, names=tuple(order), shapes=shapes)
    access = Access.GATHERED if structure.subsample_size is None else Access.INDEXED
    return build(Likelihood(call, structure, access))
