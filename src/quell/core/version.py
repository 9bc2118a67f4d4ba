# SPDX-License-Identifier: Apache-2.0
"""The version, in a module without imports that every other can read."""

VERSION = "0.1.0"
