"""Matrices A_l (and B_l) of a layer: which of them exist, and how they act.

A acts transposed on the gradient (docs/mathematics.md 2.2): attention with Q = -A steps along -A^T grad R. Each class is
one way to parametrise the matrices of all layers, and sees those of one. A vector has the axes of the
unknowns first and those of prompts, if any, after them. The second half are symmetric positive definite
matrices for all layers: every value of their parameters is positive definite, and a gradient step in them
is a relative change.

>>> import jax.numpy as jnp
>>> import lfom
>>> lfom.preconditioners.Identity().matrix(2).tolist()
[[1.0, 0.0], [0.0, 1.0]]
"""

import abc
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from lfom.core import checks
from lfom.core.arrays import (
    HIGHEST,
    as_array,
    default_dtype,
    filled,
    matvec,
    numpy_or_jax,
    on_host,
    pad_axes,
    transpose,
    unit,
)
from lfom.core.checks import InputError
from lfom.core.parameters import parameter
from lfom.core.parts import Trained
from lfom.core.words import brief


class Preconditioner(Trained):
    """The matrices of all layers. one_matrix: whether A_l = a_l M with one symmetric M. definite: whether
    A_l = M, symmetric and positive definite. kind: its name in files that others read.

    >>> import jax.numpy as jnp
    >>> import lfom
    >>> class Doubled(lfom.Preconditioner):
    ...     def matrix(self, d):
    ...         return 2 * jnp.eye(d)
    ...     def transposed_times(self, vector):
    ...         return 2 * vector
    >>> Doubled().transposed_times(jnp.ones(2)).tolist()
    [2.0, 2.0]
    """

    __repr__ = brief

    one_matrix: ClassVar[bool] = False
    definite: ClassVar[bool] = False
    kind: ClassVar[str] = "unknown"

    @abc.abstractmethod
    def matrix(self, d: int) -> Array:
        """The matrix of a layer, (d, d)."""

    @abc.abstractmethod
    def transposed_times(self, vector: Array) -> Array:
        """A_l^T times a vector (d, *prompts)."""

    def sizes(self, depth: int) -> Any:
        """a_l of all layers, (depth, ...), where A_l = a_l M, by NumPy where they are known; None where it does not say."""
        return None

    @property
    def common(self) -> Array | None:
        """M's own parameter, M its symmetric part, where there are sizes; None for the identity."""
        return None

    def plain(self) -> dict[str, Any]:
        """M, or the matrices of all layers, as numbers by name, for files that are read without this
        library; a_l is left out where A_l = a_l M."""
        raise InputError(
            f"{type(self).__name__} does not say how it is written as plain numbers: give it plain()."
        )

    def begin_at(self, number: float) -> "Preconditioner":
        """Where training begins with a multiple of the identity."""
        return self

    def all_layers(self, depth: int, d: int) -> Any:
        """The matrices of all layers, (depth, d, d), by NumPy where they are known; None where they are
        rather not written out."""
        return None


class Scaled(Preconditioner):
    """A_l = a_l I."""

    one_matrix, kind = True, "identity"
    scale: Float[Array, "depth ..."] = parameter(axes="layers")

    def sizes(self, depth: int) -> Any:
        return on_host(self.scale)[:depth]

    @property
    def on_eigenvectors(self) -> Preconditioner:
        return self

    def plain(self) -> dict[str, Any]:
        return {}

    def matrix(self, d: int) -> Array:
        return pad_axes(jnp.eye(d, dtype=self.scale.dtype), 2 + self.scale.ndim) * self.scale

    def transposed_times(self, vector: Array) -> Array:
        return self.scale * vector

    def all_layers(self, depth: int, d: int) -> Any:
        return on_host(self.scale)[:depth, None, None] * np.eye(d, dtype=self.scale.dtype)

    def begin(self, scales: Float[Array, " depth"]) -> Preconditioner:
        return Scaled(scales)

    def begin_at(self, number: float) -> Preconditioner:
        return Scaled(filled(self.scale, number))


