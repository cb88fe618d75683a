"""What a command is doing, on stderr: one line that changes on a terminal, plain lines elsewhere."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console

from lfom.solving.progress import Lines

EVERY = 5.0  # seconds between plain lines of one step

Say = Callable[[str], None]


class PlainLines:
    """A line for each step of the work at once, and every few seconds while one lasts, also while a compiled program
    runs. steps: whether every new text is a step of its own; without, there are only those of every few seconds."""

    def __init__(self, text: str = "", steps: bool = True, every: float = EVERY, out: Any = None):
        self._text, self._lines = text, Lines(steps, every, out)

    def __call__(self, text: str) -> None:
        if text:
            self._lines(0.0, text)  # nobody knows which part of it is done

    def __enter__(self) -> "PlainLines":
        self(self._text)
        self._lines.__enter__()
        return self

    def __exit__(self, *details: object) -> None:
        self._lines.__exit__(*details)


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
