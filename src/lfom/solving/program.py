"""What a compiled `solve` is made of, and what it returns before anybody puts it into words."""

from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from lfom.core.memories import Conjugate
from lfom.core.methods import Algorithm, Method
from lfom.solving import statuses


class Program(eqx.Module):
    """The part of a method that runs. tail: the conjugate gradients that go on where its own steps end; None
    for those with the problem's own diagonal. range: see `Learned`; None for a method that was not learned, or was
    under a bound on its worst case, which holds for problems as they are. reach: see Certificate; None where there is none. path: of problems
    that are solved as they are and of which no certificate speaks."""

    method: Algorithm
    tail: Method | None
    range: Float[Array, "3"] | None = None
    reach: Float[Array, " steps"] | None = None
    path: int = eqx.field(static=True, default=statuses.CHECKED)

    def ready(self) -> "Program":
        """The same, with what all problems share computed once."""
        tail = None if self.tail is None else self.tail.ready()
        return Program(self.method.ready(), tail, self.range, self.reach, self.path)


def program_of(method: Algorithm) -> Program:
    facts, bare = method.facts, method.as_algorithm()
    if bare.is_conjugate:
        return Program(bare, bare, path=statuses.CHECKED if facts is None else statuses.CERTIFIED)  # type: ignore[arg-type]
    if facts is None:
        return Program(bare, None)
    reach = None if facts.certificate is None else jnp.asarray(facts.certificate.reach, facts.range.dtype)
    sizes = facts.range if facts.bound is None else None
    return Program(bare, Method(bare.reader, Conjugate(), 1), sizes, reach)  # type: ignore[attr-defined]


class Raw(NamedTuple):
    """value (problems, *shape), status, steps and residuals (problems, steps + 1), relative to the start's. intercept: of
    regressions that have one. With several right-hand sides these are the last axis of value and intercept, and the
    second one of the others."""

    value: Any
    status: Int[Array, "*problems"]
    steps: Int[Array, "*problems"]
    residuals: Float[Array, "*problems columns"]
    intercept: Float[Array, "*problems"] | None = None
