"""What a user hands over: a batch of related problems of one kind."""

import abc
from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lfom.core import checks
from lfom.core.checks import InputError
from lfom.core.memories import Conjugate
from lfom.core.methods import Method
from lfom.core.preconditioners import Identity
from lfom.core.problems import IterateProblem, Objective, Operator, Quadratic, gram_of
from lfom.core.readers import Gradient
from lfom.solving import kinds
from lfom.solving.derivatives import by_steps, by_theorem
from lfom.solving.kinds import Kind
from lfom.solving.learners import Learner, LossLearner, QuadraticLearner
from lfom.solving.losses import hessians, solve_losses
from lfom.solving.program import Program, Raw
from lfom.solving.systems import solve_systems

PLAIN = Method(Gradient(Identity()), Conjugate(), 1)  # conjugate gradients


class Problems(eqx.Module):
    """A batch of problems. problems[3] is a batch of one, problems[2:5] a batch of three."""

    @property
    @abc.abstractmethod
    def kind(self) -> Kind:
        """What the problems are."""

    @property
    @abc.abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The shape of one problem's unknowns."""

    @property
    @abc.abstractmethod
    def dtype(self) -> Any: ...

    @abc.abstractmethod
    def each(self) -> Any:
        """The problems as the core knows them: one of its own, with problems on the leading axis of every
        array. `jax.vmap` runs it."""

    @abc.abstractmethod
    def solved(
        self, program: Program, own: int, steps: int, tolerance: Array | None, start: Array | None
    ) -> Raw:
        """What a compiled `solve` does: `own` steps of the method, `steps` in all."""

    @abc.abstractmethod
    def learner(self, steps: int, seed: int) -> Learner:
        """What fits methods to them."""

    @abc.abstractmethod
    def errors(self, w: Array, best: Array) -> Array:
        """How far w is from the solution, relative to the start; one number per problem, see Kind.measure."""

    @property
    def knows_diagonal(self) -> bool:
        """Whether the diagonals of H are known."""
        return self.kind.matrix

    def __getitem__(self, index: Any) -> Any:
        chosen = slice(index, index + 1 or None) if isinstance(index, int | np.integer) else index
        count = len(self)
        if isinstance(index, int | np.integer) and not -count <= index < count:
            raise InputError(f"problem {index} does not exist: there are {count}, numbered from 0.")
        return jax.tree.map(lambda leaf: leaf[chosen], self)

    def __len__(self) -> int:
        return jax.tree.leaves(self)[0].shape[0]


class Quadratics(Problems):
    """Problems with a quadratic loss w.Aw/2 - b.w."""

    def times(self, vectors: Any) -> Array:
        """A v of every problem."""
        return jax.vmap(lambda one, v: one.hessian_times(v))(self.each(), vectors)

    def solved(
        self, program: Program, own: int, steps: int, tolerance: Array | None, start: Array | None
    ) -> Raw:
        if tolerance is None:
            return by_steps(partial(_steps_of_systems, own, steps), program, self.each(), start)
        solve = partial(_solved_systems, own, steps)
        return by_theorem(solve, partial(_inverse, own, steps), program, self.each(), start, tolerance)

    def learner(self, steps: int, seed: int) -> Learner:
        return QuadraticLearner(self, steps, seed)

    def errors(self, w: Array, best: Array) -> Array:
        def energy(one: Any, v: Array) -> Array:
            return jnp.sum(v * one.hessian_times(v))

        each = self.each()
        squares = jax.vmap(energy)(each, w - best) / jax.vmap(energy)(each, best)
        return jnp.sqrt(jnp.maximum(squares, 0))


