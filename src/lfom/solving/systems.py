"""Solving a batch of quadratics in one compiled call: the method's steps, checks, conjugate gradients.

Everything is a vmap over single problems, so that no problem's numbers reach another one.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from lfom.core.arrays import norm, ratio
from lfom.core.memories import Conjugate
from lfom.core.methods import Algorithm, Method
from lfom.core.preconditioners import Identity
from lfom.core.problems import IterateProblem
from lfom.core.readers import Either, Gradient, Jacobi, Multiplied, Reader
from lfom.core.states import Iterate
from lfom.core.stopping import Standing, begin, choose, until
from lfom.core.unroll import trace
from lfom.solving import statuses
from lfom.solving.program import Program, Raw


def plain_reader(problems: IterateProblem) -> Reader:
    """The gradient with the problem's own diagonal where it is known: nothing in it is learned."""
    known = jax.eval_shape(jax.vmap(lambda one: one.diagonal()), problems) is not None
    return Jacobi(Identity()) if known else Gradient(Identity())


def starts(problems: IterateProblem) -> Iterate:
    return jax.vmap(lambda one: one.start(splits=False, moves_covariates=False))(problems)


def gauge(reader: Any, problem: IterateProblem) -> Float[Array, ""]:
    """A number that grows with A; for a matrix a bound of the eigenvalues of M A from above.

    For matrices: A <= diag(c), so that the eigenvalues of M A are at most those of M diag(c), and those
    at most the row sums of |M| diag(c). For operators: the Rayleigh quotient of b, which costs one
    product; it is no bound, and the result is checked afterwards. NaN where a matrix is not finite.
    """
    b, seen = -problem.initial()[1], reader.look(problem)
    s = jnp.ones_like(b) if seen is None else seen  # Jacobi's coordinates
    c = problem.dominating(s * jnp.sqrt(reader.A.diagonal(b)))
    if c is not None:
        rounding = 1 + 8 * b.size * jnp.finfo(c.dtype).eps
        sound = jnp.isfinite(jnp.sum(c))  # XLA's maximum drops NaN
        return jnp.where(sound, reader.A.bound(s**2 * c) * rounding, jnp.nan)
    z = s * reader.A.transposed_times(s * b)
    return ratio(jnp.sum(z * problem.hessian_times(z)), jnp.sum(z * b), otherwise=1.0)


def no_worse(problem: IterateProblem, state: Iterate, size: Array | float = 0.0) -> Bool[Array, ""]:
    """Whether f(w) <= f(0), so that the error's energy norm is no larger than the start's, and w.Aw > 0:
    f(w) = -w.(b + r) / 2 and w.Aw = w.(b - r), with r = b - A w. size: an estimate of the norm of A, from
    which follows how far rounding may have moved f; w far along a singular direction is not trusted."""
    w, r, b = state.w, -state.gradient, -problem.initial()[1]
    fall = jnp.sum(w * (b + r))
    noise = 4 * jnp.finfo(w.dtype).eps * size * jnp.sum(w * w)
    return ~jnp.any(w != 0) | ((fall >= noise) & jnp.isfinite(fall) & (jnp.sum(w * (b - r)) > 0))


def solve_systems(
    program: Program, problems: IterateProblem, own: int, steps: int, tolerance: Array | None
) -> Raw:
    """`own` steps of the method, conjugate gradients up to `steps`; all of them where its steps fail their
    check."""
    first = begin(problems, starts(problems), steps)
    threshold = None if tolerance is None else tolerance * first.size
    factor, path, finite = jax.vmap(partial(_into_range, program, own))(problems)
    finite &= jnp.isfinite(first.size)
    now = own_steps(program.method, problems, first, own, threshold, factor) if own else first
    good = jax.vmap(no_worse)(problems, now.state)
    path = jnp.where(good, path, statuses.FALLBACK)
    now = choose(good, now, first)
    limit = jnp.where(finite, jnp.where(good & (now.taken < own), now.taken, steps), 0)  # met early: done
    ran = (limit > now.taken).any()
    end = _conjugate(program.tail, problems, path == statuses.FALLBACK, now, limit, threshold)
    # Conjugate gradients update their residual; the status is judged by the true one.
    end = jax.lax.cond(ran, lambda: _checked(problems, end), lambda: end._replace(stretch=0 * end.stretch))
    return jax.vmap(partial(_judged, tolerance))(problems, end, first.size, path, finite)


