# SPDX-License-Identifier: Apache-2.0
"""Quadratics around an anchor, with gradient and Hessian of all data, that are refreshed now and then."""

from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PyTree

from quell.approximations.anchored_term import AnchoredTerm
from quell.approximations.base import AbstractApproximation
from quell.approximations.batching import any_of_batch
from quell.approximations.full_expansion import expand_data, expand_prior
from quell.approximations.second_derivative import refuses_second_derivative
from quell.approximations.sketch import AbstractSketch, DenseSketch, DiagonalSketch, LowRankSketch, Products
from quell.checks import check_count, check_name
from quell.evaluation import Evaluation
from quell.problem import Problem
from quell.quadratic import AbstractCurvature, Quadratic
from quell.terms import AbstractTerm, Data, Prior, Total

Curvature = Literal["auto", "dense", "low-rank", "diagonal"]

LARGEST_DENSE = 100
"""Up to this many coordinates `"auto"` takes the whole Hessian."""

LARGEST_LOW_RANK = 2000
"""Up to this many coordinates `"auto"` takes a Hessian of low rank, and above it a diagonal."""

SEED = 20200607
"""Probes are a function of this number and of the step's."""


class AnchoredState(eqx.Module):
    """What is kept between steps.

    Args:
        step: how many steps were seen.
        is_set: whether the quadratic of a term was ever filled.
        quadratics: of the data term and of the prior term, over all data; one that the variate does not use stays zero.
    """

    step: Int[Array, ""]
    is_set: dict[str, Bool[Array, ""]]
    quadratics: dict[str, Quadratic]


