# SPDX-License-Identifier: Apache-2.0
"""Double precision, because the laws are exact; fast compilation, because the programs are small."""

import importlib.metadata
import os

FLAGS = ["--xla_backend_optimization_level=0"]
if importlib.metadata.version("jaxlib").startswith("0.10."):  # XLA ends the process at a flag that it does not know
    FLAGS.append("--xla_cpu_use_fusion_emitters=false")
os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *FLAGS])

import jax
import jaxtyping
import pytest

jax.config.update("jax_enable_x64", True)


@pytest.fixture
def key() -> jax.Array:
    return jax.random.key(20181202)


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a user meets: outside the tests nothing checks annotations before our own checks do."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
