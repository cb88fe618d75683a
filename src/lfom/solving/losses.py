"""Convex losses: solutions to learn from, the safe line search, and solving a batch of them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

from lfom.core.arrays import norm, ratio
from lfom.core.memories import Conjugate, Memory
from lfom.core.methods import Method
from lfom.core.preconditioners import Identity
from lfom.core.problems import Objective, Operator
from lfom.core.readers import Gradient
from lfom.core.states import Direction
from lfom.core.stopping import Goal, begin, choose, told, until
from lfom.solving import statuses
from lfom.solving.program import Program, Raw
from lfom.solving.systems import Doubt, own_steps, starts, strict

HALVINGS = 30  # of a step in the line search
SUFFICIENT = 1e-4  # Armijo's share of the promised decrease


def line_search(
    problem: Objective, w: Array, value: Array, direction: Array, slope: Array, first: Array
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """t and the loss at w + t direction with t = first, first/2, ...: the first that falls enough (Armijo);
    t = 0 where none does. slope: gradient . direction, negative. The number of halvings has no derivative, t has."""
    problem, w, value, direction, slope, tried = jax.lax.stop_gradient(
        (problem, w, value, direction, slope, first)
    )

    def unfinished(state: Any) -> Array:
        count, _, _, found = state
        return (count < HALVINGS) & ~found

    def body(state: Any) -> Any:
        count, t, best, _ = state
        new = problem.value(w + t * direction)
        enough = new <= value + SUFFICIENT * t * slope
        return count + 1, jnp.where(enough, t, t / 2), jnp.where(enough, new, best), enough

    descends = slope < 0
    start = (jnp.asarray(0), tried, value, ~descends)  # else there is nothing to search
    _, t, best, found = jax.lax.while_loop(unfinished, body, start)
    return jnp.where(found & descends, t / tried * first, 0), best


class Searched(NamedTuple):
    """Where the last step began, and how long it was: t = 0 once no step falls enough."""

    w: Array
    gradient: Array
    value: Array
    t: Array
    begun: Array


class LineSearched(Memory):
    """step = t direction, t found by a line search; its first trial by Barzilai and Borwein, s.s / s.y over
    the last step, and of length 1 in the first."""

    linear = False

    def start(self, nothing: Any, state: Any, problem: Any, room: int | None) -> Searched:
        one = jnp.ones((), state.w.dtype)
        return Searched(state.w, state.gradient, problem.value(state.w), one, jnp.zeros((), bool))

    def __call__(
        self, direction: Direction, past: Searched, state: Any, problem: Any, layer: Array | int
    ) -> tuple[Any, Searched]:
        s, y = state.w - past.w, state.gradient - past.gradient
        length = ratio(jnp.sum(s * s), jnp.sum(s * y), otherwise=2 * past.t)
        length = jnp.where(past.begun & (length > 0), length, ratio(1.0, norm(state.gradient), otherwise=1.0))
        slope = jnp.sum(state.gradient * direction.context.w) * (past.t > 0)
        t, value = line_search(problem, state.w, past.value, direction.context.w, slope, length)
        return t * direction, Searched(state.w, state.gradient, value, t, jnp.ones((), bool))

    def stuck(self, past: Searched) -> Array:
        return past.t <= 0

    def marked(self, past: Searched, going: Array) -> Searched:
        """Nothing is searched where t = 0, so that a few problems do not wait for the trials of all."""
        return past._replace(t=jnp.where(going, past.t, 0))


@dataclass(frozen=True)
class Hessian:
    """operator(data, v) = H v with data = (data of the problem, w): equal for equal losses, so that
    what was compiled for it is used again."""

    loss: Callable[[Array, Any], Array]

    def __call__(self, data: Any, vector: Array) -> Array:
        own, at = data
        return jax.jvp(jax.grad(lambda w: self.loss(w, own)), (at,), (vector,))[1]


def hessians(problems: Objective, w: Float[Array, "problems *shape"], b: Array) -> Operator:
    """The second derivatives at w as operators, with a right-hand side."""
    return Operator(Hessian(problems.loss), (problems.data, w), b)


class Newton(NamedTuple):
    """Where Newton's method stands in every problem."""

    w: Array
    value: Array
    gradient: Array
    size: Array
    going: Bool[Array, " problems"]


