# SPDX-License-Identifier: Apache-2.0
"""Compiled programs on disk: where they are, how many, and that another process finds them."""

import os
import subprocess
import sys

import jax
import pytest
from typer.testing import CliRunner

import quell
from quell.cli.app import app
from quell.core.compiled_folder import PROGRAMS, cache_folder

SETTINGS = (
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_min_entry_size_bytes",
)

FIT = """
import sys
import jax
import jax.numpy as jnp
import quell

hits = []
jax.monitoring.register_event_listener(lambda event, **about: hits.append(event) if "cache_hits" in event else None)
jax.jit(lambda x: x + 1)(1.0)  # something is compiled before, with no folder and with another one
quell.keep_compiled(sys.argv[1] + "-other")
jax.jit(lambda x: x + 2)(1.0)
quell.keep_compiled(sys.argv[1])
before = len(hits)
print(float(jax.jit(lambda x: jnp.sin(x) ** 2)(0.5)), len(hits) - before)
"""


@pytest.fixture
def settings(monkeypatch, tmp_path):
    """Put back after a test, with a home of its own."""
    before = {name: getattr(jax.config, name) for name in SETTINGS}
    jax.config.update("jax_compilation_cache_dir", None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    yield
    for name, value in before.items():
        jax.config.update(name, value)


def run(folder):
    done = subprocess.run([sys.executable, "-c", FIT, str(folder)], capture_output=True, text=True, check=True)
    value, hits = done.stdout.split()
    return float(value), int(hits)


def test_another_process_finds_what_was_compiled(tmp_path):
    folder = tmp_path / "programs"
    first, second = run(folder), run(folder)
    assert first[0] == second[0]
    assert first[1] == 0 < second[1]
    programs = list(folder.glob(PROGRAMS))
    assert programs
    for program in programs:
        program.write_bytes(program.read_bytes()[:-20])  # as a process that was killed leaves it
    assert run(folder)[0] == first[0]


@pytest.mark.usefixtures("settings")
def test_the_oldest_programs_are_deleted(tmp_path):
    """And nothing else: the folder may be one in which the user has data."""
    (tmp_path / "data.npy").write_bytes(bytes(10_000))
    for number in range(4):
        (tmp_path / f"{number}-cache").write_bytes(bytes(100))
        os.utime(tmp_path / f"{number}-cache", (number, number))
    assert quell.keep_compiled(tmp_path, max_bytes=250) == tmp_path
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2-cache", "3-cache", "data.npy"]
    with pytest.raises(ValueError, match="max_bytes"):
        quell.keep_compiled(tmp_path, max_bytes=-1)


@pytest.mark.usefixtures("settings")
def test_commands_have_a_folder_of_their_own(tmp_path, monkeypatch):
    assert CliRunner().invoke(app, ["--no-compiled", "version"]).exit_code == 0
    assert jax.config.jax_compilation_cache_dir is None
    assert CliRunner().invoke(app, ["version"]).exit_code == 0
    assert jax.config.jax_compilation_cache_dir == str(cache_folder() / "compiled")
    assert (tmp_path / "quell" / "compiled").is_dir()
    jax.config.update("jax_compilation_cache_dir", None)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    refused = CliRunner().invoke(app, ["version"])
    assert refused.exit_code == 0
    assert "are not kept" in refused.output
