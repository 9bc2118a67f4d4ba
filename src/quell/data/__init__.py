# SPDX-License-Identifier: Apache-2.0
"""Rows of data: arrays in memory, or files on a disk that holds more than memory does."""

from quell.data.convert import rows_from_iterator as rows_from_iterator
from quell.data.convert import rows_from_parquet as rows_from_parquet
from quell.data.disk_rows import DiskRows as DiskRows