class Shared(Scaled):
    """A_l = a_l M: one symmetric matrix M = (S + S^T) / 2 for all layers, one scale per layer."""

    kind = "full"
    half: Float[Array, "d d ..."] = parameter(axes="d d")

    @property
    def on_eigenvectors(self) -> Preconditioner:
        return Scaled(self.scale)

    def plain(self) -> dict[str, Any]:
        return {"matrix": (self.half + transpose(self.half)) / 2}

    def matrix(self, d: int) -> Array:
        checks.size("half", self.half, 0, d, "d")
        return self.scale * (self.half + transpose(self.half)) / 2

    def transposed_times(self, vector: Array) -> Array:
        checks.size("half", self.half, 0, vector.shape[0], "d")
        return self.scale * matvec((self.half + transpose(self.half)) / 2, vector)

    def all_layers(self, depth: int, d: int) -> Any:
        half = on_host(self.half)
        return on_host(self.scale)[:depth, None, None] * (half + half.T) / 2

    @property
    def common(self) -> Array:
        return self.half

    def begin(self, scales: Float[Array, " depth"]) -> Preconditioner:
        return Shared(scales, unit(self.half.shape[-1], scales.dtype))

    def begin_at(self, number: float) -> Preconditioner:
        return Shared(filled(self.scale, number), unit(self.half.shape[-1], self.half.dtype))


class One(Preconditioner):
    """A_l = (S + S^T) / 2: one symmetric matrix for every layer, as conjugate directions need."""

    kind = "full"
    half: Float[Array, "d d ..."] = parameter(axes="d d")

    @property
    def on_eigenvectors(self) -> Preconditioner:
        return Identity()

    def plain(self) -> dict[str, Any]:
        return {"matrix": self.matrix(self.half.shape[0])}

    def matrix(self, d: int) -> Array:
        checks.size("preconditioner", self.half, 0, d, "d")
        return (self.half + transpose(self.half)) / 2

    def transposed_times(self, vector: Array) -> Array:
        return matvec(self.matrix(vector.shape[0]), vector)

    def all_layers(self, depth: int, d: int) -> Any:
        half = on_host(self.half)
        return numpy_or_jax(half).broadcast_to((half + half.T) / 2, (depth, d, d))


class Full(Preconditioner):
    """A_l full and free in every layer."""

    kind = "layers"
    matrices: Float[Array, "depth d d ..."] = parameter(axes="layers d d")

    def plain(self) -> dict[str, Any]:
        return {"matrices": jnp.swapaxes(self.matrices, 1, 2)}

    def matrix(self, d: int) -> Array:
        checks.size("A", self.matrices, 1, d, "d")
        return self.matrices

    def transposed_times(self, vector: Array) -> Array:
        return matvec(transpose(self.matrix(vector.shape[0])), vector)

    def begin(self, scales: Float[Array, " depth"]) -> Preconditioner:
        return Shared(scales, unit(self.matrices.shape[-1], scales.dtype))

    def begin_at(self, number: float) -> Preconditioner:
        return Scaled(as_array(np.full(self.matrices.shape[0], number, self.matrices.dtype)))

    def write(self, found: Preconditioner) -> Preconditioner:
        return Full(as_array(found.all_layers(*self.matrices.shape[:2])))

    def all_layers(self, depth: int, d: int) -> Any:
        return on_host(self.matrices)[:depth]


class Definite(Preconditioner):
    """A_l = M, symmetric positive definite, shared by all problems of a family. rate: of Adam, for changes
    of its parameters."""

    definite = True
    rate: ClassVar[float] = 0.05

    @property
    def on_eigenvectors(self) -> Preconditioner:
        return Identity()

    @abc.abstractmethod
    def diagonal(self, like: Array) -> Array:
        """The diagonal of M, of the unknowns' shape."""

    @abc.abstractmethod
    def bound(self, c: Array) -> Array:
        """An upper bound of the largest eigenvalue of M diag(c) for c >= 0: the largest row sum of
        |M| diag(c), which no eigenvalue exceeds."""

    def matrix(self, d: int) -> Array:
        return self.transposed_times(jnp.eye(d))

    def settled(self) -> "Definite":
        """The same matrix with changes made part of it."""
        return self


class Identity(Definite):
    """A_l = I."""

    one_matrix, kind = True, "identity"

    def sizes(self, depth: int) -> Any:
        return np.ones(depth, default_dtype())

    def matrix(self, d: int) -> Array:
        return jnp.eye(d)

    def transposed_times(self, vector: Array) -> Array:
        return vector

    def all_layers(self, depth: int, d: int) -> Any:
        return np.broadcast_to(np.eye(d, dtype=default_dtype()), (depth, d, d))

    def diagonal(self, like: Array) -> Array:
        return jnp.ones_like(like)

    def bound(self, c: Array) -> Array:
        return jnp.max(c)

    def plain(self) -> dict[str, Any]:
        return {}


