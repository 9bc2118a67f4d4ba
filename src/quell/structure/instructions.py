# SPDX-License-Identifier: Apache-2.0
"""The program of an addend, written for all addends that are alike."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from quell.structure.forms import Form
from quell.structure.parts import NotUnderstood, parts_of, same_block
from quell.structure.reading import Reading

MOST_FUNCTIONS = 5
"""Linear functions that an addend may depend on: nodes grow as a power of their number."""


class Instruction(NamedTuple):
    """One operation on all addends of a group.

    Args:
        apply: of the operands; `None` for a sum of them with weights.
        operands: numbers of instructions before; negative ones, `-1 - j`, are linear functions.
        constants: numbers of constants: weights and an offset of a sum, or `-1` for ones and zero.
    """

    apply: Callable[..., Any] | None
    operands: tuple[int, ...]
    constants: tuple[int, ...] = ()


def run(
    instructions: tuple[Instruction, ...], constants: tuple[Array, ...], functions: list[Float[Array, "#addend node"]]
) -> Float[Array, "#addend node"]:
    """The addends of a group, at nodes.

    Args:
        instructions: of the program.
        constants: one number for each addend, or one for all.
        functions: values of the linear functions.
    """
    found: list[Array] = []

    def operand(number: int) -> Array:
        return functions[-1 - number] if number < 0 else found[number]

    def constant(number: int) -> Array:
        return constants[number][:, None]

    for apply, operands, own in instructions:
        given = [operand(number) for number in operands]
        if apply is not None:
            found.append(apply(*given))
            continue
        *scales, offset = own
        terms = [one if scale < 0 else constant(scale) * one for one, scale in zip(given, scales, strict=True)]
        terms += [] if offset < 0 else [constant(offset)]
        found.append(functools.reduce(jnp.add, terms))
    return found[-1]


class Builder:
    """Instructions for the elements of one block."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self.functions: list[Form] = []
        self.instructions: list[Instruction] = []
        self.constants: list[np.ndarray] = []
        self.seen: dict[bytes, int] = {}

    def unknown(self, numbers: np.ndarray) -> int:
        """The number of the instruction for one unknown of each addend."""
        key = numbers.tobytes()
        if key in self.seen:
            return self.seen[key]
        block = same_block(self.reading, numbers)
        if block.apply is None:
            raise NotUnderstood
        at = numbers - block.first
        operands = tuple(self.operand(form.taken(at)) for form in block.operands)
        self.seen[key] = self.add(Instruction(block.apply, operands))
        return self.seen[key]

    def add(self, instruction: Instruction) -> int:
        self.instructions.append(instruction)
        return len(self.instructions) - 1

    def operand(self, form: Form) -> int:
        """The number of the instruction for a linear function of unknowns."""
        parts = parts_of(self.reading, form)
        operands, constants = [], []
        if parts.latent is not None:
            number, scale, shift = self.function(parts.latent)
            operands.append(-1 - number)
            constants.append(self.constant(scale))
            parts = parts._replace(offset=parts.offset + shift)
        for numbers, weights in parts.unknowns:
            operands.append(self.unknown(numbers))
            constants.append(self.constant(weights))
        if len(operands) == 1 and constants == [-1] and not np.any(parts.offset):
            return operands[0]
        offset = -1 if operands and not np.any(parts.offset) else self.constant(parts.offset, keeps=True)
        return self.add(Instruction(None, tuple(operands), (*constants, offset)))

    def constant(self, value: np.ndarray, *, keeps: bool = False) -> int:
        """Its number; `-1` for ones."""
        if value.size and (value == value.flat[0]).all():
            value = value.ravel()[:1]
            if not keeps and value[0] == 1:
                return -1
        self.constants.append(value)
        return len(self.constants) - 1

    def function(self, form: Form) -> tuple[int, np.ndarray, np.ndarray]:
        """A linear function of the latent: its number, a scale and a shift."""
        for number, other in enumerate(self.functions):
            if other.seen.shape == form.seen.shape and np.array_equal(other.seen, form.seen):
                is_there = other.weight != 0
                if np.array_equal(is_there, form.weight != 0):
                    scale = form.weight[:, 0] / other.weight[:, 0]
                    if np.allclose(form.weight, scale[:, None] * other.weight, rtol=1e-12, atol=0):
                        return number, scale, form.offset - scale * other.offset
        if len(self.functions) == MOST_FUNCTIONS:
            raise NotUnderstood
        self.functions.append(form)
        return len(self.functions) - 1, np.ones(form.size), np.zeros(form.size)
