# SPDX-License-Identifier: Apache-2.0
"""What the experiments share: results kept in a folder, worker processes, options, plots, pages, the exact optimum."""
