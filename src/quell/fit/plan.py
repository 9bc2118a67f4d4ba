# SPDX-License-Identifier: Apache-2.0
"""The plan that options make with a problem: every default filled in, everything checked."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Key, PyTree

from quell.core.devices import in_use, place_state
from quell.evaluation import Problem
from quell.families import AbstractFamily
from quell.fit import defaults
from quell.fit.algorithm import Algorithm
from quell.fit.checkpoint import Snapshot
from quell.fit.checkpoint.fingerprint import fingerprint
from quell.fit.choice import Choice
from quell.fit.history import History
from quell.fit.inputs import check_same_num_data, check_shares, checked_params, placed
from quell.fit.method import EXACT, Method
from quell.fit.natural_gradient import has_natural_gradient, is_natural
from quell.fit.options import FitOptions
from quell.fit.step import LoopState, StepPolicy, init_loop
from quell.fit.warm_start import WarmStart, run_warm_start
from quell.gradient import Gradient, default_base
from quell.models import AbstractModel


class FitPlan(eqx.Module):
    """All that a fit will do.

    Args:
        algorithm: gradient and optimiser.
        policy: which steps move, are skipped and are averaged.
        key: of the fit, or one for each of several.
        start: the state before the first step; with a leading axis for several fits.
        options: as they were given.
        choice: what was chosen automatically; `None` where the variates were given.
        method: the rule that chose.
        fit_mesh: of devices that several fits are spread over; `None` for one device.
    """

    algorithm: Algorithm
    policy: StepPolicy
    key: Key[Array, "*fit"]
    start: LoopState
    options: FitOptions
    choice: Choice | None = None
    method: Method | None = None
    fit_mesh: Mesh | None = None

    @classmethod
    def of(
        cls, options: FitOptions, model: AbstractModel, family: AbstractFamily, key: Key[Array, "*fit"]
    ) -> "FitPlan":
        """Plan a fit, or one fit per key."""
        with in_use(options.mesh):
            return _planned(options, Problem(placed(model, options.mesh), family), key)

    def begin(self, key: Key[Array, "*fit"], state: LoopState) -> LoopState:
        """The state from which the first step goes: after the warm start, where there is one."""
        return eqx.tree_at(lambda s: s.algorithm.params, state, self.first_params(key, state.params))

    def first_params(self, key: Key[Array, "*fit"], params: PyTree) -> PyTree:
        """Those given, or the end of the warm start, where there is one."""
        if self.warm_start is None:
            return params
        return run_warm_start(self.warm_start, self._exact_algorithm, key, params)

    @property
    def warm_start(self) -> WarmStart | None:
        """How a fit of many rows with a closed form begins."""
        return None if self.method is None else self.method.warm_start

    @property
    def _exact_algorithm(self) -> Algorithm:
        """Natural-gradient steps on closed forms, for the warm start: those of the fit where it takes such."""
        if self.is_exact:
            return self.algorithm
        problem, steps = self.algorithm.gradient.problem, self.options.steps
        return Algorithm(Gradient(problem, base=EXACT), defaults.default_optimizer(problem, steps, "exact"))

    @property
    def checks_noise(self) -> bool:
        """Whether steps are Hessian-based, so that their noise is checked after `NOISE_CHECK_STEP` of them."""
        return self.choice is not None and self.choice.base == "second order"

    def after_noise_check(self, params: PyTree, sq_norms: Sequence[float]) -> "FitPlan | None":
        """The plan with sampled gradients and their optimiser, where Hessian-based ones are too noisy; else `None`.

        The optimiser's state fits both plans; the gradient's state is that of `start`.

        Args:
            params: where the fit stands.
            sq_norms: of the gradients of its last steps, in the rule's metric.
        """
        if self.method is None or self.choice is None:
            return None
        choice = self.method.after_noise_check(self.choice, params, sq_norms)
        if choice is None:
            return None
        gradient = self.method.gradient(choice)
        state = place_state(gradient.init(params), self.options.mesh)
        return dataclasses.replace(
            self,
            algorithm=Algorithm(gradient, _optimizer(self.options, gradient.problem, choice)),
            policy=_policy(self.options, choice),
            start=eqx.tree_at(lambda s: s.algorithm.gradient, self.start, state),
            choice=choice,
        )

    @property
    def is_exact(self) -> bool:
        """Whether natural-gradient steps follow a gradient without noise, which then shows convergence."""
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
        """The snapshot before the first step."""
        none = History.empty(len(self.algorithm.gradient.variates), len(self.algorithm.gradient.weight_names))
        return Snapshot(self.start, tuple((none,) for _ in range(self.num_fits)), 0.0)

    def fingerprint(self) -> dict[str, Any]:
        """What a checkpoint of these fits must have in common with them."""
        by_default = self.options.optimizer is None
        anneals = self.choice is not None and self.choice.anneals
        depends = by_default and (anneals or not is_natural(self.algorithm.optimizer))
        own = {
            "optimizer": f"the default for {self.options.steps} steps" * depends
            or ("default" if by_default else "given"),
            "rows of the warm start": None if self.warm_start is None else self.warm_start.num_rows,
            "averaged after step": None if self.start.average is None else int(self.policy.average_after),
        }
        return own | fingerprint(self.algorithm.gradient, self.key, self.start)


def _planned(options: FitOptions, problem: Problem, key: Key[Array, "*fit"]) -> FitPlan:
    model, family, given = problem.model, problem.family, options.optimizer
    natural = has_natural_gradient(family) if given is None else is_natural(given)
    rule = options.rule or defaults.default_rule(problem, natural=natural, is_auto=options.variates == "auto")
    params = family.init() if options.params is None else checked_params(options.params, family)
    method, choice = None, None
    if options.variates == "auto":
        method = Method(problem, options.sampler, options.base, rule, natural, key)
        kept = None if options.checkpoint is None else options.checkpoint.read_choice()
        choice = method.first_choice() if kept is None else Choice.from_spec(kept)
        gradient = method.gradient(choice)
    else:
        base, sampler = options.base or default_base(problem), options.sampler
        sampler = sampler or defaults.default_sampler(model, natural=natural)
        gradient = Gradient(problem, options.variates, base=base, sampler=sampler, rule=rule)
    check_shares(model.num_data, options.sampler)
    check_same_num_data(given, model.num_data)
    algorithm = Algorithm(gradient, _optimizer(options, problem, choice))
    start = init_loop(algorithm, params, averages=options.average_from is not None)
    start = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (*key.shape, *leaf.shape)), start)
    key, start = place_state(key, options.mesh), place_state(start, options.mesh)
    return FitPlan(algorithm, _policy(options, choice), key, start, options, choice, method)


def _optimizer(options: FitOptions, problem: Problem, choice: Choice | None) -> optax.GradientTransformation:
    if options.optimizer is not None:
        return options.optimizer
    if choice is None:
        return defaults.default_optimizer(problem, options.steps)
    return defaults.default_optimizer(problem, options.steps, choice.first, anneals=choice.anneals)


def _policy(options: FitOptions, choice: Choice | None) -> StepPolicy:
    anneals = choice is not None and choice.anneals and options.optimizer is None
    steps = options.steps - defaults.NOISE_CHECK_STEP if anneals else options.steps
    return StepPolicy.of(
        max_skipped=options.max_skipped,
        average_after=math.ceil(options.steps * (options.average_from or 0.0)),
        warm_up=0 if choice is None else defaults.warm_up_until(choice, steps),
    )
