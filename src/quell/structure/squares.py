# SPDX-License-Identifier: Apache-2.0
"""Sums of many squares as sums of few."""

from typing import NamedTuple

import numpy as np

from quell.structure.forms import Form


class Squares(NamedTuple):
    r"""Squares of linear functions times exponentials, \(w_i u_i^2 e^{v_i}\).

    Args:
        weight: \(w\).
        root: \(u\).
        exponent: \(v\).
    """

    weight: np.ndarray
    root: Form
    exponent: Form


def same_rows(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first of each kind of row, and the kind that each row is of."""
    table = np.ascontiguousarray(table, float)
    rows = table.view(np.dtype((np.void, table.dtype.itemsize * table.shape[1])))[:, 0]
    _, first, kind = np.unique(rows, return_index=True, return_inverse=True)
    return first, kind


def fewer(squares: Squares) -> Squares:
    r"""The same sum, of fewer squares where many see the same coordinates.

    With \(QR\) of the weighted rows \((a_i, b_i)\), a sum \(\sum_i w_i (a_i^\top z + b_i)^2 e^{v(z)}\) over those that
    see the same \(k\) coordinates and the same \(v\) is one of \(k + 1\) squares, the rows of \(R\). These are the
    sufficient statistics of a normal likelihood, without the digits that products of data would lose. The last of these
    rows see fewer coordinates, and are joined with others that see no more.

    Args:
        squares: of one axis.

    Cost: \(O(n k^2)\) once, where each expectation would take \(O(n k)\).
    """
    if squares.weight.size < 2:
        return squares
    weight, root, exponent = squares.weight, _in_order(squares.root.merged()), squares.exponent.merged()
    parts = [np.sign(weight)[:, None], root.seen, exponent.seen, exponent.weight]
    first, kind = same_rows(np.concatenate([part for part in parts if part.strides[0]], axis=1))
    count = np.bincount(kind)
    is_many = count > root.width + 1
    if not is_many.any():
        return Squares(weight, root, exponent)
    top = np.full(count.size, -np.inf)
    np.maximum.at(top, kind, exponent.offset)
    top = np.where(np.isfinite(top), top, 0.0)  # of which the exponential is zero
    scale = np.sqrt(np.abs(weight) * np.exp(exponent.offset - top[kind]))
    rows = scale[:, None] * np.concatenate([root.weight, root.offset[:, None]], axis=1)
    made, of_kind = _triangular(rows, kind, count, np.flatnonzero(is_many))
    kept = np.flatnonzero(~is_many[kind])
    source = np.concatenate([kept, first[of_kind]])
    slope = np.concatenate([root.weight[kept], made[:, :-1]])
    offset = np.concatenate([root.offset[kept], made[:, -1]])
    weight = np.concatenate([weight[kept], np.sign(weight[first[of_kind]])])
    growth = Form(*exponent[:2], np.where(is_many, top, 0.0)[kind] + np.where(is_many[kind], 0.0, exponent.offset))
    return fewer(Squares(weight, Form(root.seen[source], slope, offset), growth.taken(source)))


def _in_order(form: Form) -> Form:
    """Coordinates that many elements see last, where triangular rows end; zero where none is seen."""
    if not form.seen.size or not form.seen.strides[0]:
        return form
    is_there = form.weight != 0
    seen = np.where(is_there.any(axis=1, keepdims=True), form.seen, 0)
    order = np.argsort(np.bincount(seen[is_there], minlength=int(seen.max()) + 1)[seen], axis=1, kind="stable")
    return Form(np.take_along_axis(seen, order, 1), np.take_along_axis(form.weight, order, 1), form.offset)


def _triangular(
    rows: np.ndarray, kind: np.ndarray, count: np.ndarray, kinds: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """For each of some kinds, as many rows as there are columns that have the same sum of squares; and their kinds."""
    order, width, begin = np.argsort(kind, kind="stable"), rows.shape[1], np.cumsum(count) - count
    size = np.ceil(np.log2(count[kinds]))
    made, of_kind = [], []
    for some in (kinds[size == each] for each in np.unique(size)):  # all that have about as many rows at once
        place = np.arange(count[some].max())
        own = rows[order[np.minimum(begin[some][:, None] + place, order.size - 1)]]
        own = np.where((place < count[some][:, None])[..., None], own, 0.0)
        made.append(np.reshape(np.linalg.qr(own, mode="r"), (-1, width)))
        of_kind.append(np.repeat(some, width))
    found, of_row = np.concatenate(made), np.concatenate(of_kind)
    is_there = np.any(found, axis=1)
    return found[is_there], of_row[is_there]
