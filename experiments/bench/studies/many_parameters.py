# SPDX-License-Identifier: Apache-2.0
"""Fit models with very many coordinates and few rows, and measure memory and time.

    python -m experiments.bench.studies.many_parameters
    python -m experiments.bench.studies.many_parameters --cases logistic-auto --dim 100000

Each case runs in a process of its own. It makes the data, fits a model of the same kind with 1000 coordinates, so that
libraries and compiler are loaded, and then the large one. Its memory is the peak of resident memory above what was
resident before the large fit, data included in that: on a CPU the kernel's peak (Linux only), elsewhere the device's.
It is told in bytes, and in vectors of `d` single-precision numbers, in all and per replicate.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

SMALL = 1000
STEPS = 40
REPLICATES = 10
"""What a fit with natural-gradient steps takes by default."""


def counts_model(dim: int):
    """Counts with a log-rate each, in a hundred rows of one block of the latent each: no closed form."""
    import jax.numpy as jnp
    import numpy as np

    import quell

    width = dim // 100
    rng = np.random.default_rng(0)
    rates = np.exp(0.5 * rng.standard_normal((100, width), np.float32))
    data = {"which": jnp.arange(100), "counts": jnp.asarray(rng.poisson(rates), jnp.float32)}

    def log_likelihood(z, batch):
        logs = z.reshape(100, width)[batch["which"]]
        return jnp.sum(batch["counts"] * logs - jnp.exp(logs), axis=-1)

    return quell.Model(log_likelihood, quell.NormalPrior(), data, latent=100 * width)


def logistic_model(dim: int, rows: int):
    """Few rows of very many features."""
    import numpy as np

    import quell

    rng = np.random.default_rng(0)
    features = rng.standard_normal((rows, dim), np.float32) / np.float32(np.sqrt(dim))
    return quell.logistic_regression(features, rng.uniform(size=rows) < 0.5)


def named_variates():
    """One for each term, and the data term expanded in the latent."""
    import quell

    sample, exact = quell.Reparameterization(), quell.ClosedForm()
    terms = [quell.ControlVariate(term, sample, exact) for term in (quell.Variational(), quell.Prior(), quell.Data())]
    return [*terms, quell.ControlVariate(quell.Data(), sample, exact, quell.TaylorInLatent())]


def anchored_variates():
    """What a likelihood without a closed form can have: a diagonal in place of its Hessian."""
    import quell

    sample, exact = quell.Reparameterization(), quell.ClosedForm()
    terms = [quell.ControlVariate(term, sample, exact) for term in (quell.Variational(), quell.Prior())]
    kept = quell.ControlVariate(quell.Data(), sample, quell.ClosedForm(full_data=True), quell.AnchoredQuadratic())
    return [*terms, kept, quell.ControlVariate(quell.Data(), sample, exact, quell.FittedQuadratic())]


def cases() -> dict:
    """Name: default number of coordinates, model, family, options of the fit."""
    import quell

    def wide(dim):
        return logistic_model(dim, 32)

    def tall(dim):
        return logistic_model(dim, 200)

    def low_rank(dim):
        return quell.LowRank(dim, 10)

    # Samplers are named where they are, so that the gradient is sampled although every term has a closed form.
    sampled = {"sampler": quell.Sampler(REPLICATES)}
    shared = {"sampler": quell.Sampler(REPLICATES, 8, shared=True)}
    return {
        "logistic-auto": (10**6, wide, quell.MeanField, {}),
        "logistic-sampled": (10**6, wide, quell.MeanField, sampled),
        "logistic-named": (10**6, wide, quell.MeanField, {"variates": named_variates(), **sampled}),
        "logistic-minibatch": (10**6, wide, quell.MeanField, {"variates": named_variates(), **shared}),
        "counts-auto": (10**6, counts_model, quell.MeanField, {}),
        "counts-named": (10**6, counts_model, quell.MeanField, {"variates": anchored_variates(), **sampled}),
        "low-rank-auto": (10**5, tall, low_rank, {}),
        "low-rank-sampled": (10**5, tall, low_rank, sampled),
        "low-rank-named": (10**5, tall, low_rank, {"variates": named_variates(), **sampled}),
    }


def memory_now() -> int:
    """Bytes in use, from which the peak is counted anew: of this process, or of the device where that is another."""
    import jax

    if jax.default_backend() != "cpu":
        return jax.local_devices()[0].memory_stats()["bytes_in_use"]
    Path("/proc/self/clear_refs").write_text("5")  # the kernel forgets the peak that making the data had
    return _status("VmRSS")


def peak_memory() -> int:
    """Bytes in use at most: of this process since `memory_now`, of a device since the start."""
    import jax

    if jax.default_backend() != "cpu":
        return jax.local_devices()[0].memory_stats()["peak_bytes_in_use"]
    return _status("VmHWM")


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def measure(name: str, dim: int | None) -> None:
    """In a process of its own: fit, and print what was measured as JSON."""
    import jax

    import quell

    default, model_of, family_of, options = cases()[name]
    dim = dim or default
    model = model_of(dim)

    def fit(model, steps):
        family = family_of(model.dim)
        result = quell.fit(model, family, key=jax.random.key(0), steps=steps, progress=False, **options)
        return jax.block_until_ready(result.params), result

    fit(model_of(SMALL), STEPS)
    before = memory_now()
    began = time.perf_counter()
    params, result = fit(model, STEPS)
    seconds, peak = time.perf_counter() - began, peak_memory()
    history = result.history
    told = {"case": name, "device": jax.local_devices()[0].device_kind, "dim": model.dim, "rows": model.num_data}
    told |= {"steps": history.num_steps, "seconds": seconds, "bytes": peak - before, "status": result.status.name}
    told |= {
        "params": sum(leaf.size for leaf in jax.tree.leaves(params)),
        "elbo": [float(history.elbo[k]) for k in (0, -1)],
    }
    told |= {"replicates": 1 if result.choice is not None and result.choice.exact else REPLICATES}
    print(json.dumps(told))


def describe(told: dict) -> str:
    """One line of what a child has told."""
    vectors = told["bytes"] / (4 * told["dim"])
    each = f"{vectors / told['replicates']:.1f} per replicate" if told["replicates"] > 1 else "no samples"
    size = f"d = {told['dim']:,}, {told['params']:,} parameters, {told['rows']} rows"
    took = f"{told['seconds'] / told['steps']:.3f} s per step ({told['steps']} steps, compiling included)"
    memory = f"{told['bytes'] / 1e6:,.0f} MB above the data = {vectors:.0f} vectors, {each}"
    return f"{told['case']}: {size}; {took}; {memory}; ELBO {told['elbo'][0]:,.0f} to {told['elbo'][1]:,.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="*", help="all of them by default")
    parser.add_argument(
        "--dim", type=int, default=None, help="coordinates; by default a million, or 100,000 (low-rank)"
    )
    parser.add_argument("--json", type=Path, default=None, help="write what was measured to this file")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child is not None:
        return measure(given.child, given.dim)
    found = []
    for name in given.cases or list(cases()):
        command = [sys.executable, __file__, "--child", name, *(["--dim", str(given.dim)] if given.dim else [])]
        out = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        if out.returncode:
            print(f"{name}: failed with exit status {out.returncode}", flush=True)
            continue
        found.append(json.loads(out.stdout.strip().splitlines()[-1]))
        print(describe(found[-1]), flush=True)
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
