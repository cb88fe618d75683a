"""What a rival is, and which accuracy its answer has."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from lfom.solving.problems import Problems


@dataclass(frozen=True)
class Rival:
    """One method in one implementation. `run(steps)` solves the first `problems` of the batch."""

    method: str
    library: str
    run: Callable[[int], Any]
    problems: int
    iterative: bool = True
    learned: bool = False

    @property
    def name(self) -> str:
        return f"{self.method}, {self.library}"


class Judge:
    """Errors of answers to a batch of problems, relative to the start w = 0, in float64.

    Quadratics: the energy norm sqrt(e.Ae). Other losses: the excess loss. The reference is the
    optimum of the same problems, rounded as the methods see them, solved for in float64.
    """

    def __init__(self, problems: Problems, optimum: np.ndarray):
        self.optimum = optimum
        self._problems = in_double(problems)

    def __call__(self, answers: Any) -> np.ndarray:
        """One error per problem; NaN counts as infinite. `answers` may cover the first few only."""
        values = np.asarray(answers, np.float64)
        missing = self.optimum[len(values) :]
        w = np.concatenate([values.reshape(-1, *self.optimum.shape[1:]), missing])
        with jax.enable_x64(True):
            error = np.maximum(_errors(self._problems, w, self.optimum), 0)[: len(values)]
        return np.where(np.isfinite(error), error, np.inf)


@jax.jit
def _errors(problems: Any, w: Any, optimum: Any) -> Any:
    return problems.errors(w, optimum)


def in_double(problems: Any) -> Any:
    """The same problems with every array in float64, as NumPy arrays."""
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), problems)
