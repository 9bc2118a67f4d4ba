# SPDX-License-Identifier: Apache-2.0
"""Options of a fit, checked, and the plan that they make with a problem."""

import dataclasses
import math
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Key, PyTree

from quell.combine import Rule
from quell.core.checks import check_count, check_finite, check_key
from quell.core.devices import check_divides, in_use, num_devices, place_rows, place_state
from quell.core.processes import are_several, hint_if_killed
from quell.data.access import most_rows, on_disk
from quell.evaluation import Problem, Sampler
from quell.families import AbstractFamily, Capability
from quell.fit.algorithm import Algorithm, checked_optimizer
from quell.fit.automatic import EXACT, SAMPLES, SETTLED, Tuned, Tuner
from quell.fit.callback import Callback
from quell.fit.checkpoint import Checkpoint
from quell.fit.choice import Choice
from quell.fit.early_stopping import EarlyStopping
from quell.fit.fingerprint import fingerprint
from quell.fit.history import History
from quell.fit.loop import LoopState, StepPolicy, init_loop
from quell.fit.natural_gradient import has_natural_gradient, is_natural, natural_num_data
from quell.fit.optimizer import LEARNING_STEPS, default_optimizer, moving_steps, optimizer_for
from quell.fit.snapshot import Snapshot
from quell.fit.warm_start import WarmStart, walk_many, walk_one
from quell.gradient import BaseGradient, Gradient, default_base
from quell.models import AbstractModel
from quell.variates import ControlVariate

DEFAULT_BATCH_SIZE = 100

LARGEST_FULL = 2000
"""Up to this many data a step sees all of them."""

FULL_REPLICATES = 4
"""Of a step that sees all data: on a few thousand rows as many samples take little longer than one."""

NATURAL_REPLICATES = 10

BELIEF = 1e-3
"""How much an automatic fit believes that variates are useless: `v0` in the natural metric, and N times `v0` otherwise.
Near the optimum of N data the gradient a datum has a squared norm of order 1/N, of which it must stay a small part."""


class FitOptions(eqx.Module):
    """What `fit` and `fit_many` are asked for; see there."""

    variates: tuple[ControlVariate, ...] | Literal["auto"] = "auto"
    optimizer: optax.GradientTransformation | None = None
    steps: int = 2000
    sampler: Sampler | None = None
    base: BaseGradient | None = None
    rule: Rule | None = None
    params: PyTree | None = None
    max_skipped: int = 0
    average_from: float | None = None
    early_stopping: EarlyStopping | None = None
    checkpoint: Checkpoint | None = None
    callback: Callback | None = None
    progress: bool | None = None
    mesh: Mesh | None = None

    def __check_init__(self) -> None:
        """Refuse what no fit can use."""
        check_count("steps", self.steps)
        check_count("max_skipped", self.max_skipped, least=0)
        if self.average_from is not None and not 0 <= self.average_from < 1:
            raise ValueError(
                f"`average_from` was given as {self.average_from}. A fraction of the steps, at least 0 and below 1, "
                "was needed. Write for example `average_from=0.5` for the second half."
            )
        _check_kind("early_stopping", self.early_stopping, EarlyStopping, "quell.EarlyStopping(tolerance=0.5)")
        _check_kind("checkpoint", self.checkpoint, Checkpoint, "quell.Checkpoint('fit.quell')")
        if self.callback is not None and not callable(self.callback):
            raise TypeError(
                f"`callback` was given as {self.callback!r}. A function of one argument was needed. "
                "Write for example `callback=lambda progress: print(progress.step)`."
            )

    def plan(self, model: AbstractModel, family: AbstractFamily, key: Key[Array, "*fit"]) -> "FitPlan":
        """What is to be done, with every default filled in; several keys make several fits."""
        with in_use(self.mesh):
            return self._plan(_placed(model, self.mesh), family, key)

    def _plan(self, model: AbstractModel, family: AbstractFamily, key: Key[Array, "*fit"]) -> "FitPlan":
        problem = Problem(model, family)
        given = None if self.optimizer is None else checked_optimizer(self.optimizer)
        natural = has_natural_gradient(family) if given is None else is_natural(given)
        sampler = default_sampler(model, natural=natural)
        rule = self.rule or self._default_rule(problem, natural)
        params = family.init() if self.params is None else _checked_params(self.params, family)
        tuner, tuned = None, None
        if self.variates == "auto":
            tuner = Tuner(problem, self.sampler, self.base, rule, default_sampler=sampler, natural=natural, key=key)
            kept = self.checkpoint.read_choice() if self.checkpoint is not None else None
            tuned = tuner.first() if kept is None else tuner.restore(Choice.from_spec(kept))
            gradient = tuned.gradient
        else:
            base = self.base or default_base(problem)
            gradient = Gradient(problem, self.variates, base=base, sampler=self.sampler or sampler, rule=rule)
        choice = None if tuned is None else tuned.choice
        _check_shares(model.num_data, self.sampler)
        if given is not None:
            _check_made_for(given, model.num_data)
        algorithm = Algorithm(gradient, given or optimizer_for(problem, self.steps, choice))
        start = init_loop(algorithm, params, averages=self.average_from is not None)
        still = 0 if tuner is None or choice is None else self.still_until(tuner, choice)
        after = math.ceil(self.steps * (self.average_from or 0.0))
        start = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (*key.shape, *leaf.shape)), start)
        return FitPlan(
            algorithm=algorithm,
            policy=StepPolicy.of(max_skipped=self.max_skipped, average_after=after, still=still),
            key=place_state(key, self.mesh),
            start=place_state(start, self.mesh),
            options=self,
            choice=choice,
            tuner=tuner,
            rough=None if tuner is None else tuner.rough,
        )

    def still_until(self, tuner: Tuner, choice: Choice) -> int:
        """The step up to which parameters wait for weights: few steps cannot be spared, nor few that anneal."""
        steps = self.steps - SETTLED if choice.anneals and self.optimizer is None else self.steps
        return tuner.still_until(choice, LEARNING_STEPS) if moving_steps(steps) < steps else 0

    def _default_rule(self, problem: Problem, natural: bool) -> Rule:
        if natural and problem.family.refuses(Capability.NATURAL_METRIC) is None:
            return Rule(v0=BELIEF, metric="natural")
        return Rule(v0=BELIEF / problem.model.num_data) if self.variates == "auto" else Rule()


