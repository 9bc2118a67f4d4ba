# SPDX-License-Identifier: Apache-2.0
"""A NumPyro model together with its arguments."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import keystr, tree_flatten_with_path
from jaxtyping import Array, Float
from numpyro import handlers
from numpyro.infer.util import potential_energy

from quell.adapters.numpyro.trace import Rows, Trace, trace_at, whole_plates


class _Array:
    """Placeholder of an array among the arguments."""


class Call(eqx.Module):
    """A model and its arguments: arrays are leaves, everything else is static.

    Args:
        model: with NumPyro primitives.
        arrays: among the arguments, in the order of their tree.
        names: of the arrays, as arguments of the model.
        leaves: of the arguments' tree, with a placeholder for each array.
        treedef: of `(args, kwargs)`.
        is_minibatch: whether the arguments are a minibatch, so that plates stay as they are.
    """

    model: Callable[..., Any] = eqx.field(static=True)
    arrays: tuple[Array, ...]
    names: tuple[str, ...] = eqx.field(static=True)
    leaves: tuple[Any, ...] = eqx.field(static=True)
    treedef: Any = eqx.field(static=True)
    is_minibatch: bool = eqx.field(static=True, default=False)

    @classmethod
    def of(
        cls, model: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], *, is_minibatch: bool = False
    ) -> "Call":
        """Separate the arrays from the other arguments."""
        paths, treedef = tree_flatten_with_path((tuple(args), dict(kwargs)))
        arrays = {_name(path): jnp.asarray(leaf) for path, leaf in paths if _is_array(leaf)}
        leaves = tuple(_Array if _is_array(leaf) else leaf for _, leaf in paths)
        return cls(model, tuple(arrays.values()), tuple(arrays), leaves, treedef, is_minibatch)

    def trace(self, latents: Mapping[str, Array], rows: Rows, arrays: Sequence[Array] | None = None) -> Trace:
        """Trace the model, with other arrays for its own if given."""
        args, kwargs = self._arguments(self.arrays if arrays is None else arrays)
        return trace_at(self.model, args, kwargs, latents, Rows(as_written=True) if self.is_minibatch else rows)

    def potential_energy(self, latents: Mapping[str, Array]) -> Float[Array, ""]:
        """Minus the unconstrained log joint density, as NumPyro computes it."""
        seeded = handlers.seed(whole_plates(self.model), rng_seed=0)
        return jnp.asarray(potential_energy(seeded, *self._arguments(self.arrays), dict(latents)))

    def _arguments(self, arrays: Sequence[Array]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        given = iter(arrays)
        leaves = [next(given) if leaf is _Array else leaf for leaf in self.leaves]
        return jax.tree.unflatten(self.treedef, leaves)


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray | np.generic)


def _name(path: tuple[Any, ...]) -> str:
    """`x` for a keyword argument, `0` for the first positional one, followed by the path within it."""
    first = path[1].idx if path[0].idx == 0 else path[1].key
    return f"{first}{keystr(path[2:])}"
