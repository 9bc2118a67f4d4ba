# SPDX-License-Identifier: Apache-2.0
"""Results as JSON; without imports of quell, because the peers of the benchmark need it too."""

import math
from typing import Any

import numpy as np


def json_value(value: Any) -> Any:
    """Arrays as lists, and null for numbers that are not finite, which JSON does not have."""
    if isinstance(value, np.ndarray | np.generic):
        return json_value(value.tolist())
    if isinstance(value, list):
        return [json_value(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
