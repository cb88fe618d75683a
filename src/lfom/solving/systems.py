"""Solving a batch of quadratics in one compiled call: the method's steps, checks, conjugate gradients.

Everything is a vmap over single problems, so that no problem's numbers reach another one.
"""

import math
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from lfom.core.arrays import norm, pad_axes, ratio
from lfom.core.compiler import reads_back
from lfom.core.memories import Conjugate
from lfom.core.methods import Method
from lfom.core.preconditioners import Identity
from lfom.core.problems import IterateProblem
from lfom.core.readers import Either, Gradient, Jacobi, Multiplied, Reader
from lfom.core.states import Iterate, Track
from lfom.core.stopping import ROUNDED, Goal, Standing, begin, choose, told, until
from lfom.core.unroll import trace
from lfom.solving import statuses
from lfom.solving.program import Program, Raw

FEW = 32  # steps that are taken without asking whether problems need them, where asking is what takes time


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


def no_worse(
    problem: IterateProblem,
    state: Iterate,
    size: Array | float = 0.0,
    far: Array | float = 0.0,
    lost: Array | None = None,
    dropped: Array | float = 0.0,
) -> Bool[Array, ""]:
    """Whether f(w) <= f(0), so that the error's energy norm is no larger than the start's, and w.Aw > 0:
    f(w) = -w.(b + r) / 2 and w.Aw = w.(b - r), with r = b - A w. size: an estimate of the norm of A, from
    which follows how far rounding may have moved f; w far along a singular direction is not trusted. far: the size of
    what w is added to. lost: what is lost of r and b. dropped: of the start, see `Centred`."""
    w, r, b = state.w, -state.gradient, -problem.initial()[1]
    fall = jnp.sum(w * (b + r))
    noise = 4 * jnp.finfo(w.dtype).eps * jnp.sum(size * jnp.abs(w) * (jnp.abs(w) + far))
    if lost is not None:
        noise = noise + lost * norm(w) + 2 * dropped * (norm(b) + size * dropped)
    return ~jnp.any(w != 0) | ((fall >= noise) & jnp.isfinite(fall) & (jnp.sum(w * (b - r)) > 0))


class Centred(NamedTuple):
    """The same problems in v with w = start + scale v. Their right-hand sides are what the start leaves, divided by a
    power of two near their size: neither large nor small ones spoil a square, and nothing is rounded. A method whose answers
    do not grow with them (`Algorithm.homogeneous`) sees them as they are."""

    problems: IterateProblem
    start: Float[Array, "problems *shape"] | None
    scale: Float[Array, "problems ..."]  # with axes of size 1 for the unknowns

    @staticmethod
    def of(problems: Any, start: Array | None, homogeneous: bool = True) -> "Centred":
        b = problems.moment if start is None else -jax.vmap(lambda one, w: one.gradient(w))(problems, start)
        largest = jnp.max(jnp.abs(jax.lax.stop_gradient(b)), _inner(b))
        limits = jnp.finfo(b.dtype)
        exponent = jnp.where(largest > 0, jnp.frexp(largest)[1], limits.minexp)
        power = jnp.clip(exponent, limits.minexp, limits.maxexp - 2) if homogeneous else 0 * exponent
        scale = pad_axes(jnp.ldexp(jnp.ones(len(b), b.dtype), power), b.ndim)
        return Centred(eqx.tree_at(lambda one: one.moment, problems, _divided(b, scale)), start, scale)

    def back(self, v: Array) -> Array:
        return self.scale * v if self.start is None else self.start + self.scale * v

    def held(self, v: Array) -> Array:
        """v as w holds it: digits are lost beside a large start, and where w is too small or large a number."""
        w = self.back(v)
        return (w if self.start is None else w - self.start) / self.scale

    def far(self) -> Array:
        return jnp.zeros_like(self.scale) if self.start is None else jnp.abs(self.start) / self.scale

    def moves(self, v: Array) -> Bool[Array, " problems"]:
        """Whether scale v is 0 only where v is: processors take what is below the smallest normal number for 0."""
        largest = jnp.max(jnp.abs(jax.lax.stop_gradient(v)), _inner(v))
        return (largest == 0) | (self.scale.reshape(len(v)) * largest >= jnp.finfo(v.dtype).smallest_normal)

    def distance(self) -> Array | float:
        """The start's norm, one number for every problem."""
        return 0.0 if self.start is None else jax.vmap(norm)(jax.lax.stop_gradient(self.far()))

    def dropped(self) -> Float[Array, " problems"]:
        """By how much w may differ from start + scale v: subnormal numbers of the start are taken for zeros."""
        scale = self.scale.reshape(len(self.scale))
        if self.start is None:
            return jnp.zeros_like(scale)
        some = subnormal(self.start).any(axis=_inner(self.start))
        most = math.prod(self.start.shape[1:]) ** 0.5 * jnp.finfo(scale.dtype).smallest_normal
        return jnp.where(some, most / scale, 0)


