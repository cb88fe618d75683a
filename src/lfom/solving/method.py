"""A learned method: what it was learned from, what it promises, and how it solves problems."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lfom.core import checks
from lfom.core.checks import InputError
from lfom.solving import statuses
from lfom.solving.batches import solve_batch
from lfom.solving.certificate import Certificate
from lfom.solving.problems import Problems
from lfom.solving.solving import Plan
from lfom.solving.steps import Conjugate
from lfom.solving.structures import Structure

LONGEST = 1_000  # steps, where a tolerance is given and no number of steps


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
class Record:
    """Where a method comes from. compared: held-out loss (log of the geometric mean error) by name."""

    learned_from: int
    seed: int
    accuracy: Accuracy
    compared: dict[str, float]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Solution:
    """value (problems, *shape); status (problems,) with `meaning`; steps taken by each; residuals
    (problems, steps + 1), norms of b - A w or of the gradient; promise: what held before the solve."""

    value: Array
    status: np.ndarray
    steps: np.ndarray
    residuals: np.ndarray
    promise: str
    fallback: str = field(default="conjugate gradients")

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


@dataclass(frozen=True)
class LearnedMethod:
    """What `lfom.learn` returns. `solve` runs it; `save` and `to_json` write it."""

    structure: Structure
    kind: str
    shape: tuple[int, ...]
    steps: int
    plan: Plan
    certificate: Certificate | None
    floor: float  # the smallest tolerance this precision reaches on this family
    record: Record

    @property
    def dtype(self) -> Any:
        return self.plan.gauge.dtype

    @property
    def warnings(self) -> tuple[str, ...]:
        return self.record.warnings

    @property
    def promise(self) -> str:
        """What is known of every problem before it is solved."""
        if self.kind == "convex losses":
            return "none before the solve: the loss is checked afterwards and is never above the start's"
        if self.certificate is not None:
            text = (
                "the energy norm of the error shrinks wherever the eigenvalues of M A lie in "
                f"(0, {self.certificate.reach[-1]:.4g})"
            )
            if self.certificate.contraction < 1:
                return f"{text}; to {self.certificate.contraction:.3g} or less on those seen in learning"
            return f"{text}; some seen in learning lie outside"
        if isinstance(self.plan.coefficients, Conjugate):
            return "the energy norm of the error falls with every step (conjugate gradients)"
        return "none before the solve: diagonal coefficients are checked afterwards"

    def solve(self, problems: Problems, steps: int | None = None, tolerance: float | None = None) -> Solution:
        """Solve one problem or a batch, in one compiled call.

        steps: exactly as many; by default those it was learned for. More are continued with conjugate
        gradients (quadratics) or gradient steps with a line search (losses). tolerance: stop once the
        residual is that small relative to the start's; without `steps`, as many as it takes up to 1,000.
        """
        self._check(problems)
        budget = self.budget(steps, tolerance)
        raw = solve_batch(self.plan, problems, *budget)
        fallback = "line-searched gradient" if self.kind == "convex losses" else "conjugate gradients"
        status, taken, residuals = (np.asarray(part) for part in raw[1:])
        return Solution(raw.value, status, taken, residuals, self.promise, fallback)

    def budget(self, steps: int | None, tolerance: float | None) -> tuple[int, int, Array | None]:
        """What `solve` makes of its arguments: learned steps, steps in all, tolerance."""
        asked = steps is not None
        steps = checks.count("steps", steps if asked else self.steps)
        limit = None
        if tolerance is not None:
            with jax.ensure_compile_time_eval():  # a number also inside somebody's jit
                limit = jnp.asarray(self._checked_tolerance(tolerance), self.dtype)
            if not asked:
                steps = min(LONGEST, self.steps + 2 * int(np.prod(self.shape)))
        learned = 0 if isinstance(self.plan.coefficients, Conjugate) else min(steps, self.steps)
        return learned, steps, limit

    def _check(self, problems: Any) -> None:
        if not isinstance(problems, Problems):
            raise InputError(
                f"solve takes problems, not {type(problems).__name__}: build lfom.LeastSquaresProblems, "
                "lfom.LinearSystems or lfom.ConvexLosses; one problem is a batch of one."
            )
        alike = {"least squares": "linear systems"}
        if alike.get(problems.kind, problems.kind) != alike.get(self.kind, self.kind):
            raise InputError(
                f"this method was learned from {self.kind}, and these are {problems.kind}. Learn one from "
                "problems of this kind."
            )
        if problems.shape != self.shape:
            raise InputError(
                f"this method was learned for unknowns of shape {self.shape}, and these problems have "
                f"{problems.shape}. Learn one from problems of this size."
            )
        known = getattr(problems, "known_diagonal", None) is not None or problems.kind != "operators"
        if self.structure.jacobi and not known:
            raise InputError(
                f"this method is {self.structure.name}: it works in coordinates set by the diagonal of A, which "
                "these operators do not tell. Pass LinearSystems(..., diagonal=...)."
            )
        if problems.dtype != self.dtype:
            raise InputError(
                f"this method is of {self.dtype} and these problems of {problems.dtype}. Convert the problems, "
                f'or the method with method.astype("{problems.dtype}").'
            )

    def _checked_tolerance(self, tolerance: Any) -> float:
        value = float(checks.positive("tolerance", tolerance))
        if value < self.floor:
            raise InputError(
                f"tolerance is {value:.2g}: in {self.dtype} residuals of this family are rounded off at "
                f"{self.floor:.2g} relative to the start. Pass {self.floor:.2g} or more"
                + ("." if self.dtype == jnp.float64 else ", or solve in float64.")
            )
        return value

    def astype(self, dtype: Any) -> "LearnedMethod":
        """The same method in another precision."""
        target = jnp.dtype(dtype)
        if target == jnp.float64 and not jax.config.jax_enable_x64:  # type: ignore[attr-defined]
            raise InputError(
                "dtype is float64, and JAX computes in float32 here: enable it first with "
                'jax.config.update("jax_enable_x64", True).'
            )
        factor = float(jnp.finfo(target).eps / jnp.finfo(self.dtype).eps)
        plan = jax.tree.map(lambda leaf: jnp.asarray(leaf, target), self.plan)
        return replace(self, plan=plan, floor=self.floor * factor)

    def save(self, path: str | Path) -> None:
        """Write the method as one safetensors file; the old file stays until the new one is whole."""
        from lfom.solving.files import save_method

        save_method(path, self)

    def to_json(self) -> dict[str, Any]:
        """The method without a framework: plain numbers and how to run them."""
        from lfom.solving.export import exported

        return exported(self)
