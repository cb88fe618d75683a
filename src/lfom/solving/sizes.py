"""Batches of any number of problems by programs of a few sizes, since each size is compiled for itself.

On a CPU a batch is cut into parts of these sizes and the last part is filled up: nothing large is copied, and a part
of the host's memory is handed over as it lies. On an accelerator, where a small batch takes as long as a large one, the
whole is filled up to the next size. Problems that fill up are copies of the last one; what they find is dropped.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lfom.core.compiler import reads_back

PARTS = (1_000, 250, 50, 10, 2)  # problems
WASTE = 10  # a part may fill up a tenth of the batch
ROUND = (8, 10, 12, 15, 16, 20, 24, 25, 30, 32, 40, 48, 50, 60, 64, 75)  # times powers of two or of ten


@cache
def parts(count: int) -> tuple[int, ...]:
    """The sizes that a batch is cut into on a CPU; they add up to at most a tenth more than there are.

    >>> parts(1_000), parts(1_009), parts(32), parts(60)
    ((1000,), (1000, 50), (32,), (50, 10))
    """
    if count <= PARTS[2]:
        return (up(count),)
    found: tuple[int, ...] = ()
    left = count
    for size in PARTS:
        found += (size,) * (left // size)
        left %= size
        if left and size - left <= count / WASTE and size < count:
            return (*found, size)
    return found if not left else (*found, left)


@cache
def up(count: int) -> int:
    """The next size that is round, in powers of two or in tens; at most a quarter more, nothing for very few.

    >>> [up(count) for count in (1, 7, 9, 33, 97, 1_000, 1_024, 1_025)]
    [1, 7, 10, 40, 100, 1000, 1024, 1200]
    """
    if count <= 8:
        return count
    powers = [2**k for k in range(count.bit_length())] + [10**k for k in range(len(str(count)))]
    return min(size for m in ROUND for p in powers if (size := m * p) >= count)


def solve_in_sizes(solve: Callable[[Any], Any], batch: Any, count: int) -> Any:
    """What solve(batch) finds."""
    if reads_back():
        size = up(count)
        return solve(batch) if size == count else _cut(solve(_filled(batch, size)), count)
    sizes = parts(count)
    if sizes == (count,):
        return solve(batch)
    held = jax.tree.map(np.asarray, batch)
    ends = np.cumsum(sizes).tolist()
    found = [solve(_part(held, end - size, end)) for size, end in zip(sizes, ends, strict=True)]
    return jax.tree.map(lambda *some: jax.device_put(np.concatenate(some)[:count]), *found)


def _part(batch: Any, first: int, end: int) -> Any:
    def one(array: np.ndarray) -> np.ndarray:
        some = array[first:end]
        missing = end - first - len(some)
        return some if not missing else np.concatenate([some, np.repeat(array[-1:], missing, axis=0)])

    return jax.tree.map(one, batch)


@partial(jax.jit, static_argnums=1)
def _filled(batch: Any, size: int) -> Any:
    def one(array: Any) -> Any:
        rest = jnp.broadcast_to(array[-1:], (size - len(array), *array.shape[1:]))
        return jnp.concatenate([array, rest])

    return jax.tree.map(one, batch)


@partial(jax.jit, static_argnums=1)
def _cut(found: Any, count: int) -> Any:
    return jax.tree.map(lambda array: array[:count], found)
