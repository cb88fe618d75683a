"""What a compiled `solve` is made of, and what it returns before anybody puts it into words."""

import weakref
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from lfom.core.arrays import as_array
from lfom.core.checks import is_concrete
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
    reach = None if facts.certificate is None else as_array(facts.certificate.reach, facts.range.dtype)
    sizes = facts.range if facts.bound is None else None
    return Program(bare, Method(bare.reader, Conjugate(), 1), sizes, reach)  # type: ignore[attr-defined]


class Rest:
    """What of a tree is no array: it names what was compiled for it. Its hash is taken once."""

    def __init__(self, rest: Any, structure: Any):
        self.rest, self.structure, self.number = rest, structure, hash((rest, structure))

    def whole(self, arrays: list[Array]) -> Any:
        return eqx.combine(jax.tree.unflatten(self.structure, arrays), self.rest)

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: Any) -> bool:
        same = self.number == other.number and self.structure == other.structure
        return self is other or (same and bool(self.rest == other.rest))


Plan = tuple[int, int, np.ndarray | None, str]  # the method's own steps, steps in all, tolerance, fallback


class Prepared:
    """What `solve` needs of a method. arrays, rest: its program, with what all problems share computed. plans: what was
    decided for problems of a kind, shape and precision, a number of steps and a tolerance."""

    def __init__(self, method: Algorithm):
        program: Any = program_of(method)
        self.lasts = all(_lasts(leaf) for leaf in jax.tree.leaves(program))
        if self.lasts:
            ready = eqx.filter_eval_shape(Program.ready, program)
            if not eqx.tree_equal(*map(jax.tree.structure, (ready, program))):
                program = eqx.filter_jit(Program.ready)(program)
        arrays, rest = eqx.partition(program, lambda leaf: isinstance(leaf, jax.Array | np.ndarray))
        self.arrays, structure = jax.tree.flatten(arrays)
        self.rest, self.plans = Rest(rest, structure), dict[Any, Plan]()


def _lasts(leaf: Any) -> bool:
    """Whether it has a value that nobody can change."""
    return not isinstance(leaf, np.ndarray) and is_concrete(leaf)


KEPT: dict[int, tuple[Any, Prepared]] = {}  # by the identity of methods, as long as they exist


def prepared(method: Algorithm) -> Prepared:
    """Found once for methods whose numbers cannot change."""
    number = id(method)
    if number in KEPT:
        return KEPT[number][1]
    found = Prepared(method)
    if found.lasts:
        KEPT[number] = weakref.ref(method, lambda _: KEPT.pop(number, None)), found
    return found


class Raw(NamedTuple):
    """value (problems, *shape), status, steps and residuals (problems, steps + 1), relative to the start's. intercept: of
    regressions that have one. With several right-hand sides these are the last axis of value and intercept, and the
    second one of the others."""

    value: Any
    status: Int[Array, "*problems"]
    steps: Int[Array, "*problems"]
    residuals: Float[Array, "*problems columns"]
    intercept: Float[Array, "*problems"] | None = None
