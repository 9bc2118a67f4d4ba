# SPDX-License-Identifier: Apache-2.0
"""Fits over many devices and processes: the same as on one, and clear errors where that cannot be."""

import contextlib
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time

import jax
import numpy as np
import optax
import pytest
from jax.experimental import multihost_utils
from jax.sharding import Mesh

import quell
from quell.cli.cluster import join
from quell.cli.data_file import read_data, read_parts
from quell.core import devices, processes
from quell.fit.checkpoint.file import read_contents
from quell.fit.checkpoint.fingerprint import array_digest
from tolerances import PATIENCE

HERE = pathlib.Path(__file__).parent
STEPS = 200


def start(*args, num_devices, x64=True, cwd=None):
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={num_devices}"
    options = {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "1" if x64 else "0"}
    options |= {"PYTHONPATH": os.pathsep.join([*sys.path, str(HERE)])}
    command = [sys.executable, *map(str, args)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, env=os.environ | options, cwd=cwd, **pipes)


def finish(*jobs, seconds=PATIENCE):
    for job in jobs:
        output = job.communicate(timeout=seconds)[0]
        assert job.returncode == 0, output


def free_port():
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


def compare(found, size, tolerance, reference="0"):
    """Every fit on a mesh with the one without, by its relative distance."""
    with np.load(found) as archive:
        arrays = dict(archive)
    names = [name.split(" ", 1)[1] for name in arrays if name.startswith(f"{size} ")]
    assert names
    for name in names:
        here, there = arrays[f"{size} {name}"], arrays[f"{reference} {name}"]
        assert np.linalg.norm(here - there) <= tolerance * np.linalg.norm(there), (size, name)


@pytest.mark.slow
def test_eight_devices_fit_as_one_does(tmp_path):
    finish(start(HERE / "on_devices.py", tmp_path / "found.npz", 40, "0,8", num_devices=8))
    compare(tmp_path / "found.npz", 8, 1e-10)


@pytest.mark.release
@pytest.mark.parametrize(("x64", "tolerance"), [(True, 1e-10), (False, 1e-5)])
def test_any_number_of_devices_gives_the_same_fit(tmp_path, x64, tolerance):
    finish(start(HERE / "on_devices.py", tmp_path / "found.npz", STEPS, "0,2,4,8", num_devices=8, x64=x64))
    for size in (2, 4, 8):
        compare(tmp_path / "found.npz", size, tolerance)


@pytest.mark.release
@pytest.mark.parametrize(("x64", "tolerance"), [(False, 1e-5), pytest.param(True, 1e-10, marks=pytest.mark.release)])
def test_two_processes_with_two_devices_each_give_the_same_fit(tmp_path, x64, tolerance):
    port, script = free_port(), HERE / "on_devices.py"
    jobs = [
        start(script, tmp_path / "two.npz", STEPS, "4", port, 2, number, num_devices=2, x64=x64) for number in range(2)
    ]
    finish(*jobs)
    finish(start(script, tmp_path / "one.npz", STEPS, "0", num_devices=1, x64=x64))
    with np.load(tmp_path / "one.npz") as one, np.load(tmp_path / "two.npz") as two:
        np.savez(tmp_path / "both.npz", **one, **two)
    compare(tmp_path / "both.npz", 4, tolerance)


MODEL = """
import quell
def line(x, y):
    return quell.logistic_regression(x, y)
"""


@pytest.fixture
def shards(tmp_path):
    (tmp_path / "model.py").write_text(MODEL)
    rng = np.random.default_rng(0)
    for part in range(2):
        np.savez(tmp_path / f"rows-{part}.npz", x=rng.normal(size=(40, 2)), y=rng.integers(0, 2, size=40))
    return tmp_path


def fit_command(folder, *more):
    options = ["--learning-rate", "0.01", "--batch-size", "8", "--variates", "c1,c7", "--checkpoint-every", "20"]
    where = ["--data", str(folder / "rows-*.npz"), "--out", str(folder / "out")]
    return ["-m", "quell", "fit", f"{folder / 'model.py'}:line", *where, *options, *more]


