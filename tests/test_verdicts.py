# SPDX-License-Identifier: Apache-2.0
"""Claims are judged by planted differences."""

import numpy as np
import pytest

from made_up import COLUMNS, made_up_cells, made_up_figure1, made_up_panels, made_up_sweeps
from quell.paper.verdicts import (
    FAILS,
    HOLDS,
    UNDECIDED,
    Comparison,
    compare,
    figure1_verdicts,
    figure2_verdicts,
    figure3_verdicts,
    figure4_verdicts,
    judge,
    table1_verdicts,
)


def _outcomes(verdicts):
    return [verdict.outcome for verdict in verdicts]


def test_one_clear_contradiction_is_enough_and_one_doubt_leaves_it_open():
    sure, unsure, against = Comparison("a", 4.0, 1.0), Comparison("b", 2.0, 1.0), Comparison("c", -4.0, 1.0)
    assert judge("", "", [sure]).outcome == HOLDS
    assert judge("", "", [sure, unsure]).outcome == UNDECIDED
    assert judge("", "", [sure, unsure, against]).outcome == FAILS
    assert "c -4 ± 1" in judge("", "", [sure, unsure, against]).evidence
    assert judge("", "", [Comparison("tie", -0.5, 0.1, margin=1.0)]).outcome == HOLDS
    assert judge("", "", [Comparison("one run", 100.0, float("nan"))]).outcome == UNDECIDED


def test_comparisons_are_of_the_same_runs_and_not_moved_by_a_bad_one():
    luck = 50 * np.random.default_rng(0).normal(size=40)
    better = luck + 1.0 + 0.01 * np.arange(40)
    assert compare("", better, luck).certainty > 10
    bad = luck.copy()
    bad[3] = -1e6
    assert compare("", better, bad).certainty > 10
    assert not np.isfinite(compare("", better[:1], luck[:1]).error)


def test_the_papers_own_order_is_confirmed():
    assert _outcomes(table1_verdicts(made_up_cells())) == [HOLDS] * 5
    assert _outcomes(figure2_verdicts(made_up_sweeps())) == [HOLDS]
    assert _outcomes(figure3_verdicts(made_up_sweeps())) == [HOLDS] * 3
    assert _outcomes(figure1_verdicts(made_up_figure1())) == [HOLDS]
    assert _outcomes(figure4_verdicts(made_up_panels())) == [HOLDS] * 3


def test_another_order_is_not():
    wrong = {column: COLUMNS[::-1][k] for k, column in enumerate(COLUMNS)}
    assert FAILS in _outcomes(table1_verdicts(made_up_cells(wrong)))
    assert _outcomes(figure2_verdicts(made_up_sweeps(wrong))) == [FAILS]
    assert FAILS in _outcomes(figure3_verdicts(made_up_sweeps(wrong)))
    assert _outcomes(figure1_verdicts(made_up_figure1(backwards=True))) == [FAILS]
    assert FAILS in _outcomes(figure4_verdicts(made_up_panels(backwards=True)))


@pytest.mark.parametrize("columns", [["none"], ["none", "c7"], ["S5", "S6"]])
def test_what_was_not_run_is_not_judged(columns):
    some = [cell for cell in made_up_cells() if cell.variates in columns]
    assert len(table1_verdicts(some)) == (columns == ["S5", "S6"])
    assert len(figure2_verdicts([s for s in made_up_sweeps() if s.variates in columns])) == 0


def test_runs_that_are_not_finite_count_as_bad_ones():
    cells = made_up_cells(lost=["none", "c5"])
    assert table1_verdicts(cells)[0].outcome == HOLDS
    assert table1_verdicts(made_up_cells(lost=["S7"]))[0].outcome == FAILS
