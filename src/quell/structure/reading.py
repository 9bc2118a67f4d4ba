# SPDX-License-Identifier: Apache-2.0
"""Reading a program: which of its numbers are linear in the latent, and what the others are made of."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from quell.structure.flat_program import FlatProgram, Operation, Step, Value
from quell.structure.forms import Form, NotLinear, Numbers, concatenated, product_with
from quell.structure.moves import moving_constants, moving_operands, scattered, source_of, target_of

ELEMENTWISE = frozenset(
    {
        *("abs", "acos", "acosh", "add", "and", "asin", "asinh", "atan", "atan2", "atanh", "bessel_i0e"),
        *("bessel_i1e", "cbrt", "clamp", "convert_element_type", "cos", "cosh", "digamma", "div", "eq", "erf"),
        *("erf_inv", "erfc", "exp", "exp2", "expm1", "ge", "gt", "igamma", "igamma_grad_a", "igammac"),
        *("integer_pow", "is_finite", "le", "lgamma", "log", "log1p", "log_ndtr", "logaddexp", "logistic", "lt"),
        *("max", "min", "mul", "ne", "neg", "nextafter", "not", "or", "polygamma", "pow"),
        *("regularized_incomplete_beta", "rem", "rsqrt", "select_n", "sin", "sinh", "sqrt", "square", "sub"),
        *("tan", "tanh", "xlog1py", "xlogy", "xor", "zeta"),
    }
)
"""Operations on each element alone; an operand of one element belongs to all. Those that jump are not understood."""

REDUCTIONS = {
    "reduce_max": jnp.maximum,
    "reduce_min": jnp.minimum,
    "reduce_prod": jnp.multiply,
    "reduce_and": jnp.logical_and,
    "reduce_or": jnp.logical_or,
}
"""Of few elements to one, by an operation of two."""

MOST_REDUCED = 8
"""Elements that are reduced to one, where that is not a sum."""


@dataclasses.dataclass(eq=False)
class Block:
    """Unknowns that an operation which is not linear makes, one for each element of its result.

    Attributes:
        first: number of the first of them.
        size: how many they are.
        name: of the operation.
        apply: computes elements from the elements of the operands; `None` for one that is not understood.
        operands: as linear functions of other unknowns, each with one axis.
        log: the logarithm, where the elements are positive and it is linear in the latent.
        power: of an integer power.
    """

    first: int
    size: int
    name: str
    apply: Callable[..., Array] | None
    operands: list[Form]
    log: Form | None = None
    power: int = 1


class Reading:
    """What a program computes from a latent, as linear functions of unknowns.

    The first unknowns are the coordinates of the latent; the others are made by operations that are not linear, in
    blocks.

    Args:
        program: a function of the latent.
    """

    def __init__(self, program: FlatProgram) -> None:
        """Read the program from its beginning to its end."""
        self.program = program
        self.dim = program.argument.size
        self.blocks: list[Block] = []
        self.size = self.dim
        self.forms: dict[Value, Form] = {program.argument: Form.unknowns(0, program.argument.shape)}
        self._compute_constants()
        for step in program.steps:
            if step.depends:
                for value, form in zip(step.outputs, self._results(step), strict=True):
                    self.forms[value] = form
        self.outputs = [self.form(value) for value in program.outputs]

    def form(self, value: Value) -> Form:
        """A value as linear functions of unknowns."""
        if value in self.forms:
            return self.forms[value]
        return Form.constant(np.asarray(self.program.known[value]))

    def block_of(self, number: int) -> Block:
        """The block of an unknown that is no coordinate of the latent."""
        return self.blocks[int(np.searchsorted(self.firsts, number, side="right")) - 1]

    @property
    def firsts(self) -> np.ndarray:
        """Numbers of the first unknowns of the blocks."""
        return np.asarray([block.first for block in self.blocks], int)

    def _compute_constants(self) -> None:
        """In one program: constants beside the latent, and where elements are moved from."""
        program = self.program
        mixed = [step for step in program.steps if step.depends]
        wanted = [one for step in mixed for one in step.inputs if not one.depends]
        wanted += [value for value in program.outputs if not value.depends]
        moves = [step for step in mixed if not any(value.depends for value in moving_constants(step))]
        wanted = [one for one in dict.fromkeys(wanted) if not jnp.issubdtype(one.dtype, jax.dtypes.extended)]
        masks = [step for step in mixed if step.name == "select_n" and step.inputs[0].depends and len(step.inputs) == 3]
        added = [step for step in mixed if scattered(step)]
        asked = [*(source_of(step) for step in moves), *(target_of(step) for step in added)]
        found, held = program.compute(wanted, asked, [step.inputs[0] for step in masks])
        self.sources = dict(zip(moves, found, strict=False))
        self.targets = dict(zip(added, found[len(moves) :], strict=True))
        self.supports = {step for step, is_true in zip(masks, held, strict=True) if is_true}

    def _results(self, step: Step) -> list[Form]:
        try:
            if step in self.sources and all((source >= 0).all() for source in self.sources[step]):
                return self._moved(step)
            found = self._linear(step) or self._support(step) or self._logarithm(step)
            found = found or self._multiplied_out(step) or self._elementwise(step) or self._reduction(step)
            found = found or self._running_product(step) or self._products(step)
            found = found or self._scattered(step) or self._solved(step)
        except NotLinear:
            found = None
        return [found] if found is not None else [self._opaque(step, value) for value in step.outputs]

    def _moved(self, step: Step) -> list[Form]:
        """Elements of several arrays in another order."""
        forms = [self.form(step.inputs[at]).flat for at in moving_operands(step)]
        forms = [form for form in forms if form.size]
        whole = concatenated(forms, 0) if len(forms) > 1 else forms[0]
        return [whole.taken(source) for source in self.sources[step]]

    def _scattered(self, step: Step) -> Form | None:
        """Elements added to others."""
        if step not in self.targets or (self.targets[step][0] < -1).any():
            return None
        before, updates = self.form(step.inputs[0]), self.form(step.inputs[2]).flat
        return before.plus(concatenated([updates, Form.constant(np.zeros(1))], 0).taken(self.targets[step][0]))

    def _opaque(self, step: Step, value: Value) -> Form:
        return self._new_block(step.name, None, [], value.shape)

    def _new_block(
        self, name: str, apply: Callable[..., Array] | None, operands: list[Form], shape: tuple[int, ...]
    ) -> Form:
        size = math.prod(shape)
        block = Block(self.size, size, name, apply, [one.reshaped((one.size,)) for one in operands])
        self.blocks.append(block)
        self.size += size
        return Form.unknowns(block.first, shape)

    def _linear(self, step: Step) -> Form | None:
        """Operations that add, scale and repeat; `None` for others."""
        name, params, (out,) = step.name, step.params, step.outputs[:1]
        given = [self.form(value) for value in step.inputs]
        first = given[0]
        is_converted = name == "convert_element_type" and _is_real(step.inputs[0]) and _is_real(out)
        if name in ("copy", "stop_gradient") or is_converted:
            return first
        if name in ("reshape", "squeeze", "expand_dims"):
            return first.reshaped(out.shape)
        if name == "broadcast_in_dim":
            return first.broadcast(out.shape, tuple(map(int, params["broadcast_dimensions"])))
        if not _is_real(out):
            return None
        if name == "neg":
            return first.times(-1.0)
        if name in ("add", "add_any"):
            return first.plus(given[1])
        if name == "sub":
            return first.plus(given[1].times(-1.0))
        if name in ("mul", "div") and not all(value.depends for value in step.inputs):
            whole, factor = (first, given[1]) if step.inputs[0].depends else (given[1], first)
            if name == "div" and step.inputs[1].depends:
                return None
            factor = np.broadcast_to(factor.offset if name == "mul" else _inverse(factor.offset), out.shape)
            return _broadcast_to(whole, out.shape).times(factor) if np.isfinite(factor).all() else None
        if name == "reduce_sum":
            return first.summed(tuple(params["axes"]))
        if name == "dot_general" and not all(value.depends for value in step.inputs):
            return _matrix_product(step, *given)
        if name == "cumsum":
            return _cumulated(first, params["axis"], reverse=params["reverse"])
        if name == "integer_pow" and params["y"] == 1:
            return first
        return None

    def _support(self, step: Step) -> Form | None:
        """A density within a support that no latent leaves, such as that of a transform: the mask has no effect."""
        if step not in self.supports:
            return None
        outside, inside = (self.form(value) for value in step.inputs[1:])
        if outside.width or not np.all(outside.offset == -np.inf):
            return None
        return _broadcast_to(inside, step.outputs[0].shape)

    def _logarithm(self, step: Step) -> Form | None:
        """The logarithm of a product of exponentials."""
        return self._log_of(self.form(step.inputs[0])) if step.name == "log" else None

    def _log_of(self, form: Form) -> Form | None:
        """The logarithm of positive elements, where it is linear in the latent."""
        if not form.width:
            return Form.constant(np.log(form.offset)) if np.all(form.offset > 0) else None
        if form.width != 1 or np.any(form.offset) or np.any(form.weight <= 0) or form.seen.min() < self.dim:
            return None
        flat = form.flat
        number = flat.seen[:, 0]
        block = self.block_of(int(number[0]))
        if block.log is None or number.min() < block.first or number.max() >= block.first + block.size:
            return None
        found = block.log.taken(number - block.first)
        return found.plus(Form.constant(np.log(flat.weight[:, 0]))).reshaped(form.shape)

    def _multiplied_out(self, step: Step) -> Form | None:
        """A sum of many unknowns times an exponential, as `sum(residuals**2) / scale**2` is: a sum of products."""
        if step.name not in ("mul", "div"):
            return None
        shape = step.outputs[0].shape
        one, two = (_broadcast_to(self.form(value), shape) for value in step.inputs)
        if step.name == "mul" and two.width > one.width:
            one, two = two, one
        is_other = (one.weight != 0) & (one.seen >= self.dim)
        if is_other.sum(axis=-1).max(initial=0) <= MOST_REDUCED or not two.width or self._log_of(two) is None:
            return None
        full, product = (*shape, one.width), self._product if step.name == "mul" else self._quotient
        each = Form(one.seen[..., None], is_other[..., None].astype(float), np.zeros(full))
        found = product(each, two.broadcast(full, tuple(range(len(shape)))))
        others = Form(found.seen[..., 0], np.where(is_other, one.weight, 0.0), np.zeros(shape)).merged()
        linear = Form(one.seen, np.where(is_other, 0.0, one.weight), one.offset).merged()
        return others.plus(product(linear, two)) if linear.width or np.any(linear.offset) else others

    def _elementwise(self, step: Step) -> Form | None:
        is_rounded = step.name == "convert_element_type" and _is_real(step.inputs[0]) and not _is_real(step.outputs[0])
        if step.name not in ELEMENTWISE or is_rounded or any(_is_complex(one) for one in (*step.inputs, *step.outputs)):
            return None
        shape, given = step.outputs[0].shape, [self.form(value) for value in step.inputs]
        fitted, types = [_broadcast_to(one, shape) for one in given], tuple(value.dtype for value in step.inputs)
        found = self._new_block(step.name, OnElements(step.bind, types), fitted, shape)
        block = self.blocks[-1]
        block.power = step.params.get("y", 1)
        log = self._log_of_result(step, fitted)
        block.log = None if log is None else log.reshaped((block.size,))
        return found

    def _log_of_result(self, step: Step, given: list[Form]) -> Form | None:
        if step.name == "exp":
            return given[0] if _is_latent(given[0], self.dim) else None
        powers = {"sqrt": 0.5, "rsqrt": -0.5, "square": 2.0, "integer_pow": float(step.params.get("y", 1))}
        if step.name in powers:
            log = self._log_of(given[0])
            return None if log is None else log.times(powers[step.name])
        if step.name in ("mul", "div"):
            logs = [self._log_of(one) for one in given]
            if any(log is None for log in logs):
                return None
            return logs[0].plus(logs[1].times(1.0 if step.name == "mul" else -1.0))  # pyright: ignore
        return None

    def _reduction(self, step: Step) -> Form | None:
        """Few elements to one, as a chain of operations of two."""
        is_logical = jnp.issubdtype(step.outputs[0].dtype, jnp.bool_)
        if step.name not in REDUCTIONS or is_logical != (step.name in ("reduce_and", "reduce_or")):
            return None
        form, axes, combine = self.form(step.inputs[0]), tuple(step.params["axes"]), REDUCTIONS[step.name]
        shape, number = step.outputs[0].shape, math.prod(form.shape[axis] for axis in axes)
        if number > MOST_REDUCED:
            return None
        kept = [axis for axis in range(len(form.shape)) if axis not in axes]
        flat = form.transposed((*axes, *kept)).reshaped((number, math.prod(shape)))
        parts = [Form(*(part[at] for part in flat)) for at in range(number)]
        return self._new_block(step.name, Chain(combine), parts, shape)

    def _running_product(self, step: Step) -> Form | None:
        """Of few elements along an axis."""
        if step.name != "cumprod" or step.params["reverse"] or not _is_real(step.outputs[0]):
            return None
        form, axis = self.form(step.inputs[0]), step.params["axis"]
        if form.shape[axis] > MOST_REDUCED:
            return None
        order = (axis, *(other for other in range(len(form.shape)) if other != axis))
        rows = form.transposed(order)
        found = [Form(*(part[0] for part in rows))]
        for at in range(1, form.shape[axis]):
            found.append(self._product(found[-1], Form(*(part[at] for part in rows))))
        return _back(concatenated([one.reshaped((1, *one.shape)) for one in found], 0), order)

    def _product(self, one: Form, two: Form) -> Form:
        """Element by element."""
        if not one.width or not two.width:
            whole, factor = (one, two) if one.width else (two, one)
            return whole.times(factor.offset)
        return self._of_two("mul", jnp.multiply, one, two, 1.0)

    def _quotient(self, one: Form, two: Form) -> Form:
        """Element by element."""
        return self._of_two("div", jnp.divide, one, two, -1.0) if two.width else one.times(_inverse(two.offset))

    def _of_two(self, name: str, apply: Callable[..., Array], one: Form, two: Form, power: float) -> Form:
        """The first times a power of the second."""
        found, logs = self._new_block(name, apply, [one, two], one.shape), [self._log_of(one), self._log_of(two)]
        if logs[0] is not None and logs[1] is not None:
            self.blocks[-1].log = logs[0].plus(logs[1].times(power)).flat
        return found

    def _products(self, step: Step) -> Form | None:
        """A product of two arrays that both depend on the latent, as a sum of products of elements."""
        if step.name != "dot_general" or not _is_real(step.outputs[0]):
            return None
        (left, right), (left_batch, right_batch) = step.params["dimension_numbers"]
        one, two = (self.form(value) for value in step.inputs)

        def split(form: Form, inner: tuple[int, ...], batch: tuple[int, ...]) -> Form:
            own = [axis for axis in range(len(form.shape)) if axis not in (*inner, *batch)]
            sizes = [math.prod(form.shape[axis] for axis in axes) for axes in (batch, own, inner)]
            return form.transposed((*batch, *own, *inner)).reshaped(tuple(sizes))

        one, two = split(one, left, left_batch), split(two, right, right_batch)
        if one.shape[2] > MOST_REDUCED and one.shape[1] * two.shape[1] > 1:
            return None
        full = (one.shape[0], one.shape[1], two.shape[1], one.shape[2])
        found = self._new_block(
            "mul", jnp.multiply, [one.broadcast(full, (0, 1, 3)), two.broadcast(full, (0, 2, 3))], full
        )
        return found.summed((3,)).reshaped(step.outputs[0].shape)

    def _solved(self, step: Step) -> Form | None:
        """A triangular system: by the inverse of a constant matrix, or by substitution for few equations."""
        if step.name != "triangular_solve" or not _is_real(step.outputs[0]):
            return None
        matrix, right = (self.form(value) for value in step.inputs)
        number, params, axis = matrix.shape[-1], step.params, len(matrix.shape) - 2
        turned, is_turned = (*range(axis), axis + 1, axis), bool(params["transpose_a"]) == params["left_side"]
        matrix, is_lower = matrix.transposed(turned) if is_turned else matrix, params["lower"] != is_turned
        right = right if params["left_side"] else right.transposed(turned)  # the same system on its side
        if not matrix.width and not axis and not params["unit_diagonal"]:
            whole = product_with(np.linalg.inv(np.tril(matrix.offset) if is_lower else np.triu(matrix.offset)), right)
        elif number <= MOST_REDUCED:
            found: dict[int, Form] = {}
            for row in range(number) if is_lower else reversed(range(number)):
                entries, left = _at(matrix, axis, row), _at(right, axis, row)

                def entry(column: int, entries: Form = entries, shape: tuple[int, ...] = left.shape) -> Form:
                    return _at(entries, axis, column).broadcast(shape, tuple(range(axis)))

                for column, known in found.items():
                    left = left.plus(self._product(entry(column), known).times(-1.0))
                found[row] = left if params["unit_diagonal"] else self._quotient(left, entry(row))
            whole = concatenated([_with_axis(found[row], axis) for row in range(number)], axis)
        else:
            return None
        return whole if params["left_side"] else whole.transposed(turned)


class OnElements(NamedTuple):
    """An operation on operands of any shapes that fit together.

    Args:
        operation: of arrays of one shape.
        types: of the operands.
    """

    operation: Operation
    types: tuple[Any, ...]

    def __call__(self, *operands: Array) -> Array:
        """The elements of the result."""
        fitted = jnp.broadcast_arrays(*operands)
        return self.operation(*(one.astype(dtype) for one, dtype in zip(fitted, self.types, strict=True)))


class Chain(NamedTuple):
    """An operation of two, on one operand after the other."""

    combine: Callable[[Array, Array], Array]

    def __call__(self, *elements: Array) -> Array:
        """The elements of the result."""
        return functools.reduce(self.combine, elements)


def _at(form: Form, axis: int, number: int) -> Form:
    """One element along an axis."""
    return Form(*(part.take(number, axis) for part in form))


def _with_axis(form: Form, axis: int) -> Form:
    """With a new axis of one element."""
    return form.reshaped((*form.shape[:axis], 1, *form.shape[axis:]))


def _inverse(value: Numbers) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.asarray(1.0 / np.asarray(value))


def _is_real(value: Value) -> bool:
    return bool(jnp.issubdtype(value.dtype, jnp.floating))


def _is_complex(value: Value) -> bool:
    return bool(jnp.issubdtype(value.dtype, jnp.complexfloating))


def _is_latent(form: Form, dim: int) -> bool:
    """Whether only coordinates of the latent are among the unknowns."""
    return bool(np.all((form.seen < dim) | (form.weight == 0)))


def _broadcast_to(form: Form, shape: tuple[int, ...]) -> Form:
    return (
        form if form.shape == shape else form.broadcast(shape, tuple(range(len(shape) - len(form.shape), len(shape))))
    )


def _matrix_product(step: Step, one: Form, two: Form) -> Form | None:
    """A product with constants, without batch axes."""
    (left, right), batch = step.params["dimension_numbers"]
    if any(batch):
        return None
    is_left = step.inputs[0].depends
    (form, inner), (matrix, other) = (
        ((one, left), (two.offset, right)) if is_left else ((two, right), (one.offset, left))
    )
    number = math.prod(form.shape[axis] for axis in inner)
    free = [axis for axis in range(matrix.ndim) if axis not in other]
    rows = matrix.transpose(*free, *other).reshape(-1, number)
    own = [axis for axis in range(len(form.shape)) if axis not in inner]
    columns = form.transposed((*inner, *own)).reshaped((number, math.prod(form.shape[axis] for axis in own)))
    found = product_with(rows, columns)
    return (found.transposed((1, 0)) if is_left else found).reshaped(step.outputs[0].shape)


def _cumulated(form: Form, axis: int, *, reverse: bool) -> Form | None:
    """Running sums along an axis."""
    length = form.shape[axis]
    matrix = np.tril(np.ones((length, length)))
    matrix = matrix.T if reverse else matrix
    order = (axis, *(other for other in range(len(form.shape)) if other != axis))
    rest = tuple(form.shape[other] for other in order[1:])
    found = product_with(matrix, form.transposed(order).reshaped((length, math.prod(rest))))
    return _back(found.reshaped((length, *rest)), order)


def _back(form: Form, order: tuple[int, ...]) -> Form:
    """Axes as they were before they were put in an order."""
    return form.transposed(tuple(np.argsort(order).tolist()))
