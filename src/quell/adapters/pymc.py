# SPDX-License-Identifier: Apache-2.0
"""`quell.from_pymc`: a PyMC model as a model of quell."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pymc as pm
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, Key, PyTree
from pymc.backends.arviz import find_constants, find_observations
from pymc.util import get_default_varnames
from pytensor.compile.mode import Mode
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import graph_inputs
from pytensor.tensor.random.type import RandomType

from quell.adapters.arviz import as_groups, posterior_groups
from quell.core.checks import check_count, check_key
from quell.core.tiers import tiered_once
from quell.fit.result import FitResult
from quell.models import AbstractDataExpansion, AbstractModel, AbstractPrior
from quell.models.base import Labels

LARGEST_SHAPE = 8
"""Numbers of an array that may be the shape of another, and stays inside of a program; larger ones are data."""

POINTS, LARGEST_ERROR, SINGLE_ERROR = 3, 1e-6, 1e-3
"""At which the model is held against PyMC's own log density, and by how much of it they may differ, in double and in
single precision."""


class Graph(eqx.Module):
    """A graph of PyTensor as a function of the values of all latents; its data are arrays.

    Args:
        function: of values and data.
        given: the data.
    """

    function: Callable[..., list[Array]] = eqx.field(static=True)
    given: tuple[Array, ...]

    @classmethod
    def of(cls, values: Sequence[Any], outputs: Sequence[Any], example: dict[str, Array]) -> "Graph":
        """Of PyTensor's variables: those of the values, and what is computed from them, tried with an example."""
        data = {}
        for one in graph_inputs(outputs):
            if isinstance(one, SharedVariable | Constant):
                number = np.asarray(one.get_value() if isinstance(one, SharedVariable) else one.data)
                if number.size > LARGEST_SHAPE and number.dtype != bool:  # masks decide on shapes too
                    data[one] = number
        made = cls._of(values, outputs, data)
        try:
            jax.eval_shape(made, example)
        except (TypeError, IndexError):  # data decide on shapes: they stay inside of the program
            made = cls._of(values, outputs, {})
        return made

    @classmethod
    def _of(cls, values: Sequence[Any], outputs: Sequence[Any], data: dict[Any, np.ndarray]) -> "Graph":
        from pymc.sampling.jax import get_jaxified_graph  # sets the precision of JAX: not before it is needed

        places: dict[Any, Any] = {one: one.type() for one in data}
        graph: Any = clone_replace(list(outputs), places)
        function: Any = get_jaxified_graph([*values, *places.values()], graph)
        return cls(function, tuple(map(jnp.asarray, data.values())))

    def __call__(self, values: dict[str, Array]) -> list[Array]:
        """Of the values by name."""
        return list(self.function(*values.values(), *self.given))


class PyMCPrior(AbstractPrior):
    """Log densities of the latents of a PyMC model, its potentials, and the Jacobians of its transforms.

    Args:
        graph: of one number.
        unflatten: from the flat latent to values by name.
    """

    graph: Graph
    unflatten: Callable[[Array], dict[str, Array]] = eqx.field(static=True)

    def log_prob(self, z: Float[Array, "latent"]) -> Float[Array, ""]:
        return jnp.reshape(self.graph(self.unflatten(z))[0], ())

    def quadratic(self, like: Float[Array, "latent"]) -> None:
        return None


