# SPDX-License-Identifier: Apache-2.0
"""Many fits: the same as one by one, in one program a subset, over devices and processes, resumed, and in a table."""

import csv
import dataclasses
import itertools
import json
import math
import os
import socket
import subprocess
import sys

import jax
import numpy as np
import optax
import pytest

import quell
import tolerances
from quell.fit import driver, loop
from quell.fit.natural_gradient import is_natural
from quell.sweep import plan as sweep_plan
from quell.sweep.folder import SweepFolder
from quell.sweep.plan import SweepPlan
from quell.sweep.rates import with_rate_in_state

FEATURES, TARGETS = [[1.0, 0.5], [1.0, -1.0], [1.0, 2.0], [0.5, 0.1]], [0.3, -0.6, 1.4, 0.2]
MODEL = quell.gaussian_regression(FEATURES, TARGETS, noise=0.5)
FAMILY = quell.MeanField(2)
SAMPLER = quell.Sampler(1, 2)
RATES = (0.003, 0.1)
STEPS = 20  # as many as `tolerances.RUNS` is for
SUBSETS = ("none", "c7")


def _momentum(rate):
    return optax.sgd(rate, momentum=0.9)


def _sweep(key, **options):
    defaults = {"learning_rates": RATES, "subsets": ("none",), "num_seeds": 2, "steps": STEPS, "sampler": SAMPLER}
    return quell.sweep(MODEL, FAMILY, key=key, **(defaults | options))


def _elbos(result):
    return np.array([row.elbos for row in result.rows])


# The same as single fits


def _falling(rate):
    return optax.adam(optax.cosine_decay_schedule(rate, STEPS))


def _injected(rate):
    return optax.inject_hyperparams(optax.sgd)(rate)


def _natural(rate):
    return quell.natural_gradient(quell.Problem(MODEL, FAMILY), lambda step: rate)


@pytest.mark.parametrize(
    ("optimizer", "subset", "num_checked"),
    [
        pytest.param(optax.adam, "none", 1, marks=pytest.mark.slow),
        pytest.param(optax.adam, "c1+c7", 2, marks=pytest.mark.release),
        pytest.param(_falling, "none", 2, marks=pytest.mark.release),
        pytest.param(_injected, "none", 2, marks=pytest.mark.release),  # its state holds the rate
        pytest.param(_natural, "default", 2, marks=pytest.mark.release),  # with another default sampler and rule
    ],
)
def test_each_fit_is_the_single_fit_at_its_rate_and_seed(key, optimizer, subset, num_checked):
    sampler = None if optimizer is _natural else SAMPLER
    result = _sweep(key, subsets=(subset,), optimizer=optimizer, sampler=sampler)
    problem = quell.Problem(MODEL, FAMILY)
    chosen = {"c1+c7": ("c1", "c7"), "none": ()}
    variates = quell.default_variates(problem, quell.Sampler(10, None))
    if subset != "default":
        variates = quell.paper.variates(chosen[subset])
    options = {"variates": variates, "steps": STEPS, "sampler": sampler}
    seeds = jax.random.split(key, 2)
    for row, number in itertools.product(result.rows[-num_checked:], range(2)):
        single = quell.fit(MODEL, FAMILY, key=seeds[number], optimizer=optimizer(row.learning_rate), **options)
        np.testing.assert_allclose(
            row.elbos[number], float(quell.exact_elbo(problem, single.params)), **tolerances.RUNS
        )
    assert len({elbo for row in result.rows for elbo in row.elbos}) == 4, "rates and seeds make a difference"


def test_the_rows_are_in_the_order_asked_for(key):
    result = _sweep(key, subsets=(quell.paper.variates("c7"), "none"), learning_rates=[0.1, 0.003])
    found = [(row.subset, row.learning_rate) for row in result.rows]
    assert found == [(name, rate) for name in ("c7", "none") for rate in (0.1, 0.003)]
    assert {row.num_seeds for row in result.rows} == {2}
    assert all(row.error == 0 for row in result.rows), "the ELBO of a linear predictor is exact"
    again = _sweep(key, subsets=("none",))
    np.testing.assert_array_equal(_elbos(again)[::-1], _elbos(result)[-2:])


