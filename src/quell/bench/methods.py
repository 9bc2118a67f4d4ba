# SPDX-License-Identifier: Apache-2.0
"""quell's own methods: the automatic choice, the ensemble, its members alone, the base gradient, and the paper's S7."""

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, Key

from quell.bench.fixed import base_options, fixed_options
from quell.bench.gaussian import Gaussian, gaussian_of, isotropic, params_of
from quell.bench.problems import BenchProblem
from quell.bench.runner import ADAM, ADAM_QUICK, AbstractRunner, Axis, Method, Setting
from quell.combine import Rule
from quell.compilation import quick_options
from quell.draw import Sampler
from quell.estimators import ClosedForm, Price, Reparameterization
from quell.fitting import Algorithm, AlgorithmState
from quell.fitting.automatic import SETTLED
from quell.fitting.loop import LoopState, is_going, take_step
from quell.fitting.plan import FitOptions, FitPlan
from quell.fitting.rough import RoughStart
from quell.gradient import Gradient
from quell.paper import variates as paper_variates
from quell.terms import Variational
from quell.variates import ControlVariate, default_base, default_variates

KINDS = ("auto", "fixed", "ensemble", "S7", "single", "base", "more-samples")
"""Names for `--methods`; `fixed` stands for natural-gradient steps on the best of all fixed choices and on the base
gradient, `ensemble` for the automatic choice with Adam, `single` for each default variate alone."""

LARGEST_FULL_BATCH = 20_000
"""With more rows than this our own methods take minibatches only."""

_START_SCALE = 0.1  # of the families' own start


class Hyper(NamedTuple):
    """The rate of Adam and the steps that it falls to zero in."""

    rate: Float[Array, ""]
    length: Float[Array, ""]

    def optimizer(self) -> optax.GradientTransformation:
        """Adam on a cosine; an infinite length makes the rate constant."""
        return optax.adam(lambda count: self.rate * falling(count, self.length))


def falling(count: Any, length: Any) -> Any:
    """From 1 to 0 on half a cosine; 1 for an infinite length."""
    return 0.5 * (1.0 + jnp.cos(math.pi * jnp.minimum(count / length, 1.0)))


class RunState(NamedTuple):
    """Where a run of ours stands; in the first `still` steps parameters wait for weights."""

    algorithm: AlgorithmState
    hyper: Hyper
    key: Key[Array, ""]
    step: Int[Array, ""]
    still: Int[Array, ""]


class AdamRunner(AbstractRunner):
    """A gradient, with Adam of a chosen rate.

    Args:
        bench: the problem.
        gradient: what is followed.
        label: for the table.
        axes: of Adam.
        plan: of the automatic fit, which begins as it does: with a walk on few rows, where there are many, and with
            steps that learn weights only, where the gradient has any; `None` for a run that begins with neither.
    """

    def __init__(
        self,
        bench: BenchProblem,
        gradient: Gradient,
        label: str,
        axes: Mapping[str, Axis],
        plan: FitPlan | None = None,
    ) -> None:
        """Nothing is compiled yet."""
        self.bench, self.label, self.axes = bench, label, axes
        self.gradient = gradient
        self.still = int(plan.policy.still) if plan is not None and gradient.variates else 0
        self._walk = None
        if plan is not None and plan.rough is not None:
            self._walk = plan.first_params
            self.label += f", from a walk on {plan.rough.num_rows} rows"
        self._arrays, static = eqx.partition(gradient, eqx.is_array)

        def advance(arrays: Any, state: RunState, until: Int[Array, ""]) -> RunState:
            return _advance(eqx.combine(arrays, static), state, until)

        self._advance = jax.jit(advance, compiler_options=quick_options(jax.default_backend()))

    def start(self, key: Key[Array, ""], mean: Float[Array, "latent"], setting: Setting) -> RunState:
        hyper = Hyper(jnp.asarray(setting["rate"], float), jnp.asarray(setting["length"], float))
        algorithm = Algorithm(self.gradient, hyper.optimizer())
        params = params_of(isotropic(mean, setting["scale"], full_rank=self.bench.full_rank))
        counts = jnp.zeros((), jnp.int32), jnp.asarray(self.still, jnp.int32)
        state = RunState(algorithm.init(params), hyper, key, *counts)
        return jax.tree.map(lambda leaf: jax.lax.convert_element_type(leaf, jnp.asarray(leaf).dtype), state)

    def advance(self, state: RunState, until: int) -> RunState:
        if self._walk is not None and int(state.step) == 0:
            params = self._walk(state.key, state.algorithm.params)
            state = state._replace(algorithm=eqx.tree_at(lambda a: a.params, state.algorithm, params))
        return self._advance(self._arrays, state, np.int32(until))

    def gaussian(self, state: RunState) -> Gaussian:
        return gaussian_of(state.algorithm.params)

    def most_steps(self, setting: Setting) -> float | int:
        return super().most_steps(setting) + self.still


