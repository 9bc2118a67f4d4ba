# SPDX-License-Identifier: Apache-2.0
"""The plan that options make with a problem: every default filled in, everything checked."""

import dataclasses
import functools
import math
import time
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Key, PyTree

from quell.core.devices import in_use, place_state
from quell.evaluation import Problem
from quell.families import AbstractFamily
from quell.fit.algorithm import Algorithm
from quell.fit.checkpoint.fingerprint import fingerprint
from quell.fit.choice import Choice
from quell.fit.defaults import default_optimizer, warm_up_until
from quell.fit.inputs import check_sizes, checked_params, placed
from quell.fit.method import EXACT, choose
from quell.fit.natural_gradient import is_natural
from quell.fit.newton import Newton
from quell.fit.options import FitOptions
from quell.fit.step import LoopState, StepPolicy, init_loop
from quell.fit.warm_start import run_warm_start
from quell.gradient import Gradient
from quell.models import AbstractModel
from quell.models.check import check_rows


class FitPlan(eqx.Module):
    """All that a fit will do.

    Args:
        algorithm: gradient and optimiser, or Newton steps.
        policy: which steps move, are skipped and are averaged.
        key: of the fit, or one for each of several.
        start: the state before the first step; with a leading axis for several fits.
        options: as they were given.
        choice: what was chosen automatically; `None` where the variates were given.
        warm_start: rows of the warm start; `None` for no warm start.
        fit_mesh: of devices that several fits are spread over; `None` for one device.
        seconds: of reading the model and choosing the method.
    """

    algorithm: Algorithm | Newton
    policy: StepPolicy
    key: Key[Array, "*fit"]
    start: LoopState
    options: FitOptions
    choice: Choice | None = None
    warm_start: int | None = None
    fit_mesh: Mesh | None = None
    seconds: float = 0.0

    @classmethod
    def of(
        cls,
        options: FitOptions,
        model: AbstractModel,
        family: AbstractFamily,
        key: Key[Array, "*fit"],
        level: int | None = 0,
        *,
        may_take_newton: bool = True,
    ) -> "FitPlan":
        """Plan a fit, or one fit per key.

        Args:
            options: of the fit.
            model: likelihood, prior and data.
            family: of the approximation.
            key: of the fit, or one for each of several.
            level: of the nodes of exact expectations, 0 for the first; `None` for no such expectations.
            may_take_newton: whether the method may be that of Newton steps.
        """
        began = time.perf_counter()
        with in_use(options.mesh):
            problem = Problem(placed(model, options.mesh), family)
            plan = cls._of(options, problem, key, level, may_take_newton=may_take_newton)
        return dataclasses.replace(plan, seconds=time.perf_counter() - began)

    @classmethod
    def _of(
        cls,
        options: FitOptions,
        problem: Problem,
        key: Key[Array, "*fit"],
        level: int | None,
        *,
        may_take_newton: bool,
    ) -> "FitPlan":
        family, steps = problem.family, options.steps
        check_sizes(options, problem.model.num_data)
        check_rows(problem.model)
        params = family.init() if options.params is None else checked_params(options.params, family)
        algorithm, choice, warm_start = choose(options, problem, key, level, may_take_newton=may_take_newton)
        policy = StepPolicy(
            max_skipped=options.max_skipped,
            average_after=math.ceil(steps * (options.average_from or 0.0)),
            warm_up=warm_up_until(choice, steps),
        )
        start = init_loop(algorithm, params, averages=options.average_from is not None)
        if key.ndim:
            start = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (*key.shape, *leaf.shape)), start)
        key, start = place_state((key, start), options.mesh)
        return cls(algorithm, policy, key, start, options, choice, warm_start)

    @property
    def is_exact(self) -> bool:
        """Whether natural-gradient steps follow a gradient without noise, which then shows convergence."""
        if self.choice is None or not self.choice.exact or isinstance(self.algorithm, Newton):
            return False
        return is_natural(self.algorithm.optimizer)

    @property
    def is_sampled(self) -> bool:
        """Whether steps follow a gradient whose noise is new at each."""
        return not isinstance(self.algorithm, Newton) and not self.is_exact

    @property
    def knows_gap(self) -> bool:
        """Whether the fit ends by itself, when it is near enough to the optimum."""
        return self.is_exact or isinstance(self.algorithm, Newton)

    def first_params(self, key: Key[Array, "*fit"], params: PyTree) -> PyTree:
        """Those given, or the end of the warm start, where there is one."""
        if self.warm_start is None:
            return params
        algorithm, problem = self.algorithm, self.algorithm.gradient.problem
        if not self.is_exact:
            optimizer = default_optimizer(problem, self.options.steps, exact=True)
            algorithm = Algorithm(Gradient(problem, base=EXACT), optimizer)
        return run_warm_start(algorithm, self.warm_start, key, params)

    @functools.cached_property
    def fingerprint(self) -> dict[str, Any]:
        """What a checkpoint of these fits must have in common with them, as JSON."""
        kind = None if self.choice is None else self.choice.base
        optimizer = "given"
        if self.options.optimizer is None:
            depends = not isinstance(self.algorithm, Newton) and not is_natural(self.algorithm.optimizer)
            optimizer = f"the default for {self.options.steps} steps" if depends else "default"
        return {
            "choice": kind,
            "optimizer": optimizer,
            "rows of the warm start": self.warm_start,
            "tolerance": self.options.tolerance if self.knows_gap else None,
            "averaged after step": None if self.start.average is None else int(self.policy.average_after),
        } | fingerprint(self.algorithm.gradient, self.key, self.start)
