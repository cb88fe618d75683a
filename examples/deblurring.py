"""Deblurring patches of one photograph with a method learned on another."""

import matplotlib.image
import numpy as np

import lfom
from lfom.bench.solve import errors_after
from lfom.families import FAMILIES

family = FAMILIES["deblurring"]
method = lfom.learn(family.learning(64), steps=8, structure="conjugate:jacobi+cosine", iterations=80)
print(f"learned {method.structure.name} from {method.record.learned_from} patches")

problems = family.held_out(32)
for name, error in errors_after(method, problems).items():
    print(f"error after 8 steps, {name:10s} {np.median(error):.2g} (median of {len(error)})")

solution = method.solve(problems, steps=4)  # four steps are enough for the eye
pairs = [np.hstack([problems.data["seen"][i], solution.value[i]]) for i in range(4)]
matplotlib.image.imsave("deblurring.png", np.vstack(pairs), cmap="gray", vmin=0, vmax=1)
print("deblurring.png: four patches, blurred on the left, after 4 steps on the right")
