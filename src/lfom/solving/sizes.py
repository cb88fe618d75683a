"""Batches of any number of problems by programs of a few sizes, since each size is compiled for itself.

On a CPU nothing large is copied. A large batch is seen through windows: so many problems as they lie in memory, of which a
program solves those that it is told. A small one is cut into parts of a few sizes; the last part is filled up. On an
accelerator, where a small batch takes as long as a large one, the whole is filled up to the next size, and only batches of
hundreds of megabytes are cut. Problems that fill up are copies of the last one; what they find is dropped.

Parts and windows go to all devices. How a batch is cut does not depend on how many there are, so that solutions are the same
to the last bit for any number of devices of one kind. On a CPU, threads solve as many at a time as there are cores: the loop
over pieces (`solving/pieces.py`) keeps one core busy. A batch of one part stays on one device, and so does a small one
on a CPU, and what somebody has put on a device.
"""

import math
import threading
from collections.abc import Callable
from functools import cache, partial
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lfom.core.arrays import numpy_or_jax
from lfom.core.compiler import reads_back
from lfom.core.devices import used
from lfom.core.threads import by_cores, cores, in_threads, is_worker
from lfom.solving.pieces import ALIGNED, per_piece

WORTH = 4_000_000  # bytes of a batch that several cores or CPU devices share
WINDOWS = (1_024, 752, 496, 64)  # problems, multiples of ALIGNED
SHARE = 10_000_000  # bytes of problems that a core takes at a time, of a large batch
PARTS = (1_000, 250, 64, 16, 4)  # problems, of a small one
# The last part may fill up such a part of a batch: starting one more takes as long as several problems.
WASTE = 16
# bytes of a part on an accelerator: reading less takes no longer than a call and its answer
LARGEST = 256_000_000
ROUND = (8, 10, 12, 15, 16, 20, 24, 25, 30, 32, 40, 48, 50, 60, 64, 75)  # times powers of two or of ten


class Window(NamedTuple):
    """Of a batch the problems from `left` to before `right`, of which those from `first` to before `end` are solved."""

    left: int
    right: int
    first: int
    end: int

    def seen(self, array: Any) -> Any:
        """What it shows of an array; where it is wider, copies of the last problem fill it."""
        some, xp = array[self.left : self.right], numpy_or_jax(array)
        missing = self.right - self.left - len(some)
        return some if not missing else xp.concatenate([some, xp.repeat(array[-1:], missing, axis=0)])

    def kept(self, found: Any) -> Any:
        """Of an array of what was found for all that it shows."""
        return found[self.first - self.left : self.end - self.left]


def by_windows(count: int, size: int) -> bool:
    """Whether so many problems of so many bytes each are a large batch, on a CPU."""
    return count * size >= WORTH and count >= WINDOWS[-1]


def widths(count: int, size: int) -> set[int]:
    """For how many problems programs are compiled that solve such a batch on a CPU."""
    return (
        {one.right - one.left for one in windows(count, size)}
        if by_windows(count, size)
        else set(parts(count))
    )


