# SPDX-License-Identifier: Apache-2.0
"""Bad input: each error says what was given, what was needed and what to type."""

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


DATA = {
    "flat features": (
        lambda: quell.logistic_regression(FEATURES[:, 0], LABELS),
        r"`features` of shape \(4,\) were given with targets of shape \(4,\)\. "
        r"Features \[num_data, num_features\] and targets \[num_data\], not empty, were needed\. Write .*reshape",
    ),
    "labels in a column": (
        lambda: quell.logistic_regression(FEATURES, np.reshape(LABELS, (4, 1))),
        r"of shape \(4, 2\) were given with targets of shape \(4, 1\)\. .* were needed\. Write ",
    ),
    "too few counts": (
        lambda: quell.poisson_regression(FEATURES, [1, 2]),
        r"of shape \(4, 2\) were given with targets of shape \(2,\)\. .* were needed\. Write ",
    ),
    "too many targets": (
        lambda: quell.gaussian_regression(FEATURES, np.zeros(5)),
        r"of shape \(4, 2\) were given with targets of shape \(5,\)\. .* were needed\. Write ",
    ),
    "labels one and two": (
        lambda: quell.logistic_regression(FEATURES, [1, 2, 2, 1]),
        r"`labels` were given with the values 1, 2\. Labels in \{0, 1\} or in \{-1, 1\} were needed\. Write ",
    ),
    "labels of three kinds": (
        lambda: quell.logistic_regression(FEATURES, [-1, 0, 1, 1]),
        r"`labels` were given with the values -1, 0, 1\. Labels in \{0, 1\} or in \{-1, 1\} were needed\.",
    ),
    "labels of many kinds": (
        lambda: quell.logistic_regression(np.ones((9, 1)), np.arange(9)),
        r"`labels` were given with the values 0, 1, 2, 3, 4, \.\.\.\. ",
    ),
    "NaN in labels": (
        lambda: quell.logistic_regression(FEATURES, _with(LABELS, 2, np.nan)),
        r"`labels` were given with the values 0, 1, nan\. ",
    ),
    "NaN in features": (
        lambda: quell.logistic_regression(_with(FEATURES, (1, 1), np.nan), LABELS),
        r"`features` was given with 1 NaN or infinite entries out of 8\. "
        r"Finite numbers were needed\. Drop or impute .*`rows = ",
    ),
    "infinity in targets": (
        lambda: quell.gaussian_regression(FEATURES, _with(LABELS, 0, np.inf)),
        r"`targets` was given with 1 NaN or infinite entries out of 4\. Finite numbers were needed\. ",
    ),
    "NaN in the data of a function": (
        lambda: quell.Model(lambda z, x: x @ z, quell.NormalPrior(), _with(FEATURES, 0, np.nan), 2),
        r"`data` was given with 2 NaN or infinite entries out of 8\. Finite numbers were needed\. ",
    ),
    "negative counts": (
        lambda: quell.poisson_regression(FEATURES, [0, -1, 2, 3]),
        r"`counts` was given with negative .* Non-negative integers were needed\. Use `gaussian_regression`",
    ),
    "fractional counts": (
        lambda: quell.poisson_regression(FEATURES, [0, 0.5, 2, 3]),
        r"`counts` was given with .*fractional entries\. Non-negative integers were needed\. ",
    ),
    "data of different length": (
        lambda: quell.Model(lambda z, b: b["y"], quell.NormalPrior(), {"x": np.ones((4, 2)), "y": np.ones(3)}, 2),
        r"`data` was given with shapes \[\(4, 2\), \(3,\)\]\. Arrays that share their leading axis.* were needed\. "
        r"Write .*len\(x\) == len\(y\)",
    ),
    "a scalar as data": (
        lambda: quell.Model(lambda z, x: x, quell.NormalPrior(), 3.0, 2),
        r"`data` was given with shapes \[\(\)\]\. ",
    ),
    "no data": (
        lambda: quell.Model(lambda z, x: x, quell.NormalPrior(), None, 2),
        r"`data` was given with shapes \[\]\. ",
    ),
}

