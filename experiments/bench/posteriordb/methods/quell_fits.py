# SPDX-License-Identifier: Apache-2.0
"""quell: `quell.from_numpyro` and `quell.fit` at their defaults."""

import functools
from typing import Any

import jax

import quell
from experiments.bench.posteriordb.methods.base import NUM_DRAWS, NUM_EVALUATED, Fitted, Run, as_arrays
from experiments.bench.posteriordb.ports.port import Port
from experiments.bench.posteriordb.stopwatch import Stopwatch


def run(
    port: Port,
    key: jax.Array,
    watch: Stopwatch,
    family_name: str,
    *,
    with_response: bool = False,
    corrected: bool | None = None,
) -> Run:
    """One family; on request with draws of linear response, or with those of the fit itself."""
    model = quell.from_numpyro(port.model, *port.args)
    watch.mark("read")

    def fit(key: jax.Array) -> tuple[Any, Any]:
        result = quell.fit(model, getattr(quell, family_name)(model.dim), key=key)
        drawn_from: Any = result.linear_response() if with_response else result
        jax.block_until_ready(result.params)
        return result, drawn_from

    def draw(drawn_from: Any, number: int, num: int) -> dict[str, Any]:
        options = {} if corrected is None else {"corrected": corrected}
        return drawn_from.sample(jax.random.fold_in(key, number), num, **options)

    result, drawn_from = fit(key)
    watch.mark("fit")
    as_arrays(draw(drawn_from, 1, NUM_DRAWS), port)
    watch.mark("draws")

    def evaluate() -> Fitted:
        facts = {
            "status": result.status.name,
            "steps": result.history.num_steps,
            "gradients": result.num_gradients,
            "gap": None if result.gap is None else [result.gap.value, result.gap.standard_error],
            "khat": result.final_khat.value,
            "elbo": result.final_elbo.value,
            "result_warnings": list(result.warnings),
            "num_data": model.num_data,
            "dim": model.dim,
        }
        if result.choice is not None:
            facts |= {"chosen": result.choice.reason, "base": result.choice.base}
        if result.corrects and corrected is None and not with_response:
            facts["effective"] = result.final_khat.effective  # of draws that are corrected
        return Fitted(draw(drawn_from, 2, NUM_EVALUATED), facts)

    def again(key: jax.Array) -> None:
        as_arrays(draw(fit(key)[1], 1, NUM_DRAWS), port)

    return Run(evaluate, again)


full_rank = functools.partial(run, family_name="FullRank")
plain = functools.partial(run, family_name="FullRank", corrected=False)
mean_field = functools.partial(run, family_name="MeanField")
linear_response = functools.partial(run, family_name="MeanField", with_response=True)
flow = functools.partial(run, family_name="Flow")