class LeastSquaresProblems(Quadratics):
    """f(w) = |X w - y|^2 / 2n + ridge |w|^2 / 2: a regression per problem.

    X: (problems, n, d). y: (problems, n). ridge: a number, or one per problem.

    >>> problems = LeastSquaresProblems(np.ones((3, 5, 2)), np.ones((3, 5)), ridge=0.1)
    >>> len(problems), problems.shape, len(problems[1])
    (3, (2,), 1)
    """

    X: Array
    y: Array
    ridge: Array

    def __init__(self, X: Any, y: Any, ridge: Any = 0.0):
        self.X = checks.real_array("X", X, (None, None, None), finite=False)
        count, n, _ = self.X.shape
        self.y = fitting("y", y, (count, n), "X", self.X)
        penalty = checks.real_array("ridge", ridge, finite=False).astype(self.X.dtype)
        if penalty.shape not in ((), (count,)):
            raise InputError(
                f"ridge has shape {penalty.shape}: pass one number, or one per problem ({count},)."
            )
        if checks.is_concrete(penalty) and bool((penalty < 0).any()):
            lowest = float(jnp.min(penalty))
            raise InputError(f"ridge is {lowest}: it must be 0 or greater. Pass 0 for none.")
        self.ridge = jnp.broadcast_to(penalty, (count,))

    @property
    def kind(self) -> Kind:
        return kinds.LEAST_SQUARES

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.X.shape[2],)

    @property
    def dtype(self) -> Any:
        return self.X.dtype

    def each(self) -> Quadratic:
        """A = X^T X / n + ridge I and b = X^T y / n."""

        def one(X: Array, y: Array, ridge: Array) -> Quadratic:
            gram, moment = gram_of(X, y)
            return Quadratic(gram + ridge * jnp.eye(X.shape[1], dtype=X.dtype), moment)

        return jax.vmap(one)(self.X, self.y, self.ridge)


class LinearSystems(Quadratics):
    """A w = b with A symmetric positive definite: the minimiser of w.Aw/2 - b.w.

    LinearSystems(A, b): matrices (problems, d, d) and b (problems, d).
    LinearSystems(operator, b, data=...): matrix-free. operator(data of one problem, v) returns A v;
    every leaf of data has a leading axis of problems; b is (problems, *shape), so unknowns may be
    grids. diagonal (problems, *shape): the diagonals of A, if they are known.
    """

    A: Array | None
    operator: Callable[[Any, Array], Array] | None = eqx.field(static=True)
    b: Array
    data: Any
    known_diagonal: Array | None

    def __init__(self, A: Any, b: Any, data: Any = None, diagonal: Any = None):
        if callable(A):
            self.A, self.operator = None, A
            self.b = checks.real_array("b", b, finite=False)
            self.data = jax.tree.map(jnp.asarray, data)
            self.known_diagonal = None if diagonal is None else fitting("diagonal", diagonal, self.b.shape)
            self._check_operator()
            return
        if data is not None or diagonal is not None:
            raise InputError(
                "data and diagonal belong to a matrix-free operator: pass LinearSystems(A, b) for matrices."
            )
        self.A = checks.real_array("A", A, (None, None, None), finite=False)
        count, rows, columns = self.A.shape
        if rows != columns:
            raise InputError(f"A has shape {self.A.shape}: every system is square, (problems, d, d).")
        self.operator, self.data, self.known_diagonal = None, None, None
        self.b = fitting("b", b, (count, rows), "A", self.A)
        if checks.is_concrete(self.A):
            _check_matrices(np.asarray(self.A))

    def _check_operator(self) -> None:
        if self.b.ndim < 2 or 0 in self.b.shape:
            raise InputError(
                f"b has shape {self.b.shape}: pass (problems, *shape of the unknowns), none of them empty."
            )
        for leaf in jax.tree.leaves(self.data):
            if leaf.ndim == 0 or leaf.shape[0] != len(self.b):
                raise InputError(
                    f"data holds an array of shape {leaf.shape}: every leaf needs a leading axis of "
                    f"{len(self.b)} problems. Close over what all problems share instead."
                )
        one = jax.tree.map(lambda leaf: leaf[0], (self.data, self.b))
        try:
            image = jax.eval_shape(self.operator, *one)  # type: ignore[arg-type]
        except Exception as error:  # the user's own code
            raise InputError(f"operator(data, v) failed on one problem: {error}") from error
        if image.shape != self.b.shape[1:] or image.dtype != self.b.dtype:
            raise InputError(
                f"operator(data, v) returns {image.dtype} of shape {image.shape} for v of {self.b.dtype} "
                f"and shape {self.b.shape[1:]}: it must return the same."
            )

    @property
    def kind(self) -> Kind:
        return kinds.SYSTEMS if self.operator is None else kinds.OPERATORS

    @property
    def shape(self) -> tuple[int, ...]:
        return self.b.shape[1:]

    @property
    def dtype(self) -> Any:
        return self.b.dtype

    @property
    def knows_diagonal(self) -> bool:
        return self.operator is None or self.known_diagonal is not None

    def each(self) -> IterateProblem:
        if self.operator is None:
            return jax.vmap(Quadratic)(self.A, self.b)  # type: ignore[arg-type]
        return jax.vmap(partial(Operator, self.operator))(self.data, self.b, self.known_diagonal)


