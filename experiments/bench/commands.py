# SPDX-License-Identifier: Apache-2.0
"""`quell bench`."""

import dataclasses
import json
import math
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from experiments.bench.clock import TARGETS
from experiments.bench.methods import KINDS, own_methods
from experiments.bench.peers import PEERS_DIR, Peer, load_peer, peer_names
from experiments.bench.piece import Effort, MethodPiece, Outcome, ReferencePiece, problem_of
from experiments.bench.plots import draw_gaps
from experiments.bench.problems import DEFAULT_NAMES, NAMES
from experiments.bench.reference import Reference
from experiments.bench.report import Report
from experiments.options import CELLS, DataDir, check_counts, check_out, split_names
from experiments.paper.experiment import AbstractExperiment, Store
from quell.cli.common import output_console
from quell.core.atomic import write_atomically
from quell.paper import DatasetUnavailable

_QUICK_PROBLEMS = ("sonar",)
_QUICK_KINDS = ("ensemble", "base")
_QUICK_BUDGET = 3


def bench(
    problems: Annotated[str, typer.Option(help="Names, separated by commas.")] = ",".join(DEFAULT_NAMES),
    peers: Annotated[str, typer.Option(help="Names of peers, `all` of the folder, or `none`.")] = "all",
    methods: Annotated[str, typer.Option(help="Our own methods.")] = ",".join(KINDS),
    peers_dir: Annotated[Path, typer.Option(help="Folder with the files of the peers.")] = PEERS_DIR,
    data_dir: DataDir = None,
    out: Annotated[Path, typer.Option(help="Folder for the report, the picture and finished pieces.")] = Path("bench"),
    seeds: Annotated[int, typer.Option(help="Runs of the best settings.")] = 3,
    budget: Annotated[int, typer.Option(help="Seconds of the search for a peer's best settings on a problem.")] = 120,
    quick: Annotated[bool, typer.Option("--quick", help="Within a minute: sonar, two methods, few settings.")] = False,
) -> None:
    """Wall-clock to the optimum, ours and that of other libraries at their best settings."""
    began = time.perf_counter()
    names = split_names("problem", problems, NAMES)
    kinds = split_names("method", methods, KINDS)
    check_counts(seeds=seeds, budget=budget)
    found = _load_peers(peers, peers_dir)
    check_out(out)
    if quick:
        names = [name for name in names if name in _QUICK_PROBLEMS] or names[:1]
        kinds = [kind for kind in kinds if kind in _QUICK_KINDS] or kinds[:1]
        budget = min(budget, _QUICK_BUDGET)
    effort = Effort(seeds, budget, quick)
    plan = _Plan(Store(out / CELLS), str(data_dir) if data_dir else None, tuple(kinds), found, effort)
    report = plan.run(names)
    content = report.content() | {"seconds": round(time.perf_counter() - began, 1), **dataclasses.asdict(effort)}
    write_atomically(out / "bench.json", lambda file: file.write((json.dumps(content, indent=1) + "\n").encode()))
    draw_gaps(content, out / "bench.png")
    console = output_console()
    for name in report.references:
        console.print(render(report, name))
        for line in sooner_lines(report, name):
            console.print(escape(line), soft_wrap=True)
    console.print(f"{content['seconds']:.0f} s; written to {out / 'bench.json'} and {out / 'bench.png'}")


