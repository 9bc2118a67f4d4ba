# SPDX-License-Identifier: Apache-2.0
"""Small tools that every layer uses: checks of input, compilation, devices, processes, files."""
