# SPDX-License-Identifier: Apache-2.0
"""How quiet a gradient is, what each variate contributes, and how far a fit can be trusted."""