@pytest.mark.release
@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.release)])
def test_when_a_process_is_killed_the_other_ends_and_one_goes_on(shards, victim):
    port, steps = free_port(), ("--steps", "100000")
    jobs = []
    for number in range(2):
        cluster = ("--coordinator", f"localhost:{port}", "--num-processes", "2", "--process-id", str(number))
        jobs.append(start(*fit_command(shards, *steps, *cluster), num_devices=1))
    checkpoint = shards / "out" / "checkpoint.quell"
    wait_until(lambda: checkpoint.exists() and checkpoint.stat().st_mtime_ns, changes=2)
    jobs[victim].kill()
    output = jobs[1 - victim].communicate(timeout=PATIENCE)[0]
    assert jobs[1 - victim].returncode != 0
    assert re.search(rf"(quell:|A step failed in) process {1 - victim} of 2", output), output
    assert "--resume" in output
    jobs[victim].communicate()
    alone = start(*fit_command(shards, *steps), num_devices=1)
    printed = alone.communicate(timeout=PATIENCE)[0].replace("│", " ")
    assert "2 processes; now: 1" in " ".join(printed.split())
    assert alone.returncode == 2
    reached = read_contents(checkpoint)[0]["step"]
    alone = start(*fit_command(shards, *steps, "--resume"), num_devices=1)
    wait_until(lambda: checkpoint.stat().st_mtime_ns, changes=2)
    assert read_contents(checkpoint)[0]["step"] > reached, "it goes on, and does not begin anew"
    alone.terminate()
    alone.communicate(timeout=PATIENCE)


def wait_until(look, *, changes, seconds=PATIENCE):
    """Wait until the value has changed this many times."""
    seen, until = {look()}, time.monotonic() + seconds
    while len(seen) <= changes:
        assert time.monotonic() < until, f"only {seen} was seen"
        time.sleep(0.05)
        seen.add(look())


KILLED = """
import os, sys
from quell.core import processes
with processes.hint_if_killed("Go on.", several=True):
    os.abort() if sys.argv[1] == "dies" else None
"""


@pytest.mark.slow
def test_a_killed_process_prints_a_recovery_hint():
    for end, code in (("dies", -signal.SIGABRT), ("lives", 0)):
        job = start("-c", KILLED, end, num_devices=1)
        output = job.communicate(timeout=PATIENCE)[0]
        assert job.returncode == code
        assert ("process 0 of 1 was killed" in output) == (end == "dies")
        assert ("Go on." in output) == (end == "dies")


def one_device():
    return Mesh(np.array(jax.devices()[:1]), ("rows",))


def test_a_mesh_of_one_device_changes_nothing():
    rng = np.random.default_rng(0)
    model = quell.logistic_regression(rng.normal(size=(24, 2)), rng.integers(0, 2, size=24))
    options = {"steps": 30, "variates": quell.paper.variates("c2"), "optimizer": optax.adam(0.01)}

    def run(**more):
        return quell.fit(model, quell.FullRank(2), key=jax.random.key(0), **options, **more).params

    jax.tree.map(np.testing.assert_array_equal, run(mesh=one_device()), run())
    jax.tree.map(np.testing.assert_array_equal, run(mesh="all"), run())


@pytest.mark.parametrize(
    ("num_data", "batch_size", "replicates", "words"),
    [(64, 10, 1, "batch_size=16"), (351, None, 1, "got 351.*drop 7 rows"), (64, 12, 4, "`batch_size`.*got 12 and 4")],
)
def test_a_mesh_that_does_not_divide_is_refused(num_data, batch_size, replicates, words):
    with pytest.raises(ValueError, match=words):
        devices.check_divides(8, num_data, batch_size, replicates)


def test_a_mesh_that_divides_rows_or_replicates_is_taken():
    for num_data, batch_size, replicates in [(64, 16, 1), (64, None, 3), (63, 10, 16)]:
        devices.check_divides(8, num_data, batch_size, replicates)


def test_what_is_no_mesh_is_refused(unchecked):
    model = quell.logistic_regression(np.eye(2), [0, 1])
    with pytest.raises(TypeError, match="mesh='all'"):
        quell.fit(model, quell.FullRank(2), mesh=8, key=jax.random.key(0))
    with pytest.raises(TypeError, match="mesh='all'"):
        quell.fit(model, quell.FullRank(2), mesh="every", key=jax.random.key(0))


def test_rows_on_disk_and_a_mesh_are_refused(tmp_path):
    np.save(tmp_path / "x.npy", np.eye(4))
    np.save(tmp_path / "y.npy", np.arange(4) % 2)
    model = quell.logistic_regression(quell.DiskRows(tmp_path / "x.npy"), quell.DiskRows(tmp_path / "y.npy"))
    with pytest.raises(ValueError, match=r"`mesh` .* got DiskRows"):
        quell.fit(model, quell.MeanField(4), mesh="all", key=jax.random.key(0))


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, np.int8, bool, np.int64])
def test_the_digest_of_rows_sees_every_value_and_its_place(dtype):
    rows = jax.numpy.asarray(np.arange(24).reshape(6, 4) % 5, dtype)
    digests = {array_digest(rows)}
    for row, column in np.ndindex(rows.shape):
        digests.add(array_digest(rows.at[row, column].set(~rows[row, column] if dtype is bool else 9)))
    assert len(digests) == 25
    assert array_digest(rows[::-1]) not in digests
    assert array_digest(rows) == array_digest(rows + 0 if dtype is not bool else rows)