@cache
def windows(count: int, size: int) -> tuple[Window, ...]:
    """Of a large batch. Each solves whole pieces; their number is even, so that two cores end together.

    >>> [tuple(one) for one in windows(509, size=16_640)]
    [(0, 496, 0, 252), (13, 509, 252, 509)]
    """
    width = next(width for width in WINDOWS if width <= count)
    piece = per_piece(width, size)
    pieces = -(-count // piece)
    longest = max(min(width - ALIGNED, SHARE // size) // piece, 1)  # in pieces
    shares = min(2 * -(-pieces // (2 * longest)), pieces)
    ends = [min(share * pieces // shares * piece, count) for share in range(shares + 1)]
    lefts = [min(first // ALIGNED * ALIGNED, count - width) for first in ends]
    return tuple(Window(left, left + width, *own) for left, own in zip(lefts, pairwise(ends), strict=False))


@cache
def parts(count: int) -> tuple[int, ...]:
    """The sizes that a small batch is cut into on a CPU; they add up to little more than there are.

    >>> parts(1_000), parts(509), parts(32), parts(60)
    ((1000,), (250, 250, 16), (32,), (60,))
    """
    if count <= PARTS[2]:
        return (up(count),)
    found: tuple[int, ...] = ()
    left = count
    for size in PARTS:
        found += (size,) * (left // size)
        left %= size
        if left > 0 and size - left <= count / WASTE:
            return (*found, size)
    return found if not left else (*found, left)


@cache
def one_after_the_other(sizes: tuple[int, ...], count: int) -> tuple[Window, ...]:
    """Parts of these sizes as windows of a batch, the last of which may be wider than it."""
    ends = list(accumulate(sizes, initial=0))
    return tuple(Window(a, b, a, min(b, count)) for a, b in pairwise(ends))


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


def solve_in_sizes(solve: Callable[..., Any], batch: Any, count: int) -> Any:
    """What solve(batch) finds, in arrays of NumPy where it was put together on the host. solve(some, (first, end)) finds it for
    the problems from `first` to before `end` of them."""
    leaves, structure = jax.tree.flatten(batch)
    there, size = reads_back(), sum(leaf.nbytes for leaf in leaves) // max(count, 1)
    told = not there and by_windows(count, size)
    if told:
        cut = windows(count, size)
    else:
        cut = one_after_the_other(large_parts(count, size) if there else parts(count), count)
    whole = cut[-1].right
    if len(cut) == 1 and (there or whole == count):
        return solve(batch) if whole == count else _cut(solve(_filled(batch, whole)), count)
    placed = any(leaf.committed for leaf in leaves)  # somebody has said where it lies
    alone = placed or not (there or told)
    several = 1 if alone or is_worker() else len(used())
    held = leaves if there else [np.asarray(leaf) for leaf in leaves]

    def begun(window: Window) -> Any:
        some = jax.tree.unflatten(structure, [window.seen(array) for array in held])
        first, end = np.int32(window.first - window.left), np.int32(window.end - window.left)
        return solve(some, (first, end)) if told else solve(some)

    if there and several == 1:
        kept = [jax.tree.map(window.kept, begun(window)) for window in cut]
        return jax.tree.map(lambda *some: jnp.concatenate(some), *kept)
    answers = Answers(count)

    def solved(window: Window) -> None:
        """Not only begun: JAX would queue what a thread begins behind what others have begun."""
        answers.put(window, jax.block_until_ready(begun(window)))

    if several > 1:
        list(in_threads(solved, cut, max(several, 1 if there else cores())))
    elif alone:
        for window, found in zip(cut, [begun(window) for window in cut], strict=True):
            answers.put(window, found)
    else:
        by_cores(solved, list(cut))
    return answers.all()


class Answers:
    """What was found for so many problems, in arrays of NumPy that threads fill. They lie as JAX wants them, so that it takes them
    over without a copy."""

    def __init__(self, count: int):
        self.count, self.lock = count, threading.Lock()
        self.arrays: list[np.ndarray] = []
        self.structure: Any = None

    def put(self, window: Window, found: Any) -> None:
        leaves, structure = jax.tree.flatten(found)
        values = [np.asarray(leaf) for leaf in leaves]
        with self.lock:
            if self.structure is None:
                self.arrays = [_aligned((self.count, *value.shape[1:]), value.dtype) for value in values]
                self.structure = structure
        for array, value in zip(self.arrays, values, strict=True):
            array[window.first : window.end] = window.kept(value)

    def all(self) -> Any:
        return jax.tree.unflatten(self.structure, self.arrays)


def _aligned(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An array that begins at a multiple of 64 bytes, with anything in it."""
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + 64, np.uint8)
    begin = -memory.ctypes.data % 64
    return memory[begin : begin + size].view(dtype).reshape(shape)


@partial(jax.jit, static_argnums=1)
def _filled(batch: Any, size: int) -> Any:
    def one(array: Any) -> Any:
        rest = jnp.broadcast_to(array[-1:], (size - len(array), *array.shape[1:]))
        return jnp.concatenate([array, rest])

    return jax.tree.map(one, batch)


@partial(jax.jit, static_argnums=1)
def _cut(found: Any, count: int) -> Any:
    return jax.tree.map(lambda array: array[:count], found)
