"""Newton's method on the mean log loss of a prompt with a ridge: where generalised linear models are fitted."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from lfom.core import checks, room
from lfom.core.arrays import identity, matvec, ones, pad_axes
from lfom.core.memories import Forget
from lfom.core.methods import Method
from lfom.core.readers import Reader
from lfom.core.states import Direction, Iterate, NoSuchView, Track

HALVINGS = 6  # of a step that does not lower the loss
LEAST = 1e-6  # of the mean curvature at the start is added to every curvature: a class may have none


class NewtonStep(Reader):
    """-(H + C)^-1 (grad R + C w), the step to the minimum of a quadratic model of R + w.Cw / 2, or the half, quarter, ...
    of it that lowers that loss most; C is the ridge, or the ridge times I where it is a number. It reads second
    derivatives: a rival, no first-order method."""

    ridge: Float[Array, ""] | Float[Array, "d d"]

    views = ("iterates",)

    def on_tokens(self, Z: Array, problem: Any) -> Array:
        raise NoSuchView(
            "Newton's method solves a linear system for w, which tokens do not hold: run it with view='iterates'."
        )

    def on_iterates(self, state: Iterate, problem: Any) -> Direction:
        w = state.context.w
        unit = identity(w.shape[0], w)
        C = self.ridge * unit if self.ridge.ndim == 0 else pad_axes(self.ridge, unit.ndim)
        least = LEAST * problem.mean_eigenvalue() * unit
        whole = -solved(problem.hessian(w) + C + least, state.gradient + matvec(C, w))

        def loss(step: Array) -> Array:
            found = problem.value(w + step) + problem.inner(w + step, matvec(C, w + step)) / 2
            return jnp.where(jnp.isnan(found), jnp.inf, found)

        parts = 0.5 ** jnp.arange(HALVINGS, dtype=w.dtype)
        losses = jnp.stack([loss(part * whole) for part in parts])
        lowest = jnp.where(losses.min(axis=0) <= loss(0 * w), parts[losses.argmin(axis=0)], 0)
        track = Track(lowest * whole)
        return Direction(track, None if state.query is None else track)


def solved(
    matrix: Float[Array, "d d *prompts"], right: Float[Array, "d *prompts"]
) -> Float[Array, "d *prompts"]:
    """matrix^-1 right, positive definite matrices: Gauss and Jordan's elimination, which needs no pivots then.

    Prompts stay on the last axis; and two threads that called the library for linear algebra on batches waited for each
    other (jaxlib 0.10.1)."""

    def eliminate(j: Array, rows: Array) -> Array:
        own = rows[j] / rows[j, j]
        return (rows - rows[:, j][:, None] * own[None]).at[j].set(own)

    whole = jnp.concatenate([matrix, right[:, None]], axis=1)
    return jax.lax.fori_loop(0, matrix.shape[0], eliminate, whole)[:, -1]


def newton(steps: int, ridge: Any) -> Method:
    """Newton's method on R(w) + ridge |w|^2 / 2, damped; R the mean log loss of a prompt with a link. After many steps
    w is the fitted model: that of maximum likelihood, shrunk by the ridge. Without a ridge a prompt whose classes
    can be told apart has none. ridge: a number, or a symmetric matrix C (d, d) for w.Cw / 2.

    >>> import jax
    >>> from lfom import LogisticRegression, newton, run
    >>> prompts = LogisticRegression([1.0, 0.5], context=8).prompts(jax.random.key(0), 3)
    >>> run(newton(10, ridge=0.1), prompts).predictions.shape
    (11, 3)
    """
    steps = room.layers("steps", checks.count("steps", steps))
    matrix = checks.axes("ridge", ridge) == 2
    known = checks.symmetric("ridge", ridge) if matrix else checks.non_negative("ridge", ridge)
    return Method(NewtonStep(known), Forget(ones(steps)), steps)
