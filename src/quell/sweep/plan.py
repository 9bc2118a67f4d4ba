# SPDX-License-Identifier: Apache-2.0
"""The plan of a sweep, and its run."""

import dataclasses
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from quell.core.checks import check_count, check_key, check_positive
from quell.core.processes import last_words, wait_for_all
from quell.core.version import VERSION
from quell.evaluation import Problem
from quell.families import AbstractFamily
from quell.fit.driver import run_plan
from quell.fit.fingerprint import array_digest, describe
from quell.fit.natural_gradient import is_natural
from quell.fit.plan import FitOptions, FitPlan, default_sampler
from quell.fit.status import Status
from quell.models import AbstractModel
from quell.sweep.folder import SweepFolder
from quell.sweep.rates import Optimizer, optimizer_digest, rated, start_at_each
from quell.sweep.result import SweepResult
from quell.sweep.spread import filled_up, local_mesh, own_share, spread
from quell.sweep.subset_result import SubsetResult
from quell.sweep.subsets import named_subsets
from quell.variates import ControlVariate

ELBO_NUMBER = 2**32 - 2
"""Folded into the key for the samples of the final ELBO; no fit has this number."""

_OF_ONE_SUBSET = ("variates", "order of the variates", "state", "optimizer", "key")

_GO_ON = "Finished subsets are in the folder: start the same sweep again to resume."

Tell = Callable[[str, SubsetResult, bool], None]
"""Called with a subset's name, its result, and whether an earlier run kept it."""


def _tell_nobody(subset: str, result: SubsetResult, was_kept: bool) -> None:
    pass