def _bits(b: Array) -> tuple[Array, Array]:
    """As integers: b, and its digits where it is subnormal, else 0. Processors take subnormal numbers for zeros."""
    limits = jnp.finfo(b.dtype)
    bits = jax.lax.bitcast_convert_type(jax.lax.stop_gradient(b), f"int{limits.bits}")
    small = (bits >> limits.nmant) & ((1 << limits.nexp) - 1) == 0
    return bits, jnp.where(small, bits & ((1 << limits.nmant) - 1), 0)


def subnormal(b: Array) -> Array:
    """Which entries are below the smallest normal number, and not 0."""
    return _bits(b)[1] != 0


def _divided(b: Array, scale: Array) -> Array:
    """b / scale. Subnormal numbers are read off their bits."""
    limits = jnp.finfo(b.dtype)
    bits, digits = _bits(b)
    value = jnp.where(bits < 0, -1, 1) * digits.astype(b.dtype) * 2.0**-limits.nmant
    found = b / scale
    better = value * (limits.smallest_normal / scale)
    return found + jax.lax.stop_gradient(jnp.where(digits != 0, better - found, 0))


def strict(tolerance: Array | np.ndarray) -> Array:
    """Where steps end: a little below the tolerance, so that the true residual is found to meet it in spite of rounding."""
    return jnp.maximum(tolerance - 4 * jnp.finfo(tolerance.dtype).eps, tolerance / 2)


def smallest_told(dtype: Any) -> float:
    """The size of A below which products with it lose digits, so that they do not tell whether it is definite; nor do they
    above its inverse."""
    limits = jnp.finfo(dtype)
    return float(limits.smallest_normal) / float(limits.eps) ** 2


class Doubt(NamedTuple):
    """By how much b - A w may be off: by rounding, and by what is lost below the smallest normal number."""

    rounded: Float[Array, ""]
    lost: Float[Array, ""]

    @staticmethod
    def of(size: Array, w: Array, b: Array | None, scale: Array | float = 1.0) -> "Doubt":
        """size: the norm of |A|. Divided by scale. Every entry is a sum of products, each rounded by eps, and lost where it or
        a factor is too small. Of zeros nothing is lost but what is subnormal in b (None: it is not known).

        Taken from the largest entry of w, whose multiples do not overflow before A w does."""
        limits, largest, scale = jnp.finfo(w.dtype), jnp.max(jnp.abs(w)), jnp.max(jnp.asarray(scale))
        shape = norm(w / jnp.where(largest > 0, largest, 1))
        rounded = ROUNDED * limits.eps * shape * (size * (largest / scale))
        tiny = limits.smallest_normal
        lost = w.size**0.5 * (tiny * w.size + w.size * (tiny * largest) + tiny * size) / scale
        exact = False if b is None else ~jnp.any((w != 0) | subnormal(w) | subnormal(b))
        return Doubt(rounded, jnp.where(exact, 0, lost))

    def total(self) -> Array:
        return self.rounded + self.lost


class Checked(NamedTuple):
    """Where problems stand by the true residual, with the norm of A in `stretch`, and how sure that is, at the end and of
    the start."""

    end: Standing
    doubt: Doubt
    before: Doubt


