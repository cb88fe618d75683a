"""lfom.learn: from a batch of problems to a method, the structure picked by held-out loss."""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from lfom.core import checks, room
from lfom.core.checks import InputError
from lfom.core.methods import Method
from lfom.solving.bounded import Bounded
from lfom.solving.fits import Trial, fitted
from lfom.solving.learners import Fitted, Fold, Learner
from lfom.solving.problems import some_problems
from lfom.solving.progress import Course, Lines, Told
from lfom.solving.records import Accuracy, Record
from lfom.solving.structures import DOORS, Structure, chosen, passing

FEWEST = 10
FEW_HELD_OUT = 20
PER_PAIR = 10.0  # operations for every pair of steps and every unknown of every problem, at the least
ENOUGH_TO_SPLIT = 50  # problems: with fewer, every one is held out once (cross-validation)
REFINED = 3  # structures that go on from the closed form to gradients


def learn(
    problems: Any,
    steps: int = 8,
    structure: str | Iterable[str] = "auto",
    seed: int = 0,
    *,
    for_: str = "solve",
    worst_case: float | None = None,
    smoothness: float | None = None,
    iterations: int | None = None,
    progress: Told | bool = True,
) -> Method:
    """A method of `steps` steps for problems like these.

    structure: "auto" tries all and keeps the one with the smallest error on held-out problems; or a
    name, or several: scalar, diagonal, preconditioned, conjugate, or one member such as
    "conjugate:full", or "conjugate:low-rank(50)" for a chosen rank. for_: what will run it; "optax" leaves out what `learned_transformation` cannot. iterations: gradient steps on a preconditioner; by default 150, or 60 where each of them sees a
    part of the problems, as on large grids.

    progress: told the part that is done, by an estimate, and in words what is going on. By default a line on stderr
    every ten seconds; False for none.

    worst_case: a bound that the method keeps on every smooth convex function, f(w) - f* <= worst_case L |w_0 - w*|^2,
    confirmed by `lfom.worst_case`; then it has numbers alone ("scalar"). smoothness: L; by default the largest
    curvature of these problems (of losses at the start, half way and at the solution) times 1.05. No bound below
    that of `lfom.ogm` can be kept.

    >>> import numpy as np
    >>> import lfom
    >>> rng = np.random.default_rng(0)
    >>> X = (rng.normal(size=(60, 20, 4)) * [1.0, 0.5, 0.2, 0.1]).astype(np.float32)
    >>> problems = lfom.LeastSquaresProblems(X, X.sum(axis=2))
    >>> method = lfom.learn(problems[:50], steps=3, structure="preconditioned:diagonal")
    >>> solution = method.solve(problems[50:])
    >>> solution.value.shape, bool(solution.failed.any()), solution.residuals.shape
    ((10, 4), False, (10, 4))
    """
    steps = checks.count("steps", steps)
    iterations = None if iterations is None else checks.count("iterations", iterations, 0)
    count = len(some_problems(problems))
    if count < FEWEST:
        raise InputError(
            f"{count} problems are too few to learn from: {FEWEST} or more are needed, and a held-out "
            "error that you can rely on takes some dozens."
        )
    seed = checks.seed("seed", seed)
    size = float(np.prod(problems.shape))
    room.fits(f"steps is {steps}", 8.0 * steps * count * size, "Pass fewer steps.")
    room.in_time(f"steps is {steps}", PER_PAIR * steps**2 * count * size, "Pass fewer steps.")
    if iterations is not None:
        operations = float(iterations) * steps * count * size
        room.in_time(f"iterations is {iterations}", operations, "Pass fewer.")
    checks.known("for_", for_, DOORS)
    with _shown(progress) as told:
        course = Course(told, ["solving", "trying", "refining", "finishing"])
        course.begin("solving", f"{count} problems to learn from")
        learner = _bounded(problems.learner(steps, seed), structure, worst_case, smoothness)
        wanted = chosen(structure, passing(for_, learner.available()))
        structures, warnings = _affordable(wanted, problems, steps, structure == "auto")
        return _learned(learner, structures, seed, iterations, warnings, course)


