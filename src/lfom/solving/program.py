"""What a compiled `solve` is made of, and what it returns before anybody puts it into words."""

from dataclasses import replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from lfom.core.arrays import as_array
from lfom.core.kept import AsLongAs, lasts
from lfom.core.memories import Conjugate
from lfom.core.methods import Algorithm, Method
from lfom.core.unroll import Turns, with_room
from lfom.solving import statuses


class Program(eqx.Module):
    """The part of a method that runs. tail: the conjugate gradients that go on where its own steps end; None
    for those with the problem's own diagonal. range: see `Learned`; None for a method that was not learned, or was
    under a bound on its worst case, which holds for problems as they are. reach: see Certificate; None where there is none. path: of problems
    that are solved as they are and of which no certificate speaks. counts: how many steps of its own are taken and how many in all,
    where these are data; whoever is told numbers of steps then takes them for room. by_rows: whether regressions are read by
    their rows."""

    method: Algorithm
    tail: Method | None
    range: Float[Array, "3"] | None = None
    reach: Float[Array, " steps"] | None = None
    counts: tuple[Turns, Turns] | None = None
    path: int = eqx.field(static=True, default=statuses.CHECKED)
    by_rows: bool = eqx.field(static=True, default=False)

    def ready(self) -> "Program":
        """The same, with what all problems share computed once."""
        tail = None if self.tail is None else self.tail.ready()
        return replace(self, method=self.method.ready(), tail=tail)

    def with_room(self) -> tuple["Program", int | None]:
        """The same with room for more layers, and for how many, where it may have it (see `core.unroll.with_room`)."""
        method, turns = with_room(self.method)
        if turns is None:
            return self, None
        tail = method if self.tail is self.method else self.tail
        reach = self.reach
        if reach is not None:
            reach = as_array(np.pad(np.asarray(reach), (0, method.depth - len(reach))))
        return replace(self, method=method, tail=tail, reach=reach), method.depth  # type: ignore[arg-type]


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


class Plan(NamedTuple):
    """own: the method's own steps. steps: in all. counts: both as data, where they can be, and room for so many."""

    own: int
    steps: int
    tolerance: np.ndarray | None
    fallback: str
    counts: tuple[Turns, Turns] | None
    room: tuple[int, int]


class Prepared:
    """What `solve` needs of a method. arrays, rest: its program, with what all problems share computed. plans: what was
    decided for problems of a kind, shape and precision, a number of steps and a tolerance. room: for so many of its own steps; None
    where their number is no data."""

    def __init__(self, method: Algorithm):
        program: Any = program_of(method)
        self.ranged, self.room = program.range is not None, None
        if lasts(program):
            program, self.room = program.with_room()
            ready = eqx.filter_eval_shape(Program.ready, program)
            if not eqx.tree_equal(*map(jax.tree.structure, (ready, program))):
                program = eqx.filter_jit(Program.ready)(program)
        arrays, rest = eqx.partition(program, lambda leaf: isinstance(leaf, jax.Array | np.ndarray))
        self.arrays, structure = jax.tree.flatten(arrays)
        self.rest, self.plans = Rest(rest, structure), dict[Any, Plan]()


prepared = AsLongAs(Prepared)


class Raw(NamedTuple):
    """value (problems, *shape), status, steps and residuals (problems, steps + 1), relative to the start's. intercept: of
    regressions that have one. With several right-hand sides these are the last axis of value and intercept, and the
    second one of the others."""

    value: Any
    status: Int[Array, "*problems"]
    steps: Int[Array, "*problems"]
    residuals: Float[Array, "*problems columns"]
    intercept: Float[Array, "*problems"] | None = None
