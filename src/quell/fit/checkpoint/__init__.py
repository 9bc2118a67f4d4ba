# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: when they are written, what is in the file, and the fingerprint of the fit that it belongs to."""