class FitPlan(eqx.Module):
    """All that a fit will do.

    Args:
        algorithm: gradient and optimiser.
        policy: what becomes of steps that are not finite, and which iterates are averaged.
        key: of the fit, or one for each of several.
        start: the state before the first step; with a leading axis for several fits.
        options: as they were given.
        choice: what was chosen automatically; `None` where the variates were given.
        tuner: that chose, to choose again.
        rough: how a fit of many rows with a closed form begins.
        fit_mesh: of devices that several fits are spread over; `None` for one device.
    """

    algorithm: Algorithm
    policy: StepPolicy
    key: Key[Array, "*fit"]
    start: LoopState
    options: FitOptions
    choice: Choice | None = None
    tuner: Tuner | None = None
    rough: WarmStart | None = None
    fit_mesh: Mesh | None = None

    def begin(self, key: Key[Array, "*fit"], state: LoopState) -> LoopState:
        """The state from which the first step goes."""
        return eqx.tree_at(lambda s: s.algorithm.params, state, self.first_params(key, state.params))

    def first_params(self, key: Key[Array, "*fit"], params: PyTree) -> PyTree:
        """Near the optimum of few rows, where there are many; else those given."""
        if self.rough is None:
            return params
        go = walk_many if self.is_many else walk_one
        return go(self.rough, self._walker, key, params)

    @property
    def _walker(self) -> Algorithm:
        """What walks before the fit: natural-gradient steps on closed forms, those of the fit where it takes such."""
        if self.is_exact:
            return self.algorithm
        problem = self.algorithm.gradient.problem
        return Algorithm(Gradient(problem, base=EXACT), default_optimizer(problem, self.options.steps, "exact"))

    def changed(self, tuned: Tuned) -> "FitPlan":
        """The same plan with another gradient from now on, and the optimiser that goes with it."""
        assert self.tuner is not None
        default = optimizer_for(tuned.gradient.problem, self.options.steps, tuned.choice)
        still = self.options.still_until(self.tuner, tuned.choice)
        return dataclasses.replace(
            self,
            algorithm=Algorithm(tuned.gradient, self.options.optimizer or default),
            choice=tuned.choice,
            policy=eqx.tree_at(lambda p: p.still, self.policy, jnp.asarray(still, jnp.int32)),
        )

    @property
    def is_exact(self) -> bool:
        """Whether natural-gradient steps follow a gradient without noise, so that it tells when they have arrived."""
        return self.choice is not None and self.choice.exact and is_natural(self.algorithm.optimizer)

    @property
    def is_many(self) -> bool:
        """Whether there are several fits, with a leading axis in every array."""
        return self.key.ndim == 1

    @property
    def num_fits(self) -> int:
        """Number of fits."""
        return self.key.size

    def fresh(self) -> Snapshot:
        """Nothing done yet."""
        none = History.empty(len(self.algorithm.gradient.variates), len(self.algorithm.gradient.weight_names))
        return Snapshot(self.start, tuple((none,) for _ in range(self.num_fits)), 0.0)

    def fingerprint(self) -> dict[str, Any]:
        """What a checkpoint of these fits must have in common with them."""
        by_default = self.options.optimizer is None
        anneals = self.choice is not None and self.choice.anneals
        depends = by_default and (anneals or not is_natural(self.algorithm.optimizer))
        default = f"the default for {self.options.steps} steps" if depends else "default" if by_default else "given"
        averaged = None if self.start.average is None else int(self.policy.average_after)
        own = fingerprint(self.algorithm.gradient, self.key, self.start)
        few = None if self.rough is None else self.rough.num_rows
        return {"optimizer": default, "rows of a rough start": few, "averaged after step": averaged} | own


