# SPDX-License-Identifier: Apache-2.0
"""Iterators and Parquet become rows on disk, completely or not at all."""

import builtins

import jax
import numpy as np
import pytest

import quell

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def batches(num=5, size=7):
    rng = np.random.default_rng(0)
    return [{"x": rng.normal(size=(size, 2)), "y": np.arange(size) + k} for k in range(num)]


def all_rows(rows):
    return jax.tree.map(np.asarray, rows.read(0, rows.num_rows))


def nothing_left(folder):
    return [path.name for path in folder.iterdir()] == []


def test_batches_are_written_in_their_order(tmp_path):
    given = batches()
    given.append({"x": np.ones((1, 2)), "y": np.array([99])})  # a short one at the end
    rows = quell.rows_from_iterator(iter(given), tmp_path / "rows")
    assert rows.num_rows == 36
    for name in ("x", "y"):
        expected = np.concatenate([batch[name] for batch in given])
        assert np.array_equal(all_rows(rows)[name], expected)
        assert np.array_equal(np.load(tmp_path / "rows" / f"{name}.npy"), expected)
    again = quell.DiskRows({name: tmp_path / "rows" / f"{name}.npy" for name in ("x", "y")})
    assert again.digest == rows.digest


def test_single_rows_tuples_and_nested_trees(tmp_path):
    rows = quell.rows_from_iterator(((np.ones(3) * k, k) for k in range(10)), tmp_path / "a", batched=False)
    assert np.array_equal(all_rows(rows)[1], np.arange(10))
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["0.npy", "1.npy"]
    nested = quell.rows_from_iterator([{"a": {"b": np.ones((4, 1), "float16")}}], tmp_path / "b")
    assert (tmp_path / "b" / "a.b.npy").exists()
    assert repr(nested) == "DiskRows(num_rows=4, a.b=float16[1])"
    assert quell.rows_from_iterator([np.ones(4), np.zeros(2)], tmp_path / "c").num_rows == 6


def test_a_fit_of_what_an_iterator_gave(tmp_path):
    rng = np.random.default_rng(0)
    features, labels = rng.normal(size=(300, 2)), rng.integers(0, 2, 300)
    items = ((features[k : k + 30], labels[k : k + 30]) for k in range(0, 300, 30))
    rows = quell.rows_from_iterator(items, tmp_path / "rows")
    model = quell.logistic_regression(rows[0], rows[1])
    assert quell.fit(model, quell.MeanField(2), key=jax.random.key(0)).status is quell.Status.CONVERGED


def fails_after_two():
    yield from batches(2)
    raise RuntimeError("the loader broke")


@pytest.mark.parametrize(
    ("items", "error", "match"),
    [
        ([], ValueError, "none in 0 batches"),
        ([{"x": np.ones((0, 2))}], ValueError, "none in 1 batches"),
        ([*batches(1), {"x": np.ones((3, 2))}], ValueError, "Batch 1 must be like the first, .* got"),
        ([*batches(1), {"x": np.ones((3, 4)), "y": np.arange(3)}], ValueError, "Batch 1 must be like the first"),
        ([*batches(1), {"x": np.ones((3, 2), "float32"), "y": np.arange(3)}], ValueError, r"got .*float32\[2\]"),
        ([{"x": np.ones((3, 2)), "y": np.arange(4)}], ValueError, "batched=False"),
        ([{"x": np.ones(3), "y": 1}], ValueError, "batched=False"),
        ([{"x": np.array(["a", "b"])}], ValueError, "dtype <U1"),
        ([{"x": np.ones((2, 0))}], ValueError, r"x.npy .* shape \(0,\)"),
        ([{"a/b": np.ones(2)}], ValueError, "a/b.npy"),
        ([{"x": np.ones((1000, 1000))}], ValueError, "`max_bytes=1000000`, got 8000000"),
        (fails_after_two(), RuntimeError, "the loader broke"),
    ],
)
def test_a_broken_iterator_leaves_nothing(items, error, match, tmp_path):
    with pytest.raises(error, match=match):
        quell.rows_from_iterator(items, tmp_path / "rows", max_bytes=10**6)
    assert nothing_left(tmp_path)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("batched", [True, False])
def test_masked_entries_are_not_written(batched, tmp_path):
    batch = np.ma.masked_equal(np.arange(4.0), 2.0)
    with pytest.raises(ValueError, match=r"^`items` must have no masked entries, got 1 of 4"):
        quell.rows_from_iterator([batch], tmp_path / "rows", batched=batched)
    assert not list(tmp_path.iterdir())


def test_folders_and_items_that_cannot_be(tmp_path):
    (tmp_path / "there").mkdir()
    with pytest.raises(FileExistsError, match=r"`folder` .* already exists"):
        quell.rows_from_iterator(batches(), tmp_path / "there")
    with pytest.raises(FileNotFoundError, match="mkdir"):
        quell.rows_from_iterator(batches(), tmp_path / "no" / "rows")
    with pytest.raises(TypeError, match=r"`items` .* got dict"):
        quell.rows_from_iterator({"x": np.ones(3)}, tmp_path / "rows")


