# SPDX-License-Identifier: Apache-2.0
"""quell's own methods: the automatic choice, the ensemble, its members alone, the base gradient, and the paper's S7."""

import time
from collections.abc import Callable, Mapping

import jax
import optax

from experiments.bench.adam_runner import AdamRunner
from experiments.bench.cold import cold_fit_seconds
from experiments.bench.fit_runner import START_SCALE, FitRunner, gradient_label
from experiments.bench.fixed_choices import base_options, fixed_options
from experiments.bench.gaussian import isotropic, params_of
from experiments.bench.problems import BenchProblem
from experiments.bench.runner import ADAM, ADAM_QUICK, Axis, Method, structure_label
from quell.combine import Rule
from quell.estimators import ClosedForm, Reparameterization
from quell.evaluation import Sampler
from quell.fit import FitOptions
from quell.fit.plan import FitPlan
from quell.fit.warm_start import warm_start_rows
from quell.gradient import Gradient, default_base, default_variates
from quell.paper import variates as paper_variates
from quell.terms import Variational
from quell.variates import ControlVariate

KINDS = ("auto", "fixed", "ensemble", "S7", "single", "base", "more-samples")
"""Names for `--methods`; `fixed` stands for natural-gradient steps on the best of all fixed choices and on the base
gradient, `ensemble` for the automatic choice with Adam, `single` for each default variate alone."""

LARGEST_FULL_BATCH = 20_000
"""With more rows than this our own methods take minibatches only."""


def own_methods(bench: BenchProblem, kinds: tuple[str, ...] = KINDS, *, quick: bool = False) -> list[Method]:
    """Our methods for a problem.

    Args:
        bench: the problem.
        kinds: which, of `KINDS`.
        quick: one program per method and few settings.
    """
    makers: dict[str, Callable[[BenchProblem, bool], list[Method]]] = {
        "auto": _auto,
        "fixed": _fixed,
        "ensemble": _ensemble,
        "S7": _s7,
        "single": _singles,
        "base": _base,
        "more-samples": _more_samples,
    }
    return [method for kind in KINDS if kind in kinds for method in makers[kind](bench, quick)]


def _auto(bench: BenchProblem, quick: bool) -> list[Method]:
    return [Method("quell auto", lambda: [FitRunner(bench, FitOptions())], cold_fit_seconds)]


def _fixed(bench: BenchProblem, quick: bool) -> list[Method]:
    """Natural-gradient steps on the best of all fixed choices, and on the base gradient alone."""
    choices = fixed_options(bench.problem)[: 3 if quick else None]
    return [
        Method("quell fixed", lambda: [FitRunner(bench, options) for options in choices]),
        Method("quell natural base", lambda: [FitRunner(bench, base_options(bench.problem))]),
    ]


def _ensemble(bench: BenchProblem, quick: bool) -> list[Method]:
    """The automatic choice, but with Adam."""

    def make() -> list[AdamRunner]:
        plan = _adam_plan(bench)
        axes, gradient = ADAM_QUICK if quick else ADAM, plan.algorithm.gradient
        return [AdamRunner(bench, gradient, gradient_label(gradient), axes, plan)]

    return [Method("quell ensemble", make)]


def _adam_plan(bench: BenchProblem) -> FitPlan:
    """The plan of an automatic fit with Adam."""
    params = params_of(isotropic(bench.start, START_SCALE, full_rank=bench.full_rank))
    options = FitOptions(optimizer=optax.adam(0.1), params=params)
    return FitPlan.of(options, bench.problem.model, bench.problem.family, jax.random.key(0))


def _s7(bench: BenchProblem, quick: bool) -> list[Method]:
    chosen = paper_variates("S7")
    if not bench.full_rank or any(variate.refuses(bench.problem) is not None for variate in chosen):
        return []
    return [_adam("quell S7", bench, lambda sampler: chosen, quick)]


def _singles(bench: BenchProblem, quick: bool) -> list[Method]:
    found = default_variates(bench.problem, Sampler(batch_size=bench.batch_size))
    sampler, axes = Sampler(batch_size=bench.batch_size), ADAM_QUICK if quick else ADAM
    return [Method(f"quell {one.name}", lambda one=one: [_runner(bench, (one,), sampler, axes)]) for one in found]


def _base(bench: BenchProblem, quick: bool) -> list[Method]:
    return [_adam("quell base", bench, lambda sampler: (), quick)]


def _more_samples(bench: BenchProblem, quick: bool) -> list[Method]:
    return [Method("quell base, more samples", lambda: [_with_equal_cost(bench, quick)])]


def _with_equal_cost(bench: BenchProblem, quick: bool) -> AdamRunner:
    """As many replicates as make a step of the base gradient cost as much as one of the ensemble."""
    one = Sampler(batch_size=bench.batch_size)
    axes = ADAM_QUICK if quick else ADAM
    ensemble = _step_seconds(_runner(bench, default_variates(bench.problem, one), one, axes))
    few, many = 1, 16
    cheap, costly = (
        _step_seconds(_runner(bench, (), Sampler(num, bench.batch_size, shared=True), axes)) for num in (few, many)
    )
    slope = max((costly - cheap) / (many - few), 1e-9)
    num = int(min(max(1, round(few + (ensemble - cheap) / slope)), 256))
    sampler = Sampler(num, bench.batch_size, shared=num > 1)
    return _runner(bench, (), sampler, axes)


def _adam(
    name: str, bench: BenchProblem, choose: Callable[[Sampler], tuple[ControlVariate, ...]], quick: bool
) -> Method:
    samplers = [Sampler(batch_size=bench.batch_size)]
    if bench.num_data <= LARGEST_FULL_BATCH and not quick:
        samplers.append(Sampler())
    axes = ADAM_QUICK if quick else ADAM
    return Method(name, lambda: [_runner(bench, choose(sampler), sampler, axes) for sampler in samplers])


def _runner(
    bench: BenchProblem, variates: tuple[ControlVariate, ...], sampler: Sampler, axes: Mapping[str, Axis]
) -> AdamRunner:
    """With many rows it starts as the automatic fit with Adam does, so that only the gradient differs."""
    plan = None if warm_start_rows(bench.problem) is None else _adam_plan(bench)
    rule = Rule() if plan is None else plan.algorithm.gradient.rule
    gradient = Gradient(bench.problem, variates, default_base(bench.problem), sampler, rule=rule)
    return AdamRunner(bench, gradient, structure_label(sampler.batch_size, sampler.num_replicates), axes, plan)


def reference_runner(bench: BenchProblem) -> AdamRunner:
    """For long fits: all rows, a few samples, and sticking the landing, which costs little."""
    landing = ControlVariate(Variational(), Reparameterization(), ClosedForm())
    return _runner(bench, (landing,), Sampler(num_replicates=4), ADAM)


def _step_seconds(runner: AdamRunner, steps: int = 200) -> float:
    """Seconds per step, the better of two measurements."""
    setting = {name: axis.values[axis.first] for name, axis in runner.axes.items()}
    state = runner.start(jax.random.key(0), runner.bench.start, setting)
    begin = jax.block_until_ready(runner.advance(state, 10))
    times = []
    for _ in range(2):
        began = time.perf_counter()
        jax.block_until_ready(runner.advance(begin, 10 + steps))
        times.append(time.perf_counter() - began)
    return min(times) / steps
