# SPDX-License-Identifier: Apache-2.0
"""Double precision, because the laws are exact; fast compilation, because the programs are small."""

import os

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_backend_optimization_level=0"

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