Program = Callable[[LoopState, Array, np.int32], LoopState]
"""Steps from a state, with a key, until their number is given."""


class FitState(NamedTuple):
    """Where a fit stands.

    Args:
        loop: parameters and all that belongs to them.
        key: of the fit.
        base: the gradient that it goes by now, as its choice names it; empty where nothing is chosen.
    """

    loop: LoopState
    key: Key[Array, ""]
    base: str


class FitRunner(AbstractRunner):
    """The steps that `quell.fit` takes, with the walk before them and the look after the first ones.

    Args:
        bench: the problem.
        options: of the fit.
    """

    axes: Mapping[str, Axis] = {}

    def __init__(self, bench: BenchProblem, options: FitOptions, label: str = "") -> None:
        """Nothing is chosen or compiled yet."""
        self.bench, self.options, self.label = bench, options, label
        self._plans: dict[str, tuple[FitPlan, Program]] = {}
        self._first = ""

    def start(self, key: Key[Array, ""], mean: Float[Array, "latent"], setting: Setting) -> FitState:
        if not self._plans:
            params = params_of(isotropic(mean, _START_SCALE, full_rank=self.bench.full_rank))
            options = dataclasses.replace(self.options, params=params)
            plan = options.plan(self.bench.problem.model, self.bench.problem.family, key)
            self.label = ", ".join(word for word in (self.label, gradient_text(plan.algorithm.gradient)) if word)
            self._first = _base_of(plan)
            self._plans[self._first] = plan, _program_of(plan)
        return FitState(self._plans[self._first][0].start, key, self._first)

    def advance(self, state: FitState, until: int) -> FitState:
        plan, program = self._plans[state.base]
        loop, step = state.loop, int(state.loop.step)
        loop = loop if step else plan.begin(state.key, loop)
        if step < SETTLED <= until and state.base == "second order":
            loop = program(loop, state.key, np.int32(SETTLED))
            return self._settled(FitState(loop, state.key, state.base), until)
        return FitState(program(loop, state.key, np.int32(until)), state.key, state.base)

    def _settled(self, state: FitState, until: int) -> FitState:
        """Go on after the look at the noise, with another gradient where there is too much."""
        plan = self._plans[state.base][0]
        assert plan.tuner is not None
        assert plan.choice is not None
        tuned = plan.tuner.settle(state.loop.params, state.loop.algorithm.gradient, plan.choice)
        if tuned is not None:
            changed = plan.changed(tuned)
            if (base := _base_of(changed)) not in self._plans:
                self._plans[base] = changed, _program_of(changed)
                self.label += f", then {gradient_text(changed.algorithm.gradient)}"
            state = FitState(eqx.tree_at(lambda s: s.algorithm.gradient, state.loop, tuned.state), state.key, base)
        program = self._plans[state.base][1]
        return FitState(program(state.loop, state.key, np.int32(until)), state.key, state.base)

    def gaussian(self, state: FitState) -> Gaussian:
        return gaussian_of(state.loop.params)


def _base_of(plan: FitPlan) -> str:
    return "" if plan.choice is None else plan.choice.base


def _program_of(plan: FitPlan) -> Program:
    arrays, static = eqx.partition((plan.algorithm, plan.policy), eqx.is_array)

    def advance(arrays: Any, state: LoopState, key: Key[Array, ""], until: Int[Array, ""]) -> LoopState:
        algorithm, policy = eqx.combine(arrays, static)
        step = functools.partial(take_step, algorithm, policy, key)
        return jax.lax.while_loop(lambda now: is_going(policy, now, until), lambda now: step(now)[0], state)

    program = jax.jit(advance, compiler_options=quick_options(jax.default_backend()))
    return functools.partial(program, arrays)


