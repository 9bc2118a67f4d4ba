# SPDX-License-Identifier: Apache-2.0
"""The variates of the literature, the paper's seven by hand, the catalogue of recipes and the defaults."""

import itertools
import json
import random
import re
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import solve_sylvester, sqrtm
from typer.testing import CliRunner

import catalogue
import quell
from quell import literature
from quell.cli.app import app
from quell.evaluation import Evaluation
from tolerances import EXPECTATION

LOGISTIC = catalogue.MODELS["logistic"]

# The catalogue of recipes


@pytest.fixture(scope="module")
def found():
    return quell.catalogue(LOGISTIC, quell.FullRank(2, init_scale=0.5))


@pytest.mark.slow
@pytest.mark.release
def test_well_over_fifty_are_valid_and_the_papers_seven_are_among_them(found):
    names = [entry.name for entry in found.valid]
    assert len(names) == len(set(names))
    assert sorted(names[:7]) == ["c1", "c2", "c3", "c4", "c5", "c6", "c7"]
    assert not any(entry.redundant for entry in found.valid[:7])
    assert len(found.variates) > 25
    assert all(entry.cost > 0 for entry in found.valid)
    assert repr(found).startswith(f"Catalogue({len(names)} valid, {len(found.variates)} of them independent;")


@pytest.mark.slow
@pytest.mark.parametrize("page", ["README.md", "docs/literature.md"])
def test_the_pages_have_the_number_of_valid_recipes(found, page):
    text = (Path(__file__).parents[1] / page).read_text()
    numbers = re.findall(r"(?:there are (\d+) valid recipes|with its cost, (\d+) of them)", text)
    assert [int(one or other) for one, other in numbers] == [len(found.valid)]


@pytest.mark.slow
def test_the_catalogue_says_what_the_recipes_say(found):
    problem = quell.Problem(LOGISTIC, quell.FullRank(2))
    entries = [(entry.variate, None) for entry in found.valid] + [(e.variate, e.reason) for e in found.invalid]
    for variate, reason in random.Random(0).sample(entries, 60):
        assert variate.refuses(problem) == reason, variate


@pytest.mark.release
def test_redundant_ones_are_linear_combinations_and_the_others_are_not(found):
    problem = quell.Problem(LOGISTIC, quell.FullRank(2))
    params = problem.family.init(dtype=jnp.float64)
    params = quell.LocationScale(params.loc + 0.3, params.scale.at[1, 0].set(0.4))
    draw = quell.Sampler(num_replicates=40, batch_size=2).draw(jax.random.key(3), problem.family, 5, jnp.float64)
    independent, redundant = ([e.variate for e in found.valid if e.redundant is flag] for flag in (False, True))
    some = [*independent, *random.Random(1).sample(redundant, 25)]

    @jax.jit
    def rows(params, draw):
        evaluation = Evaluation(problem, params, draw)
        dense = [evaluation.algebra.dense(v.sample(evaluation, v.init(problem))) for v in some]
        return jnp.stack([jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(tree)]) for tree in dense])

    vectors = np.asarray(rows(params, draw))
    vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    basis, others = vectors[: len(independent)], vectors[len(independent) :]
    assert np.abs(np.diag(np.linalg.qr(basis.T, mode="r"))).min() > 1e-7, "each has something that those before lack"
    fitted = np.linalg.lstsq(basis.T, others.T, rcond=None)[0]
    np.testing.assert_allclose(basis.T @ fitted, others.T, atol=1e-6)


@pytest.mark.release
def test_a_likelihood_that_is_undefined_in_places_and_two_data_are_no_reason_to_call_a_variate_redundant():
    model = quell.Model(lambda z, x: x * jnp.log(z[0]), lambda z: -(z[0] ** 2), jnp.array([0.5, 2.0]), 1)
    found = quell.catalogue(model, quell.MeanField(1, init_scale=1.0))
    entries = {entry.name: entry for entry in found.valid}
    assert not entries["c5"].redundant, "with both data in each minibatch it would vanish"
    assert any(not entry.redundant for name, entry in entries.items() if name.startswith("data:") and "sf" in name)
    refused = {entry.name: entry.reason for entry in found.invalid}
    assert "not finite" in refused["leave-one-out(data): sf - cf"], "an average over all replicates is lost by one"


