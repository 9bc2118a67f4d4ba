# SPDX-License-Identifier: Apache-2.0
"""Seconds of the stages of a run, and of JAX's tracing and compilation."""

import time
from typing import Any

import jax


class Stopwatch:
    """Measures stages until it is stopped."""

    def __init__(self) -> None:
        """Start, and listen to JAX's compilation events."""
        jax.monitoring.register_event_duration_secs_listener(self._on_event)
        self.restart()

    def restart(self) -> None:
        """Begin anew, for another fit in this process."""
        self.stages: dict[str, float] = {}
        self.total: float | None = None
        self._events: dict[str, list[float]] = {}
        self._began = self._last = time.perf_counter()
        self._cpu_began = self._cpu_last = time.process_time()

    def mark(self, stage: str) -> None:
        """End a stage."""
        now, cpu = time.perf_counter(), time.process_time()
        self.stages[f"seconds_{stage}"] = round(now - self._last, 4)
        self.stages[f"cpu_{stage}"] = round(cpu - self._cpu_last, 4)
        self._last, self._cpu_last = now, cpu

    def stop(self) -> None:
        """End of all that is timed; a second call does nothing."""
        if self.total is None:
            self.total = round(time.perf_counter() - self._began, 4)
            self.stages["cpu_total"] = round(time.process_time() - self._cpu_began, 4)

    def record(self) -> dict[str, Any]:
        """Stages, and seconds and number of JAX's compilations."""
        jax_seconds = {f"jax_{name}": round(sum(seconds), 3) for name, seconds in self._events.items()}
        return {**self.stages, **jax_seconds, "jax_programs": len(self._events.get("backend_compile", []))}

    def _on_event(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
        if self.total is None and "/compile/" in event:
            name = event.rsplit("/", 1)[1].removesuffix("_duration")
            self._events.setdefault(name, []).append(duration_secs)
