# SPDX-License-Identifier: Apache-2.0
"""The structure of a log density, read from its program."""

from quell.structure.addends import Structure as Structure
from quell.structure.concave import is_concave as is_concave
from quell.structure.read import read_rows as read_rows
from quell.structure.read import read_structure as read_structure