def own_steps(
    method: Algorithm,
    problems: IterateProblem,
    first: Standing,
    own: int,
    threshold: Float[Array, " problems"] | None,
    factor: Float[Array, " problems"] | None = None,
) -> Standing:
    """`own` steps of the method; with a threshold each problem stops by itself. factor: multiplies the
    directions of every problem. At the end the states stand at the answers."""
    method = method.truncated(own)

    def rescaled(method: Any, factor: Array | None) -> Any:
        return method if factor is None else Method(Multiplied(method.reader, factor), method.memory, own)

    if threshold is None:

        def one(problem: Any, factor: Array | None) -> tuple[Any, Array]:
            def watch(state: Any, past: Any) -> Array:
                return norm(problem.left(state))

            _, last, sizes = trace(rescaled(method, factor), problem, None, watch)
            return problem.at_answer(last), sizes

        state, sizes = jax.vmap(one)(problems, factor)
        rest = first.sizes.shape[1] - 1 - own
        table = [first.sizes[:, :1], sizes, jnp.repeat(sizes[:, -1:], rest, axis=1)]
        return first._replace(
            state=state, taken=first.taken + own, size=sizes[:, -1], sizes=jnp.concatenate(table, axis=1)
        )

    def start(problem: Any) -> Any:
        return problem.start(splits=method.splits, moves_covariates=method.moves_covariates)

    method, seen = method.ready(), jax.vmap(method.look)(problems)
    now = until(
        method,
        problems,
        first._replace(state=jax.vmap(start)(problems)),
        jnp.full_like(first.taken, own),
        threshold,
        (factor, seen),
        lambda one, mine: rescaled(one.bind(mine[1]), mine[0]),
    )
    return now._replace(state=jax.vmap(lambda problem, one: problem.at_answer(one))(problems, now.state))


def _into_range(program: Program, own: int, problem: IterateProblem) -> tuple[Any, Array, Array]:
    """The factor that brings a problem into the range of the learning problems; its path; and whether
    its numbers are finite, which the size of a matrix tells as well."""
    if program.range is None or not own:
        return None, jnp.asarray(program.path), problem.finite()
    size = gauge(program.method.reader, problem)  # type: ignore[attr-defined]
    low, typical, high = program.range
    near = (size > low / 2) & (size < 2 * high)
    wanted = jnp.where(near, jnp.clip(size, low, high), typical)
    factor = ratio(wanted, size, otherwise=1.0)
    factor = jnp.where(jnp.isfinite(factor), factor, 1)
    path = jnp.where(factor == 1, program.path, statuses.RESCALED)
    if problem.has_gram() and program.reach is not None:
        inside = (factor == 1) & (size <= program.reach[own - 1])
        path = jnp.where(inside, statuses.CERTIFIED, path)
    return factor, path, jnp.isfinite(size) if problem.has_gram() else problem.finite()


def _conjugate(
    tail: Method | None,
    problems: IterateProblem,
    fallback: Bool[Array, " problems"],
    now: Standing,
    limit: Int[Array, " problems"],
    threshold: Float[Array, " problems"] | None,
) -> Standing:
    """Conjugate gradients from where each problem stands, up to its limit. The fallback trusts nothing
    that was learned: its preconditioner is the problem's own diagonal, or none."""
    plain = plain_reader(problems)
    if tail is None:
        return until(Method(plain, Conjugate(), 1), problems, now, limit, threshold)

    def bind(method: Any, own: Any) -> Method:
        flag, seen, seen_plain = own
        return Method(Either(flag, plain.bind(seen_plain), method.reader.bind(seen)), method.memory, 1)

    own = (fallback, jax.vmap(tail.look)(problems), jax.vmap(plain.look)(problems))
    return until(tail, problems, now, limit, threshold, own, bind)


def _checked(problems: IterateProblem, end: Standing) -> Standing:
    """With the true residual, and with the norm of A in `stretch`: its largest row sum where it is a matrix,
    else the largest |Ad| / |d| met."""

    def one(problem: Any, end: Standing) -> Standing:
        gradient = problem.gradient(end.state.w)
        c = problem.dominating(jnp.ones_like(gradient))
        size = end.stretch if c is None else jnp.max(c)
        return end._replace(
            state=Iterate(end.state.context, gradient),
            size=norm(gradient),
            stretch=size.astype(end.size.dtype),
        )

    return jax.vmap(one)(problems, end)


def _judged(
    tolerance: Array | None, problem: IterateProblem, end: Standing, start: Array, path: Array, finite: Array
) -> Raw:
    """The status from the true residual, and the start itself wherever nothing better was found."""
    w = end.state.w
    good = finite & no_worse(problem, end.state, end.stretch) & (jnp.any(w != 0) | (start == 0))
    status = path
    if tolerance is not None:
        status = path + jnp.where(end.size <= tolerance * start, statuses.MET, statuses.NOT_MET)
    # Once a problem is solved to rounding, rounding alone makes a direction flat: no failure.
    singular = end.stuck & ~(end.size <= jnp.finfo(w.dtype).eps ** 0.5 * start)
    status = jnp.where(good, status, statuses.NO_PROGRESS)
    status = jnp.where(singular, statuses.NOT_DEFINITE, status)
    status = jnp.where(finite, status, statuses.NOT_FINITE)
    last = jnp.where(good, end.size, start)
    sizes = jnp.where(jnp.arange(end.sizes.shape[0]) >= end.taken, last, end.sizes)
    return Raw(jnp.where(good, w, 0), status, jnp.where(good, end.taken, 0), sizes)
