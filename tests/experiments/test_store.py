# SPDX-License-Identifier: Apache-2.0
"""Results of experiments are kept, found again, and computed once."""

import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from experiments.common.experiment import AbstractExperiment
from experiments.common.store import Store
from experiments.common.workers import longest_first, run_experiments
from experiments.paper.figure1 import Figure1Experiment
from experiments.paper.figure4 import PanelExperiment, artificial_dataset
from experiments.paper.sweep import SweepExperiment
from quell.paper.datasets import Dataset
from tolerances import PATIENCE

RAN: list[str] = []


@dataclasses.dataclass(frozen=True)
class Outcome:
    title: str
    number: int
    share: float
    values: np.ndarray


@dataclasses.dataclass(frozen=True)
class Toy(AbstractExperiment[Outcome]):
    result_type: ClassVar[type] = Outcome

    dataset: Dataset
    size: int = 1
    breaks: bool = False

    @property
    def name(self):
        return f"Toy {self.dataset.name}/{self.size}"

    @property
    def seconds(self):
        return float(self.size)

    def run(self):
        RAN.append(self.name)
        if self.breaks:
            raise KeyboardInterrupt
        return Outcome(self.name, self.size, 0.5, np.array([[1.0, np.nan, -np.inf]]))


@pytest.fixture(autouse=True)
def nothing_ran():
    RAN.clear()


def test_a_result_comes_back_as_it_was(tmp_path):
    toy, store = Toy(artificial_dataset()), Store(tmp_path / "cells")
    assert store.find(toy) is None
    assert not store.folder.exists(), "looking makes nothing"
    store.keep(toy, toy.run())
    found, truth = store.find(toy), toy.run()
    assert found is not None
    assert (found.title, found.number, found.share) == (truth.title, truth.number, truth.share)
    np.testing.assert_array_equal(found.values, truth.values)
    assert [path.name.startswith("toy-2d-1-") for path in store.folder.iterdir()] == [True], "one file, no rests"


@pytest.mark.parametrize("damage", ["empty", "text", "cut off", "a flipped byte"])
def test_a_damaged_file_counts_as_missing(tmp_path, damage):
    toy, store = Toy(artificial_dataset()), Store(tmp_path)
    store.keep(toy, toy.run())
    path = next(tmp_path.iterdir())
    whole = path.read_bytes()
    flipped = [whole[:k] + bytes([whole[k] ^ 255]) + whole[k + 1 :] for k in range(0, len(whole), 7)]
    for broken in {"empty": [b""], "text": [b"not a zip file"], "cut off": [whole[:100]], "a flipped byte": flipped}[
        damage
    ]:
        path.write_bytes(broken)
        assert store.find(toy) is None
    path.write_bytes(b"")
    run_experiments([toy], store=store)
    assert store.find(toy) is not None


def test_an_interrupted_run_goes_on_with_what_is_missing(tmp_path):
    data, store = artificial_dataset(), Store(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run_experiments([Toy(data, 1), Toy(data, 2, breaks=True), Toy(data, 3)], store=store)
    assert RAN == ["Toy 2D/3", "Toy 2D/2"], "the longest first"
    RAN.clear()
    done = []
    results = run_experiments([Toy(data, 1), Toy(data, 2), Toy(data, 3)], store=store, on_done=done.append)
    assert RAN == ["Toy 2D/2", "Toy 2D/1"]
    assert [result.number for result in results] == [1, 2, 3], "in the order asked for"
    assert [one.size for one in done] == [3, 2, 1]


def test_the_fingerprint_tells_settings_data_and_kinds_apart():
    data = artificial_dataset()
    moved = Dataset(data.name, data.features + 1e-12, data.labels)
    some = [
        SweepExperiment(data, "none"),
        SweepExperiment(data, "c7"),
        SweepExperiment(data, "none", num_runs=11),
        SweepExperiment(data, "none", seed=1),
        SweepExperiment(data, "none", factors=(1.0,)),
        SweepExperiment(moved, "none"),
        PanelExperiment(data),
        PanelExperiment(data, lag=10),
        Figure1Experiment(data),
    ]
    assert len({one.fingerprint for one in some}) == len(some)
    assert SweepExperiment(artificial_dataset(), "none").fingerprint == some[0].fingerprint
    assert longest_first(some[:2]) == [some[1], some[0]]


@pytest.mark.slow
def test_an_interrupt_ends_all_workers_at_once(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import signal, time\n"
        "from experiments.common.workers import run_jobs\n"
        "if __name__ == '__main__':\n"
        "    signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's background jobs ignore it
        "    for number, _ in run_jobs(time.sleep, [0.0, 1e6, 1e6], num_workers=2):\n"
        "        print('done', flush=True)\n"
    )
    process = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "done\n"
    os.killpg(process.pid, signal.SIGINT)
    process.stdout.read()
    assert process.wait(timeout=PATIENCE) != 0
    process.stdout.close()