class _Plan:
    """What is run, and where finished pieces are kept."""

    def __init__(
        self, store: Store, data_dir: str | None, kinds: tuple[str, ...], peers: list[Peer], effort: Effort
    ) -> None:
        """Nothing is run yet."""
        self.store, self.data_dir, self.kinds, self.peers = store, data_dir, kinds, peers
        self.effort, self.errors = effort, Console(stderr=True)

    def run(self, names: list[str]) -> Report:
        """All problems, one piece after the other; Ctrl-C leaves what was finished."""
        outcomes: list[Outcome] = []
        references: dict[str, Reference] = {}
        try:
            for name in names:
                self._run_problem(name, outcomes, references)
        except KeyboardInterrupt:
            folder = self.store.folder
            self._say(f"Interrupted. What was finished is in {folder}; the same command goes on from there.")
            raise typer.Exit(code=130) from None
        if not references:
            raise typer.Exit(code=1)
        return Report(outcomes, references)

    def _run_problem(self, name: str, outcomes: list[Outcome], references: dict[str, Reference]) -> None:
        try:
            bench = problem_of(name, self.data_dir)
        except (DatasetUnavailable, ModuleNotFoundError) as error:
            self._say(f"Left out {name}: {error}")
            return
        reference = ReferencePiece(name, self.data_dir)
        references[name] = reference.read(self._kept(reference))
        optimum, quick = references[name].elbo, self.effort.quick
        todo = [(None, method.name) for method in own_methods(bench, self.kinds, quick=quick)]
        todo += [(peer, method.name) for peer in self.peers for method in peer.methods(bench, quick)]
        for peer, method in todo:
            piece = MethodPiece(name, self.data_dir, method, peer, optimum, self.effort)
            try:
                outcomes += piece.read(self._kept(piece))
            except Exception as error:
                if peer is None:
                    raise
                self._say(f"Left out {piece.name}: {type(error).__name__}: {str(error).splitlines()[0]}")

    def _kept(self, piece: AbstractExperiment[Any]) -> Any:
        """The piece's result, from the store or by running it."""
        found = self.store.find(piece)
        if found is not None:
            self._say(f"{piece.name}: there from an earlier run")
            return found
        began = time.perf_counter()
        result = piece.run()
        self.store.keep(piece, result)
        self._say(f"{piece.name}: {time.perf_counter() - began:.0f} s")
        return result

    def _say(self, text: str) -> None:
        self.errors.print(escape(text), soft_wrap=True)


def _load_peers(text: str, folder: Path) -> list[Peer]:
    """The peers asked for that can be imported; a line for each that cannot."""
    errors, valid = Console(stderr=True), peer_names(folder)
    if text == "none":
        return []
    if not valid:
        line = f"No peers: there are no files of peers in {folder}. Type `--peers-dir DIR` for another folder."
        errors.print(escape(line), soft_wrap=True)
        return []
    found = []
    for name in valid if text == "all" else split_names("peer", text, [*valid, "all", "none"]):
        try:
            found.append(load_peer(name, folder))
        except ModuleNotFoundError as error:
            needed = (error.name or name).partition(".")[0].replace("_", "-")
            line = f"Left out {name}: {needed} is not installed. Type `pip install {needed}`, or `--peers none`."
            errors.print(escape(line), soft_wrap=True)
    return found


def render(report: Report, problem: str) -> Table:
    """A problem's methods, the fastest first; each target with the setting that is soonest there."""
    peers = {nats: report.fastest_peer(problem, nats) for nats in TARGETS}
    with_peers = any(not method.startswith("quell") for method in report.methods(problem))
    table = Table(title=f"{problem}: optimum {report.optimum(problem):.3f} nats")
    table.add_column("method", overflow="fold")
    for head in ("µs a step", "compile s", *(f"s to {nats:g} nat" for nats in TARGETS), "gap"):
        table.add_column(head, justify="right")
    if with_peers:
        for nats in TARGETS:
            table.add_column(f"of fastest peer, {nats:g}", justify="right")
    table.add_column("setting", overflow="fold")
    ranked = sorted(
        report.methods(problem), key=lambda method: [report.seconds(problem, method, nats) for nats in TARGETS[::-1]]
    )
    for method in ranked:
        best = report.best(problem, method)
        row, times = best.row(report.optimum(problem)), [report.seconds(problem, method, nats) for nats in TARGETS]
        gap = "" if row["final_gap"] is None else f"{row['final_gap']:.3g}"
        ratios = [_ratio(own, peers[nats]) for own, nats in zip(times, TARGETS, strict=True)] if with_peers else []
        cells = [f"{row['us_per_step']:.0f}", f"{row['compile_s']:.1f}", *(_seconds(t) for t in times), gap]
        table.add_row(method, *cells, *ratios, best.setting)
    return table


def sooner_lines(report: Report, problem: str) -> list[str]:
    """One line a comparison, where both arrive at a target."""
    lines = []
    for name, ratios in report.comparisons(problem).items():
        words = [f"{ratio:g} to {target}" for target, ratio in ratios.items() if ratio is not None]
        if words:
            lines.append(f"Times sooner, {name}: {', '.join(words)}.")
    return lines


def _seconds(value: float) -> str:
    return f"{value:.3g}" if math.isfinite(value) else "–"


def _ratio(own: float, peer: float) -> str:
    return f"{own / peer:.2g}" if math.isfinite(own) and math.isfinite(peer) else "–"
