# SPDX-License-Identifier: Apache-2.0
"""A gradient with some of its variates, and the state that belongs to them."""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from quell.combine import NormalWishart, Rule
from quell.gradient import Gradient, GradientState


def keep_variates(gradient: Gradient, state: GradientState, keep: Sequence[int]) -> tuple[Gradient, GradientState]:
    """Leave out all variates but those at the given places; what the others have learned is kept.

    Args:
        gradient: with all variates.
        state: of that gradient.
        keep: places in its list of variates.
    """
    rows = np.ix_(*[[0, *(k + 1 for k in keep)]] * 2)
    smaller = eqx.tree_at(
        lambda g: (g.variates, g.rule),
        gradient,
        (tuple(gradient.variates[k] for k in keep), _rule(gradient.rule, list(keep))),
    )
    moments = jax.tree.map(lambda matrix: jnp.asarray(np.asarray(matrix)[rows]), state.moments)
    return smaller, GradientState(moments, tuple(state.variates[k] for k in keep))


def _rule(rule: Rule, keep: list[int]) -> Rule:
    if rule.prior is None:
        return rule
    gram, cross = (np.asarray(trace) for trace in (rule.prior.gram, rule.prior.cross))
    prior = NormalWishart(jnp.asarray(gram[keep][:, keep]), jnp.asarray(cross[keep]), rule.prior.strength)
    return Rule(rule.decay, rule.v0, prior)
