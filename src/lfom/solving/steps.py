"""The loops: learned steps of a register or a bank, and conjugate gradients, on a batch of problems.

All start at w = 0. z = M r is the preconditioned residual, r = b - A w (minus the gradient for a
general loss). A step freezes where `active` is false; `watch(w, r)` is what is kept of each step.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from lfom.solving.quadratics import HIGHEST, Quadratics, dots, norms, spread

Precondition = Callable[[Array], Array]
Residual = Callable[[Array], Array]  # w -> r
Watch = Callable[[Array, Array], Any]


class Register(eqx.Module):
    """R_l = z_l + gamma_l R_{l-1}; step alpha_l R_l. On quadratics with one preconditioner it
    reaches every method with shared scalar coefficients."""

    alpha: Array
    gamma: Array


class Bank(eqx.Module):
    """step_l = sum over j <= l of gamma[l, j] z_j; (steps, steps), or (steps, steps, *shape) for
    diagonal coefficients."""

    gamma: Array


class Conjugate(eqx.Module):
    """The two coefficients of every step are computed from the problem: conjugate gradients."""


Coefficients = Register | Bank | Conjugate


def as_bank(register: Register) -> Bank:
    """The same steps as a table: R_l = sum_j (gamma_l ... gamma_{j+1}) z_j."""
    steps = len(register.alpha)
    rows, row = [], jnp.zeros(steps, register.alpha.dtype)
    for layer in range(steps):
        row = (row * register.gamma[layer]).at[layer].set(1)
        rows.append(register.alpha[layer] * row)
    return Bank(jnp.stack(rows))


def learned_steps(
    coefficients: Register | Bank,
    residual: Residual,
    precondition: Precondition,
    r: Array,
    watch: Watch,
    threshold: Array | None = None,
) -> tuple[Array, Array, Array, Any]:
    """w, r, the steps taken by each problem, and what was watched after every step. r: the residual
    at w = 0. threshold: a problem stops once its residual's norm is no larger."""
    w, taken = jnp.zeros_like(r), jnp.zeros(len(r), int)

    def finish(w: Array, r: Array, taken: Array, step: Array) -> tuple[Array, Array, Array, Any]:
        if threshold is None:
            w = w + step
            r = residual(w)
            return w, r, taken + 1, watch(w, r)
        active = ~(norms(r) <= threshold)
        w = jnp.where(spread(active, w), w + step, w)
        r = jnp.where(spread(active, r), residual(w), r)
        return w, r, taken + active, watch(w, r)

    if isinstance(coefficients, Register):

        def register_step(carry: Any, numbers: Any) -> Any:
            w, r, taken, memory = carry
            alpha, gamma = numbers
            memory = precondition(r) + gamma * memory
            *state, seen = finish(w, r, taken, alpha * memory)
            return (*state, memory), seen

        start: Any = (w, r, taken, jnp.zeros_like(r))
        (w, r, taken, _), seen = jax.lax.scan(register_step, start, (coefficients.alpha, coefficients.gamma))
        return w, r, taken, seen

    table = lower(coefficients.gamma)

    def bank_step(carry: Any, numbers: Any) -> Any:
        w, r, taken, memory = carry
        layer, row = numbers
        memory = jax.lax.dynamic_update_index_in_dim(memory, precondition(r), layer, 0)
        step = jnp.tensordot(row, memory, 1, precision=HIGHEST) if row.ndim == 1 else _weighted(row, memory)
        *state, seen = finish(w, r, taken, step)
        return (*state, memory), seen

    start = (w, r, taken, jnp.zeros((len(table), *r.shape), r.dtype))
    (w, r, taken, _), seen = jax.lax.scan(bank_step, start, (jnp.arange(len(table)), table))
    return w, r, taken, seen


def lower(table: Array) -> Array:
    """Zeros where a step would read the future."""
    mask = jnp.tril(jnp.ones(table.shape[:2], table.dtype))
    return table * mask.reshape(mask.shape + (1,) * (table.ndim - 2))


def _weighted(row: Array, memory: Array) -> Array:
    return jnp.sum(row[:, None] * memory, axis=0)


class Conjugated(NamedTuple):
    """Where conjugate gradients stand. rz: r.z of the last direction, 0 before the first. dual: M^-1
    times the direction. steepest: the largest Rayleigh quotient d.Ad / d.M^-1 d so far. norm: the
    largest |Ad| / |d|, an estimate of the norm of A."""

    w: Array
    r: Array
    direction: Array
    dual: Array
    rz: Array
    steepest: Array
    norm: Array
    flat: Array  # a direction without curvature was met, (problems,)


def conjugate_start(w: Array, r: Array) -> Conjugated:
    nothing, zero = jnp.zeros(len(r), r.dtype), jnp.zeros_like(r)
    return Conjugated(w, r, zero, zero, nothing, nothing, nothing, jnp.zeros(len(r), bool))


