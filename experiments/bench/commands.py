# SPDX-License-Identifier: Apache-2.0
"""`python -m experiments.bench`: the benchmark against peers; `posteriordb`, `large` and `proof` beside it."""

import dataclasses
import json
import math
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from experiments.bench.clock import TARGETS
from experiments.bench.experiment import Effort
from experiments.bench.large.commands import large
from experiments.bench.methods import KINDS
from experiments.bench.peers import PEERS_DIR, Peer, load_peer, peer_names
from experiments.bench.plan import Plan
from experiments.bench.plots import draw_gaps
from experiments.bench.posteriordb.commands import posteriordb
from experiments.bench.problems import DEFAULT_NAMES, NAMES
from experiments.bench.proof import page, proof
from experiments.bench.report import Report
from experiments.common.options import CELLS, DataDir, check_counts, check_out, say, say_left_out, split_names
from experiments.common.store import Store
from quell.cli.common import output_console
from quell.core.atomic import write_atomically

_QUICK_PROBLEMS = ("sonar",)
_QUICK_KINDS = ("ensemble", "base")
_QUICK_BUDGET = 3

app = typer.Typer(pretty_exceptions_enable=False)
app.command()(posteriordb)
app.command()(large)
app.command()(proof)
app.command()(page)


@app.callback(invoke_without_command=True)
def bench(
    context: typer.Context,
    problems: Annotated[str, typer.Option(help="Names, separated by commas.")] = ",".join(DEFAULT_NAMES),
    peers: Annotated[str, typer.Option(help="Names of peers, `all` of the folder, or `none`.")] = "all",
    methods: Annotated[str, typer.Option(help="Our own methods.")] = ",".join(KINDS),
    peers_dir: Annotated[Path, typer.Option(help="Folder with the files of the peers.")] = PEERS_DIR,
    data_dir: DataDir = None,
    out: Annotated[Path, typer.Option(help="Folder for the report, the picture and finished results.")] = Path("bench"),
    seeds: Annotated[int, typer.Option(help="Runs of the best settings.")] = 3,
    budget: Annotated[int, typer.Option(help="Seconds of the search for a peer's best settings on a problem.")] = 120,
    quick: Annotated[bool, typer.Option("--quick", help="Within a minute: sonar, two methods, few settings.")] = False,
) -> None:
    """Wall-clock to the optimum, of quell and of other libraries at their best settings."""
    if context.invoked_subcommand is not None:
        return
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
    plan = Plan(Store(out / CELLS), str(data_dir) if data_dir else None, tuple(kinds), tuple(found), effort)
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


def _load_peers(text: str, folder: Path) -> list[Peer]:
    """The requested peers that can be imported; one line on stderr for each that cannot."""
    valid = peer_names(folder)
    if text == "none":
        return []
    if not valid:
        say(f"No peers: there are no files `NAME_peer.py` in {folder}; try `--peers-dir DIR`.")
        return []
    found = []
    for name in valid if text == "all" else split_names("peer", text, [*valid, "all", "none"]):
        try:
            found.append(load_peer(name, folder))
        except ModuleNotFoundError as error:
            needed = (error.name or name).partition(".")[0].replace("_", "-")
            say_left_out(name, f"{needed} is not installed; try `pip install {needed}`, or `--peers none`.")
    return found


def render(report: Report, problem: str) -> Table:
    """A problem's methods, the fastest first; each target with the setting that is soonest there."""
    peers = {nats: report.fastest_peer(problem, nats) for nats in TARGETS}
    with_peers = any(not method.startswith("quell") for method in report.methods(problem))
    table = Table(title=f"{problem}: optimum {report.optimum(problem):.3f} nats")
    table.add_column("method", no_wrap=True)
    cold = f"cold s, {TARGETS[0]:g} nat"
    for head in ("µs per step", cold, *(f"s to {nats:g} nat" for nats in TARGETS), "gap"):
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
        from_cold = best.cold_seconds_to(report.optimum(problem), TARGETS[0])
        cells = [f"{row['us_per_step']:.0f}", *map(_seconds, [from_cold, *times]), gap]
        table.add_row(method, *cells, *ratios, best.setting)
    return table


def sooner_lines(report: Report, problem: str) -> list[str]:
    """One line per comparison, where both reach a target."""
    lines = []
    for name, ratios in report.comparisons(problem).items():
        parts = [f"{ratio:g} to {target}" for target, ratio in ratios.items() if ratio is not None]
        if parts:
            lines.append(f"Times sooner, {name}: {', '.join(parts)}.")
    return lines


def _seconds(value: float) -> str:
    return f"{value:.3g}" if math.isfinite(value) else "–"


def _ratio(own: float, peer: float) -> str:
    return f"{own / peer:.2g}" if math.isfinite(own) and math.isfinite(peer) else "–"
