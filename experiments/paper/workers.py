# SPDX-License-Identifier: Apache-2.0
"""Independent experiments side by side: one process for each core."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing.sharedctypes import Synchronized
from typing import Any, TypeVar

import jax

Job = TypeVar("Job")
Result = TypeVar("Result")


def run_jobs(
    function: Callable[[Job], Result], jobs: Sequence[Job], *, num_workers: int = 1
) -> Iterator[tuple[int, Result]]:
    """Yield the number and the result of each job as it is done.

    Two programs in one process would share one pool of threads, where decompositions and products of the paper's size
    cannot use a second core, and may wait for each other for ever. So each worker is a process with a core of its own.

    Args:
        function: of one job; importable by name, and so are its argument and its result.
        jobs: the longest first, for an even load.
        num_workers: processes; 1 runs the jobs here, one after the other. More need the CPU backend, and a main
            module that may be imported (`if __name__ == "__main__":`).
    """
    if num_workers <= 1 or len(jobs) <= 1 or jax.default_backend() != "cpu":
        for number, job in enumerate(jobs):
            yield number, function(job)
        return
    context = multiprocessing.get_context("spawn")
    arguments = (context.Value("i", 0), bool(jax.config.read("jax_enable_x64")))
    pool = ProcessPoolExecutor(min(num_workers, len(jobs)), context, initializer=_start_worker, initargs=arguments)
    try:
        futures = {pool.submit(function, job): number for number, job in enumerate(jobs)}
        for future in as_completed(futures):
            yield futures[future], future.result()
    except BaseException:
        # A worker in the middle of a program would not listen, and its half of a result is of no use.
        for process in list(pool._processes.values()):
            process.terminate()
        raise
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def available_cores() -> int:
    """Cores that this process may use."""
    affinity: Callable[[int], Any] | None = getattr(os, "sched_getaffinity", None)  # not on every platform
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _start_worker(counter: "Synchronized[int]", enable_x64: bool) -> None:
    """Take the next core, before JAX counts the cores it may use; leave Ctrl-C to the process that started us."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_leave_with_parent, args=(os.getppid(),), daemon=True).start()
    with counter.get_lock():
        number = counter.value
        counter.value += 1
    if hasattr(os, "sched_setaffinity"):  # not on every platform
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[number % len(cores)]})
    jax.config.update("jax_enable_x64", enable_x64)


def _leave_with_parent(parent: int) -> None:
    """End this process when the one that started it is gone, however it went."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)
