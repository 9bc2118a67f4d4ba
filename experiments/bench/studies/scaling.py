# SPDX-License-Identifier: Apache-2.0
"""Cost per step on 1, 2, 4 and 8 devices: products, memory, bytes between devices, and seconds.

All but the seconds is read from the compiled program and is exact, whatever else the machine does. Simulated devices
share the cores of the machine: their seconds show overhead, and no speed-up.

    python -m experiments.bench.studies.scaling          # simulated CPU devices, one process per number, 7 minutes
    python -m experiments.bench.studies.scaling --gpu    # the accelerators that are there
"""

import argparse
import json
import math
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import quell
from quell.core.compilation import quick_lower
from quell.core.devices import checked_mesh, in_use
from quell.fit import FitOptions
from quell.fit.loop import run_chunk
from quell.fit.plan import FitPlan
from quell.models.quadrature import NUM_COARSE, NUM_FEW
from quell.models.row_sum import rows_for

DEVICES = (1, 2, 4, 8)
NEVER = 2**30
MOVES = ("all-reduce", "all-gather", "reduce-scatter", "collective-permute", "all-to-all")
SECONDS = 0.5
"""Of one timing, about."""

EXACT = quell.BaseGradient(quell.ClosedForm(full_data=True), quell.ClosedForm(), quell.ClosedForm())


class Sizes(NamedTuple):
    """N, d, B and k of docs/scaling.md."""

    num_data: int
    dim: int
    batch_size: int
    rank: int


TIMED, OTHER = Sizes(65_536, 64, 1_024, 8), Sizes(98_304, 40, 512, 5)
"""The formulas were written down from programs of the first sizes; those of the second test them."""


class Cost(NamedTuple):
    """Cost per step of one device.

    Attributes:
        flops: of matrix products.
        moved_bytes: of the results of collective operations.
        num_moves: how many of those there are.
    """

    flops: float = 0.0
    moved_bytes: float = 0.0
    num_moves: float = 0.0

    def plus(self, other: "Cost", times: float = 1.0) -> "Cost":
        return Cost(*(a + times * b for a, b in zip(self, other, strict=True)))


Formula = Callable[[Sizes, int], Cost]


class Program(NamedTuple):
    """A step to be measured.

    Attributes:
        options: of its fit.
        family: that is fitted.
        formula: its cost on a number of devices, as docs/scaling.md has it.
        branch: of two, the one that counts: the cheapest is a step without a refresh.
    """

    options: Callable[[Sizes], dict[str, Any]]
    family: Callable[[Sizes], Any]
    formula: Formula
    branch: Callable[..., Cost] = min


def joint(every: int) -> Callable[[Sizes], dict[str, Any]]:
    closed, quadratic = quell.ClosedForm(full_data=True), quell.AnchoredQuadratic(every=every)
    variate = quell.ControlVariate(quell.Data(), quell.Reparameterization(), closed, quadratic)
    return lambda sizes: {"variates": (variate,), "sampler": quell.Sampler(1, sizes.batch_size)}


def all_rows(sizes: Sizes) -> dict[str, Any]:
    return {"variates": (), "base": EXACT, "sampler": quell.Sampler(1)}


def of_exact(sizes: Sizes, p: int, num_summed: int, row_flops: int) -> Cost:
    """One sum at the end, and one number for each chunk of rows: the widest predictor, which decides on the nodes."""
    rows = sizes.num_data / p
    chunks = math.ceil(rows / rows_for(sizes.dim))
    return Cost(rows * (row_flops + 4 * NUM_FEW), 4 * (num_summed + chunks), 1 + chunks)


def of_mean_field(sizes: Sizes, p: int) -> Cost:
    return of_exact(sizes, p, 2 * sizes.dim + 1, 10 * sizes.dim)


def of_low_rank(sizes: Sizes, p: int) -> Cost:
    d, k = sizes.dim, sizes.rank
    return of_exact(sizes, p, d * (k + 2) + 1, 4 * d * k + 10 * d)


def of_full_rank(sizes: Sizes, p: int) -> Cost:
    d = sizes.dim
    return of_exact(sizes, p, d**2 + d + 1, 4 * d**2 + 6 * d).plus(Cost(8 * d**3))


def of_batch(sizes: Sizes, p: int) -> Cost:
    """The rows, and the sums of three gradients and a value."""
    d, size = sizes.dim, sizes.batch_size
    flops = size / p * (2 * d**2 + 12 * d + 4 * NUM_COARSE) + 8 * d**3
    return Cost(flops, 4 * size * (d + 1) + 4 * (3 * d + 1), 3)