@pytest.mark.release
def test_all_of_them_at_once_are_as_quiet_as_the_best_single_one():
    """Weights from the rule after two hundred steps, judged on fresh evaluations."""
    problem = quell.Problem(LOGISTIC, quell.MeanField(2, init_scale=0.5))
    sampler = quell.Sampler(num_replicates=10, batch_size=1)
    together = [entry.variate for entry in quell.catalogue(problem.model, problem.family).valid][:40]
    gradient = quell.Gradient(problem, together, sampler=sampler)
    assert len(together) == 40, "linear combinations of each other among them"
    params = problem.family.init(dtype=jnp.float64)

    @eqx.filter_jit
    def run(gradient, params, keys, fresh):
        def step(state, key):
            _, state, info = gradient.update(key, params, state)
            return state, info.weights

        state, weights = jax.lax.scan(step, gradient.init(params), keys)
        draw = quell.Sampler(num_replicates=2000, batch_size=1).draw(fresh, problem.family, 5, jnp.float64)
        evaluation = Evaluation(problem, params, draw)
        return weights, gradient.inner_products(evaluation, gradient.samples(evaluation, state))

    weights, joint = run(gradient, params, jax.random.split(jax.random.key(0), 200), jax.random.key(1))
    assert np.isfinite(weights).all()
    joint = np.asarray(joint)
    singles = joint[0, 0] - joint[0, 1:] ** 2 / np.maximum(np.diag(joint)[1:], 1e-12)
    direction = np.concatenate([[1.0], weights[-1]])
    combined = direction @ joint @ direction
    assert combined < 1.05 * np.nanmin(singles)
    assert combined < 0.5 * joint[0, 0]


# The literature


@pytest.mark.release
def test_the_landing_is_stuck_with_all_other_variates_around():
    """At the exact posterior the gradient's variance goes to zero, and the others do not disturb it."""
    model = catalogue.MODELS["gaussian"]
    features, targets = np.asarray(model.data.features), np.asarray(model.data.targets)
    covariance = np.linalg.inv(np.eye(2) + features.T @ features / 0.8**2)
    mean = covariance @ features.T @ targets / 0.8**2
    params = quell.LocationScale(jnp.asarray(mean), jnp.asarray(np.linalg.cholesky(covariance)))
    problem, paper = quell.Problem(model, quell.FullRank(2, log_scale=False)), quell.paper.VARIATES
    others = [literature.two_roots(), literature.miller(), literature.paisley_taylor(), paper["c2"], paper["c3"]]
    for variates in ([literature.roeder()], [literature.roeder(), *others]):
        sampler, rule = quell.Sampler(num_replicates=10), quell.Rule(v0=1e-9)
        gradient = quell.Gradient(problem, variates, sampler=sampler, rule=rule)
        run = jax.jit(
            lambda keys, g=gradient: jax.lax.scan(lambda s, k: g.update(k, params, s)[1:], g.init(params), keys)
        )
        info = run(jax.random.split(jax.random.key(0), 60))[1]
        assert info.combined_sq_norm[-1] < 1e-8 * info.base_sq_norm[-1]
        if len(variates) == 1:
            np.testing.assert_allclose(info.weights[-1], -1.0, rtol=1e-4)


@pytest.mark.parametrize("name", [name for name in literature.LITERATURE if name not in {"relax", "lax"}])
def test_every_exhibit_is_one_expression_of_the_recipe(name):
    variate = literature.LITERATURE[name].make()
    assert isinstance(variate, quell.ControlVariate)
    assert variate.name == name
    family = quell.Bernoulli(2) if "rebar" in name else quell.FullRank(2)
    assert variate.refuses(quell.Problem(LOGISTIC, family)) is None


# The paper's seven, by formulas for logistic regression, sample by sample. With rows u = y x, one datum per replicate,
# noise e, z1 = m + L e, z2 = m + S e and s the logistic function, a reparameterization gradient with cotangent g is
# (g, tril(g e')) through Cholesky.

N, D, R = 7, 4, 3
RNG = np.random.default_rng(5)
X, LABELS = RNG.normal(size=(N, D)), np.array([0, 1, 1, 0, 1, 0, 1])
U = np.where(LABELS > 0, 1.0, -1.0)[:, None] * X
LOC = RNG.normal(size=D)
TRIL = np.tril(0.3 * RNG.normal(size=(D, D))) + np.eye(D)
NOISE, INDEX = RNG.normal(size=(R, D)), RNG.integers(0, N, size=(R, 1))
ROOT = np.real(sqrtm(TRIL @ TRIL.T))


def sigmoid(t):
    return 1.0 / (1.0 + np.exp(-t))


