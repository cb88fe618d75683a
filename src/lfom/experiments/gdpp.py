"""The optimum of GD++ as a curve: its numbers are fitted once, since they do not depend on the rotation."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from lfom.core.runs import PerRun
from lfom.experiments.statistics import distance_to_identity
from lfom.experiments.workbench import Workbench, kept
from lfom.limits.gdpp import FittedOptimum, gdpp_optima, with_matrix

DEEPEST = 4
NEUMANN = "B acts like a truncated Neumann series of the inverse of the Hessian."  # a claim of the paper


def from_a_number(B: np.ndarray, root: np.ndarray) -> float:
    """How far B is from a multiple of the identity in whitened coordinates, where it would be a Neumann series."""
    return distance_to_identity(np.linalg.inv(root).T @ B @ root.T)


@kept
def optima(bench: Workbench, memory: str, spectrum: tuple[float, ...]) -> dict[int, FittedOptimum]:
    """By depth, on the first run's data with its inverse covariance."""
    bench.say(f"fitting the optimum of GD++ ({memory})")
    data, key = bench.data(spectrum)[0], bench.stream("gdpp")  # the same for all memories: they share prompts
    options: Any = {"memory": memory, "prompts": 25 * bench.preset.prompts, "keep": bench.keep}
    inverse = np.linalg.inv(data.covariance)
    return gdpp_optima(data, range(1, DEEPEST + 1), key, preconditioner=inverse, **options)


def optimum_methods(bench: Workbench, data: PerRun, memory: str) -> dict[int, PerRun]:
    """The optimum of every depth, with the inverse covariance of each run."""
    inverses = [jnp.asarray(np.linalg.inv(one.covariance)) for one in data.each()]
    spectrum = tuple(float(v) for v in np.asarray(data[0].spectrum))
    return {
        depth: PerRun([with_matrix(best.method, (M + M.T) / 2) for M in inverses])
        for depth, best in optima(bench, memory, spectrum).items()
    }
