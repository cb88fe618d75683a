"""A fixed number of layers: read a direction, remember it, step; every answer on the way is kept.

Layers are a scan, so that fifty of them compile as fast as two. What measured faster written out is written
out (`unrolled`); `docs/design.md` has the table.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from lfom.core.arrays import as_array, unstacked
from lfom.core.checks import is_concrete
from lfom.core.compiler import by_itself, reads_back
from lfom.core.kept import AsLongAs
from lfom.core.methods import Algorithm
from lfom.core.parameters import by_layer, cut, widened
from lfom.core.problems import Problem

WRITTEN_OUT = 8  # layers: up to here they are written out, as far as that measured faster than a scan
WRITTEN_OUT_COVARIATES = 5  # the same for GD++
ROOM, LOOPS = 8, 7  # a memory that fills up has a loop for so many layers, and so many loops at most

Active = Float[Array, " depth"]  # 1 for layers that step, 0 for those that are switched off
Turns = Int[Array, ""]  # how many layers step, before those that are switched off
Watch = Callable[[Any, Any], Any]  # (state, past) -> what is kept of a layer


def trace(
    algorithm: Algorithm,
    problem: Problem,
    active: Active | None,
    watch: Watch,
    *,
    loop: bool = False,
    turns: Turns | None = None,
) -> tuple[Any, Any, Any]:
    """The first and the last state, and watch(state, past) after every layer, on a leading axis. loop: never
    written out, for programs that run so seldom that compiling them is what takes time. turns: take only so many layers, a
    number that is data; what is kept of the others means nothing, and there is no derivative in reverse (see `with_room`)."""
    algorithm = algorithm.prepared(problem)
    depth = algorithm.depth
    written_out = not (loop or is_loop(algorithm))
    if turns is not None and (written_out or reads_back()):
        active, turns = jnp.arange(depth) < turns, None
    stacked, here = by_layer(cut(algorithm, depth), depth)  # arrays may have entries for more layers
    numbers = (stacked, active)
    first = problem.start(splits=algorithm.splits, moves_covariates=algorithm.moves_covariates)

    def layer(carry: Any, now: Any, index: Array | int) -> tuple[Any, Any]:
        state, past = carry
        arrays, on = now
        step, past = here(arrays).step(state, past, problem, index)
        state = problem.move(state, step if on is None else on * step)
        return (state, past), watch(state, past)

    def begin(state: Any, room: int | None) -> Any:
        return state, here([a[0] for a in stacked]).start(state, problem, room)

    if written_out:
        leaves, structure = jax.tree.flatten(numbers)
        carry, seen, each = begin(first, None), [], [unstacked(leaf) for leaf in leaves]
        for index in range(depth):
            own = jax.tree.unflatten(structure, [arrays[index] for arrays in each])
            carry, found = layer(carry, own, index)
            seen.append(found)
        return first, carry[0], jax.tree.map(lambda *rows: jnp.stack(rows), *seen)

    ends = loop_ends(algorithm, depth)
    # Parameters may be more precise than the problem: then the states are, too.
    one, carry = jax.tree.map(lambda a: a[0], numbers), begin(first, ends[0])
    shapes = jax.eval_shape(lambda carry: layer(carry, one, 0)[0][0], carry)
    if _types(first) != _types(shapes):
        first = jax.tree.map(lambda a, to: jnp.broadcast_to(a, to.shape).astype(to.dtype), first, shapes)
        carry = begin(first, ends[0])

    def body(carry: Any, now: Any) -> tuple[Any, Any]:
        return layer(carry, *now)

    if algorithm.moves_covariates:
        # on the way back its layers are computed again: what they would keep is larger
        body = jax.checkpoint(body, prevent_cse=False)
    found, done = [], 0
    for end in ends:
        larger = jax.eval_shape(lambda end=end: begin(first, end)[1])
        carry = carry[0], jax.tree.map(_moved_to, carry[1], larger)
        now = jax.tree.map(lambda a: a[done:end], numbers), jnp.arange(done, end)
        carry, seen = (
            jax.lax.scan(body, carry, now) if turns is None else _some(body, carry, now, turns - done)
        )
        found, done = [*found, seen], end
    return first, carry[0], jax.tree.map(lambda *parts: jnp.concatenate(parts), *found)


def is_loop(algorithm: Algorithm) -> bool:
    """Whether its layers are a loop wherever it runs."""
    return algorithm.depth > (WRITTEN_OUT_COVARIATES if algorithm.moves_covariates else WRITTEN_OUT)


def _some(body: Any, carry: Any, now: Any, turns: Any) -> tuple[Any, Any]:
    """A scan that ends after so many turns."""

    def at(index: Array | int) -> Any:
        return jax.tree.map(lambda a: a[index], now)

    def turn(index: Array, both: tuple[Any, Any]) -> tuple[Any, Any]:
        carry, new = body(both[0], at(index))
        return carry, jax.tree.map(lambda a, own: a.at[index].set(own), both[1], new)

    room, seen = len(jax.tree.leaves(now)[0]), jax.eval_shape(body, carry, at(0))[1]
    nothing = jax.tree.map(lambda a: jnp.zeros((room, *a.shape), a.dtype), seen)
    return jax.lax.fori_loop(0, jnp.clip(turns, 0, room), turn, (carry, nothing))


def with_room(algorithm: Algorithm) -> tuple[Algorithm, Turns | None]:
    """The method with entries for the next of 8, 16, 32, ... layers, and how many are its own: methods that differ in depth
    alone then share a program. As it is, and None, where depth must be known: inside somebody's jit or derivative, of a method
    for which room might not be nothing, and on an accelerator, which waits for its host after every turn of a loop whose length is data."""
    full, turns = _widened(algorithm)
    return algorithm if full is None else full, turns


@AsLongAs
def _widened(algorithm: Algorithm) -> tuple[Algorithm | None, Turns | None]:
    """None for the method itself."""
    depth, known = algorithm.depth, all(map(is_concrete, jax.tree.leaves(algorithm)))
    room = room_of(depth) if known and algorithm.takes_room else 0
    if room <= depth:
        return None, as_turns(depth) if room == depth else None
    full = widened(algorithm, room).truncated(room)
    return (full, as_turns(depth)) if full.depth == room else (None, None)


def as_turns(number: int) -> Turns:
    """A number of layers as data."""
    return as_array(number, np.int32)


def room_of(depth: int) -> int:
    """See `with_room`; 0 where there is none."""
    return 0 if reads_back() else max(WRITTEN_OUT, 1 << (depth - 1).bit_length())


def loop_ends(algorithm: Algorithm, depth: int) -> list[int]:
    """Where loops end. A memory that fills up is given room bit by bit: early layers do not go through the room of later ones."""
    parts = max(1, min(LOOPS, -(-depth // ROOM))) if algorithm.fills_up else 1
    return [-(-depth * (part + 1) // parts) for part in range(parts)]


def _moved_to(stored: Array, like: Any) -> Array:
    """Into more room."""
    if stored.shape == like.shape:
        return stored
    return jnp.pad(stored, [(0, to - own) for own, to in zip(stored.shape, like.shape, strict=True)])


def _types(tree: Any) -> list[Any]:
    return [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(tree)]


def unroll(
    algorithm: Algorithm,
    problem: Problem,
    active: Active | None = None,
    *,
    loop: bool = False,
    turns: Turns | None = None,
) -> Float[Array, "steps ..."]:
    """The answers of `algorithm` on `problem` after 0, 1, ..., depth steps.

    On tokens an answer is the prediction, on iterates it is w. `active` multiplies the step of each layer:
    models of several depths then run as one batch. loop, turns: see `trace`.
    """
    first, _, answers = trace(
        algorithm, problem, active, lambda state, past: problem.readout(state), loop=loop, turns=turns
    )
    return jnp.concatenate([problem.readout(first)[None], answers])


def last_answer(
    algorithm: Algorithm, problem: Problem, active: Active | None = None, turns: Turns | None = None
) -> Array:
    """The answer after the last step. turns: see `trace`."""
    return problem.readout(trace(algorithm, problem, active, lambda state, past: None, turns=turns)[1])


def last_residual(
    algorithm: Algorithm, problem: Problem, active: Active | None = None, turns: Turns | None = None
) -> Float[Array, "k *prompts"]:
    """What training makes small, after the last step. turns: see `trace`."""
    return problem.each(lambda one: one.residual(last_answer(algorithm, one, active, turns)))


def losses(
    algorithm: Algorithm,
    problem: Problem,
    active: Active | None = None,
    *,
    loop: bool = False,
    turns: Turns | None = None,
) -> Float[Array, "steps *prompts"]:
    """The loss |residual|^2 of every prompt after 0, 1, ..., depth steps. loop, turns: see `trace`."""

    def one(single: Any) -> Array:
        def watch(state: Any, past: Any) -> Array:
            return by_itself(jnp.sum(single.residual(single.readout(state)) ** 2, axis=0))

        first, _, found = trace(algorithm, single, active, watch, loop=loop, turns=turns)
        return jnp.concatenate([watch(first, None)[None], found])

    return problem.each(one)
