# SPDX-License-Identifier: Apache-2.0
"""The paper's experiments and the benchmark against peers; not a part of the library."""
