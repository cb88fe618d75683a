"""How a pair of programs is timed: interleaved, medians, compilation kept out."""

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import jax


@dataclass(frozen=True)
class Row:
    """One comparison. ratio = rival / ours: how many times faster ours is."""

    name: str
    ours: float
    rival: float
    unit: str

    @property
    def ratio(self) -> float:
        return self.rival / self.ours

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "ratio": self.ratio}


def side_by_side(programs: dict[str, Callable[[], Any]], rounds: int = 7) -> dict[str, float]:
    """Median seconds of each program, run in turn so that a noisy moment hits all of them."""
    for program in programs.values():
        jax.block_until_ready(program())  # compile
    times: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(rounds):
        for name, program in programs.items():
            start = time.perf_counter()
            jax.block_until_ready(program())
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}
