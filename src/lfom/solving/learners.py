"""How one structure is fitted to some problems and measured on others: quadratics and convex losses."""

import abc
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lfom.core.arrays import as_array
from lfom.core.checks import InputError
from lfom.core.memories import Conjugate, Memory
from lfom.core.methods import Learned, Method
from lfom.core.preconditioners import Identity
from lfom.core.readers import Gradient, Reader
from lfom.core.runs import take
from lfom.core.stopping import ROUNDED
from lfom.solving import fitting, loss_fitting
from lfom.solving.certificate import Certificate, certify
from lfom.solving.descent import Tick, batches, silent
from lfom.solving.fitting import Sample, reader_of
from lfom.solving.joint import Guard
from lfom.solving.loss_fitting import LossSample
from lfom.solving.losses import hessians, minimise
from lfom.solving.records import Record
from lfom.solving.references import solved
from lfom.solving.spectra import extreme_eigenvalues
from lfom.solving.starts import start
from lfom.solving.structures import Structure, available
from lfom.solving.systems import gauge

MARGIN = 1.05  # of the largest eigenvalue seen, which shared coefficients must contract
GUARDED = 50  # eigenvalues of a guard
NO_GUARD = np.zeros(GUARDED)  # blocks that stay zero: the first fit and guarded ones share a program
ITERATIONS = 150
ITERATIONS_OF_PARTS = 60  # where each sees a part of the problems: more measured no better
EQUATIONS = 8_192  # unknowns of all problems that an iteration sees, at least

Judge = Callable[[np.ndarray], tuple[float, np.ndarray]]  # the loss of a table of numbers, and its slopes


class Fold(NamedTuple):
    """The numbers of the problems to learn from, and of those held out."""

    number: int
    learning: np.ndarray
    held_out: np.ndarray


@dataclass(frozen=True)
class Fitted:
    """One fit. errors (steps + 1, held-out problems). sizes: the gauge of every problem, where it has one."""

    reader: Reader
    memory: Memory
    errors: np.ndarray
    iterations: int
    sizes: Any = None


class Learner(abc.ABC):
    """Fits structures to problems of one kind. each: the problems one by one. floor: the smallest relative
    residual that rounding allows; rounding: relative errors below it are rounding alone."""

    floor: float
    rounding: float

    def __init__(self, problems: Any, each: Any, steps: int, seed: int):
        self.problems, self.each, self.steps, self.seed = problems, each, steps, seed
        _all_finite(each)
        self.begun: dict[Any, Any] = {}  # readers without gradients, which are found once

    @abc.abstractmethod
    def available(self) -> list[Structure]: ...

    def refinable(self, structure: Structure) -> bool:
        """Whether gradients can improve on its closed form."""
        return True

    def iterations(self, structure: Structure) -> int:
        """Of gradients, where nobody said."""
        return ITERATIONS

    @abc.abstractmethod
    def fit(self, structure: Structure, fold: Fold, iterations: int, tick: Tick = silent) -> Fitted: ...

    @abc.abstractmethod
    def sample(self, members: Any) -> Any:
        """Some problems with their solutions; with ... all."""

    @abc.abstractmethod
    def measured(self, fit: Fitted, fold: Fold) -> Fitted:
        """The same fit with its errors on the problems held out."""

    def judge(self, members: np.ndarray) -> Judge:
        """The loss that is fitted to these problems, of a bank with given numbers on the plain gradient, and its slopes."""
        sample = self.sample(members)

        def loss(table: np.ndarray) -> tuple[float, np.ndarray]:
            value, slopes = fitting.table_loss(as_array(table, self.problems.dtype), sample)
            return float(value), np.asarray(slopes, np.float64)

        return loss

    @abc.abstractmethod
    def curvature(self) -> float:
        """The largest curvature that is seen in the problems."""

    def guarded(self, structure: Structure, fold: Fold, fit: Fitted) -> Fitted:
        """The same fit, made safe for what was seen in learning."""
        return fit

    def seen(self, fold: Fold, fit: Fitted) -> tuple[Array, Certificate | None]:
        """The range and the certificate (see `Learned`) of what was seen in learning."""
        return as_array(np.ones(3, self.problems.dtype)), None

    def method(self, structure: Structure, fold: Fold, fit: Fitted, record: Record) -> Method:
        (bounds, certificate), problems = self.seen(fold, fit), self.problems
        facts = Learned(bounds, structure, problems.kind, problems.shape, self.floor, record, certificate)
        return Method(fit.reader, fit.memory, self.steps, facts)


