# SPDX-License-Identifier: Apache-2.0
"""The version, where every module can read it."""

VERSION = "0.1.0"
