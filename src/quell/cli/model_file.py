# SPDX-License-Identifier: Apache-2.0
"""Models from the user's own Python files."""

import contextlib
import inspect
import runpy
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import quell
from quell.models import AbstractModel

_RUN_NAME = "<quell>"


def split_target(text: str) -> tuple[Path, str | None]:
    """`FILE.py:NAME` or `FILE.py`, taken apart."""
    file, colon, name = text.rpartition(":")
    return (Path(file), name) if colon and file.endswith(".py") else (Path(text), None)


def load_model(text: str, data: Mapping[str, np.ndarray] | None = None) -> AbstractModel:
    """The model that a file holds, or that its function makes of the data.

    A function is called with the arrays by name if it takes these names, else with all of them as one dictionary. It
    returns a model of quell, or has NumPyro's primitives in it.

    Args:
        text: `FILE.py:NAME`; without a name, the file must hold one model, or one function.
        data: arrays by name; `None` where the model brings its own.
    """
    file, name = split_target(text)
    names = _run_file(file)
    candidates = _candidates(names)
    name = _only(file, candidates) if name is None else name
    found = candidates.get(name)
    if isinstance(found, AbstractModel):
        if data is not None:
            raise ValueError(
                f"Data were given for {name!r} in {file}, a model that holds its own. A function of the data was "
                f"needed. Leave the data out, or write `def {name}(data): return quell.Model(...)`."
            )
        return found
    if found is None or (data is None and not _uses_numpyro(names)):
        models = [key for key, value in candidates.items() if data is not None or isinstance(value, AbstractModel)]
        known = f"It has {', '.join(models)}" if models else "It has none"
        raise ValueError(f"{file} has no model named {name!r}. {known}. Write for example `{name} = quell.Model(...)`.")
    with _importing_from(file):
        return _build(file, name, found, data or {}, is_numpyro=_uses_numpyro(names))


def _run_file(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise ValueError(
            f"The file {str(file)!r} was not found. A Python file was needed. Type for example `model.py:model`."
        )
    try:
        with _importing_from(file):
            return runpy.run_path(str(file), run_name=_RUN_NAME)
    except (Exception, SystemExit) as error:
        raise ValueError(
            f"{file} could not be run ({type(error).__name__}: {error}). A file that defines a model was needed. "
            f"Try `python {file}` first."
        ) from error


@contextlib.contextmanager
def _importing_from(file: Path) -> Iterator[None]:
    """Let a file import its neighbours, as `python FILE` would."""
    folder = str(file.resolve().parent)
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


def _candidates(names: Mapping[str, Any]) -> dict[str, Any]:
    """Models, and functions that the file itself defines."""
    return {
        name: value
        for name, value in names.items()
        if isinstance(value, AbstractModel)
        or (inspect.isfunction(value) and value.__module__ == _RUN_NAME and not name.startswith("_"))
    }


def _only(file: Path, candidates: Mapping[str, Any]) -> str:
    models = [name for name, value in candidates.items() if isinstance(value, AbstractModel)] or list(candidates)
    if len(models) == 1:
        return models[0]
    found = f"it has {', '.join(models)}" if models else "it has no model and no function"
    raise ValueError(
        f"{file} was given without a name, and {found}. One model, or one function that makes one, was needed. "
        f"Type for example `{file}:{models[0] if models else 'model'}`."
    )


def _build(
    file: Path, name: str, function: Callable[..., Any], data: Mapping[str, np.ndarray], *, is_numpyro: bool
) -> AbstractModel:
    """Call a function with the data, in the way that it takes them."""
    takes = inspect.signature(function)
    by_name = _binds(takes, **data)
    if not by_name and not _binds(takes, data):
        raise ValueError(
            f"{name}{takes} in {file} was given the arrays {', '.join(data) or 'of no data file'}. A function of these "
            f"names, or of one dictionary, was needed. Write for example `def {name}({', '.join(data) or 'data'})`."
        )
    try:
        made = function(**data) if by_name else function(dict(data))
    except Exception as error:
        if not is_numpyro:
            raise ValueError(
                f"{name} in {file} could not be called ({type(error).__name__}: {error}). A function that makes a "
                "model of the data was needed. Call it in Python first."
            ) from error
        made = None  # as a NumPyro model does outside of its handlers
    if isinstance(made, AbstractModel):
        return made
    if is_numpyro:
        return quell.from_numpyro(lambda arrays: function(**arrays) if by_name else function(arrays), dict(data))
    raise ValueError(
        f"{name} in {file} returned {made!r}. A model of quell was needed. "
        "Write for example `return quell.logistic_regression(features, labels)`."
    )


def _binds(takes: inspect.Signature, *args: Any, **kwargs: Any) -> bool:
    try:
        takes.bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def _uses_numpyro(names: Mapping[str, Any]) -> bool:
    """Whether the file imports NumPyro or something of it."""
    homes = [
        value.__name__ if isinstance(value, ModuleType) else str(getattr(value, "__module__", ""))
        for value in names.values()
    ]
    return any(home.partition(".")[0] == "numpyro" for home in homes)
