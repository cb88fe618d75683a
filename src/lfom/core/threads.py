"""Independent compiled work side by side, on all devices that are used.

Compiling and the small fused loops of the iterate view keep one core busy each, and both release
the interpreter's lock: threads are enough to use the others.
"""

import collections
import contextlib
import functools
import itertools
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax

from lfom.core.devices import used

AHEAD = 4  # pieces that are begun or done for each thread before their results are asked for


_in_pool = threading.local()


def is_worker() -> bool:
    """Whether this is one of the threads of `in_threads`."""
    return getattr(_in_pool, "here", False)


def cores() -> int:
    """Cores that this process may use: a container or `taskset` may allow fewer than the machine has, and so may NPROC,
    which JAX follows too."""
    allowed = getattr(os, "sched_getaffinity", None)  # not on every system
    there, asked = len(allowed(0)) if allowed else os.cpu_count() or 1, os.environ.get("NPROC", "")
    return min(there, int(asked)) if asked.isdigit() and int(asked) else there


def in_threads(
    work: Callable[[Any], Any], items: Iterable[Any], at_a_time: int | None = None
) -> Iterator[Any]:
    """work(item) for every item, as many at a time as there are cores or devices, in the order of items."""
    double = bool(jax.config.jax_enable_x64)  # type: ignore[attr-defined]
    there, chosen = used(), jax.config.jax_default_device  # type: ignore[attr-defined]
    first = None if chosen is not None else jax.local_devices()[0]
    turns = itertools.cycle([None if device == first else device for device in there])  # None: JAX's default

    def in_same_setting(item: Any) -> Any:
        """The settings of `with` blocks belong to their thread."""
        _in_pool.here = True
        device = next(turns)
        place = contextlib.nullcontext() if device is None else jax.default_device(device)
        with jax.enable_x64(double), place:
            return work(item)

    workers = at_a_time or max(cores(), len(there))
    pool = ThreadPoolExecutor(max_workers=workers)
    begun: collections.deque[Future[Any]] = collections.deque()
    rest = iter(items)
    try:
        for item in itertools.islice(rest, AHEAD * workers):
            begun.append(pool.submit(in_same_setting, item))
        while begun:
            found = begun.popleft().result()
            for item in itertools.islice(rest, 1):
                begun.append(pool.submit(in_same_setting, item))
            yield found
    finally:  # after an error or Ctrl-C nobody waits for what is still running
        pool.shutdown(wait=False, cancel_futures=True)


@functools.cache
def _helpers() -> ThreadPoolExecutor:
    """Threads that stay: making them and waiting for them takes a millisecond."""
    return ThreadPoolExecutor(max_workers=max(cores() - 1, 1))


def by_cores(work: Callable[[Any], Any], items: list[Any]) -> list[Any]:
    """The same for a few milliseconds of work on one CPU device: by this thread and, as far as they have time, by others."""
    double, chosen = bool(jax.config.jax_enable_x64), jax.config.jax_default_device  # type: ignore[attr-defined]
    found, left = [None] * len(items), collections.deque(enumerate(items))

    def some() -> None:
        while True:
            try:
                place, item = left.popleft()
            except IndexError:
                return
            found[place] = work(item)

    def helping() -> None:
        _in_pool.here = True
        with jax.enable_x64(double), jax.default_device(chosen):
            some()

    others = 0 if is_worker() else min(cores(), len(items)) - 1
    begun = [_helpers().submit(helping) for _ in range(others)]
    try:
        some()
    finally:  # after an error or Ctrl-C nothing more is begun
        left.clear()
    for one in begun:
        if not one.cancel():
            one.result()
    return found
