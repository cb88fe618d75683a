"""Solving a batch of quadratics in one compiled call: learned steps, checks, conjugate gradients."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from lfom.solving import statuses
from lfom.solving.preconditioners import Identity, Scaled, Shared
from lfom.solving.quadratics import Quadratics, dots, norms, spread
from lfom.solving.steps import (
    Bank,
    Coefficients,
    Conjugate,
    Conjugated,
    Register,
    conjugate_start,
    conjugate_step,
    learned_steps,
)


class Plan(eqx.Module):
    """The part of a method that runs. gauge: the smallest, the median and the largest `gauge` of the
    learning problems.
    reach: see Certificate; None where there is no certificate."""

    coefficients: Coefficients
    shared: Shared
    gauge: Array
    reach: Array | None
    jacobi: bool = eqx.field(static=True)


class Raw(NamedTuple):
    """value (problems, *shape), status, steps and residuals (problems, steps + 1)."""

    value: Array
    status: Array
    steps: Array
    residuals: Array


def coordinates(quadratics: Quadratics, jacobi: bool) -> Array:
    """The diagonal change of coordinates: 1 / sqrt(diagonal of A), or 1."""
    diagonal = quadratics.diagonal() if jacobi else None
    if diagonal is None:
        return jnp.ones_like(quadratics.b)
    good = diagonal > 0
    return jnp.where(good, 1 / jnp.sqrt(jnp.where(good, diagonal, 1)), 1)


def gauge(quadratics: Quadratics, shared: Shared, scale: Array) -> tuple[Array, bool]:
    """A number per problem that grows with A, and whether it bounds the eigenvalues of M A from above.

    For matrices: A <= diag(c), so that the eigenvalues of M A are at most those of M diag(c), and those
    at most the row sums of |M| diag(c). For operators: the Rayleigh quotient of b, which costs one
    product; it is no bound, and the result is checked afterwards.
    """
    x = scale * jnp.sqrt(shared.diagonal(quadratics.b))
    c = quadratics.dominating(x)
    if c is not None:
        rounding = 1 + 8 * quadratics.b[0].size * jnp.finfo(c.dtype).eps
        sound = jnp.isfinite(jnp.sum(c, axis=1))  # XLA's maximum drops NaN
        return jnp.where(sound, shared.bound(scale**2 * c) * rounding, jnp.nan), True
    z = Scaled(shared, scale)(quadratics.b)
    return _ratio(dots(z, quadratics.times(z)), dots(z, quadratics.b)), False


def _ratio(top: Array, bottom: Array) -> Array:
    return jnp.where(bottom > 0, top / jnp.where(bottom > 0, bottom, 1), 1)


def shortened(coefficients: Coefficients, steps: int) -> Coefficients:
    """The first steps only."""
    if isinstance(coefficients, Register):
        return Register(coefficients.alpha[:steps], coefficients.gamma[:steps])
    if isinstance(coefficients, Bank):
        return Bank(coefficients.gamma[:steps, :steps])
    return coefficients


def no_worse(quadratics: Quadratics, w: Array, r: Array, norm: Array | float = 0.0) -> Array:
    """Whether f(w) <= f(0), so that the error's energy norm is no larger than the start's, and w.Aw > 0:
    f(w) = -w.(b + r) / 2 and w.Aw = w.(b - r), with r = b - A w. norm: an estimate of that of A, from
    which follows how far rounding may have moved f; w far along a singular direction is not trusted."""
    fall = dots(w, quadratics.b + r)
    noise = 4 * jnp.finfo(w.dtype).eps * norm * dots(w, w)
    still = ~jnp.any(w != 0, axis=tuple(range(1, w.ndim)))
    return still | ((fall >= noise) & jnp.isfinite(fall) & (dots(w, quadratics.b - r) > 0))


def solve_quadratics(
    plan: Plan, quadratics: Quadratics, learned: int, steps: int, tolerance: Array | None
) -> Raw:
    """`learned` steps of the method, conjugate gradients up to `steps`; all of them where the learned
    ones fail their check. No problem's numbers reach another one."""
    b = quadratics.b
    start = norms(b)
    threshold = None if tolerance is None else tolerance * start
    scale = coordinates(quadratics, plan.jacobi)
    count = len(b)
    w, r, taken = jnp.zeros_like(b), b, jnp.zeros(count, int)
    residuals = jnp.broadcast_to(start[:, None], (count, steps + 1))
    if isinstance(plan.coefficients, Conjugate):
        finite, path = quadratics.finite(), jnp.full(count, statuses.CERTIFIED)
    else:
        scale, path, finite = _into_range(plan, quadratics, scale, learned)
        w, r, taken, seen = learned_steps(
            shortened(plan.coefficients, learned),  # type: ignore[arg-type]
            lambda w: b - quadratics.times(w),
            Scaled(plan.shared, scale),
            b,
            lambda w, r: norms(r),
            threshold,
        )
        residuals = append(residuals, seen.T)
    finite &= jnp.isfinite(start)
    good = no_worse(quadratics, w, r)
    path = jnp.where(good, path, statuses.FALLBACK)
    residuals = jnp.where(good[:, None], residuals, start[:, None])
    taken = jnp.where(good, taken, 0)
    w, r = (jnp.where(spread(good, b), now, first) for now, first in ((w, jnp.zeros_like(b)), (r, b)))
    limit = jnp.where(finite, jnp.where(good & (taken < learned), taken, steps), 0)  # met early: done
    ran = (limit > taken).any()
    end, taken, residuals = _conjugate(
        quadratics, Scaled(plan.shared, scale), path, w, r, taken, residuals, limit, threshold
    )
    # Conjugate gradients update their residual; the status is judged by the true one.
    r, norm = jax.lax.cond(
        ran, lambda: (b - quadratics.times(end.w), _norm(quadratics, end)), lambda: (r, jnp.zeros_like(start))
    )
    return _judged(quadratics, end._replace(r=r, norm=norm), taken, residuals, path, finite, start, tolerance)


