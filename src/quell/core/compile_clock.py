# SPDX-License-Identifier: Apache-2.0
"""The seconds that JAX takes to trace and compile."""

import collections
import contextlib
import time
from collections.abc import Iterator

import jax

_MOST_INNER = 4096
"""Traces within one that are told apart; beyond, some seconds are counted twice."""


class CompileClock:
    """Adds up the seconds of tracing, lowering and compiling of this process, each once where one is within another.

    JAX tells of each when it ends: one that began before those that ended last contains them.

    Attributes:
        seconds: so far.
        is_running: whether a call is under way that may compile, by `compiling`.
    """

    def __init__(self) -> None:
        """Listen to JAX from now on."""
        self.seconds, self.is_running = 0.0, False
        self._ended: collections.deque[tuple[float, float]] = collections.deque(maxlen=_MOST_INNER)
        jax.monitoring.register_event_duration_secs_listener(self._on_event)

    @contextlib.contextmanager
    def compiling(self) -> Iterator[None]:
        """Around a call that may compile."""
        before, self.is_running = self.is_running, True
        try:
            yield
        finally:
            self.is_running = before

    def _on_event(self, event: str, duration_secs: float, **_: str | int) -> None:
        if "/compile/" not in event:
            return
        began = time.perf_counter() - duration_secs
        while self._ended and self._ended[-1][0] >= began:
            self.seconds -= self._ended.pop()[1]
        self._ended.append((began, duration_secs))
        self.seconds += duration_secs


COMPILE_CLOCK = CompileClock()
