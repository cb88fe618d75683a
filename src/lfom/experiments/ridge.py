"""Least squares and ridge, solved prompt by prompt: what any method of a few steps is measured against."""

import numpy as np
from jax import Array
from jaxtyping import Float

from lfom.adaptation.per_prompt import solve
from lfom.core.arrays import as_array, identity
from lfom.core.methods import OneStep
from lfom.core.problems import Quadratic

PENALTIES = (0.0, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)  # 0 is least squares


class Ridge(OneStep):
    """w = (G + penalty I)^-1 b."""

    penalty: Float[Array, ""]

    @property
    def views(self) -> tuple[str, ...]:
        return ("iterates",)

    def answer(self, quadratic: Quadratic) -> Array:
        damped = quadratic.gram + self.penalty * identity(quadratic.unknowns(), quadratic.moment)
        return solve(damped, quadratic.moment)


def ridges() -> dict[str, Ridge]:
    return {f"ridge {penalty:g}": Ridge(as_array(np.float32(penalty))) for penalty in PENALTIES}


def take_ridges(table: dict[str, np.ndarray]) -> np.ndarray:
    """Take the losses of `ridges` out of a table: (penalties, ..., runs)."""
    return np.stack([table.pop(name) for name in ridges()])


def best_penalty(table: np.ndarray) -> np.ndarray:
    """The loss of each run at the penalty that is best for the mean of the other runs, whose prompts are
    other ones. table: (penalties, ..., runs)."""
    runs = table.shape[-1]
    others = (table.sum(axis=-1, keepdims=True) - table) / (runs - 1) if runs > 1 else table
    return np.take_along_axis(table, others.argmin(axis=0)[None], axis=0)[0]
