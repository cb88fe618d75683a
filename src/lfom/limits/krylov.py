"""Krylov coordinates: what every method with shared numbers has in common.

With one preconditioner M and coefficients that are numbers, whatever the memory, the answer after
L steps is

    w = c_0 v_0 + ... + c_{L-1} v_{L-1},     v_k = T_k(2 M G / h - 1) M b,

T_k the Chebyshev polynomials on the eigenvalues (0, h): plain powers would be too ill-conditioned.
The loss is quadratic in c, so three small moments of the prompts say what any such method loses
(`moments`), and the method itself, run on a problem of L unknowns, says what its c is
(`coefficients`).
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from lfom.core.arrays import matvec
from lfom.core.methods import Algorithm
from lfom.core.problems import Quadratic
from lfom.core.unroll import unroll


def factors(depth: int, dtype: Any) -> Array:
    """(s_k, t_k) of the three-term recurrence: (1, 0) for its first step, then (2, 1)."""
    return jnp.asarray([[1, 0], *[[2, 1]] * (depth - 1)], dtype)


def basis(
    q: Quadratic, M: Float[Array, "d d"] | None, depth: int, h: Array | float
) -> Float[Array, "depth d prompts"]:
    """u_k for k < depth, with v_k = M u_k (M = None is the identity):
    u_{k+1} = s_k (2/h G v_k - u_k) - t_k u_{k-1}."""

    def step(carry: tuple[Array, Array], now: Array) -> tuple[tuple[Array, Array], Array]:
        u, before = carry
        v = u if M is None else M @ u
        after = now[0] * ((2 / h) * matvec(q.gram, v) - u) - now[1] * before
        return (after, u), u

    start = (q.moment, jnp.zeros_like(q.moment))
    return jax.lax.scan(step, start, factors(depth, q.moment.dtype))[1]


def seen(q: Quadratic, M: Float[Array, "d d"] | None, u: Array) -> Float[Array, "depth k prompts"]:
    """probe v_k: what the question sees of the basis."""
    depth, d, prompts = u.shape
    v = u
    if M is not None:
        v = jnp.moveaxis((M @ jnp.moveaxis(u, 1, 0).reshape(d, -1)).reshape(d, depth, prompts), 0, 1)
    return jnp.stack([matvec(q.probe, v_k) for v_k in v])


@eqx.filter_jit
def moments(q: Quadratic, M: Float[Array, "d d"] | None, depth: int, h: Array) -> tuple[Array, Array, Array]:
    """H, g and t with mean loss c.Hc - 2 c.g + t over the prompts of q."""
    rows, count = seen(q, M, basis(q, M, depth, h)), q.moment.shape[-1]
    flat = rows.reshape(depth, -1)
    precise = jax.lax.Precision.HIGHEST
    return (
        jnp.matmul(flat, flat.T, precision=precise) / count,
        jnp.matmul(flat, q.target.reshape(-1), precision=precise) / count,
        jnp.sum(q.target**2) / count,
    )


def shift_table(depth: int) -> np.ndarray:
    """What M G / h does to the coordinates of w: t T_k = h/2 (T_k + (T_{k+1} + T_{k-1}) / 2)."""
    matrix = np.eye(depth) + 0.5 * (np.eye(depth, k=1) + np.eye(depth, k=-1))
    if depth > 1:
        matrix[1, 0] = 1.0  # t T_0 = h/2 (T_0 + T_1)
    return matrix / 2


def coefficients(
    algorithm: Algorithm, h: Array | float, active: Float[Array, " depth"] | None = None
) -> Float[Array, "steps depth"]:
    """c after 0, 1, ..., depth steps: the algorithm itself, with A = I, run on a problem whose "Gram
    matrix" is the shift."""
    depth = algorithm.depth
    shift = h * jnp.asarray(shift_table(depth))
    moment = jnp.zeros(depth, shift.dtype).at[0].set(1)
    problem = Quadratic(shift, moment, jnp.eye(depth, dtype=shift.dtype), moment)
    return unroll(algorithm, problem, active)
