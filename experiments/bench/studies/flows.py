# SPDX-License-Identifier: Apache-2.0
"""Flows against NumPyro's: nats above the best Gaussian, and seconds, in a process of its own for each run.

Ours is `quell.Flow` with its defaults and fewer steps; NumPyro has `AutoIAFNormal` and `AutoBNAFNormal` with Adam
and a cosine, over rates and numbers of particles. A cold run counts all from after the imports to the draws; a warm one
is the same again in that process. ELBOs are means over 20,000 fresh draws.

    python -m experiments.bench.studies.flows --posteriordb DIR --out flows.json
"""

import argparse
import itertools
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

MODELS = ("banana", "funnel", "schools", "gp_pois_regr")
OURS = tuple(f"quell {steps}" for steps in (300, 1000, 2000))
PEERS = tuple(
    f"{guide} {particles} {rate}"
    for guide, particles, rate in itertools.product(("AutoIAFNormal", "AutoBNAFNormal"), (1, 10), (0.001, 0.005, 0.02))
)
STEPS = {1: 8000, 10: 3000}
DRAWS = 20_000


def model_of(name: str, folder: str | None) -> tuple[Any, tuple[Any, ...]]:
    """A function with NumPyro's primitives, and its arguments."""
    import jax.numpy as jnp
    import numpy as np
    import numpyro
    import numpyro.distributions as dist

    def nothing_seen() -> None:
        numpyro.sample("nothing", dist.Normal(0.0, 1.0), obs=0.0)

    def banana() -> None:
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(x**2 - 1.0, 0.3))
        nothing_seen()

    def funnel() -> None:
        v = numpyro.sample("v", dist.Normal(0.0, 3.0))
        numpyro.sample("x", dist.Normal(0.0, jnp.exp(v / 2)).expand([9]).to_event(1))
        nothing_seen()

    def schools() -> None:
        mean, spread = numpyro.sample("mean", dist.Normal(0, 5)), numpyro.sample("spread", dist.HalfCauchy(5))
        with numpyro.plate("schools", 8):
            effect = numpyro.sample("effect", dist.Normal(mean, spread))
            numpyro.sample("y", dist.Normal(effect, sds), obs=seen)

    seen, sds = np.array([28.0, 8, -3, 7, -1, 1, 18, 12]), np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
    if name != "gp_pois_regr":
        return {"banana": banana, "funnel": funnel, "schools": schools}[name], ()
    import jax

    from experiments.bench.posteriordb.ports import PORTS
    from experiments.bench.posteriordb.source import PosteriorFolder

    jax.config.update("jax_enable_x64", True)
    posterior = "gp_pois_regr-gp_pois_regr"
    port = PORTS[posterior](PosteriorFolder(Path(str(folder))).data(posterior))
    return port.model, port.args


def run_ours(name: str, folder: str | None, steps: int) -> dict[str, Any]:
    """`quell.fit` with a flow, cold and warm."""
    import jax

    import quell

    function, args = model_of(name, folder)
    seconds = []
    for _ in range(2):
        began = time.perf_counter()
        model = quell.from_numpyro(function, *args)
        result = quell.fit(model, quell.Flow(model.dim), key=jax.random.key(0), steps=steps)
        jax.block_until_ready(result.sample_flat(jax.random.key(1), 1000))
        seconds.append(time.perf_counter() - began)
    gaussian = quell.fit(model, key=jax.random.key(0))
    return {
        "elbo": result.elbo(jax.random.key(2), DRAWS).value,
        "gaussian": gaussian.final_elbo.value,
        "khat": result.final_khat.value,
        "cold": seconds[0],
        "warm": seconds[1],
    }


def run_peer(name: str, folder: str | None, guide: str, particles: int, rate: float) -> dict[str, Any]:
    """NumPyro's SVI, cold and warm."""
    import jax
    import optax
    from numpyro.infer import SVI, Trace_ELBO, autoguide

    function, args = model_of(name, folder)
    made, steps, seconds = getattr(autoguide, guide)(function), STEPS[particles], []
    optimizer = optax.adam(optax.cosine_decay_schedule(rate, steps))
    svi = SVI(function, made, optimizer, Trace_ELBO(num_particles=particles))
    many = jax.jit(lambda state: jax.lax.scan(lambda s, _: svi.update(s, *args), state, length=steps)[0])
    for _ in range(2):
        began = time.perf_counter()
        params = svi.get_params(many(svi.init(jax.random.key(0), *args)))
        jax.block_until_ready(made.sample_posterior(jax.random.key(1), params, sample_shape=(1000,)))
        seconds.append(time.perf_counter() - began)
    loss = jax.jit(lambda key: Trace_ELBO(num_particles=DRAWS).loss(key, params, function, made, *args))
    return {"elbo": -float(loss(jax.random.key(2))), "cold": seconds[0], "warm": seconds[1]}


def one(name: str, method: str, folder: str | None) -> dict[str, Any]:
    """One run, in this process."""
    kind, *settings = method.split()
    if kind == "quell":
        found = run_ours(name, folder, int(settings[0]))
    else:
        found = run_peer(name, folder, kind, int(settings[0]), float(settings[1]))
    return {"model": name, "method": method, **{key: round(value, 4) for key, value in found.items()}}


def main() -> None:
    """All runs, each in a process of its own; those that the file has are not run again."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--posteriordb", help="folder with data.json; without it one model is left out")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--methods", default=",".join((*OURS, *PEERS)))
    parser.add_argument("--out", type=Path, default=Path("flows.json"))
    parser.add_argument("--one", action="store_true", help="run in this process, and print the record")
    given = parser.parse_args()
    names, methods = given.models.split(","), given.methods.split(",")
    if given.one:
        print(json.dumps(one(names[0], methods[0], given.posteriordb)))
        return
    records = json.loads(given.out.read_text()) if given.out.exists() else []
    for name, method in itertools.product(names, methods):
        known = any(record["model"] == name and record["method"] == method for record in records)
        if known or (name == "gp_pois_regr" and given.posteriordb is None):
            continue
        folder = [] if given.posteriordb is None else ["--posteriordb", given.posteriordb]
        command = [sys.executable, "-m", __spec__.name, "--one", "--models", name, "--methods", method, *folder]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            print(f"{name}, {method}: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
            continue
        records.append(json.loads(done.stdout.splitlines()[-1]))
        print(records[-1])
        given.out.write_text(json.dumps(records, indent=1) + "\n")


if __name__ == "__main__":
    main()
