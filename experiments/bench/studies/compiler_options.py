# SPDX-License-Identifier: Apache-2.0
"""Seconds to compile a fit's steps and microseconds of a step, for each set of XLA's options.

Three programs: Newton steps on common random numbers (`network`), Newton steps on exact expectations (`sonar`), and
natural-gradient steps with the paper's seven variates (`sonar`). Every set of options is compiled from the same lowered
program, and timed in turn with the others; the fastest of several times counts.

    python -m experiments.bench.studies.compiler_options
"""

import time
from typing import Any

import equinox as eqx
import jax
import numpy as np

import quell
from experiments.bench.problems import make_problem
from quell.fit.plan import FitPlan
from quell.fit.step import take_step

LEVEL, EMITTERS = "xla_backend_optimization_level", "xla_cpu_use_fusion_emitters"
OPTIONS: dict[str, dict[str, dict[str, Any]]] = {
    "cpu": {
        "default": {LEVEL: 3},
        "level 2": {LEVEL: 2},
        "level 1": {LEVEL: 1},
        "level 0": {LEVEL: 0},
        "no emitters": {EMITTERS: False},
        "level 1, no emitters": {LEVEL: 1, EMITTERS: False},
        "level 0, no emitters": {LEVEL: 0, EMITTERS: False},
        "level 1, no emitters, no expensive passes": {
            LEVEL: 1,
            EMITTERS: False,
            "xla_llvm_disable_expensive_passes": True,
        },
    },
    "gpu": {
        "default": {LEVEL: 3},
        "level 1": {LEVEL: 1},
        "level 0": {LEVEL: 0},
        "no autotuning": {"xla_gpu_autotune_level": 0},
        "no Triton products": {"xla_gpu_enable_triton_gemm": False},
        "no command buffers": {"xla_gpu_enable_command_buffer": ""},
        "level 1, no autotuning": {LEVEL: 1, "xla_gpu_autotune_level": 0},
    },
}
STEPS, RUNS = 20, 5


def programs() -> dict[str, FitPlan]:
    """Plans of fits, by name."""
    network, sonar = make_problem("network").problem, make_problem("sonar").problem
    seven = quell.FitOptions(variates=quell.paper.variates("S7"), sampler=quell.Sampler(10, 1))
    plans = {"network, draws": (network, quell.FitOptions()), "sonar, exact": (sonar, quell.FitOptions())}
    plans["sonar, seven variates"] = (sonar, seven)
    key = jax.random.key(0)
    return {name: FitPlan.of(options, one.model, one.family, key) for name, (one, options) in plans.items()}


def lowered(plan: FitPlan) -> tuple[Any, tuple[Any, ...]]:
    """The program of so many steps, and its arguments."""
    arrays, static = eqx.partition((plan.algorithm, plan.policy), eqx.is_array)

    def advance(arrays: Any, state: Any, key: jax.Array) -> Any:
        algorithm, policy = eqx.combine(arrays, static)
        return jax.lax.fori_loop(0, STEPS, lambda _, now: take_step(algorithm, policy, key, now)[0], state)

    given = arrays, plan.start, plan.key
    return jax.jit(advance).lower(*given), given


def main() -> None:
    """Print a table for each program."""
    backend = jax.default_backend()
    for name, plan in programs().items():
        began = time.perf_counter()
        program, given = lowered(plan)
        print(f"{name} on {backend}: traced and lowered in {time.perf_counter() - began:.2f} s", flush=True)
        program.compile()  # the first takes longer, whatever its options
        compiled, seconds = {}, {}
        for label, options in OPTIONS[backend].items():
            began = time.perf_counter()
            try:
                compiled[label] = program.compile(compiler_options=options)
            except RuntimeError as error:
                print(f"  {label:<45} refused: {str(error)[:60]}")
                continue
            seconds[label] = time.perf_counter() - began
        best = dict.fromkeys(compiled, np.inf)
        for _ in range(RUNS):
            for label, run in compiled.items():
                began = time.perf_counter()
                jax.block_until_ready(run(*given))
                best[label] = min(best[label], time.perf_counter() - began)
        for label, run in best.items():
            print(f"  {label:<45} compiles {seconds[label]:6.2f} s, a step {1e6 * run / STEPS:9.1f} us", flush=True)


if __name__ == "__main__":
    main()