def of_refresh(sizes: Sizes, p: int) -> Cost:
    """A minibatch, and the quadratic of all rows."""
    d = sizes.dim
    flops = sizes.num_data / p * (6 * d**2 + 4 * d + 8 * NUM_COARSE)
    return of_batch(sizes, p).plus(Cost(flops, 4 * (d**2 + d + 1), 1))


PROGRAMS = {
    "all rows, mean-field": Program(all_rows, lambda sizes: quell.MeanField(sizes.dim), of_mean_field),
    "all rows, low-rank": Program(all_rows, lambda sizes: quell.LowRank(sizes.dim, sizes.rank), of_low_rank),
    "all rows, full-rank": Program(all_rows, lambda sizes: quell.FullRank(sizes.dim), of_full_rank),
    "minibatch": Program(joint(NEVER), lambda sizes: quell.FullRank(sizes.dim), of_batch),
    "minibatch and refresh": Program(joint(1), lambda sizes: quell.FullRank(sizes.dim), of_refresh, branch=max),
}

COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{$")
INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([a-z][\w\-]*)\((.*)$")
ARRAY = re.compile(r"\b(pred|[sufc]\d+|bf16)\[([\d,]*)\]")
CALLED = re.compile(r"(?:calls|to_apply|body|true_computation|false_computation)=%?([\w.\-]+)")
BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
CONTRACTED = re.compile(r'lhs_contracting_dim(?:s=\{|ensions":\[)([\d,"]*)')


def read_program(text: str, branch: Callable[..., Cost]) -> Cost:
    """The cost of a compiled program: loops count as often as they run, and of branches the one that `branch` takes.

    A loop whose length is not known, as that over the steps of a fit, counts once.
    """
    computations, entry = split_computations(text)
    found: dict[str, Cost] = {}

    def cost_of(name: str) -> Cost:
        if name not in found:
            found[name] = Cost()
            shapes = {own: shape for own, shape, _, _ in computations[name]}
            for _, shape, kind, rest in computations[name]:
                found[name] = found[name].plus(cost_of_instruction(shapes, shape, kind, rest))
        return found[name]

    def cost_of_instruction(shapes: dict[str, str], shape: str, kind: str, rest: str) -> Cost:
        if kind == "dot" or (kind == "custom-call" and "__cublas$" in rest):
            return Cost(flops=dot_flops(shapes, shape, rest))
        if kind in MOVES:
            return Cost(0.0, sum(map(math.prod, arrays_of(shape))), 1.0)
        called = CALLED.findall(rest)
        if kind == "conditional":
            branches = [name.strip(" %") for found in BRANCHES.findall(rest) for name in found.split(",")]
            return branch(cost_of(name) for name in branches or called)
        if kind not in ("while", "fusion", "call"):
            return Cost()
        trips = TRIPS.search(rest) if kind == "while" else None
        return Cost().plus(cost_of(called[0]), float(trips.group(1)) if trips else 1.0)

    return cost_of(entry)


def split_computations(text: str) -> tuple[dict[str, list[tuple[str, str, str, str]]], str]:
    computations: dict[str, list[tuple[str, str, str, str]]] = {}
    entry = name = ""
    for line in text.splitlines():
        if head := COMPUTATION.match(line):
            name = head.group(1)
            computations[name] = []
            entry = name if line.startswith("ENTRY") else entry
        elif found := INSTRUCTION.match(line):
            computations[name].append(found.groups())  # pyright: ignore[reportArgumentType]
    return computations, entry


def arrays_of(shape: str) -> list[tuple[int, ...]]:
    """Bytes of a number and lengths of the axes, of each array in a type."""
    widths = {"pred": 1, "bf16": 2}
    return [
        (widths.get(kind) or int(kind[1:]) // 8, *(int(n) for n in axes.split(",") if n))
        for kind, axes in ARRAY.findall(shape)
    ]


def dot_flops(shapes: dict[str, str], shape: str, rest: str) -> float:
    left = rest.split(",")[0].split("%")[-1].strip(" )")
    axes = arrays_of(shapes[left])[0][1:]
    contracted = CONTRACTED.search(rest)
    length = math.prod(axes[int(k)] for k in contracted.group(1).replace('"', "").split(",") if k) if contracted else 1
    return 2.0 * math.prod(arrays_of(shape)[0][1:]) * length


def simulate(sizes: Sizes) -> Any:
    rng = np.random.default_rng(0)
    features = (rng.normal(size=(sizes.num_data, sizes.dim)) / np.sqrt(sizes.dim)).astype(np.float32)
    labels = features @ rng.normal(size=sizes.dim) + rng.logistic(size=sizes.num_data) > 0
    return quell.logistic_regression(features, labels.astype(np.float32))


def measure(name: str, sizes: Sizes, model: Any, num_devices: int) -> dict[str, Any]:
    program = PROGRAMS[name]
    mesh = checked_mesh("all") if num_devices > 1 else None
    options = FitOptions(**program.options(sizes), mesh=mesh)
    plan = FitPlan.of(options, model, program.family(sizes), jax.random.key(0))
    with in_use(mesh):
        args = (plan.algorithm, plan.policy, plan.key, plan.start, jnp.asarray(1))
        compiled = quick_lower(run_chunk.__wrapped__, *args).compile()  # pyright: ignore[reportFunctionMemberAccess]
        seconds = seconds_per_step(compiled, plan) if sizes == TIMED else None
    cost, memory = read_program(compiled.compiled.as_text(), program.branch), compiled.compiled.memory_analysis()
    expected = program.formula(sizes, num_devices)
    if num_devices == 1:
        expected = Cost(expected.flops)
    return {
        "program": name,
        **sizes._asdict(),
        "devices": num_devices,
        **cost._asdict(),
        **{f"expected_{key}": value for key, value in expected._asdict().items()},
        "argument_bytes": memory.argument_size_in_bytes,
        "temporary_bytes": memory.temp_size_in_bytes,
        "seconds": seconds,
    }


def seconds_per_step(run: Callable[..., Any], plan: FitPlan) -> float:
    """The fastest of three timings of many steps, after the first step, at which anchors are set."""

    def steps(state: Any, number: int) -> tuple[Any, float]:
        began = time.perf_counter()
        reached = run(plan.algorithm, plan.policy, plan.key, state, state.step + number)[0]
        jax.block_until_ready(reached)
        return reached, time.perf_counter() - began

    state = steps(plan.start, 1)[0]
    number = max(1, min(500, int(SECONDS / steps(state, 1)[1])))
    return min(steps(state, number)[1] for _ in range(3)) / number


def run_child(num_devices: int) -> dict[str, Any]:
    """Measure in a process of its own, because the number of devices is fixed when JAX begins."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={num_devices}"
    env = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, __file__, "--here"], env=env, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def run_here() -> dict[str, Any]:
    num_devices, rows = len(jax.devices()), []
    for sizes in (TIMED, OTHER):
        model = simulate(sizes)
        rows += [measure(name, sizes, model, num_devices) for name in PROGRAMS]
    return {"device": jax.devices()[0].device_kind, "rows": rows}


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| step | devices | Mflop | formula | bytes moved | formula | sums | formula | MB kept | MB temporary | ms |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = [f"{row[at + 'flops'] / 1e6:.1f}" for at in ("", "expected_")]
        cells += [f"{row[at + key]:,.0f}" for key in ("moved_bytes", "num_moves") for at in ("", "expected_")]
        cells += [f"{row[key] / 1e6:.1f}" for key in ("argument_bytes", "temporary_bytes")]
        cells += ["" if row["seconds"] is None else f"{1e3 * row['seconds']:.2f}"]
        lines.append(f"| {row['program']} | {row['devices']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", action="store_true", help="measure on the accelerators that are there")
    parser.add_argument("--here", action="store_true", help="measure in this process and print JSON")
    parser.add_argument("--out", help="JSON file for the figures; in experiments/results by default")
    options = parser.parse_args()
    if options.here:
        print(json.dumps(run_here()))
        return
    if options.gpu and jax.default_backend() == "cpu":
        parser.error("--gpu requires an accelerator, got the CPU backend; try without --gpu.")
    parts = [run_here()] if options.gpu else [run_child(number) for number in DEVICES]
    names, rows = list(PROGRAMS), [row for part in parts for row in part["rows"]]
    rows.sort(key=lambda row: (row["num_data"] != TIMED.num_data, names.index(row["program"])))
    about = {"jax": jax.__version__, "machine": platform.machine(), "device": parts[0]["device"]}
    for sizes in (TIMED, OTHER):
        print(f"\n{sizes}\n\n{table([row for row in rows if row['num_data'] == sizes.num_data])}")
    with open(options.out or f"experiments/results/scaling{'_gpu' * options.gpu}.json", "w") as file:
        json.dump({**about, "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
