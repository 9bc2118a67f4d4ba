# SPDX-License-Identifier: Apache-2.0
"""A fit of rows on disk is the fit of the same rows in memory."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import quell
from quell.evaluation import exact_elbo
from quell.models.linear import LinearData
from tolerances import EXACT, RUNS

NUM, DIM = 2500, 3
SMALL = 2**14
"""Bytes in memory: a few dozen rows at a time, so that passes take many blocks and the last one is short."""


@pytest.fixture(scope="module")
def arrays():
    rng = np.random.default_rng(7)
    features = rng.normal(size=(NUM, DIM)).astype(np.float32)
    labels = (rng.uniform(size=NUM) < 1 / (1 + np.exp(-features @ np.array([1.0, -2.0, 0.5])))).astype(np.int64)
    return {"features": features, "labels": labels}


@pytest.fixture(scope="module")
def rows(arrays, tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return quell.DiskRows({name: folder / f"{name}.npy" for name in arrays}, max_bytes=SMALL)


def logistic(source):
    return quell.logistic_regression(source["features"], source["labels"])


def poisson(source):
    return quell.poisson_regression(source["features"], source["labels"])


def gaussian(source):
    return quell.gaussian_regression(source["features"], source["labels"])


def function(source):
    """A model without structure: a logistic regression with a slope that is a square."""

    def log_likelihood(z, batch):
        signs = jnp.where(batch["labels"] > 0, 1.0, -1.0)
        return jax.nn.log_sigmoid(signs * (batch["features"] @ z + 0.1 * z[0] ** 2))

    return quell.Model(log_likelihood, quell.NormalPrior(), source, latent=DIM)


def same(one, two, tolerance=RUNS):
    for left, right in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        np.testing.assert_allclose(left, right, **tolerance)


def natural(arrays):
    """The steps of an exact fit on disk, which takes Newton steps in memory."""
    return quell.natural_gradient(quell.Problem(logistic(arrays), quell.FullRank(DIM)))


def both(build, arrays, rows, family=quell.FullRank, **options):
    results = [quell.fit(build(source), family(DIM), key=jax.random.key(3), **options) for source in (arrays, rows)]
    same(*(result.params for result in results))
    same(*(result.history.elbo for result in results))
    return results


@pytest.mark.parametrize(
    "build",
    [gaussian, pytest.param(logistic, marks=pytest.mark.release), pytest.param(poisson, marks=pytest.mark.release)],
)
@pytest.mark.slow
def test_exact_fits_are_those_of_memory(build, arrays, rows):
    """Natural-gradient steps on disk, Newton steps in memory: to the tolerance the same optimum."""
    results = [quell.fit(build(source), quell.FullRank(DIM), key=jax.random.key(3)) for source in (arrays, rows)]
    assert {result.status for result in results} == {quell.Status.CONVERGED}
    assert all(result.choice.exact for result in results)
    memory, disk = (result.elbo().value for result in results)
    assert abs(memory - disk) < 0.01


@pytest.mark.release
@pytest.mark.parametrize("build", [logistic, function])
def test_default_variates_see_the_same_minibatches(build, arrays, rows):
    sampler = quell.Sampler(4, 5)
    variates = quell.default_variates(quell.Problem(build(rows), quell.FullRank(DIM)), sampler)
    assert variates == quell.default_variates(quell.Problem(build(arrays), quell.FullRank(DIM)), sampler)
    assert variates
    both(build, arrays, rows, variates=variates, sampler=sampler, steps=40)


@pytest.mark.release
@pytest.mark.parametrize("optimizer", [None, optax.adam(0.05)])
def test_the_papers_ensemble(optimizer, arrays, rows):
    options = dict(variates=quell.paper.variates("S7"), sampler=quell.Sampler(10, 1), optimizer=optimizer, steps=40)
    both(logistic, arrays, rows, **options)


@pytest.mark.release
@pytest.mark.parametrize("build", [logistic, function])
@pytest.mark.parametrize("curvature", ["dense", "low-rank", "diagonal"])
def test_anchors_pass_over_all_rows(build, curvature, arrays, rows):
    kept = quell.AnchoredQuadratic(every=7, curvature=curvature, rank=2)
    variate = quell.ControlVariate(quell.Data(), quell.Reparameterization(), quell.ClosedForm(full_data=True), kept)
    both(build, arrays, rows, quell.MeanField, variates=(variate,), sampler=quell.Sampler(2, 10), steps=20)


@pytest.mark.release
def test_shared_minibatches_and_all_rows_a_step(arrays, rows):
    shared = quell.Sampler(3, 20, shared=True)
    both(function, arrays, rows, variates=(), sampler=shared, steps=20)
    both(function, arrays, rows, quell.MeanField, variates=(), sampler=quell.Sampler(3), steps=5)


@pytest.mark.release
def test_an_automatic_fit_takes_minibatches(rows):
    result = quell.fit(function(rows), quell.FullRank(DIM), steps=30, key=jax.random.key(0))
    assert (
        result.gradient.sampler.batch_size == 2
    )  # of the 204 rows that fit: 10 replicates, and 8 times as many in trials


@pytest.mark.release
def test_several_fits_side_by_side(arrays, rows):
    options = dict(num_fits=3, variates=quell.paper.variates("c2"), sampler=quell.Sampler(2, 5), steps=20)
    several = [
        quell.fit_many(logistic(s), quell.MeanField(DIM), key=jax.random.key(1), **options) for s in (arrays, rows)
    ]
    for memory, disk in zip(*several, strict=True):
        same(memory.params, disk.params)
    options = {"num_fits": 2, "optimizer": natural(arrays), "key": jax.random.key(1)}
    exact = [quell.fit_many(logistic(s), quell.FullRank(DIM), **options) for s in (arrays, rows)]
    for memory, disk in zip(*exact, strict=True):
        same(memory.params, disk.params)


@pytest.mark.slow
def test_a_resumed_fit_has_the_same_bits(rows, tmp_path):
    options = dict(variates=quell.paper.variates("S7"), sampler=quell.Sampler(2, 5), key=jax.random.key(5))
    once = quell.fit(logistic(rows), quell.FullRank(DIM), steps=40, **options)
    path = tmp_path / "fit.quell"
    quell.fit(logistic(rows), quell.FullRank(DIM), steps=17, checkpoint=quell.Checkpoint(path), **options)
    again = quell.fit(
        logistic(rows), quell.FullRank(DIM), steps=40, checkpoint=quell.Checkpoint(path, resume=True), **options
    )
    for left, right in zip(jax.tree.leaves(once.params), jax.tree.leaves(again.params), strict=True):
        assert np.array_equal(left, right)


def test_a_checkpoint_of_other_files_is_refused(arrays, rows, tmp_path):
    path, options = tmp_path / "fit.quell", dict(variates=(), steps=5, key=jax.random.key(5))
    quell.fit(logistic(rows), quell.MeanField(DIM), checkpoint=quell.Checkpoint(path), **options)
    np.save(tmp_path / "x.npy", arrays["features"])
    np.save(tmp_path / "y.npy", arrays["labels"])
    other = quell.logistic_regression(
        quell.DiskRows(tmp_path / "x.npy", max_bytes=SMALL), quell.DiskRows(tmp_path / "y.npy", max_bytes=SMALL)
    )
    with pytest.raises(quell.CheckpointError, match="data"):
        quell.fit(other, quell.MeanField(DIM), checkpoint=quell.Checkpoint(path, resume=True), **options)


def test_exact_elbo_and_its_gradient(arrays, rows):
    found = []
    for source in (arrays, rows):
        problem = quell.Problem(logistic(source), quell.FullRank(DIM))
        params = problem.family.init()
        found.append(jax.value_and_grad(lambda p, of=problem: exact_elbo(of, p))(params))
    same(*found)


@pytest.mark.slow
def test_what_a_result_tells(arrays, rows):
    memory, disk = both(function, arrays, rows, variates=(), sampler=quell.Sampler(1, 10), steps=5)
    key = jax.random.key(1)
    np.testing.assert_allclose(memory.elbo(key).value, disk.elbo(key).value, **EXACT)
    assert isinstance(quell.check_model(function(rows)), list)
    memory, disk = both(logistic, arrays, rows, optimizer=natural(arrays))
    np.testing.assert_allclose(memory.elbo(key).value, disk.elbo(key).value, **RUNS)


def test_all_rows_at_once_are_refused_with_a_way_out(rows):
    base = quell.BaseGradient(quell.BonnetPrice(full_data=True), quell.ClosedForm(), quell.ClosedForm())
    with pytest.raises(ValueError, match=r"all data at once need .* got DiskRows.*Sampler"):
        quell.fit(function(rows), quell.FullRank(DIM), variates=(), base=base, steps=2, key=jax.random.key(0))


def test_a_minibatch_that_does_not_fit_is_refused(rows):
    with pytest.raises(ValueError, match=r"`max_bytes=16384`, got 2000; try .*Sampler"):
        quell.fit(
            function(rows), quell.MeanField(DIM), variates=(), sampler=quell.Sampler(1, 2000), key=jax.random.key(0)
        )


def test_bad_values_are_named_with_their_rows(arrays, tmp_path):
    def on_disk(features, labels):
        np.save(tmp_path / "x.npy", features)
        np.save(tmp_path / "y.npy", labels)
        return {
            n: quell.DiskRows(tmp_path / f"{p}.npy", max_bytes=SMALL) for n, p in (("features", "x"), ("labels", "y"))
        }

    bad = arrays["features"].copy()
    bad[2000, 1] = np.nan
    source = on_disk(bad, arrays["labels"])
    with pytest.raises(ValueError, match=r"In rows 1\d\d\d to 2\d\d\d of .*`features` must be finite, got 1 NaN"):
        logistic(source)
    labels = arrays["labels"].copy()
    labels[-1] = -1  # 0 and 1 in other blocks
    source = on_disk(arrays["features"], labels)
    with pytest.raises(ValueError, match="-1, 0, 1"):
        logistic(source)
    with pytest.raises(ValueError, match=r"`counts` .* got -1"):
        poisson(source)
    with pytest.raises(TypeError, match="got features in memory and targets on disk"):
        logistic({"features": arrays["features"], "labels": source["labels"]})


def test_a_file_that_changes_during_a_fit_is_an_error(arrays, tmp_path):
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    rows = quell.DiskRows({name: tmp_path / f"{name}.npy" for name in arrays}, max_bytes=SMALL)

    def cut(progress):
        os.truncate(tmp_path / "features.npy", 5000)

    with pytest.raises(Exception, match=r"must not change while it is in use, got 5000 bytes|is truncated"):
        quell.fit(function(rows), quell.MeanField(DIM), variates=(), steps=200, callback=cut, key=jax.random.key(0))


@pytest.mark.release
def test_prepared_rows(arrays, rows):
    model = quell.logistic_regression(
        quell.DiskRows(rows.files[0].path, prepare=doubled, max_bytes=SMALL), rows["labels"]
    )
    expected = quell.logistic_regression(2.0 * arrays["features"], arrays["labels"])
    optimizer = quell.natural_gradient(quell.Problem(expected, quell.FullRank(DIM)))
    options = {"optimizer": optimizer, "key": jax.random.key(3)}
    results = [quell.fit(one, quell.FullRank(DIM), **options) for one in (model, expected)]
    same(*(result.params for result in results))
    assert isinstance(model.data.read(0, 2), LinearData)


def doubled(features):
    return 2.0 * features
