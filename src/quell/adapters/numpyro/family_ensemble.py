# SPDX-License-Identifier: Apache-2.0
"""Ensembles for NumPyro's Gaussian autoguides, which are quell families in other parameters."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree
from numpyro.infer import autoguide

from quell.adapters.numpyro.call import Call
from quell.adapters.numpyro.checks import first_structure
from quell.adapters.numpyro.likelihood import Likelihood
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


@dataclasses.dataclass(frozen=True)
class GuideFamily:
    """A guide as a family.

    Attributes:
        family: of quell.
        params: maps the guide's constrained parameters to the family's.
    """

    family: AbstractFamily
    params: Callable[[Params], PyTree]


def _diagonal(guide: Any, structure: Structure) -> GuideFamily:
    loc, scale = f"{guide.prefix}_loc", f"{guide.prefix}_scale"
    family = MeanField(structure.latent_dim, log_scale=False)
    return GuideFamily(family, lambda params: LocationScale(params[loc], params[scale]))


def _by_site(guide: Any, structure: Structure) -> GuideFamily:
    def flat(params: Params, what: str) -> Float[Array, "latent"]:
        return jnp.concatenate([params[f"{name}_{guide.prefix}_{what}"].ravel() for name in structure.names])

    family = MeanField(structure.latent_dim, log_scale=False)
    return GuideFamily(family, lambda params: LocationScale(flat(params, "loc"), flat(params, "scale")))


def _full_rank(guide: Any, structure: Structure) -> GuideFamily:
    loc, scale = f"{guide.prefix}_loc", f"{guide.prefix}_scale_tril"
    family = FullRank(structure.latent_dim, log_scale=False)
    return GuideFamily(family, lambda params: LocationScale(params[loc], params[scale]))


def _low_rank(guide: Any, structure: Structure) -> GuideFamily:
    names = [f"{guide.prefix}_{what}" for what in ("loc", "scale", "cov_factor")]
    rank = round(structure.latent_dim**0.5) if guide.rank is None else guide.rank

    def params(given: Params) -> LowRankParams:
        loc, scale, factor = (given[name] for name in names)
        return LowRankParams(loc, jnp.log(scale), factor * scale[:, None])

    return GuideFamily(LowRank(structure.latent_dim, rank), params)


_FAMILIES: dict[type, Callable[[Any, Structure], GuideFamily]] = {
    autoguide.AutoDiagonalNormal: _diagonal,
    autoguide.AutoNormal: _by_site,
    autoguide.AutoMultivariateNormal: _full_rank,
    autoguide.AutoLowRankMultivariateNormal: _low_rank,
}


def knows(guide: Any) -> bool:
    """Whether a guide is a quell family."""
    return type(guide) in _FAMILIES


@dataclasses.dataclass(frozen=True)
class FamilyEnsemble:
    """The combined gradient of a guide that is a quell family, for the arguments of each step.

    Attributes:
        model: with NumPyro primitives.
        guide: for which `knows` is true.
        variates: of the ensemble; `None` for the default.
        num_particles: replicates per step.
        rule: how the weights are learned.
        same_data: whether all steps have the same arguments.
    """

    model: Callable[..., Any]
    guide: Any
    variates: tuple[ControlVariate, ...] | None
    num_particles: int
    rule: Rule
    same_data: bool = False

    def init(self, params: Params, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> GradientState:
        """The state before the first step."""
        gradient, to_params = self.gradient(args, kwargs)
        return gradient.init(to_params(params))

    def update(
        self,
        key: Key[Array, ""],
        params: Params,
        state: GradientState,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> tuple[Float[Array, ""], PyTree, GradientState]:
        """The loss, its gradient with respect to the constrained parameters, and the next state."""
        gradient, to_params = self.gradient(args, kwargs)
        family_params, pull_back = jax.vjp(to_params, dict(params))
        loss_grad, state, info = gradient.update(key, family_params, state)
        num_data = gradient.problem.model.num_data
        return -info.elbo, pull_back(jax.tree.map(lambda leaf: num_data * leaf, loss_grad))[0], state

    def forget_data(self, state: GradientState, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> GradientState:
        """The state without quadratics of earlier data; the moments of the variates stay."""
        gradient, _ = self.gradient(args, kwargs)
        pairs = zip(gradient.variates, state.variates, strict=True)
        return GradientState(
            state.moments, tuple(v.init(gradient.problem) if _keeps_data(v) else kept for v, kept in pairs)
        )

    def weights(
        self, params: Params, state: GradientState, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> dict[str, Array]:
        """The weights that the next step will use, by name."""
        gradient, _ = self.gradient(args, kwargs)
        return dict(zip(gradient.weight_names, gradient.weights(state).ravel(), strict=True))

    def gradient(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Gradient, Callable[[Params], PyTree]]:
        """The gradient for one set of arguments, and the map from the guide's parameters to the family's."""
        model = numpyro_model(self.model, args, kwargs, _order(self.guide))
        known = _FAMILIES[type(self.guide)](self.guide, model.structure)
        sampler = Sampler(self.num_particles, model.structure.subsample_size)
        problem = Problem(model, known.family)
        variates = default_variates(problem, sampler) if self.variates is None else self.variates
        if not self.same_data:
            variates = tuple(_without_kept_data(variate) for variate in variates)
        return Gradient(problem, variates, sampler=sampler, rule=self.rule), known.params


def _without_kept_data(variate: ControlVariate) -> ControlVariate:
    """An anchored variate both of whose estimators use the minibatch, so that its quadratic may be of other data."""
    if not _keeps_data(variate) or variate.right != ClosedForm(full_data=True):
        return variate
    return ControlVariate(variate.term, variate.left, ClosedForm(), variate.approximation, variate.label)


def _keeps_data(variate: ControlVariate) -> bool:
    return isinstance(variate.approximation, AnchoredQuadratic)


def _order(guide: Any) -> dict[str, tuple[int, ...]] | None:
    """Names and shapes in the order of a guide's flat latent, if it has one."""
    if isinstance(guide, autoguide.AutoContinuous):
        unpacked: Any = guide._unpack_latent(jnp.zeros(guide.latent_dim))  # a tree map would sort the names
        return {name: leaf.shape for name, leaf in unpacked.items()}
    return None


def numpyro_model(
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    order: Mapping[str, tuple[int, ...]] | None,
) -> NumPyroModel:
    """A model for the arguments of one step, which may be traced, because only their shapes are used.

    The plate that the model subsamples is restricted to our rows. If the arguments are a minibatch themselves, plates
    stay as they are.
    """
    try:
        call = Call.of(model, args, kwargs)
        structure = first_structure(call)
    except ModelError:
        call = Call.of(model, args, kwargs, is_minibatch=True)
        structure = dataclasses.replace(first_structure(call), subsample_size=None)
    if order is not None:
        structure = dataclasses.replace(structure, names=tuple(order), shapes=tuple(order.values()))
    access = Access.GATHERED if structure.subsample_size is None else Access.INDEXED
    return build(Likelihood(call, structure, access))
