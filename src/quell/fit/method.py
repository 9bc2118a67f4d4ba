# SPDX-License-Identifier: Apache-2.0
"""`variates="auto"`: the rule that chooses the gradient of a fit."""

from typing import NamedTuple

from jaxtyping import Array, Key

from quell.data.access import on_disk
from quell.estimators import ClosedForm
from quell.estimators.smoothness import has_no_kinks
from quell.evaluation import Problem, Sampler, exactly, has_one_optimum, row_by_row
from quell.fit.algorithm import Algorithm
from quell.fit.choice import Choice
from quell.fit.common_draws import MOST_PARAMS, CommonDraws, ExactElbo
from quell.fit.defaults import NATURAL_REPLICATES, default_optimizer, default_rule, default_sampler
from quell.fit.natural_gradient import has_natural_gradient, is_natural
from quell.fit.newton import Newton
from quell.fit.options import FitOptions
from quell.fit.starts import MOST_STARTS
from quell.fit.warm_start import warm_start_rows
from quell.gradient import BaseGradient, Gradient, candidate_variates, default_base
from quell.terms import Data, Variational

EXACT = BaseGradient(ClosedForm(full_data=True), ClosedForm(), ClosedForm())
"""No noise at all: the closed form of every term, on all data."""

LARGEST_EXACT = 20_000
"""With more data than this only natural-gradient steps, which are few, see all of them at each step."""


class Method(NamedTuple):
    """How a fit steps.

    Args:
        algorithm: gradient and optimiser, or Newton steps.
        choice: the record of what was chosen; `None` where the variates were given.
        warm_start: number of rows of the warm start; `None` for no warm start.
    """

    algorithm: Algorithm | Newton
    choice: Choice | None
    warm_start: int | None = None


def choose(
    options: FitOptions,
    problem: Problem,
    key: Key[Array, "*fit"],
    level: int | None = 0,
    *,
    may_take_newton: bool = True,
) -> Method:
    """The method of a fit; what is not given is chosen by rule.

    1. Where every term has a closed form on all data, and steps or data are few, the gradient is exact.
    2. Where the program of the model shows the expectation of every addend, Newton steps for the exact ELBO.
    3. Otherwise, for a Gaussian family and data of which some draws see all in little time, Newton steps on common
       random numbers.
    4. Otherwise sampled gradients with the default variates.

    The choice is a function of the model, the family, the options and the key: nothing is timed.

    Args:
        options: of the fit.
        problem: model and family.
        key: of the fit; several keys for several fits, which share one choice.
        level: of the nodes of exact expectations, 0 for the first; `None` where these were found wanting.
        may_take_newton: whether Newton steps were not found wanting.
    """
    problem = row_by_row(problem) if _asks_for_expectations(options) else problem
    model, is_auto, given = problem.model, options.variates == "auto", options.optimizer
    natural = has_natural_gradient(problem.family) if given is None else is_natural(given)
    rule = options.rule or default_rule(problem, natural=natural, is_auto=is_auto)
    is_free = is_auto and options.sampler is None and options.base is None
    has_closed_form = is_free and is_exact_for(problem)
    may_start = has_closed_form and has_natural_gradient(problem.family)
    rows = warm_start_rows(problem, num_fits=key.size) if may_start else None
    begins = "" if rows is None else f" It begins with a warm start on {rows} random data."

    gave_up = not may_take_newton

    def method(gradient: Gradient, choice: Choice | None, rows: int | None = None) -> Method:
        exact = choice is not None and choice.exact
        optimizer = given or default_optimizer(problem, options.steps, exact=exact, anneals=gave_up and not exact)
        return Method(Algorithm(gradient, optimizer), choice, rows)

    def starts(known: Problem) -> int:
        return MOST_STARTS if options.params is None and not has_one_optimum(known) else 1

    is_small = not on_disk(model.data) and problem.family.num_params <= MOST_PARAMS
    is_default = is_free and given is None and options.rule is None and options.average_from is None
    is_alone = key.ndim == 0
    may_take_newton &= is_default and natural and is_small
    if has_closed_form and (natural or model.num_data <= LARGEST_EXACT):
        reason = "Every term has a closed form on all data: the gradient is exact, and there is no noise to remove."
        gradient, choice = Gradient(problem, base=EXACT, rule=rule), Choice("exact", (), reason + begins)
        if may_take_newton and rows is None:
            newton = Newton(gradient, ExactElbo(problem, is_alone), options.tolerance, starts(problem))
            return Method(newton, choice)
        return method(gradient, choice, rows)
    may_read = may_take_newton and options.mesh is None  # what is read lies on one device
    exact = problem if level is None or not may_read else exactly(problem, level)
    if exact.expectation is not None:
        reason = "Every addend sees few linear functions of the latent: the gradient is exact."
        gradient = Gradient(exact, base=default_base(problem), sampler=Sampler(NATURAL_REPLICATES), rule=rule)
        newton = Newton(gradient, ExactElbo(exact, is_alone), options.tolerance, starts(exact))
        return Method(newton, Choice("exact", (), reason))
    draws = CommonDraws.of(problem, is_alone=is_alone) if may_take_newton else None
    if draws is not None:
        reason = "Newton steps on common random numbers: some draws see all data in little time."
        gradient = Gradient(problem, base=default_base(problem), sampler=Sampler(2 * draws.pairs), rule=rule)
        gives_up = options.checkpoint is None  # which has no place for the fit that would take over
        newton = Newton(gradient, draws, options.tolerance, starts(problem), gives_up)
        return Method(newton, Choice("common draws", (), reason))
    sampler = options.sampler or default_sampler(problem, natural=natural)
    base = options.base or default_base(problem)
    if not is_auto:
        return method(Gradient(problem, options.variates, base=base, sampler=sampler, rule=rule), None)
    variates = candidate_variates(problem, sampler)
    # On all data a quadratic costs more than the samples that have as little variance.
    if not (natural or sampler.batch_size is not None or not problem.family.transports):
        variates = tuple(variate for variate in variates if isinstance(variate.term, Variational))
    names = tuple(variate.name for variate in variates)
    reason = f"Sampled gradients: {' + '.join(['base', *names])}.{begins}"
    gradient = Gradient(problem, variates, base=base, sampler=sampler, rule=rule)
    return method(gradient, Choice("sampled", names, reason), rows)


def _asks_for_expectations(options: FitOptions) -> bool:
    """Whether an estimator that was given takes the closed form of the data term."""
    variates = () if options.variates == "auto" else options.variates
    given = [one for each in variates if each.term == Data() for one in (each.left, each.right)]
    given += [] if options.base is None else [options.base.data]
    return any(isinstance(one, ClosedForm) for one in given)


def is_exact_for(problem: Problem) -> bool:
    """Whether the closed form of every term is there, and exact: quadrature is not where a density has a kink."""
    model = problem.model
    if EXACT.refuses(problem) is not None:
        return False
    return model.predictor is None or model.predictor.has_exact_expectations or has_no_kinks(problem)
