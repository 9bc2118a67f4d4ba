# SPDX-License-Identifier: Apache-2.0
"""Independent experiments in parallel: one process per core."""

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

from experiments.common.experiment import AbstractExperiment
from experiments.common.store import Store

Job = TypeVar("Job")
Outcome = TypeVar("Outcome")


def run_experiments(
    experiments: Sequence[AbstractExperiment[Any]],
    *,
    store: Store | None = None,
    num_workers: int = 1,
    on_done: Callable[[AbstractExperiment[Any]], None] = lambda experiment: None,
) -> list[Any]:
    """Run what is not in the store yet, the longest first, and return all results in the order given.

    Args:
        experiments: of any kinds.
        store: where results are found and kept.
        num_workers: processes that share the work; see `run_jobs`.
        on_done: called with each experiment when its result is available, those found in the store first.
    """
    results: dict[str, Any] = {}
    for experiment in experiments:
        found = None if store is None else store.find(experiment)
        if found is not None:
            results[experiment.fingerprint] = found
            on_done(experiment)
    missing = longest_first([one for one in experiments if one.fingerprint not in results])
    for number, result in run_jobs(_run, missing, num_workers=num_workers):
        experiment = missing[number]
        if store is not None:
            store.keep(experiment, result)
        results[experiment.fingerprint] = result
        on_done(experiment)
    return [results[experiment.fingerprint] for experiment in experiments]


def longest_first(experiments: Sequence[AbstractExperiment[Any]]) -> list[AbstractExperiment[Any]]:
    """The order in which experiments are started, for an even load."""
    return sorted(experiments, key=lambda experiment: experiment.seconds, reverse=True)


def run_jobs(
    function: Callable[[Job], Outcome], jobs: Sequence[Job], *, num_workers: int = 1
) -> Iterator[tuple[int, Outcome]]:
    """Yield the index and the result of each job as it is done.

    Two JAX programs in one process share one thread pool: decompositions and products of the paper's size do not use a
    second core there, and may deadlock. So each worker is a process pinned to a core of its own.

    Args:
        function: of one job; the function, its argument and its result must be picklable.
        jobs: the longest first, for an even load.
        num_workers: processes; 1 runs the jobs in this process. More require the CPU backend, and a main module that
            may be imported (`if __name__ == "__main__":`).
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
        # A worker inside a compiled program does not react to signals, and its partial result is useless.
        for process in list(pool._processes.values()):
            process.terminate()
        raise
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def available_cores() -> int:
    """Cores that this process may use."""
    affinity: Callable[[int], Any] | None = getattr(os, "sched_getaffinity", None)  # not on every platform
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _run(experiment: AbstractExperiment[Any]) -> Any:
    return experiment.run()


def _start_worker(counter: "Synchronized[int]", enable_x64: bool) -> None:
    """Pin this process to the next core before JAX counts its cores; leave Ctrl-C to the parent process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_exit_with_parent, args=(os.getppid(),), daemon=True).start()
    with counter.get_lock():
        number = counter.value
        counter.value += 1
    if hasattr(os, "sched_setaffinity"):  # not on every platform
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[number % len(cores)]})
    jax.config.update("jax_enable_x64", enable_x64)


def _exit_with_parent(parent: int) -> None:
    """Exit when the parent process is gone, however it ended."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)