class ConvexLosses(Problems):
    """min over w of loss(w, data of one problem): smooth and convex. Methods start at w = 0 unless told otherwise.

    data: arrays in a tuple, list or dictionary, each with a leading axis of problems. size: the
    number of unknowns d, or the shape of w.
    """

    loss: Callable[[Array, Any], Array] = eqx.field(static=True)
    data: Any
    sizes: tuple[int, ...] = eqx.field(static=True)

    def __init__(self, loss: Callable[[Array, Any], Array], data: Any, size: int | tuple[int, ...]):
        if not callable(loss):
            raise InputError("loss is not a function: pass loss(w, data) that returns one number.")
        self.loss = loss
        self.data = jax.tree.map(jnp.asarray, data)
        sizes = (size,) if isinstance(size, int | np.integer) else tuple(size)
        self.sizes = tuple(checks.count("size", s) for s in sizes)
        leaves = jax.tree.leaves(self.data)
        counts = {leaf.shape[0] if leaf.ndim else None for leaf in leaves}
        if len(counts) != 1 or None in counts or 0 in counts:
            raise InputError(
                f"data holds arrays of shapes {[leaf.shape for leaf in leaves]}: every one needs the same "
                "leading axis of problems, with at least one. Close over what all problems share."
            )
        one = jax.tree.map(lambda leaf: leaf[0], self.data)
        try:
            value = jax.eval_shape(loss, jax.ShapeDtypeStruct(self.shape, self.dtype), one)
        except Exception as error:  # the user's own code
            raise InputError(f"loss(w, data) failed for w of shape {self.shape}: {error}") from error
        if value.shape != () or value.dtype != self.dtype:
            raise InputError(
                f"loss(w, data) returns {value.dtype} of shape {value.shape}: it must return one number of "
                f"{self.dtype}."
            )

    @property
    def kind(self) -> Kind:
        return kinds.LOSSES

    @property
    def shape(self) -> tuple[int, ...]:
        return self.sizes

    @property
    def dtype(self) -> Any:
        floating = [x for x in jax.tree.leaves(self.data) if jnp.issubdtype(x.dtype, jnp.floating)]
        return jnp.result_type(*floating) if floating else jnp.zeros(()).dtype

    def each(self) -> Objective:
        return Objective(self.loss, jnp.zeros((len(self), *self.shape), self.dtype), self.data)

    def solved(
        self, program: Program, own: int, steps: int, tolerance: Array | None, start: Array | None
    ) -> Raw:
        begun = self.each() if start is None else Objective(self.loss, start, self.data)
        if tolerance is None:
            return by_steps(partial(_steps_of_losses, own, steps), program, begun, None)
        return by_theorem(partial(_solved_losses, own, steps), _newton, program, begun, None, tolerance)

    def learner(self, steps: int, seed: int) -> Learner:
        return LossLearner(self, steps, seed)

    def values(self, w: Array) -> Array:
        return jax.vmap(self.loss)(w, self.data)

    def gradients(self, w: Array) -> Array:
        return jax.vmap(jax.grad(self.loss))(w, self.data)

    def errors(self, w: Array, best: Array) -> Array:
        lowest = self.values(best)
        return (self.values(w) - lowest) / (self.values(jnp.zeros_like(best)) - lowest)


