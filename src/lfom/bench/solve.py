"""Learned methods against the standard ones on the four families, side by side in one run.

Everything is measured on held-out problems, in float32, and against the same optimum. Time to an
accuracy is the time of the smallest number of steps after which the median error over the problems
is that small: nobody pays for a stopping test, and nobody gains from a loose one. For the learned
method it is the time of `method.solve`, checks included. Compilation and learning are not in it
and stand beside it.
"""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from lfom.bench.rival import Judge, Rival
from lfom.bench.rivals import baseline, rivals
from lfom.bench.timing import all_times
from lfom.core.checks import count, known
from lfom.families import FAMILIES, Family
from lfom.solving.learn import learn

BUDGET = 8  # steps the methods are learned for
ACCURACIES = (1e-2, 1e-4)
MOST_STEPS = 512
MOST_LEARNED = 4 * BUDGET  # beyond, most of the steps would be the plain tail
GRID = (1, 2, 4, 8, 16, 32, 64, 128, 256)  # of the curves
LEARNING = {1_000: 400, 32: 64}  # learning problems, by the size of the benchmark's batch
# Chosen beforehand, since trying all takes minutes per family. "auto" ranked these first on learning
# problems of table and digits; of diffusion and deblurring only "conjugate" was searched, and
# "preconditioned" was given the same matrix.
STRUCTURES = {
    "table": ("scalar", "preconditioned:jacobi+full", "conjugate:jacobi+full"),
    "diffusion": ("scalar", "preconditioned:jacobi+sine", "conjugate:jacobi+sine"),
    "deblurring": ("scalar", "preconditioned:jacobi+cosine", "conjugate:jacobi+cosine"),
    "digits": ("scalar", "preconditioned:full"),
}
PATIENCE = 3.0  # seconds of measured runs, after which a slow program is left alone
ROUNDS = 9


Errors = Callable[[Any], np.ndarray]  # one relative error per problem


@dataclass(frozen=True)
class Reached:
    """The steps that an accuracy takes and their time for the whole batch: median and quartiles."""

    steps: int
    seconds: float = math.nan
    lower: float = math.nan
    upper: float = math.nan


@dataclass
class Measured:
    """What was measured of one method in one family."""

    rival: Rival
    errors: dict[int, tuple[float, float, float]] = field(default_factory=dict)  # quartiles by steps
    seconds: dict[int, float] = field(default_factory=dict)  # by steps
    reached: dict[float, Reached] = field(default_factory=dict)  # by accuracy, where it was reached
    first_call: float = 0.0  # seconds of the first call, compilation included
    learning: float | None = None  # seconds

    @property
    def name(self) -> str:
        return self.rival.name


@dataclass(frozen=True)
class Comparison:
    """All results in one family. ours: the learned method picked by held-out loss while learning."""

    family: str
    problems: int
    learned_from: int
    ours: Measured
    results: list[Measured]

    def fastest(self, accuracy: float, wanted: Callable[[Measured], bool]) -> Measured | None:
        able = [r for r in self.results if accuracy in r.reached and wanted(r)]
        return min(able, key=lambda r: r.reached[accuracy].seconds, default=None)


def compare(
    family: Family,
    problems: int | None = None,
    learn_from: int | None = None,
    seed: int = 0,
    say: Callable[[str], None] = lambda text: None,
) -> Comparison:
    """Every method on one family's held-out problems."""
    problems = count("problems", family.batch if problems is None else problems)
    learn_from = LEARNING[family.batch] if learn_from is None else learn_from
    say(f"{family.name}: drawing and solving {problems} held-out problems")
    batch = family.held_out(problems, seed=seed)
    score = Judge(batch)
    learned, ours = _learned(family, batch, learn_from, seed, say)
    results = [*learned, *(Measured(rival) for rival in rivals(batch))]
    for result in results:
        say(f"{family.name}: steps of {result.name}")
        _count_steps(result, score)
    for accuracy in ACCURACIES:
        say(f"{family.name}: time to {accuracy:g}")
        _time_to(accuracy, results, problems)
    say(f"{family.name}: time against steps")
    _time_curves(results, problems)
    return Comparison(family.name, problems, learn_from, ours, results)


