# SPDX-License-Identifier: Apache-2.0
"""Why are the paper's c5 and c6 stronger than ours? Readings of its text, one change at a time.

    python -m experiments.paper.alternatives --data-dir DIR --out experiments/results/alternatives.json

Each row changes one choice of the protocol and reports the ELBO after 500 steps (median and mean of the runs) for the
base gradient and c5, and for S5, which holds c6, where the change concerns the variates. The last part fits random
halves of ionosphere, and asks whether one of them explains the paper's row.
"""

import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import typer

from experiments.common.workers import available_cores, run_jobs
from experiments.paper import protocol
from experiments.paper.sweep import LEARNING_RATES
from experiments.paper.table1 import PAPER
from quell.approximations import TaylorInData
from quell.combine import Moments, Rule, isotropic, solve
from quell.estimators import Reparameterization
from quell.evaluation import Sampler
from quell.families import CHOLESKY, SYMMETRIC
from quell.gradient import Gradient, GradientState
from quell.models import AbstractDataExpansion
from quell.paper import VARIATES, Dataset, load, variates
from quell.terms import Data
from quell.variates import ControlVariate

NUM_HALVES = 12
HALVES_COLUMNS = ("none", "S7", "c5", "c7")


# Other expansions in the data


class Expansion(AbstractDataExpansion):
    r"""Taylor expansion of \(\log s(u^\top z)\), \(u = y x\), around a point for each row, to some order."""

    rows: jax.Array
    centers: jax.Array
    order: int = eqx.field(static=True)

    def log_likelihood(self, z, batch):
        u = batch.targets[:, None] * batch.features
        # The rows of the batch, found by their features: a script may be slow where a library may not.
        index = jnp.argmin(jnp.sum(jnp.square(self.rows[None] - u[:, None]), -1), 1)
        return self._expand(u @ z, self.centers[index] @ z)

    def mean_log_likelihood(self, z):
        return jnp.mean(self._expand(self.rows @ z, self.centers @ z))

    def _expand(self, t, center):
        derivative: Callable = jax.nn.log_sigmoid
        total = jax.vmap(derivative)(center)
        for k in range(1, self.order + 1):
            derivative = jax.grad(derivative)
            total = total + jax.vmap(derivative)(center) * (t - center) ** k / math.factorial(k)
        return total


class OtherTaylorInData(TaylorInData):
    """Taylor in x with an expansion of our own."""

    expansion: Expansion

    def init(self, problem):
        return self.expansion


def expanded(dataset: Dataset, point: str, order: int) -> dict[str, ControlVariate]:
    """c5 and c6 with another expansion, or with none: the most that a correction for subsampling can do."""
    x, y = dataset.features, dataset.labels
    u = y[:, None] * x
    means = {label: u[y == label].mean(0) for label in (-1.0, 1.0)}
    centers = {
        "mean of u": np.broadcast_to(u.mean(0), u.shape),
        "mean of x, label apart": y[:, None] * x.mean(0),
        "mean of the class": np.stack([means[label] for label in y]),
        "zero": np.zeros_like(u),
        "itself": None,
    }[point]
    taylor = None if centers is None else OtherTaylorInData(Expansion(jnp.asarray(u), jnp.asarray(centers), order))
    transports = {"c5": CHOLESKY, "c6": SYMMETRIC}
    return {
        name: ControlVariate(
            Data(),
            Reparameterization(transport),
            Reparameterization(transport, full_data=True),
            approximation=taylor,
            label=name,
        )
        for name, transport in transports.items()
    }


# Other rules


class NotDebiased(Rule):
    """Averages that start at zero and stay too small at first, with the number of samples of the long run."""

    def weights(self, state, *, num_units: int, num_params: Any):
        total = Moments.from_joint(self.decay * state.total)
        num = total.cross.shape[0]
        prior = isotropic(self.v0, num_params=num_params, num_variates=num, dtype=total.cross.dtype)
        return solve(prior, total, num_units * (1 - self.decay) / self.decay) if num else total.cross


