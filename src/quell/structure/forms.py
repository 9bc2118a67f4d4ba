# SPDX-License-Identifier: Apache-2.0
"""Arrays whose elements are sparse linear functions of numbered unknowns."""

import math
from typing import NamedTuple

import numpy as np

Shape = tuple[int, ...]
Numbers = np.ndarray | np.generic | float

LARGEST_FORM = 2**27
"""Coefficients of one array: with more of them a program is not read."""


class NotLinear(Exception):
    """An array with more coefficients than is worth reading, or with some that are no numbers."""


class Form(NamedTuple):
    r"""An array of linear functions, element by element \(b + \sum_j w_j v_{i_j}\).

    Padding has weight zero. Arrays may be views that repeat their elements, so that the rows of \(X\beta\) share one
    copy of the numbers of \(\beta\).

    Args:
        seen: \(i_j\), the unknowns, on a last axis.
        weight: \(w_j\).
        offset: \(b\).
    """

    seen: np.ndarray
    weight: np.ndarray
    offset: np.ndarray

    @property
    def shape(self) -> Shape:
        """Without the last axis."""
        return self.offset.shape

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def width(self) -> int:
        """Unknowns of an element, at most."""
        return self.seen.shape[-1]

    @classmethod
    def unknowns(cls, first: int, shape: Shape) -> "Form":
        """Each element an unknown of its own, numbered from the first."""
        size = math.prod(shape)
        index = np.arange(first, first + size).reshape(*shape, 1)
        return cls(index, np.ones((*shape, 1)), np.zeros(shape))

    @classmethod
    def constant(cls, value: Numbers) -> "Form":
        """No unknowns."""
        value = np.asarray(value)
        return cls(np.zeros((*value.shape, 0), int), np.zeros((*value.shape, 0)), value)

    def taken(self, source: np.ndarray) -> "Form":
        """Elements by their number in the flat array, in a copy: rows of a matrix no longer share what they see."""
        return Form(*(part[source] for part in self.flat))

    @property
    def flat(self) -> "Form":
        """On one axis."""
        return self.reshaped((self.size,))

    def reshaped(self, shape: Shape) -> "Form":
        """On other axes."""
        if shape == self.shape:
            return self
        width = self.width
        return Form(self.seen.reshape(*shape, width), self.weight.reshape(*shape, width), self.offset.reshape(shape))

    def transposed(self, order: tuple[int, ...]) -> "Form":
        """With axes in another order."""
        last = len(order)
        return Form(
            self.seen.transpose(*order, last), self.weight.transpose(*order, last), self.offset.transpose(order)
        )

    def broadcast(self, shape: Shape, axes: tuple[int, ...]) -> "Form":
        """Repeated along new axes, without a copy."""
        fitted = [1] * len(shape)
        for axis, length in zip(axes, self.shape, strict=True):
            fitted[axis] = length
        own, width = self.reshaped(tuple(fitted)), self.width
        full = (*shape, width)
        return Form(
            np.broadcast_to(own.seen, full), np.broadcast_to(own.weight, full), np.broadcast_to(own.offset, shape)
        )

    def times(self, factor: Numbers) -> "Form":
        """Each element times a number."""
        factor = np.asarray(factor)
        if self.width and not np.isfinite(factor).all():
            raise NotLinear
        return Form(self.seen, self.weight * factor[..., None], self.offset * factor)

    def plus(self, other: "Form") -> "Form":
        """The sum, with unknowns that both have added up where they stand side by side."""
        shape = np.broadcast_shapes(self.shape, other.shape)
        one, two = (
            each if each.shape == shape else each.broadcast(shape, _trailing(each, shape)) for each in (self, other)
        )
        offset = one.offset + two.offset
        if not one.width or not two.width:
            wide = one if one.width else two
            return Form(wide.seen, wide.weight, offset)
        if one.seen is two.seen or (one.seen.shape == two.seen.shape and np.array_equal(one.seen, two.seen)):
            return Form(one.seen, one.weight + two.weight, offset)._without_zeros()
        _check_size(offset.size * (one.width + two.width))
        index = np.concatenate([one.seen, two.seen], axis=-1)
        return Form(index, np.concatenate([one.weight, two.weight], axis=-1), offset).merged()

    def _without_zeros(self) -> "Form":
        """Without unknowns that no element has any more."""
        keeps = (self.weight != 0).reshape(-1, self.width).any(axis=0)
        return self if keeps.all() else Form(self.seen[..., keeps], self.weight[..., keeps], self.offset)

    def summed(self, axes: tuple[int, ...]) -> "Form":
        """Over some axes."""
        if not axes:
            return self
        kept = [axis for axis in range(len(self.shape)) if axis not in axes]
        order = (*kept, *axes)
        shape = tuple(self.shape[axis] for axis in kept)
        number = math.prod(self.shape[axis] for axis in axes)
        moved = [
            part.transpose(*order, len(order)).reshape(*shape, number * self.width) for part in (self.seen, self.weight)
        ]
        return Form(moved[0], moved[1], self.offset.sum(axis=tuple(axes))).merged()

    def merged(self) -> "Form":
        """Each unknown once, in increasing order, and without padding that no element needs."""
        if self.width < 2:
            return self
        if self.size == 1:
            found, at = np.unique(self.seen.ravel(), return_inverse=True)
            weight = np.bincount(at.ravel(), self.weight.ravel(), found.size)
            keeps = weight != 0
            full = (*self.shape, int(keeps.sum()))
            return Form(found[keeps].reshape(full), weight[keeps].reshape(full), self.offset)
        flat = self.flat
        is_shared = flat.seen.strides[0] == 0
        rows = flat.seen[:1] if is_shared else flat.seen
        if (np.diff(rows, axis=1) > 0).all() and (is_shared or (flat.weight != 0).all()):
            return self
        index = np.where(flat.weight != 0, flat.seen, np.iinfo(np.int64).max)
        order = np.argsort(index, axis=1, kind="stable")
        index, weight = np.take_along_axis(index, order, 1), np.take_along_axis(flat.weight, order, 1).astype(float)
        for at in range(1, flat.width):
            same = index[:, at] == index[:, at - 1]
            weight[:, at] += np.where(same, weight[:, at - 1], 0.0)
            weight[:, at - 1] = np.where(same, 0.0, weight[:, at - 1])
        if not weight.all():
            order = np.argsort(weight == 0, axis=1, kind="stable")
            index, weight = np.take_along_axis(index, order, 1), np.take_along_axis(weight, order, 1)
        width = int((weight != 0).sum(axis=1).max(initial=0))
        index, weight = index[:, :width], weight[:, :width]
        # Padding repeats an unknown of its row, so that it adds none.
        index = np.where(weight != 0, index, index[:, :1] if width else index)
        index = np.where(index == np.iinfo(np.int64).max, 0, index)
        return Form(index, weight, flat.offset).reshaped(self.shape)