def _learned(
    family: Family, batch: Any, learn_from: int, seed: int, say: Callable[[str], None]
) -> tuple[list[Measured], Measured]:
    """One learned method per structure, and the one that did best while learning."""
    source = family.learning(learn_from, seed=seed)
    found, scores = [], []
    for structure in STRUCTURES[family.name]:
        say(f"{family.name}: learning {structure} from {learn_from} problems")
        start = time.perf_counter()
        method = learn(source, BUDGET, structure, seed)
        taken = time.perf_counter() - start

        def run(steps: int, method: Any = method) -> Any:
            return method.solve(batch, steps=steps).value

        rival = Rival(method.structure.name, "learned", run, len(batch), learned=True)
        found.append(Measured(rival, learning=taken))
        scores.append(min(method.record.compared.values()))
    return found, found[int(np.argmin(scores))]


def errors_after(method: Any, problems: Any, steps: int = BUDGET) -> dict[str, np.ndarray]:
    """Relative errors of a learned method and of its baseline after equally many steps, per problem."""
    score, rival = Judge(problems), baseline(problems)
    return {
        "learned": score(method.solve(problems, steps=steps).value),
        rival.method: score(rival.run(steps)),
    }


def _error(result: Measured, score: Errors, steps: int) -> float:
    """The median error after so many steps; the quartiles are kept."""
    if steps not in result.errors:
        lower, median, upper = np.quantile(score(result.rival.run(steps)), (0.25, 0.5, 0.75)).tolist()
        result.errors[steps] = lower, median, upper
    return result.errors[steps][1]


def _count_steps(result: Measured, score: Errors) -> None:
    """Errors on the grid up to the smallest accuracy, and the steps that each accuracy takes."""
    start = time.perf_counter()
    _error(result, score, BUDGET)
    result.first_call = time.perf_counter() - start
    if result.rival.method == "direct":
        found = {a: 1 for a in ACCURACIES if _error(result, score, BUDGET) <= a}
        result.errors = {1: result.errors[BUDGET]}
    else:
        most = MOST_LEARNED if result.rival.learned else MOST_STEPS
        for steps in (*(k for k in GRID if k < most), most):
            if _error(result, score, steps) <= min(ACCURACIES):
                break
        found = {a: k for a in ACCURACIES if (k := _fewest(result, score, a)) is not None}
    result.reached = {a: Reached(k) for a, k in found.items()}


def _fewest(result: Measured, score: Errors, accuracy: float) -> int | None:
    """The smallest number of steps that reaches an accuracy, by halving an interval of known errors."""
    enough = next((k for k in sorted(result.errors) if result.errors[k][1] <= accuracy), None)
    if enough is None:
        return None
    short = max((k for k in result.errors if k < enough), default=0)
    while enough - short > 1:
        middle = (enough + short) // 2
        if _error(result, score, middle) <= accuracy:
            enough = middle
        else:
            short = middle
    return enough


def _time_to(accuracy: float, results: Iterable[Measured], problems: int) -> None:
    able = [result for result in results if accuracy in result.reached]
    programs = {r.name: partial(r.rival.run, r.reached[accuracy].steps) for r in able}
    times = all_times(programs, ROUNDS, PATIENCE, compiled=True)
    for result in able:
        share = problems / result.rival.problems
        lower, median, upper = np.quantile(times[result.name], (0.25, 0.5, 0.75)) * share
        steps = result.reached[accuracy].steps
        result.reached[accuracy] = Reached(steps, float(median), float(lower), float(upper))


def _time_curves(results: Iterable[Measured], problems: int) -> None:
    """The fastest of a few runs at every number of steps on the grid."""
    points = {f"{r.name} {k}": (r, k) for r in results for k in sorted(set(r.errors) & set(GRID))}
    programs = {name: partial(result.rival.run, steps) for name, (result, steps) in points.items()}
    times = all_times(programs, 5, PATIENCE / 6, compiled=True)
    for name, (result, steps) in points.items():
        result.seconds[steps] = problems / result.rival.problems * min(times[name])


def bench_solve(
    families: Iterable[str] = (),
    problems: int | None = None,
    learn_from: int | None = None,
    seed: int = 0,
    say: Callable[[str], None] = lambda text: None,
) -> list[Comparison]:
    """The comparison for the given families, all four by default."""
    names = [known("family", name, FAMILIES) for name in families] or list(FAMILIES)
    return [compare(FAMILIES[name], problems, learn_from, seed, say) for name in names]
