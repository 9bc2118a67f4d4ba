# SPDX-License-Identifier: Apache-2.0
"""Very many parameters: no array of parameters times variates or replicates, and recipes that would make one."""

import importlib
import json
import math
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

import quell
from quell.cli.app import app
from quell.core.program import equations
from quell.evaluation import Evaluation, exactly
from quell.families import coordinate_blocks
from quell.variates.cost import largest_affordable
from tolerances import EXACT

DIM, ROWS, RANK, REPLICATES = 100_000, 4, 7, 5
SAMPLE, CLOSED, ALL = quell.Reparameterization(), quell.ClosedForm(), quell.ClosedForm(full_data=True)


def logistic(dim=DIM):
    features = np.random.default_rng(0).standard_normal((ROWS, dim), np.float32) / np.float32(math.sqrt(dim))
    return quell.logistic_regression(features, [0, 1, 1, 0])


def counts(dim=DIM):
    """Each row sees a quarter of the latent."""
    data = np.random.default_rng(0).poisson(1.0, (ROWS, dim // ROWS)).astype(np.float32)

    def log_likelihood(z, rows):
        logs = z.reshape(ROWS, -1)[rows["which"]]
        return jnp.sum(rows["counts"] * logs - jnp.exp(logs), axis=-1)

    return quell.Model(log_likelihood, quell.NormalPrior(), {"which": jnp.arange(ROWS), "counts": data}, latent=dim)


def closed_variates():
    terms = (quell.Variational(), quell.Prior(), quell.Data(), quell.Score())
    first = [quell.ControlVariate(term, SAMPLE, CLOSED) for term in terms[:3]]
    score = quell.ControlVariate(quell.Score(), quell.ScoreFunction(), CLOSED)
    return [*first, score, quell.ControlVariate(quell.Data(), SAMPLE, CLOSED, quell.TaylorInLatent())]


def quadratic_variates():
    kept = quell.ControlVariate(quell.Data(), SAMPLE, ALL, quell.AnchoredQuadratic(rows_at_once=1))
    learned = quell.ControlVariate(quell.Data(), SAMPLE, CLOSED, quell.FittedQuadratic())
    return [quell.ControlVariate(quell.Variational(), SAMPLE, CLOSED), kept, learned]


def largest(gradient):
    """Number of entries of the largest array of a step, found without running it."""

    def step(key):
        params = gradient.problem.family.init(dtype=jnp.float32)
        return gradient.update(key, params, gradient.init(params))

    program = jax.make_jaxpr(step)(jax.random.key(0)).jaxpr
    made = (var.aval for equation in equations(program) for var in equation.outvars)
    return max(math.prod(aval.shape) for aval in made if hasattr(aval, "shape"))


STEPS = {
    "mean-field": (logistic, quell.MeanField(DIM), closed_variates, quell.Rule(metric="natural")),
    "mean-field, any model": (counts, quell.MeanField(DIM), quadratic_variates, quell.Rule(metric="natural")),
    "mean-field by leaf": (logistic, quell.MeanField(DIM), closed_variates, quell.Rule(by_leaf=True)),
    "low-rank": (logistic, quell.LowRank(DIM, RANK), closed_variates, quell.Rule()),
    "low-rank, any model": (counts, quell.LowRank(DIM, RANK), quadratic_variates, quell.Rule()),
    "low-rank by leaf": (logistic, quell.LowRank(DIM, RANK), closed_variates, quell.Rule(by_leaf=True)),
}


@pytest.mark.slow
@pytest.mark.parametrize("shared", [False, True], ids=["all data", "one minibatch"])
@pytest.mark.parametrize("name", STEPS)
def test_a_step_makes_no_array_larger_than_a_vector_per_replicate(name, shared, monkeypatch):
    make_model, family, make_variates, rule = STEPS[name]
    monkeypatch.setattr(coordinate_blocks, "NUMBERS_AT_ONCE", DIM)
    sampler = quell.Sampler(REPLICATES, 2, shared=True) if shared else quell.Sampler(REPLICATES)
    gradient = quell.Gradient(quell.Problem(make_model(), family), make_variates(), sampler=sampler, rule=rule)
    most = max(REPLICATES, RANK, 8 if make_model is counts else 0) * DIM  # a diagonal takes eight probes
    assert largest(gradient) <= most + RANK * REPLICATES
    assert most < family.num_params * REPLICATES


def test_the_largest_array_of_a_step_is_seen(monkeypatch):
    problem = quell.Problem(logistic(), quell.MeanField(DIM))
    monkeypatch.setattr(coordinate_blocks, "NUMBERS_AT_ONCE", 10**9)  # all coordinates in one block
    gradient = quell.Gradient(problem, closed_variates(), sampler=quell.Sampler(REPLICATES))
    assert largest(gradient) == 6 * REPLICATES * 2 * DIM


DRAWS = {
    "all data": (quell.Rule(), quell.Sampler(4)),
    "one minibatch": (quell.Rule(), quell.Sampler(4, 2, shared=True)),
    "one minibatch, by leaf": (quell.Rule(by_leaf=True), quell.Sampler(4, 2, shared=True)),
    "minibatches, by leaf": (quell.Rule(by_leaf=True), quell.Sampler(4, 2)),
}


@pytest.mark.slow
@pytest.mark.parametrize("family", [quell.MeanField(23), quell.LowRank(23, 3)], ids=["mean-field", "low-rank"])
@pytest.mark.parametrize("name", DRAWS)
def test_blocks_of_coordinates_add_up(family, name, key, monkeypatch):
    rule, sampler = DRAWS[name]
    features = jax.random.normal(key, (ROWS, 23))
    problem = quell.Problem(quell.logistic_regression(features, [0, 1, 1, 0]), family)
    gradient = quell.Gradient(problem, closed_variates(), sampler=sampler, rule=rule)
    params = family.init()
    state = gradient.init(params)

    def step():
        evaluation = Evaluation(problem, params, sampler.draw(key, family, ROWS, float))
        samples = gradient.samples(evaluation, state)
        means = [jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), evaluation.algebra.dense(s)) for s in samples]
        return gradient.inner_products(evaluation, samples), means, [evaluation.algebra.pullback(s) for s in samples]

    whole, means, pulled = jax.jit(step)()
    jax.tree.map(lambda one, two: np.testing.assert_allclose(one, two, **EXACT), means, pulled)
    monkeypatch.setattr(coordinate_blocks, "NUMBERS_AT_ONCE", 8 * 4 * 5 * 5)
    parts = jax.jit(lambda: step()[0])()
    np.testing.assert_allclose(parts, whole, **EXACT)
    assert np.all(np.isfinite(whole))
    assert np.any(whole != 0)


