# SPDX-License-Identifier: Apache-2.0
"""NumPyro models in: the same log joint, the same rows, unbiased and quieter gradients."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.flatten_util import ravel_pytree
from numpyro.distributions import biject_to
from numpyro.infer import Trace_ELBO
from numpyro.infer.autoguide import AutoDiagonalNormal
from numpyro.infer.util import log_density

import quell
from numpyro_models import CASES, CENTRED, LOGISTIC, SCHOOLS, SIGMA, SUBSAMPLED, student_t
from quell.adapters.numpyro.structure import Access
from tolerances import EXACT, SINGLE, STANDARD_ERRORS

ALL = CASES | {"logistic": LOGISTIC, "subsampled": SUBSAMPLED, "centred schools": CENTRED}


@functools.cache
def _made(name):
    case = ALL[name]
    return quell.from_numpyro(case.model, *case.args, **case.kwargs)


def make(case):
    return _made(next(name for name, one in ALL.items() if one is case))


def points(model, num=4):
    return jax.random.normal(jax.random.key(1), (num, model.dim))


@pytest.mark.parametrize("name", ALL)
def test_log_joint_is_that_of_numpyro(name):
    case = ALL[name]
    model = make(case)
    kwargs = {key: value for key, value in case.kwargs.items() if key != "subsample_size"}
    sites = numpyro.handlers.trace(numpyro.handlers.seed(case.model, 0)).get_trace(*case.args, **kwargs)
    for z in points(model, 2):
        free, log_det = model.unravel(z), 0.0
        values = {}
        for site, value in free.items():
            transform = biject_to(sites[site]["fn"].support)
            values[site] = transform(value)
            log_det += jnp.sum(transform.log_abs_det_jacobian(value, values[site]))
        expected = log_density(case.model, case.args, kwargs, values)[0] + log_det
        ours = jnp.sum(model.log_likelihood(z, model.data)) + model.prior.log_prob(z)
        np.testing.assert_allclose(ours, expected, **EXACT)


@pytest.mark.parametrize("name", ALL)
def test_rows_of_a_minibatch_have_the_values_that_they_have_among_all(name):
    model = make(ALL[name])
    z = points(model)[0]
    whole = model.log_likelihood(z, model.data)
    assert whole.shape == (model.num_data,)
    for index in (jnp.array([3]), jnp.array([5, 1, 1]), jnp.arange(model.num_data)[::-1]):
        batch = jax.tree.map(lambda rows, index=index: rows[index], model.data)
        np.testing.assert_allclose(model.log_likelihood(z, batch), whole[index], **EXACT)


def test_a_minibatch_is_taken_in_the_cheapest_way_that_is_right():
    def standardised(x, y):
        slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("y", dist.Normal(slope * (x - x.mean()), 1.0), obs=y)

    x = jnp.arange(6.0)
    assert make(LOGISTIC).access is Access.SLICED
    assert make(SUBSAMPLED).access is Access.INDEXED
    assert make(CENTRED).access is Access.SLICED, "local latents are gathered along"
    assert make(CASES["eight schools"]).access is Access.GATHERED, "the plate's size is written into the model"
    assert quell.from_numpyro(standardised, x, x).access is Access.GATHERED, "the model needs all rows"


WHOLE_COLUMN = {
    "minus the last": lambda t: t - t[-1],
    "minus the first": lambda t: t - t[0],
    "centred": lambda t: t - t.mean(),
    "over the maximum": lambda t: t / t.max(),
    "summed up": jnp.cumsum,
    "before": lambda t: jnp.concatenate([jnp.zeros(1), t[:-1]]),
}


@pytest.mark.parametrize("name", WHOLE_COLUMN)
@pytest.mark.parametrize("is_single", [False, True], ids=["double", "single"])
def test_a_model_that_computes_with_a_whole_column_is_not_sliced(name, is_single):
    """The log-likelihood of a minibatch is that of its rows among all, whatever the model does with the column."""

    def model(t, y):
        slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", t.shape[0]):
            numpyro.sample("y", dist.Normal(slope * WHOLE_COLUMN[name](t), 1.0), obs=y)

    with jax.enable_x64(not is_single):
        t = jnp.arange(1.0, 41.0)
        ours = quell.from_numpyro(model, t, jnp.sin(t))
        assert ours.access is Access.GATHERED
        z, index = jnp.ones(1), jnp.array([7, 30, 2])
        batch = jax.tree.map(lambda rows: rows[index], ours.data)
        expected = dist.Normal(WHOLE_COLUMN[name](t), 1.0).log_prob(jnp.sin(t))[index]
        np.testing.assert_allclose(ours.log_likelihood(z, batch), expected, **SINGLE)


@pytest.mark.slow
def test_the_closed_form_of_a_normal_prior_is_found_and_only_then():
    model = make(LOGISTIC)
    quadratic = model.prior.quadratic(jnp.zeros(model.dim))
    for z in points(model):
        np.testing.assert_allclose(quadratic.value(z), model.prior.log_prob(z), **EXACT)
    for name in CASES:
        other = make(CASES[name])
        assert other.prior.quadratic(jnp.zeros(other.dim)) is None


@pytest.mark.slow
def test_samples_come_back_in_their_supports_under_their_names():
    model = make(CASES["network"])
    result = quell.fit(model, quell.MeanField(model.dim), steps=2, key=jax.random.key(0))
    samples = result.sample(jax.random.key(1), 3)
    shapes = {name: value.shape for name, value in samples.items()}
    assert shapes == {"first": (3, 2, 5), "second": (3, 5), "precision": (3,), "mean": (3, 40)}
    assert (samples["precision"] > 0).all()
    np.testing.assert_allclose(result.mean["precision"], model.unravel(result.params.loc)["precision"])


def test_several_plates_of_which_one_is_subsampled():
    def model(y, weight):
        mean = numpyro.sample("mean", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        with numpyro.plate("outer", 3, dim=-1), numpyro.plate("inner", 4, subsample_size=2, dim=-2):
            numpyro.sample("y", dist.Normal(mean, 1.0), obs=numpyro.subsample(y, event_dim=0))
            numpyro.factor("extra", -numpyro.subsample(weight, event_dim=0))
        numpyro.sample("other", dist.Normal(mean.sum(), 1.0), obs=0.3)
        numpyro.factor("outside", -jnp.sum(mean**4))

    y, weight = jnp.arange(12.0).reshape(4, 3), jnp.ones((4, 3))
    ours = quell.from_numpyro(model, y, weight)
    assert (ours.structure.plate, ours.num_data) == ("inner", 4)
    assert set(ours.structure.data_sites) == {"y", "extra"}
    assert set(ours.structure.other_sites) == {"other", "outside"}
    z = jnp.array([0.1, -0.2, 0.3])
    by_row = (dist.Normal(z, 1.0).log_prob(y) - weight).sum(axis=1)
    np.testing.assert_allclose(ours.log_likelihood(z, ours.data), by_row, **EXACT)
    rest = dist.Normal(0.0, 1.0).log_prob(z).sum() + dist.Normal(z.sum(), 1.0).log_prob(0.3) - jnp.sum(z**4)
    np.testing.assert_allclose(ours.prior.log_prob(z), rest, **EXACT)
    other = quell.from_numpyro(model, y, weight, plate="outer")
    assert (other.structure.plate, other.num_data) == ("outer", 3)


@pytest.mark.slow
def test_a_plateless_factor_and_constrained_shapes():
    def model(count):
        weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(count)))
        root = numpyro.sample("root", dist.LKJCholesky(3, 1.0))
        numpyro.factor("factor", jnp.log(weights[0]) + root[1, 0])

    ours = quell.from_numpyro(model, 4)
    assert (ours.num_data, ours.dim) == (1, 3 + 3)
    values = ours.constrain(points(ours)[0])
    assert values["root"].shape == (3, 3)
    np.testing.assert_allclose(values["weights"].sum(), 1.0)


def test_a_scan_is_understood():
    from numpyro.contrib.control_flow import scan

    def model(y):
        decay = numpyro.sample("decay", dist.Uniform(-1.0, 1.0))

        def step(level, observed):
            level = numpyro.sample("level", dist.LogNormal(decay * level, 0.5))
            numpyro.sample("y", dist.Normal(level, 1.0), obs=observed)
            return level, None

        scan(step, 0.0, y)

    assert quell.from_numpyro(model, jnp.arange(4.0)).dim == 5


@pytest.mark.release
@pytest.mark.parametrize(
    "name", [name if name == "varying intercepts" else pytest.param(name, marks=pytest.mark.release) for name in CASES]
)
def test_gradients_are_unbiased_and_have_lower_variance_than_numpyros(name):
    """Against 100,000 samples of NumPyro's own gradient, coordinate by coordinate."""
    case = CASES[name]
    model = make(case)
    guide = AutoDiagonalNormal(case.model, init_scale=0.2)
    numpyro.handlers.seed(guide, 0)(*case.args, **case.kwargs)
    gradient = quell.Gradient(
        quell.Problem(model, quell.MeanField(model.dim, log_scale=False)),
        quell.default_variates(quell.Problem(model, quell.MeanField(model.dim, log_scale=False))),
    )
    order = list(guide._unpack_latent(jnp.zeros(model.dim)))
    assert order == list(model.structure.names)
    params = quell.LocationScale(0.1 * points(model)[0], jnp.full(model.dim, 0.2))

    def theirs(key):
        def loss(flat):
            both = {"auto_loc": flat[: model.dim], "auto_scale": flat[model.dim :]}
            return Trace_ELBO().loss(key, both, case.model, guide, *case.args, **case.kwargs)

        return jax.grad(loss)(ravel_pytree(params)[0]) / model.num_data

    state, update = gradient.init(params), eqx.filter_jit(gradient.update)
    for step in range(30):
        _, state, _ = update(jax.random.key(step), params, state)

    def ours(key):
        return ravel_pytree(gradient.update(key, params, state)[0])[0]

    reference, base = _moments(theirs, 100_000)
    combined, quiet = _moments(ours, 10_000)
    error = jnp.sqrt(base / 100_000 + quiet / 10_000)
    assert (jnp.abs(combined - reference) < STANDARD_ERRORS * error).all()
    assert jnp.sum(quiet) < jnp.sum(base)
    planted = combined + 0.2 * jnp.sqrt(base)
    assert not (jnp.abs(planted - reference) < STANDARD_ERRORS * error).all()


