# SPDX-License-Identifier: Apache-2.0
"""Results for ArviZ."""

import importlib.metadata
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from quell.core.checks import check_count, check_key
from quell.core.version import VERSION
from quell.diagnostics.densities import log_likelihoods
from quell.diagnostics.khat import khat_of
from quell.diagnostics.pareto import LEAST
from quell.diagnostics.summary import named_leaves
from quell.fit.history import History
from quell.fit.result import FitResult
from quell.gradient import Gradient
from quell.models import AbstractModel

AFFORDABLE = 10_000_000
"""Number of log-likelihoods, samples times data, that are stored by default."""

AT_ONCE = 1_000_000
"""Of them that are computed at once, where they have names."""


def to_arviz(
    result: FitResult,
    key: Key[Array, ""],
    num: int,
    *,
    log_likelihood: bool | None = None,
    corrected: bool | None = None,
) -> Any:
    """ArviZ groups with the samples and the history of a fit; `FitResult.to_arviz` documents them."""
    check_key(key)
    check_count("num", num, least=LEAST)
    _arviz()
    import xarray

    corrected = result.corrects if corrected is None else corrected
    sample, model = result.scored_sample(key, num, corrected=corrected), result.problem.model
    khat = result.final_khat if corrected else khat_of(sample, result.problem.family)
    densities = {"lp": sample.log_p} | ({} if corrected else {"log_q": sample.log_q})
    attributes = {
        "inference_library": "quell",
        "inference_library_version": VERSION,
        "khat": khat.value,
        "khat_threshold": khat.threshold,
        "corrected": int(corrected),
        "status": result.status.name.lower(),
        "seconds": result.seconds.total,
    }
    stores = log_likelihood or (log_likelihood is None and num * _num_log_likelihoods(model) <= AFFORDABLE)
    groups = {
        **posterior_groups(model, sample.latents, log_likelihood=stores),
        "sample_stats": xarray.Dataset({name: _one_chain(one) for name, one in densities.items()}),
        "fit": _fit(result.history, result.gradient),
    }
    return as_groups({name: group.assign_attrs(attributes) for name, group in groups.items()})


def as_groups(groups: dict[str, Any]) -> Any:
    """An object of the version of ArviZ that is installed."""
    arviz = _arviz()
    import xarray

    if int(importlib.metadata.version("arviz").split(".")[0]) >= 1:  # which works on xarray's own tree
        return xarray.DataTree.from_dict(groups)
    return arviz.InferenceData(**groups)


def posterior_groups(
    model: AbstractModel, latents: Float[Array, "sample latent"], *, log_likelihood: bool = False
) -> dict[str, Any]:
    """Values by name, where a slash, which means a group in a file, is replaced; and inputs and data of the model."""
    import xarray

    labels, leaves = model.labels, named_leaves(jax.vmap(model.constrain)(latents))
    plain = [name.replace("/", ".") for name in leaves]
    names = plain if len(set(plain)) == len(plain) else [name.replace("/", "__") for name in leaves]

    def axes(name: str, rank: int, shown: str) -> tuple[str, ...]:
        return labels.dims.get(name) or tuple(f"{shown}_dim_{axis}" for axis in range(rank))

    def dataset(variables: dict[str, tuple[tuple[str, ...], np.ndarray]]) -> Any:
        used = {axis for dims, _ in variables.values() for axis in dims}
        return xarray.Dataset(variables, {axis: labels.coords[axis] for axis in used if axis in labels.coords})

    pairs = zip(names, leaves.items(), strict=True)
    posterior = dataset({
        shown: _one_chain(np.asarray(leaf), *axes(name, leaf.ndim - 1, shown)) for shown, (name, leaf) in pairs
    })  # fmt: skip
    groups = {"posterior": posterior.assign_coords(chain=np.arange(1), draw=np.arange(latents.shape[0]))}
    for group, values in {"constant_data": labels.constants, "observed_data": labels.observed}.items():
        if values:
            groups[group] = dataset({name: (axes(name, np.ndim(one), name), one) for name, one in values.items()})
    if log_likelihood:
        named = {} if _shapes(model) is None else _named_log_likelihoods(model, latents)
        by_name = {  # without the axes of an event, which are the last ones
            name: _one_chain(one, *axes(name, one.ndim - 1, name)[: one.ndim - 1]) for name, one in named.items()
        }
        of_rows = {} if named else {"obs": _one_chain(log_likelihoods(model, latents), "datum")}
        groups["log_likelihood"] = dataset(by_name | of_rows)
    return groups


def _num_log_likelihoods(model: AbstractModel) -> int:
    """Of one sample."""
    shapes = _shapes(model)
    return model.num_data if shapes is None else sum(one.size for one in shapes.values())


def _shapes(model: AbstractModel) -> dict[str, jax.ShapeDtypeStruct] | None:
    return jax.eval_shape(model.named_log_likelihoods, jax.eval_shape(lambda: jnp.zeros(model.dim)))


def _named_log_likelihoods(model: AbstractModel, latents: Float[Array, "sample latent"]) -> dict[str, np.ndarray]:
    batch = max(1, AT_ONCE // _num_log_likelihoods(model))
    return jax.tree.map(np.asarray, jax.lax.map(model.named_log_likelihoods, latents, batch_size=batch))


def _one_chain(values: np.ndarray, *dims: str) -> tuple[tuple[str, ...], np.ndarray]:
    return ("chain", "draw", *dims), values[None]


def _fit(history: History, gradient: Gradient) -> Any:
    import xarray

    axis = "weight" if gradient.rule.by_leaf else "variate"
    values = {
        "elbo": ("step", history.elbo),
        "base_sq_norm": ("step", history.base_sq_norm),
        "combined_sq_norm": ("step", history.combined_sq_norm),
        "weights": (("step", axis), history.weights),
        "skipped": ("step", history.skipped),
    }
    return xarray.Dataset(values, {axis: np.array(gradient.weight_names, object).astype(str)})


def _arviz() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # 0.23 announces 1.0 at each import
            import arviz
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("`to_arviz` needs ArviZ; try `pip install 'quell[arviz]'`.") from error
    return arviz
