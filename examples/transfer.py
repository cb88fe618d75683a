"""What a learned method transfers across: the same methods on problems unlike those of the lesson."""

from collections.abc import Iterator
from typing import Any

import numpy as np

import lfom
from lfom.bench.solve import errors_after
from lfom.families import FAMILIES, diffusion, table
from lfom.families.family import rounded
from lfom.solving.statuses import FALLBACK


def regressions() -> Iterator[tuple[str, Any]]:
    def groups(patients: int = 100, ridge: float = 0.01) -> lfom.LeastSquaresProblems:
        random = np.random.default_rng(1)
        X, y = rounded(table.groups("held out", 300, random, patients))
        return lfom.LeastSquaresProblems(X, y, ridge=ridge)

    yield "as learned: 100 patients, ridge 0.01", groups()
    yield "context: 40 patients", groups(patients=40)
    yield "context: 200 patients", groups(patients=200)
    yield "conditioning: ridge 0.001", groups(ridge=0.001)
    yield "conditioning: ridge 0.1", groups(ridge=0.1)


def materials() -> Iterator[tuple[str, Any]]:
    def systems(**change: float) -> lfom.LinearSystems:
        return diffusion.systems(16, np.random.default_rng(1), **change)

    yield "as learned: spread 1, length 6", systems()
    yield "conditioning: spread 0.5", systems(spread=0.5)
    yield "conditioning: spread 2", systems(spread=2.0)
    yield "roughness: length 2", systems(length=2.0)
    yield "roughness: length 20", systems(length=20.0)


def main() -> None:
    lessons = [
        ("table", "conjugate:jacobi+full", 300, regressions()),
        ("table", "preconditioned:jacobi+full", 300, regressions()),
        ("diffusion", "conjugate:jacobi+sine", 64, materials()),
    ]
    print("median relative error after 8 steps")
    for name, structure, count, changes in lessons:
        method = lfom.learn(FAMILIES[name].learning(count), steps=8, structure=structure)
        print(f"{name}, {method.structure.name}")
        for change, problems in changes:
            found = {who: np.median(error) for who, error in errors_after(method, problems).items()}
            numbers = ", ".join(f"{who} {error:.2g}" for who, error in found.items())
            fallback = np.mean(method.solve(problems).status % 10 == FALLBACK)
            print(f"  {change:38s} {numbers}, fallback {100 * fallback:.0f} %")


if __name__ == "__main__":
    main()
