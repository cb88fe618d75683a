"""What a command is doing, on stderr: one line that changes on a terminal, plain lines elsewhere."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console

EVERY = 5.0  # seconds between plain lines of one step

Say = Callable[[str], None]


class PlainLines:
    """A line for each step of the work at once, and every few seconds while one lasts, also while a compiled program
    runs. steps: whether every new text is a step of its own; without, there are only those of every few seconds."""

    def __init__(self, text: str = "", steps: bool = True, every: float = EVERY, out: Any = None):
        self._text, self._steps, self._every, self._out = text, steps, every, out
        self._begun = time.monotonic()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __call__(self, text: str) -> None:
        new, self._text = text != self._text, text
        if new and self._steps:
            self._tell()

    def _tell(self) -> None:
        if self._text:
            spent = time.monotonic() - self._begun
            print(f"[{spent:4.0f} s] {self._text}", file=self._out or sys.stderr, flush=True)

    def _run(self) -> None:
        while not self._done.wait(self._every):
            self._tell()

    def __enter__(self) -> "PlainLines":
        if self._steps:
            self._tell()
        self._thread.start()
        return self

    def __exit__(self, *details: object) -> None:
        self._done.set()
        self._thread.join()


@contextmanager
def telling(text: str) -> Iterator[Say]:
    """A function to say what is going on now."""
    console, begun = Console(stderr=True), time.monotonic()
    if not console.is_terminal:
        with PlainLines(text) as lines:
            yield lines
        return
    with console.status(text) as status:
        yield lambda now: status.update(f"[{time.monotonic() - begun:4.0f} s] {now}")