class SameDraw(Gradient):
    """Weights that have seen the draw that they are used on: a biased gradient, for comparison only."""

    def update_from_draw(self, draw, params, state):
        _, seen, _ = super().update_from_draw(draw, params, state)
        loss_grad, _, info = super().update_from_draw(draw, params, GradientState(seen.moments, state.variates))
        return loss_grad, seen, info


# Other optimisers


def heavy_ball(learning_rate):
    """Momentum as a sum instead of an average."""
    return optax.chain(optax.trace(protocol.MOMENTUM), optax.scale(-1.0), optax.scale(learning_rate))


def debiased_average(learning_rate):
    """Momentum as an average with bias correction."""
    return optax.chain(optax.ema(protocol.MOMENTUM, debias=True), optax.scale(-1.0), optax.scale(learning_rate))


class Change(NamedTuple):
    """One reading of the text; what is not named stays as in the protocol."""

    name: str
    point: str | None = None
    order: int = 2
    sampler: Sampler = Sampler(num_replicates=protocol.BATCH_SIZE, batch_size=1)
    rule: Rule = Rule(decay=protocol.DECAY, v0=protocol.V0)
    optimizer: Callable = protocol.paper_optimizer
    rate: float = 1.0
    same_draw: bool = False
    columns: tuple[str, ...] = ("none", "c5")


CHANGES = (
    Change("as in the protocol", columns=("none", "c5", "S5")),
    Change("around the mean of u, order 1", "mean of u", 1, columns=("c5", "S5")),
    Change("around the mean of u, order 3", "mean of u", 3, columns=("c5", "S5")),
    Change("around the mean of u, order 4", "mean of u", 4, columns=("c5", "S5")),
    Change("around the mean of x, label apart", "mean of x, label apart", columns=("c5", "S5")),
    Change("around the mean of each class", "mean of the class", columns=("c5", "S5")),
    Change("around the mean of each class, order 3", "mean of the class", 3, columns=("c5", "S5")),
    Change("around zero", "zero", columns=("c5", "S5")),
    Change("no approximation: the likelihood itself on all data", "itself", columns=("c5", "S5")),
    Change("one noise for the minibatch, with replacement", sampler=Sampler(1, 10, replace=True)),
    Change("one noise for the minibatch, without replacement", sampler=Sampler(1, 10)),
    Change("ten noises on one minibatch without replacement", sampler=Sampler(10, 10, shared=True)),
    Change("momentum as heavy ball, same rate", optimizer=heavy_ball),
    Change("momentum debiased", optimizer=debiased_average),
    Change("half the rate", rate=0.5),
    Change("moments not debiased", rule=NotDebiased(protocol.DECAY, protocol.V0)),
    Change("M is the batch size, not the effective number", rule=Rule(protocol.DECAY, 49 * protocol.V0)),
    Change("v0 = 0", rule=Rule(protocol.DECAY, 0.0)),
    Change("decay 0.1", rule=Rule(0.1, protocol.V0)),
    Change("weights from the same draw (biased)", same_draw=True),
)


class Job(NamedTuple):
    """One reading of the text on one data set and ensemble."""

    change: Change
    dataset: Dataset
    column: str
    num_runs: int


def ensemble(job: Job) -> tuple[ControlVariate, ...]:
    """The variates of a job, with its expansion."""
    chosen = variates(job.column)
    if job.change.point is None:
        return chosen
    others = VARIATES | expanded(job.dataset, job.change.point, job.change.order)
    return tuple(others[variate.name] for variate in chosen)


def gradient(job: Job) -> Gradient:
    """The gradient of a job."""
    kind = SameDraw if job.change.same_draw else Gradient
    problem = protocol.paper_problem(job.dataset)
    return kind(problem, ensemble(job), sampler=job.change.sampler, rule=job.change.rule)


