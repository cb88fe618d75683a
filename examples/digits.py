"""Logistic regressions, one digit against the rest, in eight gradient steps each."""

import numpy as np

import lfom
from lfom.bench.solve import errors_after
from lfom.families import FAMILIES

family = FAMILIES["digits"]
learning = family.learning(300)  # lfom.ConvexLosses(loss, data, size=65)
method = lfom.learn(learning, steps=8, structure="preconditioned:full")
print(f"learned {method.structure.name} from {method.record.learned_from} regressions")
print(f"promise: {method.promise}")

problems = family.held_out(1_000)
for name, error in errors_after(method, problems).items():
    print(f"excess loss after 8 steps, {name:8s} {np.median(error):.2g} (median of {len(error)})")

margins = np.einsum("pnd,pd->pn", problems.data["X"], method.solve(problems).value)
right = np.mean(np.sign(margins) == problems.data["y"])
print(f"{100 * right:.1f} % of the images on the right side")
