"""Solutions that learning measures errors against: exact to rounding, whatever they cost."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lfom.core.checks import InputError
from lfom.solving.preconditioners import Identity, Scaled
from lfom.solving.quadratics import Matrices, Quadratics, norms
from lfom.solving.steps import Conjugated, conjugate_start, conjugate_step


def solutions(quadratics: Quadratics) -> Array:
    """w* of every problem: from the matrices directly, else by conjugate gradients to the end."""
    if isinstance(quadratics, Matrices):
        return _direct(
            np.asarray(quadratics.A, np.float64), np.asarray(quadratics.b, np.float64), quadratics.b
        )
    limit = 1e3 * jnp.finfo(quadratics.b.dtype).eps ** 0.75
    w, residual, flat = _iterated(quadratics)
    flat &= residual > limit  # below, rounding alone makes a direction flat
    if bool(flat.any()):
        raise InputError(
            f"the operator of problem {int(jnp.argmax(flat))} is not positive definite: v.Av is not "
            "positive for some v. These methods minimise; check the sign of the operator."
        )
    if not bool((residual <= limit).all()):
        worst = int(jnp.argmax(jnp.where(jnp.isnan(residual), jnp.inf, residual)))
        raise InputError(
            f"problem {worst} could not be solved for learning: after {_longest(quadratics)} steps of "
            f"conjugate gradients its relative residual is {float(residual[worst]):.1e} (wanted {limit:.1e}). "
            "Its operator is singular, not symmetric or too ill conditioned for this precision; try float64."
        )
    return w


def _direct(A: np.ndarray, b: np.ndarray, like: Array) -> Array:
    try:
        w = np.linalg.solve(A, b[..., None])[..., 0]
    except np.linalg.LinAlgError:
        w = np.full_like(b, np.nan)
    error = np.linalg.norm(np.einsum("pij,pj->pi", A, w) - b, axis=1)
    poor = ~(error <= 1e-8 * np.linalg.norm(b, axis=1))
    if poor.any():  # singular to rounding: the solution of smallest norm
        values, vectors = np.linalg.eigh(A[poor])
        keep = values > values[:, -1:] * A.shape[1] * np.finfo(np.float64).eps * 10
        coordinates = np.einsum("pji,pj->pi", vectors, b[poor])
        w[poor] = np.einsum("pij,pj->pi", vectors, np.where(keep, coordinates / np.where(keep, values, 1), 0))
        off = np.linalg.norm(np.einsum("pij,pj->pi", A[poor], w[poor]) - b[poor], axis=1)
        bad = off > float(jnp.finfo(like.dtype).eps) ** 0.5 * np.linalg.norm(b[poor], axis=1)
        if bad.any():
            raise InputError(
                f"problem {np.flatnonzero(poor)[bad][0]} has no solution: A is singular and b is not in its "
                "range. Add a ridge, or leave the problem out."
            )
    return jnp.asarray(w, like.dtype)


def _longest(quadratics: Quadratics) -> int:
    return min(20 * quadratics.b[0].size, 20_000)


@eqx.filter_jit
def _iterated(quadratics: Quadratics) -> tuple[Array, Array, Array]:
    diagonal = quadratics.diagonal()
    precondition = Scaled(Identity(), None if diagonal is None else 1 / jnp.sqrt(diagonal))
    b = quadratics.b
    target = 10 * jnp.finfo(b.dtype).eps * norms(b)
    start = (jnp.asarray(0), conjugate_start(jnp.zeros_like(b), b))

    def unfinished(state: tuple[Array, Conjugated]) -> Array:
        active = (norms(state[1].r) > target) & ~state[1].flat
        return (state[0] < _longest(quadratics)) & active.any()

    def body(state: tuple[Array, Conjugated]) -> tuple[Array, Conjugated]:
        count, now = state
        active = (norms(now.r) > target) & ~now.flat
        return count + 1, conjugate_step(now, quadratics, precondition, active)

    _, end = jax.lax.while_loop(unfinished, body, start)
    size = jnp.where(norms(b) > 0, norms(b), 1)
    return end.w, norms(b - quadratics.times(end.w)) / size, end.flat