# What is differentiated, as functions of arrays alone: see lfom.solving.derivatives.


def _steps_of_systems(own: int, steps: int, program: Any, problems: Any, start: Any, written: bool) -> Raw:
    return solve_systems(program, problems, own, steps, None, start, written)


def _solved_systems(own: int, steps: int, program: Any, problems: Any, start: Any, tolerance: Array) -> Raw:
    return solve_systems(program, problems, own, steps, tolerance, start)


def _inverse(
    own: int, steps: int, program: Any, problems: Any, tolerance: Array, w: Array, g: Array
) -> Array:
    """A^-1 g, to the same tolerance."""
    systems = eqx.tree_at(lambda one: one.moment, problems, g)
    return solve_systems(program, systems, own, steps, tolerance).value


def _steps_of_losses(own: int, steps: int, program: Any, problems: Any, start: Any, written: bool) -> Raw:
    return solve_losses(program, problems, own, steps, None, written)


def _solved_losses(own: int, steps: int, program: Any, problems: Any, start: Any, tolerance: Array) -> Raw:
    return solve_losses(program, problems, own, steps, tolerance)


def _newton(program: Any, problems: Any, tolerance: Array, w: Array, g: Array) -> Array:
    """H^-1 g at w by conjugate gradients."""
    conjugate = Program(PLAIN, PLAIN)
    return solve_systems(conjugate, hessians(problems, w, g), 0, 10 * w[0].size, tolerance).value


def fitting(name: str, value: Any, shape: tuple[int, ...], other: str = "b", like: Any = None) -> Array:
    """An array of this shape, and of the precision of another one."""
    array = checks.real_array(name, value, finite=False)
    if array.shape != shape:
        raise InputError(f"{name} has shape {array.shape}, and {other} asks for {shape}. Make them match.")
    if like is not None and array.dtype != like.dtype:
        raise InputError(
            f"{name} has dtype {array.dtype} and {other} {like.dtype}. Convert one of them, so that "
            "everything is computed in one precision."
        )
    return array


def _check_matrices(A: np.ndarray) -> None:
    """Symmetric, and positive semidefinite up to rounding; problems with NaN get a status in solve."""
    finite = np.isfinite(A).all(axis=(1, 2))
    scale = np.abs(A).max(axis=(1, 2))
    with np.errstate(invalid="ignore"):  # infinity minus infinity
        off = np.abs(A - np.swapaxes(A, 1, 2)).max(axis=(1, 2))
    rounding = 100 * A.shape[1] * np.finfo(A.dtype).eps * scale
    bad = np.flatnonzero(finite & (off > rounding))
    if len(bad):
        raise InputError(
            f"A of problem {bad[0]} is not symmetric: it differs from its transpose by {off[bad[0]]:.2g} "
            f"({len(bad)} such problems). Pass (A + A^T) / 2 if that is what you mean; for least squares pass "
            "X and y."
        )
    good = np.flatnonzero(finite & (scale > 0))
    relative = A[good] / scale[good, None, None]
    shift = (rounding[good] / scale[good])[:, None, None] * np.eye(A.shape[1], dtype=A.dtype)
    try:
        np.linalg.cholesky(relative + shift)
    except np.linalg.LinAlgError:
        lowest = np.linalg.eigvalsh(np.asarray(relative, np.float64))[:, 0] * scale[good]
        worst = int(np.argmin(lowest / scale[good]))
        if lowest[worst] < -0.5 * rounding[good][worst]:
            raise InputError(
                f"A of problem {good[worst]} is indefinite: its smallest eigenvalue is {lowest[worst]:.3g}. "
                "These methods minimise, so A must be positive definite. Check its sign and how it was built."
            ) from None