REFUSED = {
    "Hessian of a minibatch": (counts, quell.ControlVariate(quell.Data(), SAMPLE, CLOSED, quell.TaylorInLatent())),
    "moments of the data": (
        logistic,
        quell.ControlVariate(quell.Data(), SAMPLE, quell.Reparameterization(full_data=True), quell.TaylorInData()),
    ),
    "Hessian at latents": (counts, quell.ControlVariate(quell.Data(), SAMPLE, quell.BonnetPrice())),
    "whole matrix, kept": (
        logistic,
        quell.ControlVariate(quell.Data(), SAMPLE, ALL, quell.AnchoredQuadratic(curvature="dense")),
    ),
    "whole matrix, learned": (
        logistic,
        quell.ControlVariate(quell.Data(), SAMPLE, CLOSED, quell.FittedQuadratic(curvature="dense")),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_recipe_that_makes_a_square_matrix_is_refused_before_it_does(name):
    make_model, variate = REFUSED[name]
    problem = quell.Problem(make_model(), quell.MeanField(DIM))
    assert math.prod(variate.largest_array(problem)) >= DIM**2
    with pytest.raises(ValueError, match=r"100,000 x .*GB.*AnchoredQuadratic\(\)"):
        quell.Gradient(problem, [variate])
    small = quell.Problem(make_model(40), quell.MeanField(40))
    assert variate.refuses(small) is None


def test_a_base_gradient_that_makes_a_square_matrix_is_refused():
    base = quell.BaseGradient(quell.BonnetPrice(), CLOSED, CLOSED)
    with pytest.raises(ValueError, match=r"base.*100,000 x"):
        quell.Gradient(quell.Problem(counts(), quell.MeanField(DIM)), base=base)


def test_a_log_density_that_makes_a_square_matrix_is_refused_and_not_by_rows():
    def by_matrix(z, y):
        return y * jnp.sum(jnp.sin(z[:, None] * z))

    def by_rows(z, y):
        return y * jnp.sum(jax.lax.map(jax.checkpoint(lambda one: jnp.sum(jnp.sin(one * z))), z))

    def problem(log_likelihood):
        model = quell.Model(log_likelihood, quell.NormalPrior(), jnp.ones(3), latent=DIM)
        return quell.Problem(model, quell.MeanField(DIM))

    with pytest.raises(ValueError, match=r"base gradient.* 100,000 x 100,000 .*row by row"):
        quell.Gradient(problem(by_matrix))
    assert quell.Gradient(problem(by_rows)).base == quell.BaseGradient()


def test_an_exact_fit_is_not_refused_for_what_it_does_not_sample(monkeypatch):
    monkeypatch.setattr(importlib.import_module("quell.gradient.base"), "refuses_memory", lambda *_, **__: "too large")
    model = quell.Model(lambda z, y: -jnp.exp(z[0]) * y, quell.NormalPrior(), jnp.ones(3), latent=1)
    problem = quell.Problem(model, quell.MeanField(1))
    with pytest.raises(ValueError, match="too large"):
        quell.Gradient(problem)
    assert quell.Gradient(exactly(problem)).problem.expectation is not None


@pytest.mark.parametrize("make_model", [logistic, counts])
@pytest.mark.parametrize("family", [quell.MeanField(DIM), quell.LowRank(DIM, RANK)], ids=["mean-field", "low-rank"])
def test_default_variates_are_affordable(make_model, family):
    problem = quell.Problem(make_model(), family)
    found = quell.default_variates(problem, quell.Sampler(REPLICATES, 2))
    assert len(found) == 3
    assert all(math.prod(v.largest_array(problem)) <= largest_affordable(problem) for v in found)
    assert "taylor-x" not in " ".join(v.name for v in found)


def test_a_family_that_is_a_matrix_affords_matrices():
    dim = 5000
    variate = quell.ControlVariate(quell.Data(), SAMPLE, CLOSED, quell.TaylorInLatent())
    assert variate.refuses(quell.Problem(counts(dim), quell.FullRank(dim))) is None
    assert variate.refuses(quell.Problem(counts(dim), quell.MeanField(dim))) is not None


@pytest.mark.release
def test_the_catalogue_leaves_out_what_is_not_affordable():
    def small(model, family, **options):
        return {entry.name for entry in quell.catalogue(model, family, **options).valid}

    family = quell.MeanField(2)
    everything = small(logistic(2), family)
    large = quell.Problem(logistic(), quell.MeanField(DIM))
    found = quell.catalogue(logistic(2), family, large=large)
    affordable = {entry.name for entry in found.valid}
    gone = everything - affordable
    assert affordable < everything
    assert any(name.startswith("taylor-x(data)") for name in gone)
    reasons = {entry.name: entry.reason for entry in found.invalid}
    square = re.compile("100,000 x (2 x )?100,000")
    assert {name: reasons[name] for name in gone if not square.search(reasons[name])} == {}
    with pytest.raises(ValueError, match=r"1,000.*large="):
        quell.catalogue(logistic(), quell.MeanField(DIM))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("logistic --dim 0", r"`dim` .* got 0"),
        ("logistic --family fullrank --dim 1000000", r"got 500,001,500,000 for .*--family meanfield"),
        ("model.py:model --dim 10", r"`--dim` needs a built-in model, got 10"),
    ],
)
def test_the_command_line_refuses_sizes_that_no_family_has(arguments, words):
    out = CliRunner().invoke(app, ["variates", *arguments.split()])
    assert out.exit_code == 2
    assert re.search(words, " ".join(out.output.replace("│", " ").split()))


@pytest.mark.slow
def test_a_trust_region_grows_with_the_coordinates(key):
    """As many steps for a hundred thousand coordinates as for ten: without that it would be hundreds."""
    steps = [len(quell.fit(logistic(d), quell.MeanField(d), key=key, progress=False).history.elbo) for d in (10, DIM)]
    assert steps[1] <= steps[0] + 5


@pytest.mark.release
@pytest.mark.parametrize("case", ["logistic-auto", pytest.param("low-rank-named", marks=pytest.mark.release)])
def test_the_benchmark_runs_in_a_few_vectors_per_replicate(case):
    file = Path(__file__).parent.parent / "experiments" / "bench" / "studies" / "many_parameters.py"
    out = subprocess.run([sys.executable, str(file), "--child", case], stdout=subprocess.PIPE, text=True, check=True)
    told = json.loads(out.stdout.strip().splitlines()[-1])
    assert told["dim"] == (10**6 if case == "logistic-auto" else 10**5)
    assert told["elbo"][1] > told["elbo"][0]
    assert told["bytes"] < 4 * told["params"] * 8 * told["replicates"] + 4e8