def _trailing(form: Form, shape: Shape) -> tuple[int, ...]:
    return tuple(range(len(shape) - len(form.shape), len(shape)))


def _check_size(size: int) -> None:
    if size > LARGEST_FORM:
        raise NotLinear


def concatenated(forms: list[Form], axis: int) -> Form:
    """Along an axis, with padding for those of fewer unknowns."""
    width = max(form.width for form in forms)
    _check_size(width * sum(form.size for form in forms))

    def padded(part: np.ndarray) -> np.ndarray:
        short = width - part.shape[-1]
        return np.concatenate([part, np.zeros((*part.shape[:-1], short), part.dtype)], axis=-1) if short else part

    return Form(
        np.concatenate([padded(form.seen) for form in forms], axis=axis),
        np.concatenate([padded(form.weight) for form in forms], axis=axis),
        np.concatenate([form.offset for form in forms], axis=axis),
    )


def product_with(matrix: np.ndarray, form: Form) -> Form:
    """A matrix `[r, j]` times the last axis but those that follow: form `[j, c]` gives `[r, c]`."""
    rows, inner = matrix.shape
    columns, width = form.shape[1], form.width
    _check_size(rows * columns * inner * width)
    index = np.broadcast_to(
        form.seen.transpose(1, 0, 2).reshape(1, columns, inner * width), (rows, columns, inner * width)
    )
    own = form.weight.transpose(1, 0, 2)
    if width == 1 and (own == 1).all():
        weight = np.broadcast_to(matrix[:, None, :], (rows, columns, inner))
    else:
        weight = (matrix[:, None, :, None] * own[None]).reshape(rows, columns, inner * width)
    return Form(index, weight, matrix @ form.offset).merged()