def _moments(function, num):
    keys = jax.random.split(jax.random.key(7), (num // 1000, 1000))

    def chunk(some):
        values = jax.vmap(function)(some)
        return values.mean(axis=0), (values**2).mean(axis=0)

    first, second = (piece.mean(axis=0) for piece in jax.lax.map(jax.jit(chunk), keys))
    return first, second - first**2


def _discrete():
    numpyro.sample("k", dist.Categorical(jnp.ones(3) / 3))


def _learnable():
    numpyro.sample("z", dist.Normal(numpyro.param("mean", 0.0), 1.0))


def _observed():
    numpyro.sample("z", dist.Normal(0.0, 1.0), obs=0.0)


def _wrong_plate():
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", 9):
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=jnp.zeros(10))


def _wrong_index():
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0).expand([3]))
    numpyro.sample("y", dist.Normal(mean, 1.0), obs=jnp.zeros((2, 2)))


def _two_subsampled():
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    with numpyro.plate("one", 4, subsample_size=2):
        numpyro.factor("a", -jnp.ones(2) * mean)
    with numpyro.plate("two", 6, subsample_size=2):
        numpyro.factor("b", -jnp.ones(2) * mean)


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (_discrete, "discrete 'k'"),
        (_learnable, "`param` site 'mean'"),
        (_observed, "latent site, got none"),
        (_wrong_plate, r"'y' inside the plate 'rows' of size 9 .*\(9,\), got \(10,\)"),
        (_wrong_index, "cannot be run"),
        (lambda missing: None, "cannot be run with these arguments: TypeError"),
        (_two_subsampled, "cannot be run|at most one plate"),
    ],
)
def test_what_cannot_be_fitted_is_refused_with_a_remedy(model, text):
    with pytest.raises(quell.ModelError, match=text):
        quell.from_numpyro(model)


