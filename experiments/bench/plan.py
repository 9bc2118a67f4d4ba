# SPDX-License-Identifier: Apache-2.0
"""The run of the benchmark: problem by problem, a reference first and then every method; finished results are kept."""

import dataclasses
import time
from typing import Any

import typer

from experiments.bench.experiment import Effort, MethodExperiment, Outcome, ReferenceExperiment, problem_of
from experiments.bench.methods import own_methods
from experiments.bench.peers import Peer
from experiments.bench.reference import Reference
from experiments.bench.report import Report
from experiments.common.experiment import AbstractExperiment
from experiments.common.options import say, say_left_out
from experiments.common.store import Store
from quell.cli.common import bad_parameters, resumable
from quell.paper import DatasetUnavailable


@dataclasses.dataclass(frozen=True)
class Plan:
    """Settings of a benchmark.

    Attributes:
        store: where finished results are kept.
        data_dir: folder of data that are not shipped.
        kinds: our methods.
        peers: other libraries.
        effort: how thorough the searches are.
    """

    store: Store
    data_dir: str | None
    kinds: tuple[str, ...]
    peers: tuple[Peer, ...]
    effort: Effort

    def run(self, names: list[str]) -> Report:
        """Run the problems one after the other, since they are timed."""
        outcomes: list[Outcome] = []
        references: dict[str, Reference] = {}
        with resumable(self.store.folder):
            for name in names:
                self._run_problem(name, outcomes, references)
        if not references:
            raise typer.Exit(code=1)
        return Report(outcomes, references)

    def _run_problem(self, name: str, outcomes: list[Outcome], references: dict[str, Reference]) -> None:
        try:
            with bad_parameters():  # a file of data that are not the published ones
                bench = problem_of(name, self.data_dir)
        except (DatasetUnavailable, ModuleNotFoundError) as error:
            say_left_out(name, str(error))
            return
        references[name] = self._result(ReferenceExperiment(name, self.data_dir))
        optimum, quick = references[name].elbo, self.effort.quick
        todo = [(None, method.name) for method in own_methods(bench, self.kinds, quick=quick)]
        todo += [(peer, method.name) for peer in self.peers for method in peer.methods(bench, quick)]
        for peer, method in todo:
            experiment = MethodExperiment(name, self.data_dir, method, peer, optimum, self.effort)
            try:
                outcomes += self._result(experiment).outcomes()
            except Exception as error:
                if peer is None:
                    raise
                say_left_out(experiment.name, f"{type(error).__name__}: {str(error).splitlines()[0]}")

    def _result(self, experiment: AbstractExperiment[Any]) -> Any:
        """The result of an experiment, from the store or by running it."""
        found = self.store.find(experiment)
        if found is not None:
            say(f"{experiment.name}: kept by an earlier run")
            return found
        began = time.perf_counter()
        result = experiment.run()
        self.store.keep(experiment, result)
        say(f"{experiment.name}: {time.perf_counter() - began:.0f} s")
        return result
