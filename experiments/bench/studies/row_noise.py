# SPDX-License-Identifier: Apache-2.0
"""What variates add when the latent makes no noise, only the choice of a minibatch does.

The variance of one gradient at the optimum, with weights that each set of variates has learned there.

    python -m experiments.bench.studies.row_noise
"""

import itertools

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax

import quell
from quell.models import AbstractModel

CF, ALL = quell.ClosedForm(), quell.ClosedForm(full_data=True)
VARIATES = {
    "none": [],
    "c5": [quell.paper.VARIATES["c5"]],
    "c6": [quell.paper.VARIATES["c6"]],
    "anchored quadratic": [quell.literature.anchored()],
    "taylor(data): cf - cf[all]": [quell.ControlVariate(quell.Data(), CF, ALL, approximation=quell.TaylorInLatent())],
}
BATCH = 10


def models() -> dict[str, AbstractModel]:
    """A logistic regression, and a regression in NumPyro of one feature on ten others."""
    data = quell.paper.load("ionosphere")

    def student(x: np.ndarray, y: np.ndarray) -> None:
        weights = numpyro.sample("weights", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
        scale, freedom = numpyro.sample("scale", dist.HalfNormal(1)), numpyro.sample("freedom", dist.Gamma(2, 0.1))
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("y", dist.StudentT(freedom, x @ weights, scale), obs=y)

    features = np.asarray(data.features)
    return {
        "logistic": quell.logistic_regression(data.features, data.labels),
        "Student-t": quell.from_numpyro(student, features[:, 1:11], features[:, 12]),
    }


def variance(
    model: AbstractModel,
    data: quell.Reparameterization | quell.ClosedForm,
    variates: list[quell.ControlVariate],
    *,
    steps: int,
    num: int,
) -> float:
    """Of one gradient at the optimum, with weights that were learned there.

    Args:
        model: in memory.
        data: the estimator of the data term; the prior has a closed form where it is known.
        variates: that are added to it.
        steps: that learn the weights, and do not move.
        num: gradients that are drawn.
    """
    family = quell.FullRank(model.dim)
    closed = CF.refuses(quell.Problem(model, family), quell.Prior()) is None
    base = quell.BaseGradient(data, CF if closed else quell.Reparameterization())
    best = quell.fit(model, family, key=jax.random.key(0), khat=False)
    result = quell.fit(
        model,
        family,
        base=base,
        variates=variates,
        sampler=quell.Sampler(1, BATCH),
        optimizer=optax.sgd(0.0),
        params=best.params,
        steps=steps,
        key=jax.random.key(1),
        khat=False,
    )
    found = quell.diagnostics.gradient_variance(
        jax.random.key(2), result.gradient, result.params, result.state, num=num
    )
    return found.total.combined.value


def table(*, steps: int = 600, num: int = 2000) -> list[tuple[str, list[float]]]:
    """A row for each set of variates: for each model, the variance with a sampled latent and with exact rows."""
    found = []
    for name, variates in {**VARIATES, "all": list(itertools.chain(*VARIATES.values()))}.items():
        cells = [
            variance(model, data, variates, steps=steps, num=num)
            for model in models().values()
            for data in (quell.Reparameterization(), CF)
        ]
        found.append((name, cells))
    return found


if __name__ == "__main__":
    print("| variates | " + " | ".join(f"{name}, {kind}" for name in models() for kind in ("sampled", "exact")) + " |")
    print("|---" * 5 + "|")
    for name, cells in table():
        print(f"| {name} | " + " | ".join(f"{cell:.3g}" for cell in cells) + " |")
