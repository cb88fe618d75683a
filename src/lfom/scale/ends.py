"""How the pieces of a stream ended, one by one and all together."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lfom.core.words import brief
from lfom.solving import statuses
from lfom.solving.records import Solution

MADE, KEPT, FAILED = "made", "kept", "failed"


@dataclass(frozen=True)
class PieceEnd:
    """How one piece ended: "made", "kept" (it was finished before) or "failed", with a message. problems: how many it has;
    failed: how many of them have a status that says so. statuses: how often each came."""

    __repr__ = brief

    name: str
    how: str
    problems: int = 0
    failed: int = 0
    statuses: dict[int, int] = field(default_factory=dict)
    meaning: dict[int, str] = field(default_factory=dict)
    message: str = ""
    unexpected: bool = False  # whether it may go better the next time


def end_of(name: str, solution: Solution) -> PieceEnd:
    """Of a piece that was solved."""
    status = np.asarray(solution.status)
    status = status.reshape(len(status) if status.ndim else 1, -1)
    found, counts = np.unique(status, return_counts=True)
    failed = int(statuses.failed(status).any(axis=1).sum())
    meaning = {int(s): solution.meaning[int(s)] for s in found}
    often = dict(zip(found.tolist(), counts.tolist(), strict=True))
    return PieceEnd(name, MADE, len(status), failed, often, meaning)


@dataclass
class Summary:
    """What became of a stream. made, kept: pieces that were solved now, and that were finished before. problems: in both.
    failed_problems: those of them whose status says so. statuses: how often each came, with `meaning`. failed: pieces that
    could not be read, solved or written, each with the reason."""

    __repr__ = brief

    made: int = 0
    kept: int = 0
    problems: int = 0
    failed_problems: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    meaning: dict[int, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    solved_now: int = 0  # problems of the pieces that were made

    @property
    def ok(self) -> bool:
        """Whether all that was asked for was done."""
        return not self.failed and not self.failed_problems

    @property
    def ended(self) -> int:
        return self.made + self.kept + len(self.failed)

    def add(self, end: PieceEnd) -> None:
        if end.how == FAILED:
            self.failed[end.name] = end.message
            return
        self.made += end.how == MADE
        self.kept += end.how == KEPT
        self.solved_now += end.problems * (end.how == MADE)
        self.problems += end.problems
        self.failed_problems += end.failed
        self.statuses.update(end.statuses)
        self.meaning |= end.meaning


def as_json(end: PieceEnd) -> dict[str, Any]:
    """What is kept beside the solutions of a piece."""
    return {
        "problems": end.problems,
        "failed": end.failed,
        "statuses": [[status, count, end.meaning[status]] for status, count in end.statuses.items()],
    }


def from_json(name: str, kept: dict[str, Any]) -> PieceEnd:
    """Of a piece that was finished before."""
    rows = kept["statuses"]
    counts, meaning = {s: count for s, count, _ in rows}, {s: text for s, _, text in rows}
    return PieceEnd(name, KEPT, kept["problems"], kept["failed"], counts, meaning)
