# SPDX-License-Identifier: Apache-2.0
"""Models from Python files."""

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
    """File and name of `FILE.py:NAME` or `FILE.py`."""
    file, colon, name = text.rpartition(":")
    return (Path(file), name) if colon and file.endswith(".py") else (Path(text), None)


def load_model(text: str, data: Mapping[str, np.ndarray] | None = None) -> AbstractModel:
    """The model in a file, or that a function in it returns for the data.

    A function is called with the arrays by name if it takes these names, else with all of them as one dictionary. It
    returns a quell model, or is a NumPyro model.

    Args:
        text: `FILE.py:NAME`; without a name, the file must have one model, or one function.
        data: arrays by name; `None` if the model has its own.
    """
    file, name = split_target(text)
    names = _run_file(file)
    candidates = _candidates(names)
    name = _only(file, candidates) if name is None else name
    found = candidates.get(name)
    if isinstance(found, AbstractModel):
        if data is not None:
            raise ValueError(
                f"`--data` needs a function of the data, got {name!r} in {file}, a model with its own; leave it out, "
                f"or write `def {name}(data): return quell.Model(...)`."
            )
        return found
    if found is None or (data is None and not _uses_numpyro(names)):
        models = [key for key, value in candidates.items() if data is not None or isinstance(value, AbstractModel)]
        raise ValueError(
            f"The model must be one of {file} ({', '.join(models) or 'it has none'}), got {name!r}; try "
            f"`{name} = quell.Model(...)`."
        )
    with _importing_from(file):
        return _build(file, name, found, data or {}, is_numpyro=_uses_numpyro(names))


def _run_file(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise ValueError(f"The model must be in an existing Python file, got {str(file)!r}; try `model.py:model`.")
    try:
        with _importing_from(file):
            return runpy.run_path(str(file), run_name=_RUN_NAME)
    except (Exception, SystemExit) as error:
        raise ValueError(f"{file} cannot be run ({type(error).__name__}: {error}); try `python {file}`.") from error


@contextlib.contextmanager
def _importing_from(file: Path) -> Iterator[None]:
    """Let a file import from its folder, as `python FILE` does."""
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
    raise ValueError(
        f"A file without `:MODEL` must have one model or one function, got {file} with {', '.join(models) or 'none'}; "
        f"try `{file}:{models[0] if models else 'model'}`."
    )


def _build(
    file: Path, name: str, function: Callable[..., Any], data: Mapping[str, np.ndarray], *, is_numpyro: bool
) -> AbstractModel:
    """Call a function with the data, by name or as one dictionary."""
    takes = inspect.signature(function)
    by_name = _binds(takes, **data)
    if not by_name and not _binds(takes, data):
        raise ValueError(
            f"{name}{takes} in {file} must take the arrays by name or as one dictionary, got "
            f"{', '.join(data) or 'no data file'}; try `def {name}({', '.join(data) or 'data'})`."
        )
    try:
        made = function(**data) if by_name else function(dict(data))
    except Exception as error:
        if not is_numpyro:
            raise ValueError(
                f"{name} in {file} cannot be called with the data ({type(error).__name__}: {error})."
            ) from error
        made = None  # a NumPyro model fails outside of its handlers
    if isinstance(made, AbstractModel):
        return made
    if is_numpyro:
        return quell.from_numpyro(lambda arrays: function(**arrays) if by_name else function(arrays), dict(data))
    raise ValueError(
        f"{name} in {file} must return a quell model, got {made!r}; try "
        "`return quell.logistic_regression(features, labels)`."
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
