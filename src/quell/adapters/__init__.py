# SPDX-License-Identifier: Apache-2.0
"""Models in, losses out: what connects quell with other libraries."""
