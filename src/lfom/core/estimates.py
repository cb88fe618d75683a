"""How long and how much: what a command says before its work begins.

Seconds are counted for two quiet cores of a server CPU, on which all constants were measured. `slowness` then says how many
times longer this machine takes at this moment, be it another one or busy.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from lfom.core import devices, room
from lfom.core.checks import InputError
from lfom.core.compiler import reads_back
from lfom.started import BEGUN

BASE = 0.33e9  # bytes of a process: Python, JAX, its compiler and one program
BESIDE_A_GPU = 4.2e9  # bytes more: the libraries of CUDA (4.16e9 after the first sum, H200, jax 0.11.2)
TINY = 1.0  # seconds: a job as short as this is not worth a look at the machine
LOOK = 0.1  # seconds that a look takes
TURN = 4.4e-5  # seconds of one turn of the loop on a quiet core
NUMBERS = [(n * 7919) % 1009 / 7 for n in range(1_000)]


@dataclass(frozen=True)
class Cost:
    """What a job takes: seconds of the machine of our measurements, and bytes at its peak."""

    seconds: float
    bytes: float

    def said(self) -> str:
        """In the seconds of this machine, now.

        >>> Cost(0.5, 1.24e9).said()
        'about 1 s and 1.2 GB'
        """
        slower = slowness() if self.seconds > TINY else 1.0
        held = self.bytes + (BESIDE_A_GPU if reads_back() else 0.0)
        return f"about {duration(self.seconds * slower)} and {amount(held)}"


def slowness(
    clock: Callable[[], float] = time.perf_counter, busy: Callable[[], float] = time.process_time
) -> float:
    """How many times longer this machine takes than that of our measurements: how long a loop takes its core, and how long
    this process waits for a core, in that loop and since it was started (the mean of the two, since either may mislead)."""
    begun, worked, turns, spent = clock(), busy(), 0, 0.0
    while spent < LOOK:
        sorted(NUMBERS)
        turns, spent = turns + 1, clock() - begun
    work = max(busy() - worked, 1e-6)
    before = (begun - BEGUN[0]) / max(worked - BEGUN[1], 1e-6)
    return work / turns / TURN * (max(spent / work, 1.0) * max(before, 1.0)) ** 0.5


def duration(seconds: float) -> str:
    """Seconds, minutes or hours, as precisely as an estimate deserves."""
    if seconds < 10:
        return f"{max(seconds, 1):.0f} s"
    if seconds < 95:
        return f"{5 * round(seconds / 5)} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def amount(size: float) -> str:
    """Bytes, in GB."""
    return f"{size / 1e9:,.1f} GB" if size < 1e11 else f"{size / 1e9:,.0f} GB"


def there() -> float:
    """Bytes of this machine, or of the devices in use where they have a memory of their own and it is smaller."""
    stats = [device.memory_stats() for device in devices.used()]
    own = [one["bytes_limit"] for one in stats if one and "bytes_limit" in one]
    return min(room.memory(), sum(own)) if own else room.memory()


def fits(said: str, count: int, size: Callable[[int], float], remedy: str) -> None:
    """Refuse a number of something whose size(number) in bytes is more than there is. said: the argument with its value.
    remedy: a sentence in which {} is the largest number that fits."""
    limit = there()
    if size(count) <= limit:
        return
    most = largest(size, count, limit)
    advice = remedy.format(f"{most:,}") if most else "Not even one fits: use a machine with more memory."
    raise InputError(
        f"{said}: that takes about {amount(size(count))}, and there are {amount(limit)}. {advice}"
    )


def largest(size: Callable[[int], float], count: int, limit: float) -> int:
    """The largest number below `count` whose size is at most the limit; 0 if there is none. size: grows.

    >>> largest(lambda n: 2.0 * n, 10, 7.0)
    3
    """
    low, high = 0, count
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if size(middle) <= limit else (low, middle)
    return low
