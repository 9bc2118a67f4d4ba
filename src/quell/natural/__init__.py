# SPDX-License-Identifier: Apache-2.0
"""Natural-gradient steps for Gaussian families, as an optax transformation."""

from quell.natural.geometry import AbstractGeometry as AbstractGeometry
from quell.natural.length import natural_sq_norm as natural_sq_norm
from quell.natural.schedule import harmonic_schedule as harmonic_schedule
from quell.natural.transformation import geometry_of as geometry_of
from quell.natural.transformation import has_natural_gradient as has_natural_gradient
from quell.natural.transformation import is_natural as is_natural
from quell.natural.transformation import natural_gradient as natural_gradient
from quell.natural.transformation import natural_num_data as natural_num_data
