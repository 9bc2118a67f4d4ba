# SPDX-License-Identifier: Apache-2.0
"""The variational distribution q."""

from quell.families.base import AbstractFamily as AbstractFamily
from quell.families.base import AbstractGradientAlgebra as AbstractGradientAlgebra
from quell.families.bernoulli import Bernoulli as Bernoulli
from quell.families.bernoulli import Logits as Logits
from quell.families.beta import Beta as Beta
from quell.families.beta import BetaParams as BetaParams
from quell.families.categorical import Categorical as Categorical
from quell.families.discrete import AbstractDiscreteFamily as AbstractDiscreteFamily
from quell.families.discrete import relaxed_name as relaxed_name
from quell.families.full_rank import FullRank as FullRank
from quell.families.gamma import Gamma as Gamma
from quell.families.gamma import GammaParams as GammaParams
from quell.families.location_scale import LocationScale as LocationScale
from quell.families.low_rank import LowRank as LowRank
from quell.families.low_rank_params import LowRankParams as LowRankParams
from quell.families.mean_field import MeanField as MeanField
from quell.families.product import Product as Product
