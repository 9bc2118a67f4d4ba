# SPDX-License-Identifier: Apache-2.0
"""A look at all rows on disk, before a fit trusts them."""

from collections.abc import Callable
from typing import Any

from quell.data.access import row_blocks
from quell.data.disk_rows import DiskRows

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
    for start, block in row_blocks(rows, rows.num_rows):
        try:
            look(block)
        except ValueError as error:
            stop = min(start + rows.most_rows, rows.num_rows)
            raise ValueError(f"In rows {start} to {stop} of {rows}: {error}") from None
    _SEEN.add(seen)
