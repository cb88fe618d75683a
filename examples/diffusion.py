"""Diffusion through random material: the system is a function, never a matrix."""

import numpy as np

import lfom
from lfom.bench.solve import errors_after
from lfom.families import FAMILIES

family = FAMILIES["diffusion"]
learning = family.learning(64)  # lfom.LinearSystems(operator, b, data=..., diagonal=...)
method = lfom.learn(learning, steps=8, structure="conjugate:jacobi+sine")
print(f"learned {method.structure.name} from {method.record.learned_from} materials")

problems = family.held_out(32)
for name, error in errors_after(method, problems).items():
    print(f"error after 8 steps, {name:10s} {np.median(error):.2g} (median of {len(error)})")

solution = method.solve(problems, tolerance=1e-3)  # as many steps as it takes
met = sum(status // 10 == 1 for status in solution.status.tolist())
print(
    f"residual below 1e-3 in {met} of {len(problems)}, after {int(np.median(solution.steps))} steps (median)"
)
