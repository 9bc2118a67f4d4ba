# SPDX-License-Identifier: Apache-2.0
"""Peers: one file `NAME_peer.py` for each library that the benchmark compares with."""

import dataclasses
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

from experiments.bench.problems import BenchProblem
from experiments.bench.runner import Method

PEERS_DIR = Path("experiments/bench/peers")
_SUFFIX = "_peer.py"


@dataclasses.dataclass(frozen=True)
class Peer:
    """A file that could be imported.

    Attributes:
        name: as in `--peers`.
        source: the file's text, so that a changed peer is run again.
        methods: of this library, for a problem; the second argument asks for few settings.
    """

    name: str
    source: str
    methods: Callable[[BenchProblem, bool], list[Method]] = dataclasses.field(repr=False)


def peer_names(folder: Path) -> list[str]:
    """Names of the peers in a folder: `pymc-extras` for `pymc_extras_peer.py`."""
    return [path.name.removesuffix(_SUFFIX).replace("_", "-") for path in sorted(folder.glob(f"*{_SUFFIX}"))]


def load_peer(name: str, folder: Path) -> Peer:
    """Import a peer's file.

    Raises:
        ModuleNotFoundError: where its library is not installed.
    """
    path = folder / f"{name.replace('-', '_')}{_SUFFIX}"
    spec = importlib.util.spec_from_file_location(f"quell_peer_{path.stem}", path)
    assert spec is not None, "the file was found by its name"
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return Peer(name, path.read_text(), module.methods)