def test_missing_values_are_refused_by_name():
    with pytest.raises(quell.ModelError, match=r"site 'y' .*, got -?(nan|inf) at element \(2,\)"):
        quell.from_numpyro(student_t, jnp.ones((4, 2)), y=jnp.array([0.0, 1.0, jnp.nan, 2.0]))


def test_arrays_that_jax_would_swallow_are_refused_by_name():
    x, y = np.ones((4, 2)), np.arange(4.0)
    with pytest.raises(ValueError, match=r"^`y` must have no masked entries, got 1 of 4; drop"):
        quell.from_numpyro(student_t, x, y=np.ma.masked_equal(y, 2.0))
    with jax.enable_x64(False), pytest.raises(ValueError, match=r"^`args\[0\]` must .* 32 bits .* got 1099511627776;"):
        quell.from_numpyro(student_t, np.full((4, 2), 2**40), y=y)
    with pytest.raises(ValueError, match=r"^`y` must hold numbers, got \['a', 'a', 'a', 'a'\]"):
        quell.from_numpyro(student_t, x, y=np.full(4, "a"))


def test_a_model_that_reads_its_arrays_in_python_is_told_to_take_numbers():
    def model(group):
        with numpyro.plate("groups", int(group.max()) + 1):
            numpyro.sample("z", dist.Normal(0.0, 1.0))

    with pytest.raises(quell.ModelError, match="pass them as arguments"):
        quell.from_numpyro(model, jnp.arange(3))


def test_an_unknown_plate_is_refused():
    with pytest.raises(ValueError, match="got 'schol'"):
        quell.from_numpyro(CENTRED.model, SIGMA, y=SCHOOLS, plate="schol")
    with pytest.raises(ValueError, match=r"`plate` .* got 'rows'"):
        quell.from_numpyro(CASES["network"].model, *CASES["network"].args, **CASES["network"].kwargs, plate="rows")


def test_without_numpyro_the_error_names_the_extra(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "numpyro", None)
    monkeypatch.delitem(sys.modules, "quell.adapters.numpyro.svi", raising=False)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'quell\[numpyro\]'"):
        _ = quell.adapters.SVI
