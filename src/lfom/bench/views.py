"""What rivals need of a family's problems beyond the problems themselves.

A rival never pays for what it could be handed ready-made: sparse matrices, bands and extreme
eigenvalues are worked out here, outside every measured time. The Gram matrices of least squares
are part of solving, and measured.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.fft
import scipy.linalg
import scipy.sparse
from scipy.sparse.linalg import LinearOperator

from lfom.bench.rival import in_double
from lfom.families import deblurring
from lfom.solving.linear_systems import LinearSystems
from lfom.solving.regressions import LeastSquaresProblems
from lfom.solving.spectra import matrices

LANCZOS = 400  # steps for the extreme eigenvalues


@dataclass(frozen=True)
class View:
    """A batch of quadratics, as JAX rivals and as SciPy rivals want it."""

    problems: Any
    system: Callable[[int], Any]  # A of one problem for SciPy: an array, a sparse matrix or an operator
    rectangular: Callable[[int], tuple[Any, np.ndarray, float]]  # (K, y, damping) with A = K' K + damping^2
    direct: Callable[[int], np.ndarray]  # the solution of one problem by factorisation, by SciPy
    few: int  # how many problems a direct solver is timed on

    @cached_property
    def b(self) -> np.ndarray:
        return np.asarray(-self.problems.each().initial()[1])

    @cached_property
    def diagonal(self) -> np.ndarray:
        return np.asarray(jax.vmap(lambda one: one.diagonal())(self.problems.each()))

    def extremes(self, jacobi: bool) -> tuple[np.ndarray, np.ndarray]:
        """The smallest and the largest eigenvalue of every A, or of every Jacobi-scaled A."""
        problems = in_double(self.problems)
        with jax.enable_x64(True):
            found = _lanczos(problems, 1 / np.sqrt(self.diagonal) if jacobi else np.ones_like(self.b))
        ends = [_ends(*one) for one in zip(*map(np.asarray, found), strict=True)]
        lowest, highest = np.asarray(ends).T
        return lowest.astype(self.b.dtype), highest.astype(self.b.dtype)


@jax.jit
def _lanczos(problems: Any, root: Any) -> tuple[Any, Any]:
    """Diagonals (problems, steps) of the tridiagonal matrices whose extreme eigenvalues are those of
    root A root, to many digits, after LANCZOS steps."""
    root = jnp.asarray(root, float)
    axes = tuple(range(1, root.ndim))

    def norm(v: Any) -> Any:
        return jnp.sqrt(jnp.sum(v**2, axis=axes, keepdims=True))

    def step(state: Any, _: None) -> Any:
        before, v, length = state
        image = root * problems.times(root * v) - length * before
        diagonal = jnp.sum(v * image, axis=axes, keepdims=True)
        image = image - diagonal * v
        new = norm(image)
        return (v, image / jnp.maximum(new, 1e-300), new), (diagonal.reshape(-1), new.reshape(-1))

    start = jax.random.normal(jax.random.key(0), root.shape, root.dtype)
    state = (jnp.zeros_like(start), start / norm(start), jnp.zeros_like(norm(start)))
    _, (diagonals, lengths) = jax.lax.scan(step, state, length=LANCZOS)
    return diagonals.T, lengths.T


def _ends(diagonal: np.ndarray, length: np.ndarray) -> tuple[float, float]:
    """The extreme eigenvalues; the Krylov space may end before the steps do."""
    ended = np.flatnonzero(length[:-1] <= 1e-10 * length[0])
    size = ended[0] + 1 if len(ended) else len(diagonal)
    values = scipy.linalg.eigvalsh_tridiagonal(diagonal[:size], length[: size - 1])
    return values[0], values[-1]


def view(problems: Any) -> View:
    """The view of a batch of one of the four families."""
    if problems.kind.matrix:
        return _table(problems)
    return _deblurring(problems) if problems.operator is deblurring.apply else _diffusion(problems)


def _table(problems: LeastSquaresProblems) -> View:
    X, y, ridge = np.asarray(problems.X), np.asarray(problems.y), np.asarray(problems.ridge)
    n, d = X.shape[1:]
    root = np.sqrt(n).astype(X.dtype)

    def gram(i: int) -> np.ndarray:
        return X[i].T @ X[i] / n + ridge[i] * np.eye(d, dtype=X.dtype)

    def direct(i: int) -> np.ndarray:
        return scipy.linalg.solve(gram(i), X[i].T @ y[i] / n, assume_a="pos", check_finite=False)

    return View(
        problems, gram, lambda i: (X[i] / root, y[i] / root, float(np.sqrt(ridge[i]))), direct, len(X)
    )


def _diffusion(problems: LinearSystems) -> View:
    data = jax.tree.map(np.asarray, problems.data)
    b = np.asarray(problems.b)
    side = b.shape[-1]
    matrices, bands = [], []
    for i in range(len(b)):
        down, right = -data["vertical"][i, 1:], -data["horizontal"][i, :, 1:].copy()
        right[:, -1] = 0  # the last cell of a row has no neighbour in the next row
        band = np.zeros((side + 1, side * side), b.dtype)
        band[0], band[1], band[side] = data["diagonal"][i].ravel(), right.ravel(), down.ravel()
        band[side, -side:] = 0
        below = [band[side, :-side], band[1, :-1]]
        diagonals, offsets = [*below, band[0], *below[::-1]], [-side, -1, 0, 1, side]
        matrices.append(scipy.sparse.diags_array(diagonals, offsets=offsets, format="csr"))
        bands.append(band)

    def direct(i: int) -> np.ndarray:
        flat = scipy.linalg.solveh_banded(bands[i], b[i].ravel(), lower=True, check_finite=False)
        return flat.reshape(side, side)

    return View(problems, lambda i: matrices[i], lambda i: (matrices[i], b[i].ravel(), 0.0), direct, len(b))


def _deblurring(problems: LinearSystems) -> View:
    data = jax.tree.map(np.asarray, problems.data)
    b = np.asarray(problems.b)
    size, shape, padded = b[0].size, b[0].shape, (deblurring.PADDED,) * 2

    def blur(i: int, v: np.ndarray) -> np.ndarray:
        modes = scipy.fft.rfft2(v.reshape(shape), s=padded) * data["spectrum"][i]
        return scipy.fft.irfft2(modes, s=padded)[: shape[0], : shape[1]].ravel()

    def square(times: Callable[[np.ndarray], np.ndarray]) -> LinearOperator:
        return LinearOperator((size, size), matvec=times, rmatvec=times, dtype=b.dtype)

    def system(i: int) -> LinearOperator:
        ridge = b.dtype.type(deblurring.RIDGE)
        return square(lambda v: blur(i, blur(i, v)) + ridge * v)

    def rectangular(i: int) -> tuple[Any, np.ndarray, float]:
        return square(lambda v: blur(i, v)), data["seen"][i].ravel(), float(np.sqrt(deblurring.RIDGE))

    few = min(2, len(b))
    dense = np.asarray(matrices(problems[:few].each()))

    def direct(i: int) -> np.ndarray:
        factor = scipy.linalg.cho_factor(dense[i], check_finite=False)
        return scipy.linalg.cho_solve(factor, b[i].ravel(), check_finite=False).reshape(shape)

    return View(problems, system, rectangular, direct, few)
