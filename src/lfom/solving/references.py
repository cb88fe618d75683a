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
from lfom.core.preconditioners import Identity
from lfom.core.problems import IterateProblem
from lfom.core.readers import Gradient
from lfom.core.stopping import Goal, begin, until
from lfom.solving.spectra import extreme_eigenvalues
from lfom.solving.systems import plain_reader, starts


def solutions(problems: IterateProblem) -> Float[Array, "problems *shape"]:
    """w* of every problem: from the matrices directly, else by conjugate gradients to the end."""
    return solved(problems)[0]


def solved(problems: IterateProblem) -> tuple[Float[Array, "problems *shape"], float]:
    """w* of every problem, and the largest eigenvalue of all: exact for matrices, else an estimate from below, the
    largest |A v| / |v| of all steps v on the way."""
    if problems.has_gram():
        gram, moment = problems.gram, problems.moment  # type: ignore[attr-defined]
        w = _direct(np.asarray(gram, np.float64), np.asarray(moment, np.float64), moment)
        return w, extreme_eigenvalues(problems, Gradient(Identity()))[1]
    w, *found = _iterated(problems)
    residual, flat, stretch = (np.asarray(one) for one in found)
    limit = 1e3 * float(jnp.finfo(w.dtype).eps) ** 0.75
    flat = flat & (residual > limit)  # below, rounding alone makes a direction flat
    if flat.any():
        raise InputError(
            f"the operator of problem {int(np.argmax(flat))} is not positive definite: v.Av is not "
            "positive for some v. These methods minimise; check the sign of the operator."
        )
    if not (residual <= limit).all():
        worst = int(np.argmax(np.where(np.isnan(residual), np.inf, residual)))
        raise InputError(
            f"problem {worst} could not be solved for learning: after {_longest(w)} steps of "
            f"conjugate gradients its relative residual is {float(residual[worst]):.1e} (wanted {limit:.1e}). "
            "Its operator is singular, not symmetric or too ill conditioned for this precision; try float64."
        )
    return w, float(stretch.max())


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
def _iterated(problems: IterateProblem) -> tuple[Array, Array, Bool[Array, " problems"], Array]:
    """The solutions, their relative residuals, who met a direction without curvature, and the largest |A v| / |v|
    for the steps v."""
    first = begin(problems, starts(problems), 0)
    longest = jnp.full(first.size.shape, _longest(first.state.w))
    method = Method(plain_reader(problems), Conjugate(), 1)
    now = until(method, problems, first, longest, Goal(10 * jnp.finfo(first.size.dtype).eps * first.size))
    left = jax.vmap(lambda one, w: norm(one.gradient(w)))(problems, now.state.w)
    return now.state.w, ratio(left, jnp.where(first.size > 0, first.size, 1)), now.stuck, now.stretch
