"""Plain loops for one linear system; `jax.vmap` makes them a batch. The number of steps is traced."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from lfom.core.arrays import ratio

Times = Callable[[Array], Array]


def conjugate_gradients(times: Times, b: Array, inverse: Any, steps: Any) -> Array:
    """inverse: that of the diagonal that preconditions, or None. Once the residual is zero, the iterate stays."""
    scale = 1.0 if inverse is None else inverse

    def step(_: Any, state: Any) -> Any:
        w, residual, direction, size = state
        image = times(direction)
        length = ratio(size, jnp.vdot(direction, image))
        w, residual = w + length * direction, residual - length * image
        scaled = scale * residual
        new = jnp.vdot(residual, scaled)
        return w, residual, scaled + ratio(new, size) * direction, new

    scaled = scale * b
    state = (jnp.zeros_like(b), b, scaled, jnp.vdot(b, scaled))
    return jax.lax.fori_loop(0, steps, step, state)[0]


def chebyshev(times: Times, b: Array, inverse: Any, steps: Any, lowest: Any, highest: Any) -> Array:
    """The best fixed polynomial on the interval of eigenvalues of the scaled matrix."""
    scale = 1.0 if inverse is None else inverse
    centre, radius = (highest + lowest) / 2, (highest - lowest) / 2

    def step(_: Any, state: Any) -> Any:
        w, residual, move, ratio = state
        w, residual = w + move, residual - times(move)
        new = 1 / (2 * centre / radius - ratio)
        return w, residual, new * ratio * move + 2 * new / radius * scale * residual, new

    state = (jnp.zeros_like(b), b, scale * b / centre, radius / centre)
    return jax.lax.fori_loop(0, steps, step, state)[0]


def newton(loss: Callable[[Array], Array], start: Array, steps: Any) -> Array:
    """Newton's method, each system by Cholesky."""

    def step(_: Any, w: Array) -> Array:
        factor = jax.scipy.linalg.cho_factor(jax.hessian(loss)(w))
        return w - jax.scipy.linalg.cho_solve(factor, jax.grad(loss)(w))

    return jax.lax.fori_loop(0, steps, step, start)
