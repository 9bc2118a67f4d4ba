# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: resumed is bit for bit uninterrupted, and nothing goes on from the wrong file."""

import hashlib
import math
import os
import subprocess
import sys
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import catalogue
import quell
from quell import CheckpointError, ControlVariate, Status
from quell.approximations import refuses_to_approximate
from quell.fit import driver, loop
from quell.fit.checkpoint import file as checkpoint_file
from quell.fit.checkpoint import fingerprint as checkpoint_fingerprint
from quell.fit.checkpoint import keeper as checkpoint_keeper
from quell.fit.checkpoint.file import named, plain_array, read_contents, restored, write_contents
from quell.fit.checkpoint.keeper import Snapshot
from quell.fit.history import History
from quell.fit.plan import FitPlan
from quell.terms import elbo

FEATURES, TARGETS = np.array([[1.0, 0.5], [1.0, -1.0], [1.0, 2.0]]), [0.3, -0.6, 1.4]
MODEL = quell.gaussian_regression(FEATURES, TARGETS, noise=0.5)
FAMILY = quell.MeanField(2)
ADAM = optax.adam(0.05)
SAMPLER = quell.Sampler(2, 2)
NETWORK = eqx.nn.MLP(2, "scalar", 3, 1, jax.nn.tanh, key=jax.random.key(5))
RP, SF, CF = quell.Reparameterization(), quell.ScoreFunction(), quell.ClosedForm()
STATEFUL = (
    ControlVariate(elbo(), SF, CF, approximation=quell.Baseline("moving-average")),
    ControlVariate(quell.Data(), SF, RP, approximation=quell.Surrogate(NETWORK, optax.adam(0.1))),
    ControlVariate(quell.Data(), RP, quell.ClosedForm(full_data=True), approximation=quell.AnchoredQuadratic(every=7)),
)


def _fit(key, checkpoint=None, **options):
    defaults = {"optimizer": ADAM, "steps": 90, "sampler": SAMPLER, "variates": (), "checkpoint": checkpoint}
    return quell.fit(MODEL, FAMILY, key=key, **(defaults | options))


def _assert_same(one, other):
    for left, right in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(plain_array(left), plain_array(right))


def _all(result):
    return result.params, result.state, result.history


def _plan(key, model=MODEL, family=FAMILY, **options):
    return FitPlan.of(quell.FitOptions(**options), model, family, key)


class _Killed(BaseException):
    """As a kill would: nothing is caught on the way out."""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "fit.quell"


@pytest.fixture
def stop_after(monkeypatch):
    """Make the fit end, in some way, after a number of chunks of 16 or 32 steps; called without one, let it live."""
    run_chunk = loop.run_chunk

    def after(num_chunks=math.inf, error=_Killed):
        done = []

        def stopped(*args):
            if len(done) >= num_chunks:
                raise error
            done.append(run_chunk(*args))
            return done[-1]

        monkeypatch.setattr(loop, "run_chunk", stopped)

    monkeypatch.setattr(driver, "_CHUNK_SECONDS", 0.0)
    return after


# Going on


@pytest.mark.parametrize("error", [_Killed, KeyboardInterrupt, RuntimeError])
def test_a_resumed_fit_is_the_uninterrupted_one(error, key, path, stop_after):
    """Here with variates that learn: a moving average, a network and its optimiser, an anchor that is refreshed."""
    options = {"variates": STATEFUL, "average_from": 0.5}
    whole = _fit(key, **options)
    stop_after(2, error)
    first = quell.Checkpoint(path, every_steps=20)
    if error is KeyboardInterrupt:
        stopped = _fit(key, first, **options)
        assert stopped.status is Status.INTERRUPTED
        assert "quell.Checkpoint(path, resume=True)" in repr(stopped)
    else:
        with pytest.raises(error):
            _fit(key, first, **options)
    reached = read_contents(path).header["step"]
    assert 0 < reached < 90
    stop_after()
    resumed = _fit(key, quell.Checkpoint(path, resume=True), **options)
    assert resumed.status is Status.COMPLETED
    _assert_same(_all(resumed), _all(whole))
    for variate, learned in zip(resumed.gradient.variates, resumed.state.variates, strict=True):
        pairs = zip(jax.tree.leaves(learned), jax.tree.leaves(variate.init(resumed.problem)), strict=True)
        assert any((one != other).any() for one, other in pairs), "there is something to lose"


