# SPDX-License-Identifier: Apache-2.0
"""Addends that are polynomials times exponentials of linear functions, multiplied out."""

import functools
from typing import NamedTuple

import numpy as np

from quell.structure.forms import Form
from quell.structure.parts import NotUnderstood, parts_of, same_block
from quell.structure.reading import Reading

MOST_MONOMIALS = 16
"""That a polynomial may have."""


class Monomial(NamedTuple):
    """A number times linear functions, or the absolute value of one, times the exponential of one; for each addend."""

    weight: np.ndarray
    factors: tuple[Form, ...]
    exponent: Form | None
    is_absolute: bool = False


def polynomial_of(reading: Reading, numbers: np.ndarray) -> list[Monomial]:
    """Unknowns, one of each addend, as sums of monomials; `NotUnderstood` where they are none."""
    block = same_block(reading, numbers)
    at, ones = numbers - block.first, np.ones(numbers.size)
    if block.log is not None:
        return [Monomial(ones, (), block.log.taken(at))]

    def operand(number: int) -> list[Monomial]:
        return _polynomial(reading, block.operands[number].taken(at))

    if block.apply is None:
        raise NotUnderstood
    if block.name in ("square", "integer_pow"):
        whole = operand(0)
        if block.name == "square" or block.power == 2:
            return _multiplied(whole, whole)
    if block.name == "abs":
        inside = operand(0)
        if len(inside) == 1 and len(inside[0].factors) == 1 and not inside[0].is_absolute:
            return [inside[0]._replace(weight=np.abs(inside[0].weight), is_absolute=True)]
    if block.name == "mul":
        return _multiplied(operand(0), operand(1))
    if block.name == "div":
        below = operand(1)
        if len(below) == 1 and not below[0].factors:
            weight, _, exponent, _ = below[0]
            exponent = None if exponent is None else exponent.times(-1.0)
            return _multiplied(operand(0), [Monomial(1.0 / weight, (), exponent)])
    raise NotUnderstood


def _polynomial(reading: Reading, form: Form) -> list[Monomial]:
    """Linear functions of unknowns, one of each addend, as sums of monomials."""
    parts = parts_of(reading, form)
    found = []
    if parts.latent is not None:
        found.append(Monomial(np.ones(form.size), (Form(*parts.latent[:2], parts.offset),), None))
    elif np.any(parts.offset):
        found.append(Monomial(parts.offset, (), None))
    for numbers, weights in parts.unknowns:
        found += [one._replace(weight=one.weight * weights) for one in polynomial_of(reading, numbers)]
    if len(found) > MOST_MONOMIALS:
        raise NotUnderstood
    return found


def _multiplied(one: list[Monomial], two: list[Monomial]) -> list[Monomial]:
    if len(one) * len(two) > MOST_MONOMIALS:
        raise NotUnderstood
    found = []
    for first in one:
        for second in two:
            factors = (*first.factors, *second.factors)
            is_absolute = first.is_absolute or second.is_absolute
            if len(factors) > (1 if is_absolute else 2):
                raise NotUnderstood
            exponents = [each.exponent for each in (first, second) if each.exponent is not None]
            exponent = functools.reduce(Form.plus, exponents) if exponents else None
            found.append(Monomial(first.weight * second.weight, factors, exponent, is_absolute))
    return found