@eqx.filter_jit
def minimise(problems: Objective) -> tuple[Array, Array, Array]:
    """w*, its loss and its gradient's norm relative to the start's: Newton's method with a line
    search, its system by conjugate gradients."""

    def at(w: Array, going: Array) -> Newton:
        value, gradient = jax.vmap(lambda one, w: jax.value_and_grad(one.value)(w))(problems, w)
        return Newton(w, value, gradient, jax.vmap(norm)(gradient), going)

    first = at(problems.w_0, jnp.ones(len(problems.w_0), bool))
    target = 10 * jnp.finfo(first.w.dtype).eps * first.size
    inner = min(2 * first.w[0].size, 200)
    conjugate = Method(Gradient(Identity()), Conjugate(), 1)

    def newton(state: tuple[Array, Newton]) -> tuple[Array, Newton]:
        count, now = state
        system = hessians(problems, now.w, -now.gradient)
        limit = jnp.where(now.going, inner, 0)
        end = until(conjugate, system, begin(system, starts(system), 0), limit, Goal(1e-3 * now.size))
        direction = end.state.w
        slope = jax.vmap(lambda g, d: jnp.sum(g * d))(now.gradient, direction)
        t, _ = jax.vmap(line_search)(problems, now.w, now.value, direction, slope, jnp.ones_like(now.value))
        new = at(jax.vmap(lambda w, t, d: w + t * d)(now.w, t, direction), now.going)
        return count + 1, new._replace(going=(t > 0) & (new.size > target))

    def unfinished(state: tuple[Array, Newton]) -> Array:
        return (state[0] < 50) & state[1].going.any()

    end = jax.lax.while_loop(unfinished, newton, (jnp.asarray(0), first))[1]
    return end.w, end.value, ratio(end.size, first.size, otherwise=0.0)


def doubt(w: Float[Array, "problems *shape"], norms: Float[Array, " problems"]) -> Float[Array, " problems"]:
    """By how much gradients at w may be off, from what steps told of the norms of second derivatives. What the data lose is not
    seen."""
    return jax.vmap(lambda w, size: Doubt.of(size, w, None).total())(w, norms)


def solve_losses(
    own: int,
    steps: int,
    program: Program,
    problems: Objective,
    start: None,
    tolerance: Array | None = None,
    written: bool = False,
) -> Raw:
    """`own` steps of the method, then gradient steps with a line search up to `steps`; all of them
    where its steps end above the start's loss. No problem's numbers reach another one. start: problems hold it."""
    first = begin(problems, starts(problems), steps)
    taken, most = program.counts or (own, steps)
    values = jax.vmap(lambda one, w: one.value(w))
    value = values(problems, first.state.w)
    goal = None if tolerance is None else Goal(strict(tolerance) * first.size)
    finite = jax.vmap(lambda one: one.finite())(problems)
    inside = jnp.isfinite(value) & jnp.isfinite(first.size)
    now = own_steps(program, problems, first, own, goal)
    good = (values(problems, now.state.w) <= value) & jnp.isfinite(now.size)
    path = jnp.where(good, statuses.CHECKED, statuses.FALLBACK)
    now = choose(good, now, first)
    limit = jnp.where(finite & inside, jnp.where(good & (now.taken < taken), now.taken, most), 0)
    descent = Method(Gradient(Identity()), LineSearched(), 1)
    end = until(descent, problems, now, limit, goal, rounds=steps if written else None)
    last = values(problems, end.state.w)
    met = first.size == 0
    if tolerance is not None:  # a gradient of zeros may be one that rounding has made
        met = end.size + doubt(end.state.w, told(end.stretch, end.state.w[0].size)) <= tolerance * (
            first.size - doubt(first.state.w, end.stretch)
        )
    good = finite & inside & ((last < value) | (met & (end.taken == 0))) & jnp.isfinite(end.size)
    status = path if goal is None else path + jnp.where(met, statuses.MET, statuses.NOT_MET)
    status = jnp.where(good, status, statuses.NO_PROGRESS)
    status = jnp.where(inside, status, statuses.OUT_OF_RANGE)
    status = jnp.where(finite, status, statuses.NOT_FINITE)
    w = choose(good, end.state.w, problems.w_0)
    sizes = jnp.where(good[:, None], end.sizes, first.sizes)
    return Raw(w, status, jnp.where(good, end.taken, 0), ratio(sizes, first.size[:, None]))
