# SPDX-License-Identifier: Apache-2.0
"""The addends of a log density, in groups of one program each, and the linear functions of the latent they see."""

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from quell.structure.forms import Form, concatenated
from quell.structure.instructions import Builder, Instruction, run
from quell.structure.parts import NotUnderstood, Split
from quell.structure.polynomials import polynomial_of
from quell.structure.reading import Reading
from quell.structure.squares import Squares, fewer, same_rows

NARROW = 8
"""Coordinates that a linear function sees, up to which products share a group."""

MOST_COMPARED = 32
"""Numbers of an addend, up to which those that are the same are found."""

MOST_FUNCTIONS, MOST_WIDE = 3, 256
"""Linear functions that an addend may see; up to two more where there are not more than so many of these addends. Each
takes a thousand nodes, and draws would take fewer for many."""

MOST_GROUPS = 128
"""With more of them a program is not worth compiling: the other addends are sampled."""


@dataclasses.dataclass(eq=False)
class Addends:
    """Addends of one program.

    Attributes:
        weight: that each has in the log density.
        row: which of several sums each is of.
        functions: linear functions of the latent that an addend sees, each for all addends.
        instructions: what it does with them; empty for a product.
        constants: numbers beside them, one for each addend or one for all.
        factors: of a product, up to two: numbers of functions.
        is_absolute: whether its one factor is an absolute value.
        exponent: of a product of them with an exponential: the number of a function.
    """

    weight: np.ndarray
    row: np.ndarray
    functions: list[Form]
    instructions: tuple[Instruction, ...] = ()
    constants: tuple[np.ndarray, ...] = ()
    factors: tuple[int, ...] = ()
    exponent: int | None = None
    is_absolute: bool = False


class Structure(NamedTuple):
    """A log density as a sum.

    Args:
        constant: what does not depend on the latent.
        slope: of the part that is linear in it.
        groups: of addends with few linear functions each.
        num_others: addends that were not understood.
    """

    constant: float
    slope: np.ndarray
    groups: list[Addends]
    num_others: int

    @property
    def is_whole(self) -> bool:
        """Whether all addends were understood."""
        return not self.num_others


def structure_of(reading: Reading, total: Form) -> Structure:
    """Sort the addends of a sum into groups.

    Args:
        reading: of a program.
        total: one number of it.
    """
    total = total.merged()
    index, weight = total.seen.ravel(), total.weight.ravel()
    slope, is_linear = np.zeros(reading.dim), index < reading.dim
    np.add.at(slope, index[is_linear], weight[is_linear])
    index, weight = index[~is_linear], weight[~is_linear]
    groups, constant, num_others = _groups(reading, index, weight, np.zeros(index.size, int))
    groups = [_distinct(one) for one in _joined([_fewer_squares(one) for one in groups])]
    return Structure(float(total.offset) + constant, slope, groups, num_others)


def structure_of_rows(reading: Reading, sums: Form) -> Structure:
    """Sort the addends of several sums into groups, without constants; what is linear in the latent is a group too.

    Args:
        reading: of a program.
        sums: an array of it, with one axis.
    """
    sums = sums.merged()
    is_there = sums.weight != 0
    is_linear = is_there & (sums.seen < reading.dim)
    linear = Form(np.where(is_linear, sums.seen, 0), np.where(is_linear, sums.weight, 0.0), sums.offset).merged()
    rows = np.broadcast_to(np.arange(sums.size)[:, None], sums.seen.shape)
    others = is_there & ~is_linear
    groups, _, num_others = _groups(reading, sums.seen[others], sums.weight[others], rows[others])
    if is_linear.any():
        groups.append(Addends(np.ones(sums.size), np.arange(sums.size), [linear], factors=(0,)))
    return Structure(0.0, np.zeros(reading.dim), _joined(groups), num_others)


def _groups(
    reading: Reading, index: np.ndarray, weight: np.ndarray, row: np.ndarray
) -> tuple[list[Addends], float, int]:
    """Groups of addends of one program each, the sum of those that are constant, and the number of the others."""
    of_block = np.searchsorted(reading.firsts, index, side="right") - 1
    waiting = [tuple(part[of_block == block] for part in (index, weight, row)) for block in np.unique(of_block)]
    groups, num_others, constant = [], 0, 0.0
    while waiting:
        addends = waiting.pop()
        try:
            if len(groups) + len(waiting) > MOST_GROUPS:
                raise NotUnderstood
            try:
                found = _products(reading, *addends)
            except NotUnderstood:
                found = [_program(reading, *addends)]
            constant += sum(_constant(one) for one in found if not one.functions)
            groups += [one for one in found if one.functions]
        except Split as split:
            waiting += [tuple(part[split.labels == label] for part in addends) for label in np.unique(split.labels)]
        except NotUnderstood:
            num_others += addends[0].size
    return _summed(groups), constant, num_others


def _summed(groups: list[Addends]) -> list[Addends]:
    r"""Programs of the same functions as one: so kinks cancel, as in \(\max(u, 0) + \log(1 + e^{-|u|})\)."""
    found: list[Addends] = []
    for group in groups:
        at = next((number for number, one in enumerate(found) if _see_the_same(one, group)), None)
        if at is None:
            found.append(group)
        else:
            found[at] = _sum(found[at], group)
    return found


