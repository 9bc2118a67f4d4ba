# SPDX-License-Identifier: Apache-2.0
"""`quell.Flow`: normalizing flows of flowjax as families."""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import flowjax.bijections as bijections
import jax
import jax.numpy as jnp
import numpy as np
import paramax
from flowjax.distributions import StandardNormal
from jax.scipy.linalg import solve_triangular
from jax.scipy.stats import norm
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PyTree

from quell.adapters.masked_affine import MaskedAffine
from quell.core.checks import check_count
from quell.families import MIRRORED, SAMPLE, AbstractFamily, AbstractTransport, Capability, FactoredGradient
from quell.families.dense import DenseAlgebra
from quell.families.gaussian import Gaussian
from quell.families.transport import DENSITY, MIRRORED_DENSITY
from quell.fit.family_choice import choose_family

LAYERS, WIDTH = 2, 32
"""Of the flow that is made where none is given. Two layers see the coordinates in either order."""

KNOTS, INTERVAL = 8, 4.0
"""Of the spline that a single coordinate takes."""


class Flow(AbstractFamily):
    r"""A normalizing flow around a Gaussian, \(z = \mu + L\,T_w(\epsilon)\), with \(T_w\) of flowjax.

    A fit begins with a Gaussian, whose mean \(\mu\) and scale \(L\) it keeps, and with a \(T_w\) that leaves a standard
    normal as it is: the last layer of each network is zero. So the first step is at the Gaussian, and where the last is
    not better, the Gaussian is what is returned. Flows without networks begin near it. Parameters belong to their
    Gaussian: go on from them with `result.problem.family`. Outside of a fit, a flow is around a standard normal.

    Transports: `SAMPLE`, as above, and `MIRRORED`, of \(-\epsilon\).

    Args:
        dim: length of the latent.
        flow: a distribution of flowjax on a `StandardNormal`, made with `invert=False`, so that samples take one pass;
            by default a masked autoregressive flow of two layers, with affine transformers.

    Cost: of a density elsewhere than at a sample, the inverse of the flow.

    Example:
        >>> import jax, quell
        >>> family = quell.Flow(3)
        >>> family.sample(family.init(), jax.numpy.arange(3.0))
        Array([0., 1., 2.], dtype=...)

    References: Kingma et al. (2016); Papamakarios et al. (2017).
    """

    dim: int
    start: Float[np.ndarray, "param"]
    shapes: PyTree
    rest: PyTree
    loc: Float[Array, "latent"]
    scale: Float[Array, "latent *latent"]
    is_around: bool

    def __init__(self, dim: int, flow: Any = None) -> None:
        """Refuse flows that do not suit, and set their networks to zero."""
        check_count("dim", dim)
        bijection = _default_bijection(dim, jnp.result_type(float)) if flow is None else _bijection_of(flow, dim)
        self.dim = dim
        arrays, self.rest = eqx.partition(_quieted(bijection), eqx.is_inexact_array, is_leaf=_is_fixed)
        if not jax.tree.leaves(arrays):
            raise ValueError("`flow` has no parameters that could be fitted.")
        self.shapes = jax.tree.map(jax.typeof, arrays)
        self.start = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(arrays)])
        self.loc, self.scale, self.is_around = jnp.zeros(dim), jnp.ones(dim), False

    @property
    def capabilities(self) -> frozenset[Capability]:
        return frozenset({Capability.FORWARD_DENSITY})

    @property
    def transports(self) -> tuple[AbstractTransport, ...]:
        return SAMPLE, MIRRORED

    @property
    def begins_with(self) -> AbstractFamily | None:
        return None if self.is_around else choose_family(None, self.dim).family

    def around(self, gaussian: Gaussian) -> "Flow":
        variance, scale = gaussian.variance, gaussian.factor
        if (scale is None) == (variance is None):
            raise ValueError("`around` takes a Gaussian with a factor or with variances, and not with both.")
        scale = jnp.sqrt(variance) if scale is None else scale  # pyright: ignore[reportArgumentType]
        return eqx.tree_at(lambda flow: (flow.loc, flow.scale, flow.is_around), self, (gaussian.mean, scale, True))

    def init(self, *, dtype: DTypeLike | None = None) -> Float[Array, "param"]:
        return jnp.asarray(self.start, dtype or jnp.result_type(float))

    def sample(self, params: PyTree, noise: Float[Array, "noise"]) -> Float[Array, "latent"]:
        return self._moved(self._bijection(params).transform(noise))

    def latent(
        self, transport: AbstractTransport, params: PyTree, noise: Float[Array, "noise"]
    ) -> Float[Array, "latent"]:
        return self.sample(params, _turned(transport, noise))

    def log_prob(self, params: PyTree, z: Float[Array, "latent"]) -> Float[Array, ""]:
        centred = z - self.loc
        y = centred / self.scale if self.scale.ndim == 1 else solve_triangular(self.scale, centred, lower=True)
        noise, log_det = self._bijection(params).inverse_and_log_det(y)
        return jnp.sum(norm.logpdf(noise)) + log_det - self._log_scale

    def forward_log_prob(self, params: PyTree, noise: Float[Array, "noise"]) -> Float[Array, ""]:
        _, log_det = self._bijection(params).transform_and_log_det(noise)
        return jnp.sum(norm.logpdf(noise)) - log_det - self._log_scale

    def algebra(self, params: PyTree, noise: Float[Array, "sample noise"]) -> "FlowAlgebra":
        return FlowAlgebra(self, params, noise)

    def __repr__(self) -> str:
        """Its size."""
        return f"Flow(dim={self.dim}, num_params={self.num_params})"

    def _bijection(self, params: Float[Array, "param"]) -> bijections.AbstractBijection:
        """With parameters out of one vector: an optimizer's program is shorter for one array than for many."""
        shapes, tree = jax.tree.flatten(self.shapes)
        pieces = jnp.split(params, np.cumsum([one.size for one in shapes])[:-1])
        leaves = [piece.reshape(one.shape) for piece, one in zip(pieces, shapes, strict=True)]
        return paramax.unwrap(eqx.combine(jax.tree.unflatten(tree, leaves), self.rest))

    def _moved(self, y: Float[Array, "latent"]) -> Float[Array, "latent"]:
        return self.loc + (self.scale * y if self.scale.ndim == 1 else self.scale @ y)

    @property
    def _log_scale(self) -> Float[Array, ""]:
        return jnp.sum(jnp.log(self.scale if self.scale.ndim == 1 else jnp.diag(self.scale)))