class Diagonal(Definite):
    """M = diag(exp(logs))."""

    kind = "diagonal"
    logs: Float[Array, "*d"] = parameter(axes="*d")

    def transposed_times(self, vector: Array) -> Array:
        return pad_axes(jnp.exp(self.logs), vector.ndim) * vector

    def diagonal(self, like: Array) -> Array:
        return jnp.exp(self.logs)

    def bound(self, c: Array) -> Array:
        return jnp.max(jnp.exp(self.logs) * c)

    def plain(self) -> dict[str, Any]:
        return {"diagonal": jnp.exp(self.logs)}


def outer_times(V: Float[Array, "*d rank"], vector: Array) -> Array:
    """V V^T times a vector."""
    axes = tuple(range(V.ndim - 1))
    inner = jnp.tensordot(V, vector, (axes, axes), precision=HIGHEST)
    return jnp.tensordot(V, inner, 1, precision=HIGHEST)


class LowRank(Definite):
    """M = S (I + V V^T) S with S = diag(exp(logs / 2)); V (*shape, rank)."""

    kind = "low-rank"
    logs: Float[Array, "*d"] = parameter(axes="*d")
    V: Float[Array, "*d rank"] = parameter(axes="*d rank", per_prompt=False)

    def transposed_times(self, vector: Array) -> Array:
        root = pad_axes(jnp.exp(self.logs / 2), vector.ndim)
        scaled = root * vector
        return root * (scaled + outer_times(self.V, scaled))

    def diagonal(self, like: Array) -> Array:
        return jnp.exp(self.logs) * (1 + jnp.sum(self.V**2, axis=-1))

    def bound(self, c: Array) -> Array:
        root = jnp.exp(self.logs / 2)
        return jnp.max(root * (root * c + outer_times(jnp.abs(self.V), root * c)))

    def plain(self) -> dict[str, Any]:
        return {"diagonal": jnp.exp(self.logs), "V": self.V}


class Computed(Definite):
    """A matrix that runs as another one, which is computed from its parameters."""

    @abc.abstractmethod
    def ready(self) -> Definite: ...

    def transposed_times(self, vector: Array) -> Array:
        return self.ready().transposed_times(vector)

    def diagonal(self, like: Array) -> Array:
        return self.ready().diagonal(like)

    def bound(self, c: Array) -> Array:
        return self.ready().bound(c)


class Deflated(Computed):
    """M = S (I + V V^T)^-1 S with S = diag(exp(logs / 2)); V (*shape, rank): shorter steps along a few stiff directions."""

    kind = "full"
    logs: Float[Array, "*d"] = parameter(axes="*d")
    V: Float[Array, "*d rank"] = parameter(axes="*d rank", per_prompt=False)

    def ready(self) -> "Reduced":
        """(I + V V^T)^-1 = I - V (I + V^T V)^-1 V^T = I - Q Q^T."""
        flat = self.V.reshape(-1, self.V.shape[-1])
        core = jnp.matmul(flat.T, flat, precision=HIGHEST)
        root = jnp.linalg.cholesky(jnp.eye(len(core), dtype=core.dtype) + core)
        Q = jax.scipy.linalg.solve_triangular(root, flat.T, lower=True).T
        return Reduced(self.logs, Q.reshape(self.V.shape))

    def plain(self) -> dict[str, Any]:
        size = self.logs.size
        units = jnp.eye(size, dtype=self.logs.dtype).reshape(*self.logs.shape, size)
        return {"matrix": self.transposed_times(units).reshape(size, size)}


class Reduced(Definite):
    """M = S (I - Q Q^T) S, Q Q^T < I: what `Deflated` runs as."""

    kind = "full"
    logs: Float[Array, "*d"]
    Q: Float[Array, "*d rank"]

    def transposed_times(self, vector: Array) -> Array:
        root = pad_axes(jnp.exp(self.logs / 2), vector.ndim)
        scaled = root * vector
        return root * (scaled - outer_times(self.Q, scaled))

    def diagonal(self, like: Array) -> Array:
        return jnp.exp(self.logs) * (1 - jnp.sum(self.Q**2, axis=-1))

    def bound(self, c: Array) -> Array:
        root = jnp.exp(self.logs / 2)
        return jnp.max(root * (root * c + outer_times(jnp.abs(self.Q), root * c)))