class QuadraticLearner(Learner):
    """Learning from least squares, linear systems and operators."""

    def __init__(self, problems: Any, steps: int, seed: int):
        each, b, diagonal = _looked_at(problems)
        super().__init__(problems, each, steps, seed)
        _some_right_side(np.asarray(b).reshape(len(problems), -1, *problems.shape))
        self.knows_diagonal = diagonal is not None and bool((np.asarray(diagonal) > 0).all())
        self.w, high = solved(self.each)
        self.floor, self.rounding = _rounding(high, np.asarray(b), np.asarray(self.w), problems.kind.matrix)
        self.all = self.sample(np.arange(len(problems)))

    def available(self) -> list[Structure]:
        return available(self.problems.shape, self.knows_diagonal, False)

    def refinable(self, structure: Structure) -> bool:
        return structure.first_matrix != "identity"

    def sample(self, members: Any) -> Sample:
        problems, w = take((self.each, self.w), self.problems.rows(members))
        return Sample(problems, w, as_array(np.ones(len(w), w.dtype)))

    def begin(self, structure: Structure, fold: Fold) -> Reader:
        """With the first preconditioner; found once."""
        name = (structure.first_matrix, structure.jacobi, fold.number)
        if name not in self.begun:
            learning, plain = self.sample(fold.learning), reader_of(Identity(), structure.jacobi)
            matrix = start(structure.first_matrix, learning.problems, learning.w, plain, self.seed)
            self.begun[name] = reader_of(matrix, structure.jacobi)
        return self.begun[name]

    def fit(self, structure: Structure, fold: Fold, iterations: int, tick: Tick = silent) -> Fitted:
        reader, own = self.begin(structure, fold), structure.coefficients
        memory: Memory = Conjugate()
        learning = self.sample(fold.learning)
        members = batches(self.problems.rows(fold.learning), self.at_once(structure), iterations, self.seed)
        if own.per_unknown:
            table = fitting.table_of(learning, reader, self.steps)
            method = fitting.refine_table(table, self.all, members, tick)
            reader, memory = method.reader, method.memory
        else:
            if iterations and self.refinable(structure):
                reader = fitting.refine_matrix(own.conjugate, self.all, reader, self.steps, members, tick)
            if not own.conjugate:
                memory = fitting.fit_register(
                    learning, reader, self.steps, _guard(NO_GUARD, 0.0, self.w.dtype)
                )
        return self.measured(Fitted(reader, memory, np.zeros(0), iterations), fold)

    def iterations(self, structure: Structure) -> int:
        return ITERATIONS if self.at_once(structure) >= len(self.problems) else ITERATIONS_OF_PARTS

    def at_once(self, structure: Structure) -> int:
        """How many problems an iteration sees: with four equations for every number, and not too few."""
        shape = self.problems.shape
        size = math.prod(shape)
        numbers = structure.parameters(shape, self.steps)
        return -(-max(4 * numbers, EQUATIONS) // size)

    def measured(self, fit: Fitted, fold: Fold) -> Fitted:
        found, sizes = _measured(Method(fit.reader, fit.memory, self.steps), self.all)
        errors = np.asarray(found, np.float64)[:, self.problems.rows(fold.held_out)]
        return replace(fit, errors=errors, sizes=np.asarray(sizes))

    def curvature(self) -> float:
        return extreme_eigenvalues(self.each, Gradient(Identity()))[1]

    def guarded(self, structure: Structure, fold: Fold, fit: Fitted) -> Fitted:
        """The same fit with a register that contracts every eigenvalue seen in learning.

        Least squares cares little for an eigenvalue that few problems have, and may leave it outside the
        interval. Guards on the seen spectrum with a growing weight bring the interval there.
        """
        if Method(fit.reader, fit.memory, self.steps).on_eigenvectors is None:
            return fit
        learning = self.sample(fold.learning)
        low, high, _ = extreme_eigenvalues(learning.problems, fit.reader)
        points = np.linspace(max(low, 1e-3 * high), MARGIN * high, GUARDED)
        memory = fit.memory
        for weight in np.logspace(-10, 0, 11):
            reach = certify(Method(fit.reader, memory, self.steps)).reach[-1]
            if reach >= MARGIN * high * (1 - 1e-6):
                break
            guard = _guard(points, weight, self.w.dtype)
            memory = fitting.fit_register(learning, fit.reader, self.steps, guard)
        return self.measured(replace(fit, memory=memory), fold)

    def seen(self, fold: Fold, fit: Fitted) -> tuple[Array, Certificate | None]:
        learning = self.sample(fold.learning).problems
        sizes = fit.sizes[self.problems.rows(fold.learning)]
        method, certificate = Method(fit.reader, fit.memory, self.steps), None
        if method.on_eigenvectors is not None:
            low, high, exact = extreme_eigenvalues(learning, fit.reader)
            certificate = certify(method, (low, high), exact)
        return as_array([sizes.min(), np.median(sizes), sizes.max()], self.w.dtype), certificate


class LossLearner(Learner):
    """Learning from convex losses."""

    def __init__(self, problems: Any, steps: int, seed: int):
        super().__init__(problems, problems.each(), steps, seed)
        self.w, self.best, gradient = minimise(self.each)
        eps = float(jnp.finfo(self.w.dtype).eps)
        self.floor = self.rounding = 100 * eps
        if not bool((gradient <= 10 * eps**0.5).all()):
            worst = int(jnp.argmax(jnp.where(jnp.isnan(gradient), jnp.inf, gradient)))
            raise InputError(
                f"problem {worst} could not be minimised for learning: its gradient is still "
                f"{float(gradient[worst]):.1e} of the start's. It has no minimiser (add a ridge), or its loss is "
                "not convex or not smooth."
            )
        self.all = self.sample(...)

    def available(self) -> list[Structure]:
        return available(self.problems.shape, False, True)

    def sample(self, members: Any) -> LossSample:
        each, w, best = take((self.each, self.w, self.best), members)
        return LossSample(each, w, best, as_array(np.ones(len(w), w.dtype)))

    def fit(self, structure: Structure, fold: Fold, iterations: int, tick: Tick = silent) -> Fitted:
        name, spread_out = (structure.name, fold.number), structure.coefficients.per_unknown
        if name not in self.begun:
            learning, plain = self.sample(fold.learning), Gradient(Identity())
            model = learning.model()
            reader = Gradient(start(structure.first_matrix, model.problems, model.w, plain, self.seed))
            bank = loss_fitting.begin(spread_out, learning, reader, self.steps)
            self.begun[name] = Method(reader, bank, self.steps)
        method = self.begun[name]
        if iterations:
            members = batches(fold.learning, len(fold.learning), iterations, self.seed)
            method = loss_fitting.refine(spread_out, self.all, method, members, tick)
        return self.measured(Fitted(method.reader, method.memory, np.zeros(0), iterations), fold)

    def measured(self, fit: Fitted, fold: Fold) -> Fitted:
        found = loss_fitting.errors(Method(fit.reader, fit.memory, self.steps), self.all)
        return replace(fit, errors=np.abs(np.asarray(found, np.float64)[:, fold.held_out]))

    def curvature(self) -> float:
        """At the start, half way and at the solution."""
        return max(
            extreme_eigenvalues(hessians(self.each, self.w * share, self.w), Gradient(Identity()))[1]
            for share in (0.0, 0.5, 1.0)
        )


def _guard(points: np.ndarray, weight: float, dtype: Any) -> Guard:
    return Guard(as_array(points, dtype), as_array(weight, dtype))


@eqx.filter_jit
def _looked_at(problems: Any) -> tuple[Any, Array, Array | None]:
    """The problems one by one, their right-hand sides, and their diagonals where these are known."""
    each = problems.each()
    diagonal = jax.vmap(lambda one: one.diagonal())(each)
    return each, -jax.vmap(lambda one: one.initial()[1])(each), diagonal


@eqx.filter_jit
def _measured(method: Method, sample: Sample) -> tuple[Array, Array]:
    """The errors of all problems and their gauges: one program, since people wait for those."""
    return fitting.errors(method, sample), jax.vmap(gauge, (None, 0))(method.reader, sample.problems)


def _all_finite(problems: Any) -> None:
    """By NumPy, which compiles nothing for it."""
    numbers = [leaf for leaf in map(np.asarray, jax.tree.leaves(problems)) if leaf.dtype.kind == "f"]
    finite = np.all([np.isfinite(leaf).reshape(len(leaf), -1).all(axis=1) for leaf in numbers], axis=0)
    if not finite.all():
        bad = np.flatnonzero(~finite)
        raise InputError(
            f"problem {bad[0]} holds NaN or infinity ({len(bad)} such problems). Remove them before learning; "
            "solve gives such problems a status of their own."
        )


def _some_right_side(b: np.ndarray) -> None:
    """b: (problems, right-hand sides, *shape)."""
    empty = np.flatnonzero(~(b != 0).any(axis=tuple(range(2, b.ndim))).all(axis=1))
    if len(empty):
        raise InputError(
            f"problem {empty[0]} has a right-hand side of zeros ({len(empty)} such problems): its solution is the "
            "start, and nothing can be learned from it. Leave it out."
        )


def _rounding(high: float, b: np.ndarray, w: np.ndarray, matrices: bool) -> tuple[float, float]:
    """The relative residual and the relative error in the energy norm that rounding leaves.

    Each entry of A w is rounded off by about eps |A| |w_i|, with signs at random, so that |A w| is by
    eps |A| |w| / sqrt(unknowns) times a small number (4; in the diffusion family conjugate gradients reach
    half of it). |A| |w| / |b| is as large as the condition number where w is soft. Solutions themselves are
    rounded by eps |w|, which is at most eps sqrt(|A|) |w| in the energy norm. The median problem decides:
    statuses say where a harder one did not get there. high: the largest eigenvalue. matrices: whether their sizes are known."""
    eps = float(np.finfo(w.dtype).eps)
    b, w = (x.reshape(len(x), -1).astype(np.float64) for x in (b, w))
    lengths, sides = np.linalg.norm(w, axis=1), np.linalg.norm(b, axis=1)
    residual = float(np.median(high * lengths / sides)) / w.shape[1] ** 0.5
    error = float(np.median(lengths * (high / np.abs((b * w).sum(axis=1))) ** 0.5))
    floor = 4 * max(residual, 1.0)
    if matrices:  # of which `solve` claims only what rounding cannot hide, see Doubt
        floor = max(floor, 3 * ROUNDED * max(residual * w.shape[1] ** 0.5, 1.0))
    return floor * eps, 4 * eps * max(error, 1.0)
