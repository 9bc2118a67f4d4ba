# SPDX-License-Identifier: Apache-2.0
"""All tolerances of the tests, in one table."""

EXACT = {"rtol": 1e-10, "atol": 1e-10}
"""Two ways to compute the same thing in double precision."""

EXPECTATION = {"rtol": 1e-9, "atol": 1e-9}
"""A quadrature against a closed form or against zero."""

SINGLE = {"rtol": 2e-3, "atol": 2e-4}
"""Single against double precision, after one step."""

DIFFERENCES = {"rtol": 1e-6, "atol": 1e-7}
"""Central finite differences against a derivative."""

STANDARD_ERRORS = 5.0
"""Where sampling cannot be avoided: a false alarm in 1.7 million comparisons."""