def solve_systems(
    program: Program,
    given: IterateProblem,
    own: int,
    steps: int,
    tolerance: Array | np.ndarray | None,
    start: Float[Array, "problems *shape"] | None = None,
    written: bool = False,
) -> Raw:
    """`own` steps of the method, conjugate gradients up to `steps`; all of them where its steps fail their
    check. start: where they begin, by default at 0. written: see `derivatives.differentiated`."""
    centred = Centred.of(given, start, program.method.homogeneous)
    problems = centred.problems
    first = begin(problems, starts(problems), steps)
    taken, most = program.counts or (own, steps)
    factor, path, finite = jax.vmap(partial(_into_range, program, taken))(problems, given)
    finite &= _finite(given.moment) if start is None else _finite(given.moment) & _finite(start)  # type: ignore[attr-defined]
    inside = jnp.isfinite(first.size)
    norms = row_sums(problems)
    goal = None if tolerance is None else Goal(strict(tolerance) * first.size, norms, centred.distance())
    now = own_steps(program, problems, first, own, goal, factor) if own else first
    good = jax.vmap(no_worse)(problems, now.state)
    path = jnp.where(good, path, statuses.FALLBACK)
    now = choose(good, now, first)
    early = good & (now.taken < taken)  # met: done
    limit = jnp.where(finite & inside, jnp.where(early, now.taken, most), 0)
    ran = limit > now.taken
    known = written or (reads_back() and goal is None and not own and steps <= FEW)
    fallback = path == statuses.FALLBACK
    end = _conjugate(program.tail, problems, fallback, now, limit, goal, steps if known else None)
    end = end._replace(stretch=_stretched(problems, end) if norms is None else norms)
    # Residuals are updated, and w is rounded once more; the status is judged by the true one where that may matter.
    v = centred.held(end.state.w)
    inside &= _finite(v) & centred.moves(end.state.w)
    if start is None and tolerance is None:
        matters = ran | (finite & jax.vmap(lambda a, b: jnp.any(a != b))(v, end.state.w))
    else:
        matters = jnp.ones_like(ran)
    nothing = 0 * end.size
    plain = Checked(end._replace(stretch=nothing), Doubt(nothing, nothing), Doubt(nothing, nothing))

    def by_residual() -> Checked:
        return choose(matters, _checked(given, centred, end, v, first.size, norms is not None), plain)

    always = written or reads_back() or start is not None or tolerance is not None
    found = by_residual() if always else jax.lax.cond(matters.any(), by_residual, lambda: plain)
    judge = partial(_judged, None if tolerance is None else jnp.asarray(tolerance))
    good, raw = jax.vmap(judge)(
        problems, found, first.size, path, finite, inside, centred.far(), centred.dropped()
    )
    origin = jnp.zeros_like(v) if start is None else start
    return raw._replace(value=choose(good, centred.back(found.end.state.w), origin))


def _finite(vectors: Float[Array, "problems *shape"]) -> Bool[Array, " problems"]:
    return jnp.isfinite(vectors).all(axis=_inner(vectors))


def _inner(vectors: Array) -> tuple[int, ...]:
    """All axes but that of problems, of which there may be none."""
    return tuple(range(1, vectors.ndim))


