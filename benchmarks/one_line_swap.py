# SPDX-License-Identifier: Apache-2.0
"""One line changed in a NumPyro script: steps until the ELBO has settled, and the ELBO at the end.

    python benchmarks/one_line_swap.py [--steps 2000] [--runs 5] [--out FILE.json]

Logistic regression (sonar, minibatches of 20 rows through a subsampled plate) and eight schools, with four guides.
Both sides have the same optimiser (NumPyro's Adam, the rate of a grid that ends best for each), the same number of
model evaluations a step, and are judged by NumPyro's own ELBO at the same 2,000 samples. `steps` is the first of the
snapshots from which on the ELBO stays within half a nat of the best value that any of the runs has reached.
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
NEAR = 0.5


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
    """ELBO at the snapshots, a row a run."""
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


def settled(curve, best, steps):
    """The first snapshot from which on the median curve stays near the best value; `None` if there is none."""
    near = curve > best - NEAR
    if not near[-1]:
        return None
    last_far = np.flatnonzero(~near)
    return int((last_far[-1] + 2 if last_far.size else 1) * steps / SNAPSHOTS)


def compare(steps, runs):
    rows = []
    for problem, (model, args, kwargs) in problems().items():
        for guide in GUIDES:
            found = {}
            sides = {"numpyro": (SVI, Trace_ELBO()), "quell": (adapters.SVI, adapters.EnsembleELBO())}
            for name, (svi_class, loss) in sides.items():
                tried = {
                    rate: curves(svi_class, loss, model, guide, args, kwargs, rate=rate, steps=steps, runs=runs)
                    for rate in RATES
                }
                found[name] = {rate: np.nan_to_num(curve, nan=-np.inf) for rate, curve in tried.items()}
            best = max(float(np.median(c, axis=0).max()) for by_rate in found.values() for c in by_rate.values())
            for name, by_rate in found.items():
                medians = {rate: np.median(curve, axis=0) for rate, curve in by_rate.items()}
                soonest = {rate: settled(curve, best, steps) for rate, curve in medians.items()}
                rate = min(medians, key=lambda r: (soonest[r] or np.inf, -medians[r][-1]))
                row = {
                    "problem": problem,
                    "guide": guide.__name__,
                    "method": name,
                    "rate": rate,
                    "steps": soonest[rate],
                    "final_elbo": max(float(curve[-1]) for curve in medians.values()),
                }
                rows.append(row)
                shown = "never" if row["steps"] is None else f"{row['steps']:5d}"
                print(
                    f"{problem:14} {row['guide']:30} {name:8} rate {rate:<6} steps {shown}  "
                    f"final {row['final_elbo']:.2f}",
                    flush=True,
                )
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows = compare(args.steps, args.runs)
    if args.out is not None:
        args.out.write_text(json.dumps({"steps": args.steps, "runs": args.runs, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
