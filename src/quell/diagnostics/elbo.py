# SPDX-License-Identifier: Apache-2.0
"""The ELBO over all data: exact where there is a way, else with a standard error."""

import dataclasses

from jaxtyping import Array, Float, Key, PyTree

from quell.core.checks import check_count, check_key
from quell.core.compilation import quick_jit
from quell.data.access import row_blocks
from quell.diagnostics.densities import DATA_CHUNK, ScoredSample, score_sample
from quell.diagnostics.estimate import Estimate, mean_of
from quell.evaluation import Problem, exact_elbo, has_exact_elbo


def estimate_elbo(key: Key[Array, ""], problem: Problem, params: PyTree, *, num: int = 1000) -> Estimate:
    r"""The ELBO in nats over all data, exact where possible, else the average of \(\log p(x, Z) - \log q(Z)\).

    Args:
        key: for the samples.
        problem: model and family.
        params: of the family.
        num: samples, where they are needed; at least 2.

    Returns:
        The ELBO, with the standard error 0 where `exact_elbo` knows it.

    Bias: none.
    Cost: `num` evaluations of the likelihood of all data, or one pass over the data where it is exact; in chunks.
    """
    check_key(key)
    check_count("num", num, least=2)
    if has_exact_elbo(problem):
        return exact_elbo_in_chunks(problem, params)
    return elbo_of(score_sample(key, problem, params, num))


_exact_elbo = quick_jit(exact_elbo)


@quick_jit
def _without_data(problem: Problem, params: PyTree) -> Float[Array, ""]:
    family = problem.family
    prior = problem.model.prior.quadratic(family.mean(params))
    assert prior is not None, "there is an exact ELBO"
    return family.expected_quadratic(params, prior) + family.entropy(params)


def elbo_of(sample: ScoredSample) -> Estimate:
    """The ELBO from samples and their densities."""
    return mean_of(sample.log_ratios)


def exact_elbo_in_chunks(problem: Problem, params: PyTree) -> Estimate:
    """The data terms of all chunks, and once what does not depend on the data."""
    model, family = problem.model, problem.family
    rest = float(_without_data(problem, params))
    total = rest
    for _, rows in row_blocks(model.data, DATA_CHUNK):
        chunk = Problem(dataclasses.replace(model, data=rows), family)
        total += float(_exact_elbo(chunk, params)) - rest
    return Estimate(total, 0.0)