def own_steps(
    program: Program,
    problems: IterateProblem,
    first: Standing,
    own: int,
    goal: Goal | None,
    factor: Float[Array, " problems"] | None = None,
) -> Standing:
    """`own` steps of the method, or as many as the program counts; with a goal each problem stops by itself. factor: multiplies
    the directions of every problem. At the end the states stand at the answers."""
    method: Any = program.method.truncated(own)
    turns = None if program.counts is None else program.counts[0]
    taken = own if turns is None else turns

    def rescaled(method: Any, factor: Array | None) -> Any:
        return method if factor is None else Method(Multiplied(method.reader, factor), method.memory, own)

    if goal is None:

        def one(problem: Any, factor: Array | None) -> tuple[Any, Array]:
            def watch(state: Any, past: Any) -> Array:
                return norm(jax.lax.stop_gradient(problem.left(state)))

            loop = turns is not None
            _, last, sizes = trace(rescaled(method, factor), problem, None, watch, loop=loop, turns=turns)
            return problem.at_answer(last), sizes

        state, sizes = jax.vmap(one)(problems, factor)
        seen = jnp.concatenate([first.sizes[:, :1], sizes], axis=1)
        table = seen[:, jnp.minimum(jnp.arange(first.sizes.shape[1]), taken)]
        return first._replace(state=state, taken=first.taken + taken, size=table[:, -1], sizes=table)

    def start(problem: Any) -> Any:
        return problem.start(splits=method.splits, moves_covariates=method.moves_covariates)

    method, seen = method.ready(), jax.vmap(method.look)(problems)

    def bind(one: Any, mine: Any) -> Any:
        return rescaled(one.bind(mine[1]), mine[0])

    begun = first._replace(state=jax.vmap(start)(problems))
    limit = jnp.full_like(first.taken, taken)
    now = until(method, problems, begun, limit, goal, (factor, seen), bind)
    return now._replace(state=jax.vmap(lambda problem, one: problem.at_answer(one))(problems, now.state))


def _into_range(
    program: Program, own: Any, problem: IterateProblem, given: IterateProblem
) -> tuple[Any, Array, Array]:
    """The factor that brings a problem into the range of the learning problems; its path; and whether
    its numbers are finite, as they were given, which the size of a matrix tells as well."""
    if program.range is None or program.method.is_conjugate:
        return None, jnp.asarray(program.path), given.finite()
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
    return factor, path, jnp.isfinite(size) if problem.has_gram() else given.finite()


def _conjugate(
    tail: Method | None,
    problems: IterateProblem,
    fallback: Bool[Array, " problems"],
    now: Standing,
    limit: Int[Array, " problems"],
    goal: Goal | None,
    rounds: int | None,
) -> Standing:
    """Conjugate gradients from where each problem stands, up to its limit. The fallback trusts nothing
    that was learned: its preconditioner is the problem's own diagonal, or none."""
    plain = plain_reader(problems)
    if tail is None:
        method = Method(plain, Conjugate(), 1)
        return until(method, problems, now, limit, goal, rounds=rounds)

    def bind(method: Any, own: Any) -> Method:
        flag, seen, seen_plain = own
        return Method(Either(flag, plain.bind(seen_plain), method.reader.bind(seen)), method.memory, 1)

    own = (fallback, jax.vmap(tail.look)(problems), jax.vmap(plain.look)(problems))
    return until(tail, problems, now, limit, goal, own, bind, rounds)


def row_sums(problems: IterateProblem) -> Float[Array, " problems"] | None:
    """The largest row sum of |A|, which bounds its norm, where A is a matrix; None for operators."""

    def one(problem: Any) -> Array | None:
        c = problem.dominating(jnp.ones_like(problem.initial()[1]))
        return None if c is None else jax.lax.stop_gradient(jnp.max(c))

    return jax.vmap(one)(problems)


def _stretched(problems: IterateProblem, end: Standing) -> Float[Array, " problems"]:
    """What steps told of the norm of A. Where the first one found no curvature it told nothing, and |A r| / |r| does."""
    silent = end.stuck & (end.stretch == 0)

    def one(problem: Any, state: Iterate) -> Array:
        r = jax.lax.stop_gradient(state.gradient)
        return ratio(norm(problem.hessian_times(r)), norm(r))

    def asked() -> Array:
        return jnp.where(silent, jax.vmap(one)(problems, end.state), end.stretch)

    # An accelerator's host would have to wait for the answer.
    found = asked() if reads_back() else jax.lax.cond(silent.any(), asked, lambda: end.stretch)
    return jax.lax.stop_gradient(found)