def test_an_elbo_without_a_closed_form_is_sampled_with_an_error(key):
    model = quell.Model(
        lambda z, x: -0.5 * (x - z[0]) ** 2 - z[0] ** 4, quell.NormalPrior(), np.arange(3.0), np.zeros(1)
    )
    options = {"learning_rates": (0.01,), "subsets": ("none",), "num_seeds": 2, "steps": STEPS}
    row = quell.sweep(model, quell.MeanField(1), key=key, **options).rows[0]
    assert 0 < row.error < 0.1 * abs(row.median)


# One program


@pytest.mark.slow
def test_a_subset_is_compiled_once_whatever_the_rates_and_seeds(key, monkeypatch):
    traces = []
    step = loop.take_step
    monkeypatch.setattr(loop, "take_step", lambda *args: traces.append(1) or step(*args))
    monkeypatch.setattr(driver, "_FIRST_CHUNK", 3)
    monkeypatch.setattr(driver, "_CHUNK_SECONDS", 0.0)
    optimizer = lambda rate: optax.sgd(rate, momentum=0.8)  # noqa: E731
    _sweep(key, optimizer=optimizer, learning_rates=(0.01, 0.02, 0.04))
    first = len(traces)
    assert first > 0
    _sweep(jax.random.key(5), optimizer=optimizer, learning_rates=(0.03, 0.002, 0.1), steps=2 * STEPS)
    assert len(traces) == first, "other rates, another key and more steps need no other program"
    _sweep(key, optimizer=optimizer, learning_rates=(0.01, 0.02, 0.04), subsets=("c7",))
    assert len(traces) == 2 * first, "another subset is another program"


# Divergence


def test_fits_that_diverge_are_counted_and_never_the_best(key):
    result = _sweep(key, learning_rates=(0.01, 1e200), num_seeds=3, optimizer=optax.sgd)
    good, bad = result.rows
    assert (good.num_diverged, bad.num_diverged) == (0, 3)
    assert bad.median == bad.highest == -math.inf
    assert result.best is good
    assert "3/3" in repr(result).splitlines()[2]
    lost = dataclasses.replace(result, rows=(bad,))
    with pytest.raises(
        quell.DivergenceError, match=r"Half of the fits.* in each of 1 rows.*learning_rates=\(1e\+199,\)"
    ):
        _ = lost.best


@pytest.mark.parametrize(
    ("elbos", "median"),
    [
        ((-3.0, -1.0, -2.0), -2.0),
        ((-4.0, -1.0), -2.5),
        ((-math.inf, -2.0, -1.0), -2.0),
        ((-math.inf, -1.0), -math.inf),
    ],
)
def test_a_diverged_fit_counts_as_minus_infinity(elbos, median):
    row = quell.SweepRow("none", 0.1, elbos, elbos.count(-math.inf), 0.0, 1.0)
    assert (row.median, row.lowest, row.highest, row.num_seeds) == (median, min(elbos), max(elbos), len(elbos))


# The folder


def _files(folder, kind):
    return sorted(path.name for path in folder.glob(f"*.{kind}"))


@pytest.fixture
def runs(monkeypatch):
    """Names of the variates of each subset that is fitted."""
    seen, run = [], sweep_plan.run_plan

    def counted(plan, bar):
        seen.append(plan.algorithm.gradient.names)
        return run(plan, bar)

    monkeypatch.setattr(sweep_plan, "run_plan", counted)
    return seen


