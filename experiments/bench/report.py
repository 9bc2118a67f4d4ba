# SPDX-License-Identifier: Apache-2.0
"""The benchmark's report: rows for a file, the best settings, and how they compare with the fastest peer."""

import dataclasses
import importlib.metadata
import math
import os
import platform
from collections.abc import Sequence
from typing import Any

import jax

from experiments.bench.clock import TARGETS
from experiments.bench.experiment import Outcome
from experiments.bench.reference import Reference

_PACKAGES = ("quell", "jax", "jaxlib", "numpyro", "blackjax", "pymc", "pymc-extras", "optax")

COMPARISONS = {
    "auto than the best peer": ("quell auto", None),
    "auto than the best fixed choice": ("quell auto", "quell fixed"),
    "auto than natural-gradient steps on the base": ("quell auto", "quell natural base"),
    "ensemble than base, both with Adam": ("quell ensemble", "quell base"),
    "ensemble with Adam than the best peer": ("quell ensemble", None),
}
"""Comparisons in the lines below each table; `None` stands for the fastest peer."""


@dataclasses.dataclass(frozen=True)
class Report:
    """All outcomes of a benchmark.

    Attributes:
        outcomes: of all problems and methods.
        references: by problem, as known before the runs.
    """

    outcomes: Sequence[Outcome]
    references: dict[str, Reference]

    def optimum(self, problem: str) -> float:
        """The exact optimum, or the best ELBO of all runs and of the reference."""
        reference = self.references[problem]
        if reference.how.startswith("exact"):
            return reference.elbo
        seen = [elbo for one in self.of(problem) for run in one.runs for elbo in run.elbos]
        return max([reference.elbo, *(elbo for elbo in seen if math.isfinite(elbo))])

    def of(self, problem: str) -> list[Outcome]:
        """The outcomes of a problem."""
        return [one for one in self.outcomes if one.problem == problem]

    def methods(self, problem: str) -> list[str]:
        """Names of the methods that were run on a problem."""
        return list(dict.fromkeys(one.method for one in self.of(problem)))

    def best(self, problem: str, method: str, nats: float = TARGETS[-1]) -> Outcome:
        """A method's setting that is soonest within some nats, else the one that comes nearest."""
        optimum = self.optimum(problem)
        finals = [one for one in self.of(problem) if one.method == method and one.is_final]
        return min(finals, key=lambda one: (one.seconds_to(optimum, nats), one.final_gap(optimum)))

    def seconds(self, problem: str, method: str, nats: float) -> float:
        """Seconds of the setting that is soonest within some nats."""
        return self.best(problem, method, nats).seconds_to(self.optimum(problem), nats)

    def fastest_peer(self, problem: str, nats: float) -> float:
        """Seconds of the fastest method that is not ours; infinite where none arrives."""
        others = [method for method in self.methods(problem) if not method.startswith("quell")]
        return min((self.seconds(problem, method, nats) for method in others), default=math.inf)

    def comparisons(self, problem: str) -> dict[str, dict[str, float | None]]:
        """How many times sooner one is than another at each target; `None` where one of them does not arrive."""
        here, found = self.methods(problem), {}
        for name, (one, other) in COMPARISONS.items():
            if one in here and (other is None or other in here):
                pairs = [(self.seconds(problem, one, nats), self._other(problem, other, nats)) for nats in TARGETS]
                ratios = [_ratio(seconds, others) for seconds, others in pairs]
                found[name] = {f"{nats:g} nat": ratio for nats, ratio in zip(TARGETS, ratios, strict=True)}
        return found

    def _other(self, problem: str, method: str | None, nats: float) -> float:
        return self.fastest_peer(problem, nats) if method is None else self.seconds(problem, method, nats)

    def content(self) -> dict[str, Any]:
        """For `bench.json`: rows of all settings that came within a nat, and of the best of each method."""
        rows = [(one, one.row(self.optimum(one.problem))) for one in self.outcomes]
        optima = {
            problem: {"elbo": self.optimum(problem), "how": reference.how}
            for problem, reference in self.references.items()
        }
        return {
            "rows": [row for one, row in rows if one.is_final or row["seconds_to_1_nat"] is not None],
            "tried": {problem: self._num_tried(problem) for problem in self.references},
            "optima": optima,
            "times_sooner": {problem: self.comparisons(problem) for problem in self.references},
            "curves": [self._curve(problem, name) for problem in self.references for name in self.methods(problem)],
            "machine": machine(),
            "versions": versions(),
        }

    def _num_tried(self, problem: str) -> dict[str, int]:
        return {name: sum(one.method == name for one in self.of(problem)) for name in self.methods(problem)}

    def _curve(self, problem: str, method: str) -> dict[str, Any]:
        """The gap against the seconds in the first of the best setting's runs."""
        best, optimum = self.best(problem, method), self.optimum(problem)
        points = [(s, optimum - e) for s, e in zip(best.runs[0].seconds, best.runs[0].elbos, strict=True)]
        points = [(round(s, 6), round(gap, 5)) for s, gap in points if math.isfinite(gap)]
        return {
            "problem": problem,
            "method": method,
            "setting": best.setting,
            "seconds": [s for s, _ in points],
            "gaps": [gap for _, gap in points],
        }


def _ratio(seconds: float, others: float) -> float | None:
    return float(f"{others / seconds:.3g}") if math.isfinite(seconds) and math.isfinite(others) else None


def machine() -> dict[str, Any]:
    """The machine of this process."""
    return {
        "cpu": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "system": platform.system(),
        "device": jax.devices()[0].device_kind,
        "backend": jax.default_backend(),
    }


def versions() -> dict[str, str]:
    """Versions of Python and of the libraries that are here."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
