"""Adam through the steps of a method: every iteration is a call of one compiled program, so that progress
shows and Ctrl-C is heard, and sees a few problems where these say enough."""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jaxtyping import Bool, Float, Int

from lfom.core.arrays import as_array, filled
from lfom.core.methods import Method
from lfom.core.runs import take

LAST = 0.02  # of the rate, in the end

Tick = Callable[[float], None]  # told the part that is done


def silent(part: float) -> None:
    return None


class Refined(eqx.Module):
    """What is refined: a method as a function of arrays that are free."""

    @abc.abstractmethod
    def method(self, free: Any, sample: Any) -> Method:
        """Numbers that follow from the free ones in closed form follow from this sample."""


class Descent(eqx.Module):
    """Where Adam stands. best, lowest: the best point met and its loss."""

    now: Any
    adam: Any
    best: Any
    lowest: Float[Array, ""]


def batches(
    learning: Int[np.ndarray, " problems"], size: int, iterations: int, seed: int
) -> Int[np.ndarray, "iterations batch"]:
    """The problems of every iteration: all, or `size` of them, in a new order whenever all had their turn."""
    if size >= len(learning):
        return np.broadcast_to(learning, (iterations, len(learning)))
    random, rounds = np.random.default_rng(seed), 1 + iterations * size // len(learning)
    order = np.concatenate([random.permutation(learning) for _ in range(rounds)])
    return order[: iterations * size].reshape(iterations, size)


def descend(
    refined: Refined,
    free: Any,
    sample: Any,
    members: Int[np.ndarray, "iterations batch"],
    rate: float,
    tick: Tick,
) -> Any:
    """Adam with a falling rate. Where every iteration sees the same problems, the best point met by the loss
    on them; else the last one, whose noise the falling rate has averaged. sample: of all problems."""
    count = len(members)
    if not count:
        return free
    alike = bool((members == members[0]).all())
    same, first = as_array(alike), take(sample, members[0])
    rates = rate * (LAST + (1 - LAST) * 0.5 * (1 + np.cos(np.pi * np.arange(count) / count)))
    dtype = jax.tree.leaves(free)[0].dtype
    zeros = jax.tree.map(lambda array: filled(array, 0.0), free)
    adam = optax.ScaleByAdamState(as_array(0, np.int32), zeros, zeros)  # type: ignore[arg-type]
    at = Descent(free, adam, free, as_array(np.inf, dtype))
    for number, (some, now) in enumerate(zip(members, rates, strict=True), 1):
        seen = first if alike else take(sample, some)
        at = jax.block_until_ready(_advanced(refined, seen, at, as_array(now, dtype), same))
        tick(number / count)
    return at.best


@eqx.filter_jit
def _advanced(
    refined: Refined,
    some: Any,
    at: Descent,
    rate: Float[Array, ""],
    same: Bool[Array, ""],
) -> Descent:
    value, slopes = jax.value_and_grad(lambda free: some.loss(refined.method(free, some)))(at.now)
    slopes = jax.tree.map(lambda g: jnp.where(jnp.isfinite(g), g, 0), slopes)
    change, adam = optax.scale_by_adam().update(slopes, at.adam)
    after = jax.tree.map(lambda x, u: x - rate * u, at.now, change)
    better = value < at.lowest
    best = jax.tree.map(lambda x, y, b: jnp.where(same, jnp.where(better, x, b), y), at.now, after, at.best)
    return Descent(after, adam, best, jnp.minimum(value, at.lowest))
