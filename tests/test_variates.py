# SPDX-License-Identifier: Apache-2.0
"""The zoo and the catalogue of variates."""

import json
import random

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

import quell
from quell import literature as zoo
from quell.cli.app import app
from quell.evaluation import Evaluation
from tolerances import EXPECTATION

_features = np.array([[1.0, 0.3], [-0.4, 1.1], [0.7, -0.9], [0.2, 0.5], [-1.0, -0.6]])
LOGISTIC = quell.logistic_regression(_features, [1, 0, 1, 1, 0])


@pytest.fixture(scope="module")
def found():
    return quell.catalogue(LOGISTIC, quell.FullRank(2, init_scale=0.5))


def test_well_over_fifty_are_valid_and_the_papers_seven_are_among_them(found):
    names = [entry.name for entry in found.valid]
    assert len(names) == len(set(names)) > 150
    assert sorted(names[:7]) == ["c1", "c2", "c3", "c4", "c5", "c6", "c7"]
    assert not any(entry.redundant for entry in found.valid[:7])
    assert len(found.variates) > 25
    assert all(entry.cost > 0 for entry in found.valid)
    assert repr(found).startswith(f"Catalogue({len(names)} valid, {len(found.variates)} of them independent;")


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


@pytest.mark.slow
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


def test_the_landing_is_stuck_with_all_other_variates_around():
    """At the exact posterior the gradient's variance goes to zero, and the others do not disturb it."""
    model = quell.gaussian_regression(_features, [0.3, -1.0, 2.0, 0.1, 0.5], noise=0.8)
    precision = np.eye(2) + _features.T @ _features / 0.8**2
    covariance = np.linalg.inv(precision)
    mean = covariance @ _features.T @ np.array([0.3, -1.0, 2.0, 0.1, 0.5]) / 0.8**2
    params = quell.LocationScale(jnp.asarray(mean), jnp.asarray(np.linalg.cholesky(covariance)))
    family = quell.FullRank(2, log_scale=False)
    others = [
        zoo.two_roots(),
        zoo.miller(),
        zoo.paisley_taylor(),
        quell.paper.VARIATES["c2"],
        quell.paper.VARIATES["c3"],
    ]
    for variates in ([zoo.roeder()], [zoo.roeder(), *others]):
        sampler, rule = quell.Sampler(num_replicates=10), quell.Rule(v0=1e-9)
        gradient = quell.Gradient(quell.Problem(model, family), variates, sampler=sampler, rule=rule)
        run = jax.jit(
            lambda keys, g=gradient: jax.lax.scan(lambda s, k: g.update(k, params, s)[1:], g.init(params), keys)
        )
        info = run(jax.random.split(jax.random.key(0), 60))[1]
        assert info.combined_sq_norm[-1] < 1e-8 * info.base_sq_norm[-1]
        if len(variates) == 1:
            np.testing.assert_allclose(info.weights[-1], -1.0, rtol=1e-4)


@pytest.mark.parametrize("name", [name for name in zoo.LITERATURE if name not in {"relax", "lax"}])
def test_every_exhibit_is_one_expression_of_the_recipe(name):
    variate = zoo.LITERATURE[name].make()
    assert isinstance(variate, quell.ControlVariate)
    assert variate.name == name
    family = quell.Bernoulli(2) if "rebar" in name else quell.FullRank(2)
    assert variate.refuses(quell.Problem(LOGISTIC, family)) is None


def test_paisley_and_lax_have_mean_zero():
    """By Gauss-Hermite nodes; the parts of the sum are approximated one by one."""
    from exact import exact_draw, expectation

    problem = quell.Problem(LOGISTIC, quell.FullRank(2, init_scale=0.5))
    draw, mass = exact_draw(problem, 2)
    evaluation = Evaluation(problem, problem.family.init(dtype=jnp.float64), draw)
    network = eqx.nn.MLP(2, "scalar", 3, 1, activation=jnp.tanh, key=jax.random.key(0), dtype=jnp.float64)
    for variate in (zoo.paisley_taylor(), zoo.paisley_bound(), zoo.lax(network), zoo.wang(), zoo.moving_average()):
        mean = expectation(variate.sample(evaluation, variate.init(problem)), evaluation, mass)
        jax.tree.map(lambda leaf: np.testing.assert_allclose(leaf, 0.0, **EXPECTATION), mean)


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
    "logstic": "The model 'logstic' is not known",
    "logistic --family fulrank": "The family 'fulrank' is not known",
    "nowhere.py:model": "was not found",
    "{file}:other": "has no model named 'other'. It has switch",
    "{broken}:model": "could not be run",
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
    assert BAD[words] in printed, printed
