# SPDX-License-Identifier: Apache-2.0
"""Large models, each fit in a process of its own.

    python -m experiments.bench.large
    python -m experiments.bench.large --models bradley-terry --methods mean-field,low-rank --float64

Ours runs at its defaults. NumPyro's SVI with `AutoNormal` and Adam runs for as many seconds, compilation included, as
`--seconds` says, at each of three rates. Every line has the seconds since the model was there, imports not counted, and
the ELBO then: ours and NumPyro's by the same function, which is exact where the structure of the model shows that, and
else the mean of `DRAWS` draws. `peak_mb` is the most memory that the process held.
"""

import argparse
import functools
import json
import resource
import subprocess
import sys
import time
from typing import Any

FAMILIES = {"mean-field": ("MeanField", {}), "low-rank": ("LowRank", {"rank": 5}), "full-rank": ("FullRank", {})}
RATES = (0.003, 0.01, 0.03)
CHUNK = 100
"""Steps of SVI between two looks at the clock."""
DRAWS = 1000
"""For an ELBO that is not exact."""


def fit(name: str, family_name: str) -> dict[str, Any]:
    """One fit of ours."""
    import jax

    import quell
    from experiments.bench.large.models import MODELS
    from quell.diagnostics import estimate_elbo
    from quell.evaluation import exactly, has_exact_elbo

    large, began = MODELS[name](), time.perf_counter()
    model = quell.from_numpyro(large.model, **large.data)
    name_of_family, settings = FAMILIES[family_name]
    family: Any = getattr(quell, name_of_family)
    result = quell.fit(model, family(model.dim, **settings), key=jax.random.key(0))
    jax.block_until_ready(result.params)
    seconds, peak = time.perf_counter() - began, _peak_mb()
    problem = result.problem if has_exact_elbo(result.problem) else exactly(result.problem)
    elbo = estimate_elbo(jax.random.key(1), problem, result.params, num=DRAWS)
    return {
        "dim": model.dim,
        "seconds": round(seconds, 2),
        "peak_mb": peak,
        "elbo": round(elbo.value, 2),
        "se": round(elbo.standard_error, 3),
        "status": result.status.name,
        "gap": None if result.gap is None else round(result.gap.value, 4),
        "steps": result.history.num_steps,
        "gradients": result.num_gradients,
        "choice": None if result.choice is None else result.choice.reason,
        "warnings": [warning[:160] for warning in result.warnings],
    }


def svi(name: str, rate: float, seconds: float) -> dict[str, Any]:
    """NumPyro's SVI; the ELBO of each of some chunks is found after the clock has stopped."""
    import jax
    import numpyro
    from numpyro import infer
    from numpyro.infer.autoguide import AutoNormal

    import quell
    from experiments.bench.large.models import MODELS

    large, began = MODELS[name](), time.perf_counter()
    guide = AutoNormal(large.model)
    loop: Any = infer.SVI(large.model, guide, numpyro.optim.Adam(rate), infer.Trace_ELBO())
    state = loop.init(jax.random.key(0), **large.data)
    static = {key: value for key, value in large.data.items() if isinstance(value, int)}
    arrays = {key: value for key, value in large.data.items() if key not in static}

    @jax.jit
    def run(state: Any, arrays: dict[str, Any]) -> Any:
        return jax.lax.scan(lambda s, _: loop.update(s, **arrays, **static), state, length=CHUNK)[0]

    path = []
    while not path or path[-1][0] < seconds:
        state = jax.block_until_ready(run(state, arrays))
        path.append((time.perf_counter() - began, loop.get_params(state)))

    peak = _peak_mb()
    from quell.diagnostics import estimate_elbo
    from quell.evaluation import exactly
    from quell.families.location_scale import LocationScale

    model = quell.from_numpyro(large.model, **large.data)
    family = quell.MeanField(model.dim, log_scale=True)
    problem = exactly(quell.Problem(model, family))
    places = model.unravel(jax.numpy.arange(model.dim))

    def flat(found: dict[str, Any], part: str) -> jax.Array:
        nothing = jax.numpy.zeros(model.dim)
        pairs = [(place, found[f"{site}_auto_{part}"]) for site, place in places.items()]
        return functools.reduce(lambda z, pair: z.at[pair[0]].set(pair[1]), pairs, nothing)

    def elbo(found: dict[str, Any]) -> float:
        params = LocationScale(flat(found, "loc"), jax.numpy.log(flat(found, "scale")))
        return estimate_elbo(jax.random.key(1), problem, params, num=DRAWS).value

    looks = [path[round(part * (len(path) - 1) / 9)] for part in range(10)]
    curve = [(round(at, 2), round(elbo(found), 2)) for at, found in looks]
    return {"steps": len(path) * CHUNK, "peak_mb": peak, "curve": curve}


def _peak_mb() -> int:
    """The most memory that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def main() -> None:
    """Run what is asked for and print a line of JSON for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="bradley-terry,households,crossed")
    parser.add_argument("--methods", default="mean-field,low-rank,numpyro")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--float64", action="store_true")
    parser.add_argument("--rate", type=float, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rate is None:
        for name in arguments.models.split(","):
            for method in arguments.methods.split(","):
                for rate in RATES if method == "numpyro" else (0.0,):
                    _run_apart(name, method, rate, arguments)
        return
    import jax

    jax.config.update("jax_enable_x64", arguments.float64)
    name, method = arguments.models, arguments.methods
    found = svi(name, arguments.rate, arguments.seconds) if method == "numpyro" else fit(name, method)
    print(
        json.dumps({"model": name, "method": method, **({"rate": arguments.rate} if arguments.rate else {}), **found})
    )


def _run_apart(name: str, method: str, rate: float, arguments: argparse.Namespace) -> None:
    command = [sys.executable, "-m", "experiments.bench.large", "--models", name, "--methods", method]
    command += ["--rate", str(rate), "--seconds", str(arguments.seconds)]
    subprocess.run([*command, "--float64"] if arguments.float64 else command, check=False)


if __name__ == "__main__":
    main()
