# SPDX-License-Identifier: Apache-2.0
"""One large model, one method with one setting, one fresh process: Gaussians along its way, and facts.

Seconds run from when the data are there, after all imports: reading the model, tracing, compilation and the fit.
`peak_mb` is the most memory that the process held then, and `device_mb` the most on its accelerator.
"""

import json
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import typer

from experiments.bench.large.methods import IN_DOUBLE_PRECISION, load
from experiments.bench.large.methods.base import Clock, peak_mb
from experiments.bench.large.models import MODELS
from experiments.common.json_value import json_value


def main(
    name: str,
    method: str,
    out: Annotated[Path, typer.Option(help="File of the Gaussians.")],
    setting: str = "{}",
    seconds: float = 30.0,
    seed: int = 0,
) -> None:
    """Fit a model, write its Gaussians and print a line of JSON."""
    run = load(method)
    jax.config.update("jax_enable_compilation_cache", False)
    jax.config.update("jax_enable_x64", method in IN_DOUBLE_PRECISION)
    large = MODELS[name]()
    jax.block_until_ready(large.split()[0])
    found = run(large, jax.random.key(seed), Clock(seconds), json.loads(setting))
    memory: dict[str, Any] = {"peak_mb": peak_mb()}
    on_device = jax.devices()[0].memory_stats()
    if on_device:
        memory["device_mb"] = on_device["peak_bytes_in_use"] >> 20
    last = found.looks[-1]
    looks = {
        "seconds": np.array([look.seconds for look in found.looks]),
        "means": np.stack([look.mean for look in found.looks]),
        "roots": np.stack([look.root for look in found.looks]),
    }
    np.savez(out, allow_pickle=False, **looks, **(found.arrays or {}))
    record = {"dim": last.mean.size, **memory, **found.facts, "backend": jax.default_backend(), "jax": jax.__version__}
    print(json.dumps({key: json_value(value) for key, value in record.items()}))


if __name__ == "__main__":
    typer.run(main)
