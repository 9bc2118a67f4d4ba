# SPDX-License-Identifier: Apache-2.0
"""Data sets: shapes, scaling, where `australian` is looked for, and what the errors say."""

import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from quell.paper import datasets
from quell.paper.datasets import NAMES, DatasetUnavailable, load

AUSTRALIAN = Path(__file__).parents[2] / "shared" / "data" / "australian.csv"
needs_australian = pytest.mark.skipif(
    not AUSTRALIAN.is_file(), reason="australian.csv is not in ../shared/data, and it is not shipped"
)
NOMINAL = (0, 3, 4, 5, 7, 8, 10, 11)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache, no folder in the environment, and no network."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("QUELL_DATA_DIR", raising=False)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", SimpleNamespace(fetch_openml=_no_network))
    return tmp_path / "cache" / "quell"


def _no_network(**options):
    raise OSError("no network")


def _fake_openml(values):
    """A stand-in for `fetch_openml`: nominal columns as positions in their list of categories."""
    columns, categories = values[:, :-1].copy(), {}
    for column in NOMINAL:
        levels, columns[:, column] = np.unique(values[:, column], return_inverse=True)
        categories[f"A{column + 1}"] = [f"{level:g}" for level in levels]

    def fetch_openml(*, data_id, as_frame, parser, cache, n_retries):
        assert data_id == 40981
        names = [f"A{i + 1}" for i in range(columns.shape[1])]
        target = np.array([f"{label:g}" for label in values[:, -1]], dtype=object)
        return SimpleNamespace(data=columns, target=target, feature_names=names, categories=categories)

    return SimpleNamespace(fetch_openml=fetch_openml)


@pytest.fixture
def folder(tmp_path):
    """A folder with a copy of australian.csv."""
    place = tmp_path / "mine"
    place.mkdir()
    shutil.copyfile(AUSTRALIAN, place / "australian.csv")
    return place


@pytest.mark.parametrize(
    ("name", "shape", "positives"),
    [("ionosphere", (176, 35), None), ("ionosphere-full", (351, 35), 225), ("sonar", (208, 61), 111)],
)
def test_packaged_data_have_the_published_shape_and_scale(name, shape, positives):
    data = load(name)
    assert data.features.shape == shape
    assert data.features.dtype == data.labels.dtype == np.float64
    assert data.num_data == shape[0]
    assert set(data.labels) == {-1.0, 1.0}
    assert positives is None or (data.labels == 1).sum() == positives
    np.testing.assert_array_equal(data.features[:, -1], 1.0)
    low, high = data.features[:, :-1].min(axis=0), data.features[:, :-1].max(axis=0)
    constant = low == high
    np.testing.assert_array_equal(data.features[:, :-1][:, constant], 0.0)
    np.testing.assert_array_equal(low[~constant], -1.0)
    np.testing.assert_array_equal(high[~constant], 1.0)


def test_constant_column_becomes_zero():
    assert load("ionosphere-full").features[:, 1].tolist() == [0.0] * 351


def test_half_is_the_documented_one():
    whole = datasets._packaged(datasets._IONOSPHERE)
    rows = np.sort(np.random.default_rng(0).permutation(351)[:176])
    np.testing.assert_array_equal(load("ionosphere").labels, 2 * whole[rows, -1] - 1)


def test_repr_is_one_line():
    assert repr(load("sonar")) == "Dataset('sonar': 208 rows, 60 features and an intercept)"


def test_arrays_cannot_be_changed():
    with pytest.raises(ValueError, match="read-only"):
        load("sonar").features[0, 0] = 2.0


def test_unknown_name_offers_the_nearest():
    with pytest.raises(ValueError, match=r"data set.*'ionosfere'.*'ionosphere'"):
        load("ionosfere")


def test_australian_that_is_nowhere_says_what_to_type(tmp_path, cache):
    with pytest.raises(DatasetUnavailable) as caught:
        load("australian", data_dir=tmp_path)
    text = str(caught.value)
    assert "'australian'" in text
    assert str(tmp_path) in text
    assert str(cache) in text
    assert "no network" in text
    assert "690 rows of 14 features" in text
    assert "pip install 'quell[datasets]'" in text
    assert "export QUELL_DATA_DIR=DIR" in text


def test_australian_without_scikit_learn_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(DatasetUnavailable, match="scikit-learn is not installed"):
        load("australian")


def test_download_with_other_values_is_refused(cache, monkeypatch):
    values = np.zeros((690, 15))
    monkeypatch.setitem(sys.modules, "sklearn.datasets", _fake_openml(values))
    with pytest.raises(DatasetUnavailable, match="checksum differs"):
        load("australian")
    assert not cache.exists()


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("1,2,3", r"shape \(690, 3\)"),
        (",".join(["nan"] * 15), "10350 NaN or infinite entries"),
        (",".join(["1"] * 15), "the checksum differs"),
        (",".join(["?"] * 15), r"could not convert string '\?' to float64 at row 0"),
    ],
)
def test_bad_file_is_refused_with_the_reason(tmp_path, line, problem):
    (tmp_path / "australian.csv").write_text("\n".join(["header"] + [line] * 690))
    with pytest.raises(ValueError, match=rf"australian.csv.*{problem}.*`rm '"):
        load("australian", data_dir=tmp_path)


@needs_australian
def test_australian_from_a_named_folder(folder):
    data = load("australian", data_dir=folder)
    assert data.features.shape == (690, 15)
    assert (data.labels == 1).sum() == 307


@needs_australian
def test_australian_from_the_environment_and_the_cache(folder, cache, monkeypatch):
    named = load("australian", data_dir=folder)
    monkeypatch.setenv("QUELL_DATA_DIR", str(folder))
    np.testing.assert_array_equal(load("australian").features, named.features)
    monkeypatch.delenv("QUELL_DATA_DIR")
    cache.mkdir(parents=True)
    (folder / "australian.csv").rename(cache / "australian.csv")
    np.testing.assert_array_equal(load("australian").features, named.features)


@needs_australian
def test_row_order_and_number_format_do_not_matter(folder):
    before = load("australian", data_dir=folder)
    path = folder / "australian.csv"
    values = np.loadtxt(path, delimiter=",", skiprows=1)
    np.savetxt(path, values[::-1], fmt="%.6e", delimiter=",", header="anything")
    np.testing.assert_array_equal(load("australian", data_dir=folder).features, before.features)


@needs_australian
def test_one_changed_value_is_noticed(folder):
    path = folder / "australian.csv"
    path.write_text(path.read_text().replace("22.08", "22.09", 1))
    with pytest.raises(ValueError, match="checksum differs"):
        load("australian", data_dir=folder)


@needs_australian
def test_download_is_decoded_and_cached(folder, cache, monkeypatch):
    expected = load("australian", data_dir=folder)
    values = np.loadtxt(folder / "australian.csv", delimiter=",", skiprows=1)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", _fake_openml(values))
    np.testing.assert_array_equal(load("australian").features, expected.features)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", SimpleNamespace(fetch_openml=_no_network))
    np.testing.assert_array_equal(load("australian").features, expected.features)
    assert [path.name for path in cache.iterdir()] == ["australian.csv"]


def test_names_are_listed():
    assert NAMES == ("ionosphere", "ionosphere-full", "australian", "sonar")
