"""Small linear algebra in which prompts ride on trailing axes.

Every array of the iterate view may carry trailing axes for prompts: a vector is
(d, *prompts), a matrix (d, d, *prompts), a number (*prompts). Parameters usually have
none, and then they are shared by all prompts. One piece of code therefore serves a single
prompt, a batch with the prompts last (the fast layout for small d, where products and sums are
elementwise and the compiler vectorises over prompts), and per-prompt parameters, which is
how per-prompt Jacobians and gates are computed.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.custom_derivatives import SymbolicZero

from lfom.core.compiler import sums_are_handed_over

PROMPTS_LAST = 16  # up to this d prompts ride last, which measured faster
HIGHEST = jax.lax.Precision.HIGHEST  # GPUs would otherwise round the factors of float32 products
ONE_SUM = 8  # inner sums up to this length are one operation on a CPU, longer ones are loops


def on_host(array: Any) -> Any:
    """The array for NumPy, where its values are known: its operations are not compiled."""
    return array if isinstance(array, jax.core.Tracer) else np.asarray(array)


def numpy_or_jax(*arrays: Any) -> Any:
    """The module to compute with: NumPy unless a value is not known yet (inside jit, vmap or grad)."""
    return jnp if any(isinstance(array, jax.Array) for array in arrays) else np


def as_array(value: Any, dtype: Any = None) -> Array:
    """A JAX array of what NumPy holds. jnp.asarray compiles a program for every new shape; this does not."""
    if isinstance(value, jax.Array):
        return value if dtype is None else value.astype(dtype)
    return jax.device_put(np.asarray(value, dtype))


def as_it_is(array: np.ndarray) -> Array:
    """A JAX array of the same precision, whatever JAX computes in now."""
    if array.dtype.itemsize < 8:
        return jax.device_put(array)
    with jax.enable_x64(True):
        return jax.device_put(array)


def default_dtype() -> Any:
    """The floating-point type that JAX computes in now."""
    return jax.dtypes.canonicalize_dtype(float)


def ones(*shape: int) -> Array:
    """Ones, without compiling a program for them."""
    return as_array(np.ones(shape, default_dtype()))


def unit(d: int, dtype: Any) -> Array:
    """The identity matrix, without compiling a program for it."""
    return as_array(np.eye(d, dtype=dtype))


def filled(like: Array, number: float) -> Array:
    """An array of the same shape with one number everywhere, without compiling a program for it."""
    return as_array(np.full(like.shape, number, like.dtype))


def parts(array: Array, sizes: Sequence[int], axis: int = 0) -> list[Array]:
    """`array` cut into pieces of these sizes. Its derivative puts them together again; those of slices are padded arrays
    that are added up, which takes longer and is more to compile."""
    return [array] if len(sizes) == 1 else [*jax.lax.split(array, tuple(sizes), axis=axis)]


def unstacked(array: Array, axis: int = 0) -> list[Array]:
    """What stands on an axis, one by one."""
    return [jnp.squeeze(part, axis) for part in parts(array, (1,) * array.shape[axis], axis)]


def pad_axes(array: Array, rank: int) -> Array:
    """`array` with axes of size 1 appended up to `rank`, so that it broadcasts over prompts."""
    return array.reshape(array.shape + (1,) * (rank - array.ndim))


def matvec(matrix: Array, vector: Array) -> Array:
    """matrix (e, d, *prompts or none) times vector (d, *prompts)."""
    if vector.ndim == 1 and matrix.ndim == 2:
        return jnp.matmul(matrix, vector, precision=HIGHEST)
    if matrix.ndim == 2:
        small = matrix.shape[1] <= PROMPTS_LAST
        return _shared_matvec(matrix, vector) if small else jnp.tensordot(matrix, vector, axes=1)
    vector = pad_axes(vector, matrix.ndim - 1)
    matrix = pad_axes(matrix, vector.ndim + 1)
    if matrix.shape[1] <= PROMPTS_LAST:
        return _inner_sum(matrix, vector[None])
    return jnp.einsum("ij...,j...->i...", matrix, vector)


def _inner_sum(left: Array, right: Array) -> Array:
    """sum over k of left[:, k] * right[:, k], one of them broadcast.

    Adding up slices left[:, k] instead looks the same, but the derivative of a slice is a padded array:
    an Adam step took 4 times longer. Chains of long sums are fused and computed again and again by
    XLA's CPU compiler, so there they are loops: at d = 10, depth 7, a bank runs 3 times faster, the
    Jacobian of a conjugate register 5 times. They are loops too where sums are not XLA's own work."""
    on_cpu = jax.default_backend() == "cpu"
    if not on_cpu or (left.shape[1] <= ONE_SUM and not sums_are_handed_over()):
        return jnp.sum(left * right, axis=1)
    left, right = jnp.moveaxis(left, 1, 0), jnp.moveaxis(right, 1, 0)
    if len(left) == 1 or len(right) == 1:  # jax.disable_jit knows no loop over nothing
        return jnp.sum(left * right, axis=0)

    def add(total: Array, factors: tuple[Array, Array]) -> tuple[Array, None]:
        return total + factors[0] * factors[1], None

    return jax.lax.scan(add, left[0] * right[0], (left[1:], right[1:]))[0]


# A matrix shared by all prompts. The product itself is elementwise; its derivative in the
# matrix sums over prompts, which is a long inner product, so there it is an ordinary one. The
# elementwise form also steers clear of a miscompilation in XLA's CPU compiler (jaxlib 0.10.2):
# a dot with a constant operand, fused into a reduction, returned NaN for some prompts.
@jax.custom_jvp
def _shared_matvec(matrix: Array, vector: Array) -> Array:
    return _inner_sum(pad_axes(matrix, vector.ndim + 1), vector[None])