def gradient_text(gradient: Gradient) -> str:
    """A gradient in words."""
    if gradient.base.data == ClosedForm(full_data=True):
        return "exact gradient on all rows"
    used = gradient.active or (True,) * len(gradient.names)
    names = [name for name, is_used in zip(gradient.names, used, strict=True) if is_used]
    rows = structure_text(gradient.sampler.batch_size, gradient.sampler.num_replicates)
    base = "second order" if isinstance(gradient.base.data, Price) else "base"
    return f"{rows}, {' + '.join([base, *names])}"


def _advance(gradient: Gradient, state: RunState, until: Int[Array, ""]) -> RunState:
    """Steps in one loop whose length is an argument."""
    algorithm = Algorithm(gradient, state.hyper.optimizer())

    def body(now: RunState) -> RunState:
        reached, _ = algorithm.step(jax.random.fold_in(now.key, now.step), now.algorithm)
        waiting = eqx.tree_at(lambda a: a.gradient, now.algorithm, reached.gradient)
        kept = jax.tree.map(lambda new, old: jnp.where(now.step < now.still, old, new), reached, waiting)
        return now._replace(algorithm=kept, step=now.step + 1)

    return jax.lax.while_loop(lambda now: now.step < until, body, state)


def own_methods(bench: BenchProblem, kinds: tuple[str, ...] = KINDS, *, quick: bool = False) -> list[Method]:
    """Our methods for a problem.

    Args:
        bench: the problem.
        kinds: which, of `KINDS`.
        quick: one program a method and few settings.
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
    return [Method("quell auto", lambda: [FitRunner(bench, FitOptions())])]


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
        return [AdamRunner(bench, gradient, gradient_text(gradient), axes, plan)]

    return [Method("quell ensemble", make)]


def _adam_plan(bench: BenchProblem) -> FitPlan:
    """What an automatic fit with Adam does."""
    params = params_of(isotropic(bench.start, _START_SCALE, full_rank=bench.full_rank))
    options = FitOptions(optimizer=optax.adam(0.1), params=params)
    return options.plan(bench.problem.model, bench.problem.family, jax.random.key(0))


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
    return [Method("quell base, more samples", lambda: [_as_dear_as_the_ensemble(bench, quick)])]


def _as_dear_as_the_ensemble(bench: BenchProblem, quick: bool) -> AdamRunner:
    """As many replicates as make a step of the base gradient cost what one of the ensemble costs."""
    one = Sampler(batch_size=bench.batch_size)
    axes = ADAM_QUICK if quick else ADAM
    ensemble = _step_seconds(_runner(bench, default_variates(bench.problem, one), one, axes))
    few, many = 1, 16
    cheap, dear = (
        _step_seconds(_runner(bench, (), Sampler(num, bench.batch_size, shared=True), axes)) for num in (few, many)
    )
    slope = max((dear - cheap) / (many - few), 1e-9)
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
    """Where rows are many it begins as the automatic fit with Adam does, so that what differs is the gradient."""
    plan = None if RoughStart.of(bench.problem) is None else _adam_plan(bench)
    rule = Rule() if plan is None else plan.algorithm.gradient.rule
    gradient = Gradient(bench.problem, variates, default_base(bench.problem), sampler, rule=rule)
    return AdamRunner(bench, gradient, structure_text(sampler.batch_size, sampler.num_replicates), axes, plan)


def reference_runner(bench: BenchProblem) -> AdamRunner:
    """For long fits: all rows, a few samples, and the landing stuck, which costs little."""
    landing = ControlVariate(Variational(), Reparameterization(), ClosedForm())
    return _runner(bench, (landing,), Sampler(num_replicates=4), ADAM)


def structure_text(batch_size: int | None, num_samples: int) -> str:
    """What a step sees, in words."""
    rows = "all rows" if batch_size is None else f"minibatch {batch_size}"
    return f"{rows}, {num_samples} sample{'s' * (num_samples > 1)}"


def _step_seconds(runner: AdamRunner, steps: int = 200) -> float:
    """Seconds a step, the better of two goes."""
    setting = {name: axis.values[axis.first] for name, axis in runner.axes.items()}
    state = runner.start(jax.random.key(0), runner.bench.start, setting)
    begin = jax.block_until_ready(runner.advance(state, 10))
    times = []
    for _ in range(2):
        began = time.perf_counter()
        jax.block_until_ready(runner.advance(begin, 10 + steps))
        times.append(time.perf_counter() - began)
    return min(times) / steps
