# SPDX-License-Identifier: Apache-2.0
"""The variational distribution q."""

from quell.families.base import AbstractFamily as AbstractFamily
from quell.families.base import AbstractParticles as AbstractParticles
from quell.families.full_rank import FullRank as FullRank
from quell.families.location_scale import LocationScale as LocationScale
from quell.families.mean_field import MeanField as MeanField