def _learned(
    learner: Learner | Bounded,
    structures: list[Structure],
    seed: int,
    iterations: int | None,
    warnings: list[str],
    course: Course,
) -> Method:
    """The best of these structures, with numbers fitted to all problems or to those that are not held out."""
    problems, steps = learner.problems, learner.steps
    count = len(problems)
    folds, how = _folds(count, seed)
    most = REFINED if iterations is None or iterations else 0
    refinable = min(sum(map(learner.refinable, structures)), most)
    last = ["refining", "finishing"] if len(folds) > 1 else ["finishing"]
    tries, again = len(structures) * len(folds), refinable * len(folds)
    course.to_come = [*["trying"] * tries, *["refining"] * again, *last]

    def by_structure(kind: str, iterations: dict[Structure, int]) -> dict[Structure, list[Fitted]]:
        jobs = [Trial(one, fold, count) for one, count in iterations.items() for fold in folds]
        found = fitted(learner, jobs, kind, len(folds), course)
        return {one: [next(found) for _ in folds] for one in iterations}

    tried = by_structure("trying", dict.fromkeys(structures, 0))

    def score(fits: list[Fitted]) -> float:
        return _score(fits, learner.rounding)

    def rank(one: Structure) -> tuple[float, int]:
        return score(tried[one]), one.parameters(problems.shape, steps)

    best = [one for one in sorted(tried, key=rank)[:most] if learner.refinable(one)]
    again_with = {one: learner.iterations(one) if iterations is None else iterations for one in best}
    for one, better in by_structure("refining", again_with).items():
        tried[one] = min(tried[one], better, key=score)
    order = sorted(tried, key=rank)
    winner = order[0]
    fits = [learner.guarded(winner, fold, fit) for fold, fit in zip(folds, tried[winner], strict=True)]
    fold, final = folds[0], fits[0]
    if len(folds) > 1:
        course.begin("refining", f"{winner.name} with all problems")
        fold = Fold(len(folds), np.arange(count), np.arange(count))
        final = learner.guarded(winner, fold, learner.fit(winner, fold, final.iterations, course.tick))
    course.begin("finishing", winner.name)
    held_out = np.concatenate([fit.errors for fit in fits], axis=1)
    if held_out.shape[1] < FEW_HELD_OUT:
        rests = f"the expected accuracy rests on {held_out.shape[1]} held-out problems"
        warnings = [*warnings, f"{rests}: treat it as a rough figure"]
    scores = tuple((one.name, score(fits if one == winner else tried[one])) for one in order)
    record = Record(count, seed, _accuracy(held_out, how), scores, tuple(warnings))
    return learner.method(winner, fold, final, record)


def _shown(progress: Any) -> AbstractContextManager[Told]:
    if progress is True:
        return Lines()
    if progress is False or progress is None:
        return nullcontext(lambda done, text: None)
    if not callable(progress):
        raise InputError(
            f"progress is {progress!r}: pass a function of the part that is done and a text, True for lines on stderr, or "
            "False for silence."
        )
    return nullcontext(progress)


def _bounded(learner: Learner, structure: Any, worst_case: Any, smoothness: Any) -> Learner | Bounded:
    """The learner, of methods with a worst case where there is a bound on it."""
    if worst_case is None and smoothness is None:
        return learner
    if worst_case is None:
        raise InputError("smoothness belongs to a bound: pass worst_case as well, or leave it out.")
    if structure not in ("auto", "scalar"):
        raise InputError(
            f"structure is {structure!r}, and a worst case is kept by numbers alone: pass 'scalar' or leave it out, or "
            "leave out worst_case."
        )
    return Bounded(learner, worst_case, smoothness)


def _folds(count: int, seed: int) -> tuple[list[Fold], str]:
    """One split where there are many problems, else cross-validation; folds of equal size, so that
    they share one compiled program."""
    order = np.random.default_rng(seed).permutation(count)
    if count >= ENOUGH_TO_SPLIT:
        held = max(count // 5, 10)
        return [Fold(0, order[held:], order[:held])], "held out"
    number = 5 if count < 20 else 3
    size = count // number
    parts = [order[k * size : (k + 1) * size] for k in range(number)]
    return [Fold(k, np.setdiff1d(order, part), part) for k, part in enumerate(parts)], "cross-validated"


def _score(fits: list[Fitted], rounding: float) -> float:
    """The log of the geometric mean of the held-out errors after the last step. Errors that are rounding
    alone are equal: then fewer parameters win."""
    last = np.concatenate([fit.errors[-1] for fit in fits])
    last = np.where(np.isfinite(last), last, 1e300)
    return float(np.mean(np.log(np.maximum(last, rounding))))


def _accuracy(errors: np.ndarray, how: str) -> Accuracy:
    lower, median, upper = (tuple(np.quantile(errors, q, axis=1).tolist()) for q in (0.25, 0.5, 0.75))
    return Accuracy(median, lower, upper, errors.shape[1], how)


def _affordable(
    structures: list[Structure], problems: Any, steps: int, drop: bool
) -> tuple[list[Structure], list[str]]:
    """Every problem gives as many equations as it has unknowns; a structure wants four per parameter."""
    size = int(np.prod(problems.shape))
    needed = {one: -(-4 * one.parameters(problems.shape, steps) // size) for one in structures}
    poor = [one for one in structures if not one.coefficients.free and needed[one] > len(problems)]
    if not poor:
        return structures, []
    names = ", ".join(f"{one.name} ({needed[one]})" for one in poor)
    verdict = "left out" if drop else "learned all the same, and likely to fit these problems only"
    text = f"{len(problems)} problems are too few for {names}: {verdict}; in brackets, how many are wanted"
    return [one for one in structures if one not in poor] if drop else structures, [text]