class Transformed(Definite):
    """M = T^T diag(exp(logs)) T with T an orthonormal sine or cosine transform of every axis."""

    kind = "transform"
    logs: Float[Array, "*d"] = parameter(axes="*d")
    transform: str = eqx.field(static=True)  # type: ignore[misc]

    def transposed_times(self, vector: Array) -> Array:
        axes = self.logs.ndim
        modes = pad_axes(jnp.exp(self.logs), vector.ndim) * along_axes(vector, self.transform, axes)
        return along_axes(modes, self.transform, axes, inverse=True)

    def diagonal(self, like: Array) -> Array:
        squares = jnp.exp(self.logs)
        for axis, n in enumerate(self.logs.shape):
            T2 = jnp.asarray(transform_matrix(self.transform, n) ** 2, like.dtype)
            squares = jnp.moveaxis(jnp.tensordot(T2, squares, (0, axis), precision=HIGHEST), 0, axis)
        return squares

    def bound(self, c: Array) -> Array:
        return jnp.exp(jnp.max(self.logs)) * jnp.max(c)

    def plain(self) -> dict[str, Any]:
        return {"transform": self.transform, "modes": jnp.exp(self.logs)}


class Factored(Computed):
    """M = F F^T with F = base (I + change) over the flattened unknowns; the base is not trained."""

    kind, rate = "full", 0.01
    base: Float[Array, "size size"]
    change: Float[Array, "size size"] = parameter(axes="size size", per_prompt=False)

    @property
    def whole(self) -> Float[Array, "size size"]:
        """M itself."""
        factor = self.base + jnp.matmul(self.base, self.change, precision=HIGHEST)
        return jnp.matmul(factor, factor.T, precision=HIGHEST)

    def plain(self) -> dict[str, Any]:
        return {"matrix": self.whole}

    def settled(self) -> Definite:
        factor = self.base + jnp.matmul(self.base, self.change, precision=HIGHEST)
        return Factored(factor, jnp.zeros_like(factor))

    def ready(self) -> "Dense":
        return Dense(self.whole)


class Dense(Definite):
    """A_l = M, a matrix over the flattened unknowns, as numbers; what `Factored` runs as."""

    kind = "full"
    whole: Float[Array, "size size"]

    def matrix(self, d: int) -> Array:
        return self.whole

    def transposed_times(self, vector: Array) -> Array:
        size = self.whole.shape[0]
        if vector.size != size:  # prompts ride last
            return jnp.matmul(self.whole, vector.reshape(size, -1), precision=HIGHEST).reshape(vector.shape)
        # M is symmetric, and with the vector on the left a batch of them needs no transpose
        return jnp.matmul(vector.reshape(size), self.whole, precision=HIGHEST).reshape(vector.shape)

    def diagonal(self, like: Array) -> Array:
        return jnp.diagonal(self.whole).reshape(like.shape)

    def bound(self, c: Array) -> Array:
        return jnp.max(jnp.matmul(c.reshape(-1), jnp.abs(self.whole), precision=HIGHEST))

    def plain(self) -> dict[str, Any]:
        return {"matrix": self.whole}


TRANSFORMS = ("sine", "cosine")


def transform_matrix(transform: str, n: int) -> np.ndarray:
    """The orthonormal DST-I (zero at both ends) or DCT-II (mirrored at both ends), rows are modes."""
    i, k = np.arange(n), np.arange(n)[:, None]
    if transform == "sine":
        return np.sqrt(2 / (n + 1)) * np.sin(np.pi * (k + 1) * (i + 1) / (n + 1))
    T = np.sqrt(2 / n) * np.cos(np.pi * k * (2 * i + 1) / (2 * n))
    T[0] /= np.sqrt(2)
    return T


def along_axes(vector: Array, transform: str, axes: int, inverse: bool = False) -> Array:
    """The transform of the first axes, as products with small dense matrices: on the grids that learning
    is feasible for (up to some hundred points a side) these are faster than FFTs, which XLA runs as
    complex ones."""
    for axis in range(axes):
        T: Any = jnp.asarray(transform_matrix(transform, vector.shape[axis]), vector.dtype)
        product = jnp.tensordot(vector, T, (axis, 0 if inverse else 1), precision=HIGHEST)
        vector = jnp.moveaxis(product, -1, axis)
    return vector
