"""What a promise costs: the average loss of methods learned under a bound on their worst case."""

import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from lfom.core.methods import Method
from lfom.experiments.experiment import Experiment
from lfom.experiments.rows import run_rows
from lfom.experiments.statistics import Claims, listed, under, written
from lfom.experiments.workbench import Outcome, Workbench, kept
from lfom.families.digits import DIGITS
from lfom.limits.worst_case import on_quadratics, points, worst_case
from lfom.methods.classical import gradient_descent
from lfom.methods.optimal import fast_gradient, ogm, ogm_bound
from lfom.solving.bounded import Bounded
from lfom.solving.learners import Fitted, Fold
from lfom.solving.structures import Structure

STEPS = 8
LEARNING = 64  # problems
HELD_OUT = {"quick": 200, "full": 1_000}
RUNS = {"quick": 3, "full": 5}  # problems of their own
ITERATIONS = 150  # of Adam, without a bound
FACTORS = (1.05, 1.2, 1.5, 5.0, 20.0, 100.0, 1_000.0)  # of OGM's worst case, as bounds
LEARNED, FREE = "learned under a bound", "learned, no bound"
SAME = {"GD": "gradient descent", "Fast gradient": "the fast gradient method"}  # bounds of their own
NOTHING = 1e4  # times OGM's worst case: no promise
CLASSICAL: dict[str, Callable[[float], Method]] = {  # for a smoothness
    "GD": lambda L: gradient_descent(1 / L, STEPS),
    "Fast gradient": lambda L: fast_gradient(STEPS, L),
    "OGM": lambda L: ogm(STEPS, L),
}


@kept
def measured(bench: Workbench, run: int) -> dict[tuple[str, float], Any]:
    """By curve and worst case over OGM's: relative excess losses on held-out problems; the bound where there is one."""
    bench.say(f"learning under bounds, run {run + 1}")
    seed = int(np.asarray(jax.random.key_data(bench.stream("guarantee", str(run)))).ravel()[-1])
    batches = DIGITS.learning(LEARNING, seed=seed), DIGITS.held_out(HELD_OUT[bench.preset.name], seed=seed)
    both = jax.tree.map(lambda *parts: np.concatenate(parts), *batches)
    fold = Fold(0, np.arange(LEARNING), np.arange(LEARNING, len(both)))
    learner = both.learner(STEPS, 0)
    L, scalar, best = Bounded(learner, 1.0, None).smoothness, Structure("scalar"), ogm_bound(STEPS)
    found: dict[tuple[str, float], Any] = {}

    def keep(curve: str, x: float, method: Method) -> None:
        fit = learner.measured(Fitted(method.reader, method.memory, np.zeros(0), 0), fold)
        found[curve, x] = fit.errors[-1], float(worst_case(method, L)) / (L * best)

    for curve, x in promises().items():
        keep(curve, x, CLASSICAL[curve](L))
    for factor in sorted({*FACTORS, *(x for curve, x in promises().items() if curve in SAME)}):
        fit = Bounded(learner, factor * best, L).fit(scalar, fold, 0)
        keep(LEARNED, factor, Method(fit.reader, fit.memory, STEPS))
    fit = learner.fit(scalar, fold, ITERATIONS)
    H, _ = points(Method(fit.reader, fit.memory, STEPS))
    found[FREE, NOTHING] = fit.errors[-1], on_quadratics(H * L, 0.0, "value", "distance") / best
    return found


@functools.cache
def promises() -> dict[str, float]:
    """The worst cases of the classical methods, over OGM's."""
    return {
        curve: float(worst_case(method(1.0))) / ogm_bound(STEPS) if curve in SAME else 1.0
        for curve, method in CLASSICAL.items()
    }


