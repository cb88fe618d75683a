"""lfom.learn: from a batch of problems to a method, the structure picked by held-out loss."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lfom import checks
from lfom.checks import InputError
from lfom.learning import fitting, loss_fitting
from lfom.learning.certificate import certify
from lfom.learning.fitting import Family
from lfom.learning.loss_fitting import LossFamily
from lfom.learning.losses import minimise
from lfom.learning.method import Accuracy, LearnedMethod, Record
from lfom.learning.preconditioners import Identity, Shared
from lfom.learning.problems import ConvexLosses, Problems
from lfom.learning.references import solutions
from lfom.learning.solving import Plan, gauge
from lfom.learning.spectra import extreme_eigenvalues
from lfom.learning.starts import RANK, start
from lfom.learning.steps import Coefficients, Register
from lfom.learning.structures import Structure, available, chosen

FEWEST = 10
FOLDS = 5
ENOUGH_TO_SPLIT = 50  # problems: with fewer, every one is held out once (cross-validation)
REFINED = 3  # structures that go on from the closed form to gradients
ITERATIONS = 150


def learn(
    problems: Problems,
    steps: int = 8,
    structure: str | Iterable[str] = "auto",
    seed: int = 0,
    *,
    iterations: int = ITERATIONS,
    watch: Callable[[str], None] | None = None,
) -> LearnedMethod:
    """A method of `steps` steps for problems like these.

    structure: "auto" tries all and keeps the one with the smallest error on held-out problems; or a
    name, or several: scalar, diagonal, preconditioned, conjugate, or one member such as
    "conjugate:full". iterations: gradient steps on a preconditioner. watch: told what is going on.
    """
    steps, iterations = checks.count("steps", steps), checks.count("iterations", iterations, 0)
    if not isinstance(problems, Problems):
        raise InputError(
            f"learn takes problems, not {type(problems).__name__}: build lfom.LeastSquaresProblems, "
            "lfom.LinearSystems or lfom.ConvexLosses."
        )
    count = len(problems)
    if count < FEWEST:
        raise InputError(
            f"{count} problems are too few to learn from: {FEWEST} or more are needed, and a held-out error "
            "you can rely on takes some dozens."
        )
    say = watch or (lambda text: None)
    say(f"solving {count} problems to learn from")
    learner: Any = (
        _Losses(problems, steps) if isinstance(problems, ConvexLosses) else _Quadratics(problems, steps)
    )
    structures = chosen(structure, learner.available())
    structures, warnings = _affordable(structures, problems, steps, structure == "auto")
    folds, how = _folds(count, seed)
    tried = {}
    for one in structures:
        say(f"trying {one.name}")
        tried[one] = [learner.fit(one, fold, 0, seed) for fold in folds]
    best = sorted(tried, key=lambda one: _score(tried[one]))[:REFINED]
    if iterations:
        for one in best:
            if learner.refinable(one):
                say(f"refining {one.name}")
                better = [
                    learner.fit(one, fold, iterations, seed, fit)
                    for fold, fit in zip(folds, tried[one], strict=True)
                ]
                if _score(better) < _score(tried[one]):
                    tried[one] = better
    winner = min(tried, key=lambda one: _score(tried[one]))
    fits = tried[winner]
    final = fits[0]
    if len(folds) > 1:
        say(f"fitting {winner.name} to all problems")
        final = learner.fit(winner, (np.arange(count), np.arange(count)), final.iterations, seed)
    held_out = np.concatenate([fit.errors for fit in fits], axis=1)
    compared = {one.name: _score(tried[one]) for one in sorted(tried, key=lambda one: _score(tried[one]))}
    warnings += _few(held_out.shape[1])
    record = Record(count, seed, _accuracy(held_out, how), compared, tuple(warnings))
    return learner.method(winner, final, record)


@dataclass(frozen=True)
class Fitted:
    """One fit. errors (steps + 1, held-out problems)."""

    coefficients: Coefficients
    shared: Shared
    errors: np.ndarray
    iterations: int


Fold = tuple[np.ndarray, np.ndarray]  # numbers of the problems to learn from, and of those held out


class _Quadratics:
    def __init__(self, problems: Any, steps: int):
        self.problems, self.steps = problems, steps
        self.quadratics = problems.quadratics()
        _all_finite(self.quadratics.finite())
        _some_right_side(self.quadratics.b)
        self.w = solutions(self.quadratics)

    def available(self) -> list[Structure]:
        diagonal = self.quadratics.diagonal()
        known = diagonal is not None and bool((diagonal > 0).all())
        return available(self.problems.shape, known, False)

    def refinable(self, structure: Structure) -> bool:
        return structure.family == "diagonal" or structure.preconditioner != "identity"

    def family(self, members: np.ndarray) -> Family:
        quadratics, w = jax.tree.map(lambda leaf: leaf[members], (self.quadratics, self.w))
        return Family(quadratics, w, jnp.ones(len(members), self.w.dtype))

    def fit(
        self, structure: Structure, fold: Fold, iterations: int, seed: int, earlier: Fitted | None = None
    ) -> Fitted:
        learning, held_out = self.family(fold[0]), self.family(fold[1])
        scale = learning.scale(structure.jacobi)
        key = jax.random.key(seed)
        kind = "diagonal" if structure.family == "diagonal" else structure.preconditioner
        shared: Any = start(kind, learning.quadratics, learning.w, learning.weights, scale, key)
        coefficients: Any
        if structure.family == "diagonal":
            coefficients = fitting.refine_diagonal(learning, shared, scale, self.steps, iterations)
            shared = Identity()
        elif iterations and self.refinable(structure):
            coefficients, shared = fitting.refine(structure, learning, shared, scale, self.steps, iterations)
        else:
            coefficients = fitting.begin(structure, learning, shared, scale, self.steps)
        found = fitting.errors(coefficients, shared, held_out.scale(structure.jacobi), held_out, self.steps)
        return Fitted(coefficients, shared, np.asarray(found, np.float64), iterations)

    def method(self, structure: Structure, fit: Fitted, record: Record) -> LearnedMethod:
        family = self.family(np.arange(len(self.problems)))
        scale = family.scale(structure.jacobi)
        sizes = np.asarray(gauge(self.quadratics, fit.shared, scale)[0])
        certificate = None
        if isinstance(fit.coefficients, Register):
            low, high, exact = extreme_eigenvalues(self.quadratics, fit.shared, scale)
            alpha, gamma = (
                np.asarray(x, float).tolist() for x in (fit.coefficients.alpha, fit.coefficients.gamma)
            )
            certificate = certify(alpha, gamma, (low, high), exact)
        reach = None if certificate is None else jnp.asarray(certificate.reach, self.w.dtype)
        bounds = jnp.asarray([sizes.min(), sizes.max()], self.w.dtype)
        plan = Plan(fit.coefficients, fit.shared, bounds, reach, structure.jacobi)
        floor = _floor(self.quadratics, self.w)
        return LearnedMethod(
            structure, self.problems.kind, self.problems.shape, self.steps, plan, certificate, floor, record
        )


class _Losses:
    def __init__(self, problems: ConvexLosses, steps: int):
        self.problems, self.steps = problems, steps
        _all_finite(problems.finite())
        self.w, self.best, gradient = minimise(problems)
        limit = float(jnp.finfo(problems.dtype).eps) ** 0.5 * 10
        if not bool((gradient <= limit).all()):
            worst = int(jnp.argmax(jnp.where(jnp.isnan(gradient), jnp.inf, gradient)))
            raise InputError(
                f"problem {worst} could not be minimised for learning: its gradient is still "
                f"{float(gradient[worst]):.1e} of the start's. It has no minimiser (add a ridge), or its loss is "
                "not convex or not smooth."
            )

    def available(self) -> list[Structure]:
        return available(self.problems.shape, False, True)

    def refinable(self, structure: Structure) -> bool:
        return True

    def family(self, members: np.ndarray) -> LossFamily:
        problems, w, best = jax.tree.map(lambda leaf: leaf[members], (self.problems, self.w, self.best))
        return LossFamily(problems, w, best, jnp.ones(len(members), self.w.dtype))

    def fit(
        self, structure: Structure, fold: Fold, iterations: int, seed: int, earlier: Fitted | None = None
    ) -> Fitted:
        learning, held_out = self.family(fold[0]), self.family(fold[1])
        model = learning.model()
        kind = "diagonal" if structure.family == "diagonal" else structure.preconditioner
        ones = jnp.ones_like(model.w)
        shared = start(kind, model.quadratics, model.w, model.weights, ones, jax.random.key(seed))
        bank = loss_fitting.begin(structure, learning, shared, self.steps)
        if iterations:
            bank, shared = loss_fitting.refine(structure, learning, bank, shared, iterations)
        found = loss_fitting.errors(bank, shared, held_out)
        return Fitted(bank, shared, np.abs(np.asarray(found, np.float64)), iterations)

    def method(self, structure: Structure, fit: Fitted, record: Record) -> LearnedMethod:
        plan = Plan(fit.coefficients, fit.shared, jnp.ones(2, self.w.dtype), None, False)
        floor = 100 * float(jnp.finfo(self.w.dtype).eps)
        return LearnedMethod(
            structure, self.problems.kind, self.problems.shape, self.steps, plan, None, floor, record
        )


def _all_finite(finite: Array) -> None:
    if not bool(finite.all()):
        bad = np.flatnonzero(~np.asarray(finite))
        raise InputError(
            f"problem {bad[0]} holds NaN or infinity ({len(bad)} such problems). Remove them before learning; "
            "solve gives such problems a status of their own."
        )


def _some_right_side(b: Array) -> None:
    empty = np.flatnonzero(~np.asarray(jnp.any(b != 0, axis=tuple(range(1, b.ndim)))))
    if len(empty):
        raise InputError(
            f"problem {empty[0]} has a right-hand side of zeros ({len(empty)} such problems): its solution is the "
            "start, and nothing can be learned from it. Leave it out."
        )


def _floor(quadratics: Any, w: Array) -> float:
    """The relative residual that rounding leaves: computing A w rounds off about eps |A| |w|, relative to
    |b|. |A| |w| / |b| is at least 1, and as large as the condition number where w is soft."""
    from lfom.learning.quadratics import norms

    eps = float(jnp.finfo(w.dtype).eps)
    _, high, _ = extreme_eigenvalues(quadratics, Identity(), jnp.ones_like(w))
    growth = float(jnp.max(high * norms(w) / norms(quadratics.b)))
    return 10 * eps * max(growth, 1.0)


def _folds(count: int, seed: int) -> tuple[list[Fold], str]:
    """One split where there are many problems, else cross-validation; folds of equal size, so that
    they share one compiled program."""
    order = np.random.default_rng(seed).permutation(count)
    if count >= ENOUGH_TO_SPLIT:
        held = max(count // 5, 10)
        return [(order[held:], order[:held])], "held out"
    size = count // FOLDS
    parts = [order[k * size : (k + 1) * size] for k in range(FOLDS)]
    return [(np.setdiff1d(order, part), part) for part in parts], "cross-validated"


def _score(fits: list[Fitted]) -> float:
    """The log of the geometric mean of the held-out errors after the last step."""
    last = np.concatenate([fit.errors[-1] for fit in fits])
    last = np.where(np.isfinite(last), last, 1e300)
    return float(np.mean(np.log(last + 1e-300)))


def _accuracy(errors: np.ndarray, how: str) -> Accuracy:
    lower, median, upper = (tuple(np.quantile(errors, q, axis=1).tolist()) for q in (0.25, 0.5, 0.75))
    return Accuracy(median, lower, upper, errors.shape[1], how)


def _affordable(
    structures: list[Structure], problems: Any, steps: int, drop: bool
) -> tuple[list[Structure], list[str]]:
    """Every problem gives as many equations as it has unknowns; a structure wants four per parameter."""
    equations = len(problems) * int(np.prod(problems.shape))
    poor = [
        s
        for s in structures
        if s.family != "scalar" and 4 * s.parameters(problems.shape, steps, RANK) > equations
    ]
    if not poor:
        return structures, []
    names = ", ".join(s.name for s in poor)
    most = max(s.parameters(problems.shape, steps, RANK) for s in poor)
    needed = -(-4 * most // int(np.prod(problems.shape)))
    verdict = "left out" if drop else "learned all the same"
    text = f"too few problems for {names} ({verdict}): {len(problems)} given, {needed} wanted for the largest"
    return [s for s in structures if s not in poor] if drop else structures, [text]


def _few(held_out: int) -> list[str]:
    if held_out >= 20:
        return []
    return [f"the expected accuracy rests on {held_out} held-out problems: treat it as a rough figure"]