@dataclasses.dataclass(frozen=True)
class SweepPlan:
    """The plan of a sweep.

    Attributes:
        model: likelihood, prior and data.
        family: of the approximation.
        rates: learning rates.
        subsets: variates by name.
        num_seeds: fits for each subset and rate.
        key: split into one per seed, the same for all subsets and rates.
        optimizer: of a rate.
        options: of all fits; variates and checkpoint are those of a subset.
    """

    model: AbstractModel
    family: AbstractFamily
    rates: tuple[float, ...]
    subsets: dict[str, tuple[ControlVariate, ...]]
    num_seeds: int
    key: Key[Array, ""]
    optimizer: Optimizer
    options: FitOptions

    @classmethod
    def of(
        cls,
        model: AbstractModel,
        family: AbstractFamily,
        *,
        learning_rates: Any,
        subsets: Any,
        num_seeds: int,
        key: Key[Array, ""],
        optimizer: Optimizer,
        **options: Any,
    ) -> "SweepPlan":
        """Check what was asked for, and fill in the defaults."""
        check_key(key)
        check_count("num_seeds", num_seeds)
        rates = checked_rates(learning_rates)
        common = FitOptions(variates=(), optimizer=rated(optimizer), **options)
        sampler = common.sampler or default_sampler(model, natural=is_natural(rated(optimizer)))
        found = named_subsets(subsets, Problem(model, family), sampler)
        plan = cls(model, family, rates, found, num_seeds, key, optimizer, common)
        for name in found:
            plan.single_plan(name)  # refuses what cannot be fitted before anything is
        return plan

    @property
    def num_fits(self) -> int:
        """Of one subset."""
        return len(self.rates) * self.num_seeds

    def single_plan(self, subset: str) -> FitPlan:
        """One of the fits of a subset, for the settings they share."""
        return dataclasses.replace(self.options, variates=self.subsets[subset]).plan(self.model, self.family, self.key)

    def fit_plan(self, subset: str, folder: SweepFolder | None = None) -> FitPlan:
        """One program for all rates and seeds of a subset, those of the first rate first."""
        number = np.arange(filled_up(self.num_fits)) % self.num_fits
        keys = jax.random.split(self.key, self.num_seeds)[number % self.num_seeds]
        rates = jnp.asarray(self.rates)[number // self.num_seeds]
        checkpoint = None if folder is None else folder.checkpoint(subset, number.size)
        options = dataclasses.replace(self.options, variates=self.subsets[subset], checkpoint=checkpoint)
        plan = options.plan(self.model, self.family, keys)
        started = start_at_each(self.optimizer, rates, self.family.init())
        plan = eqx.tree_at(lambda p: p.start.algorithm.optimizer, plan, started)
        return spread(plan, local_mesh(self.num_fits))

    def run(self, out: Path | None = None, tell: Tell = _tell_nobody) -> SweepResult:
        """Fit what is not in the folder yet, and make the table.

        Args:
            out: folder for finished subsets and the table; several processes need one that all of them see.
            tell: hears of each subset of this process, as its numbers are there.
        """
        if out is None and jax.process_count() > 1:
            raise ValueError(
                f"`out` must be a folder that all {jax.process_count()} processes see, got None; "
                "try `out='sweep'` on a shared disk."
            )
        if (idle := jax.process_count() - len(self.subsets)) > 0 and jax.process_index() == 0:
            warnings.warn(f"Each process fits whole subsets, and {idle} of them have none.", stacklevel=2)
        folder = None if out is None else SweepFolder(out, self.settings())
        found = {} if folder is None else {name: folder.find(name, self._descriptions(name)) for name in self.subsets}
        results: dict[str, SubsetResult] = {}
        with last_words(_GO_ON, several=jax.process_count() > 1):
            for name in own_share(list(self.subsets)):
                kept = found.get(name)
                results[name] = self._fit(name, folder) if kept is None else kept
                tell(name, results[name], kept is not None)
            wait_for_all(_GO_ON)
        result = self._result([results.get(name) or self._of_others(name, folder) for name in self.subsets])
        if out is not None and jax.process_index() == 0:
            result.to_json(out / "sweep.json")
            result.to_csv(out / "sweep.csv")
        return result

    def settings(self) -> dict[str, Any]:
        """Settings that all subsets share, for comparison with those of a folder."""
        parts = self.single_plan(next(iter(self.subsets))).fingerprint()
        shared = {name: value for name, value in parts.items() if name not in _OF_ONE_SUBSET}
        own = {
            "learning rates": list(self.rates),
            "seeds": self.num_seeds,
            "steps": self.options.steps,
            "optimizer": optimizer_digest(self.optimizer, self.family.init()),
            "key": f"{jax.random.key_impl(self.key)} {array_digest(self.key)}",
            "quell": VERSION,
            "jax": jax.__version__,
        }
        return own | shared

    def _fit(self, subset: str, folder: SweepFolder | None) -> SubsetResult:
        """Run the fits of a subset; Ctrl-C leaves them in the folder."""
        results = run_plan(self.fit_plan(subset, folder))[: self.num_fits]
        if any(result.status is Status.INTERRUPTED for result in results):
            raise KeyboardInterrupt
        key = jax.random.fold_in(self.key, ELBO_NUMBER)
        found = SubsetResult.of(results, Problem(self.model, self.family), key, num_rates=len(self.rates))
        if folder is not None:
            folder.keep(subset, self._descriptions(subset), found)
        return found

    def _of_others(self, subset: str, folder: SweepFolder | None) -> SubsetResult:
        assert folder is not None, "several processes have one"
        found = folder.find(subset, self._descriptions(subset))
        if found is None:
            raise ValueError(
                f"`out` must be a folder that all processes see, got {folder.path}, which lacks {subset!r} of another "
                "process; start the same sweep again with a folder on a shared disk."
            )
        return found

    def _descriptions(self, subset: str) -> dict[str, Any]:
        return {variate.name: describe(variate) for variate in self.subsets[subset]}

    def _result(self, results: Sequence[SubsetResult]) -> SweepResult:
        named = zip(self.subsets, results, strict=True)
        rows = [row for name, result in named for row in result.rows(name, self.rates)]
        return SweepResult(tuple(rows), self.options.steps)


def checked_rates(given: Any) -> tuple[float, ...]:
    """Refuse learning rates that are not different positive numbers."""
    listed = tuple(np.asarray(list(given)).ravel().tolist()) if isinstance(given, Iterable) else ()
    if not listed:
        raise ValueError(
            f"`learning_rates` must be a list of at least one, got {given!r}; try `learning_rates=(0.001, 0.01, 0.1)`."
        )
    for rate in listed:
        check_positive("learning_rates", rate)
    if len(set(listed)) < len(listed):
        raise ValueError(
            f"`learning_rates` must be distinct, got {listed}; pass `num_seeds=` for more fits at each rate."
        )
    return tuple(float(rate) for rate in listed)
