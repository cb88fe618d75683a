"""Linear systems: symmetric positive definite matrices, or operators of which only products are known."""

from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float

from lfom.core import checks
from lfom.core.arrays import pad_axes
from lfom.core.checks import InputError
from lfom.core.problems import IterateProblem, Operator, Quadratic
from lfom.solving import closures, kinds, statuses
from lfom.solving.kinds import Kind
from lfom.solving.learners import Learner
from lfom.solving.problems import Quadratics, data_array, fitting, with_moment
from lfom.solving.program import Program, Raw
from lfom.solving.systems import smallest_told

PIECE = 250_000  # bytes of matrices that are looked at together


class LinearSystems(Quadratics):
    """A w = b with A symmetric positive definite: the minimiser of w.Aw/2 - b.w.

    LinearSystems(A, b): matrices (problems, d, d) and b (problems, d), or (problems, d, k) for k right-hand sides of each.
    A (d, d) with b (d,) or (d, k) is one problem, and so is the answer. Symmetry is looked at, and refused where it is not
    there. Whether A is positive definite shows in the solve, by the status; check=True factorises every matrix and refuses
    those that are not, and only then can a status say that a promise holds beforehand.

    LinearSystems(operator, b, data=...): matrix-free. operator(data of one problem, v) returns A v;
    every leaf of data has a leading axis of problems; b is (problems, *shape), so unknowns may be
    grids. diagonal (problems, *shape): the diagonals of A, if they are known. b (d,) is one problem, with its data; one
    problem on a grid cannot be told from several, and needs an axis of problems of size 1.

    >>> import numpy as np
    >>> import lfom
    >>> A, b = np.diag([1.0, 2.0]).astype(np.float32), np.ones((1, 2), np.float32)
    >>> problems = lfom.LinearSystems(A[None], b)
    >>> lfom.conjugate_gradient(steps=2).solve(problems).value.round(4).tolist()
    [[1.0, 0.5]]
    """

    A: Array | None
    operator: Callable[[Any, Array], Array] | None = eqx.field(static=True)
    b: Array
    data: Any
    known_diagonal: Array | None
    single: bool = eqx.field(static=True)
    checked: bool = eqx.field(static=True)

    def __init__(self, A: Any, b: Any, data: Any = None, diagonal: Any = None, *, check: bool = False):
        b = checks.as_brought("b", b)
        self.checked = checks.flag("check", check)
        if callable(A):
            if check:
                raise InputError("check=True factorises matrices, and an operator has none. Leave it out.")
            self.A, self.operator, self.single = None, A, b.ndim == 1
            self.b = self._lead(b)
            self.data = jax.tree.map(lambda leaf: self._lead(data_array(leaf)), data)
            self.known_diagonal = None
            if diagonal is not None:
                self.known_diagonal = self._lead(fitting("diagonal", diagonal, b.shape, "b", b))
            self._check_operator()
            return
        if data is not None or diagonal is not None:
            raise InputError(
                "data and diagonal belong to a matrix-free operator: pass LinearSystems(A, b) for matrices."
            )
        A = checks.as_brought("A", A)
        self.single = A.ndim == 2
        self.A = checks.as_brought("A", self._lead(A), (None, None, None))
        count, rows, columns = self.A.shape
        if rows != columns:
            raise InputError(f"A has shape {self.A.shape}: every system is square, (problems, d, d).")
        self.operator, self.data, self.known_diagonal = None, None, None
        sides = self._lead(b).shape[2:]
        if len(sides) > 1 or 0 in sides:
            raise InputError(f"b has shape {b.shape}: pass (problems, d) or (problems, d, right-hand sides).")
        self.b = fitting("b", self._lead(b), (count, rows, *sides), "A", self.A)
        if checks.is_concrete(self.A):
            _check_symmetric(self.A)
            if check:
                check_definite(np.asarray(self.A))

    def _lead(self, array: Array) -> Array:
        return array[None] if self.single else array

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
            closed, image = closures.shape_of(self.operator, *one)  # type: ignore[arg-type]
        except Exception as error:  # the user's own code
            raise InputError(f"operator(data, v) failed on one problem: {error}") from error
        if image.shape != self.b.shape[1:] or image.dtype != self.b.dtype:
            raise InputError(
                f"operator(data, v) returns {image.dtype} of shape {image.shape} for v of {self.b.dtype} "
                f"and shape {self.b.shape[1:]}: it must return the same."
            )
        self.operator = closures.guarded("operator", self.operator, closed, image)  # type: ignore[arg-type]

    @property
    def reads_outside(self) -> Hashable:
        return () if self.operator is None else closures.read_outside(self.operator)

    @property
    def kind(self) -> Kind:
        return kinds.SYSTEMS if self.operator is None else kinds.OPERATORS

    @property
    def shape(self) -> tuple[int, ...]:
        return self.b.shape[1:] if self.operator is not None else self.b.shape[1:2]

    @property
    def sides(self) -> int | None:
        return self.b.shape[2] if self.operator is None and self.b.ndim == 3 else None

    @property
    def dtype(self) -> Any:
        return self.b.dtype

    @property
    def knows_diagonal(self) -> bool:
        return self.operator is None or self.known_diagonal is not None

    def described(self) -> str:
        sides = "" if self.sides is None else f", {self.sides} right-hand sides"
        return f", {'matrices' if self.operator is None else 'an operator'}{sides}"

    def formed(self) -> IterateProblem:
        if self.operator is None:
            return with_moment(jax.vmap(lambda A: Quadratic(A, A[0]))(self.A), self.b)  # type: ignore[arg-type]
        return jax.vmap(partial(Operator, self.operator))(self.data, self.b, self.known_diagonal)

    def solved(
        self, program: Program, own: int, steps: int, tolerance: Array | None, start: Array | None
    ) -> Raw:
        if not self.checked:  # nobody knows that A is definite, so that no promise holds beforehand
            program = replace(program, reach=None, path=statuses.CHECKED)
        raw = super().solved(program, own, steps, tolerance, start)
        if self.A is None or self.checked:
            return raw
        refuted = jax.vmap(surely_indefinite)(self.A)
        refuted = pad_axes(refuted, raw.status.ndim) & (raw.status != statuses.NOT_FINITE)
        return raw._replace(status=jnp.where(refuted, statuses.NOT_DEFINITE, raw.status))

    def learner(self, steps: int, seed: int) -> Learner:
        if self.A is not None and not self.checked:
            check_definite(np.asarray(self.A))
        return super().learner(steps, seed)