def default_sampler(model: AbstractModel, *, natural: bool) -> Sampler:
    """All data where they are few. Natural-gradient steps are few and long: they take more samples each.

    Of data on disk a step never sees all: some, of which as many times as trial runs may take fit in memory. It does
    not depend on the devices, so that any number of them gives the same fit.
    """
    sees_all = model.num_data <= LARGEST_FULL and not on_disk(model.data)
    replicates = NATURAL_REPLICATES if natural else FULL_REPLICATES if sees_all else 1
    if sees_all:
        return Sampler(replicates)
    fit_in = max(1, most_rows(model.data) // (max(SAMPLES) * replicates)) if on_disk(model.data) else DEFAULT_BATCH_SIZE
    return Sampler(replicates, min(fit_in, DEFAULT_BATCH_SIZE))


def _placed(model: AbstractModel, mesh: Mesh | None) -> AbstractModel:
    """The model with its rows spread over a mesh, and all else on each device."""
    if mesh is None:
        return model
    if on_disk(model.data):
        raise ValueError(
            f"`mesh` was given for {model.data}, which one process reads for one device. Rows in memory were needed. "
            "Give each process as many of them as its memory holds, or leave out `mesh`."
        )
    arrays, static = eqx.partition(model, eqx.is_array)
    with hint_if_killed("Look at what the others say, and start all of them again.", several=are_several()):
        rows = place_rows(arrays.data, mesh)
        others = place_state(eqx.tree_at(lambda m: m.data, arrays, None), mesh)
    return eqx.combine(eqx.tree_at(lambda m: m.data, others, rows, is_leaf=lambda leaf: leaf is None), static)


def _check_shares(num_data: int, sampler: Sampler | None) -> None:
    """Refuse data, and minibatches that were asked for, that the devices of the mesh in use cannot divide.

    Of few data each device has all, and a minibatch of the default size may be the same work on each.
    """
    if num_data > LARGEST_FULL:
        check_divides(num_devices(), num_data, None, 1)
    if sampler is not None:
        replicates = 1 if sampler.shared else sampler.num_replicates
        check_divides(num_devices(), num_data, sampler.batch_size, replicates)


def _check_made_for(optimizer: optax.GradientTransformation, num_data: int) -> None:
    """Refuse natural-gradient steps of a problem with another number of data: theirs would be too long or too short."""
    made_for = natural_num_data(optimizer)
    if made_for is not None and made_for != num_data:
        raise ValueError(
            f"`optimizer` was given as natural-gradient steps for {made_for} data, and the fit has {num_data}. The "
            "same number was needed; several processes have all their rows together. Leave `optimizer` out, or write "
            "`quell.natural_gradient` for a problem with all data."
        )


def _checked_params(params: PyTree, family: AbstractFamily) -> PyTree:
    """Refuse parameters to start from that are not finite numbers in the family's shape."""
    needed = jax.eval_shape(lambda: family.init())
    same = jax.tree.structure(needed) == jax.tree.structure(params)
    if not (same and jax.tree.map(jnp.shape, needed) == jax.tree.map(jnp.shape, params)):
        given = jax.tree.map(jnp.shape, params)
        raise ValueError(
            f"`params` were given with shapes {given}. {family} needed {jax.tree.map(jnp.shape, needed)}. "
            "Write for example `params=family.init()` or `params=result.params` of a fit with the same family."
        )
    arrays = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.result_type(leaf, float)), params)
    for leaf in jax.tree.leaves(arrays):
        check_finite("params", leaf)
    return arrays


def _check_kind(name: str, given: Any, kind: type, example: str) -> None:
    if given is not None and not isinstance(given, kind):
        raise TypeError(
            f"`{name}` was given as {given!r}. A `quell.{kind.__name__}` was needed. "
            f"Write for example `{name}={example}`."
        )


def split_key(key: Key[Array, ""], num_fits: int) -> Key[Array, "fit"]:
    """One key for each of several fits."""
    check_key(key)
    check_count("num_fits", num_fits)
    return jax.random.split(key, num_fits)