class PyMCModel(AbstractModel):
    """A PyMC model in its unconstrained coordinates, made by `from_pymc`.

    Args:
        data: numbers of the rows: elements of the first axis of each observed variable, one after the other.
        prior: log densities of the latents, with potentials and Jacobians.
        likelihood: log densities of the observed variables, one array for each.
        shown: latents as the user reads them, and deterministic variables.
        names: of those.
        flat_latent: an example of the flat latent.
        unflatten: to values by name.
        source: the PyMC model.
        known: its dims, coordinates and data when it was read.
    """

    data: Int[Array, "datum"]
    prior: AbstractPrior
    likelihood: Graph
    shown: Graph
    names: tuple[str, ...] = eqx.field(static=True)
    flat_latent: Float[Array, "latent"]
    unflatten: Callable[[Array], dict[str, Array]] = eqx.field(static=True)
    source: pm.Model = eqx.field(static=True)
    known: Labels = eqx.field(static=True)

    @property
    def dim(self) -> int:
        return self.flat_latent.shape[0]

    @property
    def has_independent_rows(self) -> bool:
        return True

    @property
    def labels(self) -> Labels:
        return self.known

    def log_likelihood(self, z: Float[Array, "latent"], batch: PyTree) -> Float[Array, "datum"]:
        parts = [jnp.atleast_1d(part) for part in self.likelihood(self.unflatten(z))]
        rows = jnp.concatenate([jnp.sum(part, axis=tuple(range(1, part.ndim))) for part in parts])
        return rows if batch is self.data else rows[batch]

    def named_log_likelihoods(self, z: Float[Array, "latent"]) -> dict[str, Array]:
        names = [variable.name for variable in _observed(self.source)]
        return dict(zip(names, self.likelihood(self.unflatten(z)), strict=True))

    def data_expansion(self) -> AbstractDataExpansion | None:
        return None

    def unravel(self, z: Float[Array, "latent"]) -> dict[str, Array]:
        return self.unflatten(z)

    def constrain(self, z: Float[Array, "latent"]) -> dict[str, Array]:
        return dict(zip(self.names, self.shown(self.unflatten(z)), strict=True))

    def __repr__(self) -> str:
        """Size of the model in one line."""
        return f"PyMCModel(num_data={self.num_data}, dim={self.dim})"


def from_pymc(model: Any) -> PyMCModel:
    """A quell model from a PyMC model, in PyMC's own coordinates and under its names.

    Log densities are those of PyTensor's JAX backend, and are held against PyMC's own. As PyMC's samplers on JAX do, it
    turns double precision on in JAX where PyTensor's `floatX` is `float64`, and off where it is `float32`.
    `quell.fit(model, key=key)` takes a PyMC model too.

    Args:
        model: all of whose latents are continuous. Data are those that it has now: after `pm.set_data` make another.

    Cost: a minibatch computes all rows; with some hundred thousand of them, write a `quell.Model`.

    Raises:
        ValueError: for discrete latents, for `pm.Minibatch`, and where a log density is not PyMC's own.
    """
    if not isinstance(model, pm.Model):
        raise TypeError(f"`from_pymc` takes a `pymc.Model`, got {model!r}.")
    import pymc.sampling.jax  # noqa: F401 (sets the precision of JAX: before the first array)

    _check_supported(model)
    start = model.initial_point()
    names = sorted(value.name for value in model.value_vars)  # as JAX orders a dict
    values = [next(value for value in model.value_vars if value.name == name) for name in names]
    flat, unflatten = ravel_pytree({name: jnp.asarray(start[name], float) for name in names})
    shown = get_default_varnames(model.unobserved_value_vars, include_transformed=False)
    of_rows: Any = model.logp(vars=_observed(model), sum=False)
    try:
        likelihood = Graph.of(values, of_rows, unflatten(flat))
        prior = Graph.of(values, [model.logp(vars=[*model.free_RVs, *model.potentials])], unflatten(flat))
        of_shown = Graph.of(values, shown, unflatten(flat))
        rows = sum((*one.shape, 1)[0] for one in jax.eval_shape(likelihood, unflatten(flat)))
    except NotImplementedError as error:
        raise ValueError(f"PyTensor has no JAX version of a part of the model: {error}") from error
    read = PyMCModel(
        data=jnp.arange(rows),
        prior=PyMCPrior(prior, unflatten),
        likelihood=likelihood,
        shown=of_shown,
        names=tuple(one.name for one in shown),
        flat_latent=flat,
        unflatten=unflatten,
        source=model,
        known=_labels(model),
    )
    _check_log_density(read)
    return read


