"""How far learning is: stages with the seconds they are expected to take, and lines on stderr about it."""

import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

Told = Callable[[float, str], None]  # (the part that is done, in words)

# Seconds, on two cores of a server CPU. The last stage of a kind says better, and all that are done say how much
# slower this machine or problem is.
GUESSES = {"solving": 3.0, "trying": 2.0, "refining": 4.0, "finishing": 1.0}
EVERY = 10.0  # seconds between lines
LEAST = 0.1  # seconds: what is left is not told from less


class Course:
    """The stages of some work, told one by one. to_come: the kinds of those that are left, in order."""

    def __init__(self, told: Told, to_come: Sequence[str] = (), clock: Callable[[], float] = time.monotonic):
        self._told, self._clock, self.to_come = told, clock, list(to_come)
        self._begun = self._stage_begun = clock()
        self._kind, self._text = "", ""
        self._took: dict[str, float] = {}  # the last stage of every kind
        self._done, self._guessed = 0.0, 0.0  # seconds of all stages that are done, and what was guessed

    def begin(self, kind: str, text: str) -> None:
        """A stage of this kind; the one before is done."""
        now = self._clock()
        if self._kind:
            self._took[self._kind] = now - self._stage_begun
            self._done += self._took[self._kind]
            self._guessed += GUESSES[self._kind]
        if kind in self.to_come:
            del self.to_come[: self.to_come.index(kind) + 1]
        self._kind, self._text, self._stage_begun = kind, text, now
        self._tell(f"{kind} {text}", 0.0)

    def tick(self, part: float) -> None:
        """Inside a stage: the part of it that is done."""
        self._tell(f"{self._kind} {self._text}: {part:.0%}", part)

    def _expected(self, kind: str) -> float:
        slower = self._done / self._guessed if self._guessed else 1.0
        return self._took.get(kind, GUESSES[kind] * slower)

    def _tell(self, text: str, part: float) -> None:
        now = self._clock()
        spent, here = max(now - self._begun, LEAST), now - self._stage_begun
        rest = here * (1 - part) / part if part else max(self._expected(self._kind) - here, 0.0)
        left = rest + sum(self._expected(kind) for kind in self.to_come)
        self._told(spent / (spent + left), text)


class Lines:
    """Progress as lines on stderr: one every ten seconds, even while a compiled program runs. stages: also one for
    every stage, at once."""

    def __init__(self, stages: bool = False, every: float = EVERY, out: Any = None):
        self._stages, self._every, self._out = stages, every, out
        self._begun, self._last = time.monotonic(), ""
        self._now: tuple[float, float | None, str] | None = None  # when it was said, what is left, in words
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __call__(self, done: float, text: str) -> None:
        now = time.monotonic()
        left = max(now - self._begun, LEAST) * (1 - done) / done if done else None  # nobody knows yet
        self._now = now, left, text
        stage = text.rpartition(": ")[0] if text.endswith("%") else text
        if self._stages and stage != self._last:
            self._say()
        self._last = stage

    def _say(self) -> None:
        if self._now is None:
            return
        now, (said, left, text) = time.monotonic(), self._now
        rest = 0.0 if left is None else left - (now - said)  # nothing once it took longer than was guessed
        until = f", about {rest:.0f} s left" if rest > 0 else ""
        print(
            f"[{now - self._begun:4.0f} s] {text}{until}",
            file=self._out or sys.stderr,
            flush=True,
        )

    def _run(self) -> None:
        while not self._done.wait(self._every):
            self._say()

    def __enter__(self) -> "Lines":
        self._thread.start()
        return self

    def __exit__(self, *details: object) -> None:
        self._done.set()
        self._thread.join()