class FlowAlgebra(DenseAlgebra):
    """Densities at the samples of a flow, and their gradients, by its Jacobian instead of its inverse."""

    def log_probs(self, transport: AbstractTransport) -> Float[Array, "sample"]:
        return jax.vmap(lambda noise: self.family.forward_log_prob(self.params, noise))(_turned(transport, self.noise))

    def log_prob_grads(self, transport: AbstractTransport) -> Float[Array, "sample latent"]:
        r"""\(J^{-\top} \nabla_\epsilon \log q_w(T_w(\epsilon))\)."""

        def one(noise: Float[Array, "noise"]) -> Float[Array, "latent"]:
            jacobian = jax.jacfwd(functools.partial(self.family.sample, self.params))(noise)
            slope = jax.grad(functools.partial(self.family.forward_log_prob, self.params))(noise)
            return jnp.linalg.solve(jacobian.T, slope)

        return self._keep(("log_prob_grads", transport), lambda: jax.vmap(one)(_turned(transport, self.noise)))

    def score(self, weight: Float[Array, "sample"], transport: AbstractTransport) -> FactoredGradient:
        """All of the derivative of a density at a sample, without that of the sample."""
        density = MIRRORED_DENSITY if transport == MIRRORED else DENSITY
        path = FactoredGradient.from_path(transport, weight[:, None] * self.log_prob_grads(transport))
        return FactoredGradient.from_path(density, weight) - path

    def change_of_variables(self) -> FactoredGradient:
        return FactoredGradient.from_path(DENSITY, jnp.ones_like(self.noise[:, 0]))

    def _function(self, transport: AbstractTransport) -> Callable[[PyTree, Array], Array]:
        if transport not in (DENSITY, MIRRORED_DENSITY):
            return super()._function(transport)
        sign = -1 if transport == MIRRORED_DENSITY else 1
        return lambda params, noise: self.family.forward_log_prob(params, sign * noise)


def _turned(transport: AbstractTransport, noise: Float[Array, "..."]) -> Float[Array, "..."]:
    return -noise if transport == MIRRORED else noise


def _is_fixed(leaf: Any) -> bool:
    return isinstance(leaf, paramax.NonTrainable)


def _bijection_of(flow: Any, dim: int) -> bijections.AbstractBijection:
    """Of a distribution of flowjax that can be fitted."""
    if not hasattr(flow, "bijection"):
        raise TypeError(
            f"`flow` must be a distribution of flowjax, got {flow!r}; try `flowjax.flows.coupling_flow(key, "
            f"base_dist=StandardNormal(({dim},)), invert=False)`."
        )
    flow = flow.merge_transforms()
    if flow.shape != (dim,) or flow.cond_shape is not None:
        raise ValueError(f"`flow` must have shape {(dim,)} and no condition, got {flow.shape} and {flow.cond_shape}.")
    if not isinstance(flow.base_dist, StandardNormal):
        raise ValueError(f"`flow` must have a `StandardNormal` as its base, got {type(flow.base_dist).__name__}.")
    if isinstance(flow.bijection, bijections.Invert):
        raise ValueError("`flow` is quick at densities and slow at samples; make it with `invert=False`.")
    return flow.bijection


@functools.cache  # so that a second fit finds the program that the first compiled
def _default_bijection(dim: int, dtype: np.dtype) -> bijections.AbstractBijection:
    """Of the precision that JAX has now."""
    del dtype
    if dim == 1:
        spline = functools.partial(bijections.RationalQuadraticSpline, knots=KNOTS, interval=INTERVAL)
        return bijections.Vmap(eqx.filter_vmap(spline, axis_size=1)(), in_axes=eqx.if_array(0))
    layers = [MaskedAffine(dim, WIDTH, is_reversed=number % 2 == 1, seed=number) for number in range(LAYERS)]
    return bijections.Chain(layers)


def _quieted(bijection: bijections.AbstractBijection) -> bijections.AbstractBijection:
    """With networks whose last layer is zero, so that what they are parameters of is as it was made."""

    def is_network(node: Any) -> bool:
        return isinstance(node, eqx.nn.MLP)

    def quiet(node: Any) -> Any:
        if not is_network(node):
            return node
        zero = jax.tree.map(lambda leaf: 0 * leaf if eqx.is_inexact_array(leaf) else leaf, node.layers[-1])
        return eqx.tree_at(lambda network: network.layers[-1], node, zero)

    return jax.tree.map(quiet, bijection, is_leaf=is_network)
