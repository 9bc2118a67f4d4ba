# SPDX-License-Identifier: Apache-2.0
"""Quadratics around an anchor, with gradient and Hessian of all data, that are refreshed now and then."""

from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Key, PyTree

from quell.approximations.anchor import AbstractAnchor, LatentAnchor, PredictorAnchor, expand_data, expand_prior
from quell.approximations.anchored_term import AnchoredTerm, SketchedTerm
from quell.approximations.base import AbstractApproximation
from quell.approximations.sketch import AbstractSketch, DenseSketch, DiagonalSketch, LowRankSketch, Products
from quell.core.checks import check_count, check_name
from quell.core.trees import all_finite, select
from quell.evaluation import Evaluation, Problem
from quell.families import Capability
from quell.models.quadratic import AbstractCurvature, DenseCurvature, Quadratic
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
        anchor: of the data term, for the quadratics of minibatches.
    """

    step: Int[Array, ""]
    is_set: dict[str, Bool[Array, ""]]
    quadratics: dict[str, Quadratic]
    anchor: AbstractAnchor


class AnchoredQuadratic(AbstractApproximation):
    r"""Replace \(f(z)\) by a quadratic around an anchor \(z_0\), the mean of \(q_w\) a few steps ago.

    $$c_B + b_B^\top (z - z_0) + \tfrac12 (z - z_0)^\top H_B (z - z_0)$$

    \(b_B\) and \(H_B\) are the expected gradient and the expected Hessian of \(f\) on the minibatch, under \(q\) as it
    was then: of all quadratics the closest one in mean square. Those of all data are kept from the last refresh.
    A minibatch's quadratic is the sum of those of its data, so that its expectation over the minibatches is the kept
    one, and `Reparameterization() - ClosedForm(full_data=True)` corrects for the noise and for the subsampling at once,
    in location and scale, to second order. Before the first refresh, which follows the first step, it is zero. A
    refresh that is not finite is left out.

    For a linear predictor under a Gaussian family the expectations are quadratures. Elsewhere they are averages over
    a few latents of \(q\), mirrored at its mean and the same for all data; for a family that is not Gaussian, and in
    the forms that are not dense, those at the mean. In any case the mean over the minibatches is exact.

    Only `"dense"` has an \(H_B\) of each minibatch. The other forms use the kept \(H\) on every minibatch, which
    corrects for the subsampling to first order.

    Args:
        every: steps between refreshes.
        curvature: the form of \(H\): `"dense"`, `"low-rank"` (a random sketch, plus the diagonal of the rest),
            `"diagonal"` (random signs), or `"auto"`, which takes the first up to 100 coordinates of the latent, the
            second up to 2000 and the third above.
        rank: of `"low-rank"`.
        rows_at_once: rows of the data times products with their Hessian that a refresh holds in memory at a time.
        num_pairs: pairs of latents that the expansion is averaged over, where it is dense and there is no quadrature;
            0 is Taylor at the mean, which suits likelihoods that are costly.

    Bias: none in a variate.
    Cost: on a minibatch one gradient and, in the dense form, one product with its Hessian per replicate and latent of
    \(q\) (for a linear predictor two products with the features, ten derivatives per datum and the predictors'
    variances); on all data one product with \(H\). A closed form on a minibatch takes its whole Hessian, except for a
    linear predictor. A refresh passes over all data: one gradient, and as many products with the Hessian as the form
    has columns (`dim`, twice `rank` and a few, or a few), each about two gradients. Runs under one `jax.vmap` refresh
    together.
    Memory: \(H\) in its form, and at a refresh `rows_at_once` times what the likelihood keeps for a row; no matrix
    of size `dim` by `dim` unless the form is dense or the family's parameters are one.

    Example:
        >>> import quell
        >>> kept = quell.AnchoredQuadratic(every=50)
        >>> quell.ControlVariate(quell.Data(), quell.Reparameterization(), quell.ClosedForm(full_data=True), kept)
        ControlVariate(anchored(data): rp - cf[all])

    References: Geffner & Domke (2018), section 3.2, for quadratics in a variate; Johnson & Zhang (2013), "Accelerating
    stochastic gradient descent using predictive variance reduction", for anchors with the gradient of all data; Opper &
    Archambeau (2009), "The variational Gaussian approximation revisited", for expected derivatives.
    """

    every: int = 20
    curvature: Curvature = "auto"
    rank: int = 20
    rows_at_once: int = 2**19
    num_pairs: int = 2

    def __check_init__(self) -> None:
        """Refuse counts that are not positive, and a form that is not known."""
        for name in ("every", "rank", "rows_at_once"):
            check_count(name, getattr(self, name))
        check_count("num_pairs", self.num_pairs, least=0)
        check_name("`curvature`", self.curvature, ("auto", "dense", "low-rank", "diagonal"))

    @property
    def name(self) -> str:
        return "anchored"

    def num_products(self, dim: int) -> int:
        """Products with the Hessian that a refresh takes for a latent of length `dim`."""
        return self._sketch(dim).num_products(dim)

    def refuses(self, problem: Problem, term: AbstractTerm) -> str | None:
        if not isinstance(term, Data | Prior):
            return f"an anchored quadratic is one of the data or the prior term, and the {term.name} term was given"
        return problem.family.refuses(Capability.MOMENTS) or term.refuses_expansion(problem)

    def init(self, problem: Problem) -> AnchoredState:
        is_set = {name: jnp.zeros((), bool) for name in ("data", "prior")}
        kept = {name: self._empty(problem.model.dim) for name in is_set}
        start = jax.eval_shape(lambda key: self._anchor(problem, problem.family.init(), key), jax.random.key(SEED))
        anchor = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), start)
        return AnchoredState(jnp.zeros((), jnp.int32), is_set, kept, anchor)

    def apply(self, term: AbstractTerm, state: AnchoredState) -> AbstractTerm:
        kept, is_set = state.quadratics[term.name], state.is_set[term.name]
        has_own = isinstance(kept.curvature, DenseCurvature)
        return (AnchoredTerm if has_own else SketchedTerm)(term, kept, state.anchor, is_set)

    def update(self, term: AbstractTerm, evaluation: Evaluation, state: AnchoredState, grad: PyTree) -> AnchoredState:
        names = _names(term)
        is_due = state.step % self.every == 0
        old = {name: state.quadratics[name] for name in names}, state.anchor
        new = jax.lax.cond(any_of_batch(is_due), lambda: self._refresh(evaluation, *old, state.step), lambda: old)
        usable = {name: is_due & all_finite(new[0][name]) for name in names}
        kept = {name: select(usable[name], new[0][name], old[0][name]) for name in names}
        is_set = {name: state.is_set[name] | usable[name] for name in names}
        anchor = select(usable["data"], new[1], old[1]) if "data" in names else state.anchor
        return AnchoredState(state.step + 1, {**state.is_set, **is_set}, {**state.quadratics, **kept}, anchor)

    def _refresh(
        self, evaluation: Evaluation, like: dict[str, Quadratic], anchor: AbstractAnchor, step: Int[Array, ""]
    ) -> tuple[dict[str, Quadratic], AbstractAnchor]:
        problem, params = evaluation.problem, evaluation.params
        variance = problem.family.variance(params)
        scale = jnp.sqrt(jnp.where(variance > 0, variance, 1.0))
        key, anchor_key = jax.random.split(jax.random.fold_in(jax.random.key(SEED), step))
        sketch, new = self._sketch(problem.model.dim), self._anchor(problem, params, anchor_key)

        def take(products: Products) -> AbstractCurvature:
            return sketch.take(key, products, scale)

        ways = {
            "data": lambda: expand_data(problem, new, take, rows_at_once=self.rows_at_once),
            "prior": lambda: expand_prior(problem, self._latents(problem, params, anchor_key), take),
        }
        found = {name: ways[name]() for name in like}, new
        return jax.tree.map(lambda leaf, old: leaf.astype(old.dtype), found, (like, anchor))

    def _anchor(self, problem: Problem, params: PyTree, key: Key[Array, ""]) -> AbstractAnchor:
        """By quadrature where the data see the latent through a predictor that is normal, else at a few latents."""
        if problem.predictor is not None:
            return PredictorAnchor.at(problem, params)
        return self._latents(problem, params, key)

    def _latents(self, problem: Problem, params: PyTree, key: Key[Array, ""]) -> LatentAnchor:
        is_dense = isinstance(self._sketch(problem.model.dim), DenseSketch)
        is_averaged = is_dense and problem.family.refuses(Capability.GAUSSIAN) is None
        return LatentAnchor.at(problem, params, key, self.num_pairs if is_averaged else 0)

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


@jax.custom_batching.custom_vmap
def any_of_batch(flag: Bool[Array, ""]) -> Bool[Array, ""]:
    """The flag itself; under `jax.vmap`, whether that of any run is set, as one flag for all of them.

    A `jax.lax.cond` whose flag differs between runs computes both branches at every step. With one flag it does not;
    what it computes for a run that did not ask is to be thrown away by that run's own flag.
    """
    return flag


@any_of_batch.def_vmap
def _any_of_batch(
    axis_size: int, in_batched: list[bool], flag: Bool[Array, "*run"]
) -> tuple[Bool[Array, "*outer"], bool]:
    return any_of_batch(jnp.any(flag, axis=0) if in_batched[0] else flag), False
