# SPDX-License-Identifier: Apache-2.0
"""Options of the compiler: a short compilation, unless the user has asked for another."""

import pytest

from quell.core.compilation import quick_options

LEVEL = "xla_backend_optimization_level"


@pytest.mark.parametrize(("flags", "found"), [("", 1), (f"--{LEVEL}=3", None), ("--xla_cpu_enable_fast_math=false", 1)])
def test_what_the_user_has_set_is_left_as_it_is(flags, found, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", flags)
    assert quick_options.__wrapped__("cpu").get(LEVEL) == found
    assert quick_options.__wrapped__("gpu") == {}


def test_an_option_that_the_compiler_does_not_know_is_left_out(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.setattr("quell.core.compilation._is_known", lambda name, value: name != LEVEL)
    assert LEVEL not in quick_options.__wrapped__("cpu")
