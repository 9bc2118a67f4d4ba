# SPDX-License-Identifier: Apache-2.0
"""Large models on simulated data of the real shape: what a fit reaches and how long it takes, from a cold process."""
