# SPDX-License-Identifier: Apache-2.0
"""Small tools that every layer uses: checks of input, traced programs, compilation, devices, processes, files."""
