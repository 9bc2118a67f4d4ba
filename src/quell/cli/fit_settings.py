# SPDX-License-Identifier: Apache-2.0
"""The options of `quell fit` that determine a fit, enough to repeat it."""

import contextlib
import dataclasses
import functools
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import jax
import optax
from jax.sharding import Mesh

import quell
from quell.cli.data_file import read_parts
from quell.cli.model_file import load_model, split_target
from quell.core.checks import check_count, check_name, check_positive, check_seed, check_text
from quell.core.processes import ProcessLost
from quell.families import AbstractFamily
from quell.fit import FitOptions
from quell.fit.defaults import default_sampler, moving_steps
from quell.fit.plan import FitPlan
from quell.paper.ensembles import SUBSETS
from quell.variates import VARIATES, ControlVariate

FAMILIES: dict[str, Callable[[int], AbstractFamily]] = {
    "meanfield": quell.MeanField,
    "fullrank": quell.FullRank,
    "lowrank": lambda dim: quell.LowRank(dim, rank=min(5, dim)),
}


@functools.cache
def _falling_adam(steps: int) -> Callable[[Any], optax.GradientTransformation]:
    """Adam with cosine decay to zero, as a function of its initial rate."""
    return lambda rate: optax.adam(optax.cosine_decay_schedule(rate, steps))


@dataclasses.dataclass(frozen=True)
class FitSettings:
    """The options of `quell fit` that determine a fit; the command's help says what they mean."""

    model: str
    data: str | None = None
    family: str = "fullrank"
    steps: int = 2000
    tolerance: float = 0.01
    seed: int = 0
    learning_rate: float | None = None
    batch_size: int | None = None
    variates: str = "auto"

    def __post_init__(self) -> None:
        """Check the options, which may come from a damaged file, before any other file is read."""
        for name in ("model", "family", "variates", *(() if self.data is None else ("data",))):
            check_text(name, getattr(self, name))
        check_seed(self.seed)
        check_name("The family", self.family, FAMILIES)
        check_count("steps", self.steps)
        check_positive("tolerance", self.tolerance)
        if self.learning_rate is not None:
            check_positive("learning_rate", self.learning_rate)
        if self.batch_size is not None:
            check_count("batch_size", self.batch_size)
        for name in self._variate_names():
            check_name("The ensemble", name, ["auto", "default", *SUBSETS, *VARIATES])

    def resolved(self) -> "FitSettings":
        """The settings with absolute paths."""
        file, name = split_target(self.model)
        model = str(file.resolve()) + (f":{name}" if name else "")
        data = None if self.data is None else str(Path(self.data).resolve())
        return dataclasses.replace(self, model=model, data=data)

    def plan(self, *, checkpoint: quell.Checkpoint, mesh: Mesh | None = None) -> FitPlan:
        """Read model and data, and plan the fit.

        Args:
            checkpoint: of the fit.
            mesh: of devices; each process reads its own share of the data.
        """
        is_shared = mesh is not None and jax.process_count() > 1
        if is_shared and self.variates == "default":
            raise ValueError(
                "`--variates` must be auto or names with several processes, got default; try `--variates auto`."
            )
        shares = {"part": jax.process_index(), "num_parts": jax.process_count()} if is_shared else {}
        problem, rate = self.problem(**shares), self.learning_rate
        model, family, sampler = problem.model, problem.family, self.sampler(problem)
        with self.explained():
            options = FitOptions(
                variates=self._chosen_variates(problem, sampler),
                optimizer=None if rate is None else self.adam()(rate),
                steps=self.steps,
                tolerance=self.tolerance,
                sampler=None if self.batch_size is None else sampler,
                checkpoint=checkpoint,
                mesh=mesh,
            )
            return FitPlan.of(options, model, family, jax.random.key(self.seed))

    def problem(self, *, part: int = 0, num_parts: int = 1) -> quell.Problem:
        """Read the model, and the data or one of several equal shares of it."""
        data = None if self.data is None else read_parts(Path(self.data), part=part, num_parts=num_parts)
        model = load_model(self.model, data)
        with self.explained():
            return quell.Problem(model, FAMILIES[self.family](model.dim))

    def adam(self) -> Callable[[Any], optax.GradientTransformation]:
        """Adam that decays over the steps that move, as a function of its initial rate: only `auto` has a warm-up."""
        return _falling_adam(moving_steps(self.steps) if self.variates == "auto" else self.steps)

    def sampler(self, problem: quell.Problem) -> quell.Sampler:
        """The default sampler for the optimiser, with `batch_size` if it was given."""
        sampler = default_sampler(problem, natural=self.learning_rate is None)
        if self.batch_size is None:
            return sampler
        replicates = sampler.num_replicates if self.learning_rate is None else 1
        return dataclasses.replace(sampler, num_replicates=replicates, batch_size=self.batch_size)

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Turn an error of the user's model into one line that names it."""
        try:
            yield
        except (ValueError, ProcessLost):
            raise
        except Exception as error:  # the user's functions may raise anything
            first = str(error).strip().split("\n")[0]
            raise ValueError(
                f"{self.model} cannot be evaluated ({type(error).__name__}: {first}); try `quell.check_model(model)`."
            ) from error

    def differences(self, other: "FitSettings") -> list[str]:
        """Options in which another fit differs, with its values."""
        mine, theirs = dataclasses.asdict(self), dataclasses.asdict(other)
        return [f"--{name.replace('_', '-')} ({theirs[name]} before)" for name in mine if mine[name] != theirs[name]]

    def command(self, out: Path) -> str:
        """The command that resumes the fit."""
        words = ["quell", "fit", self.model]
        for field in dataclasses.fields(self)[1:]:
            if (value := getattr(self, field.name)) != field.default:
                words += [f"--{field.name.replace('_', '-')}", str(value)]
        return shlex.join([*words, "--out", str(out), "--resume"])

    def _variate_names(self) -> list[str]:
        return [name.strip() for name in self.variates.split(",")]

    def _chosen_variates(
        self, problem: quell.Problem, sampler: quell.Sampler
    ) -> tuple[ControlVariate, ...] | Literal["auto"]:
        if self.variates == "auto":
            return "auto"
        if self.variates == "default":
            return quell.default_variates(problem, sampler)
        names = self._variate_names()
        return quell.paper.variates(names[0] if len(names) == 1 else names)
