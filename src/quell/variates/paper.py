# SPDX-License-Identifier: Apache-2.0
"""The seven variates of the paper's experiments, each one expression of the recipe."""

from quell.approximations import TaylorInData, TaylorInLatent
from quell.estimators import ClosedForm, Reparameterization
from quell.families import SYMMETRIC
from quell.terms import Data, Prior, Variational
from quell.variates.recipe import ControlVariate

RP1 = Reparameterization()
RP2 = Reparameterization(SYMMETRIC)
RP1_ALL = Reparameterization(full_data=True)
RP2_ALL = Reparameterization(SYMMETRIC, full_data=True)
CF = ClosedForm()

VARIATES = {
    "c1": ControlVariate(Variational(), RP1, CF, label="c1"),
    "c2": ControlVariate(Prior(), RP1, CF, label="c2"),
    "c3": ControlVariate(Prior(), RP1, RP2, label="c3"),
    "c4": ControlVariate(Data(), RP1, RP2, label="c4"),
    "c5": ControlVariate(Data(), RP1, RP1_ALL, approximation=TaylorInData(), label="c5"),
    "c6": ControlVariate(Data(), RP2, RP2_ALL, approximation=TaylorInData(), label="c6"),
    "c7": ControlVariate(Data(), RP1, CF, approximation=TaylorInLatent(), label="c7"),
}
"""The paper's seven variates by name (section 5)."""
