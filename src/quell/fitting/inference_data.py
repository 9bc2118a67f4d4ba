# SPDX-License-Identifier: Apache-2.0
"""A fit for ArviZ: the only file that imports it."""

import importlib.metadata
import warnings
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float

from quell.diagnostics.blocks import named_leaves
from quell.diagnostics.densities import ScoredSample, log_likelihoods
from quell.diagnostics.khat import Khat
from quell.gradient import Gradient
from quell.history import History
from quell.models import AbstractModel
from quell.status import Status
from quell.version import VERSION

AFFORDABLE = 10_000_000
"""Log-likelihoods, samples times data, that are stored without being asked for."""


def to_inference_data(
    sample: ScoredSample,
    khat: Khat,
    gradient: Gradient,
    history: History,
    *,
    facts: dict[str, Any],
    log_likelihood: bool | None,
) -> Any:
    """Groups of ArviZ from a sample and the history of a fit.

    Args:
        sample: latents with their densities.
        khat: of the same sample.
        gradient: of the fit.
        history: of the fit.
        facts: attributes of the fit.
        log_likelihood: whether to store that of each datum; `None` where it is affordable.

    Returns:
        An `InferenceData` of ArviZ before 1.0, a `DataTree` of xarray from then on.
    """
    arviz = _arviz()
    import xarray

    model, latents = gradient.problem.model, sample.latents
    attributes = {
        "inference_library": "quell",
        "inference_library_version": VERSION,
        "khat": khat.value,
        "khat_threshold": khat.threshold,
        **facts,
    }
    groups = {
        "posterior": xarray.Dataset(_posterior(model, latents), _draws(latents)),
        "sample_stats": xarray.Dataset({"lp": _one_chain(sample.log_p), "log_q": _one_chain(sample.log_q)}),
        "fit": _fit(history, gradient),
    }
    if log_likelihood or (log_likelihood is None and latents.shape[0] * model.num_data <= AFFORDABLE):
        groups["log_likelihood"] = xarray.Dataset({"obs": _one_chain(log_likelihoods(model, latents), "datum")})
    groups = {name: group.assign_attrs(attributes) for name, group in groups.items()}
    if _has_data_tree():
        return xarray.DataTree.from_dict(groups)
    return arviz.InferenceData(**groups)


def facts_of(status: Status, seconds: float) -> dict[str, Any]:
    """How a fit ended, as attributes that a file can hold."""
    return {"status": status.name.lower(), "seconds": seconds}


def _posterior(model: AbstractModel, latents: Float[Array, "sample latent"]) -> dict[str, Any]:
    """Constrained values by name; a slash would mean a folder in a file."""
    leaves = named_leaves(jax.vmap(model.constrain)(latents))
    plain = [name.replace("/", ".") for name in leaves]
    names = plain if len(set(plain)) == len(plain) else [name.replace("/", "__") for name in leaves]
    return {
        name: _one_chain(np.asarray(leaf), *(f"{name}_dim_{axis}" for axis in range(leaf.ndim - 1)))
        for name, leaf in zip(names, leaves.values(), strict=True)
    }


def _draws(latents: Float[Array, "sample latent"]) -> dict[str, Any]:
    return {"chain": np.arange(1), "draw": np.arange(latents.shape[0])}


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


def _has_data_tree() -> bool:
    """From its first version on, ArviZ works on xarray's own tree."""
    return int(importlib.metadata.version("arviz").split(".")[0]) >= 1


def _arviz() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # 0.23 announces 1.0 at each import
            import arviz
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "`to_arviz` was called, and ArviZ is not installed. The extra `arviz` was needed. "
            "Type `pip install 'quell[arviz]'`."
        ) from error
    return arviz
