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

FITTED = {"rtol": 1e-4, "atol": 1e-4}
"""A fit with variates against the exact posterior; the base gradient alone is off by 1e-3 to 3e-2."""

RUNS = {"rtol": 1e-8, "atol": 1e-8}
"""The same run alone and among others, after twenty steps: rounding that the steps have amplified."""

PUBLISHED = {"rtol": 0.0, "atol": 1e-3}
"""A figure known to three decimals."""

SINGLE_SMALL = {"rtol": 1e-2}
"""The smallest of values that span four decades, in single precision."""

ROUNDING = 1e4
"""Units in the last place that a small linear solve may lose."""

SHRUNK = {"atol": 2e-2}
"""A weight that a weak prior pulls towards zero."""

ILL_CONDITIONED = 1e6
"""The same where two variates are equal and only the prior keeps the matrix regular."""

NODES_IN_THREE = {"rtol": 2e-5, "atol": 2e-6}
"""Double-exponential nodes in three dimensions, few enough to be quick."""

QUIET = {"exact": 1e-6, "fit": 0.15, "scale": 0.05}
"""Shares that are left: of the variance where a quadratic is exact; of the distance between the expected Hessian and
the one at the mean, after 20,000 noisy gradients; of an exact Hessian after 100 steps."""

SMOOTHED = {"rtol": 1e-6, "atol": 1e-6}
"""Our Pareto smoothing against that of ArviZ."""

PRINTED = {"rtol": 1e-3}
"""A number with four digits in a table."""

PATIENCE = 1800.0
"""Seconds after which another process counts as one that hangs: a busy machine may be twenty times slower than ours."""
