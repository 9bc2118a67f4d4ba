# SPDX-License-Identifier: Apache-2.0
"""NumPyro models in, losses for NumPyro's SVI out."""
