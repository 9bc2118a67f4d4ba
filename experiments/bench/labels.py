# SPDX-License-Identifier: Apache-2.0
"""Gradients in words, for tables."""

from quell.estimators import BonnetPrice, ClosedForm
from quell.gradient import Gradient


def gradient_text(gradient: Gradient) -> str:
    """A gradient in words."""
    if gradient.base.data == ClosedForm(full_data=True):
        return "exact gradient on all rows"
    used = gradient.active or (True,) * len(gradient.names)
    names = [name for name, is_used in zip(gradient.names, used, strict=True) if is_used]
    rows = structure_text(gradient.sampler.batch_size, gradient.sampler.num_replicates)
    base = "second order" if isinstance(gradient.base.data, BonnetPrice) else "base"
    return f"{rows}, {' + '.join([base, *names])}"


def structure_text(batch_size: int | None, num_samples: int) -> str:
    """What a step sees, in words."""
    rows = "all rows" if batch_size is None else f"minibatch {batch_size}"
    return f"{rows}, {num_samples} sample{'s' * (num_samples > 1)}"