def _shared_matvec_jvp(primals: tuple[Array, Array], tangents: tuple[Any, Any]) -> tuple[Array, Array]:
    """A tangent that is zero as a whole (gates alone are differentiated) costs nothing."""
    (matrix, vector), (matrix_dot, vector_dot) = primals, tangents
    found = _shared_matvec(matrix, vector)
    change = jnp.zeros_like(found)
    if not isinstance(vector_dot, SymbolicZero):
        change = _inner_sum(pad_axes(matrix, vector.ndim + 1), vector_dot[None])
    if not isinstance(matrix_dot, SymbolicZero):
        change = change + jnp.tensordot(matrix_dot, vector, axes=1)
    return found, change


_shared_matvec.defjvp(_shared_matvec_jvp, symbolic_zeros=True)


def matmat(left: Array, right: Array) -> Array:
    """left (e, d, *prompts or none) times right (d, f, *prompts or none)."""
    if left.ndim == 2 and right.ndim == 2:
        return left @ right
    rank = max(left.ndim, right.ndim)
    left, right = pad_axes(left, rank), pad_axes(right, rank)
    if left.shape[1] <= PROMPTS_LAST:
        return _inner_sum(left[:, :, None], right[None])
    return jnp.einsum("ij...,jk...->ik...", left, right)


def transpose(matrix: Array) -> Array:
    """Swap the two leading axes: the transpose of (d, e, *prompts)."""
    return jnp.swapaxes(matrix, 0, 1)


def dot(left: Array, right: Array) -> Array:
    """Inner product of two vectors (d, *prompts): one number per prompt."""
    return jnp.sum(left * right, axis=0)


@jax.custom_jvp
def norm(vector: Array) -> Array:
    """The Euclidean norm of a whole array. Squares are summed at three scales in one pass, and that sum is taken which
    neither overflow nor underflow spoils."""
    limits = jnp.finfo(vector.dtype)
    up, down = 2.0 ** (-limits.minexp // 2), 2.0 ** -(limits.maxexp // 2 + 8)
    plain, raised, lowered = (jnp.sum((vector * scale) ** 2) for scale in (1, up, down))
    rest = jnp.where(jnp.isinf(plain), jnp.sqrt(lowered) / down, jnp.sqrt(raised) / up)
    return jnp.where(jnp.isfinite(plain) & (plain > 1 / up), jnp.sqrt(plain), rest)


@norm.defjvp
def _norm_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    (vector,), (change,) = primals, tangents
    size = norm(vector)
    return size, jnp.sum(jnp.where(size > 0, vector / jnp.where(size > 0, size, 1), 0) * change)


def ratio(top: Array | float, bottom: Array, otherwise: Array | float = 0.0) -> Array:
    """top / bottom where bottom > 0; never 0 / 0, nor its derivative."""
    good = bottom > 0
    return jnp.where(good, top / jnp.where(good, bottom, 1), otherwise)


def identity(d: int, like: Array) -> Array:
    """The identity of size d with the prompt axes of the vector `like`."""
    eye = pad_axes(jnp.eye(d, dtype=like.dtype), like.ndim + 1)
    return jnp.broadcast_to(eye, (d, d, *like.shape[1:]))


def semidefinite_root(K: Array) -> Array:
    """C, lower triangular, with C C^T = K, for positive semidefinite matrices (n, n, *prompts): Cholesky's, in which a
    pivot that is zero to rounding leaves a column of zeros."""
    n = K.shape[0]
    least = 10 * n * jnp.finfo(K.dtype).eps * jnp.max(jnp.diagonal(K, axis1=0, axis2=1), axis=-1)

    def column(C: Array, now: tuple[Array, Array]) -> tuple[Array, None]:
        j, c = now
        c = c - jnp.sum(C * C[j][None], axis=1)
        good = c[j] > least
        c = jnp.where(good & pad_axes(jnp.arange(n) >= j, c.ndim), c / jnp.sqrt(jnp.where(good, c[j], 1)), 0)
        return jax.lax.dynamic_update_index_in_dim(C, c, j, 1), None

    return jax.lax.scan(column, jnp.zeros_like(K), (jnp.arange(n), jnp.moveaxis(K, 1, 0)))[0]


def triangular_factor(Z: Array) -> Array:
    """R (m, m, *prompts), upper triangular, with R^T R = Z^T Z, for Z (n, m, *prompts): Gram and Schmidt's, every column
    made orthogonal twice. LAPACK's QR of batches never returns if two threads call it at once (jaxlib 0.10.1)."""
    n, m = Z.shape[:2]
    least = n * jnp.finfo(Z.dtype).eps

    def column(Q: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        j, z = now
        size, shares = norms(z), jnp.zeros((m, *Z.shape[2:]), Z.dtype)
        for _ in range(2):
            found = jnp.sum(Q * z[:, None], axis=0)
            shares, z = shares + found, z - jnp.sum(Q * found[None], axis=1)
        rest = norms(z)
        good = rest > least * size  # else it is rounding
        q = jnp.where(good, z / jnp.where(good, rest, 1), 0)
        own = pad_axes(jnp.arange(m) == j, shares.ndim)
        return jax.lax.dynamic_update_index_in_dim(Q, q, j, 1), jnp.where(
            own, jnp.where(good, rest, 0), shares
        )

    def norms(z: Array) -> Array:
        return jnp.sqrt(jnp.sum(z**2, axis=0))

    each = (jnp.arange(m), jnp.moveaxis(Z, 1, 0))
    return jnp.moveaxis(jax.lax.scan(column, jnp.zeros_like(Z), each)[1], 0, 1)
