# SPDX-License-Identifier: Apache-2.0
"""The paper's experiments and the benchmark against other libraries; run from a checkout, not part of the wheel."""
