# SPDX-License-Identifier: Apache-2.0
"""Fit a logistic regression whose data are larger than memory may be, and measure memory, time and the gap.

    python -m experiments.bench.studies.larger_than_memory --gigabytes 20 --folder /data

The data are blocks of random features, repeated on disk with other labels in each block. The fit runs in a process of
its own, so that its peak of resident memory is that of the fit alone. The gap to the optimum is what one more step of
Newton's method could gain, by the exact gradient in double precision at the parameters found: half of its squared norm
in the natural metric, which near the optimum is the gap itself.
"""

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

DIM = 100
BLOCK = 2**17
KINDS = ("exact", "minibatches")
BLOCKS = 8
"""Different blocks of features; a larger data set repeats them."""


def write(folder: Path, gigabytes: float) -> int:
    """Write features and labels a block at a time; returns the number of rows."""
    num = int(gigabytes * 1e9 / (4 * DIM))
    rng = np.random.default_rng(2018)
    weights = rng.normal(size=DIM) / np.sqrt(DIM)
    blocks = [rng.normal(size=(BLOCK, DIM)).astype(np.float32) for _ in range(BLOCKS)]
    chances = [1.0 / (1.0 + np.exp(-block @ weights)) for block in blocks]
    features = np.lib.format.open_memmap(folder / "features.npy", mode="w+", dtype=np.float32, shape=(num, DIM))
    del features  # the header is written, and the file has its length
    header = (folder / "features.npy").stat().st_size - 4 * num * DIM
    labels = np.empty(num, np.int8)
    with (folder / "features.npy").open("r+b") as file:
        file.seek(header)
        for start in range(0, num, BLOCK):
            which, size = (start // BLOCK) % BLOCKS, min(BLOCK, num - start)
            file.write(blocks[which][:size].tobytes())
            labels[start : start + size] = rng.uniform(size=size) < chances[which][:size]
    np.save(folder / "labels.npy", labels)
    return num


def make_model(folder: Path):
    import quell

    rows = quell.DiskRows({name: folder / f"{name}.npy" for name in ("features", "labels")})
    return quell.logistic_regression(rows["features"], rows["labels"])


def fit(folder: Path, kind: str) -> None:
    """In a process of its own: fit, and print what was measured as JSON."""
    import jax

    import quell

    began = time.perf_counter()
    model = make_model(folder)
    checked = time.perf_counter() - began
    options = {} if kind == "exact" else {"sampler": quell.Sampler(10, 100), "steps": 1000}
    began = time.perf_counter()
    seen = []

    def watch(progress: quell.FitProgress) -> None:
        seen.append((time.perf_counter(), progress.step))
        print(f"  step {progress.step} after {seen[-1][0] - began:.0f} s", file=sys.stderr, flush=True)

    result = quell.fit(model, quell.FullRank(model.dim), key=jax.random.key(0), callback=watch, **options)
    fitted = time.perf_counter() - began
    (before, first), (after, last) = seen[-2:]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    high = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), None)
    told = {"kind": kind, "check_seconds": checked, "fit_seconds": fitted, "steps": result.history.num_steps}
    told["step_seconds"] = (after - before) / (last - first)
    told |= {"status": result.status.name}
    told |= {"ru_maxrss": peak, "VmHWM": high}
    np.savez(folder / "params.npz", loc=result.params.loc, scale=result.params.scale)
    print(json.dumps(told))


def gap(folder: Path) -> None:
    """In a process of its own: print the nats that a step of Newton's method could gain, in double precision."""
    import equinox as eqx
    import jax

    jax.config.update("jax_enable_x64", True)
    import quell
    from quell.fit.natural_gradient import natural_sq_norm

    exact = quell.BaseGradient(quell.ClosedForm(full_data=True), quell.ClosedForm(), quell.ClosedForm())
    model = make_model(folder)
    gradient = quell.Gradient(quell.Problem(model, quell.FullRank(model.dim)), base=exact)
    with np.load(folder / "params.npz") as found:
        params = quell.LocationScale(*(jax.numpy.asarray(found[name], float) for name in ("loc", "scale")))
    state = gradient.init(params)
    loss_grad, _, _ = eqx.filter_jit(gradient.update)(jax.random.key(0), params, state)
    print(json.dumps({"gap": 0.5 * float(natural_sq_norm(gradient.problem, params, loss_grad))}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=4.0)
    parser.add_argument("--folder", type=Path, default=None, help="where the data are written, and removed at the end")
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=KINDS)
    parser.add_argument("--child", choices=(*KINDS, "gap"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child is not None:
        return gap(given.folder) if given.child == "gap" else fit(given.folder, given.child)
    folder = Path(tempfile.mkdtemp(prefix="larger-than-memory-", dir=given.folder))

    def run(child: str) -> dict:
        command = [sys.executable, __file__, "--folder", str(folder), "--child", child]
        out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        return json.loads(out.stdout.strip().splitlines()[-1])

    try:
        began = time.perf_counter()
        num = write(folder, given.gigabytes)
        wrote = time.perf_counter() - began
        print(f"{given.gigabytes:g} GB, {num} rows, d = {DIM}, written in {wrote:.0f} s", flush=True)
        for kind in given.kinds:
            told = run(kind)
            peaks = f"{told['ru_maxrss'] / 1e6:.0f} MB resident at most (VmHWM {(told['VmHWM'] or 0) / 1e6:.0f} MB)"
            times = f"checked in {told['check_seconds']:.0f} s, {told['steps']} steps in {told['fit_seconds']:.0f} s"
            times += f", the last of them {told['step_seconds']:.3g} s each"
            print(f"{kind}: {peaks}; {times}; {told['status']}", flush=True)
            began = time.perf_counter()
            left = run("gap")["gap"]
            print(f"  {left:.3g} nats from the optimum (seen in {time.perf_counter() - began:.0f} s)", flush=True)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
