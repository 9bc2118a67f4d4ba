# SPDX-License-Identifier: Apache-2.0
"""Control variates of the literature, each one expression of the recipe, by the names of their authors."""

from collections.abc import Callable
from typing import Any, NamedTuple

from quell.approximations import (
    AnchoredQuadratic,
    Baseline,
    Concrete,
    FittedQuadratic,
    JaakkolaJordan,
    Surrogate,
    TaylorInData,
    TaylorInLatent,
)
from quell.estimators import ClosedForm, ConditionalScoreFunction, Reparameterization, ScoreFunction
from quell.families import CHOLESKY, SYMMETRIC
from quell.terms import Data, Score, Variational, elbo, joint
from quell.variates.recipe import ControlVariate


def roeder() -> ControlVariate:
    """Sticking the landing with a learned weight: Monte Carlo minus closed-form entropy gradient."""
    return ControlVariate(Variational(), Reparameterization(), ClosedForm(), label="roeder")


def paisley_taylor() -> ControlVariate:
    """The log joint expanded in the latent: score function minus closed form."""
    return ControlVariate(
        joint(), ScoreFunction(), ClosedForm(), approximation=TaylorInLatent(), label="paisley-taylor"
    )


def paisley_bound() -> ControlVariate:
    """The log joint with the logistic likelihood bounded from below: score function minus closed form."""
    return ControlVariate(joint(), ScoreFunction(), ClosedForm(), approximation=JaakkolaJordan(), label="paisley-bound")


def miller() -> ControlVariate:
    """The data term expanded in the latent: reparameterization minus closed form."""
    return ControlVariate(Data(), Reparameterization(), ClosedForm(), approximation=TaylorInLatent(), label="miller")


def geffner_domke(**options: Any) -> ControlVariate:
    """A quadratic fitted to the gradients of the log joint: reparameterization minus closed form.

    Args:
        **options: of `FittedQuadratic`, such as `rate`.
    """
    fitted = FittedQuadratic(**options)
    return ControlVariate(joint(), Reparameterization(), ClosedForm(), approximation=fitted, label="geffner-domke")


def anchored(**options: Any) -> ControlVariate:
    """The data term as a quadratic around an anchor: on the minibatch minus in closed form on all data.

    Args:
        **options: of `AnchoredQuadratic`, such as `every`.
    """
    quadratic = AnchoredQuadratic(**options)
    full = ClosedForm(full_data=True)
    return ControlVariate(Data(), Reparameterization(), full, approximation=quadratic, label="anchored")


def wang() -> ControlVariate:
    """The data term expanded in the data: on the minibatch minus on all data."""
    full = Reparameterization(full_data=True)
    return ControlVariate(Data(), Reparameterization(), full, approximation=TaylorInData(), label="wang")


def rebar(temperature: float = 0.5) -> ControlVariate:
    """The ELBO of a relaxed discrete family: conditional score function minus reparameterization."""
    return ControlVariate(
        elbo(), ConditionalScoreFunction(), Reparameterization(), approximation=Concrete(temperature), label="rebar"
    )


def rebar_plain(temperature: float = 0.5) -> ControlVariate:
    """The ELBO of a relaxed discrete family: score function minus reparameterization."""
    return ControlVariate(
        elbo(), ScoreFunction(), Reparameterization(), approximation=Concrete(temperature), label="rebar-plain"
    )


def relax(network: Any, *, temperature: float = 0.5, **options: Any) -> ControlVariate:
    """A network in place of a discrete family's ELBO, trained by the variance: as REBAR, for any black box.

    Args:
        network: an Equinox module from a (relaxed) latent to a number.
        temperature: of the relaxation.
        **options: of `Surrogate`, such as `optimizer`.
    """
    surrogate = Surrogate(network, relaxation=Concrete(temperature), **options)
    return ControlVariate(
        elbo(), ConditionalScoreFunction(), Reparameterization(), approximation=surrogate, label="relax"
    )


def lax(network: Any, **options: Any) -> ControlVariate:
    """A network in place of a continuous family's ELBO, trained by the variance.

    Args:
        network: an Equinox module from a latent to a number.
        **options: of `Surrogate`, such as `optimizer`.
    """
    surrogate = Surrogate(network, **options)
    return ControlVariate(elbo(), ScoreFunction(), Reparameterization(), approximation=surrogate, label="lax")


def ranganath() -> ControlVariate:
    """The score itself, whose mean is zero."""
    return ControlVariate(Score(), ScoreFunction(), ClosedForm(), label="ranganath")


def leave_one_out() -> ControlVariate:
    """The score times the average objective of the other replicates."""
    return ControlVariate(elbo(), ScoreFunction(), ClosedForm(), approximation=Baseline(), label="leave-one-out")


def moving_average(decay: float = 0.1) -> ControlVariate:
    """The score times the average objective of earlier steps."""
    baseline = Baseline("moving-average", decay)
    return ControlVariate(elbo(), ScoreFunction(), ClosedForm(), approximation=baseline, label="moving-average")


def two_roots() -> ControlVariate:
    """The data term through the Cholesky factor minus through the symmetric square root of the covariance."""
    left, right = Reparameterization(CHOLESKY), Reparameterization(SYMMETRIC)
    return ControlVariate(Data(), left, right, label="two-roots")


class Entry(NamedTuple):
    """A variate of the literature.

    Attributes:
        make: the variate; some need an argument.
        reference: where it comes from.
        cost: of a step, beside the base gradient.
    """

    make: Callable[..., ControlVariate]
    reference: str
    cost: str


LITERATURE: dict[str, Entry] = {
    "roeder": Entry(roeder, "Roeder, Wu & Duvenaud (2017)", "one triangular solve per replicate"),
    "paisley-taylor": Entry(paisley_taylor, "Paisley, Blei & Jordan (2012)", "gradient and Hessian at the mean"),
    "paisley-bound": Entry(
        paisley_bound, "Paisley, Blei & Jordan (2012)", "one product of the minibatch with the scale"
    ),
    "miller": Entry(miller, "Miller, Foti, D'Amour & Adams (2017)", "gradient and Hessian at the mean"),
    "geffner-domke": Entry(geffner_domke, "Geffner & Domke (2020)", "`dim` squared operations per replicate"),
    "anchored": Entry(
        anchored,
        "this library; after Johnson & Zhang (2013)",
        "one gradient of the minibatch, and now and then one pass over all data",
    ),
    "wang": Entry(wang, "Wang, Chen, Smola & Xing (2013)", "one product with the data's covariance per replicate"),
    "rebar": Entry(rebar, "Tucker et al. (2017)", "two more gradients of the objective per replicate"),
    "rebar-plain": Entry(rebar_plain, "Tucker et al. (2017)", "one more gradient of the objective per replicate"),
    "relax": Entry(relax, "Grathwohl et al. (2018)", "the network's gradients, and one training step"),
    "lax": Entry(lax, "Grathwohl et al. (2018)", "the network's gradients, and one training step"),
    "ranganath": Entry(ranganath, "Ranganath, Gerrish & Blei (2014)", "the score"),
    "leave-one-out": Entry(leave_one_out, "Mnih & Rezende (2016); Kool et al. (2019)", "the score"),
    "moving-average": Entry(moving_average, "Mnih & Gregor (2014)", "the score"),
    "two-roots": Entry(two_roots, "Geffner & Domke (2018)", "one eigendecomposition, a full matrix per replicate"),
}
"""All of them, by name."""
