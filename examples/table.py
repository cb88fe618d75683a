"""A ridge regression per group of patients, with a method learned from other patients."""

import numpy as np

import lfom
from lfom.bench.solve import errors_after
from lfom.families import FAMILIES

family = FAMILIES["table"]
method = lfom.learn(family.learning(300), steps=8, structure="conjugate:jacobi+full")
method.save("table.safetensors", force=True)
print(f"learned {method.structure.name} from {method.record.learned_from} groups")
print(f"promise: {method.promise}")

problems = family.held_out(1_000)  # patients the method has never seen
solution = lfom.load("table.safetensors").solve(problems)
print(f"{len(problems)} groups solved, failed: {int(solution.failed.sum())}")

for name, error in errors_after(method, problems).items():
    print(f"error after 8 steps, {name:10s} {np.median(error):.2g} (median of {len(error)})")
