"""Derivatives of what `solve` returns.

With a tolerance the answer is a solution, grad f(w, data) = 0, and the implicit function theorem gives dw = -H^-1 d(grad f)
at fixed w: one more solve, by the same method where H is that of a quadratic. Without one it is whatever the steps make of the
data, and the derivative is that of the steps. Statuses, steps and residuals have none.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from jax import Array

from lfom.core.problems import IterateProblem
from lfom.solving.program import Program, Raw

# (program, problems, tolerance, w, g) -> H^-1 g at w, of every problem
Inverse = Callable[[Program, Any, Array, Array, Array], Array]


def differentiated(
    solve: Callable[..., Raw],
    inverse: Inverse,
    program: Program,
    problems: IterateProblem,
    start: Any,
    tolerance: Array | None,
) -> Raw:
    """What solve(program, problems, start, tolerance) finds, with the derivative of a solution; without a tolerance that of
    the steps, which solve(..., written=True) takes without a loop of unknown length."""
    if tolerance is None:
        return _by_steps(solve, program, problems, start)
    fixed = jax.lax.stop_gradient((program, problems, start, tolerance))
    raw = solve(*fixed)
    return raw._replace(value=_solution(inverse, (fixed[0], fixed[3]), problems, raw.value))


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _solution(inverse: Inverse, given: Any, problems: Any, w: Array) -> Array:
    return w


@_solution.defjvp
def _solution_jvp(inverse: Inverse, primals: Any, tangents: Any) -> tuple[Array, Array]:
    (program, tolerance), problems, w = primals
    w = _solution(inverse, *primals)

    def gradients(problems: Any, w: Array) -> Array:
        return jax.vmap(lambda one, w: one.gradient(w))(problems, w)

    change = jax.jvp(lambda some: gradients(some, w), (problems,), (tangents[1],))[1]
    step = jax.lax.custom_linear_solve(
        lambda v: jax.jvp(lambda w: gradients(problems, w), (w,), (v,))[1],
        change,
        lambda _, g: inverse(program, problems, tolerance, w, g),
        symmetric=True,
    )
    return w, -step


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _by_steps(solve: Callable[..., Raw], program: Program, problems: Any, start: Any) -> Raw:
    return solve(program, problems, start)


@_by_steps.defjvp
def _by_steps_jvp(solve: Callable[..., Raw], primals: Any, tangents: Any) -> tuple[Raw, Raw]:
    return jax.jvp(partial(solve, written=True), primals, tangents)
