# SPDX-License-Identifier: Apache-2.0
"""Claims are decided by planted differences."""

import itertools

import numpy as np
import pytest

from experiments.paper.comparison import FAILS, HOLDS, UNDECIDED, compare, decide
from experiments.paper.verdicts import (
    figure1_verdicts,
    figure2_verdicts,
    figure3_verdicts,
    figure4_verdicts,
    table1_verdicts,
)
from made_up import COLUMNS, made_up_cells, made_up_figure1, made_up_panels, made_up_sweeps


def _outcomes(verdicts):
    return [verdict.outcome for verdict in verdicts]


def _part(certain, margin=0.0):
    """A comparison that is some standard errors away from its line."""
    spread = np.linspace(-1.0, 1.0, 30)
    error = compare("", spread, np.zeros(30)).error
    return compare(f"{certain} errors", spread + certain * error - margin, np.zeros(30), margin)


def test_one_clear_contradiction_is_enough_and_one_doubt_leaves_it_open():
    sure, unsure, against, tie = _part(6), _part(1), _part(-6), _part(0)
    assert decide("", "", [sure]).outcome == HOLDS
    for parts in itertools.permutations([sure, unsure, tie]):
        assert decide("", "", parts).outcome == UNDECIDED
    for parts in itertools.permutations([sure, unsure, against, tie]):
        assert decide("", "", parts).outcome == FAILS
        assert "against it: -6 errors" in decide("", "", parts).evidence
    within = decide("", "", [_part(6), _part(6, margin=10.0)])
    assert within.outcome == HOLDS
    assert "1 of them show no difference" in within.evidence


def test_a_claim_about_many_parts_does_not_fail_by_chance():
    bad = _part(-3.2)
    assert decide("", "", [bad]).outcome == FAILS
    assert decide("", "", [bad] + [_part(6)] * 100).outcome == UNDECIDED


def test_comparisons_are_of_the_same_runs_and_not_moved_by_a_bad_one():
    luck = 50 * np.random.default_rng(0).normal(size=40)
    better = luck + 1.0 + 0.01 * np.arange(40)
    assert compare("", better, luck).p_for < 1e-6
    bad = luck.copy()
    bad[3] = np.nan
    assert compare("", better, bad).p_for < 1e-6
    assert compare("", bad, better).p_against < 1e-6


def test_few_runs_and_lost_runs_decide_nothing():
    few = compare("", np.full(4, 100.0), np.zeros(4))
    assert decide("", "", [few]).outcome == UNDECIDED
    assert "+100 (too few runs)" in decide("", "", [few]).evidence
    lost = np.full(10, np.nan)
    assert compare("", lost, lost) is None
    assert decide("", "", [compare("", np.zeros(10), lost)]).outcome == HOLDS
    assert "all runs lost" in decide("", "", [compare("", lost, np.zeros(10))]).evidence


def test_wrong_verdicts_are_as_rare_as_they_should_be():
    """Ten runs without any difference, with tails heavier than a normal's: about one percent on each side."""
    draws = np.random.default_rng(0).standard_t(4, size=(1500, 10))
    tails = np.array([[part.p_for, part.p_against] for part in (compare("", x, 0 * x) for x in draws)])
    assert np.all((tails < 0.01).mean(axis=0) < 0.02)
    assert np.all((tails < 0.1).mean(axis=0) > 0.06), "and not by never deciding anything"


def test_the_papers_own_order_is_confirmed():
    assert _outcomes(table1_verdicts(made_up_cells())) == [HOLDS] * 5
    assert _outcomes(figure2_verdicts(made_up_sweeps())) == [HOLDS]
    assert _outcomes(figure3_verdicts(made_up_sweeps())) == [HOLDS] * 3
    assert _outcomes(figure1_verdicts(made_up_figure1())) == [HOLDS]
    assert _outcomes(figure4_verdicts(made_up_panels())) == [HOLDS] * 4


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
