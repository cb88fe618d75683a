"""A stopping rule: the one step of `unroll`, on a batch of problems of which each stops by itself.

Problems that are done are frozen: their states stay as they are to the last bit, and their steps are not
counted. The batch is one explicit loop around a vmapped step, so that the number of the layer is the same
for all problems and parameters of layers are read once, not gathered per problem.

On an accelerator the host asks after every turn whether to go on, which takes as long as a step. So a turn is several
steps there, those of problems that are done without effect, and few steps of a known number are written out.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from lfom.core.arrays import norm, pad_axes
from lfom.core.compiler import reads_back
from lfom.core.methods import Algorithm
from lfom.core.parameters import by_layer, cut
from lfom.core.problems import IterateProblem

TURN = 4  # steps between two questions to the host, on an accelerator
ROUNDED = 4  # times eps: four deviations of sums of six products, and more of longer ones
WRITTEN_OUT = 16  # steps of a known number there


class Standing(NamedTuple):
    """Where every problem of a batch stands. size: the norm of its gradient at the answer; sizes: the same
    after every step, the last one standing for what is not reached. stuck: its memory can go no further.
    stretch: the largest |H step| / |step| met, an estimate of the norm of H (see `IterateProblem.stretch`)."""

    state: Any
    taken: Int[Array, " problems"]
    size: Float[Array, " problems"]
    sizes: Float[Array, "problems columns"]
    stuck: Bool[Array, " problems"]
    stretch: Float[Array, " problems"]


class Goal(NamedTuple):
    """When problems are done: once their gradients are no larger than `size`. norms: of H, where that is to be so in spite of what
    rounding H w may hide, see `slack`, with far."""

    size: Float[Array, " problems"]
    norms: Float[Array, " problems"] | None = None
    far: Array | float = 0.0

    def reached(self, now: Standing) -> Bool[Array, " problems"]:
        hidden = (
            0 if self.norms is None else jnp.minimum(slack(self.norms, now.state, self.far), self.size / 2)
        )
        return now.size <= self.size - hidden


def _size(problem: Any, state: Any) -> Array:
    """Read off: it decides, and has no derivative."""
    return norm(jax.lax.stop_gradient(problem.left(state)))


def begin(problems: IterateProblem, state: Any, steps: int) -> Standing:
    """No step taken yet, with room for so many of them."""
    size = jax.vmap(lambda problem, one: _size(problem, one))(problems, state)
    nothing = jnp.zeros_like(size)
    sizes = jnp.broadcast_to(size[:, None], (len(size), steps + 1))
    return Standing(state, nothing.astype(int), size, sizes, nothing.astype(bool), nothing)


def slack(
    norms: Float[Array, " problems"], state: Any, far: Array | float = 0.0
) -> Float[Array, " problems"]:
    """By how much rounding may have moved H w: each entry is a sum of products, and the sum of their sizes is rounded a few
    times. far: the size of what w is added to."""
    w = jax.lax.stop_gradient(state.w)
    return ROUNDED * jnp.finfo(w.dtype).eps * norms * (jax.vmap(norm)(w) + far)


def told(stretch: Array, unknowns: int) -> Array:
    """What steps tell of the norm of H, for how far rounding moves a gradient's norm: signs of its entries are random."""
    return stretch / unknowns**0.5


def choose(which: Bool[Array, " problems"], yes: Any, no: Any) -> Any:
    """For every problem of two trees the one or the other."""
    return jax.tree.map(lambda a, b: jnp.where(pad_axes(which, a.ndim), a, b), yes, no)


def until(
    algorithm: Algorithm,
    problems: IterateProblem,
    now: Standing,
    limit: Int[Array, " problems"],
    goal: Goal | None = None,
    own: Any = None,
    bind: Callable[[Any, Any], Algorithm] | None = None,
    rounds: int | None = None,
) -> Standing:
    """Steps from where every problem stands until it has taken `limit` of them, has reached its goal, is stuck or its numbers
    overflow.

    own, bind: bind(algorithm, own of one problem) is what that problem runs; by default what it has read
    off the problem. The memory starts empty. rounds: so many of them whether they are needed or not, which can be
    differentiated in reverse; by default as many as the slowest problem needs.
    """
    algorithm = algorithm.ready()
    if bind is None:
        bind, own = (lambda one, seen: one.bind(seen)), jax.vmap(algorithm.look)(problems)
    stacked, here = by_layer(cut(algorithm, algorithm.depth), algorithm.depth)
    columns = jnp.arange(now.sizes.shape[1])

    def goes_on(now: Standing) -> Array:
        going = (now.taken < limit) & ~now.stuck & jnp.isfinite(now.size)
        return going if goal is None else going & ~goal.reached(now)

    def start(problem: Any, state: Any, own: Any) -> Any:
        return bind(here([a[0] for a in stacked]), own).start(state, problem, algorithm.depth)

    def body(carry: Any) -> Any:
        index, past, now = carry
        layer = here([jax.lax.dynamic_index_in_dim(a, index, 0, False) for a in stacked])

        def one(problem: Any, state: Any, past: Any, own: Any, going: Array) -> Any:
            bound = bind(layer, own)
            step, past = bound.step(state, bound.marked(past, going), problem, index)
            moved = problem.move(state, step)
            stuck = jnp.asarray(bound.stuck(past))
            stretch = problem.stretch(*jax.lax.stop_gradient((state, moved, step)))
            return moved, past, _size(problem, moved), stuck, stretch

        going = goes_on(now)
        moved, past, size, stuck, stretch = jax.vmap(one)(problems, now.state, past, own, going)
        stuck = now.stuck | (going & stuck)
        taken = now.taken + (going & ~stuck)
        size = jnp.where(going, size, now.size)
        later = going[:, None] & (columns >= taken[:, None])
        sizes = jnp.where(later, size[:, None], now.sizes)
        stretch = jnp.where(going & (stretch > now.stretch), stretch, now.stretch)
        return index + 1, past, Standing(choose(going, moved, now.state), taken, size, sizes, stuck, stretch)

    carry = (jnp.asarray(0), jax.vmap(start)(problems, now.state, own), now)
    if rounds is not None:
        together = min(rounds, WRITTEN_OUT) if reads_back() else 1
        return jax.lax.scan(lambda carry, _: (body(carry), None), carry, length=rounds, unroll=together)[0][2]

    def turn(carry: Any) -> Any:
        for _ in range(TURN if reads_back() else 1):
            carry = body(carry)
        return carry

    return jax.lax.while_loop(lambda carry: goes_on(carry[2]).any(), turn, carry)[2]