def run(job: Job) -> dict:
    """Final ELBO of the runs of a job, beside the paper's."""
    change = job.change
    rate = change.rate * LEARNING_RATES.get(job.dataset.name, 0.4)
    options = {"num_runs": job.num_runs, "record_every": 500, "optimizer": change.optimizer}
    curves = protocol.elbo_curves(gradient(job), learning_rates=[rate], **options)
    final = curves[0, :, -1]
    finite = final[np.isfinite(final)]
    return {
        "change": change.name,
        "dataset": job.dataset.name,
        "column": job.column,
        "median": float(np.median(np.nan_to_num(final, nan=-np.inf))),
        "mean": float(finite.mean()) if finite.size else None,
        "stderr": float(finite.std(ddof=1) / np.sqrt(finite.size)) if finite.size > 1 else None,
        "not_finite": int(final.size - finite.size),
        "paper": PAPER.get(job.dataset.name, {}).get(job.column),
        "optimum": protocol.optimum(job.dataset),
    }


def random_halves(num_halves: int) -> list[Dataset]:
    """Random halves of ionosphere, scaled after the choice of rows, as the packaged half is."""
    whole, found = load("ionosphere-full"), []
    for seed in range(num_halves):
        rows = np.random.default_rng(seed).permutation(whole.num_data)[:176]
        features = whole.features[rows, :-1]
        low, high = features.min(0), features.max(0)
        spread = np.where(high > low, high - low, 1.0)
        scaled = np.where(high > low, 2 * (features - low) / spread - 1, 0.0)
        found.append(Dataset(f"half {seed}", np.column_stack([scaled, np.ones(len(rows))]), whole.labels[rows]))
    return found


def all_jobs(datasets: list[Dataset], halves: list[Dataset], num_runs: int) -> list[Job]:
    """Every change on every data set, and the protocol on the halves of ionosphere."""
    changed = [Job(change, data, name, num_runs) for data in datasets for change in CHANGES for name in change.columns]
    return changed + [Job(CHANGES[0], half, name, num_runs) for half in halves for name in HALVES_COLUMNS]


def main(
    data_dir: Annotated[Path | None, typer.Option(help="Folder with australian.csv.")] = None,
    out: Annotated[Path, typer.Option(help="Where the JSON goes.")] = Path("experiments/results/alternatives.json"),
    runs: Annotated[int, typer.Option(help="Independent runs each.")] = 20,
) -> None:
    """Run all changes, print the tables, and write them down."""
    began = time.perf_counter()
    datasets = [load("sonar"), load("australian", data_dir=data_dir)]
    jobs = all_jobs(datasets, random_halves(NUM_HALVES), runs)
    rows: list[dict] = [{}] * len(jobs)
    for done, (number, row) in enumerate(run_jobs(run, jobs, num_workers=available_cores()), 1):
        rows[number] = row
        print(
            f"{done}/{len(jobs)} {row['dataset']}, {row['change']}, {row['column']}: {row['median']:.1f}",
            file=sys.stderr,
        )
    content = {"runs": runs, "seconds": round(time.perf_counter() - began), "rows": rows}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(content, indent=1) + "\n")
    print(table(rows))


def table(rows: list[dict]) -> str:
    """The rows as Markdown."""
    lines = ["| change | data set | − | c5 | S5 |", "|---|---|---|---|---|"]
    for name in dict.fromkeys((row["change"], row["dataset"]) for row in rows if not row["dataset"].startswith("half")):
        some = {row["column"]: row for row in rows if (row["change"], row["dataset"]) == name}
        cells = [_text(some[column]) if column in some else "" for column in ("none", "c5", "S5")]
        lines.append(f"| {name[0]} | {name[1]} | {' | '.join(cells)} |")
    lines += ["", "| half | optimum | − | c5 | c7 | S7 |", "|---|---|---|---|---|---|"]
    for name in dict.fromkeys(row["dataset"] for row in rows if row["dataset"].startswith("half")):
        some = {row["column"]: row for row in rows if row["dataset"] == name}
        cells = [_text(some[column]) for column in ("none", "c5", "c7", "S7")]
        lines.append(f"| {name} | {some['none']['optimum']:.1f} | {' | '.join(cells)} |")
    return "\n".join(lines).replace("-", "−").replace("|−−−", "|---")


def _text(row: dict) -> str:
    lost = f" ({row['not_finite']} not finite)" if row["not_finite"] else ""
    return f"{row['median']:.1f}{lost}"


if __name__ == "__main__":
    typer.run(main)
