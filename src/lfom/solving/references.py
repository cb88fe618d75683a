"""Solutions that learning measures errors against: exact to rounding, whatever they cost."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float

from lfom.core.arrays import norm, ratio
from lfom.core.checks import InputError
from lfom.core.memories import Conjugate
from lfom.core.methods import Method
from lfom.core.problems import IterateProblem
from lfom.core.stopping import begin, until
from lfom.solving.systems import plain_reader, starts


def solutions(problems: IterateProblem) -> Float[Array, "problems *shape"]:
    """w* of every problem: from the matrices directly, else by conjugate gradients to the end."""
    if problems.has_gram():
        gram, moment = problems.gram, problems.moment  # type: ignore[attr-defined]
        return _direct(np.asarray(gram, np.float64), np.asarray(moment, np.float64), moment)
    w, residual, flat = _iterated(problems)
    limit = 1e3 * jnp.finfo(w.dtype).eps ** 0.75
    flat &= residual > limit  # below, rounding alone makes a direction flat
    if bool(flat.any()):
        raise InputError(
            f"the operator of problem {int(jnp.argmax(flat))} is not positive definite: v.Av is not "
            "positive for some v. These methods minimise; check the sign of the operator."
        )
    if not bool((residual <= limit).all()):
        worst = int(jnp.argmax(jnp.where(jnp.isnan(residual), jnp.inf, residual)))
        raise InputError(
            f"problem {worst} could not be solved for learning: after {_longest(w)} steps of "
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


def _longest(w: Array) -> int:
    return min(20 * w[0].size, 20_000)


@eqx.filter_jit
def _iterated(problems: IterateProblem) -> tuple[Array, Float[Array, " problems"], Bool[Array, " problems"]]:
    first = begin(problems, starts(problems), 0)
    target = 10 * jnp.finfo(first.size.dtype).eps * first.size
    limit = jnp.full_like(first.taken, _longest(first.state.w))
    end = until(Method(plain_reader(problems), Conjugate(), 1), problems, first, limit, target)
    left = jax.vmap(lambda one, w: norm(one.gradient(w)))(problems, end.state.w)
    return end.state.w, ratio(left, jnp.where(first.size > 0, first.size, 1)), end.stuck
