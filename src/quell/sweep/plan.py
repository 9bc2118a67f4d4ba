# SPDX-License-Identifier: Apache-2.0
"""What a sweep will do, and the run of it: fits over the devices of a process, subsets over processes."""

import dataclasses
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Unpack

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Key

from quell.core.checks import check_count, check_key
from quell.core.processes import hint_if_killed, wait_for_all
from quell.evaluation import Problem
from quell.fit import FitOptions, Status
from quell.fit.checkpoint.file import plain_array
from quell.fit.checkpoint.fingerprint import describe
from quell.fit.defaults import default_sampler
from quell.fit.driver import run_plan
from quell.fit.loop import FIT_AXIS
from quell.fit.natural_gradient import is_natural
from quell.fit.options import SweepKeywords
from quell.fit.plan import FitPlan
from quell.fit.progress import progress_bar
from quell.sweep.folder import SweepFolder
from quell.sweep.rates import Optimizer, checked_rates, optimizer_digest, states_at, with_rate_in_state
from quell.sweep.result import SweepResult, SweepRow
from quell.sweep.subsets import named_subsets, subset_rows
from quell.variates import ControlVariate

ELBO_KEY_NUMBER = 2**32 - 2
"""Folded into the key for the samples of the final ELBO; no fit has this number."""

_OF_ONE_SUBSET = ("variates", "order of the variates", "state", "optimizer", "key")

_ADVICE = "Finished subsets are in the folder: start the same sweep again, and it goes on."

Report = Callable[[tuple[SweepRow, ...], bool], None]
"""Called with the rows of a subset, and whether they were in the folder already."""