def rp1(g, e):
    return g, np.tril(np.outer(g, e))


def rp2(g, e):
    """z2 = m + S e: solve S Y + Y S = sym(g e'), then the cotangent of L is 2 Y L."""
    outer = np.outer(g, e)
    y = solve_sylvester(ROOT, ROOT, (outer + outer.T) / 2)
    return g, np.tril(2 * y @ TRIL)


def minus(a, b):
    return a[0] - b[0], a[1] - b[1]


def data_grad(u, z):
    """Gradient of N log s(u'z)."""
    return N * (1 - sigmoid(u @ z)) * u


def taylor_x_grad(z, u=None):
    """Gradient in z of the expansion of N log s(u'z) in u around the mean; for all data, from the covariance."""
    center = U.mean(axis=0)
    t = center @ z
    first, second, third = 1 - sigmoid(t), -sigmoid(t) * sigmoid(-t), -sigmoid(t) * sigmoid(-t) * (1 - 2 * sigmoid(t))
    if u is None:
        spread = (U - center).T @ (U - center) / N
        return N * (first * center + 0.5 * third * (z @ spread @ z) * center + second * spread @ z)
    delta = u - center
    step = delta @ z
    slope = first * center + second * step * center + first * delta
    return N * (slope + 0.5 * third * step**2 * center + second * step * delta)


def by_hand(name, u, e):
    z1, z2 = LOC + TRIL @ e, LOC + ROOT @ e
    inverse = np.linalg.inv(TRIL)
    if name == "c1":
        return minus(rp1(-inverse.T @ e, e), (np.zeros(D), -np.diag(1 / np.diag(TRIL))))
    if name == "c2":
        return minus(rp1(-z1, e), (-LOC, -TRIL))
    if name == "c3":
        return minus(rp1(-z1, e), rp2(-z2, e))
    if name == "c4":
        return minus(rp1(data_grad(u, z1), e), rp2(data_grad(u, z2), e))
    if name == "c5":
        return rp1(taylor_x_grad(z1, u) - taylor_x_grad(z1), e)
    if name == "c6":
        return rp2(taylor_x_grad(z2, u) - taylor_x_grad(z2), e)
    t = u @ LOC
    slope, hessian = data_grad(u, LOC), -N * sigmoid(t) * sigmoid(-t) * np.outer(u, u)
    return minus(rp1(slope + hessian @ (z1 - LOC), e), (slope, np.tril(hessian @ TRIL)))


@pytest.fixture(scope="module")
def evaluation():
    problem = quell.Problem(quell.logistic_regression(X, LABELS), quell.FullRank(D, log_scale=False))
    params = quell.LocationScale(jnp.asarray(LOC), jnp.asarray(TRIL))
    return Evaluation(problem, params, quell.Draw(jnp.asarray(NOISE), jnp.asarray(INDEX)))


@pytest.mark.parametrize("name", quell.paper.VARIATES)
def test_recipe_agrees_with_the_formula(name, evaluation):
    variate = quell.paper.VARIATES[name]
    dense = evaluation.algebra.dense(variate.sample(evaluation, variate.init(evaluation.problem)))
    for r in range(R):
        loc, scale = by_hand(name, U[INDEX[r, 0]], NOISE[r])
        np.testing.assert_allclose(dense.loc[r], loc, **EXPECTATION)
        np.testing.assert_allclose(dense.scale[r], scale, **EXPECTATION)
        assert np.abs(loc).max() > 1e-3


def test_subsets_grow_as_in_the_paper():
    names = [tuple(v.name for v in quell.paper.variates(s)) for s in ("none", "S4", "S5", "S6", "S7")]
    assert names[0] == ()
    assert names[1] == ("c2", "c1", "c3", "c4")
    for small, large in itertools.pairwise(names[1:]):
        assert large[: len(small)] == small
    assert set(names[-1]) == {"c1", "c2", "c3", "c4", "c5", "c6", "c7"}


# The defaults


def names_of(model, family, sampler=None):
    return [variate.name for variate in quell.default_variates(quell.Problem(model, family), sampler)]


def bumpy(num_data=11):
    return quell.Model(lambda z, x: -jnp.cosh(x @ z), lambda z: -jnp.sum(z**4), jnp.ones((num_data, 4)), 4)