def _rounding(d: int, dtype: Any) -> float:
    """What may be missing to symmetry and to eigenvalues of 0, relative to the largest entry."""
    return 100 * d * float(jnp.finfo(dtype).eps)


def surely_indefinite(A: Float[Array, "d d"]) -> Bool[Array, ""]:
    """Whether entries alone show that A is not positive semidefinite, rounding r aside: then
    |A_ij| <= sqrt((A_ii + r) (A_jj + r)) and A_ii >= -r would hold. One pass over A. Nothing is shown by numbers so small that
    their products are lost."""
    largest = jnp.max(jnp.abs(A))
    diagonal = jnp.diagonal(A) + _rounding(len(A), A.dtype) * largest
    root = jnp.sqrt(jnp.maximum(diagonal, 0))
    shown = (diagonal < 0).any() | (jnp.abs(A) > root[:, None] * root).any()
    return shown & (largest > smallest_told(A.dtype))


def _check_symmetric(A: Array) -> None:
    """In one pass, where A lies; problems with NaN get a status in solve."""
    host = all(device.platform == "cpu" for device in A.devices())
    off, scale = _asymmetry(np.asarray(A)) if host else map(np.asarray, _asymmetry_there(A))
    bad = np.flatnonzero(off > _rounding(A.shape[1], A.dtype) * scale)
    if len(bad):
        raise InputError(
            f"A of problem {bad[0]} is not symmetric: it differs from its transpose by {off[bad[0]]:.2g} "
            f"({len(bad)} such problems). Pass (A + A^T) / 2 if that is what you mean; for least squares pass "
            "X and y."
        )


def _asymmetry(A: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The largest |A - A^T| and |A| of every problem, a few problems at a time: these stay in the cache."""
    off, scale = np.empty((2, len(A)))
    few = max(1, PIECE // A[0].nbytes)
    with np.errstate(invalid="ignore"):  # infinity minus infinity
        for at in range(0, len(A), few):
            some = A[at : at + few]
            off[at : at + few] = np.abs(some - np.swapaxes(some, 1, 2)).max(axis=(1, 2))
            scale[at : at + few] = np.abs(some).max(axis=(1, 2))
    return off, scale


@jax.jit
def _asymmetry_there(A: Array) -> tuple[Array, Array]:
    """The same on the device; nothing where A holds NaN."""
    sound = jnp.isfinite(A).all(axis=(1, 2))
    off = jnp.abs(A - jnp.swapaxes(A, 1, 2)).max(axis=(1, 2))
    return jnp.where(sound, off, 0), jnp.abs(A).max(axis=(1, 2))


def check_definite(A: np.ndarray) -> None:
    """Positive semidefinite up to rounding, by factorising every matrix."""
    scale = np.abs(A).max(axis=(1, 2))
    good = np.flatnonzero(np.isfinite(scale) & (scale > 0))
    relative = A[good] / scale[good, None, None]
    rounding = _rounding(A.shape[1], A.dtype)
    try:
        np.linalg.cholesky(relative + rounding * np.eye(A.shape[1], dtype=A.dtype))
    except np.linalg.LinAlgError:
        lowest = np.linalg.eigvalsh(np.asarray(relative, np.float64))[:, 0]
        worst = int(np.argmin(lowest))
        if lowest[worst] < -0.5 * rounding:
            raise InputError(
                f"A of problem {good[worst]} is indefinite: its smallest eigenvalue is "
                f"{lowest[worst] * scale[good[worst]]:.3g}. These methods minimise, so A must be positive definite. Check its "
                "sign and how it was built."
            ) from None