def test_a_second_run_does_only_what_is_missing(key, tmp_path, runs):
    out = tmp_path / "new" / "sweep"
    first = _sweep(key, subsets=("c7",), out=out)
    assert runs == [("c7",)]
    both = _sweep(key, subsets=SUBSETS, out=out)
    assert runs == [("c7",), ()], "more subsets may be added"
    assert both.rows[2:] == first.rows, "with their seconds"
    again = _sweep(key, subsets=SUBSETS, out=out)
    assert again == both
    assert len(runs) == 2
    assert len(_files(out, "result")) == 2
    assert _files(out, "part") == []
    assert json.loads((out / "sweep.json").read_text()) == again.as_json()


@pytest.mark.parametrize("chunks", [3, 6])
def test_interrupted_and_resumed_is_the_same_as_left_alone(key, tmp_path, monkeypatch, chunks):
    whole = _sweep(key, subsets=SUBSETS)
    monkeypatch.setattr(driver, "_FIRST_CHUNK", 3)
    monkeypatch.setattr(driver, "_CHUNK_SECONDS", 0.0)
    run, left = loop.run_chunk, [chunks]

    def interrupted(*args):
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return run(*args)

    monkeypatch.setattr(loop, "run_chunk", interrupted)
    with pytest.raises(KeyboardInterrupt):
        _sweep(key, subsets=SUBSETS, out=tmp_path)
    assert len(_files(tmp_path, "part")) == 1, "a subset is on its way"
    assert not (tmp_path / "sweep.json").exists()
    steps = []

    def counted(algorithm, policy, keys, states, *args):
        steps.append(int(states.step.max()))
        return run(algorithm, policy, keys, states, *args)

    monkeypatch.setattr(loop, "run_chunk", counted)
    resumed = _sweep(key, subsets=SUBSETS, out=tmp_path)
    assert steps[0] > 0, "the subset goes on from where it was"
    np.testing.assert_array_equal(_elbos(resumed), _elbos(whole))
    assert _files(tmp_path, "part") == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"learning_rates": (0.003, 0.2)}, r"learning rates \(\[0.003, 0.1\] there, \[0.003, 0.2\] here\)"),
        ({"num_seeds": 3}, r"seeds \(2 there, 3 here\)"),
        ({"steps": 30}, r"steps \(20 there, 30 here\)"),
        ({"optimizer": _momentum}, r"program of the optimizer \(\w+ there, \w+ here\)"),
        ({"sampler": quell.Sampler(2, 2)}, r"sampler, num_replicates \(1 there, 2 here\)"),
        ({"rule": quell.Rule(v0=0.5)}, r"rule, v0 \(0.001 there, 0.5 here\)"),
        ({"subsets": ("c7",), "steps": 30}, r"steps \(20 there, 30 here\)"),
    ],
)
def test_other_settings_in_the_folder_are_refused_and_nothing_is_lost(key, tmp_path, options, words):
    _sweep(key, out=tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(
        ValueError, match=rf"holds a sweep with other settings: it differs in {words}.* another folder\."
    ):
        _sweep(key, out=tmp_path, **options)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_another_key_or_other_data_are_refused(key, tmp_path):
    _sweep(key, out=tmp_path)
    with pytest.raises(ValueError, match=r"differs in key \("):
        _sweep(jax.random.key(1), out=tmp_path)
    model = quell.gaussian_regression(FEATURES, [0.0, *TARGETS[1:]], noise=0.5)
    options = {"learning_rates": RATES, "subsets": ("none",), "num_seeds": 2, "steps": STEPS, "sampler": SAMPLER}
    with pytest.raises(ValueError, match=r"differs in data, .targets \("):
        quell.sweep(model, FAMILY, key=key, out=tmp_path, **options)


def test_other_variates_under_the_same_name_are_refused(key, tmp_path):
    c7, c1 = quell.paper.variates("c7")[0], quell.paper.variates("c1")[0]
    renamed = dataclasses.replace(c1, label=c7.name)
    _sweep(key, subsets=((c7,),), out=tmp_path)
    with pytest.raises(ValueError, match="variates of c7"):
        _sweep(key, subsets=((renamed,),), out=tmp_path)


def test_a_sweep_beside_a_fit_leaves_its_files_alone(key, tmp_path):
    (tmp_path / "settings.json").write_text("of a fit")
    (tmp_path / "checkpoint.quell").write_text("of a fit")
    _sweep(key, out=tmp_path)
    assert {(tmp_path / name).read_text() for name in ("settings.json", "checkpoint.quell")} == {"of a fit"}


def test_settings_without_results_are_written_over(key, tmp_path, runs):
    _sweep(key, out=tmp_path)
    for path in tmp_path.glob("*.result"):
        path.unlink()
    _sweep(key, out=tmp_path, num_seeds=1)
    assert len(runs) == 2


@pytest.mark.parametrize("damage", [lambda raw: raw[:-20], lambda raw: b"nothing", lambda raw: b""])
def test_a_damaged_result_is_fitted_again_with_a_warning(key, tmp_path, damage, runs):
    whole = _sweep(key, out=tmp_path)
    (path,) = tmp_path.glob("*.result")
    path.write_bytes(damage(path.read_bytes()))
    with pytest.warns(UserWarning, match="cannot be read, and none is fitted again"):
        again = _sweep(key, out=tmp_path)
    np.testing.assert_array_equal(_elbos(again), _elbos(whole))
    assert len(runs) == 2
    assert _sweep(key, out=tmp_path) == again


def test_a_damaged_checkpoint_is_fitted_again_with_a_warning(key, tmp_path):
    folder = SweepFolder(tmp_path, {"jax": jax.__version__})
    path = folder.checkpoint("none", 4).path
    path.write_bytes(b"quell checkpoint 2\nbroken")
    with pytest.warns(UserWarning, match="none is fitted again"):
        assert folder.checkpoint("none", 4).path == path
    assert not path.exists()


def test_damaged_settings_are_an_error(key, tmp_path):
    _sweep(key, out=tmp_path)
    (tmp_path / "sweep-settings.json").write_text("{")
    with pytest.raises(ValueError, match=r"sweep-settings.json is damaged"):
        _sweep(key, out=tmp_path)


def test_another_version_of_jax_goes_on_with_what_is_there(key, tmp_path, runs):
    _sweep(key, out=tmp_path)
    settings = json.loads((tmp_path / "sweep-settings.json").read_text())
    settings |= {"jax": "0.0.1", "program of the optimizer": "other", "log-likelihood": "other"}
    (tmp_path / "sweep-settings.json").write_text(json.dumps(settings))
    _sweep(key, out=tmp_path)
    assert len(runs) == 1


def test_a_folder_that_cannot_be_one_is_refused(key, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"`out` .* got .*file \("):
        _sweep(key, out=tmp_path / "file")


# The table


RESULT = quell.SweepResult(
    (
        quell.SweepRow("none", 0.01, (-12.0, -10.0, -11.0), 0, 0.0, 2.0),
        quell.SweepRow("none", 1.0, (-math.inf, -math.inf, -90.0), 2, 0.0, 2.0),
        quell.SweepRow("c1+c7", 0.01, (-9.0, -8.0, -8.5), 0, 0.25, 3.0),
        quell.SweepRow("c1+c7", 1.0, (-math.inf, -9.5, -8.7), 1, 0.25, 3.0),
    ),
    steps=100,
)


def test_the_files_hold_the_table(tmp_path):
    assert RESULT.best.subset == "c1+c7"
    content = json.loads(RESULT.to_json(tmp_path / "a.json").read_text())
    assert (content["steps"], len(content["rows"])) == (100, 4)
    assert content["rows"][1]["median"] is None
    assert content["rows"][1]["elbos"] == [None, None, -90.0]
    with RESULT.to_csv(tmp_path / "a.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["median"] for row in rows] == ["-11.0", "", "-8.5", "-9.5"]
    assert (rows[3]["lowest"], rows[3]["num_diverged"], rows[3]["error"]) == ("", "1", "0.25")
    lines = repr(RESULT).splitlines()
    assert lines[0].split() == ["subset", "rate", "median", "lowest", "highest", "diverged", "s"]
    assert lines[3].split() == ["c1+c7", "0.01", "-8.50", "-9.00", "-8.00", "0/3", "3.0"]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_figure_has_a_line_per_subset_and_hides_what_is_far_below(theme):
    (axes,) = RESULT.plot(theme=theme).axes
    assert [line.get_label() for line in axes.lines] == ["none", "c1+c7"]
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), [-11.0, np.nan])
    np.testing.assert_array_equal(axes.lines[1].get_ydata(), [-8.5, -9.5])
    low, high = axes.get_ylim()
    assert -30 < low < -11
    assert -8 < high < -7
    assert axes.get_xscale() == "log"


