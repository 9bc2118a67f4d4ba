# SPDX-License-Identifier: Apache-2.0
"""Kill a checkpointed fit with SIGKILL at random moments, go on each time, and compare with a fit left alone.

`python tests/kill_resume.py --kills 20` says at the end whether every checkpoint found was whole, and whether the fit
is the same bit for bit.
"""

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

import jax
import numpy as np

import quell
from quell.fit.checkpoint.file import read_contents

EVERY = 5


def run_fit(path: Path, cache: Path, steps: int) -> None:
    """A small fit with state in every corner: Adam, moments, an average, a moving baseline."""
    jax.config.update("jax_compilation_cache_dir", str(cache))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    model = quell.gaussian_regression([[1.0], [2.0], [-1.0]], [0.3, 1.1, -0.2], noise=0.5)
    baseline = quell.Baseline("moving-average")
    variate = quell.ControlVariate(quell.Data(), quell.ScoreFunction(), quell.ClosedForm(), approximation=baseline)
    quell.fit(
        model,
        quell.MeanField(1),
        variates=[variate],
        steps=steps,
        average_from=0.5,
        checkpoint=quell.Checkpoint(path, every_steps=EVERY, resume=True),
        key=jax.random.key(7),
    )


def start(path: Path, cache: Path, steps: int) -> int:
    """A process of its own that fits; forked before JAX has started, so that nothing is imported twice."""
    child = os.fork()
    if child:
        return child
    try:
        run_fit(path, cache, steps)
    except BaseException as error:
        print(f"the fit failed: {error!r}", file=sys.stderr)
        os._exit(1)
    os._exit(0)


def finish(path: Path, cache: Path, steps: int) -> dict[str, np.ndarray]:
    """Let a fit run to its end, and return all that its checkpoint holds."""
    _, status = os.waitpid(start(path, cache, steps), 0)
    if status != 0:
        raise SystemExit(f"The fit at {path} ended with status {status}.")
    return read_contents(path).arrays


def kill_once(path: Path, cache: Path, steps: int, rng: random.Random) -> int:
    """Start or resume, and kill a little after some checkpoints were written; returns the step that was found then."""
    child = start(path, cache, steps)
    seen, wanted, last = 0, rng.randint(1, 8), _stamp(path)
    while seen < wanted and os.waitpid(child, os.WNOHANG) == (0, 0):
        now = _stamp(path)
        seen, last = seen + (now != last), now
        time.sleep(0.0005)
    if seen < wanted:
        raise SystemExit("The fit was over before it could be killed: it needs more steps.")
    time.sleep(rng.uniform(0.0, 0.02))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return int(read_contents(path).header["step"])


def _stamp(path: Path) -> int:
    return path.stat().st_ino if path.exists() else 0


def main() -> None:
    """Kill, resume, compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        cache, path = Path(folder) / "cache", Path(folder) / "killed.quell"
        alone = finish(Path(folder) / "alone.quell", cache, options.steps)
        steps, unfinished = [], 0
        for _ in range(options.kills):
            steps.append(kill_once(path, cache, options.steps, rng))
            unfinished += len(list(path.parent.glob(".killed.quell.*")))
        killed = finish(path, cache, options.steps)
        same = killed.keys() == alone.keys() and all(
            killed[name].tobytes() == alone[name].tobytes() and killed[name].dtype == alone[name].dtype
            for name in alone
        )
        print(f"killed at steps {steps}; {unfinished} of them while a checkpoint was being written")
        print("all checkpoints were whole;", "the same bit for bit" if same else "NOT THE SAME")
        left = sorted(found.name for found in path.parent.iterdir())
        if not same or steps != sorted(steps) or left != ["alone.quell", "cache", "killed.quell"]:
            raise SystemExit(f"left in the folder: {left}")


if __name__ == "__main__":
    main()
