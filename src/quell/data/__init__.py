# SPDX-License-Identifier: Apache-2.0
"""Rows of data: in memory, or on a disk that holds more than memory does."""

from quell.data.disk_rows import DiskRows as DiskRows
