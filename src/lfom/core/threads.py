"""Independent compiled work side by side.

Compiling and the small fused loops of the iterate view keep one core busy each, and both release
the interpreter's lock: threads are enough to use the others.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax


def cores() -> int:
    """Cores that this process may use: a container or `taskset` may allow fewer than the machine has."""
    allowed = getattr(os, "sched_getaffinity", None)  # not on every system
    return len(allowed(0)) if allowed else os.cpu_count() or 1


def in_threads(work: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
    """work(item) for every item, as many at a time as there are cores, in the order of items."""
    double = bool(jax.config.jax_enable_x64)  # type: ignore[attr-defined]

    def in_same_precision(item: Any) -> Any:
        with jax.enable_x64(double):  # the setting of a `with` block belongs to its thread
            return work(item)

    pool = ThreadPoolExecutor(max_workers=cores())
    try:
        yield from pool.map(in_same_precision, items)
    finally:  # after an error or Ctrl-C nobody waits for what is still running
        pool.shutdown(wait=False, cancel_futures=True)
