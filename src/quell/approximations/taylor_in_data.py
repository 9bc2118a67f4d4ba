# SPDX-License-Identifier: Apache-2.0
"""Second-order Taylor expansion in the data."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from quell.approximations.base import AbstractApproximation
from quell.core.checks import first_line
from quell.data.access import like_rows
from quell.evaluation import Batch, Evaluation, Problem, batch_factor
from quell.families import AbstractTransport
from quell.models import AbstractDataExpansion, AbstractModel
from quell.terms import AbstractTerm, Data
from quell.terms.base import Latents, Values


class TaylorInData(AbstractApproximation):
    r"""Replace \(\log p(x_i \mid z)\) by its second-order Taylor expansion in \(x_i\) around the data's mean.

    The sum over all data then needs only the data's first two moments, which are cached, so this corrects
    for data subsampling.

    Bias: none in a variate.
    Cost: for a linear predictor as the likelihood of the minibatch, and on all data one product with a
    `latent x latent` matrix per replicate. For a `Model` each datum of the minibatch costs a product with a Hessian,
    about three gradients, and all data as many such products as a datum has numbers, per replicate.

    References: Wang et al. (2013); Geffner & Domke (2018), section 3.2.
    """

    @property
    def name(self) -> str:
        return "taylor-x"

    def refuses(self, problem: Problem, term: AbstractTerm) -> str | None:
        if not isinstance(term, Data):
            return f"the {term.name} term has no data to expand in"
        expansion = eqx.filter_eval_shape(lambda model: model.data_expansion(), problem.model)
        return _why_none(problem.model) if expansion is None else _why_not_twice(expansion, problem.model)

    def init(self, problem: Problem) -> PyTree:
        return problem.model.data_expansion()

    def apply(self, term: AbstractTerm, state: PyTree) -> AbstractTerm:
        return ExpandedInData(state)


class ExpandedInData(AbstractTerm):
    """The data term with its likelihood expanded in the data."""

    expansion: AbstractDataExpansion

    @property
    def name(self) -> str:
        return "taylor-x(data)"

    def values(self, evaluation: Evaluation, transport: AbstractTransport, *, full_data: bool) -> Values:
        return evaluation.map(self._log_likelihood(evaluation.problem), transport, full_data=full_data)

    def grads(self, evaluation: Evaluation, transport: AbstractTransport, *, full_data: bool) -> Latents:
        grad = jax.grad(self._log_likelihood(evaluation.problem))
        return evaluation.map(grad, transport, full_data=full_data)

    def refuses_closed_form(self, problem: Problem) -> str | None:
        return "the likelihood expanded in the data is not a quadratic in the latent"

    def _log_likelihood(self, problem: Problem) -> Callable[[Array, Batch], Array]:
        def total(z: Array, batch: Batch) -> Array:
            if batch.is_full:
                return problem.model.num_data * self.expansion.mean_log_likelihood(z)
            return batch_factor(problem, batch) * jnp.sum(self.expansion.log_likelihood(z, batch.rows))

        return total


def _why_none(model: AbstractModel) -> str:
    leaves = jax.tree.leaves(like_rows(model.data, 1))
    others = sorted({str(leaf.dtype) for leaf in leaves if not jnp.issubdtype(leaf.dtype, jnp.floating)})
    why = f": they hold {' and '.join(others)}, and derivatives need floating point" if others else ""
    if not any(leaf.size for leaf in leaves):
        why = ": a datum is empty"
    return f"{type(model).__name__} offers no expansion in its data{why}"


def _why_not_twice(expansion: AbstractDataExpansion, model: AbstractModel) -> str | None:
    """Differentiate in the abstract, without computing: some functions have no second derivative in JAX."""
    like = jax.eval_shape(lambda: jnp.zeros(model.dim))
    try:
        eqx.filter_eval_shape(_mean_grad, expansion, like)
    except Exception as error:
        what = f"{type(error).__name__}: {first_line(error)}"
        return f"the log-likelihood cannot be differentiated twice in its data ({what})"
    return None


@eqx.filter_jit
def _mean_grad(expansion: AbstractDataExpansion, z: Float[Array, "latent"]) -> Float[Array, "latent"]:
    """Only ever traced, never compiled: the cache of traces makes the second check free."""
    return jax.grad(expansion.mean_log_likelihood)(z)
