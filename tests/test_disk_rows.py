# SPDX-License-Identifier: Apache-2.0
"""Rows on disk: what is read, what is read ahead, what is refused."""

import dataclasses
import itertools
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import quell
from quell.data import reader
from quell.data.access import first_rows, like_rows, num_rows, row_blocks, take_rows
from quell.data.npy_file import NpyFile
from quell.models.row_sum import sum_over_rows
from tolerances import EXACT


@pytest.fixture
def arrays():
    rng = np.random.default_rng(1)
    return {"x": rng.normal(size=(101, 3)), "y": rng.integers(0, 9, 101).astype(np.int16), "z": np.arange(101) > 50}


@pytest.fixture
def rows(arrays, tmp_path):
    return save(arrays, tmp_path)


def save(arrays, folder, **options):
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return quell.DiskRows({name: folder / f"{name}.npy" for name in arrays}, **options)


def equal(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for left, right in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert left.dtype == jnp.asarray(right).dtype
        assert np.array_equal(left, right)


def test_rows_are_those_of_the_arrays(arrays, rows):
    assert num_rows(rows) == 101
    assert jax.tree.leaves(rows) == []
    index = jnp.array([[5, 100, 5], [0, 99, 7]])
    expected = {name: array[np.asarray(index)] for name, array in arrays.items()}
    equal(take_rows(rows, index), expected)
    equal(jax.jit(lambda i: take_rows(rows, i))(index), expected)
    equal(jax.jit(lambda i, j: take_rows(rows, i, j))(index, index[::-1]), expected)
    equal(jax.vmap(lambda i: take_rows(rows, i))(index), expected)
    equal(first_rows(rows, 4), {name: array[:4] for name, array in arrays.items()})
    equal(jax.jit(lambda s: rows.slice(s, 10))(91), {name: array[91:] for name, array in arrays.items()})
    assert like_rows(rows, 3)["x"].shape == (3, 3)
    equal(rows["y"].read(3, 5), arrays["y"][3:8])


def test_single_precision_reads_single(arrays, rows):
    """Also where the precision is that of a context, which the thread that reads ahead does not see."""
    index = jnp.arange(3, dtype=jnp.int32)
    with jax.enable_x64(False):
        found = [first_rows(rows, 3), *(jax.jit(lambda i: take_rows(rows, i, i + 1))(index + k) for k in range(3))]
    for k, part in enumerate(found):
        assert part["x"].dtype == np.float32
        start = max(k - 1, 0)
        assert np.array_equal(part["x"], arrays["x"][start : start + 3].astype(np.float32))


@pytest.mark.parametrize("dtype", ["<f2", "<f4", ">f4", ">f8", "|u1", "<i8", ">i4", "|b1"])
def test_every_kind_of_number(dtype, tmp_path):
    array = (np.arange(24) % 7).reshape(6, 2, 2).astype(dtype)
    found = save({"x": array}, tmp_path).read(1, 4)["x"]
    assert np.array_equal(found, array[1:5])
    assert found.dtype == np.dtype(dtype).newbyteorder("=")


@pytest.mark.parametrize("max_bytes", [200, 1000, 2**20])
@pytest.mark.parametrize("at_once", [1, 7, 200])
def test_sums_over_all_rows_and_their_derivatives(arrays, tmp_path, max_bytes, at_once):
    rows = save({"x": arrays["x"]}, tmp_path, max_bytes=max_bytes)

    def total(data, w):
        return sum_over_rows(lambda part, counts: jnp.sum(jnp.sin(part["x"] @ w), where=counts), data, at_once=at_once)

    w = jnp.array([0.3, -0.2, 0.9])
    expected = jax.value_and_grad(lambda w: jnp.sum(jnp.sin(arrays["x"] @ w)))(w)
    found = jax.jit(jax.value_and_grad(lambda w: total(rows, w)))(w)
    np.testing.assert_allclose(found[0], expected[0], **EXACT)
    np.testing.assert_allclose(found[1], expected[1], **EXACT)
    blocks = [part["x"] for _, part in row_blocks(rows, at_once)]
    assert np.array_equal(np.concatenate(blocks), arrays["x"])
    assert max(len(block) for block in blocks) * 4 * 24 <= max(max_bytes, 96)


@dataclasses.dataclass(frozen=True)
class RecordedFile(NpyFile):
    """A file that records what is read from it."""

    reads: list = dataclasses.field(default_factory=list)

    def take(self, index):
        self.reads.append(list(index))
        return super().take(index)

    def read(self, start, num):
        self.reads.append(start)
        return super().read(start, num)


def recorded_reader(rows):
    file = RecordedFile(**dataclasses.asdict(rows["x"].files[0]))
    return reader.RowReader((file,), (file.read_dtype,)), file.reads


def test_the_next_minibatch_is_read_ahead_and_only_once(arrays, rows):
    one, reads = recorded_reader(rows)
    batches = [np.array([k, k + 1]) for k in range(4)]
    for now, later in itertools.pairwise(batches):
        one.take(now, later)
    assert np.array_equal(one.take(batches[3])[0], arrays["x"][3:5])
    assert reads == [[0, 1], [1, 2], [2, 3], [3, 4]]
    one.take(batches[0], batches[1])
    assert np.array_equal(one.take(batches[2])[0], arrays["x"][2:4]), "another one than was announced"
    one.take(batches[0], batches[0])
    before = len(reads)
    one.take(batches[0], batches[0])
    assert len(reads) == before, "the same rows are not read again"


def test_blocks_are_read_ahead_and_the_first_one_after_the_last(rows):
    one, reads = recorded_reader(rows)
    starts = [0, 40, 61, 0, 40]
    for start in starts:
        one.slice(np.asarray(start), size=40)
    assert reads[:5] == starts, "each block is read once, ahead of its call"


def test_an_error_while_reading_ahead_is_raised(rows):
    one = reader.RowReader(rows.files, tuple(file.read_dtype for file in rows.files))
    one.take(np.array([0]), np.array([200]))
    with pytest.raises(ValueError, match=r"x.npy is truncated"):
        one.take(np.array([200]))
    os.truncate(rows.files[0].path, rows.files[0].num_bytes - 8)
    with pytest.raises(ValueError, match=r"x.npy must not change"):
        one.take(np.array([0]), np.array([1]))


def test_rows_are_compared_by_their_files(arrays, tmp_path):
    one, two = (save({"x": arrays["x"]}, tmp_path / name) for name in ("a", "b") if not (tmp_path / name).mkdir())
    again = quell.DiskRows({"x": tmp_path / "a" / "x.npy"})
    assert jax.tree.structure(one) == jax.tree.structure(again)
    assert jax.tree.structure(one) != jax.tree.structure(two)
    assert one.digest == again.digest
    assert one.digest != two.digest
    assert hash(jax.tree.structure(one)) == hash(jax.tree.structure(again))


@pytest.mark.usefixtures("unchecked")
def test_integers_that_would_wrap_are_refused(tmp_path):
    """In any block, before and after `prepare`; what was checked in double precision is checked again in single."""
    rows = save({"x": np.array([0, 1, 2**40]), "y": np.array([0, 1, 1])}, tmp_path)

    def model(rows):
        return quell.Model(lambda z, batch: batch["y"] * z[0] + 0.0 * batch["x"], quell.NormalPrior(), rows, 1)

    model(rows)
    prepared = quell.DiskRows({name: tmp_path / f"{name}.npy" for name in "xy"}, prepare=_unchanged)
    with jax.enable_x64(False):
        for given in (rows, prepared):
            with pytest.raises(ValueError, match=r"^In rows 0 to 3 of .*: `x` must .* got 1099511627776; try"):
                model(given)
        with pytest.raises(ValueError, match=r"`rows` must .* got 1099511627776; try"):
            quell.gaussian_regression(_column(tmp_path / "x.npy"), rows["y"])


def _unchanged(rows):
    return rows


def _column(path):
    return quell.DiskRows(path, prepare=_as_column)


def _as_column(x):
    return x[:, None]


def test_what_is_no_source_of_rows_is_refused(arrays, tmp_path, rows):
    def refused(match, write, error=ValueError):
        path = tmp_path / "bad.npy"
        write(path)
        with pytest.raises(error, match=match):
            quell.DiskRows(path)

    refused("bad.npy does not exist", lambda path: None, FileNotFoundError)
    refused("bad.npy must be a complete .npy file", lambda path: path.write_bytes(b""))
    refused("bad.npy must be a complete .npy file", lambda path: path.write_bytes(b"PK but no archive"))
    refused(
        "bad.npy must be a complete .npy file", lambda path: path.write_bytes((tmp_path / "x.npy").read_bytes()[:200])
    )
    refused("bad.npy must be a complete .npy file", lambda path: np.save(path, np.array([{}, None]), allow_pickle=True))
    refused("got an archive", lambda path: archive(path))
    refused("Fortran order", lambda path: np.save(path, np.asfortranarray(np.ones((4, 3)))))
    refused("dtype complex128", lambda path: np.save(path, np.ones(3, complex)))
    refused("dtype <U3", lambda path: np.save(path, np.array(["yes", "no"])))
    refused(r"got shape \(0, 3\)", lambda path: np.save(path, np.ones((0, 3))))
    refused(r"got shape \(\)", lambda path: np.save(path, np.ones(())))
    np.save(tmp_path / "short.npy", np.ones(7))
    with pytest.raises(ValueError, match=r"`paths` .* got .*short.npy with 7 rows"):
        quell.DiskRows([tmp_path / "x.npy", tmp_path / "short.npy"])
    with pytest.raises(ValueError, match="no files"):
        quell.DiskRows({})
    for array in (arrays["x"], np.load(tmp_path / "x.npy", mmap_mode="r")):
        with pytest.raises(TypeError, match=rf"`paths` .* got {type(array).__name__}"):
            quell.DiskRows({"x": array})
    with pytest.raises(ValueError, match=r"`max_bytes` must be at least 96 .* got 50"):
        quell.DiskRows(tmp_path / "x.npy", max_bytes=50)
    with pytest.raises(KeyError, match="'x', 'y', 'z'"):
        rows["w"]
    with pytest.raises(TypeError, match=r"`prepare` .* 'x'"):
        quell.DiskRows({"x": tmp_path / "x.npy"}, prepare=lambda tree: tree)["x"]


def archive(path):
    with path.open("wb") as file:
        np.savez(file, a=np.ones(2))


SCRIPT = """
import resource, sys
import jax, jax.numpy as jnp
import quell
from quell.models.row_sum import sum_over_rows

rows = quell.DiskRows(sys.argv[1], max_bytes=2**24)
start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
total = jax.jit(lambda: sum_over_rows(lambda x, counts: jnp.sum(x, where=counts[:, None]), rows, at_once=10**6))()
index = jnp.arange(0, rows.num_rows - 50, rows.num_rows // 2000)
for step in range(50):
    jax.block_until_ready(rows.take(index + step))
print(float(total), rows.num_rows * 1024, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - start) * 1024)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is measured in the units of Linux")
def test_memory_stays_within_what_was_stated(tmp_path):
    """A sparse file of a gigabyte; what the process grows by is the rows and the compiled programs."""
    path = tmp_path / "x.npy"
    np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(2**20, 256))[-1] = 1.0
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(path)], check=True, capture_output=True, text=True)
    total, size, grown = map(float, done.stdout.split())
    assert total == 256
    assert size == 2**30
    assert grown < 2**27


HEADERS = {
    "shape of texts": "{'descr': '<f8', 'fortran_order': False, 'shape': ('a',), }",
    "negative shape": "{'descr': '<f8', 'fortran_order': False, 'shape': (-4, 2), }",
    "huge shape": "{'descr': '<f8', 'fortran_order': False, 'shape': (10**30, 2), }",
    "huge number": f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({10**30}, 2), }}",
    "no dtype": "{'descr': 'f99', 'fortran_order': False, 'shape': (4, 2), }",
    "cut off": "{'descr': '<f8', 'fortran_order': False, 'shape': (4, 2",
    "a list": "[1, 2]",
    "nested": "(" * 3000,
}


@pytest.mark.parametrize("what", HEADERS)
def test_a_damaged_header_is_one_line(what, tmp_path):
    path, text = tmp_path / "x.npy", HEADERS[what].encode()
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(64))
    with pytest.raises(ValueError, match=r"x\.npy must be a complete \.npy file of numbers \(.*\); write it") as error:
        quell.DiskRows(path)
    assert "\n" not in str(error.value)


def test_no_flipped_bit_of_a_header_gives_another_error(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.ones((4, 2)))
    whole = path.read_bytes()
    for place, bit in itertools.product(range(128), (0, 3, 6)):
        changed = bytearray(whole)
        changed[place] ^= 1 << bit
        path.write_bytes(changed)
        try:
            quell.DiskRows(path)
        except ValueError as error:
            assert "x.npy must " in str(error)  # noqa: PT017 some changes are valid headers
