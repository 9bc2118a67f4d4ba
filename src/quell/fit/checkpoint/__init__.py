# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: when they are written, what is in the file, and the fingerprint of the fit that it belongs to."""

from quell.fit.checkpoint.file import CheckpointError as CheckpointError
from quell.fit.checkpoint.file import Snapshot as Snapshot
from quell.fit.checkpoint.keeper import Checkpoint as Checkpoint
from quell.fit.checkpoint.keeper import Keeper as Keeper
