"""Symmetric positive definite matrices M shared by all problems of a family.

Each class is one way to parametrise M so that every value of its parameters is positive definite
and a gradient step in them is a relative change.
"""

import abc
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array

from lfom.solving.quadratics import HIGHEST


class Shared(eqx.Module):
    """M, applied to vectors (problems, *shape)."""

    kind: ClassVar[str]

    @abc.abstractmethod
    def __call__(self, vector: Array) -> Array: ...

    @abc.abstractmethod
    def diagonal(self, like: Array) -> Array:
        """The diagonal of M, of the unknowns' shape."""

    @abc.abstractmethod
    def bound(self, c: Array) -> Array:
        """An upper bound of the largest eigenvalue of M diag(c) for c >= 0, (problems,): the largest
        row sum of |M| diag(c), which no eigenvalue exceeds."""


class Identity(Shared):
    """M = I."""

    kind = "identity"

    def __call__(self, vector: Array) -> Array:
        return vector

    def diagonal(self, like: Array) -> Array:
        return jnp.ones_like(like[0])

    def bound(self, c: Array) -> Array:
        return _largest(c)


class Diagonal(Shared):
    """M = diag(exp(logs))."""

    kind = "diagonal"
    logs: Array

    def __call__(self, vector: Array) -> Array:
        return jnp.exp(self.logs) * vector

    def diagonal(self, like: Array) -> Array:
        return jnp.exp(self.logs)

    def bound(self, c: Array) -> Array:
        return _largest(jnp.exp(self.logs) * c)


class LowRank(Shared):
    """M = S (I + V V^T) S with S = diag(exp(logs / 2)); V (*shape, rank)."""

    kind = "low-rank"
    logs: Array
    V: Array

    def __call__(self, vector: Array) -> Array:
        root = jnp.exp(self.logs / 2)
        scaled = root * vector
        return root * (scaled + self._outer(self.V, scaled))

    def _outer(self, V: Array, vector: Array) -> Array:
        axes = vector.ndim - 1
        inner = jnp.tensordot(vector, V, (tuple(range(1, axes + 1)), tuple(range(axes))), precision=HIGHEST)
        return jnp.tensordot(inner, V, (1, axes), precision=HIGHEST)

    def diagonal(self, like: Array) -> Array:
        return jnp.exp(self.logs) * (1 + jnp.sum(self.V**2, axis=-1))

    def bound(self, c: Array) -> Array:
        root = jnp.exp(self.logs / 2)
        return _largest(root * (root * c + self._outer(jnp.abs(self.V), root * c)))


class Transformed(Shared):
    """M = T^T diag(exp(logs)) T with T an orthonormal sine or cosine transform of every axis."""

    kind = "transform"
    logs: Array
    transform: str = eqx.field(static=True)

    def __call__(self, vector: Array) -> Array:
        modes = along_axes(vector, self.transform)
        return along_axes(jnp.exp(self.logs) * modes, self.transform, inverse=True)

    def diagonal(self, like: Array) -> Array:
        squares = jnp.exp(self.logs)
        for axis, n in enumerate(self.logs.shape):
            T2 = jnp.asarray(transform_matrix(self.transform, n) ** 2, like.dtype)
            squares = jnp.moveaxis(jnp.tensordot(T2, squares, (0, axis), precision=HIGHEST), 0, axis)
        return squares

    def bound(self, c: Array) -> Array:
        return jnp.exp(jnp.max(self.logs)) * _largest(c)


class Full(Shared):
    """M = F F^T with F = base (I + change) over the flattened unknowns."""

    kind = "full"
    base: Array
    change: Array

    @property
    def matrix(self) -> Array:
        factor = self.base + jnp.matmul(self.base, self.change, precision=HIGHEST)
        return jnp.matmul(factor, factor.T, precision=HIGHEST)

    def __call__(self, vector: Array) -> Array:
        flat = vector.reshape(len(vector), -1)
        return jnp.matmul(flat, self.matrix, precision=HIGHEST).reshape(vector.shape)

    def diagonal(self, like: Array) -> Array:
        return jnp.diagonal(self.matrix).reshape(like.shape[1:])

    def bound(self, c: Array) -> Array:
        rows = jnp.matmul(c.reshape(len(c), -1), jnp.abs(self.matrix), precision=HIGHEST)
        return jnp.max(rows, axis=1)


KINDS: dict[str, type[Shared]] = {c.kind: c for c in (Identity, Diagonal, LowRank, Transformed, Full)}
TRANSFORMS = ("sine", "cosine")


class Scaled(eqx.Module):
    """v -> s M s v with one s per problem: a number (a rescaled problem) or a vector (Jacobi)."""

    shared: Shared
    scale: Array | None = None

    def __call__(self, vector: Array) -> Array:
        if self.scale is None:
            return self.shared(vector)
        return self.scale * self.shared(self.scale * vector)


def transform_matrix(transform: str, n: int) -> np.ndarray:
    """The orthonormal DST-I (zero at both ends) or DCT-II (mirrored at both ends), rows are modes."""
    i, k = np.arange(n), np.arange(n)[:, None]
    if transform == "sine":
        return np.sqrt(2 / (n + 1)) * np.sin(np.pi * (k + 1) * (i + 1) / (n + 1))
    T = np.sqrt(2 / n) * np.cos(np.pi * k * (2 * i + 1) / (2 * n))
    T[0] /= np.sqrt(2)
    return T


def along_axes(vector: Array, transform: str, inverse: bool = False) -> Array:
    """The transform of every axis but the first, as products with small dense matrices: on the
    grids that learning is feasible for (up to some hundred points a side) these are faster than
    FFTs, which XLA runs as complex ones."""
    for axis in range(1, vector.ndim):
        T: Any = jnp.asarray(transform_matrix(transform, vector.shape[axis]), vector.dtype)
        product = jnp.tensordot(vector, T, (axis, 0 if inverse else 1), precision=HIGHEST)
        vector = jnp.moveaxis(product, -1, axis)
    return vector


def _largest(c: Array) -> Array:
    return jnp.max(c, axis=tuple(range(1, c.ndim)))
