# SPDX-License-Identifier: Apache-2.0
"""Posteriors of posteriordb with known answers: seconds and accuracy of each method, one fresh process per fit.

The models are ours; data and reference moments are read from a folder that the user names.
"""
