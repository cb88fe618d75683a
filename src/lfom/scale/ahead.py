"""An iterator that is worked off in a thread of its own, a few items ahead of whoever reads it."""

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import jax

AHEAD = 2  # items that wait between one stage and the next
LOOK = 0.1  # seconds after which a stage looks whether anybody still waits for it

T = TypeVar("T")


def ahead(items: Iterable[T], size: int = AHEAD) -> Iterator[T]:
    """The same items, in order. At most size + 1 of them are made before they are asked for. What goes wrong while they
    are made is raised here, after the items before it; closing this iterator closes `items` too.

    >>> list(ahead(n * n for n in range(4)))
    [0, 1, 4, 9]
    """
    waiting: queue.Queue[tuple[str, Any]] = queue.Queue(size)
    over = threading.Event()
    double = bool(jax.config.jax_enable_x64)  # type: ignore[attr-defined]

    def put(what: str, item: Any) -> bool:
        while not over.is_set():
            try:
                waiting.put((what, item), timeout=LOOK)
                return True
            except queue.Full:
                continue
        return False

    def fill() -> None:
        with jax.enable_x64(double):  # the setting of a `with` block belongs to its thread
            try:
                if all(put("item", item) for item in items):
                    put("end", None)
            except BaseException as error:
                put("error", error)
            finally:
                close = getattr(items, "close", None)  # a generator's
                if close is not None:
                    close()

    threading.Thread(target=fill, daemon=True).start()
    try:
        while True:
            what, item = waiting.get()
            if what == "end":
                return
            if what == "error":
                raise item
            yield item
    finally:
        over.set()
