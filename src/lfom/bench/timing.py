"""How programs are timed: interleaved, medians, compilation kept out."""

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax

Programs = Mapping[str, Callable[[], Any]]  # by name


@dataclass(frozen=True)
class Ratio:
    """One comparison. ratio = rival / ours: how many times faster ours is. None: not reached."""

    name: str
    ours: float | None
    rival: float | None
    unit: str
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        return None if self.ours is None or self.rival is None else self.rival / self.ours

    def as_dict(self) -> dict[str, Any]:
        own = {"name": self.name, "ours": self.ours, "rival": self.rival, "unit": self.unit}
        return {**own, "ratio": self.ratio, **self.details}


def side_by_side(programs: Programs, rounds: int = 7) -> dict[str, float]:
    """Median seconds of each program, run in turn so that a noisy moment hits all of them."""
    return {name: statistics.median(times) for name, times in all_times(programs, rounds).items()}


def all_times(
    programs: Programs, rounds: int, patience: float = math.inf, *, compiled: bool = False
) -> dict[str, list[float]]:
    """Seconds of every run of each program, in turn. One that has used up `patience` seconds takes no
    further turns. Unless they are compiled already, all run once before the clock starts."""
    for program in programs.values() if not compiled else ():
        jax.block_until_ready(program())
    times: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(rounds):
        for name, program in programs.items():
            if sum(times[name]) < patience:
                start = time.perf_counter()
                jax.block_until_ready(program())
                times[name].append(time.perf_counter() - start)
    return times
