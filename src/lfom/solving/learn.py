"""lfom.learn: from a batch of problems to a method, the structure picked by held-out loss."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from lfom.core import checks
from lfom.core.checks import InputError
from lfom.core.methods import Method
from lfom.solving.bounded import Bounded
from lfom.solving.learners import Fitted, Fold, Learner
from lfom.solving.problems import Problems
from lfom.solving.records import Accuracy, Record
from lfom.solving.structures import DOORS, Structure, chosen, passing

FEWEST = 10
ENOUGH_TO_SPLIT = 50  # problems: with fewer, every one is held out once (cross-validation)
REFINED = 3  # structures that go on from the closed form to gradients
ITERATIONS = 150


def learn(
    problems: Any,
    steps: int = 8,
    structure: str | Iterable[str] = "auto",
    seed: int = 0,
    *,
    for_: str = "solve",
    worst_case: float | None = None,
    smoothness: float | None = None,
    iterations: int = ITERATIONS,
    watch: Callable[[str], None] | None = None,
) -> Method:
    """A method of `steps` steps for problems like these.

    structure: "auto" tries all and keeps the one with the smallest error on held-out problems; or a
    name, or several: scalar, diagonal, preconditioned, conjugate, or one member such as
    "conjugate:full", or "conjugate:low-rank(50)" for a chosen rank. for_: what will run it; "optax" leaves out what `learned_transformation` cannot. iterations: gradient steps on a preconditioner. watch: told what is going on.

    worst_case: a bound that the method keeps on every smooth convex function, f(w) - f* <= worst_case L |w_0 - w*|^2,
    confirmed by `lfom.worst_case`; then it has numbers alone ("scalar"). smoothness: L; by default the largest
    curvature of these problems (of losses at the start, half way and at the solution) times 1.05. No bound below
    that of `lfom.ogm` can be kept.

    >>> import lfom
    >>> rng = np.random.default_rng(0)
    >>> X = (rng.normal(size=(60, 20, 4)) * [1.0, 0.5, 0.2, 0.1]).astype(np.float32)
    >>> problems = lfom.LeastSquaresProblems(X, X.sum(axis=2))
    >>> method = lfom.learn(problems[:50], steps=3, structure="preconditioned:diagonal")
    >>> solution = method.solve(problems[50:])
    >>> solution.value.shape, bool(solution.failed.any()), solution.residuals.shape
    ((10, 4), False, (10, 4))
    """
    steps, iterations = checks.count("steps", steps), checks.count("iterations", iterations, 0)
    count = _checked_count(problems)
    checks.known("for_", for_, DOORS)
    say = watch or (lambda text: None)
    say(f"solving {count} problems to learn from")
    learner = _bounded(problems.learner(steps, seed), structure, worst_case, smoothness)
    wanted = chosen(structure, passing(for_, learner.available()))
    structures, warnings = _affordable(wanted, problems, steps, structure == "auto")
    folds, how = _folds(count, seed)
    tried: dict[Structure, list[Fitted]] = {}
    for one in structures:
        say(f"trying {one.name}")
        tried[one] = [learner.fit(one, fold, 0) for fold in folds]

    def score(fits: list[Fitted]) -> float:
        return _score(fits, learner.rounding)

    def rank(one: Structure) -> tuple[float, int]:
        return score(tried[one]), one.parameters(problems.shape, steps)

    for one in sorted(tried, key=rank)[:REFINED] if iterations else []:
        if learner.refinable(one):
            say(f"refining {one.name}")
            better = [learner.fit(one, fold, iterations) for fold in folds]
            tried[one] = min(tried[one], better, key=score)
    order = sorted(tried, key=rank)
    winner = order[0]
    say(f"finishing {winner.name}")
    fits = [learner.guarded(winner, fold, fit) for fold, fit in zip(folds, tried[winner], strict=True)]
    fold, final = folds[0], fits[0]
    if len(folds) > 1:
        fold = Fold(len(folds), np.arange(count), np.arange(count))
        final = learner.guarded(winner, fold, learner.fit(winner, fold, final.iterations))
    held_out = np.concatenate([fit.errors for fit in fits], axis=1)
    warnings += _few(held_out.shape[1])
    scores = tuple((one.name, score(fits if one == winner else tried[one])) for one in order)
    record = Record(count, seed, _accuracy(held_out, how), scores, tuple(warnings))
    return learner.method(winner, fold, final, record)


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


def _checked_count(problems: Any) -> int:
    if not isinstance(problems, Problems):
        raise InputError(
            f"learn takes problems, not {type(problems).__name__}: build lfom.LeastSquaresProblems, "
            "lfom.LinearSystems or lfom.ConvexLosses."
        )
    if len(problems) < FEWEST:
        raise InputError(
            f"{len(problems)} problems are too few to learn from: {FEWEST} or more are needed, and a held-out "
            "error that you can rely on takes some dozens."
        )
    return len(problems)


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


def _few(held_out: int) -> list[str]:
    if held_out >= 20:
        return []
    return [f"the expected accuracy rests on {held_out} held-out problems: treat it as a rough figure"]
