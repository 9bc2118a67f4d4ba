# SPDX-License-Identifier: Apache-2.0
"""A gradient with some of its variates, and the state that belongs to them."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from quell.combine import NormalWishart, Rule
from quell.gradient import Gradient, GradientState


def keep_variates(gradient: Gradient, state: GradientState, keep: Sequence[int]) -> tuple[Gradient, GradientState]:
    """Leave out all variates but those at the given places; what the others have learned is kept.

    Args:
        gradient: with all variates.
        state: of that gradient.
        keep: places in its list of variates.
    """
    rows = [0, *(k + 1 for k in keep)]
    smaller = dataclasses.replace(
        gradient,
        variates=tuple(gradient.variates[k] for k in keep),
        rule=_rule(gradient.rule, list(keep)),
        active=None if gradient.active is None else tuple(gradient.active[k] for k in keep),
    )

    def cut(leaf: Array) -> Array:
        return leaf if leaf.ndim == 0 else jnp.asarray(np.asarray(leaf)[..., rows, :][..., rows])

    moments = jax.tree.map(cut, state.moments)
    return smaller, GradientState(moments, tuple(state.variates[k] for k in keep))


def used_variates(gradient: Gradient) -> list[int]:
    """Places of the variates that are in use."""
    return [k for k in range(len(gradient.variates)) if gradient.active is None or gradient.active[k]]


def _rule(rule: Rule, keep: list[int]) -> Rule:
    if rule.prior is None:
        return rule
    gram, cross = (np.asarray(trace) for trace in (rule.prior.gram, rule.prior.cross))
    prior = NormalWishart(jnp.asarray(gram[keep][:, keep]), jnp.asarray(cross[keep]), rule.prior.strength)
    return dataclasses.replace(rule, prior=prior)
