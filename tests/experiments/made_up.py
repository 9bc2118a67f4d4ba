# SPDX-License-Identifier: Apache-2.0
"""Results as the experiments would give them, without running any."""

import numpy as np

from experiments.paper.figure1 import Figure1
from experiments.paper.figure4 import SAMPLE_SIZES, STRENGTHS, Panel
from experiments.paper.sweep import COLUMNS, FACTORS, LEARNING_RATES, Sweep
from experiments.paper.table1 import Cell

NAMES = ("ionosphere", "ionosphere-full", "australian", "sonar")
QUALITY = {"none": 0.0, "S4": 1.0, "c5": 2.0, "S5": 3.0, "S6": 3.5, "c7": 4.0, "S7": 5.0}


def made_up_sweeps(order=None, *, factors=FACTORS, lost=()):
    """Good ensembles stand larger rates and end higher; `order` gives each column the quality of another."""
    sweeps = []
    for name in NAMES:
        luck = np.random.default_rng(1).normal(size=(1, 8, 1))
        for column in COLUMNS:
            quality = QUALITY[column if order is None else order[column]]
            rates = LEARNING_RATES[name] * np.array(factors)
            speed = np.log2(np.array(factors))
            gap = 3.0 * np.minimum(speed + 3.0, 0.0) ** 2 - 4.0 * speed + 8.0 * 2.0 ** (speed - quality + 3.0)
            slow = np.exp(-np.linspace(0.0, 4.0, 51))
            noise = 0.02 * np.random.default_rng(2).normal(size=(len(factors), 8, 51))
            curves = -100.0 - gap[:, None, None] - 300.0 * slow + luck + noise
            if column in lost:
                curves[..., -1] = np.nan
            sweeps.append(Sweep(name, 100, column, rates, 500, curves, -99.0, 1.0))
    return sweeps


def made_up_cells(order=None, *, lost=()):
    """The table's cells."""
    return [Cell.from_sweep(sweep) for sweep in made_up_sweeps(order, factors=(1.0,), lost=lost)]


def made_up_figure1(*, backwards=False):
    """Variances that fall with the ensemble, or rise."""
    steps = np.arange(0, 300, 5)
    sign = 1.0 if backwards else -1.0
    noise = 0.01 * np.random.default_rng(3).normal(size=(len(COLUMNS), steps.size, 10))
    log_variance = np.array([[[sign * 0.3 * QUALITY[column]]] for column in COLUMNS]) + noise
    exact = np.exp(-steps / 100.0)
    return Figure1("australian", steps, 10.0**log_variance + exact[:, None], exact, 100, 1.0)


def made_up_panels(*, backwards=False):
    """Squared norms that fall with M; a tiny v0 costs most with old moments and few evaluations."""
    panels = []
    for dataset, lag, cost in (("2D", 0, 1.0), ("ionosphere", 0, 0.01), ("ionosphere", 10, 1.0)):
        size = np.arange(len(SAMPLE_SIZES))[:, None, None] * (-1.0 if backwards else 1.0)
        strength = np.log10(np.array(STRENGTHS))[None, :, None] + 3.0
        noise = 0.001 * np.random.default_rng(4).normal(size=(len(SAMPLE_SIZES), len(STRENGTHS), 20))
        log_norm = -0.1 * size + 0.1 * np.maximum(strength, 0.0) - 0.05 * cost * np.minimum(strength, 0.0) + noise
        panels.append(Panel(dataset, lag, 10.0**log_norm, 30.0, 0.1, 1.0))
    return panels