def test_a_picture_of_nothing_but_divergence_is_empty():
    (axes,) = quell.SweepResult(RESULT.rows[1:2], 100).plot().axes
    assert not np.isfinite(axes.lines[0].get_ydata()).any()


# What is refused


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"learning_rates": ()}, ValueError, r"`learning_rates` must be a list .* got \(\)"),
        ({"learning_rates": 0.1}, ValueError, r"`learning_rates` must be a list .* got 0\.1"),
        ({"learning_rates": (0.1, -0.1)}, ValueError, r"`learning_rates` .* got -0\.1"),
        ({"learning_rates": (0.1, math.inf)}, ValueError, r"`learning_rates` .* got inf"),
        (
            {"learning_rates": (0.1, 0.1)},
            ValueError,
            r"`learning_rates` must be different .* got \(0\.1, 0\.1\).*num_seeds=",
        ),
        ({"learning_rates": ("a",)}, ValueError, r"`learning_rates` .* got a"),
        ({"num_seeds": 0}, ValueError, r"`num_seeds` .* got 0"),
        ({"steps": 0}, ValueError, r"`steps` .* got 0"),
        ({"subsets": ()}, ValueError, r"`subsets` .* got \(\)"),
        ({"subsets": "S7"}, ValueError, r"`subsets` .* got 'S7'"),
        ({"subsets": ("S8",)}, ValueError, r"subset .* got 'S8'\. Did you mean 'S7'"),
        ({"subsets": ("c1+S4",)}, ValueError, r"subset .* got 'S4'"),
        ({"subsets": ("c7", quell.paper.variates("c7"))}, ValueError, r"`subsets` .* got 'c7' twice"),
        ({"subsets": (3,)}, TypeError, r"`subsets` .* got 3"),
        (
            {"optimizer": optax.adam(0.1)},
            TypeError,
            r"`optimizer` must be a function .*optimizer=optax.adam",
        ),
        ({"optimizer": lambda rate: 3}, TypeError, r"`optimizer` .* returns 3"),
        ({"optimizer": lambda rate: optax.sgd(float(rate))}, TypeError, r"`optimizer` must take the rate as an array"),
        ({"sampler": quell.Sampler(1, 10)}, ValueError, r"batch_size"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_what_is_refused(key, tmp_path, options, error, words):
    with pytest.raises(error, match=words):
        _sweep(key, out=tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_a_variate_that_the_problem_does_not_allow_is_refused_before_anything_is_fitted(key, runs):
    model = quell.Model(lambda z, x: -((x - z[0]) ** 2), lambda z: -abs(z[0]), np.arange(3.0), np.zeros(1))
    with pytest.raises(ValueError, match="c2 = prior"):
        quell.sweep(model, quell.MeanField(1), key=key, learning_rates=RATES, subsets=("none", "c2"), steps=5)
    assert runs == []


# Several devices, several processes

PROGRAM = """
import sys
import jax
jax.config.update("jax_enable_x64", True)
if len(sys.argv) > 2:
    jax.distributed.initialize(sys.argv[2], 2, int(sys.argv[3]))
import numpy as np
import quell
from test_sweep import _sweep, _elbos, SUBSETS
from quell.fit import loop

run_chunk, seen = loop.run_chunk, []
def run(*args):
    state, infos = run_chunk(*args)
    shardings = [(leaf.sharding, leaf.shape) for leaf in jax.tree.leaves(state)]
    seen.append([[len(sharding.device_set), sharding.shard_shape(shape)[0]] for sharding, shape in shardings])
    return state, infos
loop.run_chunk = run
result = _sweep(jax.random.key(20181202), subsets=SUBSETS, num_seeds=3, out=sys.argv[1])
devices = len(jax.local_devices())
expected = [devices, -(-6 // devices)]
assert seen and all(one == expected for chunk in seen for one in chunk), seen
print(_elbos(result).tolist(), devices, file=open(f"{sys.argv[1]}/{jax.process_index()}.txt", "w"))
"""


def _start(*words, devices):
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    paths = os.pathsep.join([os.path.dirname(__file__), *sys.path])
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": paths}
    command = [sys.executable, "-c", PROGRAM, *map(str, words)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.mark.release
@pytest.mark.parametrize(
    "devices", [pytest.param(2, marks=pytest.mark.release), 4]
)  # 6 fits: 3 each, and 2 each with two that fill up
def test_fits_are_spread_over_devices_with_the_same_numbers(key, tmp_path, devices):
    process = _start(tmp_path, devices=devices)
    output, _ = process.communicate(timeout=tolerances.PATIENCE)
    assert process.returncode == 0, output
    found = (tmp_path / "0.txt").read_text().rsplit(" ", 1)
    assert int(found[1]) == devices
    alone = _sweep(key, subsets=SUBSETS, num_seeds=3)
    np.testing.assert_allclose(json.loads(found[0]), _elbos(alone), **tolerances.RUNS)


@pytest.mark.slow
def test_subsets_are_spread_over_processes_and_all_have_the_table(key, tmp_path):
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        address = f"localhost:{probe.getsockname()[1]}"
    processes = [_start(tmp_path, address, number, devices=2) for number in range(2)]
    outputs = [process.communicate(timeout=tolerances.PATIENCE)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    tables = [(tmp_path / f"{number}.txt").read_text() for number in range(2)]
    assert tables[0] == tables[1]
    alone = _sweep(key, subsets=SUBSETS, num_seeds=3)
    np.testing.assert_allclose(json.loads(tables[0].rsplit(" ", 1)[0]), _elbos(alone), **tolerances.RUNS)


@pytest.mark.parametrize(("optimizer", "natural"), [(optax.adam, False), (_natural, True)])
def test_an_optimiser_with_its_rate_in_its_state_is_known_for_what_it_is(optimizer, natural):
    assert is_natural(with_rate_in_state(optimizer)) == natural


def test_several_processes_need_a_folder(key, monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ValueError, match=r"`out` .* 2 processes .* got None"):
        _sweep(key)


def test_a_process_fits_its_share_and_misses_that_of_the_others(key, tmp_path, monkeypatch, runs):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    monkeypatch.setattr(sweep_plan, "wait_for_all", lambda advice: None)
    with pytest.raises(ValueError, match=r"`out` .* lacks 'none'"):
        _sweep(key, subsets=SUBSETS, out=tmp_path)
    assert runs == [("c7",)]


def test_processes_without_a_subset_are_told_of(key, tmp_path, monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 3)
    monkeypatch.setattr(sweep_plan, "wait_for_all", lambda advice: None)
    with pytest.warns(UserWarning, match="2 of them have nothing to do"):
        _sweep(key, out=tmp_path)


def test_the_plan_knows_its_size(key):
    problem = quell.Problem(MODEL, FAMILY)
    options = {"learning_rates": RATES, "subsets": SUBSETS, "num_seeds": 5, "optimizer": optax.adam, "steps": 3}
    plan = SweepPlan.of(key, problem, **options)
    made = plan.fit_plan("c7")
    assert plan.num_fits == made.key.size == 10
    np.testing.assert_allclose(
        made.start.algorithm.optimizer.hyperparams["rate"], np.repeat(RATES, 5), **tolerances.EXACT
    )
