# SPDX-License-Identifier: Apache-2.0
"""Several terms taken together, with one estimator and one weight for all of them."""

import functools

import equinox as eqx
from jaxtyping import Array, Float

from quell.evaluation import Batch, Evaluation, Problem
from quell.families.factored import FactoredGradient
from quell.models.quadratic import Quadratic
from quell.terms.base import AbstractTerm
from quell.terms.data import Data
from quell.terms.prior import Prior
from quell.terms.variational import Variational


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
            raise ValueError(
                f"`signs` was given as {self.signs} for {len(self.parts)} terms. One of +1 or -1 for each was needed. "
                "Write for example `Total((Data(), Prior()), (1, 1), 'joint')`."
            )

    @property
    def name(self) -> str:
        return self.label

    def transports(self, problem: Problem) -> tuple[str, ...]:
        offered = [part.transports(problem) for part in self.parts]
        return tuple(name for name in offered[0] if all(name in names for names in offered))

    def sampling(self, problem: Problem) -> str:
        return self.parts[0].sampling(problem)

    def values(self, evaluation: Evaluation, transport: str, *, full_data: bool) -> Float[Array, "sample"]:
        return self._sum([part.values(evaluation, transport, full_data=full_data) for part in self.parts])

    def grads(self, evaluation: Evaluation, transport: str, *, full_data: bool) -> Float[Array, "sample latent"]:
        return self._sum([part.grads(evaluation, transport, full_data=full_data) for part in self.parts])

    def expand(self, evaluation: Evaluation, anchor: Float[Array, "latent"], batch: Batch) -> Quadratic:
        raise NotImplementedError("a sum is expanded part by part")

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
