# SPDX-License-Identifier: Apache-2.0
"""The ELBO over all data: exact if possible, else with a standard error."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from quell.core.checks import check_count, check_key
from quell.core.estimate import Estimate, mean_of
from quell.core.tiers import tiered_jit
from quell.data.access import row_blocks
from quell.diagnostics.densities import DATA_CHUNK, score_sample
from quell.evaluation import Problem, exact_elbo, has_exact_elbo
from quell.evaluation.problem import expected_log_likelihoods, expected_prior_and_entropy


def estimate_elbo(key: Key[Array, ""], problem: Problem, params: PyTree, *, num: int = 1000) -> Estimate:
    r"""The ELBO in nats over all data, exact if possible, else the average of \(\log p(x, Z) - \log q(Z)\).

    Args:
        key: for the samples.
        problem: model and family.
        params: of the family.
        num: samples, at least 2; an exact ELBO needs none.

    Returns:
        The ELBO, with standard error 0 if it is exact.

    Bias: none.
    Cost: `num` evaluations of the likelihood of all data, or one pass over the data if it is exact; in chunks.
    """
    check_key(key)
    check_count("num", num, least=2)
    if has_exact_elbo(problem):
        return exact_elbo_in_chunks(problem, params)
    return mean_of(score_sample(key, problem, params, num).log_ratios)


def exact_elbo_in_chunks(problem: Problem, params: PyTree) -> Estimate:
    """`exact_elbo` outside of compiled programs: chunks are added up in double precision, whatever JAX's precision."""
    if problem.expectation is not None:
        return Estimate(float(exact_elbo(problem, params)), 0.0)
    chunks = (_data_term(problem, params, rows) for _, rows in row_blocks(problem.model.data, DATA_CHUNK))
    return Estimate(sum(map(float, chunks), float(_other_terms(problem, params))), 0.0)


@tiered_jit
def _data_term(problem: Problem, params: PyTree, rows: PyTree) -> Float[Array, ""]:
    return jnp.sum(expected_log_likelihoods(problem, params, rows))


_other_terms = tiered_jit(expected_prior_and_entropy)
