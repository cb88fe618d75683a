"""Where a learned method comes from, and what `solve` returns."""

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from lfom.core.arrays import as_it_is
from lfom.core.checks import InputError, is_concrete
from lfom.core.methods import Algorithm
from lfom.core.words import brief
from lfom.solving import statuses
from lfom.solving.program import Raw


@dataclass(frozen=True)
class Accuracy:
    """Relative errors on held-out problems after 0, 1, ..., steps steps: the median, the quarter and
    three quarters of the problems. Energy norm for quadratics, excess loss for convex losses."""

    __repr__ = brief

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

    __repr__ = brief

    learned_from: int
    seed: int
    accuracy: Accuracy
    scores: tuple[tuple[str, float], ...] = ()  # a dictionary could not be part of a compiled program's name
    warnings: tuple[str, ...] = ()

    @property
    def compared(self) -> dict[str, float]:
        """Held-out loss by the name of the structure, the best first."""
        return dict(self.scores)


@partial(
    jax.tree_util.register_dataclass, data_fields=["found", "method"], meta_fields=["fallback", "columns"]
)
@dataclass(frozen=True, eq=False, repr=False)
class Solution:
    """value (problems, *shape); status (problems,) with `meaning`; steps taken by each; residuals
    (problems, steps + 1), norms of b - A w or of the gradient, relative to the start's; intercept: of regressions that
    have one, else None; method: what solved them. Several outputs are the last axis of value and the second one of the others;
    one problem that was brought without an axis of problems has none here. Arrays of JAX, on their device until someone
    reads them.

    >>> import numpy as np
    >>> import lfom
    >>> problems = lfom.LinearSystems(np.eye(2, dtype=np.float32), np.ones(2, np.float32))
    >>> solution = lfom.conjugate_gradient(steps=1).solve(problems)
    >>> solution.value.tolist(), bool(solution.failed), solution.path
    ([1.0, 1.0], False, "the method's steps, checked afterwards")
    """

    found: Raw
    method: Algorithm
    fallback: str = "conjugate gradients"
    columns: int | None = None  # of residuals that are shown, where there was room for more

    @cached_property
    def value(self) -> Any:
        return _as_jax(self.found.value)

    @cached_property
    def status(self) -> Int[Array, "*problems"]:
        return _as_jax(self.found.status)

    @cached_property
    def steps(self) -> Int[Array, "*problems"]:
        return _as_jax(self.found.steps)

    @cached_property
    def residuals(self) -> Float[Array, "*problems columns"]:
        return _as_jax(_cut(self.found.residuals, self.columns))

    @cached_property
    def intercept(self) -> Float[Array, "..."] | None:
        return _as_jax(self.found.intercept)

    def __repr__(self) -> str:
        shapes = jax.tree.map(jnp.shape, self.value)
        if not all(is_concrete(part) and eqx.is_array(part) for part in (self.status, self.steps)):
            return f"Solution(value of shape {shapes}, by {self.method!r})"
        failed, steps = np.sum(self.failed), np.asarray(self.steps)
        taken = f"{steps.min()} to {steps.max()} steps, " if steps.size else ""
        return (
            f"Solution({steps.size:,} answers, {failed:,} failed, {taken}value of shape {shapes}, "
            f"by {self.method!r})"
        )

    @property
    def promise(self) -> str:
        """What was known of every problem before it was solved."""
        return self.method.promise

    @property
    def meaning(self) -> dict[int, str]:
        return {s: text.replace("fallback", self.fallback) for s, text in statuses.MEANING.items()}

    @property
    def path(self) -> Any:
        """The path taken by each problem, in words, in lists shaped like `status`."""
        names = [path.replace("fallback", f"fallback: {self.fallback}") for path in statuses.PATHS]
        if not is_concrete(self.status):
            raise InputError(
                "words need values: return the solution from the compiled function, and ask it there."
            )
        status = np.asarray(self.status)
        return np.array([*names, "failed"])[np.where(status >= 0, status % 10, len(names))].tolist()

    @property
    def failed(self) -> Bool[Array, "*problems"]:
        return statuses.failed(self.status)


def _cut(sizes: Any, columns: int | None) -> Any:
    """By NumPy, since every number of columns would be a program of JAX's."""
    return sizes if columns is None else np.asarray(sizes)[..., :columns]


def _as_jax(tree: Any) -> Any:
    """What several cores have found lies in NumPy's arrays, since handing one over takes .1 to .4 ms. It keeps its precision,
    whatever JAX computes in when it is read."""

    return jax.tree.map(lambda leaf: as_it_is(leaf) if isinstance(leaf, np.ndarray) else leaf, tree)