@dataclasses.dataclass(frozen=True)
class SweepPlan:
    """All that a sweep will do: the arguments of `quell.sweep`, checked and with defaults filled in.

    Attributes:
        options: of all fits; variates and checkpoint are those of a subset.
    """

    problem: Problem
    rates: tuple[float, ...]
    subsets: dict[str, tuple[ControlVariate, ...]]
    num_seeds: int
    key: Key[Array, ""]
    optimizer: Optimizer
    options: FitOptions

    @classmethod
    def of(
        cls,
        key: Key[Array, ""],
        problem: Problem,
        *,
        learning_rates: Any,
        subsets: Any,
        num_seeds: int,
        optimizer: Optimizer,
        **options: Unpack[SweepKeywords],
    ) -> "SweepPlan":
        """Check the arguments of a sweep, and fill in the defaults."""
        check_key(key)
        check_count("num_seeds", num_seeds)
        rates = checked_rates(learning_rates)
        rated = with_rate_in_state(optimizer)
        common = FitOptions(variates=(), optimizer=rated, **options)
        sampler = common.sampler or default_sampler(problem, natural=is_natural(rated))
        plan = cls(problem, rates, named_subsets(subsets, problem, sampler), num_seeds, key, optimizer, common)
        for name in plan.subsets:
            plan.fit_plan(name)  # refuses what cannot be fitted before anything is
        return plan

    @property
    def num_fits(self) -> int:
        """Of one subset."""
        return len(self.rates) * self.num_seeds

    def fit_plan(self, subset: str, folder: SweepFolder | None = None) -> FitPlan:
        """One program for all rates and seeds of a subset, those of the first rate first.

        On several devices the last fits are repeated as padding, so that every device has the same number.
        """
        mesh = Mesh(np.array(jax.local_devices()[: self.num_fits]), (FIT_AXIS,))
        number = np.arange(-(-self.num_fits // mesh.size) * mesh.size) % self.num_fits
        keys = jax.random.split(self.key, self.num_seeds)[number % self.num_seeds]
        rates = jnp.asarray(self.rates)[number // self.num_seeds]
        checkpoint = None if folder is None else folder.checkpoint(subset, number.size)
        options = dataclasses.replace(self.options, variates=self.subsets[subset], checkpoint=checkpoint)
        plan = FitPlan.of(options, self.problem.model, self.problem.family, keys)
        states = states_at(self.optimizer, rates, self.problem.family.init())
        plan = eqx.tree_at(lambda p: p.start.algorithm.optimizer, plan, states)
        return plan if mesh.size == 1 else _spread(plan, mesh)

    def run(self, out: Path | None = None, report: Report | None = None) -> SweepResult:
        """Fit what is not in the folder yet, and make the table.

        Args:
            out: folder for finished subsets and the table; several processes need one that all of them see.
            report: called for each subset of this process, as soon as it has a result.
        """
        num_processes, process = jax.process_count(), jax.process_index()
        if out is None and num_processes > 1:
            raise ValueError(
                f"`out` must be a folder that all {num_processes} processes see, got None; try `out='sweep'`."
            )
        if (idle := num_processes - len(self.subsets)) > 0 and process == 0:
            warnings.warn(f"Processes share the subsets, and {idle} of them have nothing to do.", stacklevel=2)
        folder = None if out is None else SweepFolder(out, self.settings())
        rows = self._found(folder)
        with hint_if_killed(_ADVICE, several=num_processes > 1):
            for name in list(self.subsets)[process::num_processes]:
                was_there = name in rows
                rows[name] = rows[name] if was_there else self._fit(name, folder)
                if report is not None:
                    report(rows[name], was_there)
            wait_for_all(_ADVICE)
        rows = self._found(folder) | rows
        if missing := [name for name in self.subsets if name not in rows]:
            raise ValueError(
                f"`out` must be a folder that all processes see, got {out}, which lacks {missing[0]!r} of another "
                "process; give one on a shared disk, and start the same sweep again."
            )
        table = SweepResult(tuple(row for name in self.subsets for row in rows[name]), self.options.steps)
        if out is not None and process == 0:
            table.to_json(out / "sweep.json")
            table.to_csv(out / "sweep.csv")
        return table

    def settings(self) -> dict[str, Any]:
        """What all subsets have in common, as JSON."""
        own = self.fit_plan(next(iter(self.subsets))).fingerprint
        return {
            "learning rates": list(self.rates),
            "seeds": self.num_seeds,
            "steps": self.options.steps,
            "program of the optimizer": optimizer_digest(self.optimizer, self.problem.family.init()),
            "key": f"{jax.random.key_impl(self.key)} {plain_array(self.key).tolist()}",
        } | {name: value for name, value in own.items() if name not in _OF_ONE_SUBSET}

    def _found(self, folder: SweepFolder | None) -> dict[str, tuple[SweepRow, ...]]:
        """Rows by subset, of those that are in the folder."""
        found = {} if folder is None else {name: folder.find(name, self._described(name)) for name in self.subsets}
        return {name: rows for name, rows in found.items() if rows}

    def _fit(self, subset: str, folder: SweepFolder | None) -> tuple[SweepRow, ...]:
        """Run the fits of a subset; Ctrl-C leaves their checkpoint in the folder."""
        with progress_bar(self.options.progress, self.options.steps, self.options.mesh) as bar:
            fits = run_plan(self.fit_plan(subset, folder), bar)[: self.num_fits]
        if any(fit.status is Status.INTERRUPTED for fit in fits):
            raise KeyboardInterrupt
        key = jax.random.fold_in(self.key, ELBO_KEY_NUMBER)
        rows = subset_rows(key, self.problem, fits, subset=subset, rates=self.rates)
        if folder is not None:
            folder.write(subset, self._described(subset), rows)
        return rows

    def _described(self, subset: str) -> dict[str, Any]:
        return {variate.name: describe(variate) for variate in self.subsets[subset]}


def _spread(plan: FitPlan, mesh: Mesh) -> FitPlan:
    """The same plan with its fits over several devices; each holds all the data."""
    arrays, rest = eqx.partition(plan.algorithm, eqx.is_array)
    arrays = jax.device_put(arrays, NamedSharding(mesh, PartitionSpec()))
    key, start = jax.device_put((plan.key, plan.start), NamedSharding(mesh, PartitionSpec(FIT_AXIS)))
    return dataclasses.replace(plan, algorithm=eqx.combine(arrays, rest), key=key, start=start, fit_mesh=mesh)
