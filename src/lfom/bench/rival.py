"""What a rival is, and which accuracy its answer has."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lfom.bench.loops import newton
from lfom.solving.problems import Problems
from lfom.solving.references import solutions


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

    def __init__(self, problems: Problems):
        self._problems = in_double(problems)
        with jax.enable_x64(True):
            own, quadratic = self._problems, problems.kind.quadratic
            self.optimum = np.asarray(solutions(own.each()) if quadratic else _loss_optimum(own))

    def __call__(self, answers: Any) -> np.ndarray:
        """One error per problem; NaN counts as infinite. `answers` may cover the first few only."""
        values = np.asarray(answers, np.float64)
        missing = self.optimum[len(values) :]
        w = np.concatenate([values.reshape(-1, *self.optimum.shape[1:]), missing])
        with jax.enable_x64(True):
            error = np.maximum(_errors(self._problems, w, self.optimum), 0)[: len(values)]
        return np.where(np.isfinite(error), error, np.inf)


def _loss_optimum(problems: Any) -> Any:
    """By Newton's method, until the gradient is zero to rounding."""
    start = jnp.zeros(problems.shape)
    solve = jax.jit(jax.vmap(lambda data: newton(lambda w: problems.loss(w, data), start, 10)))
    found = solve(problems.data)
    left = float(np.abs(np.asarray(problems.gradients(found))).max())
    if not left < 1e-12:
        raise RuntimeError(f"Newton's method left a gradient of {left:.1e}: there is no reference solution")
    return found


@jax.jit
def _errors(problems: Any, w: Any, optimum: Any) -> Any:
    return problems.errors(w, optimum)


def in_double(problems: Any) -> Any:
    """The same problems with every array in float64, as NumPy arrays."""
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), problems)