def test_the_default_suits_model_and_sampler():
    """On all data the anchor does what Taylor does; a prior that is no quadratic gets one too."""
    landing, prior = "variational: rp - cf", "anchored(prior): rp - cf"
    data, taylor = "anchored(data): rp - cf[all]", "taylor-z(data): rp - cf"
    family = quell.MeanField(4)
    assert names_of(bumpy(), family) == [landing, prior, data, taylor]
    assert names_of(bumpy(), family, quell.Sampler(1)) == [landing, prior, data]
    assert names_of(bumpy(), family, quell.Sampler(1, 11)) == [landing, prior, data]
    assert names_of(bumpy(), family, quell.Sampler(1, 2)) == [landing, prior, data, taylor]
    assert "taylor-x(data): rp - rp[all]" in names_of(LOGISTIC, quell.MeanField(2))
    assert "taylor-x(data): rp - rp[all]" not in names_of(LOGISTIC, quell.MeanField(2), quell.Sampler(3))


def test_the_default_waits_longer_where_a_refresh_costs_more_and_gives_up_in_the_end():
    def wait(num_data):
        model = quell.Model(lambda z, x: -((x - z[0] - z[1]) ** 2), lambda z: -z @ z, jnp.ones(num_data), 2)
        variates = quell.default_variates(quell.Problem(model, quell.MeanField(2)), quell.Sampler(1, 10))
        return [v.approximation.every for v in variates if v.name.startswith("anchored(data)")]

    assert (wait(10), wait(1000), wait(100_000)) == ([20], [100], [])


def test_where_an_anchor_is_out_of_reach_data_are_expanded_if_a_datum_is_small():
    """Minibatches of one of 2,000 data would have to wait too long for a refresh."""

    def has_expansion(size, num_data):
        data = jnp.ones((num_data, size))
        model = quell.Model(lambda z, x: x[:, 0] ** 3 * z[0] + z[1], quell.NormalPrior(), data, 2)
        return "taylor-x(data): rp - rp[all]" in names_of(model, quell.MeanField(2), quell.Sampler(1, 1))

    assert has_expansion(100, 2000)
    assert not has_expansion(101, 2000)
    assert not has_expansion(100, 5)


def test_scores_have_a_baseline_where_there_is_another_replicate():
    model = quell.Model(lambda z, x: x * z[0], lambda z: 0.0 * z[0], jnp.ones(3), 1)
    names = {num: names_of(model, quell.Bernoulli(1), quell.Sampler(num)) for num in (1, 2)}
    assert "leave-one-out(elbo): sf - cf" in names[2]
    assert "leave-one-out(elbo): sf - cf" not in names[1]


# The command


@pytest.mark.slow
def test_the_command_prints_and_writes_the_catalogue(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "import jax.numpy as jnp, quell\n"
        "switch = quell.Model(lambda z, x: -((x - z[0]) ** 2), lambda z: 0.0 * z[0], jnp.array([0.2, 1.0]), 1)\n"
        "other = 3\n"
    )
    path = tmp_path / "out.json"
    words = ["variates", f"{file}:switch", "--family", "bernoulli", "--json", str(path)]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    report = json.loads(path.read_text())
    keys = {"name", "term", "approximation", "left", "right"}
    assert all(keys | {"cost"} <= set(entry) for entry in report["valid"])
    assert all(keys | {"reason"} <= set(entry) for entry in report["invalid"])
    names = {entry["name"] for entry in report["valid"]}
    assert {"score: sf - cf", "concrete-0.5(data): rp - csf"} <= names
    assert "score: sf - cf" in result.stdout


BAD = {
    "logstic": "model must be one of .* got 'logstic'",
    "logistic --family fulrank": "family must be one of .* got 'fulrank'",
    "nowhere.py:model": "model must be in an existing Python file, got 'nowhere.py'",
    "{file}:other": r"\(switch\), got 'other'",
    "{broken}:model": r"cannot be run \(ZeroDivisionError",
}


@pytest.mark.parametrize("words", BAD)
def test_bad_models_are_refused_with_advice(words, tmp_path):
    file, broken = tmp_path / "mine.py", tmp_path / "broken.py"
    model = "quell.Model(lambda z, x: x * z[0], lambda z: z[0], jnp.ones(1), 1)"
    file.write_text(f"import jax.numpy as jnp, quell\nswitch = {model}\nother = 3\n")
    broken.write_text("1 / 0\n")
    result = CliRunner().invoke(app, ["variates", *words.format(file=file, broken=broken).split()])
    assert result.exit_code == 2
    printed = " ".join(result.output.replace("│", " ").split())
    assert re.search(BAD[words], printed), printed
