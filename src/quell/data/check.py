# SPDX-License-Identifier: Apache-2.0
"""A look at all rows on disk, before a fit trusts them."""

from collections.abc import Callable
from typing import Any

from quell.data.disk_rows import DiskRows

ROWS_AT_ONCE = 2**16
"""Rows of a block at most: a look may make eight bytes of a small number, more than once."""

_SEEN: set[Any] = set()


def check_disk_rows(rows: DiskRows, begin: Callable[[], Callable[[Any], None]]) -> None:
    """Hand all rows to a function that raises at bad ones, a block at a time.

    The same look at the same files is not taken twice.

    Args:
        rows: to look at.
        begin: makes a function that raises a `ValueError` at a block that is not good; one that is defined once.

    Raises:
        ValueError: of the first bad block, with its rows.
    """
    seen = (begin, rows.files, rows.structure, rows.prepare)
    if seen in _SEEN:
        return
    look = begin()
    read = rows.read_raw if rows.prepare is None else rows.read  # NumPy looks several times faster
    size = min(rows.most_rows, ROWS_AT_ONCE)
    for start in range(0, rows.num_rows, size):
        stop = min(start + size, rows.num_rows)
        try:
            look(read(start, stop - start))
        except ValueError as error:
            raise ValueError(f"In rows {start} to {stop} of {rows}: {error}") from None
    _SEEN.add(seen)
