"""Convex losses: any smooth convex function of the unknowns and the data of a problem."""

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from lfom.core import checks
from lfom.core.checks import InputError
from lfom.core.memories import Conjugate
from lfom.core.methods import Method
from lfom.core.preconditioners import Identity
from lfom.core.problems import Objective
from lfom.core.readers import Gradient
from lfom.solving import closures, kinds
from lfom.solving.derivatives import differentiated
from lfom.solving.learners import Learner, LossLearner
from lfom.solving.losses import hessians, solve_losses
from lfom.solving.problems import Problems, data_array, fitting
from lfom.solving.program import Program, Raw
from lfom.solving.systems import solve_systems
from lfom.solving.unknowns import OfVector, Unknowns

PLAIN = Method(Gradient(Identity()), Conjugate(), 1)  # conjugate gradients


class ConvexLosses(Problems):
    """min over w of loss(w, data of one problem): smooth and convex. Methods start at w = 0 unless told otherwise.

    data: arrays in a tuple, list or dictionary, each with a leading axis of problems; one problem has one of size 1. size:
    the number of unknowns d, the shape of w as a tuple, or a tree like w of arrays or jax.ShapeDtypeStruct. loss
    then gets such a tree, and `solution.value` is one, with a leading axis of problems.

    >>> import jax.numpy as jnp
    >>> from lfom import ConvexLosses
    >>> import numpy as np
    >>> def loss(w, data):
    ...     return jnp.mean((data @ w["slope"] + w["constant"] - 1) ** 2)
    >>> like = {"slope": np.zeros(2), "constant": np.zeros(())}
    >>> ConvexLosses(loss, np.ones((3, 5, 2), np.float32), like).shape
    (3,)
    """

    kind = kinds.LOSSES

    single: bool = eqx.field(static=True)
    loss: Callable[[Any, Any], Array] = eqx.field(static=True)
    data: Any
    sizes: tuple[int, ...] = eqx.field(static=True)
    unknowns: Unknowns | None = eqx.field(static=True)

    def __init__(self, loss: Callable[[Any, Any], Array], data: Any, size: Any):
        if not callable(loss):
            raise InputError("loss is not a function: pass loss(w, data) that returns one number.")
        self.loss, self.single = loss, False
        self.data = jax.tree.map(data_array, data)
        known, self.unknowns = checks.shape_of(size), None
        if known is None:
            self.unknowns = Unknowns.like(size)
            known = (self.unknowns.size,)
        self.sizes = tuple(checks.count("size", s) for s in known)
        leaves = jax.tree.leaves(self.data)
        counts = {leaf.shape[0] if leaf.ndim else None for leaf in leaves}
        if len(counts) != 1 or None in counts or 0 in counts:
            raise InputError(
                f"data holds arrays of shapes {[leaf.shape for leaf in leaves]}: every one needs the same "
                "leading axis of problems, with at least one. Close over what all problems share."
            )
        one = jax.tree.map(lambda leaf: leaf[0], self.data)
        try:
            w = jax.ShapeDtypeStruct(self.shape, self.dtype)
            w = w if self.unknowns is None else jax.eval_shape(self.unknowns.tree, w)
            closed, value = closures.shape_of(self.loss, w, one)
        except Exception as error:  # the user's own code
            raise InputError(f"loss(w, data) failed for w of shape {self.shape}: {error}") from error
        if value.shape != () or value.dtype != self.dtype:
            raise InputError(
                f"loss(w, data) returns {value.dtype} of shape {value.shape}: it must return one number of "
                f"{self.dtype}."
            )
        self.loss = closures.guarded("loss", self.loss, closed, value)

    @property
    def reads_outside(self) -> Hashable:
        return closures.read_outside(self.loss)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.sizes

    @property
    def of_vector(self) -> Callable[[Array, Any], Array]:
        """The loss of what a method sees."""
        return self.loss if self.unknowns is None else OfVector(self.loss, self.unknowns)

    @property
    def dtype(self) -> Any:
        floating = [x for x in jax.tree.leaves(self.data) if jnp.issubdtype(x.dtype, jnp.floating)]
        return jnp.result_type(*floating) if floating else jnp.zeros(()).dtype

    def described(self) -> str:
        return "" if self.unknowns is None else f", a tree of {len(self.unknowns.shapes)}"

    def each(self) -> Objective:
        return Objective(self.of_vector, jnp.zeros((len(self), *self.shape), self.dtype), self.data)

    def solved(
        self, program: Program, own: int, steps: int, tolerance: Array | None, start: Array | None
    ) -> Raw:
        begun = self.each() if start is None else Objective(self.of_vector, start, self.data)
        return differentiated(partial(solve_losses, own, steps), _newton, program, begun, None, tolerance)

    def learner(self, steps: int, seed: int) -> Learner:
        return LossLearner(self, steps, seed)

    def begun(self, start: Any) -> Array:
        if self.unknowns is None:
            return super().begun(start)

        def read(leaf: Any, shape: tuple[int, ...]) -> Array:
            return fitting("start", leaf, shape, "the problems", self)

        return self.unknowns.vector(start, (len(self),), read)

    def shown(self, raw: Raw) -> Raw:
        return raw if self.unknowns is None else raw._replace(value=self.unknowns.tree(raw.value))

    def values(self, w: Any) -> Array:
        return jax.vmap(self.loss)(w, self.data)

    def gradients(self, w: Any) -> Any:
        return jax.vmap(jax.grad(self.loss))(w, self.data)

    def errors(self, w: Any, best: Any) -> Array:
        lowest = self.values(best)
        return (self.values(w) - lowest) / (self.values(jax.tree.map(jnp.zeros_like, best)) - lowest)


def _newton(program: Any, problems: Any, tolerance: Array, w: Array, g: Array) -> Array:
    """H^-1 g at w by conjugate gradients."""
    conjugate = Program(PLAIN, PLAIN)
    return solve_systems(conjugate, hessians(problems, w, g), 0, 10 * w[0].size, tolerance).value
