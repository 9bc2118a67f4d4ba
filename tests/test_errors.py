# SPDX-License-Identifier: Apache-2.0
"""Bad input: each error names the argument, its rule and what came."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import quell
from quell import (
    ClosedForm,
    ControlVariate,
    Data,
    FullRank,
    MeanField,
    Prior,
    Problem,
    Reparameterization,
    Sampler,
    TaylorInData,
)

pytestmark = pytest.mark.usefixtures("unchecked")

FEATURES = np.array([[1.0, 0.5], [1.0, -1.0], [1.0, 2.0], [1.0, 0.0]])
LABELS = [0, 1, 1, 0]
MODEL = quell.logistic_regression(FEATURES, LABELS)
FUNCTION_MODEL = quell.Model(lambda z, x: x @ z, lambda z: -jnp.sum(z**2), FEATURES, 2)
RP, CF = Reparameterization(), ClosedForm()
KEY = jax.random.key(0)
OPTIMIZER = optax.sgd(0.1)  # one object, so that the fits share one compiled program


def _with(values, row, value):
    changed = np.array(values, dtype=float)
    changed[row] = value
    return changed


def _fit(**options):
    return quell.fit(MODEL, MeanField(2), **{"key": KEY, "steps": 2, "variates": (), "optimizer": OPTIMIZER, **options})


def _function(data):
    return quell.Model(lambda z, x: x @ z, quell.NormalPrior(), data, 2)


logistic, poisson, gaussian = quell.logistic_regression, quell.poisson_regression, quell.gaussian_regression
DATA = {
    "flat features": (lambda: logistic(FEATURES[:, 0], LABELS), "features", "(4,) and (4,)"),
    "labels in a column": (lambda: logistic(FEATURES, np.reshape(LABELS, (4, 1))), "features", "(4, 2) and (4, 1)"),
    "too few counts": (lambda: poisson(FEATURES, [1, 2]), "features", "(4, 2) and (2,)"),
    "too many targets": (lambda: gaussian(FEATURES, np.zeros(5)), "features", "(4, 2) and (5,)"),
    "labels one and two": (lambda: logistic(FEATURES, [1, 2, 2, 1]), "labels", "1, 2"),
    "labels of three kinds": (lambda: logistic(FEATURES, [-1, 0, 1, 1]), "labels", "-1, 0, 1"),
    "labels of many kinds": (lambda: logistic(np.ones((9, 1)), np.arange(9)), "labels", "0, 1, 2, 3, 4, ..."),
    "labels as words": (lambda: logistic(FEATURES, ["yes", "no", "no", "yes"]), "labels", "['yes', 'no'"),
    "NaN in labels": (lambda: logistic(FEATURES, _with(LABELS, 2, np.nan)), "labels", "0, 1, nan"),
    "NaN in features": (lambda: logistic(_with(FEATURES, (1, 1), np.nan), LABELS), "features", "1 NaN or infinite"),
    "infinite target": (lambda: gaussian(FEATURES, _with(LABELS, 0, np.inf)), "targets", "1 NaN or infinite"),
    "NaN in a function's data": (lambda: _function(_with(FEATURES, 0, np.nan)), "data", "2 NaN or infinite"),
    "negative counts": (lambda: poisson(FEATURES, [0, -1, 2, 3]), "counts", "-1"),
    "fractional counts": (lambda: poisson(FEATURES, [0, 0.5, 2, 3]), "counts", "0.5"),
    "different lengths": (lambda: _function({"x": np.ones((4, 2)), "y": np.ones(3)}), "data", "[(4, 2), (3,)]"),
    "a scalar as data": (lambda: _function(3.0), "data", "[()]"),
    "no data": (lambda: _function(None), "data", "[]"),
}

DATES = np.arange("2020-01-01", "2020-01-05", dtype="datetime64[D]")
MASKED = np.ma.masked_equal(FEATURES, 2.0)
SWALLOWED = {
    "masked features": (lambda: logistic(MASKED, LABELS), "features", "1 of 8; drop"),
    "masked targets": (lambda: gaussian(FEATURES, np.ma.masked_less(LABELS, 1)), "targets", "2 of 4; drop"),
    "masked labels": (lambda: logistic(FEATURES, np.ma.masked_less(LABELS, 1)), "labels", "2 of 4; drop"),
    "masked counts": (lambda: poisson(FEATURES, np.ma.masked_less(LABELS, 1)), "counts", "2 of 4; drop"),
    "masked data": (lambda: _function({"x": MASKED}), "data", "1 of 8; drop"),
    "complex features": (lambda: logistic(FEATURES + 1j, LABELS), "features", "dtype complex128; pass `x.real`"),
    "complex targets": (lambda: gaussian(FEATURES, jnp.ones(4) * 1j), "targets", "dtype complex128"),
    "complex labels": (lambda: logistic(FEATURES, np.ones(4) * 1j), "labels", "dtype complex128"),
    "complex data": (lambda: _function(FEATURES * 1j), "data", "dtype complex128"),
    "dates as targets": (lambda: gaussian(FEATURES, DATES), "targets", "dtype datetime64[D]; try"),
    "durations as counts": (lambda: poisson(FEATURES, DATES - DATES[0]), "counts", "dtype timedelta64[D]"),
    "dates as data": (lambda: _function(DATES), "data", "dtype datetime64[D]"),
    "features as text": (
        lambda: logistic([["1.5"], ["2"], ["3"], ["4"]], LABELS),
        "features",
        "['1.5', '2', '3', '4']",
    ),
    "bytes": (lambda: gaussian(FEATURES, np.array([b"1", b"2", b"3", b"4"])), "targets", "[b'1', b'2', b'3', b'4']"),
    "words as data": (lambda: _function(np.array(["a", "b"])), "data", "['a', 'b'] of dtype <U1"),
    "a list of words": (lambda: _function(["a", "b"]), "data", "['a'] of dtype <U1"),
    "objects": (lambda: gaussian(FEATURES, [1.0, None, 2.0, 3.0]), "targets", "[1.0, None, 2.0, 3.0] of dtype object"),
    "ragged features": (
        lambda: logistic([[1.0, 2.0], [3.0], [1.0, 1.0]], LABELS[:3]),
        "features",
        "2 entries in row 0",
    ),
    "ragged targets": (
        lambda: gaussian(FEATURES, [1.0, [2.0, 3.0], 1.0, 1.0]),
        "targets",
        "1 entries in row 0 and 2 in",
    ),
}


@pytest.mark.parametrize(("make", "name", "given"), SWALLOWED.values(), ids=SWALLOWED)
def test_what_jax_would_swallow_is_refused(make, name, given):
    with pytest.raises(ValueError, match=rf"^`{name}` must .* got {re.escape(given)}"):
        make()


@pytest.mark.parametrize(("wide", "dtype"), [(2**40, np.int64), (-(2**31) - 1, np.int64), (2**63, np.uint64)])
def test_integers_that_would_wrap_are_refused(wide, dtype):
    data = np.array([0, 1, wide], dtype)
    with jax.enable_x64(False):
        with pytest.raises(ValueError, match=rf"^`data` must .* 32 bits .* got {wide}; try `x.astype\('float32'\)`"):
            quell.Model(lambda z, x: x * z[0], quell.NormalPrior(), data, 1)
        assert quell.gaussian_regression(data[:, None], data).data.targets[2] == np.float32(wide), "as floats they fit"
        fits = quell.Model(lambda z, x: x * z[0], quell.NormalPrior(), np.array([2**31 - 1, -(2**31)]), 1)
    assert fits.data.tolist() == [2**31 - 1, -(2**31)]
    assert int(quell.Model(lambda z, x: x * z[0], quell.NormalPrior(), data, 1).data[2]) == wide


def test_numbers_in_another_dress_are_taken():
    """Masks that hide nothing, numbers among objects, and the byte order of another machine."""
    labels = np.array([0, True, np.int64(1), 0.0], object)
    model = logistic(np.ma.masked_equal(FEATURES, 7.0), labels)
    np.testing.assert_array_equal(model.data.features, MODEL.data.features)
    np.testing.assert_array_equal(_function(FEATURES.astype(">f8")).data, FEATURES)
    assert _function(labels).data.tolist() == [0, 1, 1, 0]


OPTIONS = {
    "noise of zero": (lambda: gaussian(FEATURES, LABELS, noise=0.0), "noise", "0.0"),
    "prior without scale": (lambda: quell.NormalPrior(scale=0.0), "scale", "0.0"),
    "prior with NaN scale": (lambda: quell.NormalPrior(scale=float("nan")), "scale", "nan"),
    "infinite prior": (lambda: quell.NormalPrior(loc=np.inf), "loc", "inf"),
    "decay of zero": (lambda: quell.Rule(decay=0.0), "decay", "0.0"),
    "decay of one": (lambda: quell.Rule(decay=1.0), "decay", "1.0"),
    "decay NaN": (lambda: quell.Rule(decay=float("nan")), "decay", "nan"),
    "negative v0": (lambda: quell.Rule(v0=-1e-3), "v0", "-0.001"),
    "every of zero": (lambda: quell.Rule(every=0), "every", "0"),
    "prior of no strength": (lambda: quell.NormalWishart(jnp.eye(2), jnp.zeros(2), 0.0), "strength", "0.0"),
    "prior of two lengths": (lambda: quell.NormalWishart(jnp.eye(2), jnp.zeros(3)), "gram", "shapes (2, 2) and (3,)"),
    "no replicates": (lambda: Sampler(0), "num_replicates", "0"),
    "replicates as a flag": (lambda: Sampler(True), "num_replicates", "True"),
    "empty batch": (lambda: Sampler(1, 0), "batch_size", "0"),
    "half a datum": (lambda: Sampler(1, 0.5), "batch_size", "0.5"),
    "batch larger than the data": (lambda: _fit(sampler=Sampler(batch_size=5)), "batch_size", "5"),
    "no steps": (lambda: _fit(steps=0), "steps", "0"),
    "a fraction of a step": (lambda: _fit(steps=2.5), "steps", "2.5"),
    "no samples": (lambda: _fit().sample(KEY, 0), "num", "0"),
    "another dimension": (lambda: quell.fit(MODEL, FullRank(3), key=KEY), "family", "3"),
    "mean-field without coordinates": (lambda: MeanField(0), "dim", "0"),
    "mean-field without scale": (lambda: MeanField(2, init_scale=0.0), "init_scale", "0.0"),
    "full-rank without coordinates": (lambda: FullRank(0), "dim", "0"),
    "full-rank of infinite scale": (lambda: FullRank(2, init_scale=np.inf), "init_scale", "inf"),
    "gamma without coordinates": (lambda: quell.Gamma(0), "dim", "0"),
    "gamma without shape": (lambda: quell.Gamma(2, init_shape=0.0), "init_shape", "0.0"),
    "gamma of negative rate": (lambda: quell.Gamma(2, init_rate=-1.0), "init_rate", "-1.0"),
    "beta of half a coordinate": (lambda: quell.Beta(0.5), "dim", "0.5"),
    "beta of infinite alpha": (lambda: quell.Beta(2, init_alpha=np.inf), "init_alpha", "inf"),
    "beta of NaN": (lambda: quell.Beta(2, init_beta=np.nan), "init_beta", "nan"),
    "low rank of none": (lambda: quell.LowRank(3, rank=0), "rank", "0"),
    "low rank that is high": (lambda: quell.LowRank(3, rank=4), "rank", "4"),
    "low rank without scale": (lambda: quell.LowRank(3, rank=1, init_scale=0.0), "init_scale", "0.0"),
    "one category": (lambda: quell.Categorical(2, 1), "num_categories", "1"),
    "no blocks": (lambda: quell.Product({}), "blocks", "{}"),
    "anchor as a matrix": (lambda: quell.TaylorInLatent([[0.1, 0.2]]), "anchor", "shape (1, 2)"),
    "anchor with NaN": (lambda: quell.TaylorInLatent([0.1, np.nan]), "anchor", "1 NaN or infinite"),
    "temperature of zero": (lambda: quell.Concrete(0.0), "temperature", "0.0"),
    "temperature in words": (lambda: quell.Concrete("0.5"), "temperature", "0.5"),
    "decay of a baseline": (lambda: quell.Baseline("moving-average", decay=0.0), "decay", "0.0"),
    "every of an anchor": (lambda: quell.AnchoredQuadratic(every=0), "every", "0"),
    "negative rate": (lambda: quell.FittedQuadratic(rate=-1.0), "rate", "-1.0"),
    "signs": (lambda: quell.terms.Total((Data(), Prior()), (1, 2), "twice"), "signs", "(1, 2)"),
}


@pytest.mark.parametrize(("make", "name", "given"), [*DATA.values(), *OPTIONS.values()], ids=[*DATA, *OPTIONS])
def test_bad_values_are_explained(make, name, given):
    with pytest.raises(ValueError, match=rf"^`{name}` must .* got {re.escape(given)}"):
        make()


NAMES = {
    "ensemble": (lambda: quell.paper.variates("c8"), "'c8'", "'c7'"),
    "variate among several": (lambda: quell.paper.variates(["c1", "S4"]), "'S4'", "'c4'"),
    "data set": (lambda: quell.paper.load("sonr"), "'sonr'", "'sonar'"),
    "baseline": (lambda: quell.Baseline("leave-two-out"), "'leave-two-out'", "'leave-one-out'"),
    "form of an anchor": (lambda: quell.AnchoredQuadratic(curvature="diag"), "'diag'", "'diagonal'"),
    "form of a fit": (lambda: quell.FittedQuadratic(curvature="dens"), "'dens'", "'dense'"),
    "metric": (lambda: quell.Rule(metric="euclid"), "'euclid'", "'euclidean'"),
}


@pytest.mark.parametrize(("make", "given", "near"), NAMES.values(), ids=NAMES)
def test_names_that_are_not_known_are_explained(make, given, near):
    with pytest.raises(ValueError, match=rf"must be one of .* got {given}.*Did you mean .*{near}"):
        make()


@pytest.mark.parametrize(
    ("key", "given"),
    [
        (0, r"0"),
        (None, r"None"),
        (np.int64(3), r"np\.int64\(3\)"),
        (jax.random.PRNGKey(0), r"an array of dtype uint32 and shape \(2,\)"),
        (jax.random.split(KEY), r"an array of dtype key<fry> and shape \(2,\)"),
    ],
    ids=["integer", "none", "numpy integer", "legacy key", "two keys"],
)
def test_only_one_typed_key_is_a_key(key, given):
    with pytest.raises(TypeError, match=rf"^`key` must .* got {given}; try `key=jax\.random\.key\(0\)`\.$"):
        _fit(key=key)


def test_sampling_from_a_result_needs_a_typed_key_too():
    with pytest.raises(TypeError, match=r"`key` must .* got 1;"):
        _fit().sample(1, 3)


# Variates and base gradients

REFUSED = {
    "symmetric transport": (
        Problem(MODEL, MeanField(2)),
        ControlVariate(Prior(), RP, Reparameterization(quell.SYMMETRIC)),
        r"^ControlVariate\(prior: rp - rp\[symmetric\]\) cannot be used for LinearPredictor\(.*\): "
        r"MeanField has no transport 'symmetric' \(it has 'diagonal', 'mirrored'\)\.",
    ),
    "no transport": (
        Problem(FUNCTION_MODEL, quell.Bernoulli(2)),
        None,
        r"^the base gradient cannot be used for .* Bernoulli has no differentiable transport",
    ),
    "closed form of the data": (
        Problem(FUNCTION_MODEL, FullRank(2)),
        ControlVariate(Data(), RP, CF),
        r"cannot be used .*: the log-likelihood is neither a quadratic in the latent nor one of a linear predictor\.",
    ),
    "closed form of an unknown prior": (
        Problem(FUNCTION_MODEL, FullRank(2)),
        ControlVariate(Prior(), RP, CF),
        r"cannot be used .*: the log-prior is not known to be a quadratic \(give the model a `NormalPrior`",
    ),
    "closed form after Taylor in the data": (
        Problem(MODEL, FullRank(2)),
        ControlVariate(Data(), RP, CF, approximation=TaylorInData()),
        r"cannot be used .*: the likelihood expanded in the data is not a quadratic in the latent",
    ),
    "conditioning on nothing": (
        Problem(MODEL, FullRank(2)),
        ControlVariate(Data(), quell.ConditionalScoreFunction(), quell.ScoreFunction()),
        r"cannot be used .*: the data term is not relaxed",
    ),
    "twice the same estimator": (
        Problem(MODEL, FullRank(2)),
        ControlVariate(Prior(), RP, Reparameterization()),
        r"cannot be used .*: both estimators are the same, so that the difference is zero",
    ),
    "constants without a score": (
        Problem(MODEL, FullRank(2)),
        ControlVariate(quell.Score(), RP, CF),
        r"cannot be used .*: its function is a constant, so that without a score both estimators are zero",
    ),
}


@pytest.mark.parametrize(("problem", "variate", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_a_refused_variate_says_why(problem, variate, message):
    assert variate is None or variate.refuses(problem) is not None
    with pytest.raises(ValueError, match=message):
        quell.Gradient(problem, [] if variate is None else [variate])


def test_a_transport_is_a_value_and_no_word():
    with pytest.raises(TypeError, match=r"`transport` must be a transport, got 'cholesky'; try `quell\.SYMMETRIC`"):
        Reparameterization("cholesky")


def test_a_rule_that_does_not_suit_is_refused():
    problem, variate = Problem(MODEL, quell.LowRank(2, rank=1)), ControlVariate(Prior(), RP, CF)
    with pytest.raises(ValueError, match=r"`rule\.metric` .*LowRank has no inner products.*metric='euclidean'"):
        quell.Gradient(problem, rule=quell.Rule(metric="natural"))
    prior = quell.NormalWishart(jnp.eye(2), jnp.zeros(2))
    with pytest.raises(ValueError, match=r"`rule\.prior` must .* got 2"):
        quell.Gradient(problem, [variate], rule=quell.Rule(prior=prior))
    with pytest.raises(ValueError, match=r"`prior` .*`by_leaf=True`"):
        quell.Rule(by_leaf=True, prior=prior)


def test_variates_of_one_name_are_refused_and_a_label_helps():
    problem, variate = Problem(MODEL, MeanField(2)), ControlVariate(Prior(), RP, CF)
    with pytest.raises(ValueError, match=r"must be unique, got 'prior: rp - cf' twice; .*`label`"):
        quell.Gradient(problem, [variate, ControlVariate(Prior(), RP, CF)])
    labelled = ControlVariate(Prior(), RP, CF, label="mine")
    assert quell.Gradient(problem, [variate, labelled]).names == ("prior: rp - cf", "mine")


def test_the_exact_elbo_of_a_function_model_is_refused():
    problem = Problem(FUNCTION_MODEL, MeanField(2))
    with pytest.raises(TypeError, match=r"`exact_elbo` .* got Model\(num_data=4, dim=2\) with MeanField"):
        quell.exact_elbo(problem, problem.family.init())


@pytest.mark.parametrize("variates", [[], quell.paper.variates("none"), iter(())], ids=["list", "none", "iterator"])
def test_an_empty_ensemble_is_the_base_gradient(variates):
    result = _fit(variates=variates)
    assert result.status is quell.Status.COMPLETED
    assert result.history.weights.shape == (2, 0)
    np.testing.assert_array_equal(result.history.base_sq_norm, result.history.combined_sq_norm)


@pytest.mark.parametrize("given", ["S7", ["c1"], quell.paper.VARIATES["c7"]], ids=["word", "words", "one"])
def test_variates_that_are_none_are_explained(given):
    with pytest.raises(TypeError, match=r"`variates` must .* got .*quell\.paper\.variates"):
        _fit(variates=given)


def test_params_of_another_family_are_explained():
    with pytest.raises(ValueError, match=r"`params` must have the shapes .*\(2,\).* of MeanField\(dim=2\), got"):
        _fit(params=FullRank(2).init())