@pytest.mark.release
def test_twenty_kills_leave_whole_checkpoints_and_the_same_fit():
    """Five of the twenty, with SIGKILL on real processes; `python tests/kill_resume.py` does all."""
    script = Path(__file__).with_name("kill_resume.py")
    words = [sys.executable, "-W", "ignore", str(script), "--kills", "5", "--steps", "300"]
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    done = subprocess.run(words, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all checkpoints were whole; the same bit for bit" in done.stdout


@pytest.fixture
def steps_written(monkeypatch):
    """The step of each checkpoint, as it is written."""
    steps, write = [], checkpoint_keeper.write_contents

    def seen(path, header, arrays):
        steps.append(header["step"])
        write(path, header, arrays)

    monkeypatch.setattr(checkpoint_keeper, "write_contents", seen)
    return steps


def test_checkpoints_are_written_on_a_grid_of_steps(key, path, steps_written):
    _fit(key, quell.Checkpoint(path, every_steps=40))
    assert steps_written == [0, 40, 80, 90]


def test_checkpoints_are_written_by_the_clock(key, path, monkeypatch, steps_written):
    now = [0.0]

    def monotonic():
        now[0] += 40.0
        return now[0]

    monkeypatch.setattr(checkpoint_keeper, "time", type("Clock", (), {"monotonic": staticmethod(monotonic)}))
    monkeypatch.setattr(driver, "_CHUNK_SECONDS", 0.0)
    _fit(key, quell.Checkpoint(path, every_minutes=1.5))
    assert steps_written[0] == 0
    assert steps_written[-1] == 90
    assert 3 <= len(steps_written) <= 4


def test_a_finished_fit_is_read_and_not_run_again(key, path, monkeypatch):
    whole = _fit(key, quell.Checkpoint(path))
    before = path.read_bytes()
    monkeypatch.setattr(loop, "run_chunk", pytest.fail)
    again = _fit(key, quell.Checkpoint(path, resume=True))
    _assert_same(_all(again), _all(whole))
    assert again.status is Status.COMPLETED
    assert again.seconds.fitting >= whole.seconds.total - 0.5
    assert path.read_bytes() == before


def test_a_finished_fit_can_have_more_steps(key, path):
    _fit(key, quell.Checkpoint(path))
    longer = _fit(key, quell.Checkpoint(path, resume=True), steps=130)
    _assert_same(_all(longer), _all(_fit(key, steps=130)))


def test_an_exception_in_a_callback_loses_nothing(key, path):
    def callback(progress):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        _fit(key, quell.Checkpoint(path), callback=callback)
    assert read_contents(path).header["step"] > 0
    _assert_same(_all(_fit(key, quell.Checkpoint(path, resume=True))), _all(_fit(key)))


def test_many_fits_share_a_checkpoint(key, path):
    shared = {"optimizer": ADAM, "steps": 60, "sampler": SAMPLER, "variates": (), "num_fits": 2, "key": key}
    whole = quell.fit_many(MODEL, FAMILY, **shared)
    first = quell.Checkpoint(path, every_steps=20)

    def interrupt(progress):
        raise KeyboardInterrupt

    part = quell.fit_many(MODEL, FAMILY, checkpoint=first, callback=interrupt, **shared)
    assert {result.history.num_steps for result in part} == {16}
    resumed = quell.fit_many(MODEL, FAMILY, checkpoint=quell.Checkpoint(path, resume=True), **shared)
    _assert_same([_all(result) for result in resumed], [_all(result) for result in whole])


def test_fits_that_stand_at_different_steps_go_on_without_a_gap(key, path):
    shared = {"optimizer": ADAM, "sampler": SAMPLER, "variates": (), "num_fits": 2, "key": key}
    stop_first = quell.fit_many(
        MODEL, FAMILY, checkpoint=quell.Checkpoint(path), callback=lambda now: now.fit == 0, steps=1500, **shared
    )
    assert [result.history.num_steps for result in stop_first] == [16, 1500]
    resumed = quell.fit_many(MODEL, FAMILY, checkpoint=quell.Checkpoint(path, resume=True), steps=3000, **shared)
    whole = quell.fit_many(MODEL, FAMILY, steps=3000, **shared)
    _assert_same([_all(result) for result in resumed], [_all(result) for result in whole])


# What was chosen automatically


COSH = quell.Model(lambda z, x: -jnp.cosh(x - z[0] - z[1]), quell.NormalPrior(), jnp.arange(3.0), 2)


def _choosing(key, checkpoint=None, **options):
    """A model without closed forms: Newton steps on common draws."""
    return quell.fit(COSH, FAMILY, key=key, **({"checkpoint": checkpoint} | options))


@pytest.mark.usefixtures("on_draws")
def test_a_choice_is_the_same_when_a_fit_is_resumed(key, path):
    whole = _choosing(key)
    part = _choosing(key, quell.Checkpoint(path), steps=5)
    assert part.status is Status.NOT_CONVERGED
    resumed = _choosing(key, quell.Checkpoint(path, resume=True))
    assert resumed.choice == whole.choice == part.choice
    assert resumed.choice.base == "common draws"
    assert resumed.status is Status.CONVERGED
    _assert_same(_all(resumed), _all(whole))


# The file

OPTIMIZERS = {
    "adam": ADAM,
    "noisy": optax.chain(
        optax.add_noise(0.1, 0.5, key=jax.random.key(3)), optax.trace(0.9, accumulator_dtype="bfloat16")
    ),
}


def _filled(leaf, rng):
    """A leaf with all kinds of values."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.key(int(rng.integers(1000)))
    values = rng.normal(scale=100.0, size=leaf.shape)
    values.flat[:3] = np.array([np.nan, -0.0, np.inf])[: values.size]
    with np.errstate(invalid="ignore"):
        return jnp.asarray(values.astype(leaf.dtype))


def _round_trip(tree, path):
    write_contents(path, {"of": "a tree"}, named(tree, plain_array, "tree"))
    _assert_same_bits(restored(read_contents(path).arrays, tree, "tree"), tree)


def _assert_same_bits(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for left, right in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert jax.typeof(left) == jax.typeof(right)
        assert plain_array(left).tobytes() == plain_array(right).tobytes()


def _allowed(problem):
    made = catalogue.approximations(problem.model.dim)
    return {how: one for how, one in made.items() if refuses_to_approximate(one, problem, quell.Data()) is None}


@pytest.mark.parametrize("name", catalogue.CASES)
def test_save_and_load_is_identity_for_all_of_the_catalogue(name, path):
    """The parameters of every family, and the state of a gradient with every approximation."""
    case = catalogue.Case(name)
    problem, params, rng = case.problem, case.entry.params, np.random.default_rng(0)
    states = tuple(approximation.init(problem) for approximation in _allowed(problem).values())
    moments = quell.Rule().init(len(states), jnp.float64, num_leaves=len(jax.tree.leaves(params)))
    state = quell.GradientState(moments, states)
    _round_trip((params, state), path)
    _round_trip(jax.tree.map(lambda leaf: _filled(leaf, rng), state), path)


def test_the_law_sees_every_family_and_every_approximation():
    seen = {how for name in catalogue.CASES for how in _allowed(catalogue.Case(name).problem)}
    alike = {"two categories"}  # the parameters of "categorical" in another shape, kept for its samples
    assert {family for _, family, _ in catalogue.CASES.values()} == set(catalogue.FAMILIES) - alike
    assert seen == set(catalogue.approximations(2))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_save_and_load_of_a_snapshot_is_identity(optimizer, key, path):
    plan = _plan(key, variates=STATEFUL, optimizer=OPTIMIZERS[optimizer], average_from=0.5)
    rng = np.random.default_rng(0)
    filled = jax.tree.map(lambda leaf: _filled(leaf, rng), plan.start)
    state = eqx.tree_at(lambda state: state.params, filled, plan.start.params)  # NaN is refused there
    num_variates = len(plan.algorithm.gradient.variates)
    pieces = [History.empty(num_variates, num_variates)]
    for num in (3, 4):
        rows = [rng.normal(size=num) for _ in range(3)]
        weights = rng.normal(size=(num, num_variates))
        pieces.append(History(*rows, weights, weights > 0, rows[0] > 0))
    before = Snapshot(plan, state, (tuple(pieces),), 1.5)
    before.save(path)
    after = Snapshot.load(path, plan)
    _assert_same_bits(after.state, state)
    _assert_same(after.histories, before.histories)
    assert after.seconds == before.seconds
    if optimizer == "noisy":
        assert jnp.dtype("bfloat16") in {leaf.dtype for leaf in jax.tree.leaves(state)}


def test_there_is_no_pickle_and_everything_has_a_name(key, path):
    _fit(key, quell.Checkpoint(path))
    contents = read_contents(path)
    assert all(array.dtype != object for array in contents.arrays.values())
    assert {"state.algorithm.params.loc", "state.step", "history[0].elbo"} <= set(contents.arrays)
    assert contents.arrays["history[0].elbo"].shape == (90,)
    assert contents.header["fingerprint"]["quell"] == quell.__version__
    assert contents.header["fingerprint"]["jax"] == jax.__version__
    assert path.read_bytes().startswith(b"quell checkpoint 2\n")
    names = named(_plan(key, optimizer=ADAM, variates=()).start, lambda leaf: None)
    assert {f"state{name}" for name in names} == {name for name in contents.arrays if name.startswith("state")}


def test_any_damage_is_seen(key, path):
    _fit(key, quell.Checkpoint(path))
    whole = path.read_bytes()
    resume = quell.Checkpoint(path, resume=True)
    for cut in (0, 5, 30, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        text = "is damaged: its checksum" if cut > 20 else "must be a checkpoint"
        with pytest.raises(CheckpointError, match=text):
            _fit(key, resume)
    for place in range(0, len(whole), len(whole) // 40):
        changed = bytearray(whole)
        changed[place] ^= 1
        path.write_bytes(changed)
        with pytest.raises(CheckpointError, match=r"damaged|must be a checkpoint|must have format"):
            _fit(key, resume)
        assert path.read_bytes() == changed, "a file that is refused is left alone"
    path.write_bytes(whole + b"more")
    with pytest.raises(CheckpointError, match=r"damaged: .*; restore it"):
        _fit(key, resume)


def _forged(path, name, array):
    header, arrays = read_contents(path)
    kept = {other: value for other, value in arrays.items() if other != name}
    write_contents(path, header, kept if array is None else kept | {name: array})


LOC = "state.algorithm.params.loc"
FORGED = {
    "a shape": (LOC, np.zeros(3), r"`state\.algorithm\.params\.loc` must be float64\[2\], got float64\[3\]"),
    "a dtype": (LOC, np.zeros(2, "float32"), r"must be float64\[2\], got float32\[2\]"),
    "texts": (LOC, np.array(["a", "b"]), r"must be float64\[2\], got <U1\[2\]"),
    "a missing array": ("state.step", None, r"`state\.step` is missing"),
    "NaN": (LOC, np.array([0.0, np.nan]), r"`state\.algorithm\.params\.loc` must be free of NaN"),
    "a short history": ("history[0].skipped", np.zeros(3, bool), r"must be bool\[90\], got bool\[3\]"),
    "a history of texts": ("history[0].elbo", np.array(["a"] * 90), r"must be float64\[90\], got <U1\[90\]"),
    "a missing history": ("history[0].elbo", None, r"`history\[0\]\.elbo` is missing"),
}


@pytest.mark.parametrize("what", FORGED)
def test_a_forged_array_is_refused(what, written, path):
    name, array, text = FORGED[what]
    path.write_bytes(written.read_bytes())
    _forged(path, name, array)
    with pytest.raises(CheckpointError, match=f"fit.quell is damaged: .*{text}"):
        _fit(jax.random.key(0), quell.Checkpoint(path, resume=True))


def test_infinite_numbers_outside_of_the_parameters_are_kept(written, path):
    path.write_bytes(written.read_bytes())
    name = next(name for name in read_contents(path).arrays if "optimizer" in name and name.endswith("mu.loc"))
    _forged(path, name, np.full(2, np.inf))
    assert _fit(jax.random.key(0), quell.Checkpoint(path, resume=True)).history.num_steps == 90


@pytest.mark.parametrize(
    ("header", "text"),
    [
        ({}, "its header has no fingerprint"),
        ({"fingerprint": []}, "its header has no fingerprint"),
        ({"fingerprint": {"jax": "0"}, "seconds": "long"}, "`seconds` must be a finite number, got 'long'"),
    ],
)
def test_a_forged_header_is_refused(header, text, path, key):
    write_contents(path, header, {})
    with pytest.raises(CheckpointError, match=text):
        _fit(key, quell.Checkpoint(path, resume=True))


def test_a_forged_archive_is_refused(path, key):
    body = b"no archive"
    path.write_bytes(b"quell checkpoint 2\n" + hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
    with pytest.raises(CheckpointError, match=r"is damaged: .*; restore it"):
        _fit(key, quell.Checkpoint(path, resume=True))


def test_another_format_is_refused(key, path):
    _fit(key, quell.Checkpoint(path))
    path.write_bytes(path.read_bytes().replace(b"quell checkpoint 2\n", b"quell checkpoint 3\n", 1))
    with pytest.raises(CheckpointError, match=r"must have format 2, got 3;"):
        _fit(key, quell.Checkpoint(path, resume=True))


def test_what_a_killed_process_left_is_removed(key, path):
    _fit(key, quell.Checkpoint(path))
    left, other = path.with_name(".fit.quell.abcd1234"), path.with_name(".fit.quell.notes")
    left.write_text("half of a checkpoint")
    other.write_text("mine")
    _fit(key, quell.Checkpoint(path, resume=True))
    assert not left.exists()
    assert other.exists()


# What is refused


def _lines(slope):
    return quell.Model(lambda z, x: -((x - slope * z[0] - z[1]) ** 2), quell.NormalPrior(), jnp.arange(3.0), 2)


ANOTHER = {
    "data": (
        {"model": quell.gaussian_regression(FEATURES + 0.1, TARGETS, noise=0.5)},
        r"differs in data, \.features \(float64\[3, 2\] \w+ there, float64\[3, 2\] \w+ here\); ",
    ),
    "number of data": (
        {"model": quell.gaussian_regression(FEATURES[:2], TARGETS[:2], noise=0.5)},
        r"model, num_data \(3 there, 2 here\); data",
    ),
    "noise of the likelihood": (
        {"model": quell.gaussian_regression(FEATURES, TARGETS, noise=0.6)},
        r"differs in log-likelihood \(\w+ there, \w+ here\); ",
    ),
    "prior": (
        {"model": quell.gaussian_regression(FEATURES, TARGETS, noise=0.5, prior=quell.NormalPrior(0.0, 2.0))},
        r"differs in log-prior \(",
    ),
    "class of the model": (
        {"model": _lines(1.0)},
        r"model, class \(quell\.models\.linear\.LinearPredictor there, quell",
    ),
    "family": ({"family": quell.FullRank(2)}, r"family, class \(.*MeanField there, .*FullRank here\)"),
    "setting of the family": (
        {"family": quell.MeanField(2, init_scale=0.2)},
        r"differs in family, init_scale \(0\.1 there, 0\.2 here\); ",
    ),
    "variates": ({"variates": quell.paper.variates("c1")}, r"variates, c1 \(none there, "),
    "base": ({"base": quell.BaseGradient(variational=RP)}, r"base, variational"),
    "sampler": ({"sampler": quell.Sampler(2, 1)}, r"sampler, batch_size \(2 there, 1 here\)"),
    "rule": ({"rule": quell.Rule(decay=0.1)}, r"rule, decay \(0\.02 there, 0\.1 here\)"),
    "optimizer": ({"optimizer": optax.sgd(0.1)}, r"state, \.algorithm\.optimizer.* there, none here"),
    "default optimizer": ({"optimizer": None}, r"optimizer \(given there, default here\)"),
    "average": ({"average_from": 0.5}, r"averaged after step \(none there, 45 here\)"),
    "key": ({"key": jax.random.key(1)}, r"differs in key \("),
}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = tmp_path_factory.mktemp("written") / "fit.quell"
    _fit(jax.random.key(0), quell.Checkpoint(path))
    return path


@pytest.mark.parametrize("what", ANOTHER)
def test_a_checkpoint_of_another_fit_is_refused_with_what_differs(what, written, monkeypatch):
    changed, text = ANOTHER[what]
    monkeypatch.setattr(loop, "run_chunk", pytest.fail)
    before = written.read_bytes()
    options = {"key": jax.random.key(0), "optimizer": ADAM, "steps": 90, "sampler": SAMPLER, "variates": ()}
    options |= {"model": MODEL, "family": FAMILY, "checkpoint": quell.Checkpoint(written, resume=True)} | changed
    with pytest.raises(CheckpointError, match=f"(?s)was written by another fit: it .*{text}.*") as error:
        quell.fit(**options)
    assert "give this fit another path" in str(error.value)
    assert written.read_bytes() == before


def test_a_changed_function_is_seen_and_an_equal_one_is_not(key, path):
    options = {"optimizer": ADAM, "steps": 5, "variates": (), "sampler": SAMPLER, "key": key}
    once = quell.fit(_lines(1.0), FAMILY, checkpoint=quell.Checkpoint(path), **options)
    resume = quell.Checkpoint(path, resume=True)
    with pytest.raises(CheckpointError, match=r"differs in log-likelihood"):
        quell.fit(_lines(2.0), FAMILY, checkpoint=resume, **options)
    again = quell.fit(_lines(1.0), FAMILY, checkpoint=resume, **options)
    _assert_same(_all(again), _all(once))


def test_a_file_that_is_there_is_not_overwritten(written):
    before = written.read_bytes()
    text = r"already exists; pass `quell.Checkpoint\(.*resume=True\)` or another path"
    with pytest.raises(CheckpointError, match=text):
        _fit(jax.random.key(0), quell.Checkpoint(written))
    assert written.read_bytes() == before


def test_fewer_steps_than_the_checkpoint_has_are_refused(written):
    text = r"`steps` must be at least 90, .* got 50"
    with pytest.raises(CheckpointError, match=text):
        _fit(jax.random.key(0), quell.Checkpoint(written, resume=True), steps=50)


def test_a_path_that_cannot_be_written_is_seen_at_once(key, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "run_chunk", pytest.fail)
    with pytest.raises(CheckpointError, match=r"nowhere/fit\.quell \(No such file"):
        _fit(key, quell.Checkpoint(tmp_path / "nowhere" / "fit.quell"))


def test_a_full_disk_does_not_end_the_fit(key, path, monkeypatch):
    write, calls = checkpoint_file.write_atomically, []

    def full(*args):
        calls.append(args)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        write(*args)

    monkeypatch.setattr(checkpoint_file, "write_atomically", full)
    with pytest.warns(UserWarning, match=r"could not be written \(No space left on device\)\. The fit goes on"):
        result = _fit(key, quell.Checkpoint(path, every_steps=40))
    assert result.status is Status.COMPLETED
    assert read_contents(path).header["step"] == 90


def test_another_version_of_jax_is_told(written, monkeypatch):
    monkeypatch.setattr(jax, "__version__", "99.0")
    with pytest.warns(UserWarning, match=r"resumed with JAX 99\.0: the fit is the same to rounding, not bit for bit"):
        _fit(jax.random.key(0), quell.Checkpoint(written, resume=True))


def test_another_version_of_quell_is_refused(written, monkeypatch):
    monkeypatch.setattr(checkpoint_fingerprint, "VERSION", "99.0")
    with pytest.raises(quell.CheckpointError, match=r"differs in quell \(0.* there, 99\.0 here\)"):
        _fit(jax.random.key(0), quell.Checkpoint(written, resume=True))


@pytest.mark.usefixtures("unchecked")
def test_intervals_must_be_positive(path):
    with pytest.raises(ValueError, match=r"`every_steps` .* got 0"):
        quell.Checkpoint(path, every_steps=0)
    with pytest.raises(ValueError, match=r"`every_minutes` .* got -1"):
        quell.Checkpoint(path, every_minutes=-1)


def test_a_long_history_takes_little_space(key, path):
    """A hundred thousand steps with seven variates: about ten megabytes."""
    plan = _plan(key, optimizer=ADAM, variates=())
    num, rng = 100_000, np.random.default_rng(0)
    rows = [rng.normal(size=num) for _ in range(3)]
    history = History(*rows, rng.normal(size=(num, 7)), np.zeros((num, 7), bool), np.zeros(num, bool))
    Snapshot(plan, plan.start, ((history,),), 0.0).save(path)
    assert 8e6 < path.stat().st_size < 10e6