def _see_the_same(one: Addends, two: Addends) -> bool:
    if not one.instructions or not two.instructions or len(one.functions) != len(two.functions):
        return False
    return np.array_equal(one.row, two.row) and all(map(_are_equal, one.functions, two.functions))


def _are_equal(one: Form, two: Form) -> bool:
    return one is two or all(map(np.array_equal, one, two))


def _sum(one: Addends, two: Addends) -> Addends:
    first, constants = len(one.instructions), len(one.constants)

    def moved(instruction: Instruction) -> Instruction:
        operands = (at + first if at >= 0 else at for at in instruction.operands)
        own = (at + constants if at >= 0 else at for at in instruction.constants)
        return Instruction(instruction.apply, tuple(operands), tuple(own))

    numbers = (*one.constants, *two.constants, one.weight, two.weight)
    ends, weights = (first - 1, first + len(two.instructions) - 1), (len(numbers) - 2, len(numbers) - 1)
    total = Instruction(None, ends, (*weights, -1))
    instructions = (*one.instructions, *map(moved, two.instructions), total)
    return Addends(np.ones_like(one.weight), one.row, one.functions, instructions, numbers)


def _constant(group: Addends) -> float:
    """The sum of addends that see nothing of the latent."""
    if not group.instructions:
        return float(np.sum(group.weight))
    values = run(group.instructions, tuple(jnp.asarray(one) for one in group.constants), [])
    return float(np.sum(group.weight * np.broadcast_to(np.asarray(values)[:, 0], group.weight.shape)))


def _fewer_squares(group: Addends) -> Addends:
    """A group of squares as one of fewer; others as they are."""
    if group.instructions or len(group.factors) != 2 or group.factors[0] != group.factors[1]:
        return group
    root, size = group.functions[group.factors[0]], group.weight.size
    none = Form(np.zeros((size, 0), int), np.zeros((size, 0)), np.zeros(size))
    found = fewer(Squares(group.weight, root, none if group.exponent is None else group.functions[group.exponent]))
    if found.weight.size == size:
        return group
    has_exponent = group.exponent is not None
    return Addends(
        weight=found.weight,
        row=np.zeros(found.weight.size, int),
        functions=[found.root, *([found.exponent] if has_exponent else [])],
        factors=(0, 0),
        exponent=1 if has_exponent else None,
    )


def _distinct(group: Addends) -> Addends:
    """Addends that are the same, such as those of rows with the same covariates and outcome, as one of more weight."""
    size = group.weight.size
    numbers = [group.row[:, None], *(part.reshape(size, -1) for one in group.functions for part in one)]
    numbers += [one.reshape(size, 1) for one in group.constants if one.size == size]
    if size == 1 or sum(one.shape[1] for one in numbers) > MOST_COMPARED:
        return group
    first, at = same_rows(np.concatenate(numbers, axis=1))
    if first.size == size:
        return group
    return dataclasses.replace(
        group,
        weight=np.bincount(at, group.weight, first.size),
        row=group.row[first],
        functions=[one.taken(first) for one in group.functions],
        constants=tuple(one[first] if one.size == size else one for one in group.constants),
    )


def _products(reading: Reading, numbers: np.ndarray, weights: np.ndarray, row: np.ndarray) -> list[Addends]:
    """Addends as sums of products whose expectations are known; refused where they are not."""
    found = []
    for weight, factors, exponent, is_absolute in polynomial_of(reading, numbers):
        forms = factors[:1] if len(factors) == 2 and _are_equal(*factors) else factors
        found.append(
            Addends(
                weight=weights * weight,
                row=row,
                functions=[*forms, *([] if exponent is None else [exponent])],
                factors=tuple(min(at, len(forms) - 1) for at in range(len(factors))),
                exponent=None if exponent is None else len(forms),
                is_absolute=is_absolute,
            )
        )
    return found


def _joined(groups: list[Addends]) -> list[Addends]:
    """Products of functions that see few coordinates, all in one group: its program is short, and serves all."""
    products = [one for one in groups if not one.instructions and not one.is_absolute]
    narrow = [one for one in products if all(each.seen.shape[1] <= NARROW for each in one.functions)]
    if len(narrow) < 2:
        return groups

    def function(group: Addends, slot: int) -> Form:
        number = group.exponent if slot == 2 else group.factors[slot] if slot < len(group.factors) else None
        size = group.weight.size
        if number is None:
            return Form(np.zeros((size, 0), int), np.zeros((size, 0)), np.full(size, 0.0 if slot == 2 else 1.0))
        return group.functions[number]

    functions = [concatenated([function(one, slot) for one in narrow], 0) for slot in range(3)]
    weight, row = (np.concatenate(parts) for parts in zip(*((one.weight, one.row) for one in narrow), strict=True))
    joined = Addends(weight, row, functions, factors=(0, 1), exponent=2)
    return [one for one in groups if not any(one is each for each in narrow)] + [joined]


def _program(reading: Reading, numbers: np.ndarray, weights: np.ndarray, row: np.ndarray) -> Addends:
    builder = Builder(reading)
    builder.unknown(numbers)
    if len(builder.functions) > MOST_FUNCTIONS and numbers.size > MOST_WIDE:
        raise NotUnderstood
    return Addends(
        weight=weights,
        row=row,
        functions=builder.functions,
        instructions=tuple(builder.instructions),
        constants=tuple(builder.constants),
    )
