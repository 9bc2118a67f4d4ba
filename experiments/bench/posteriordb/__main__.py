# SPDX-License-Identifier: Apache-2.0
"""One posterior, one method, one fresh process, one line of JSON.

`seconds_total` runs from the end of all imports to 1,000 draws of every reference parameter as NumPy arrays: reading
the model, tracing, compilation, the fit and the draws. Reading the data from disk is not part of it. `cpu_total` is the
same in CPU seconds of all threads, and `seconds_warm` those of a second fit with another key in the same process. JAX's
persistent compilation cache is off.
"""

import json
import os
import time
import warnings
from pathlib import Path
from typing import Annotated, Any

_BEGAN = time.perf_counter()

import jax  # noqa: E402
import typer  # noqa: E402

from experiments.bench.posteriordb.accuracy import moment_errors  # noqa: E402
from experiments.bench.posteriordb.methods import IN_DOUBLE_PRECISION, load  # noqa: E402
from experiments.bench.posteriordb.methods.base import Method  # noqa: E402
from experiments.bench.posteriordb.ports import PORTS  # noqa: E402
from experiments.bench.posteriordb.ports.port import Port  # noqa: E402
from experiments.bench.posteriordb.source import PosteriorFolder, Reference  # noqa: E402
from experiments.bench.posteriordb.stopwatch import Stopwatch  # noqa: E402
from experiments.common.json_value import json_value  # noqa: E402


def main(name: str, method: str, posteriordb: Annotated[Path, typer.Option()], seed: int = 0) -> None:
    """Fit a posterior and print one line of JSON."""
    run = load(method)
    seconds_import = round(time.perf_counter() - _BEGAN, 3)
    folder = PosteriorFolder(posteriordb)
    data, is_double = folder.data(name), method in IN_DOUBLE_PRECISION
    jax.config.update("jax_enable_compilation_cache", False)
    jax.config.update("jax_enable_x64", is_double)
    port = PORTS[name](data)
    jax.config.update("jax_enable_x64", is_double or port.x64)
    record = {"posterior": name, "method": method, "seconds_import": seconds_import}
    record |= fit_and_evaluate(port, run, folder.reference(name), seed)
    record |= {"x64": is_double or port.x64, "seed": seed, "jax": jax.__version__, "load": round(os.getloadavg()[0], 2)}
    print(json.dumps({key: json_value(value) for key, value in record.items()}))


def fit_and_evaluate(port: Port, method: Method, reference: Reference, seed: int) -> dict[str, Any]:
    """Seconds, facts and errors of a fit; an exception becomes the status `error`."""
    record: dict[str, Any] = {"status": "error", "steps": None}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        watch = Stopwatch()
        try:
            run = method(port, jax.random.key(seed), watch)
            watch.stop()
            draws, facts = run.evaluate()
            record |= facts | moment_errors(draws, port.names, reference)
            if run.again is not None:
                began = time.perf_counter()
                run.again(jax.random.key(seed + 1))
                record["seconds_warm"] = round(time.perf_counter() - began, 4)
        except Exception as error:
            watch.stop()
            record["error"] = f"{type(error).__name__}: {error}"
        messages = [f"{one.category.__name__}: {one.message}" for one in caught]
    return {"seconds_total": watch.total, **record, **watch.record(), "warnings": list(dict.fromkeys(messages))}


if __name__ == "__main__":
    typer.run(main)