def predict(
    result: FitResult, key: Key[Array, ""], inputs: tuple[tuple[Any, ...], dict[str, Any]], *, num: int, batch: int
) -> dict[str, np.ndarray]:
    """Draws of the observed variables, with the data that the PyMC model has now; see `FitResult.predict`."""
    check_key(key)
    check_count("num", num)
    check_count("batch", batch)
    if any(inputs):
        raise TypeError("`predict` of a PyMC model takes no data; call `pymc.set_data` before.")
    model, (posterior_key, noise_key) = result.problem.model, jax.random.split(key)
    assert isinstance(model, PyMCModel)
    draws, found = as_groups(posterior_groups(model, result.sample_flat(posterior_key, num))), []
    seeds = np.random.default_rng(np.asarray(jax.random.bits(noise_key, (4,))))
    for start in range(0, num, batch):
        some = draws.sel(draw=slice(start, start + batch - 1))
        made = pm.sample_posterior_predictive(
            some,
            model=model.source,
            var_names=[rv.name for rv in _observed(model.source)],
            random_seed=int(seeds.integers(2**31)),
            progressbar=False,
        )
        found.append({str(name): one.values[0] for name, one in made["posterior_predictive"].items()})
    return {name: np.concatenate([part[name] for part in found]) for name in found[0]}


def _observed(model: pm.Model) -> list[Any]:
    """The observed variables, each once: `pm.sample_posterior_predictive` of PyMC 5.28 lists them again."""
    return list(dict.fromkeys(model.observed_RVs))


def _log_density_variables(model: pm.Model) -> list[Any]:
    return [*model.free_RVs, *_observed(model), *model.potentials]


def _labels(model: pm.Model) -> Labels:
    """Dims, coordinates and data of a model as they are now."""
    lengths = {name: int(length.eval()) for name, length in model.dim_lengths.items()}
    coords = {
        name: np.arange(lengths[name]) if values is None else np.asarray(values)
        for name, values in model.coords.items()
    }
    dims = {name: tuple(axes) for name, axes in model.named_vars_to_dims.items()}
    return Labels(dims, coords, dict(find_constants(model)), dict(find_observations(model)))


def _check_supported(model: pm.Model) -> None:
    discrete = [rv.name for rv in model.free_RVs if not np.issubdtype(rv.dtype, np.floating)]
    if discrete:
        raise ValueError(
            f"`from_pymc` needs continuous latents, and {discrete[0]!r} is discrete; sum it out, for example with "
            "`pm.Mixture` or `pymc_extras.marginalize`."
        )
    if not model.free_RVs:
        raise ValueError("`from_pymc` needs a model with latents, and all of its variables are observed.")
    if not model.observed_RVs:
        raise ValueError(
            "`from_pymc` needs observed variables; a density of `pymc.sampling.jax.get_jaxified_logp` can be given to "
            "`quell.from_log_density`."
        )
    scaled = [rv.name for rv in _observed(model) if type(rv.owner.op).__name__ == "MinibatchRandomVariable"]
    whole: Any = model.logp(vars=_log_density_variables(model))
    drawn = [one for one in graph_inputs([whole]) if isinstance(one.type, RandomType)]
    if scaled or drawn:
        name = repr(scaled[0]) if scaled else "a variable"
        raise ValueError(
            f"`from_pymc` takes all data, and {name} has a `total_size` or is observed through `pm.Minibatch`; give it "
            "the data themselves: a fit draws minibatches by itself where it needs them."
        )


def _check_log_density(read: PyMCModel) -> None:
    """Hold the log density against PyMC's own, at the start and near it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        density = read.source.compile_logp(  # no compiler of C, and all that is stable
            vars=_log_density_variables(read.source), mode=Mode("py", "fast_run")
        )
    steps = np.linspace(0.0, 1.0, POINTS)[:, None] * np.random.default_rng(0).uniform(-1, 1, (POINTS, read.dim))
    points = read.flat_latent + jnp.asarray(steps, read.flat_latent.dtype)
    ours = np.asarray(tiered_once(jax.vmap(read.log_joint))(points))
    theirs = np.array([density({name: np.asarray(one) for name, one in read.unflatten(z).items()}) for z in points])
    is_known = np.isfinite(theirs)
    if not is_known[0]:
        raise ValueError(f"The log density of the model is {theirs[0]} at its start; see `model.debug()` of PyMC.")
    size = LARGEST_ERROR if points.dtype == jnp.float64 else SINGLE_ERROR
    wrong = is_known & ~(np.abs(ours - theirs) <= size * (1 + np.abs(theirs)))
    if wrong.any():
        at = int(np.argmax(wrong))
        raise ValueError(
            f"The log density on JAX is {ours[at]:.6g}, and PyMC's own {theirs[at]:.6g}; report the model."
        )
