# SPDX-License-Identifier: Apache-2.0
"""Double precision, because the laws are exact; fast compilation, because the programs are small."""

import importlib
import importlib.metadata
import os
import shutil

FLAGS = ["--xla_backend_optimization_level=0"]
if importlib.metadata.version("jaxlib").startswith("0.10."):  # XLA ends the process at a flag that it does not know
    FLAGS.append("--xla_cpu_use_fusion_emitters=false")
os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *FLAGS])
os.environ["JAX_COMPILATION_CACHE_DIR"] = ""  # commands keep nothing in the home of who runs the tests

import jax
import jaxtyping
import pytest

jax.config.update("jax_enable_x64", True)

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
QUIET = ("--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run")


@pytest.fixture
def key() -> jax.Array:
    return jax.random.key(20181202)


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a user meets: outside the tests nothing checks annotations before our own checks do."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.fixture
def on_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fits of models whose structure is not looked at."""
    monkeypatch.setattr(importlib.import_module("quell.fit.method"), "exactly", lambda problem, level: problem)


@pytest.fixture(scope="session")
def browser():
    """A real browser without a window, for the pages that we write."""
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine; install it (Debian: apt-get install chromium) to open the page")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu", *QUIET])
        yield chromium
        chromium.close()
