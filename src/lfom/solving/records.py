"""Where a learned method comes from, and what `solve` returns."""

from dataclasses import dataclass

import numpy as np
from jax import Array

from lfom.core.methods import Algorithm
from lfom.solving import statuses


@dataclass(frozen=True)
class Accuracy:
    """Relative errors on held-out problems after 0, 1, ..., steps steps: the median, the quarter and
    three quarters of the problems. Energy norm for quadratics, excess loss for convex losses."""

    median: tuple[float, ...]
    lower: tuple[float, ...]
    upper: tuple[float, ...]
    problems: int
    how: str  # "held out" or "cross-validated"


@dataclass(frozen=True)
class Bound:
    """f(w) - f* <= worst_case L |w_0 - w*|^2 for every convex f of smoothness L, found by lfom.worst_case; at most
    `accuracy` too large. asked: what was allowed in learning."""

    asked: float
    worst_case: float
    accuracy: float
    smoothness: float

    def __str__(self) -> str:
        return (
            f"f(w) - f* <= {self.worst_case:.4g} L |w_0 - w*|^2 for every convex f of smoothness L = {self.smoothness:.4g} "
            "or less (worst case)"
        )


@dataclass(frozen=True)
class Record:
    """Where a method comes from. scores: held-out loss (log of the geometric mean error) by name."""

    learned_from: int
    seed: int
    accuracy: Accuracy
    scores: tuple[tuple[str, float], ...] = ()  # a dictionary could not be part of a compiled program's name
    warnings: tuple[str, ...] = ()

    @property
    def compared(self) -> dict[str, float]:
        """Held-out loss by the name of the structure, the best first."""
        return dict(self.scores)


@dataclass(frozen=True)
class Solution:
    """value (problems, *shape); status (problems,) with `meaning`; steps taken by each; residuals
    (problems, steps + 1), norms of b - A w or of the gradient; method: what solved them."""

    value: Array
    status: np.ndarray
    steps: np.ndarray
    residuals: np.ndarray
    method: Algorithm
    fallback: str = "conjugate gradients"

    @property
    def promise(self) -> str:
        """What was known of every problem before it was solved."""
        return self.method.promise

    @property
    def meaning(self) -> dict[int, str]:
        return {s: text.replace("fallback", self.fallback) for s, text in statuses.MEANING.items()}

    @property
    def path(self) -> list[str]:
        """The path taken by each problem, in words."""
        names = [path.replace("fallback", f"fallback: {self.fallback}") for path in statuses.PATHS]
        return [names[s % 10] if s >= 0 else "failed" for s in self.status.tolist()]

    @property
    def failed(self) -> np.ndarray:
        return np.array([statuses.failed(s) for s in self.status.tolist()])
