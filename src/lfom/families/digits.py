"""Logistic regressions, one digit against the rest, on samples of scikit-learn's digits.

Each problem draws 200 of the images and one digit; 64 pixels and a constant give 65 weights. A
small ridge makes the optimum exist where the sample is separable.
"""

from functools import cache

import jax.numpy as jnp
import numpy as np
from jax import Array

from lfom.core.extras import needed
from lfom.families.family import Family, rounded, split
from lfom.solving.convex_losses import ConvexLosses

IMAGES = 200  # in a problem
WEIGHTS = 65
RIDGE = 0.01


def loss(w: Array, data: dict[str, Array]) -> Array:
    """Mean logistic loss with labels y of -1 or 1, plus ridge |w|^2 / 2."""
    margins = data["y"] * (data["X"] @ w)
    return jnp.mean(jnp.logaddexp(0.0, -margins)) + RIDGE / 2 * jnp.sum(w**2)


@cache
def _table() -> tuple[np.ndarray, np.ndarray]:
    table = needed("sklearn.datasets", "the family digits").load_digits()
    return np.column_stack([table.data / 16, np.ones(len(table.data))]), table.target


def samples(part: str, problems: int, random: np.random.Generator) -> dict[str, np.ndarray]:
    """X (problems, 200, 65) and y (problems, 200)."""
    X, digits = _table()
    rows = split(len(X))[part]
    chosen = np.stack([random.choice(rows, IMAGES, replace=False) for _ in range(problems)])
    wanted = random.integers(0, 10, (problems, 1))
    return {"X": X[chosen], "y": np.where(digits[chosen] == wanted, 1.0, -1.0)}


def _draw(part: str, problems: int, random: np.random.Generator) -> ConvexLosses:
    return ConvexLosses(loss, rounded(samples(part, problems, random)), size=WEIGHTS)


DIGITS = Family("digits", _draw, batch=1_000)
