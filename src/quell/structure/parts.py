# SPDX-License-Identifier: Apache-2.0
"""Linear functions of unknowns, taken apart for addends that are alike."""

from typing import NamedTuple

import numpy as np

from quell.structure.forms import Form
from quell.structure.reading import Block, Reading


class Split(Exception):
    """Addends that are not alike, with a label for each."""

    def __init__(self, labels: np.ndarray) -> None:
        """Keep the labels."""
        self.labels = labels


class NotUnderstood(Exception):
    """Addends that see too many linear functions, or an operation that is not understood."""


class Parts(NamedTuple):
    """Linear functions of unknowns, apart: the part in the latent, other unknowns, and a number."""

    latent: Form | None
    unknowns: list[tuple[np.ndarray, np.ndarray]]
    offset: np.ndarray


def parts_of(reading: Reading, form: Form) -> Parts:
    """Take linear functions apart; those of all rows must have as many unknowns of each kind."""
    form = form.merged()
    is_there = form.weight != 0
    is_latent = is_there & (form.seen < reading.dim)
    others = is_there & ~is_latent
    count = others.sum(axis=1)
    if form.width and (count != count[0]).any():
        raise Split(count)
    has_latent = is_latent.any(axis=1)
    if form.width and (has_latent != has_latent[0]).any():
        raise Split(has_latent)
    unknowns = []
    if form.width and count[0]:
        seen, weight = form.seen, form.weight
        if not others.all():
            order = np.argsort(~others, axis=1, kind="stable")[:, : count[0]]
            seen, weight = (np.take_along_axis(part, order, 1) for part in (seen, weight))
        unknowns = list(zip(seen.T, weight.T, strict=True))
    latent = None
    if form.width and has_latent[0]:
        if others.any():
            latent = Form(
                np.where(is_latent, form.seen, form.seen[:, :1]),
                np.where(is_latent, form.weight, 0.0),
                0 * form.offset,
            )
            latent = latent.merged()
        else:
            latent = Form(form.seen, form.weight, np.zeros_like(form.offset, dtype=float))
    return Parts(latent, unknowns, form.offset)


def same_block(reading: Reading, numbers: np.ndarray) -> Block:
    """The block that all these unknowns are of; `Split` where they are of several."""
    labels = np.searchsorted(reading.firsts, numbers, side="right") - 1
    if (labels != labels[0]).any():
        raise Split(labels)
    return reading.blocks[int(labels[0])]