OPTIONS = {
    "noise of zero": (
        lambda: quell.gaussian_regression(FEATURES, LABELS, noise=0.0),
        r"`noise` was given as 0\.0\. A positive, finite number was needed\. Write .*`noise=1\.0`",
    ),
    "prior without scale": (
        lambda: quell.NormalPrior(scale=0.0),
        r"`scale` was given as 0\.0\. A positive, finite number was needed\. Write .*`scale=1\.0`",
    ),
    "prior with NaN scale": (lambda: quell.NormalPrior(scale=float("nan")), r"`scale` was given as nan\. "),
    "decay of zero": (
        lambda: quell.Rule(decay=0.0),
        r"`decay` was given as 0\.0\. A number between 0 and 1 was needed\. Write .*`Rule\(decay=0\.02\)`",
    ),
    "decay of one": (lambda: quell.Rule(decay=1.0), r"`decay` was given as 1\.0\. A number between 0 and 1"),
    "decay NaN": (lambda: quell.Rule(decay=float("nan")), r"`decay` was given as nan\. "),
    "negative v0": (
        lambda: quell.Rule(v0=-1e-3),
        r"`v0` was given as -0\.001\. A number of at least 0 was needed\. Write .*`Rule\(v0=1e-3\)`",
    ),
    "no replicates": (
        lambda: Sampler(0),
        r"`num_replicates` was given as 0\. An integer of at least 1 was needed\. Write .*`num_replicates=",
    ),
    "empty batch": (lambda: Sampler(1, 0), r"`batch_size` was given as 0\. An integer of at least 1 was needed\. "),
    "half a datum": (lambda: Sampler(1, 0.5), r"`batch_size` was given as 0\.5\. An integer of at least 1"),
    "replicates as a flag": (lambda: Sampler(True), r"`num_replicates` was given as True\. An integer"),
    "batch larger than the data": (
        lambda: _fit(sampler=Sampler(batch_size=5)),
        r"`batch_size` was given as 5 for 4 data\. At most 4 was needed\. Write `batch_size=None` for the full data",
    ),
    "no steps": (
        lambda: _fit(steps=0),
        r"`steps` was given as 0\. An integer of at least 1 was needed\. Write .*`steps=100`",
    ),
    "a fraction of a step": (
        lambda: _fit(steps=2.5),
        r"`steps` was given as 2\.5\. An integer of at least 1 was needed",
    ),
    "no samples": (lambda: _fit().sample(KEY, 0), r"`num` was given as 0\. An integer of at least 1 was needed\. "),
    "another dimension": (
        lambda: quell.fit(MODEL, FullRank(3), key=KEY),
        r"A family over 3 coordinates was given for a model whose latent has 2\. Equal numbers were needed\. "
        r"Write `FullRank\(dim=model\.dim\)`",
    ),
}

NAMES = {
    "ensemble": (
        lambda: quell.paper.variates("c8"),
        r"The ensemble 'c8' is not known\. One of none, S4, .*, c7 was needed\. Did you mean .*'c7'",
    ),
    "variate among several": (
        lambda: quell.paper.variates(["c1", "S4"]),
        r"The variate 'S4' is not known\. One of c1, .*, c7 was needed\. Did you mean 'c4'\?",
    ),
    "data set": (
        lambda: quell.paper.load("sonr"),
        r"The data set 'sonr' is not known\. One of .*sonar was needed\. Did you mean 'sonar'",
    ),
}


@pytest.mark.parametrize(
    ("make", "message"), [*DATA.values(), *OPTIONS.values(), *NAMES.values()], ids=[*DATA, *OPTIONS, *NAMES]
)
def test_bad_values_are_explained(make, message):
    with pytest.raises(ValueError, match=message):
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
    message = rf"^`key` was given as {given}\. One typed random key was needed\. Write `key=jax\.random\.key\(0\)`\.$"
    with pytest.raises(TypeError, match=message):
        _fit(key=key)


def test_sampling_from_a_result_needs_a_typed_key_too():
    with pytest.raises(TypeError, match=r"`key` was given as 1\. One typed random key was needed\."):
        _fit().sample(1, 3)


