# SPDX-License-Identifier: Apache-2.0
"""Whether a log density is concave, addend by addend."""

import jax.numpy as jnp
import numpy as np

from quell.core.put import put
from quell.core.tiers import tiered_jit
from quell.structure.addends import Addends, Structure
from quell.structure.forms import Form
from quell.structure.instructions import run

REACH, POINTS = 1e3, 64
"""Up to which a linear function is followed to either side, and at how many points: closest around zero."""

ROUNDED = 8.0
"""Units of rounding of a value that a slope may owe to it."""

MOST_VALUES = 2**22
"""Of addends at points: with more of them nothing is said."""


def is_concave(structure: Structure) -> bool:
    """Whether a sum is concave because each of its addends is.

    That of a product shows in its factors: the negative of a square, of an exponential, of an absolute value. An addend
    with a program is tried: its slopes must fall from point to point, beyond rounding. One of several linear functions
    counts as not concave, and so does what was not understood.

    Args:
        structure: of a log density.

    Cost: a program for each group of addends with one of their own, after the others have been found concave.
    """
    groups = sorted(structure.groups, key=lambda group: bool(group.instructions))
    return structure.is_whole and all(
        _has_falling_slopes(group) if group.instructions else _is_concave_product(group) for group in groups
    )


def _is_concave_product(group: Addends) -> bool:
    weight, factors = group.weight, [group.functions[at] for at in group.factors]
    grows = np.zeros(weight.size, bool) if group.exponent is None else _varies(group.functions[group.exponent])
    if group.is_absolute:
        return bool(np.all((weight <= 0) & ~grows))
    varying = [_varies(one) for one in factors]
    is_fixed = ~np.any(varying, axis=0) if factors else np.ones(weight.size, bool)
    scale = weight * np.prod([one.offset for one in factors], axis=0) if factors else weight
    is_falling = is_fixed & (scale <= 0)
    is_straight = (np.sum(varying, axis=0) <= 1 if factors else is_fixed) & ~grows
    is_square = (weight <= 0) & ~grows & _are_same(*factors) if len(factors) == 2 else False
    return bool(np.all(is_falling | is_straight | is_square))


def _varies(form: Form) -> np.ndarray:
    """Which elements depend on the latent."""
    return np.any(form.weight != 0, axis=1)


def _are_same(one: Form, two: Form) -> np.ndarray:
    """Which elements are the same function, written in the same way."""
    if one.seen.shape != two.seen.shape:
        return np.zeros(one.size, bool)
    same = [np.all(here == there, axis=1) for here, there in zip(one[:2], two[:2], strict=True)]
    return same[0] & same[1] & (one.offset == two.offset)


def _has_falling_slopes(group: Addends) -> bool:
    if len(group.functions) > 1 or group.weight.size * POINTS > MOST_VALUES:
        return False
    points = np.sinh(np.linspace(-1, 1, POINTS) * np.arcsinh(REACH)).astype(jnp.result_type(float))
    constants = tuple(put(one) for one in group.constants)
    found = np.asarray(tiered_jit(run)(group.instructions, constants, [put(points[None])]))
    inside = _around_zero(np.all(np.isfinite(found), axis=0))  # exponentials leave what the precision can hold
    values, points = found[:, inside] * np.sign(group.weight)[:, None], points[inside]
    widths, sizes = np.diff(points), np.maximum(np.abs(values), 1.0)
    slopes = np.diff(values, axis=1) / widths
    rounding = ROUNDED * np.finfo(found.dtype).eps * np.maximum(sizes[:, 1:], sizes[:, :-1]) / widths
    falls = np.diff(slopes, axis=1) <= rounding[:, 1:] + rounding[:, :-1]
    return values.shape[1] > POINTS // 2 and bool(falls.all())


def _around_zero(holds: np.ndarray) -> slice:
    """The points in the middle, as far as it holds without a gap."""
    middle, fails = holds.size // 2, np.flatnonzero(~holds)
    return slice(max(fails[fails < middle] + 1, default=0), min(fails[fails >= middle], default=holds.size))
