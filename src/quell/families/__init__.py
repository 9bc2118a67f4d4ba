# SPDX-License-Identifier: Apache-2.0
"""The variational distribution q: sampling, log density, and capabilities beyond them."""

from quell.families.algebra import AbstractGradientAlgebra as AbstractGradientAlgebra
from quell.families.base import AbstractFamily as AbstractFamily
from quell.families.base import Capability as Capability
from quell.families.bernoulli import Bernoulli as Bernoulli
from quell.families.bernoulli import Logits as Logits
from quell.families.beta import Beta as Beta
from quell.families.beta import BetaParams as BetaParams
from quell.families.categorical import Categorical as Categorical
from quell.families.discrete import AbstractDiscreteFamily as AbstractDiscreteFamily
from quell.families.factored import FactoredGradient as FactoredGradient
from quell.families.full_rank import FullRank as FullRank
from quell.families.gamma import Gamma as Gamma
from quell.families.gamma import GammaParams as GammaParams
from quell.families.geometry import AbstractGeometry as AbstractGeometry
from quell.families.location_scale import LocationScale as LocationScale
from quell.families.low_rank import LowRank as LowRank
from quell.families.low_rank_params import LowRankParams as LowRankParams
from quell.families.mean_field import MeanField as MeanField
from quell.families.product import Product as Product
from quell.families.sample import draw_latents as draw_latents
from quell.families.transport import CHOLESKY as CHOLESKY
from quell.families.transport import DIAGONAL as DIAGONAL
from quell.families.transport import MIRRORED as MIRRORED
from quell.families.transport import SAMPLE as SAMPLE
from quell.families.transport import SYMMETRIC as SYMMETRIC
from quell.families.transport import AbstractTransport as AbstractTransport
from quell.families.transport import Relaxation as Relaxation
from quell.families.transport import Transport as Transport