REFUSED = {
    "symmetric transport": (
        Problem(MODEL, MeanField(2)),
        ControlVariate(Prior(), RP, Reparameterization(quell.SYMMETRIC)),
        r"^ControlVariate\(prior: rp - rp\[symmetric\]\) was given for LinearPredictor\(.*\) with MeanField\. "
        r"It cannot be used: MeanField has no transport 'symmetric' \(it has 'diagonal', 'mirrored'\)\. "
        r"Leave it out, or change its estimators",
    ),
    "misspelt transport": (
        Problem(MODEL, FullRank(2)),
        ControlVariate(Prior(), RP, Reparameterization("cholesk")),
        r"FullRank has no transport 'cholesk' \(it has 'cholesky', 'symmetric', 'mirrored'\)",
    ),
    "closed form of the data": (
        Problem(FUNCTION_MODEL, FullRank(2)),
        ControlVariate(Data(), RP, CF),
        r"cannot be used: the log-likelihood is neither a quadratic in the latent nor one of a linear predictor\. L",
    ),
    "closed form of an unknown prior": (
        Problem(FUNCTION_MODEL, FullRank(2)),
        ControlVariate(Prior(), RP, CF),
        r"cannot be used: the log-prior is not known to be a quadratic \(give the model a `NormalPrior`",
    ),
    "closed form after Taylor in the data": (
        Problem(MODEL, FullRank(2)),
        ControlVariate(Data(), RP, CF, approximation=TaylorInData()),
        r"cannot be used: the likelihood expanded in the data is not a quadratic in the latent",
    ),
    "Taylor in the data of the prior": (
        Problem(MODEL, FullRank(2)),
        ControlVariate(Prior(), RP, CF, approximation=TaylorInData()),
        r"cannot be used: the prior term has no data to expand in",
    ),
    "twice the same estimator": (
        Problem(MODEL, FullRank(2)),
        ControlVariate(Prior(), RP, Reparameterization()),
        r"cannot be used: both estimators are the same, so that the difference is zero",
    ),
}


@pytest.mark.parametrize(("problem", "variate", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_a_refused_variate_says_why(problem, variate, message):
    assert variate.refuses(problem) is not None
    with pytest.raises(ValueError, match=message):
        quell.Gradient(problem, [variate])


def test_a_refused_base_gradient_says_why():
    base = quell.BaseGradient(data=CF)
    with pytest.raises(ValueError, match=r"^the base gradient was given for .* neither a quadratic in the latent"):
        quell.Gradient(Problem(FUNCTION_MODEL, MeanField(2)), base=base)


def test_variates_of_one_name_are_refused_and_a_label_helps():
    problem, variate = Problem(MODEL, MeanField(2)), ControlVariate(Prior(), RP, CF)
    with pytest.raises(
        ValueError, match=r"Several variates are named 'prior: rp - cf'\. Different names were needed\. .*`label`"
    ):
        quell.Gradient(problem, [variate, ControlVariate(Prior(), RP, CF)])
    labelled = ControlVariate(Prior(), RP, CF, label="mine")
    assert quell.Gradient(problem, [variate, labelled]).names == ("prior: rp - cf", "mine")


def test_the_exact_elbo_of_a_function_model_is_refused():
    problem = Problem(FUNCTION_MODEL, MeanField(2))
    with pytest.raises(
        TypeError,
        match=r"of Model\(num_data=4, dim=2\) with MeanField\. A linear .* needed\. Write `result\.elbo\(key\)`",
    ):
        quell.exact_elbo(problem, problem.family.init())


@pytest.mark.parametrize("variates", [[], quell.paper.variates("none"), iter(())], ids=["list", "none", "iterator"])
def test_an_empty_ensemble_is_the_base_gradient(variates):
    result = _fit(variates=variates)
    assert result.status is quell.Status.COMPLETED
    assert result.history.weights.shape == (2, 0)
    np.testing.assert_array_equal(result.history.base_sq_norm, result.history.combined_sq_norm)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("given", ["S7", ["c1"], quell.paper.VARIATES["c7"]])
def test_variates_that_are_none_are_explained(given, key):
    model = quell.logistic_regression([[1.0], [2.0]], [0, 1])
    with pytest.raises(TypeError, match=r"A list of control variates was needed\. Write .*quell\.paper\.variates"):
        quell.fit(model, quell.MeanField(1), variates=given, key=key, steps=1)


def test_params_of_another_family_are_explained(key):
    model = quell.logistic_regression([[1.0, 0.0], [2.0, 1.0]], [0, 1])
    with pytest.raises(ValueError, match=r"`params` .*\(2,\).* of MeanField\(dim=2\), got .*family\.init"):
        quell.fit(model, quell.MeanField(2), params=quell.FullRank(2).init(), key=key, steps=1)


@pytest.mark.parametrize("family", [quell.MeanField, quell.FullRank])
@pytest.mark.parametrize("wrong", [{"dim": 0}, {"dim": 2, "init_scale": 0.0}, {"dim": 2, "init_scale": float("inf")}])
def test_families_of_no_size_are_explained(family, wrong):
    with pytest.raises(ValueError, match=r"was given as .* was needed\. Write for example"):
        family(**wrong)
