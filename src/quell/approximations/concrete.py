# SPDX-License-Identifier: Apache-2.0
"""The concrete relaxation of a discrete family."""

from jaxtyping import PyTree

from quell.approximations.base import AbstractApproximation
from quell.core.checks import check_positive
from quell.evaluation import Evaluation, Problem
from quell.families import AbstractTransport, Capability, Relaxation
from quell.terms import AbstractTerm
from quell.terms.base import Latents, Values


class Concrete(AbstractApproximation):
    r"""Replace a discrete \(Z\) by a continuous one, \(\sigma(\text{hidden} / t)\) in place of a threshold.

    It is the distribution that is approximated here, not the function; so the likelihood must accept latents
    between the values of the discrete ones. The relaxed term has a path through its samples.

    Args:
        temperature: the width of the smooth step; small ones are close to the threshold and have steep gradients.

    Bias: none in a variate.
    Cost: as the term itself, at other latents.

    References: Maddison et al. (2017); Jang et al. (2017).
    """

    temperature: float = 0.5

    def __check_init__(self) -> None:
        """Refuse a temperature that is not positive."""
        check_positive("temperature", self.temperature)

    @property
    def name(self) -> str:
        return f"concrete-{self.temperature:g}"

    @property
    def by_parts(self) -> bool:
        return False

    def refuses(self, problem: Problem, term: AbstractTerm) -> str | None:
        return problem.family.refuses(Capability.RELAXATION)

    def init(self, problem: Problem) -> PyTree:
        return None

    def apply(self, term: AbstractTerm, state: PyTree) -> AbstractTerm:
        return Relaxed(term, float(self.temperature))


class Relaxed(AbstractTerm):
    """A term whose latents are relaxed.

    Args:
        term: what is inside.
        temperature: of the relaxation.
    """

    term: AbstractTerm
    temperature: float

    @property
    def name(self) -> str:
        return f"concrete({self.term.name})"

    def transports(self, problem: Problem) -> tuple[AbstractTransport, ...]:
        return (Relaxation(self.temperature),)

    def sampling(self, problem: Problem) -> AbstractTransport:
        return Relaxation(self.temperature)

    def values(self, evaluation: Evaluation, transport: AbstractTransport, *, full_data: bool) -> Values:
        return self.term.values(evaluation, transport, full_data=full_data)

    def grads(self, evaluation: Evaluation, transport: AbstractTransport, *, full_data: bool) -> Latents:
        return self.term.grads(evaluation, transport, full_data=full_data)

    def refuses_closed_form(self, problem: Problem) -> str | None:
        return "the expectation of a relaxed latent has no closed form"
