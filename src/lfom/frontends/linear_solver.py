"""A Lineax solver: a method of any origin on a symmetric positive definite operator."""

import math
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jax import Array
from jax.flatten_util import ravel_pytree

from lfom.core.checks import InputError
from lfom.core.methods import Algorithm, a_method
from lfom.core.parameters import check_layers
from lfom.core.problems import IterateProblem, Operator, Quadratic
from lfom.core.words import brief
from lfom.solving import kinds, statuses
from lfom.solving.problems import fitting
from lfom.solving.program import program_of
from lfom.solving.solve import budget, check_dtype, check_kind
from lfom.solving.systems import solve_systems

State: TypeAlias = lx.AbstractLinearOperator


class LearnedSolver(lx.AbstractLinearSolver[State]):
    """`lx.linear_solve(operator, b, LearnedSolver(method))`.

    method: learned, trained or built. steps, tolerance: as in `method.solve`; exactly as many steps as asked
    for are a success. The operator must be tagged `lx.positive_semidefinite_tag`. A method learned from
    matrices or regressions reads the operator's matrix (`as_matrix`), one that was not learned does where the operator is one,
    and any other its products. Without a matrix, what reads the diagonal takes `options={"diagonal": ...}`. `options={"y0": ...}` is a start shaped like the unknowns, from
    which tolerance and residuals count; solves of the transposed operator, as in reverse-mode derivatives, start at zero.

    stats: num_steps, max_steps, status (see `lfom.Solution.meaning`) and residuals relative to
    the start's, one per step. A
    status below zero is `singular`, `stagnation` or `nonfinite_input`; a tolerance not met is
    `max_steps_reached`.
    """

    __repr__ = brief

    method: Algorithm
    steps: int | None = eqx.field(static=True)
    tolerance: float | None = eqx.field(static=True)

    def __init__(self, method: Algorithm, steps: int | None = None, tolerance: float | None = None):
        facts = a_method("method", method).facts
        check_kind(method, facts.kind if facts is not None and facts.kind.quadratic else kinds.OPERATORS)
        check_layers(method, method.depth, None if method.shape is None else len(method.shape), ())
        self.method, self.steps, self.tolerance = method, steps, tolerance
        budget(method, steps, tolerance, method.shape or (1,), method.dtype or jnp.zeros(()).dtype)

    def init(self, operator: State, options: dict[str, Any]) -> State:
        unknown = set(options) - {"diagonal", "y0"}
        if unknown:
            raise InputError(f"options has {sorted(unknown)}: LearnedSolver knows diagonal and y0.")
        if not lx.is_positive_semidefinite(operator):
            raise InputError(
                "the operator is not known to be symmetric positive definite. If it is, tag it with "
                "lineax.positive_semidefinite_tag."
            )
        shape = self.method.shape
        if shape is not None and operator.in_size() != math.prod(shape):
            raise InputError(
                f"this method was learned for unknowns of shape {shape}, and this operator has "
                f"{operator.in_size()}. Learn one from problems of this size."
            )
        structure = self.method.structure
        jacobi = structure is not None and structure.jacobi
        if jacobi and not (self._reads_matrix or is_matrix(operator)) and "diagonal" not in options:
            raise InputError(
                "this method works in coordinates set by the diagonal of the operator. Pass it as "
                'options={"diagonal": ...}, shaped like the unknowns.'
            )
        return lx.linearise(operator)

    @property
    def _reads_matrix(self) -> bool:
        return self.method.facts is not None and self.method.facts.kind.matrix

    def compute(
        self, state: State, vector: Any, options: dict[str, Any]
    ) -> tuple[Any, lx.RESULTS, dict[str, Any]]:
        flat, unravel = ravel_pytree(vector)
        check_dtype(self.method, flat.dtype, "the right-hand side")
        shape = self.method.shape or flat.shape
        problems = self._problems(state, vector, flat.reshape(shape), options.get("diagonal"))
        own, steps, tolerance = budget(self.method, self.steps, self.tolerance, shape, flat.dtype)
        start = options.get("y0")
        if start is not None:
            start = fitting("y0", ravel_pytree(start)[0], flat.shape, "the right-hand side", flat)
            start = start.reshape(1, *shape)
        raw = solve_systems(program_of(self.method).ready(), problems, own, steps, tolerance, start)
        value, status, taken, residuals = (part[0] for part in raw[:4])
        stats = {"num_steps": taken, "max_steps": steps, "status": status, "residuals": residuals}
        return unravel(value.ravel()), _result(status), stats

    def _problems(self, operator: State, vector: Any, b: Array, diagonal: Any) -> IterateProblem:
        """A batch of one, of the kind the method was learned from; where it was not learned, a matrix if there is one."""
        if self._reads_matrix or (self.method.facts is None and is_matrix(operator)):
            return jax.vmap(Quadratic)(operator.as_matrix()[None], b[None])
        arrays, rest = eqx.partition(operator, eqx.is_array)
        _, unravel = ravel_pytree(vector)

        def product(arrays: Any, v: Array) -> Array:
            return ravel_pytree(eqx.combine(arrays, rest).mv(unravel(v.ravel())))[0].reshape(v.shape)

        if diagonal is None and is_matrix(operator):
            diagonal = lx.diagonal(operator)
        known = None if diagonal is None else ravel_pytree(diagonal)[0].reshape(b.shape)
        return jax.tree.map(lambda leaf: leaf[None], Operator(product, arrays, b, known))

    def transpose(self, state: State, options: dict[str, Any]) -> tuple[State, dict[str, Any]]:
        # y0 is that of another right-hand side
        return state, {name: value for name, value in options.items() if name != "y0"}

    def conj(self, state: State, options: dict[str, Any]) -> tuple[State, dict[str, Any]]:
        return state, options

    def assume_full_rank(self) -> bool:
        return True


def is_matrix(operator: Any) -> bool:
    """Whether its entries are there, and cost no products."""
    while isinstance(operator, lx.TaggedLinearOperator):
        operator = operator.operator
    return isinstance(operator, lx.MatrixLinearOperator | lx.PyTreeLinearOperator | lx.DiagonalLinearOperator)


def _result(status: Array) -> lx.RESULTS:
    result = lx.RESULTS.where(status >= statuses.NOT_MET, lx.RESULTS.max_steps_reached, lx.RESULTS.successful)
    for failure, meaning in (
        (statuses.NOT_FINITE, lx.RESULTS.nonfinite_input),
        (statuses.OUT_OF_RANGE, lx.RESULTS.breakdown),
        (statuses.NOT_DEFINITE, lx.RESULTS.singular),
        (statuses.NO_PROGRESS, lx.RESULTS.stagnation),
    ):
        result = lx.RESULTS.where(status == failure, meaning, result)
    return result
