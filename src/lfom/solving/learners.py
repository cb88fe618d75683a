"""How one structure is fitted to some problems and measured on others: quadratics and convex losses."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lfom.core.checks import InputError
from lfom.solving import fitting, loss_fitting
from lfom.solving.certificate import Certificate, certify
from lfom.solving.fitting import Family
from lfom.solving.loss_fitting import LossFamily
from lfom.solving.losses import minimise
from lfom.solving.method import LearnedMethod, Record
from lfom.solving.preconditioners import Identity, Scaled, Shared
from lfom.solving.problems import ConvexLosses
from lfom.solving.quadratics import norms
from lfom.solving.references import solutions
from lfom.solving.solving import Plan, gauge
from lfom.solving.spectra import extreme_eigenvalues
from lfom.solving.starts import start
from lfom.solving.steps import Coefficients, Conjugate, Guard, Register
from lfom.solving.structures import Structure, available

MARGIN = 1.05  # of the largest eigenvalue seen, which shared coefficients must contract
GUARDED = 50  # eigenvalues of a guard


class Fold(NamedTuple):
    """The numbers of the problems to learn from, and of those held out."""

    number: int
    learning: np.ndarray
    held_out: np.ndarray


@dataclass(frozen=True)
class Fitted:
    """One fit. errors (steps + 1, held-out problems)."""

    coefficients: Coefficients
    shared: Shared
    errors: np.ndarray
    iterations: int


class QuadraticLearner:
    """Learning from least squares, linear systems and operators."""

    def __init__(self, problems: Any, steps: int, seed: int):
        self.problems, self.steps, self.key = problems, steps, jax.random.key(seed)
        self.quadratics = eqx.filter_jit(type(problems).quadratics)(problems)
        _all_finite(self.quadratics.finite())
        _some_right_side(self.quadratics.b)
        self.w = solutions(self.quadratics)
        self._begun: dict[Any, Any] = {}

    def available(self) -> list[Structure]:
        diagonal = self.quadratics.diagonal()
        known = diagonal is not None and bool((diagonal > 0).all())
        return available(self.problems.shape, known, False)

    def refinable(self, structure: Structure) -> bool:
        return structure.family == "diagonal" or structure.preconditioner != "identity"

    def family(self, members: np.ndarray) -> Family:
        quadratics, w = jax.tree.map(lambda leaf: leaf[members], (self.quadratics, self.w))
        return Family(quadratics, w, jnp.ones(len(members), self.w.dtype))

    def begin(self, structure: Structure, fold: Fold) -> tuple[Shared, Fitted, Fitted]:
        """The first preconditioner, with the register and with conjugate gradients; found once."""
        kind = "diagonal" if structure.family == "diagonal" else structure.preconditioner
        name = (kind, structure.jacobi, fold.number)
        if name not in self._begun:
            learning, held_out = self.family(fold.learning), self.family(fold.held_out)
            scales = learning.scale(structure.jacobi), held_out.scale(structure.jacobi)
            shared = start(kind, learning.quadratics, learning.w, scales[0], self.key)
            register, *found = fitting.start_errors(learning, held_out, shared, scales, self.steps)
            both: tuple[Any, Any] = (register, Conjugate())
            fits = [Fitted(c, shared, np.asarray(e, np.float64), 0) for c, e in zip(both, found, strict=True)]
            self._begun[name] = (shared, *fits)
        return self._begun[name]

    def fit(self, structure: Structure, fold: Fold, iterations: int) -> Fitted:
        shared, register, conjugate = self.begin(structure, fold)
        if structure.family != "diagonal" and not (iterations and self.refinable(structure)):
            return conjugate if structure.family == "conjugate" else register
        learning, held_out = self.family(fold.learning), self.family(fold.held_out)
        scale = learning.scale(structure.jacobi)
        found: Any
        if structure.family == "diagonal":
            found = fitting.refine_diagonal(learning, shared, scale, self.steps, iterations), Identity()  # type: ignore[arg-type]
        else:
            found = fitting.refine(structure, learning, shared, scale, self.steps, iterations)
        coefficients, shared = found
        return self._measured(Fitted(coefficients, shared, np.zeros(0), iterations), structure, held_out)

    def _measured(self, fit: Fitted, structure: Structure, held_out: Family) -> Fitted:
        precondition = Scaled(fit.shared, held_out.scale(structure.jacobi))
        found = fitting.errors(fit.coefficients, precondition, held_out, self.steps)
        return replace(fit, errors=np.asarray(found, np.float64))

    def guarded(self, structure: Structure, fold: Fold, fit: Fitted) -> Fitted:
        """The same fit with a register that contracts every eigenvalue seen in learning.

        Least squares cares little for an eigenvalue that few problems have, and may leave it outside the
        interval. Guards on the seen spectrum with a growing weight bring the interval there.
        """
        if not isinstance(fit.coefficients, Register):
            return fit
        learning, held_out = self.family(fold.learning), self.family(fold.held_out)
        scale = learning.scale(structure.jacobi)
        precondition = Scaled(fit.shared, scale)
        seen = extreme_eigenvalues(learning.quadratics, fit.shared, scale)
        points = jnp.linspace(max(seen[0], 1e-3 * seen[1]), MARGIN * seen[1], GUARDED)
        register = fit.coefficients
        for weight in np.logspace(-10, 0, 11):
            if certificate_of(register, seen).reach[-1] >= MARGIN * seen[1] * (1 - 1e-6):
                break
            guard = Guard(points.astype(self.w.dtype), jnp.asarray(weight, self.w.dtype))
            register = fitting.fit_register(learning, precondition, self.steps, guard)
        return self._measured(replace(fit, coefficients=register), structure, held_out)

    def method(self, structure: Structure, fold: Fold, fit: Fitted, record: Record) -> LearnedMethod:
        learning = self.family(fold.learning)
        scale = learning.scale(structure.jacobi)
        sizes = np.asarray(eqx.filter_jit(gauge)(learning.quadratics, fit.shared, scale)[0])
        certificate, reach = None, None
        if isinstance(fit.coefficients, Register):
            seen = extreme_eigenvalues(learning.quadratics, fit.shared, scale)
            certificate = certificate_of(fit.coefficients, seen)
            reach = jnp.asarray(certificate.reach, self.w.dtype)
        bounds = jnp.asarray([sizes.min(), np.median(sizes), sizes.max()], self.w.dtype)
        plan = Plan(fit.coefficients, fit.shared, bounds, reach, structure.jacobi)
        problems, floor = self.problems, _floor(self.quadratics, self.w)
        return LearnedMethod(
            structure, problems.kind, problems.shape, self.steps, plan, certificate, floor, record
        )


class LossLearner:
    """Learning from convex losses."""

    def __init__(self, problems: ConvexLosses, steps: int, seed: int):
        self.problems, self.steps, self.key = problems, steps, jax.random.key(seed)
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
        self._begun: dict[Any, Any] = {}

    def available(self) -> list[Structure]:
        return available(self.problems.shape, False, True)

    def refinable(self, structure: Structure) -> bool:
        return True

    def family(self, members: np.ndarray) -> LossFamily:
        problems, w, best = jax.tree.map(lambda leaf: leaf[members], (self.problems, self.w, self.best))
        return LossFamily(problems, w, best, jnp.ones(len(members), self.w.dtype))

    def fit(self, structure: Structure, fold: Fold, iterations: int) -> Fitted:
        name = (structure.name, fold.number)
        if name not in self._begun:
            learning, held_out = self.family(fold.learning), self.family(fold.held_out)
            kind = "diagonal" if structure.family == "diagonal" else structure.preconditioner
            model = learning.model()
            shared = start(kind, model.quadratics, model.w, jnp.ones_like(model.w), self.key)
            bank, found = loss_fitting.begin(structure, learning, held_out, shared, self.steps)
            self._begun[name] = Fitted(bank, shared, np.abs(np.asarray(found, np.float64)), 0)
        fit = self._begun[name]
        if not iterations:
            return fit
        families = self.family(fold.learning), self.family(fold.held_out)
        bank, shared, found = loss_fitting.refine(
            structure, *families, fit.coefficients, fit.shared, iterations
        )
        return Fitted(bank, shared, np.abs(np.asarray(found, np.float64)), iterations)

    def guarded(self, structure: Structure, fold: Fold, fit: Fitted) -> Fitted:
        return fit

    def method(self, structure: Structure, fold: Fold, fit: Fitted, record: Record) -> LearnedMethod:
        plan = Plan(fit.coefficients, fit.shared, jnp.ones(3, self.w.dtype), None, False)
        floor = 100 * float(jnp.finfo(self.w.dtype).eps)
        problems = self.problems
        return LearnedMethod(structure, problems.kind, problems.shape, self.steps, plan, None, floor, record)


def certificate_of(register: Register, seen: tuple[float, float, bool]) -> Certificate:
    alpha, gamma = (np.asarray(x, float).tolist() for x in (register.alpha, register.gamma))
    return certify(alpha, gamma, seen[:2], seen[2])


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
    """The relative residual that rounding leaves. Each entry of A w is rounded off by about eps |A| |w_i|,
    with signs at random, so that |A w| is by eps |A| |w| / sqrt(unknowns) times a small number (4; in the
    diffusion family conjugate gradients reach half of it). |A| |w| / |b| is as large as the condition number
    where w is soft. The median problem decides: statuses say where a harder one did not get there."""
    eps = float(jnp.finfo(w.dtype).eps)
    _, high, _ = extreme_eigenvalues(quadratics, Identity(), jnp.ones_like(w))
    growth = float(jnp.median(high * norms(w) / norms(quadratics.b)))
    return eps * max(4 * growth / float(np.sqrt(w[0].size)), 4.0)
