# SPDX-License-Identifier: Apache-2.0
"""A NumPyro model together with its arguments."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import keystr, tree_flatten_with_path
from jaxtyping import Array, Float
from numpyro import handlers
from numpyro.infer.util import potential_energy

from quell.adapters.numpyro.trace import Plates, Rows, Trace, trace_at
from quell.core.numbers import as_numbers, check_width
from quell.core.put import put

Inputs = tuple[tuple[Any, ...], Mapping[str, Any]]
"""Positional and keyword arguments of a model."""


class _ArrayNamed(NamedTuple):
    """Placeholder of an array among the arguments."""

    name: str


class Call(eqx.Module):
    """A model and its arguments: arrays are leaves, everything else is static.

    Args:
        model: with NumPyro primitives.
        arrays: among the arguments, by name: `x` for a keyword, `0` for the first position, then the path within it.
        leaves: of the arguments' tree, with a placeholder for each array.
        treedef: of the arguments.
        is_minibatch: whether the arguments are a minibatch, so that plates stay as they are.
    """

    model: Callable[..., Any] = eqx.field(static=True)
    arrays: dict[str, Array]
    leaves: tuple[Any, ...] = eqx.field(static=True)
    treedef: Any = eqx.field(static=True)
    is_minibatch: bool = eqx.field(static=True)

    def __init__(self, model: Callable[..., Any], inputs: Inputs, *, is_minibatch: bool = False) -> None:
        """Separate the arrays from the other arguments."""
        paths, self.treedef = tree_flatten_with_path((inputs[0], dict(inputs[1])))
        named = {_name(path): leaf for path, leaf in paths}
        self.model, self.is_minibatch = model, is_minibatch
        self.arrays = {name: _as_array(name, leaf) for name, leaf in named.items() if _is_array(leaf)}
        self.leaves = tuple(_ArrayNamed(name) if _is_array(leaf) else leaf for name, leaf in named.items())

    def trace(self, latents: Mapping[str, Array], rows: Rows, arrays: Mapping[str, Array] | None = None) -> Trace:
        """Trace the model, with other arrays for some of its own if given."""
        args, kwargs = self._inputs(arrays or {})
        return trace_at(self.model, args, kwargs, latents, Rows(as_written=True) if self.is_minibatch else rows)

    def potential_energy(self, latents: Mapping[str, Array]) -> Float[Array, ""]:
        """Minus the unconstrained log joint density, as NumPyro computes it."""
        seeded, (args, kwargs) = handlers.seed(Plates(self.model, Rows()), rng_seed=0), self._inputs({})
        return jnp.asarray(potential_energy(seeded, args, kwargs, dict(latents)))

    def _inputs(self, arrays: Mapping[str, Array]) -> Any:
        given = {**self.arrays, **arrays}
        leaves = [given[leaf.name] if isinstance(leaf, _ArrayNamed) else leaf for leaf in self.leaves]
        return jax.tree.unflatten(self.treedef, leaves)


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray | np.generic)


def _as_array(name: str, leaf: Any) -> Array:
    shown = f"args[{name}]" if name.isdigit() else name
    array = as_numbers(shown, leaf)
    check_width(shown, array)
    return put(array)


def _name(path: tuple[Any, ...]) -> str:
    first = path[1].idx if path[0].idx == 0 else path[1].key
    return f"{first}{keystr(path[2:])}"
