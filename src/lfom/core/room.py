"""What would not fit: memory and time are estimated before anything is made.

Estimates are lower ones, so that nothing is refused that could be had: bytes are those of the arrays that are certain to
be made, and operations are counted at a rate that no machine of one user exceeds.
"""

import os
from contextlib import suppress
from pathlib import Path

from lfom.core.checks import InputError

RATE = 1e11  # operations per second
DAYS = 2.0  # beyond this it is refused
OTHERWISE = 64e9  # bytes, where the system does not tell
LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")  # of containers


def memory() -> float:
    """Bytes of this machine, or of the container that this process is in."""
    found = []
    with suppress(AttributeError, OSError, ValueError):
        found.append(float(os.sysconf("SC_PHYS_PAGES")) * os.sysconf("SC_PAGE_SIZE"))
    for file in LIMITS:
        with suppress(OSError, ValueError):  # "max" where there is none
            found.append(float(Path(file).read_text()))
    return min(found, default=OTHERWISE)


def fits(said: str, size: float, remedy: str) -> None:
    """Refuse what takes more bytes than there are. said: the arguments with their values."""
    if size > memory():
        raise InputError(
            f"{said}: that takes {size / 1e9:,.3g} GB or more, and this machine has {memory() / 1e9:.3g} GB. {remedy}"
        )


def in_time(said: str, operations: float, remedy: str, rate: float = RATE) -> None:
    """Refuse what takes days. rate: operations per second, where what is known of this machine says less than of any."""
    days = operations / rate / 86_400
    if days > DAYS:
        where = "on any machine" if rate >= RATE else "on this machine"
        raise InputError(f"{said}: that takes {days:,.3g} days or more {where}. {remedy}")


def table(name: str, steps: int, width: float = 1.0) -> int:
    """A number of steps of a method that keeps one coefficient, or `width` of them, for every pair of steps."""
    return layers(name, steps, steps * width)


def layers(name: str, steps: int, width: float = 1.0) -> int:
    """A number of steps of a method that keeps `width` numbers for every step."""
    fits(f"{name} is {steps}", 8.0 * steps * width, "Pass fewer steps.")
    return steps