@pytest.fixture
def as_two_processes(monkeypatch):
    """JAX says that there are two processes, with a mesh in use; `other(own)` is what the second one sends."""

    def pretend(other=lambda own: own, *, index=0):
        monkeypatch.setattr(jax, "process_count", lambda: 2)
        monkeypatch.setattr(jax, "process_index", lambda: index)
        monkeypatch.setattr(multihost_utils, "process_allgather", lambda own: np.stack([own, other(own)]))

    return pretend


def test_if_the_first_process_fails_all_do(as_two_processes, monkeypatch):
    sent = []
    monkeypatch.setattr(multihost_utils, "broadcast_one_to_all", lambda array: sent.append(int(array)) or sent[0])

    def fails():
        raise ValueError("here")

    with jax.set_mesh(one_device()):
        as_two_processes()
        with pytest.raises(ValueError, match="here"):
            processes.first_does(fails)
        as_two_processes(index=1)
        with pytest.raises(ValueError, match="first process failed"):
            processes.first_does(fails)
    assert sent == [processes.FAILED, 0]


def test_shards_of_different_length_are_refused(as_two_processes):
    as_two_processes(lambda own: own - [0, 0, 1, 1])
    with pytest.raises(ValueError, match=r"got 8, 7; keep 7"):
        devices.place_rows({"x": jax.numpy.ones((8, 2))}, one_device())


def test_rows_that_the_devices_of_a_process_do_not_divide_are_refused(as_two_processes):
    as_two_processes(lambda own: own - [0, 0, 0, 1])
    several = Mesh(np.array([jax.devices()[0]] * 3), ("rows",))
    with pytest.raises(ValueError, match=r"its 3 devices, got 8; drop 2 rows"):
        devices.place_rows({"x": jax.numpy.ones((8, 2))}, several)


@pytest.mark.parametrize(
    "other",
    [
        {"x": np.ones((8, 2), int)},
        {"x": np.ones((8, 3))},
        {"y": np.ones((8, 2))},
        {"x": np.ones((8, 2)), "y": np.ones(8)},
    ],
)
def test_rows_of_different_kinds_are_refused(as_two_processes, other):
    """Their bytes would be taken for numbers of another kind, without an error."""
    sent = []
    as_two_processes(lambda own: sent.append(own) or own)
    with pytest.raises(ValueError, match="same 8 rows"):
        devices.place_rows(other, one_device())
    as_two_processes(lambda own: sent[0])
    with pytest.raises(ValueError, match=r"got .*float64\[2\] in process 0"):
        devices.place_rows({"x": np.ones((8, 2))}, one_device())


def test_processes_with_different_numbers_of_devices_are_refused(as_two_processes):
    as_two_processes(lambda own: np.add(own, [0, 1, 0, 1]))
    with pytest.raises(ValueError, match=r"devices.*got 1, 2"):
        devices.place_rows({"x": np.ones((8, 2))}, one_device())


def test_a_mesh_without_devices_of_all_processes_is_refused(as_two_processes):
    as_two_processes()
    with pytest.raises(ValueError, match=r"`mesh`.*2 processes, got those of \[0\]"):
        devices.checked_mesh(one_device())


def test_the_same_rows_in_all_processes_are_refused(as_two_processes):
    as_two_processes()
    with pytest.raises(ValueError, match=r"same 8 rows in all 2 processes"):
        devices.place_rows({"x": jax.numpy.ones((8, 2))}, one_device())


def test_natural_gradients_of_other_data_are_refused():
    model, few = (quell.logistic_regression(np.ones((num, 2)), np.arange(num) % 2) for num in (8, 4))
    optimizer = quell.natural_gradient(quell.Problem(few, quell.FullRank(2)))
    with pytest.raises(ValueError, match=r"`optimizer` .* 8 data, .* got one for 4"):
        quell.fit(model, quell.FullRank(2), optimizer=optimizer, key=jax.random.key(0))


