# SPDX-License-Identifier: Apache-2.0
"""One line changed in a NumPyro script: steps until the ELBO stays near its best, and the ELBO at the end.

    python -m experiments.bench.studies.one_line_swap [--steps 4000] [--runs 9] [--out FILE.json]

Logistic regression (sonar, minibatches of 20 rows through a subsampled plate) and eight schools, with four guides.
Both methods have NumPyro's Adam at the same rate, for four rates, and the same number of model evaluations per step,
and are compared by NumPyro's own ELBO at the same 2,000 samples. The steps are those after which the median ELBO of the
runs stays within 1 or 0.1 nat of the best median of any rate and either method (null where it never does), and the gap
is that at the end (null where the parameters have diverged).
"""

import argparse
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import (
    AutoDiagonalNormal,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
    AutoNormal,
)
from numpyro.infer.reparam import LocScaleReparam

import quell
from quell import adapters

RATES = (0.1, 0.03, 0.01, 0.003)
GUIDES = (AutoDiagonalNormal, AutoNormal, AutoMultivariateNormal, AutoLowRankMultivariateNormal)
SNAPSHOTS = 40
DISTANCES = (1.0, 0.1)
LARGEST = 0.0
"""A log joint of these models is below this; a larger estimate is that of parameters that have diverged."""


def logistic(x, y, subsample_size=None):
    weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", x.shape[0], subsample_size=subsample_size):
        x, y = numpyro.subsample(x, event_dim=1), numpyro.subsample(y, event_dim=0)
        numpyro.sample("y", dist.Bernoulli(logits=x @ weights), obs=y)


def eight_schools(sigma, y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    with numpyro.plate("school", 8):
        with numpyro.handlers.reparam(config={"theta": LocScaleReparam(0)}):
            theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("y", dist.Normal(theta, sigma), obs=y)


def problems():
    data = quell.paper.load("sonar")
    sigma = jnp.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
    y = jnp.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
    return {
        "logistic": (logistic, (jnp.asarray(data.features), jnp.asarray(data.labels > 0, int)), {"subsample_size": 20}),
        "eight schools": (eight_schools, (sigma, y), {}),
    }


def curves(svi_class, loss, model, guide_class, args, kwargs, *, rate, steps, runs):
    """ELBO at the snapshots, one row per run."""
    guide = guide_class(model, init_loc_fn=numpyro.infer.init_to_median)
    svi = svi_class(model, guide, numpyro.optim.Adam(rate), loss)
    first = svi.init(jax.random.key(0), *args, **kwargs)  # sets the guide up outside of the compiled program

    def run(key):
        def chunk(state, _):
            state, _ = jax.lax.scan(
                lambda now, _: svi.update(now, *args, **kwargs), state, None, length=steps // SNAPSHOTS
            )
            return state, svi.get_params(state)

        return jax.lax.scan(chunk, first._replace(rng_key=key), None, length=SNAPSHOTS)[1]

    def elbo(params):
        return -Trace_ELBO(num_particles=2000).loss(jax.random.key(1), params, model, guide, *args)

    snapshots = jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(2), runs))
    return np.asarray(jax.jit(lambda tree: jax.lax.map(lambda one: jax.lax.map(elbo, one), tree))(snapshots))


def steps_to_stay_above(level, curve, steps):
    """The step of the first snapshot from which on a curve stays above a level; `None` if there is none."""
    near = curve > level
    if not near[-1]:
        return None
    last_far = np.flatnonzero(~near)
    return int((last_far[-1] + 2 if last_far.size else 1) * steps / SNAPSHOTS)


def compare(steps, runs):
    rows = []
    for problem, (model, args, kwargs) in problems().items():
        for guide in GUIDES:
            found = {}
            methods = {"numpyro": (SVI, Trace_ELBO()), "quell": (adapters.SVI, adapters.EnsembleELBO(same_data=True))}
            for name, (svi_class, loss) in methods.items():
                tried = {
                    rate: curves(svi_class, loss, model, guide, args, kwargs, rate=rate, steps=steps, runs=runs)
                    for rate in RATES
                }
                usable = {rate: np.where(curve < LARGEST, curve, -np.inf) for rate, curve in tried.items()}
                found[name] = {rate: np.median(curve, axis=0) for rate, curve in usable.items()}
            best = max(float(curve.max()) for by_rate in found.values() for curve in by_rate.values())
            for rate in RATES:
                for name, by_rate in found.items():
                    curve = by_rate[rate]
                    row = {"problem": problem, "guide": guide.__name__, "rate": rate, "method": name}
                    for distance in DISTANCES:
                        row[f"steps_to_{distance:g}_nat"] = steps_to_stay_above(best - distance, curve, steps)
                    row["final_gap"] = float(best - curve[-1]) if np.isfinite(curve[-1]) else None
                    rows.append(row)
                    print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows = compare(args.steps, args.runs)
    if args.out is not None:
        args.out.write_text(json.dumps({"steps": args.steps, "runs": args.runs, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