def conjugate_step(
    state: Conjugated, quadratics: Quadratics, precondition: Precondition, active: Array | None = None
) -> Conjugated:
    """One step of preconditioned conjugate gradients in every active problem.

    It stands still, never 0/0, where the residual is zero. Where the curvature along its direction is
    not positive, or so small beside the largest seen that rounding may have made it, a step could lead
    anywhere: it stands still too and says so in `flat`. The measure is the Rayleigh quotient of M A,
    which does not depend on the scale of the problem or of its unknowns.
    """
    w, r, direction, dual, rz_before, steepest, norm, flat = state
    z = precondition(r)
    rz = dots(r, z)
    moving = rz > 0
    if active is not None:
        moving &= active
    started = rz_before > 0
    beta = jnp.where(started & moving, rz / jnp.where(started, rz_before, 1), 0)
    direction, dual = z + spread(beta, z) * direction, r + spread(beta, r) * dual
    image = quadratics.times(direction)
    curvature, size = dots(direction, image), dots(direction, dual)
    quotient = jnp.where(size > 0, curvature / jnp.where(size > 0, size, 1), 0)
    steepest = jnp.maximum(steepest, jax.lax.stop_gradient(quotient))
    lengths = norms(jax.lax.stop_gradient(direction))
    stretch = norms(jax.lax.stop_gradient(image)) / jnp.where(lengths > 0, lengths, 1)
    norm = jnp.where(stretch > norm, stretch, norm)
    least = 10 * w[0].size ** 0.5 * jnp.finfo(w.dtype).eps * steepest
    bends = (curvature > 0) & (quotient > least)
    flat |= moving & ~bends
    move = moving & bends
    alpha = jnp.where(move, rz / jnp.where(bends, curvature, 1), 0)
    w = jnp.where(spread(move, w), w + spread(alpha, w) * direction, w)
    r = jnp.where(spread(move, r), r - spread(alpha, r) * image, r)
    return Conjugated(w, r, direction, dual, rz, steepest, norm, flat)


def conjugate_steps(
    quadratics: Quadratics, precondition: Precondition, steps: int, watch: Watch
) -> tuple[Array, Any]:
    """A fixed number of steps from w = 0, differentiable; w and what was watched."""

    def body(state: Conjugated, _: None) -> Any:
        state = conjugate_step(state, quadratics, precondition)
        return state, watch(state.w, state.r)

    start = conjugate_start(jnp.zeros_like(quadratics.b), quadratics.b)
    state, seen = jax.lax.scan(body, start, None, length=steps)
    return state.w, seen


class Guard(eqx.Module):
    """Eigenvalues that the shared coefficients must also contract: one problem of one unknown each."""

    eigenvalues: Array
    weight: Array


def best_register(
    quadratics: Quadratics, precondition: Precondition, weights: Array, steps: int, guard: Guard | None = None
) -> Register:
    """The shared scalar coefficients with the smallest sum over problems of weight |w_l - w*|_A^2, for
    every l up to `steps` at once.

    Let all problems be one large one with a block-diagonal matrix, each block times its weight in the
    inner products. Conjugate gradients on it minimise exactly that sum over all polynomials, and their
    two coefficients per step, averages over the problems, are the shared ones. A guard's eigenvalues t
    are blocks with A = t, b = sqrt(t) and an error of 1 at the start.
    """
    zero = jnp.zeros((), quadratics.b.dtype)
    points = jnp.zeros(0, quadratics.b.dtype) if guard is None else guard.eigenvalues
    heavy = zero if guard is None else guard.weight

    def body(carry: Any, _: None) -> Any:
        (r, r_guard), (direction, d_guard), rz_before = carry
        z = precondition(r)
        rz = jnp.sum(weights * dots(r, z)) + heavy * jnp.sum(r_guard**2)
        started = rz_before > 0
        gamma = jnp.where(started, rz / jnp.where(started, rz_before, 1), 0)
        direction, d_guard = z + gamma * direction, r_guard + gamma * d_guard
        image = quadratics.times(direction)
        curvature = jnp.sum(weights * dots(direction, image)) + heavy * jnp.sum(points * d_guard**2)
        good = (curvature > 0) & (rz > 0)
        alpha = jnp.where(good, rz / jnp.where(good, curvature, 1), 0)
        residuals = r - alpha * image, r_guard - alpha * points * d_guard
        return (residuals, (direction, d_guard), rz), (alpha, gamma)

    start = ((quadratics.b, jnp.sqrt(points)), (jnp.zeros_like(quadratics.b), jnp.zeros_like(points)), zero)
    _, (alpha, gamma) = jax.lax.scan(body, start, None, length=steps)
    return Register(alpha, gamma)
