"""Convex losses: solutions to learn from, the safe line search, and solving a batch of them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from lfom.solving import statuses
from lfom.solving.preconditioners import Scaled
from lfom.solving.problems import ConvexLosses
from lfom.solving.quadratics import Operators, dots, norms, spread
from lfom.solving.solving import Plan, Raw, append, shortened
from lfom.solving.steps import conjugate_start, conjugate_step, learned_steps

HALVINGS = 30  # of a step in the line search
SUFFICIENT = 1e-4  # Armijo's share of the promised decrease


def zeros(problems: ConvexLosses) -> Array:
    return jnp.zeros((len(problems), *problems.shape), problems.dtype)


def line_search(
    problems: ConvexLosses, w: Array, value: Array, direction: Array, slope: Array, first: Array
) -> Any:
    """w + t direction with t = first, first/2, ...: the first that falls enough (Armijo). Where none
    does, w itself. slope: gradient . direction, negative. Returns w, value and t."""

    def body(state: Any) -> Any:
        t, found, at, best = state
        trial = w + spread(t, w) * direction
        new = problems.values(trial)
        enough = ~found & (new <= value + SUFFICIENT * t * slope)
        at = jnp.where(spread(enough, w), trial, at)
        best = jnp.where(enough, new, best)
        return jnp.where(found | enough, t, t / 2), found | enough, at, best

    def unfinished(state: Any) -> Array:
        count, inner = state
        return (count < HALVINGS) & ~inner[1].all()

    start = (first, ~(slope < 0), w, value)  # nothing to search where the direction does not descend
    _, (t, found, at, best) = jax.lax.while_loop(
        unfinished, lambda s: (s[0] + 1, body(s[1])), (jnp.asarray(0), start)
    )
    return at, best, jnp.where(found & (slope < 0), t, 0)


def descend(
    problems: ConvexLosses, w: Array, limit: Array, taken: Array, residuals: Array, threshold: Array | None
) -> Any:
    """Gradient steps with a line search, the first trial by Barzilai and Borwein: s.s / s.y."""
    columns = jnp.arange(residuals.shape[1])
    value, gradient = problems.values_and_gradients(w)
    length = 1 / jnp.where(norms(gradient) > 0, norms(gradient), 1)

    def active(state: Any) -> Array:
        _, value, gradient, _, taken, stuck, _ = state
        going = (taken < limit) & ~stuck & jnp.isfinite(value)
        return going if threshold is None else going & ~(norms(gradient) <= threshold)

    def body(state: Any) -> Any:
        w, value, gradient, length, taken, stuck, residuals = state
        going = active(state)
        slope = jnp.where(going, -dots(gradient, gradient), 0)
        new, _, t = line_search(problems, w, value, -gradient, slope, length)
        new_value, new_gradient = problems.values_and_gradients(new)
        step, change = new - w, new_gradient - gradient
        curvature = dots(step, change)
        bends = curvature > 0
        length = jnp.where(bends, dots(step, step) / jnp.where(bends, curvature, 1), 2 * t)
        length = jnp.where(length > 0, length, 1)
        taken = taken + (going & (t > 0))
        later = going[:, None] & (columns >= taken[:, None])
        residuals = jnp.where(later, norms(new_gradient)[:, None], residuals)
        return new, new_value, new_gradient, length, taken, stuck | (going & (t <= 0)), residuals

    start = (w, value, gradient, length, taken, jnp.zeros(len(w), bool), residuals)
    end = jax.lax.while_loop(lambda s: active(s).any(), body, start)
    return end[0], end[4], end[6]


@dataclass(frozen=True)
class Hessian:
    """operator(data, v) = H v with data = (data of the problem, w): equal for equal losses, so that
    what was compiled for it is used again."""

    loss: Callable[[Array, Any], Array]

    def __call__(self, data: Any, vector: Array) -> Array:
        own, at = data
        return jax.jvp(jax.grad(lambda w: self.loss(w, own)), (at,), (vector,))[1]


def hessians(problems: ConvexLosses, w: Array, b: Array) -> Operators:
    """The second derivatives at w as operators, with a right-hand side."""
    return Operators(operator=Hessian(problems.loss), data=(problems.data, w), b=b)


@eqx.filter_jit
def minimise(problems: ConvexLosses) -> tuple[Array, Array, Array]:
    """w*, its loss and its gradient's norm relative to the start's: Newton's method with a line
    search, its system by conjugate gradients."""
    first = norms(problems.gradients(zeros(problems)))
    inner = min(zeros(problems)[0].size * 2, 200)
    target = 10 * jnp.finfo(problems.dtype).eps * first

    def newton(state: Any) -> Any:
        count, w, _ = state
        value, gradient = problems.values_and_gradients(w)
        system = hessians(problems, w, -gradient)

        def body(_: int, now: Any) -> Any:
            enough = norms(now.r) <= 1e-3 * norms(gradient)
            return conjugate_step(now, system, lambda v: v, ~enough & ~now.flat)

        now = jax.lax.fori_loop(0, inner, body, conjugate_start(jnp.zeros_like(w), -gradient))
        slope = dots(gradient, now.w)
        w, _, t = line_search(problems, w, value, now.w, slope, jnp.ones_like(value))
        return count + 1, w, (t > 0) & (norms(problems.gradients(w)) > target)

    def unfinished(state: Any) -> Array:
        return (state[0] < 50) & state[2].any()

    start = (jnp.asarray(0), zeros(problems), jnp.ones(len(problems), bool))
    _, w, _ = jax.lax.while_loop(unfinished, newton, start)
    value, gradient = problems.values_and_gradients(w)
    return w, value, norms(gradient) / jnp.where(first > 0, first, 1)


def solve_losses(
    plan: Plan, problems: ConvexLosses, learned: int, steps: int, tolerance: Array | None
) -> Raw:
    """`learned` steps of the method, then gradient steps with a line search up to `steps`; all of them
    where the learned ones end above the start's loss. No problem's numbers reach another one."""
    w = zeros(problems)
    value, gradient = problems.values_and_gradients(w)
    start = norms(gradient)
    threshold = None if tolerance is None else tolerance * start
    finite = problems.finite() & jnp.isfinite(value) & jnp.isfinite(start)
    count = len(problems)
    residuals = jnp.broadcast_to(start[:, None], (count, steps + 1))
    w, r, taken, seen = learned_steps(
        shortened(plan.coefficients, learned),  # type: ignore[arg-type]
        lambda w: -problems.gradients(w),
        Scaled(plan.shared),
        -gradient,
        lambda w, r: norms(r),
        threshold,
    )
    residuals = append(residuals, seen.T)
    good = problems.values(w) <= value
    good &= jnp.isfinite(norms(r))
    path = jnp.where(good, statuses.CHECKED, statuses.FALLBACK)
    residuals = jnp.where(good[:, None], residuals, start[:, None])
    taken = jnp.where(good, taken, 0)
    w = jnp.where(spread(good, w), w, 0)
    limit = jnp.where(finite, jnp.where(good & (taken < learned), taken, steps), 0)
    w, taken, residuals = descend(problems, w, limit, taken, residuals, threshold)
    last, gradient = problems.values_and_gradients(w)
    good = finite & ((last < value) | (start == 0)) & jnp.isfinite(norms(gradient))
    status = path
    if tolerance is not None:
        status = path + jnp.where(norms(gradient) <= tolerance * start, statuses.MET, statuses.NOT_MET)
    status = jnp.where(good, status, statuses.NO_PROGRESS)
    status = jnp.where(finite, status, statuses.NOT_FINITE)
    return Raw(jnp.where(spread(good, w), w, 0), status, jnp.where(good, taken, 0), residuals)
