"""A Lineax solver: a learned method on a symmetric positive definite operator."""

from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

from lfom.core.checks import InputError
from lfom.solving import statuses
from lfom.solving.method import LearnedMethod
from lfom.solving.quadratics import Matrices, Quadratics
from lfom.solving.solving import Plan, solve_quadratics

State: TypeAlias = lx.AbstractLinearOperator


class LearnedSolver(lx.AbstractLinearSolver[State]):
    """`lx.linear_solve(operator, b, LearnedSolver(method))`.

    steps, tolerance: as in `method.solve`; exactly as many steps as asked for are a success. The
    operator must be tagged `lx.positive_semidefinite_tag`. A method learned from matrices or
    regressions reads the operator's matrix (`as_matrix`), one learned from operators its products;
    the latter takes `options={"diagonal": ...}` where it works in Jacobi coordinates.

    stats: num_steps, max_steps, status (see `lfom.Solution.meaning`) and residuals, one per step. A
    status below zero is `singular`, `stagnation` or `nonfinite_input`; a tolerance not met is
    `max_steps_reached`.
    """

    plan: Plan
    tolerance: Array | None
    kind: str = eqx.field(static=True)
    shape: tuple[int, ...] = eqx.field(static=True)
    learned: int = eqx.field(static=True)
    steps: int = eqx.field(static=True)

    def __init__(self, method: LearnedMethod, steps: int | None = None, tolerance: float | None = None):
        if method.kind == "convex losses":
            raise InputError(
                "this method was learned from convex losses, and a linear solver needs one learned from "
                "systems. Learn it from lfom.LinearSystems or lfom.LeastSquaresProblems."
            )
        self.plan, self.kind, self.shape = method.plan, method.kind, method.shape
        self.learned, self.steps, self.tolerance = method.budget(steps, tolerance)

    def init(self, operator: State, options: dict[str, Any]) -> State:
        unknown = set(options) - {"diagonal"}
        if unknown:
            raise InputError(f"options has {sorted(unknown)}: LearnedSolver knows diagonal only.")
        if not lx.is_positive_semidefinite(operator):
            raise InputError(
                "the operator is not known to be symmetric positive definite. If it is, tag it with "
                "lineax.positive_semidefinite_tag."
            )
        if operator.in_size() != int(np.prod(self.shape)):
            raise InputError(
                f"this method was learned for unknowns of shape {self.shape}, and this operator has "
                f"{operator.in_size()}. Learn one from problems of this size."
            )
        if self.kind == "operators" and self.plan.jacobi and "diagonal" not in options:
            raise InputError(
                "this method works in coordinates set by the diagonal of the operator. Pass it as "
                'options={"diagonal": ...}, shaped like the unknowns.'
            )
        return lx.linearise(operator)

    def compute(
        self, state: State, vector: Any, options: dict[str, Any]
    ) -> tuple[Any, lx.RESULTS, dict[str, Any]]:
        flat, unravel = ravel_pytree(vector)
        if flat.dtype != self.plan.gauge.dtype:
            raise InputError(
                f"this method is of {self.plan.gauge.dtype} and the right-hand side of {flat.dtype}. "
                f'Convert the method with method.astype("{flat.dtype}").'
            )
        quadratics = self._quadratics(state, vector, flat, options.get("diagonal"))
        raw = solve_quadratics(self.plan, quadratics, self.learned, self.steps, self.tolerance)
        stats = {
            "num_steps": raw.steps[0],
            "max_steps": self.steps,
            "status": raw.status[0],
            "residuals": raw.residuals[0],
        }
        return unravel(raw.value[0].ravel()), _result(raw.status[0]), stats

    def _quadratics(self, operator: State, vector: Any, flat: Array, diagonal: Any) -> Quadratics:
        """A batch of one, of the kind the method was learned from."""
        b = flat.reshape(1, *self.shape)
        if self.kind != "operators":
            return Matrices(A=operator.as_matrix()[None], b=b)
        known = None if diagonal is None else ravel_pytree(diagonal)[0].reshape(b.shape)
        return _One(operator, vector, b, known)

    def transpose(self, state: State, options: dict[str, Any]) -> tuple[State, dict[str, Any]]:
        return state, options

    def conj(self, state: State, options: dict[str, Any]) -> tuple[State, dict[str, Any]]:
        return state, options

    def assume_full_rank(self) -> bool:
        return True


class _One(Quadratics):
    """One operator, on any tree of arrays, as a batch of one. like: a tree of its unknowns."""

    operator: State
    like: Any
    b: Array
    known_diagonal: Array | None

    def times(self, vector: Array) -> Array:
        _, unravel = ravel_pytree(self.like)
        return ravel_pytree(self.operator.mv(unravel(vector.ravel())))[0].reshape(vector.shape)

    def diagonal(self) -> Array | None:
        return self.known_diagonal

    def dominating(self, x: Array) -> None:
        return None

    def finite(self) -> Array:
        leaves = [self.b, *jax.tree.leaves(eqx.filter(self.operator, eqx.is_inexact_array))]
        return jnp.stack([jnp.isfinite(leaf).all() for leaf in leaves]).all()[None]


def _result(status: Array) -> lx.RESULTS:
    result = lx.RESULTS.where(status >= statuses.NOT_MET, lx.RESULTS.max_steps_reached, lx.RESULTS.successful)
    for failure, meaning in (
        (statuses.NOT_FINITE, lx.RESULTS.nonfinite_input),
        (statuses.NOT_DEFINITE, lx.RESULTS.singular),
        (statuses.NO_PROGRESS, lx.RESULTS.stagnation),
    ):
        result = lx.RESULTS.where(status == failure, meaning, result)
    return result
