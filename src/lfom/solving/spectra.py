"""The extreme eigenvalues of M A over a batch of problems."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from lfom.core.memories import Conjugate
from lfom.core.methods import Method
from lfom.core.problems import IterateProblem, Operator
from lfom.core.unroll import trace
from lfom.solving.joint import coefficients_met
from lfom.solving.pieces import mapped

LARGEST_EXACT = 512  # unknowns
LANCZOS = 40  # steps


@eqx.filter_jit
def matrices(problems: IterateProblem) -> Float[Array, "problems size size"]:
    """Every A as a matrix over the flattened unknowns: for learning and for tests, where d is small."""
    if problems.has_gram():
        return problems.gram  # type: ignore[attr-defined]
    shape = jax.eval_shape(jax.vmap(lambda one: one.initial()[0]), problems).shape
    size = int(np.prod(shape[1:]))
    units = jnp.eye(size).reshape(size, *shape[1:])

    def column(unit: Array) -> Array:
        return jax.vmap(lambda one: one.hessian_times(unit.astype(one.initial()[0].dtype)))(problems)

    columns = jax.lax.map(column, units)  # (size, problems, *shape)
    return jnp.moveaxis(columns.reshape(size, -1, size), 0, -1)


def extreme_eigenvalues(problems: IterateProblem, reader: Any) -> tuple[float, float, bool]:
    """The smallest and the largest, and whether they are exact. reader: of the gradient times M, positive
    definite, in Jacobi's coordinates or not."""
    size = jax.eval_shape(lambda: jax.tree.map(lambda leaf: leaf[0], problems)).unknowns()
    if problems.has_gram() and size <= LARGEST_EXACT:
        A = np.asarray(matrices(problems), np.float64)
        seen, own = _coordinates(problems, reader, size)
        s = np.ones(A.shape[:2]) if seen is None else np.asarray(seen, np.float64)
        M = np.asarray(own, np.float64)
        values, vectors = np.linalg.eigh((M + M.T) / 2)
        root = vectors * np.sqrt(values) @ vectors.T
        found = np.linalg.eigvalsh(root @ (s[:, :, None] * A * s[:, None, :]) @ root)
        return max(float(found.min()), 0.0), float(found.max()), True
    # on the host: two programs with eigenvalues of a batch, at once in two threads, wait for each other for ever
    ritz = np.linalg.eigvalsh(np.asarray(_lanczos(problems, reader, min(LANCZOS, size)), np.float64))
    return float(ritz.min()), float(ritz.max()), False


@eqx.filter_jit
def _coordinates(problems: IterateProblem, reader: Any, size: int) -> tuple[Any, Array]:
    return jax.vmap(reader.look)(problems), reader.A.matrix(size)


@eqx.filter_jit
def _lanczos(problems: IterateProblem, reader: Any, steps: int) -> Float[Array, "problems steps steps"]:
    """Lanczos' tridiagonal matrix T of M A from a random start: its eigenvalues lie inside the spectrum, and near its ends.

    Conjugate gradients hold it in their coefficients:
    T[l, l] = 1 / alpha_l + gamma_l / alpha_{l-1}, T[l, l+1] = sqrt(gamma_{l+1}) / alpha_l. They stop where only
    rounding is left, of which coefficients may be anything.
    """
    moments = jax.vmap(lambda one: one.initial()[0])(problems)
    method = Method(reader, Conjugate(float(jnp.finfo(moments.dtype).eps)), steps)
    starts = jax.random.normal(jax.random.key(0), moments.shape, moments.dtype)

    def one(problem: IterateProblem, start: Array) -> tuple[Array, Array]:
        other = Operator(lambda data, v: data.hessian_times(v), problem, start, problem.diagonal())
        _, _, (alpha, gamma) = trace(method, other, None, coefficients_met, loop=True)
        return alpha, gamma

    alpha, gamma = mapped(one, problems, starts)
    before = jnp.concatenate([alpha[:, :1], alpha[:, :-1]], axis=1)
    going = alpha > 0  # once the space ends, the first quotient stands for the rest: it lies inside
    inverse, inverse_before = (1 / jnp.where(a > 0, a, alpha[:, :1]) for a in (alpha, before))
    main = jnp.where(going, inverse + gamma * inverse_before, inverse)
    off = jnp.where(going[:, 1:], jnp.sqrt(gamma[:, 1:]) * inverse[:, :-1], 0)
    return jax.vmap(lambda a, b: jnp.diag(a) + jnp.diag(b, 1) + jnp.diag(b, -1))(main, off)
