"""What calls of both kinds are judged by: nothing overwritten, no long silence."""

import hashlib
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

LONGEST = 10.0  # seconds in silence
PATIENCE = 90  # seconds until a call is given up


class TooLong(Exception):
    """The call was given up."""


def _given_up(number: int, frame: Any) -> None:
    raise TooLong(f"not finished after {PATIENCE} s")


@contextmanager
def limited() -> Iterator[None]:
    """Give a call up after a while; only where signals can be had, in the main thread."""
    before = signal.signal(signal.SIGALRM, _given_up)
    signal.alarm(PATIENCE)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def snapshot(folder: Path) -> dict[str, str]:
    """Every file below it, with what it holds."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def changed(before: dict[str, str], folder: Path) -> list[str]:
    """Files that are gone or hold something else."""
    now = snapshot(folder)
    return [path for path, content in before.items() if now.get(path) != content]