def table(num=50, start=0):
    return pyarrow.table(
        {
            "a": pyarrow.array(np.arange(num) + start, "int32"),
            "b": np.arange(num) / 2.0 + start,
            "flag": np.arange(num) % 2 == 0,
            "vector": pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(np.arange(3.0 * num)), 3),
            "word": ["x"] * num,
            "holes": pyarrow.array([None if k == 7 else float(k) for k in range(num)]),
        }
    )


COLUMNS = {"features": ["a", "b"], "flag": "flag", "vector": "vector"}


@pytest.mark.parametrize("max_bytes", [1000, 2**28])
def test_columns_of_parquet(tmp_path, max_bytes):
    folder = tmp_path / "parts"
    folder.mkdir()
    for part in range(3):
        parquet.write_table(table(start=100 * part), folder / f"part-{part}.parquet", row_group_size=20)
    rows = quell.rows_from_parquet(folder, COLUMNS, tmp_path / "rows", max_bytes=max_bytes)
    assert rows.num_rows == 150
    found = {name: np.load(tmp_path / "rows" / f"{name}.npy") for name in COLUMNS}
    numbers = np.concatenate([np.arange(50) + 100 * part for part in range(3)])
    assert np.array_equal(found["features"][:, 0], numbers)
    assert found["features"].dtype == np.float64
    assert found["flag"].dtype == bool
    assert np.array_equal(found["vector"][50:100], np.arange(150.0).reshape(50, 3))


@pytest.mark.parametrize(
    ("columns", "match"),
    [
        ({"x": "c"}, r"`columns` .*\(a, b, flag, .* got c"),
        ({"x": ["a", "word"]}, "column word of .* got string"),
        ({"x": "holes"}, "column holes of .* got 1 in"),
        ({"x": []}, r"`columns` .* got \{'x': \[\]\}"),
        ({}, r"`columns` .* got \{\}"),
    ],
)
def test_columns_that_cannot_be_rows(columns, match, tmp_path):
    path = tmp_path / "t.parquet"
    parquet.write_table(table(), path)
    with pytest.raises(ValueError, match=match):
        quell.rows_from_parquet(path, columns, tmp_path / "rows")
    assert [left.name for left in tmp_path.iterdir()] == ["t.parquet"]


def test_corrupt_parquet(tmp_path):
    path = tmp_path / "t.parquet"
    parquet.write_table(table(5000), path, row_group_size=500, compression="snappy", use_dictionary=False)
    whole = path.read_bytes()
    pages = bytearray(whole)
    pages[len(whole) // 3 : len(whole) // 3 + 400] = b"\xff" * 400
    for bad in (b"", whole[: len(whole) // 2], b"no parquet at all, but some words", bytes(pages)):
        path.write_bytes(bad)
        with pytest.raises(ValueError, match=r"t.parquet must be a complete Parquet file"):
            quell.rows_from_parquet(path, {"x": ["a", "b"], "v": "vector"}, tmp_path / "rows")
        assert [left.name for left in tmp_path.iterdir()] == ["t.parquet"]
    with pytest.raises(FileNotFoundError, match=r"no\.parquet"):
        quell.rows_from_parquet(tmp_path / "no.parquet", COLUMNS, tmp_path / "rows")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"got .*empty"):
        quell.rows_from_parquet(tmp_path / "empty", COLUMNS, tmp_path / "rows")


@pytest.mark.parametrize("compression", ["none", "snappy"])
def test_one_bit_of_a_checked_page(tmp_path, compression):
    path = tmp_path / "t.parquet"
    options = {"compression": compression, "use_dictionary": False, "write_page_checksum": True}
    parquet.write_table(pyarrow.table({"a": np.arange(5000.0)}), path, **options)
    quell.rows_from_parquet(path, {"x": "a"}, tmp_path / "whole")
    flipped = bytearray(path.read_bytes())
    flipped[len(flipped) // 2] ^= 1
    path.write_bytes(flipped)
    with pytest.raises(ValueError, match=r"t.parquet must be a complete Parquet file"):
        quell.rows_from_parquet(path, {"x": "a"}, tmp_path / "rows")


def test_rows_that_are_far_shorter_in_the_file_than_in_memory(tmp_path):
    hot = np.eye(1000)[np.arange(3000) % 1000]
    path = tmp_path / "t.parquet"
    parquet.write_table(pyarrow.table({"hot": pyarrow.FixedSizeListArray.from_arrays(hot.ravel(), 1000)}), path)
    assert path.stat().st_size * 20 < hot.nbytes
    quell.rows_from_parquet(path, {"x": "hot"}, tmp_path / "rows", max_bytes=2**20)  # a larger batch would be refused
    assert np.array_equal(np.load(tmp_path / "rows" / "x.npy"), hot)


def test_without_pyarrow(tmp_path, monkeypatch):
    path = tmp_path / "t.parquet"
    parquet.write_table(table(), path)
    original = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("pyarrow"):
            raise ModuleNotFoundError(name)
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'quell\[parquet\]'"):
        quell.rows_from_parquet(path, COLUMNS, tmp_path / "rows")
