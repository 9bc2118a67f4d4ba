# SPDX-License-Identifier: Apache-2.0
"""Several terms taken together, with one estimator and one weight for all of them."""

import functools

import equinox as eqx

from quell.evaluation import Evaluation, Problem
from quell.families import AbstractTransport, FactoredGradient
from quell.terms.base import AbstractTerm, Latents, Values
from quell.terms.elbo import Data, Prior, Variational


class Total(AbstractTerm):
    r"""A sum of terms with signs; an approximation of it approximates those parts that it can.

    Args:
        parts: the terms.
        signs: +1 or -1 for each.
        label: its name.
    """

    parts: tuple[AbstractTerm, ...]
    signs: tuple[int, ...] = eqx.field(static=True)
    label: str = eqx.field(static=True)

    def __check_init__(self) -> None:
        """Refuse signs that do not belong to the parts."""
        if len(self.signs) != len(self.parts) or not set(self.signs) <= {1, -1} or not self.parts:
            raise ValueError(f"`signs` must be +1 or -1 for each of {len(self.parts)} terms, got {self.signs}.")

    @property
    def name(self) -> str:
        return self.label

    def transports(self, problem: Problem) -> tuple[AbstractTransport, ...]:
        offered = [part.transports(problem) for part in self.parts]
        return tuple(name for name in offered[0] if all(name in names for names in offered))

    def sampling(self, problem: Problem) -> AbstractTransport:
        return self.parts[0].sampling(problem)

    def values(self, evaluation: Evaluation, transport: AbstractTransport, *, full_data: bool) -> Values:
        return self._sum([part.values(evaluation, transport, full_data=full_data) for part in self.parts])

    def grads(self, evaluation: Evaluation, transport: AbstractTransport, *, full_data: bool) -> Latents:
        return self._sum([part.grads(evaluation, transport, full_data=full_data) for part in self.parts])

    def closed_form(self, evaluation: Evaluation, *, full_data: bool) -> FactoredGradient:
        return self._sum([part.closed_form(evaluation, full_data=full_data) for part in self.parts])

    def refuses_closed_form(self, problem: Problem) -> str | None:
        return next((reason for part in self.parts if (reason := part.refuses_closed_form(problem)) is not None), None)

    def _sum(self, values: list):
        signed = [value if sign > 0 else -value for value, sign in zip(values, self.signs, strict=True)]
        return functools.reduce(lambda one, two: one + two, signed)


def joint() -> Total:
    r"""The log joint: data and prior together, \(g_1 + g_2\)."""
    return Total((Data(), Prior()), (1, 1), "joint")


def elbo() -> Total:
    r"""Everything: \(g_1 + g_2 - g_3\), whose expectation is the gradient of the ELBO."""
    return Total((Data(), Prior(), Variational()), (1, 1, -1), "elbo")
