"""Batches of any number of problems by programs of a few sizes, since each size is compiled for itself.

On a CPU a batch is cut into parts of these sizes and the last part is filled up: nothing large is copied, and a part
of the host's memory is handed over as it lies. On an accelerator, where a small batch takes as long as a large one, the
whole is filled up to the next size, and only batches of hundreds of megabytes are cut. Problems that fill up are copies of
the last one; what they find is dropped.

Parts go to all devices. How a batch is cut does not depend on how many there are, so that solutions are the same to the last
bit for any number of devices of one kind. On a CPU, threads solve as many parts at a time as there are cores: the loop over
pieces of one part (`solving/pieces.py`) keeps one core busy. A batch of one part stays on one device, and so does a small one
on a CPU, and what somebody has put on a device.
"""

import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lfom.core.arrays import numpy_or_jax
from lfom.core.compiler import reads_back
from lfom.core.devices import used
from lfom.core.threads import by_cores, cores, in_threads, is_worker

PARTS = (1_000, 250, 64, 16, 4)  # problems
WORTH = 4_000_000  # bytes of a batch that several cores or CPU devices share
LARGEST = (
    256_000_000  # bytes of a part on an accelerator: reading less takes no longer than a call and its answer
)
WASTE = (
    16  # the last part may fill up such a part of the batch: starting one more takes as long as ten problems
)
ROUND = (8, 10, 12, 15, 16, 20, 24, 25, 30, 32, 40, 48, 50, 60, 64, 75)  # times powers of two or of ten


@cache
def parts(count: int, shared: bool = False) -> tuple[int, ...]:
    """The sizes that a batch is cut into on a CPU; they add up to little more than there are. shared: by several cores, in
    pairs, so that two of them end together.

    >>> parts(1_000), parts(509), parts(32), parts(60)
    ((1000,), (250, 250, 16), (32,), (60,))
    >>> parts(1_000, shared=True), parts(1_303, shared=True)
    ((250, 250, 250, 250), (250, 250, 250, 250, 64, 64, 64, 64, 64))
    """
    if count <= PARTS[2]:
        return (up(count),)
    if shared:
        found = tuple(size for size in _cut_into(-(-count // 2)) for _ in range(2))
        return found[:-1] if sum(found[:-1]) >= count else found
    return _cut_into(count)


def _cut_into(count: int) -> tuple[int, ...]:
    found: tuple[int, ...] = ()
    left = count
    for size in PARTS:
        found += (size,) * (left // size)
        left %= size
        if left > 0 and size - left <= count / WASTE:
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


@cache
def large_parts(count: int, size: int) -> tuple[int, ...]:
    """The same on an accelerator, for problems of so many bytes. All parts but the last are of one size.

    >>> large_parts(1_000, 1_000), large_parts(1_025, 1_000), large_parts(100, 4_000_000)
    ((1000,), (1200,), (64, 40))
    """
    most = max(LARGEST // max(size, 1), 1)
    if count <= most:
        return (up(count),)
    whole, left = divmod(count, most)
    return (most,) * whole + ((up(left),) if left else ())


def solve_in_sizes(solve: Callable[[Any], Any], batch: Any, count: int) -> Any:
    """What solve(batch) finds."""
    there = reads_back()
    worth = _bytes(batch) >= WORTH
    sizes = large_parts(count, _bytes(batch) // count) if there else parts(count, worth)
    if sizes == (count,):
        return solve(batch)
    if there and len(sizes) == 1:
        return _cut(solve(_filled(batch, sizes[0])), count)
    held = batch if there else jax.tree.map(np.asarray, batch)
    ends = np.cumsum(sizes).tolist()
    some = (_part(held, end - size, end) for size, end in zip(sizes, ends, strict=True))
    alone = _placed(batch) or not (there or worth)
    several = 1 if alone or is_worker() else len(used())
    solved = partial(_solved, solve)
    if several > 1:
        found = list(in_threads(solved, some, max(several, 1 if there else cores())))
    else:
        found = list(map(solve, some)) if there or alone else by_cores(solved, list(some))
    xp = jnp if there and several == 1 else np
    return jax.device_put(jax.tree.map(lambda *some: xp.concatenate(some)[:count], *found))


def _solved(solve: Callable[[Any], Any], part: Any) -> Any:
    """Solved, not only begun: JAX would queue what a thread begins behind what others have begun."""
    return jax.block_until_ready(solve(part))


def _placed(batch: Any) -> bool:
    """Whether somebody has said where it lies."""
    return any(leaf.committed for leaf in jax.tree.leaves(batch))


def _bytes(batch: Any) -> int:
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(batch))


def _part(batch: Any, first: int, end: int) -> Any:
    def one(array: Any) -> Any:
        some, xp = array[first:end], numpy_or_jax(array)
        missing = end - first - len(some)
        return some if not missing else xp.concatenate([some, xp.repeat(array[-1:], missing, axis=0)])

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
