"""A fixed number of layers: read a direction, remember it, step; every answer on the way is kept.

Layers are a scan, so that fifty of them compile as fast as two. What measured faster written out is written
out (`unrolled`); `docs/design.md` has the table.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from lfom.core.arrays import unstacked
from lfom.core.compiler import by_itself
from lfom.core.methods import Algorithm
from lfom.core.parameters import by_layer, cut
from lfom.core.problems import Problem

WRITTEN_OUT = 8  # layers: up to here they are written out, as far as that measured faster than a scan
WRITTEN_OUT_COVARIATES = 5  # the same for GD++
ROOM, LOOPS = 8, 7  # a memory that fills up has a loop for so many layers, and so many loops at most

Active = Float[Array, " depth"]  # 1 for layers that step, 0 for those that are switched off
Watch = Callable[[Any, Any], Any]  # (state, past) -> what is kept of a layer


def trace(
    algorithm: Algorithm, problem: Problem, active: Active | None, watch: Watch, *, loop: bool = False
) -> tuple[Any, Any, Any]:
    """The first and the last state, and watch(state, past) after every layer, on a leading axis. loop: never
    written out, for programs that run so seldom that compiling them is what takes time."""
    algorithm = algorithm.prepared(problem)
    depth = algorithm.depth
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

    longest = WRITTEN_OUT_COVARIATES if algorithm.moves_covariates else WRITTEN_OUT
    if depth <= longest and not loop:
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
        carry, seen = jax.lax.scan(body, carry, now)
        found, done = [*found, seen], end
    return first, carry[0], jax.tree.map(lambda *parts: jnp.concatenate(parts), *found)


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
    algorithm: Algorithm, problem: Problem, active: Active | None = None, *, loop: bool = False
) -> Float[Array, "steps ..."]:
    """The answers of `algorithm` on `problem` after 0, 1, ..., depth steps.

    On tokens an answer is the prediction, on iterates it is w. `active` multiplies the step of each layer:
    models of several depths then run as one batch. loop: see `trace`.
    """
    first, _, answers = trace(
        algorithm, problem, active, lambda state, past: problem.readout(state), loop=loop
    )
    return jnp.concatenate([problem.readout(first)[None], answers])


def last_answer(algorithm: Algorithm, problem: Problem, active: Active | None = None) -> Array:
    """The answer after the last step."""
    return problem.readout(trace(algorithm, problem, active, lambda state, past: None)[1])


def last_residual(
    algorithm: Algorithm, problem: Problem, active: Active | None = None
) -> Float[Array, "k *prompts"]:
    """What training makes small, after the last step."""
    return problem.each(lambda one: one.residual(last_answer(algorithm, one, active)))


def losses(
    algorithm: Algorithm, problem: Problem, active: Active | None = None, *, loop: bool = False
) -> Float[Array, "steps *prompts"]:
    """The loss |residual|^2 of every prompt after 0, 1, ..., depth steps. loop: see `trace`."""

    def one(single: Any) -> Array:
        def watch(state: Any, past: Any) -> Array:
            return by_itself(jnp.sum(single.residual(single.readout(state)) ** 2, axis=0))

        first, _, found = trace(algorithm, single, active, watch, loop=loop)
        return jnp.concatenate([watch(first, None)[None], found])

    return problem.each(one)
