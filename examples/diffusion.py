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

solution = method.solve(problems, steps=16)  # more steps than were learned: conjugate gradients go on
fall = np.median(solution.residuals[:, ::4], axis=0)
print("median residual after 0, 4, 8, 12, 16 steps:", ", ".join(f"{r:.1g}" for r in fall))
print("all did what was asked:", not solution.failed.any())