class Guarantee(Experiment):
    name = "guarantee"
    title = "What a promise costs: average loss against the worst case"
    section = "Ours: methods learned under a bound"
    shows = (
        f"Logistic regressions on scikit-learn's digits, {STEPS} steps: the log of the mean excess loss of held-out problems, "
        "relative to the start, against the exact worst case of f(w) - f* over all smooth convex functions, in units "
        "of OGM's, which is the smallest. A method at the left promises much, one further down does better on digits. "
        "The horizontal line is learned without a bound; its worst case lies outside the figure."
    )
    trained = (
        f"{LEARNING} problems per run, the numbers of {STEPS} steps on the plain gradient (36). Under a bound: lfom.learn "
        "with worst_case, from 1.05 to 1,000 times OGM's worst case and at those of gradient descent and of the "
        "fast gradient method; the program confirms every one. Without: lfom.learn as it is. L is the largest curvature seen, "
        "and 5 % more."
    )
    x_label = "worst case / OGM's worst case"
    y_label = "log of the mean relative excess loss"
    x_scale = "log"

    def run(self, bench: Workbench) -> Outcome:
        if "converged" not in bench.trainings:
            return Outcome([], [])
        count = RUNS[bench.preset.name]
        bench.side_by_side([(measured, bench, run) for run in range(count)])
        runs = [measured(bench, run) for run in range(count)]
        prompts = HELD_OUT[bench.preset.name]
        logs = {at: np.asarray([np.log(np.mean(one[at][0])) for one in runs]) for at in runs[0]}
        worst = {at: np.asarray([one[at][1] for one in runs]) for at in logs}
        bounds = sorted(bound for curve, bound in logs if curve == LEARNED)
        rows = []
        for (curve, at), values in logs.items():
            training = "converged" if curve in (LEARNED, FREE) else "none"
            for x in (1.0, bounds[-1]) if curve == FREE else (at,):
                rows += run_rows(curve, training, x, values, "log_loss", prompts=prompts)
        claims = Claims(self.section)
        over = [float(np.max(worst[LEARNED, bound] / bound)) for bound in bounds]
        claims.test(
            "guarantee-kept",
            "Ours: every method that was learned under a bound keeps it.",
            "its worst case, computed again by the program, is at most the bound in every run",
            [largest <= 1 + 1e-9 for largest in over],
            f"{len(bounds)} bounds, {len(runs)} runs: worst case over bound {min(over):.6f} to {max(over):.6f}",
        )
        first = logs[LEARNED, bounds[0]] - logs["OGM", 1.0]
        claims.test(
            "guarantee-better-than-ogm",
            f"Ours: with {bounds[0]:g} times OGM's worst case a learned method is better on its problems than OGM.",
            "paired difference of the log mean loss below 0 by two standard errors",
            under(first),
            written(first),
        )
        same = {name: (curve, promises()[curve]) for curve, name in SAME.items()}
        gains = {name: logs[LEARNED, bound] - logs[curve, bound] for name, (curve, bound) in same.items()}
        claims.test(
            "guarantee-same-promise",
            "Ours: a learned method that promises what gradient descent or the fast gradient method promises is better on "
            "its problems.",
            "paired difference of the log mean loss below 0 by two standard errors, for both",
            [under(gain) for gain in gains.values()],
            listed(gains, written),
        )
        falls = [logs[LEARNED, b] - logs[LEARNED, a] for a, b in itertools.pairwise(bounds)]
        claims.test(
            "guarantee-costs",
            "Ours: the looser the bound, the lower the average loss.",
            "paired difference of neighbouring bounds below 0 by two standard errors",
            [under(fall) for fall in falls],
            "; ".join(f"{bound:.4g}: {written(logs[LEARNED, bound])}" for bound in bounds),
        )
        free, loosest = logs[FREE, NOTHING], logs[LEARNED, bounds[-1]]
        claims.test(
            "guarantee-none-without-bound",
            "Ours: without a bound the lowest average loss comes with no promise worth the name.",
            f"the loss is below that of every bound by two standard errors, and some quadratic of the class is {NOTHING:g} "
            "times worse than OGM's worst case, in every run",
            (under(free - loosest), bool((worst[FREE, NOTHING] > NOTHING).all())),
            f"loss {written(free)} against {written(loosest)}; on quadratics at least "
            f"{worst[FREE, NOTHING].min():.2g} times OGM's worst case",
        )
        return Outcome(rows, claims)