def _checked(
    given: IterateProblem, centred: Centred, end: Standing, v: Array, begun: Array, known: bool
) -> Checked:
    """At v, with the true residual. begun: the start's. known: whether the norm of A is, not only what steps told of it."""

    def one(
        problem: Any,
        at: Array,
        start: Array | None,
        end: Standing,
        v: Array,
        scale: Array,
        begun: Array,
        units: Array,
        left_over: Array,
    ) -> Checked:
        gradient = problem.gradient(at) / scale
        at, start, seen, stood = jax.lax.stop_gradient((at, start, gradient, end.state))
        size = end.stretch
        if not known:  # of operators the largest |Ad| / |d| met, and those of w and of what steps have moved
            size = jnp.maximum(size, ratio(norm(seen + problem.moment / scale), norm(at / scale)))
            size = jnp.maximum(size, ratio(norm(stood.gradient + left_over), norm(stood.w)))
        now = Iterate(Track(v), gradient)
        left = norm(seen)
        # All that rounding adds may be what the start leaves; added to what is left its signs are random.
        before = Doubt(2 * jnp.finfo(v.dtype).eps * begun, 0 * begun)
        if start is not None:
            before = Doubt.of(size, start, problem.moment, scale)
        doubt = Doubt.of(size if known else told(size, v.size), at, problem.moment, scale)
        blur = problem.blur()
        if blur is not None:
            blur = jax.lax.stop_gradient(blur / jnp.max(units))
            before, doubt = (one._replace(lost=one.lost + blur) for one in (before, doubt))
        return Checked(end._replace(state=now, size=left, stretch=size), doubt, before)

    if centred.start is None:
        problems, at, scale = centred.problems, v, jnp.ones_like(centred.scale)
    else:
        problems, at, scale = given, centred.back(v), centred.scale
    moments = jax.lax.stop_gradient(centred.problems.moment)  # type: ignore[attr-defined]
    return jax.vmap(one)(problems, at, centred.start, end, v, scale, begun, centred.scale, moments)


def _judged(
    tolerance: Array | None,
    problem: IterateProblem,
    found: Checked,
    start: Array,
    path: Array,
    finite: Array,
    inside: Array,
    far: Array,
    dropped: Array,
) -> tuple[Array, Raw]:
    """The status from the true residual, and the start itself wherever nothing better was found. What rounding does not let
    be seen is not claimed."""
    end, doubt, before = found
    w, limits, size = end.state.w, jnp.finfo(end.state.w.dtype), end.stretch
    moved = jnp.any(w != 0)
    met = (start == 0) & (before.lost <= before.rounded)  # solved to rounding, unless it was lost
    status = path
    if tolerance is not None:
        enough = end.size + doubt.total() <= tolerance * (start - before.total())
        met = jnp.where(moved, enough, (met & (before.total() == 0)) | (tolerance >= 1))
        status = path + jnp.where(met, statuses.MET, statuses.NOT_MET)
    better = no_worse(problem, end.state, size, far)
    sure = no_worse(problem, end.state, size, far, doubt.lost + before.lost, dropped)
    inside &= sure | ~better  # else it is the smallest normal number that hides what steps have done
    good = finite & inside & sure & (moved | met)
    # Once a problem is solved to rounding, rounding alone makes a direction flat: no failure. Where A is so small or large
    # that its products are lost, a flat direction says nothing.
    # Beside a start that is right to rounding the true residual does not fall, only the one that steps update.
    little = limits.eps**0.5 * start
    singular = end.stuck & ~((end.size <= little) | (end.sizes[-1] <= little))
    least = smallest_told(w.dtype)
    # also a Gram matrix of zeros may be one whose products are lost
    shown = (size > least) & (size < 1 / least)
    good &= ~singular | shown
    status = jnp.where(good, status, statuses.NO_PROGRESS)
    status = jnp.where(singular & shown, statuses.NOT_DEFINITE, status)
    status = jnp.where(inside, status, statuses.OUT_OF_RANGE)
    status = jnp.where(finite, status, statuses.NOT_FINITE)
    last = jnp.where(good, end.size, start)
    sizes = jnp.where(jnp.arange(end.sizes.shape[0]) >= end.taken, last, end.sizes)
    kept = good & (moved | (dropped == 0))  # else w would be the start without its subnormal numbers
    return kept, Raw(w, status, jnp.where(good, end.taken, 0), ratio(sizes, start))