def test_a_lost_connection_is_a_lost_process(as_two_processes, monkeypatch):
    def gone(array):
        raise ValueError("UNKNOWN: Connection closed by peer")

    as_two_processes()
    monkeypatch.setattr(multihost_utils, "broadcast_one_to_all", gone)
    with jax.set_mesh(one_device()), pytest.raises(quell.ProcessLost, match="Connection closed by peer"):
        processes.agree(3)


def test_files_are_shared_out(tmp_path):
    for part in range(4):
        np.savez(tmp_path / f"rows-{part}.npz", x=np.full((2, 3), part), y=np.full(2, part))
    pattern = tmp_path / "rows-*.npz"
    assert read_parts(pattern, part=0, num_parts=1)["y"].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert read_parts(pattern, part=1, num_parts=2)["x"][:, 0].tolist() == [2, 2, 3, 3]
    with pytest.raises(ValueError, match="3 processes, got 4 for"):
        read_parts(pattern, part=0, num_parts=3)
    with pytest.raises(ValueError, match="got 0 for"):
        read_parts(tmp_path / "none-*.npz", part=0, num_parts=2)
    with pytest.raises(ValueError, match="`--data` must be a pattern"):
        read_parts(tmp_path / "rows-0.npz", part=0, num_parts=2)
    np.savez(tmp_path / "rows-1.npz", x=np.ones((2, 4)), y=np.ones(2))
    with pytest.raises(ValueError, match=r"got \(4,\) in .*rows-1.npz and \(3,\) in .*rows-0.npz"):
        read_parts(pattern, part=0, num_parts=1)
    np.savez(tmp_path / "rows-1.npz", x=np.ones((2, 3)))
    with pytest.raises(ValueError, match="arrays of the same names"):
        read_parts(pattern, part=0, num_parts=1)
    whole = (tmp_path / "rows-1.npz").read_bytes()
    (tmp_path / "rows-1.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"rows-1.npz must be an archive"):
        read_parts(pattern, part=0, num_parts=1)
    with (tmp_path / "rows-1.npz").open("wb") as file:
        np.save(file, np.ones(3))
    with pytest.raises(ValueError, match=r"rows-1.npz must be an archive"):
        read_parts(pattern, part=0, num_parts=1)


def test_a_damaged_archive_is_told_of_wherever_the_damage_is(tmp_path):
    path = tmp_path / "rows.npz"
    np.savez_compressed(path, x=np.arange(60).reshape(20, 3))
    whole, found = path.read_bytes(), read_data(path)
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 255
        path.write_bytes(damaged)
        with contextlib.suppress(ValueError):  # any other error fails; and what is read is whole, or has another name
            again = read_data(path)
            assert "x" not in again or np.array_equal(again["x"], found["x"])


@pytest.mark.parametrize(
    "given", [("localhost:1", None, None), ("localhost:1", 2, None), (None, 2, 0), ("auto", 2, 0), (None, None, 1)]
)
def test_half_a_cluster_is_refused(given):
    with pytest.raises(ValueError, match="must be given together"):
        join(*given)


def test_a_process_that_has_joined_can_be_ended_by_a_signal(monkeypatch):
    """JAX would catch SIGTERM, and go on."""
    before, asked = jax.config.jax_enable_preemption_service, []
    monkeypatch.setattr(jax.distributed, "initialize", lambda *args, **options: asked.append(args))
    try:
        join("localhost:7777", 2, 0)
        assert not jax.config.jax_enable_preemption_service
    finally:
        jax.config.update("jax_enable_preemption_service", before)
    assert asked == [("localhost:7777", 2, 0)]


@pytest.mark.parametrize("given", ["myhost", "myhost:", "myhost:here"])
def test_a_coordinator_without_a_port_is_refused(given):
    with pytest.raises(ValueError, match=rf"`--coordinator` must be HOST:PORT, got {given};"):
        join(given, 2, 0)


@pytest.mark.slow
@pytest.mark.release
def test_the_example_runs_in_two_processes(tmp_path):
    script, told = HERE.parent / "examples" / "many_hosts.py", []
    for _ in range(2):  # the second time there is a checkpoint, which only the first process reads
        port = free_port()
        jobs = [start(script, f"localhost:{port}", 2, number, num_devices=2, cwd=tmp_path) for number in range(2)]
        first, second = (job.communicate(timeout=PATIENCE)[0] for job in jobs)
        assert [job.returncode for job in jobs] == [0, 0], first + second
        assert "2 processes with 4 devices" in first
        assert "2 processes" not in second
        assert (tmp_path / "many_hosts.quell").exists()
        told.append(re.search(r"mean: .*", first, re.DOTALL)[0])
    assert told[0] == told[1]
