# SPDX-License-Identifier: Apache-2.0
"""The plan that options make with a problem: every default filled in, everything checked."""

import functools
import math
from collections.abc import Sequence
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
from quell.fit.method import EXACT, choose, is_too_noisy
from quell.fit.natural_gradient import has_natural_gradient, is_natural
from quell.fit.options import FitOptions
from quell.fit.step import LoopState, StepPolicy, init_loop
from quell.fit.warm_start import run_warm_start
from quell.gradient import Gradient
from quell.models import AbstractModel

ANNEALED = "sampled and annealed"
"""The choice, in a fingerprint, of a fit whose Hessian-based gradients were too noisy."""


class FitPlan(eqx.Module):
    """All that a fit will do.

    Args:
        algorithm: gradient and optimiser.
        policy: which steps move, are skipped and are averaged.
        key: of the fit, or one for each of several.
        start: the state before the first step; with a leading axis for several fits.
        options: as they were given.
        choice: what was chosen automatically; `None` where the variates were given.
        warm_start: rows of the warm start; `None` for no warm start.
        fit_mesh: of devices that several fits are spread over; `None` for one device.
    """

    algorithm: Algorithm
    policy: StepPolicy
    key: Key[Array, "*fit"]
    start: LoopState
    options: FitOptions
    choice: Choice | None = None
    warm_start: int | None = None
    fit_mesh: Mesh | None = None

    @classmethod
    def of(
        cls, options: FitOptions, model: AbstractModel, family: AbstractFamily, key: Key[Array, "*fit"]
    ) -> "FitPlan":
        """Plan a fit, or one fit per key."""
        with in_use(options.mesh):
            return cls._of(options, Problem(placed(model, options.mesh), family), key)

    @classmethod
    def _of(
        cls, options: FitOptions, problem: Problem, key: Key[Array, "*fit"], *, is_noisy: bool = False
    ) -> "FitPlan":
        family, given, steps = problem.family, options.optimizer, options.steps
        check_sizes(options, problem.model.num_data)
        params = family.init() if options.params is None else checked_params(options.params, family)
        natural = has_natural_gradient(family) if given is None else is_natural(given)
        gradient, choice, warm_start = choose(options, problem, key, natural=natural, is_noisy=is_noisy)
        kind = choice or Choice("sampled", (), "")
        algorithm = Algorithm(gradient, given or default_optimizer(problem, steps, kind.base, anneals=kind.anneals))
        policy = StepPolicy(
            max_skipped=options.max_skipped,
            average_after=math.ceil(steps * (options.average_from or 0.0)),
            warm_up=warm_up_until(kind, steps, is_default=given is None),
        )
        start = init_loop(algorithm, params, averages=options.average_from is not None)
        start = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (*key.shape, *leaf.shape)), start)
        key, start = place_state((key, start), options.mesh)
        return cls(algorithm, policy, key, start, options, choice, warm_start)

    @property
    def is_exact(self) -> bool:
        """Whether natural-gradient steps follow a gradient without noise, which then shows convergence."""
        return self.choice is not None and self.choice.exact and is_natural(self.algorithm.optimizer)

    @property
    def checks_noise(self) -> bool:
        """Whether steps are Hessian-based, so that their noise is checked after `NOISE_CHECK_STEP` of them."""
        return self.choice is not None and self.choice.base == "second order"

    def first_params(self, key: Key[Array, "*fit"], params: PyTree) -> PyTree:
        """Those given, or the end of the warm start, where there is one."""
        if self.warm_start is None:
            return params
        exact, problem = self.algorithm, self.algorithm.gradient.problem
        if not self.is_exact:
            optimizer = default_optimizer(problem, self.options.steps, "exact")
            exact = Algorithm(Gradient(problem, base=EXACT), optimizer)
        return run_warm_start(exact, self.warm_start, key, params)

    def after_noise_check(self, params: PyTree, sq_norms: Sequence[float]) -> "FitPlan":
        """This plan, or one with sampled gradients where Hessian-based ones are too noisy.

        Args:
            params: where the fit stands.
            sq_norms: of the gradients of its last steps, in the rule's metric.
        """
        is_bad = self.checks_noise and is_too_noisy(self.algorithm.gradient, self.key, params, sq_norms)
        return self.with_sampled_gradients() if is_bad else self

    def with_sampled_gradients(self) -> "FitPlan":
        """The plan of a fit whose Hessian-based gradients were too noisy; the optimiser's state fits both."""
        return self._of(self.options, self.algorithm.gradient.problem, self.key, is_noisy=True)

    @functools.cached_property
    def fingerprint(self) -> dict[str, Any]:
        """What a checkpoint of these fits must have in common with them, as JSON."""
        kind = None if self.choice is None else ANNEALED if self.choice.anneals else self.choice.base
        optimizer = "given"
        if self.options.optimizer is None:
            depends = kind == ANNEALED or not is_natural(self.algorithm.optimizer)
            optimizer = f"the default for {self.options.steps} steps" if depends else "default"
        return {
            "choice": kind,
            "optimizer": optimizer,
            "rows of the warm start": self.warm_start,
            "averaged after step": None if self.start.average is None else int(self.policy.average_after),
        } | fingerprint(self.algorithm.gradient, self.key, self.start)
