# SPDX-License-Identifier: Apache-2.0
"""JAX programs, run by NumPy: a small program that runs a few times ends before a compiler would have begun."""

from quell.core.host.parts import compiled_part, remembered_part, remembering
from quell.core.host.program import HostProgram, TooLong, Unsupported

__all__ = ["HostProgram", "TooLong", "Unsupported", "compiled_part", "remembered_part", "remembering"]
