# SPDX-License-Identifier: Apache-2.0
"""The fitted distribution in a table: a row per scalar."""

import dataclasses
import math
from collections.abc import Iterator
from html import escape
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, PyTree

COLUMNS = ("mean", "std", "5%", "50%", "95%")
"""Columns of the table."""

LATENT = "z"
"""Name of a latent that has none of its own."""

_LONG, _SHOWN = 8, 3
_MOST_ROWS = 60


class SummaryRow(NamedTuple):
    """One scalar of the latent: its name, and the values of `COLUMNS`; none for an ellipsis."""

    name: str
    values: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class Summary:
    """Mean, standard deviation and quantiles of every scalar of the latent, on the model's own (constrained) scale.

    Attributes:
        names: of the scalars, such as `scale` or `slope[0,2]`.
        values: one row per scalar, with columns mean, standard deviation, 5%, 50% and 95%.
        lengths: number of scalars of each variable, in order.
        num: number of samples.
    """

    names: tuple[str, ...]
    values: Float[np.ndarray, "number column"]
    lengths: tuple[int, ...]
    num: int

    def as_dict(self) -> dict[str, dict[str, float]]:
        """Every scalar: `summary.as_dict()["slope[0]"]["95%"]`."""
        rows = self.values.tolist()
        return {name: dict(zip(COLUMNS, row, strict=True)) for name, row in zip(self.names, rows, strict=True)}

    def rows(self) -> Iterator[SummaryRow]:
        """Every scalar, one by one."""
        for name, values in zip(self.names, self.values.tolist(), strict=True):
            yield SummaryRow(name, tuple(values))

    def short_rows(self, *, most: int = _MOST_ROWS) -> list[SummaryRow]:
        """At most as many rows as fit a page: of a long vector the first three and the last, an ellipsis in between.

        Args:
            most: number of rows; those left out are counted in one more.
        """
        rows, found = list(self.rows()), []
        for length in self.lengths:
            if len(found) >= most:
                return [*found[:most], SummaryRow(f"... and {len(rows):,} more rows", ())]
            own, rows = rows[:length], rows[length:]
            hidden = SummaryRow(f"... ({length - _SHOWN - 1:,} more)", ())
            found += own if length <= _LONG else [*own[:_SHOWN], hidden, own[-1]]
        return found

    def __repr__(self) -> str:
        """A table; long vectors are abbreviated."""
        rows = self.short_rows()
        width = max((len(row.name) for row in rows), default=0)
        lines = [" " * width + "".join(f"{column:>11}" for column in COLUMNS)]
        lines += [f"{row.name:<{width}}" + "".join(f"{value:>11.4g}" for value in row.values) for row in rows]
        return "\n".join(line.rstrip() for line in lines)

    def _repr_html_(self) -> str:
        """The table in a notebook and in a report, with escaped names."""
        head = "".join(f'<th scope="col">{column}</th>' for column in COLUMNS)
        body = ""
        for row in self.short_rows():
            cells = "".join(f"<td>{_compact(value)}</td>" for value in row.values)
            first = '<th scope="row">{}</th>' if cells else f'<td colspan="{len(COLUMNS) + 1}">{{}}</td>'
            body += f"<tr>{first.format(escape(row.name))}{cells}</tr>"
        return f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{body}</tbody></table>"


def summarise(sample: PyTree[Any]) -> Summary:
    """Summarise a tree of samples.

    Args:
        sample: arrays with a leading axis of samples.

    Example:
        >>> import jax.numpy as jnp, quell
        >>> quell.diagnostics.summarise({"shift": jnp.arange(101.0)})
                      mean        std         5%        50%        95%
        shift           50       29.3          5         50         95
    """
    leaves = {name: np.asarray(leaf) for name, leaf in named_leaves(sample).items()}
    num = next(iter(leaves.values())).shape[0] if leaves else 0
    names = [name for key, leaf in leaves.items() for name in _scalars(key, leaf.shape[1:])]
    tables = [_table(leaf.reshape(num, -1).astype(np.float64)) for leaf in leaves.values()]
    values = np.concatenate(tables) if tables else np.zeros((0, len(COLUMNS)))
    return Summary(tuple(names), values, tuple(math.prod(leaf.shape[1:]) for leaf in leaves.values()), num)


def named_leaves(latent: PyTree) -> dict[str, Any]:
    """The arrays of a latent by their paths, such as `slope` or `group.scale`."""
    leaves = jax.tree_util.tree_flatten_with_path(latent)[0]
    names = [jax.tree_util.keystr(path, simple=True, separator=".") or LATENT for path, _ in leaves]
    if len(set(names)) < len(names):  # a key that holds a dot, beside a nested one
        names = [jax.tree_util.keystr(path) for path, _ in leaves]
    return {name: leaf for name, (_, leaf) in zip(names, leaves, strict=True)}


def _compact(value: float) -> str:
    """A number in at most eight characters, so that five columns fit on a phone."""
    small = 0 < abs(value) < 1e-3 or 1e5 <= abs(value) < math.inf
    text = f"{value:.1e}".replace("e-0", "e-").replace("e+0", "e") if small else f"{value:.3g}"
    return text.replace("-", "−")


def _scalars(name: str, shape: tuple[int, ...]) -> list[str]:
    if not shape:
        return [name]
    return [f"{name}[{','.join(map(str, index))}]" for index in np.ndindex(*shape)]


def _table(columns: Float[np.ndarray, "sample number"]) -> Float[np.ndarray, "number column"]:
    spread = columns.std(axis=0, ddof=1) if columns.shape[0] > 1 else np.full(columns.shape[1], np.nan)
    return np.stack([columns.mean(axis=0), spread, *np.quantile(columns, (0.05, 0.5, 0.95), axis=0)], axis=1)
