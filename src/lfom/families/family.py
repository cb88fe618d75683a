"""What a family is: a name, and a way to draw learning or held-out problems."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from lfom.core.arrays import default_dtype
from lfom.core.checks import count

PARTS = ("learning", "held out")


@dataclass(frozen=True)
class Family:
    """A family of related problems. `draw(part, problems, random)` makes `problems` of them."""

    name: str
    draw: Callable[[str, int, np.random.Generator], Any]
    batch: int  # how many held-out problems the benchmark solves together

    def learning(self, problems: int, *, seed: int = 0) -> Any:
        """Problems to learn a method from."""
        return self._drawn(0, problems, seed)

    def held_out(self, problems: int, *, seed: int = 0) -> Any:
        """Problems to score it on; none of them shares data with a learning problem."""
        return self._drawn(1, problems, seed)

    def _drawn(self, part: int, problems: int, seed: int) -> Any:
        random = np.random.default_rng([count("seed", seed, minimum=0), part])
        return self.draw(PARTS[part], count("problems", problems), random)


def rounded(arrays: Any) -> Any:
    """Arrays of NumPy in the precision that JAX computes in now."""
    return jax.tree.map(lambda array: array.astype(default_dtype()), arrays)


def split(rows: int) -> dict[str, np.ndarray]:
    """The rows of a table in two random halves, one per part; always the same ones."""
    shuffled = np.random.default_rng(0).permutation(rows)
    return dict(zip(PARTS, np.array_split(shuffled, 2), strict=True))