def _norm(quadratics: Quadratics, end: Conjugated) -> Array:
    """The norm of A: its largest row sum where it is a matrix, else the largest |Ad| / |d| met."""
    c = quadratics.dominating(jnp.ones_like(quadratics.b))
    return end.norm if c is None else jnp.max(c, axis=1)


def _into_range(plan: Plan, quadratics: Quadratics, scale: Array, learned: int) -> tuple[Array, Array, Array]:
    """The scale that brings a problem into the range of the learning problems; its path; and whether
    its numbers are finite, which the size of a matrix tells as well."""
    size, bounds = gauge(quadratics, plan.shared, scale)
    low, typical, high = plan.gauge
    near = (size > low / 2) & (size < 2 * high)
    wanted = jnp.where(near, jnp.clip(size, low, high), typical)
    factor = jnp.where(size > 0, wanted / jnp.where(size > 0, size, 1), 1)
    factor = jnp.where(jnp.isfinite(factor), factor, 1)
    path = jnp.where(factor == 1, statuses.CHECKED, statuses.RESCALED)
    if bounds and plan.reach is not None:
        inside = (factor == 1) & (size <= plan.reach[learned - 1])
        path = jnp.where(inside, statuses.CERTIFIED, path)
    finite = jnp.isfinite(size) if bounds else quadratics.finite()
    return scale * spread(jnp.sqrt(factor), scale), path, finite


def append(residuals: Array, seen: Array) -> Array:
    """The learned steps' residuals after the start's; the last one stands for what is not reached."""
    if not seen.shape[1]:
        return residuals
    rest = residuals.shape[1] - 1 - seen.shape[1]
    return jnp.concatenate([residuals[:, :1], seen, jnp.repeat(seen[:, -1:], rest, axis=1)], axis=1)


def _conjugate(
    quadratics: Quadratics,
    precondition: Scaled,
    path: Array,
    w: Array,
    r: Array,
    taken: Array,
    residuals: Array,
    limit: Array,
    threshold: Array | None,
) -> tuple[Conjugated, Array, Array]:
    """Conjugate gradients from where each problem stands, up to its limit. The fallback trusts nothing
    that was learned: its preconditioner is the problem's own diagonal, or none."""
    fallback = path == statuses.FALLBACK
    plain = Scaled(Identity(), coordinates(quadratics, True))
    columns = jnp.arange(residuals.shape[1])

    def chosen(vector: Array) -> Array:
        return jnp.where(spread(fallback, vector), plain(vector), precondition(vector))

    def active(state: Any) -> Array:
        now, taken, _ = state
        going = (taken < limit) & ~now.flat & jnp.isfinite(norms(now.r))
        return going if threshold is None else going & ~(norms(now.r) <= threshold)

    def body(state: Any) -> Any:
        now, taken, residuals = state
        going = active(state)
        now = conjugate_step(now, quadratics, chosen, going)
        size = norms(now.r)
        taken = taken + (going & ~now.flat)
        later = going[:, None] & (columns >= taken[:, None])
        return now, taken, jnp.where(later, size[:, None], residuals)

    first: Any = (conjugate_start(w, r), taken, residuals)
    return jax.lax.while_loop(lambda s: active(s).any(), body, first)


def _judged(
    quadratics: Quadratics,
    end: Conjugated,
    taken: Array,
    residuals: Array,
    path: Array,
    finite: Array,
    start: Array,
    tolerance: Array | None,
) -> Raw:
    """The status from the true residual, and the start itself wherever nothing better was found."""
    w, r = end.w, end.r
    moved = jnp.any(w != 0, axis=tuple(range(1, w.ndim)))
    good = finite & no_worse(quadratics, w, r, end.norm) & (moved | (start == 0))
    status = path
    if tolerance is not None:
        status = path + jnp.where(norms(r) <= tolerance * start, statuses.MET, statuses.NOT_MET)
    # Once a problem is solved to rounding, rounding alone makes a direction flat: no failure.
    singular = end.flat & ~(norms(r) <= jnp.finfo(r.dtype).eps ** 0.5 * start)
    status = jnp.where(good, status, statuses.NO_PROGRESS)
    status = jnp.where(singular, statuses.NOT_DEFINITE, status)
    status = jnp.where(finite, status, statuses.NOT_FINITE)
    last = jnp.where(good, norms(r), start)
    columns = jnp.arange(residuals.shape[1])
    residuals = jnp.where(columns >= taken[:, None], last[:, None], residuals)
    return Raw(jnp.where(spread(good, w), w, 0), status, jnp.where(good, taken, 0), residuals)
