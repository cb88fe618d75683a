"""What solving and learning will take, from the shapes of problems alone.

Constants are seconds of two quiet cores (see `lfom.core.estimates`); most of a short job is compiling.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from lfom.core.estimates import BASE, Cost
from lfom.solving.learners import EQUATIONS, ITERATIONS, ITERATIONS_OF_PARTS
from lfom.solving.npz import headers
from lfom.solving.sizes import widths
from lfom.solving.structures import Structure, available, chosen

RATE = 2e9  # operations per second in loops over problems
LEARNING_RATE = 2.5e10  # and where problems are learned from, in pieces that fit the cache
READ = 6e-9  # seconds to read a byte
HELD = 1.6  # bytes in memory for every byte of problems, while they are read and solved
COMPILE = 3.0  # seconds to compile a program that solves
AT_ONCE = 7  # shards of a stream in memory at a time, at most
WORKERS = 6.0  # seconds until the workers of a cluster have begun

BEGINNING = 2.0  # seconds to look at problems, and to finish
TRYING = {False: 2.1, True: 1.4}  # seconds to compile what tries a structure; whether it is conjugate
REFINING = 3.5  # seconds to compile what refines one
REFINED = 3  # structures, at most
# seconds for the eigenvalues and the solution of a system, over d^3 and the bytes of a number
EIGEN = 1.2e-10
PASSES = 20  # over all problems, in which a structure is tried
GRADIENT = 4  # passes that an iteration of refining costs
TRIED, LEFT = 8e6, 50e6  # bytes that programs leave which try and refine a structure
HELD_LEARNING = 2.8  # copies of the matrices of all problems, and of vectors of every step


@dataclass(frozen=True)
class Sizes:
    """count: of problems. unknowns and sides of each. rows: examples of a regression, or None. width: bytes of a number."""

    count: int
    unknowns: int
    rows: float | None = None
    sides: int = 1
    width: int = 8

    @property
    def entries(self) -> float:
        """Numbers in the matrix of a problem."""
        return self.unknowns * (self.unknowns if self.rows is None else self.rows)

    @property
    def bytes(self) -> float:
        """Of all problems."""
        sides = self.sides * (self.unknowns if self.rows is None else self.rows)
        return self.count * self.width * (self.entries + sides)

    @property
    def each(self) -> int:
        """Bytes of one problem."""
        return int(self.bytes / max(self.count, 1))

    @property
    def products(self) -> float:
        """Operations to multiply the A of every problem by a vector."""
        return 2.0 * self.count * self.sides * self.unknowns**2

    @property
    def forming(self) -> float:
        """Operations to form A of every problem."""
        return 0.0 if self.rows is None else 2.0 * self.count * self.rows * self.unknowns**2


def sizes_of(path: Path) -> Sizes | None:
    """Of a file of problems, without reading it; None where its headers do not tell, which reading it will explain."""
    try:
        found = headers(path)
        regressions = "X" in found
        (matrix, dtype), (right, _) = (found[name] for name in (("X", "y") if regressions else ("A", "b")))
        count = found["rows"][0][0] if "rows" in found else matrix[0]
        rows = None
        if regressions:
            rows = matrix[0] / count if "rows" in found else matrix[-2]
        several = len(right) == (2 if "rows" in found else 3)
        return Sizes(count, matrix[-1], rows, right[-1] if several else 1, 4 if dtype == np.float32 else 8)
    except Exception:  # damaged in any way
        return None


def solving(sizes: Sizes, steps: int) -> Cost:
    """Of one file, in so many steps."""
    compiling = COMPILE * len(widths(sizes.count, sizes.each))
    return Cost(compiling + _seconds(sizes, steps), BASE + HELD * sizes.bytes + _solutions(sizes, steps))


def streaming(shards: Iterable[Sizes], steps: int, workers: int | None = None) -> Cost:
    """Of several files, by this process or by workers of one core each."""
    every = list(shards)
    programs = set[int]().union(*(widths(one.count, one.each) for one in set(every)))
    seconds = sum(_seconds(one, steps) for one in every)
    held = sorted(HELD * one.bytes + _solutions(one, steps) for one in every)
    if workers is None:
        return Cost(COMPILE * len(programs) + seconds, BASE + sum(held[-AT_ONCE:]))
    return Cost(
        WORKERS + COMPILE * len(programs) + seconds / workers,
        (workers + 1) * BASE + sum(held[-workers:]),
    )


def _seconds(sizes: Sizes, steps: int) -> float:
    return READ * sizes.bytes + (sizes.forming + sizes.products * steps) / RATE


def _solutions(sizes: Sizes, steps: int) -> float:
    """Bytes, in memory and as a file."""
    return 2.0 * sizes.count * sizes.sides * (sizes.width * (sizes.unknowns + steps + 1) + 16)


def learning(sizes: Sizes, steps: int, structure: str | list[str]) -> Cost:
    """Of `lfom.learn` from one file."""
    tried = structures_of(sizes, steps, structure)
    all_ = replace(sizes, count=sizes.count * sizes.sides, sides=1)
    passes = PASSES * all_.products * steps / LEARNING_RATE
    trying = sum(TRYING[one.coefficients.conjugate] + passes for one in tried)
    refined = [one for one in tried if one.first_matrix != "identity"]
    ways = [REFINING + passes + _refining(one, all_, steps) for one in refined]
    ways = sorted(ways)[-REFINED:]
    looking = BEGINNING + _seconds(all_, 0) + EIGEN * all_.width * all_.count * all_.unknowns**3
    programs = BASE + TRIED * len(tried) + LEFT * len(ways)
    numbers = all_.count * (all_.unknowns**2 + all_.unknowns * (steps + 4))
    held = HELD * sizes.bytes + HELD_LEARNING * sizes.width * numbers
    return Cost(looking + trying + sum(ways), programs + held)


def structures_of(sizes: Sizes, steps: int, structure: str | list[str]) -> list[Structure]:
    """Those that will be tried: "auto" leaves out what has too few equations, see `lfom.learn`."""
    shape = (sizes.unknowns,)
    found = chosen(structure, available(shape, True, False))
    if structure != "auto":
        return found
    return [
        one
        for one in found
        if one.coefficients.free or 4 * one.parameters(shape, steps) <= sizes.count * sizes.unknowns
    ]


def _refining(one: Structure, sizes: Sizes, steps: int) -> float:
    """Seconds of the iterations of a structure."""
    at_once = -(-max(4 * one.parameters((sizes.unknowns,), steps), EQUATIONS) // sizes.unknowns)
    iterations = ITERATIONS if at_once >= sizes.count else ITERATIONS_OF_PARTS
    part = min(at_once / sizes.count, 1.0)
    return iterations * GRADIENT * steps * part * sizes.products / LEARNING_RATE