class AnchoredQuadratic(AbstractApproximation):
    r"""Replace \(f(z)\) by a quadratic around an anchor \(z_0\), the mean of \(q_w\) a few steps ago.

    $$f_B(z_0) + \nabla f_B(z_0)^\top (z - z_0) + \tfrac12 (z - z_0)^\top H (z - z_0)$$

    \(f_B\) is \(f\) on the minibatch, and \(H\) the Hessian of \(f\) on all data, kept from the last refresh together
    with the value and the gradient on all data. So the quadratic's expectation over the minibatches is its value on all
    data, and `Reparameterization() - ClosedForm(full_data=True)` corrects for the noise and, to first order, for the
    subsampling. Before the first refresh, which follows the first step, it is zero. A refresh that is not finite is
    left out.

    Args:
        every: steps between refreshes.
        curvature: the form of \(H\): `"dense"`, `"low-rank"` (a random sketch, plus the diagonal of the rest),
            `"diagonal"` (random signs), or `"auto"`, which takes the first up to 100 coordinates of the latent, the
            second up to 2000 and the third above.
        rank: of `"low-rank"`.
        rows_at_once: rows of the data times products with their Hessian that a refresh holds in memory at a time.

    Bias: none in a variate.
    Cost: on a minibatch one more gradient of it a replicate, on all data nothing; one product with \(H\). A refresh
    passes over all data: one gradient, and as many products with the Hessian as the form has columns (`dim`, twice
    `rank` and a few, or a few), each about two gradients. Runs under one `jax.vmap` refresh together.
    Memory: \(H\) in its form, and at a refresh `rows_at_once` times what the likelihood keeps for a row; no matrix
    of size `dim` by `dim` unless the form is dense.

    Example:
        >>> import quell
        >>> kept = quell.AnchoredQuadratic(every=50)
        >>> quell.ControlVariate(quell.Data(), quell.Reparameterization(), quell.ClosedForm(full_data=True), kept)
        ControlVariate(anchored(data): rp - cf[all])

    References: Geffner & Domke (2018), section 3.2, for quadratics in a variate; Johnson & Zhang (2013), "Accelerating
    stochastic gradient descent using predictive variance reduction", for anchors with the gradient of all data.
    """

    every: int = 20
    curvature: Curvature = "auto"
    rank: int = 20
    rows_at_once: int = 4096

    def __check_init__(self) -> None:
        """Refuse counts that are not positive, and a form that is not known."""
        for name in ("every", "rank", "rows_at_once"):
            check_count(name, getattr(self, name))
        check_name("curvature", self.curvature, ("auto", "dense", "low-rank", "diagonal"))

    @property
    def name(self) -> str:
        return "anchored"

    def num_products(self, dim: int) -> int:
        """Products with the Hessian that a refresh takes for a latent of length `dim`."""
        return self._sketch(dim).num_products(dim)

    def refuses(self, problem: Problem, term: AbstractTerm) -> str | None:
        if not isinstance(term, Data | Prior):
            return f"an anchored quadratic is one of the data or the prior term, and the {term.name} term was given"
        return refuses_second_derivative(problem, term)

    def init(self, problem: Problem) -> AnchoredState:
        is_set = {name: jnp.zeros((), bool) for name in ("data", "prior")}
        return AnchoredState(
            jnp.zeros((), jnp.int32), is_set, {name: self._empty(problem.model.dim) for name in is_set}
        )

    def apply(self, term: AbstractTerm, state: AnchoredState) -> AbstractTerm:
        return AnchoredTerm(term, state.quadratics[term.name], state.is_set[term.name])

    def update(self, term: AbstractTerm, evaluation: Evaluation, state: AnchoredState, grad: PyTree) -> AnchoredState:
        names = _names(term)
        is_due = state.step % self.every == 0
        old = {name: state.quadratics[name] for name in names}
        new = jax.lax.cond(any_of_batch(is_due), lambda: self._refresh(evaluation, old, state.step), lambda: old)
        usable = {name: is_due & _is_finite(new[name]) for name in names}
        kept = {name: _where(usable[name], new[name], old[name]) for name in names}
        is_set = {name: state.is_set[name] | usable[name] for name in names}
        return AnchoredState(state.step + 1, {**state.is_set, **is_set}, {**state.quadratics, **kept})

    def _refresh(
        self, evaluation: Evaluation, like: dict[str, Quadratic], step: Int[Array, ""]
    ) -> dict[str, Quadratic]:
        family, model, params = evaluation.problem.family, evaluation.problem.model, evaluation.params
        anchor, variance = family.mean(params), family.variance(params)
        scale = jnp.sqrt(jnp.where(variance > 0, variance, 1.0))
        sketch, key = self._sketch(model.dim), jax.random.fold_in(jax.random.key(SEED), step)

        def take(products: Products) -> AbstractCurvature:
            return sketch.take(key, products, scale)

        ways = {
            "data": lambda: expand_data(model, anchor, take, rows_at_once=self.rows_at_once),
            "prior": lambda: expand_prior(model, anchor, take),
        }
        found = {name: ways[name]() for name in like}
        return jax.tree.map(lambda leaf, old: leaf.astype(old.dtype), found, like)

    def _empty(self, dim: int) -> Quadratic:
        return Quadratic(jnp.zeros(dim), jnp.zeros(()), jnp.zeros(dim), self._sketch(dim).empty(dim))

    def _sketch(self, dim: int) -> AbstractSketch:
        sketches = {"dense": DenseSketch(), "low-rank": LowRankSketch(self.rank), "diagonal": DiagonalSketch()}
        by_size = "dense" if dim <= LARGEST_DENSE else "low-rank" if dim <= LARGEST_LOW_RANK else "diagonal"
        return sketches[by_size if self.curvature == "auto" else self.curvature]


def _names(term: AbstractTerm) -> list[str]:
    """Those of the data and the prior term that a term is made of."""
    parts = term.parts if isinstance(term, Total) else (term,)
    return sorted({part.name for part in parts if isinstance(part, Data | Prior)})


def _is_finite(tree: PyTree) -> Bool[Array, ""]:
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]))


def _where(use: Bool[Array, ""], new: PyTree, old: PyTree) -> PyTree:
    return jax.tree.map(lambda n, o: jnp.where(use, n, o), new, old)
