"""Fitting one structure to quadratics: coefficients in closed form, preconditioners by gradients (`descent`).

The fitted number is the mean over problems of log |w_k - w*|_A / |w*|_A, the log of the geometric
mean of the relative errors after the last step. Every problem counts alike, whatever its size.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from lfom.core.arrays import filled
from lfom.core.coefficients import CoordinateWise
from lfom.core.memories import Bank, Conjugate, Register, scalar_bank
from lfom.core.methods import Method
from lfom.core.parameters import leaves, replaced
from lfom.core.preconditioners import Definite, Identity
from lfom.core.problems import IterateProblem
from lfom.core.readers import Gradient, Jacobi, Reader
from lfom.core.unroll import trace
from lfom.solving.descent import Refined, Tick, descend
from lfom.solving.joint import Guard, best_register
from lfom.solving.pieces import mapped

Errors = Float[Array, "steps problems"]
RATE_TABLE = 0.01  # of Adam, for relative changes of coefficients


class Sample(eqx.Module):
    """Problems to learn from. w: their solutions. weights: 0 leaves a problem out."""

    problems: IterateProblem
    w: Float[Array, "problems *shape"]
    weights: Float[Array, " problems"]

    def energies(self) -> Float[Array, " problems"]:
        """|w*|_A^2, the squared error of the start."""
        tiny = jnp.finfo(self.w.dtype).tiny
        b_times_w = jax.vmap(lambda one, w: -jnp.sum(one.initial()[1] * w))(self.problems, self.w)
        return jnp.maximum(b_times_w, tiny)

    def loss(self, method: Method) -> Array:
        """The fitted number."""

        def one(problem: IterateProblem, w: Array, energy: Array) -> Array:
            last = trace(method, problem, None, lambda state, past: None, loop=True)[1]
            return jnp.abs(_square(last, w)) / energy

        return mean_log(self, mapped(one, self.problems, self.w, self.energies()))


def reader_of(matrix: Definite, jacobi: bool) -> Reader:
    return Jacobi(matrix) if jacobi else Gradient(matrix)


def _square(state: Any, w: Array) -> Array:
    """|w_l - w*|_A^2, since the gradient is A (w_l - w*)."""
    return jnp.sum((state.w - w) * state.gradient)


def squared_errors(sample: Sample, method: Method) -> Errors:
    """Squared energy norms of the errors after every step, relative to the start."""

    def one(problem: IterateProblem, w: Array, energy: Array) -> Array:
        def watch(state: Any, past: Any) -> Array:
            return _square(state, w) / energy

        return trace(method, problem, None, watch, loop=True)[2]

    return jnp.abs(mapped(one, sample.problems, sample.w, sample.energies()).T)


def mean_log(sample: Sample, squares: Array) -> Array:
    floor = (10 * jnp.finfo(squares.dtype).eps) ** 2
    return jnp.sum(sample.weights * 0.5 * jnp.log(squares + floor)) / jnp.sum(sample.weights)


def balanced_register(sample: Sample, reader: Reader, steps: int, guard: Guard | None = None) -> Register:
    """Shared scalar coefficients for the geometric mean of the errors: least squares, reweighted by
    the errors that it leaves, so that the hardest problems do not decide alone."""
    weights = sample.weights / (sample.energies() * jnp.sum(sample.weights))
    register = best_register(reader, sample.problems, weights, steps)
    squares = jax.lax.stop_gradient(squared_errors(sample, Method(reader, register, steps))[-1])
    typical = jnp.exp(2 * mean_log(sample, squares))
    bounded = weights * typical / (squares + typical)
    return best_register(reader, sample.problems, bounded, steps, guard)


fit_register = eqx.filter_jit(balanced_register)


@eqx.filter_jit
def errors(method: Method, sample: Sample) -> Errors:
    """After 0, 1, ... steps: relative errors in the energy norm; 1 at the start."""
    squares = squared_errors(sample, method)
    return jnp.concatenate([jnp.ones((1, squares.shape[1]), squares.dtype), jnp.sqrt(squares)])


@eqx.filter_jit
def table_loss(table: Float[Array, "steps steps"], sample: Any) -> tuple[Array, Array]:
    """The fitted number for a bank of these numbers on the plain gradient, and its slopes."""

    def loss(table: Array) -> Array:
        method = Method(Gradient(Identity()), scalar_bank(table), len(table))
        return sample.loss(method)

    return jax.value_and_grad(loss)(table)


class Matrix(Refined):
    """A preconditioner; shared coefficients follow it in closed form. Derivatives go through those of conjugate
    gradients too: without rounding they are stationary and could be held, but in float32 the derivative that is left
    consists of terms that cancel (128 x 128 grids: 5 % more error)."""

    reader: Any
    conjugate: bool = eqx.field(static=True)
    steps: int = eqx.field(static=True)

    def method(self, free: list[Array], sample: Sample) -> Method:
        reader = trainable(self.reader)[1](free).ready()
        memory = Conjugate() if self.conjugate else balanced_register(sample, reader, self.steps)
        return Method(reader, memory, self.steps)


class Table(Refined):
    """Coefficients Lambda_i^k of every unknown: relative changes of those of a diagonal preconditioner with
    shared numbers."""

    base: Float[Array, "steps steps *shape"]
    size: Float[Array, "steps 1 *shape"]
    reader: Any
    steps: int = eqx.field(static=True)

    def method(self, free: Array, sample: Any) -> Method:
        return Method(self.reader, Bank(CoordinateWise(self.base + self.size * free), tied=False), self.steps)


@eqx.filter_jit
def table_of(sample: Sample, reader: Any, steps: int) -> Table:
    """Where the coefficients of every unknown begin. reader: with a diagonal preconditioner."""
    shape = sample.w.shape[1:]
    table: Any = balanced_register(sample, reader, steps).table(steps)[0]
    matrix = reader.A.diagonal(sample.w[0])
    base = table.reshape(*table.shape, *(1,) * len(shape)) * matrix
    size = jnp.abs(jnp.diagonal(table)).reshape(-1, 1, *(1,) * len(shape)) * matrix
    return Table(base, size, reader_of(Identity(), not reader.from_gradient), steps)


def refine_matrix(
    conjugate: bool, sample: Sample, reader: Any, steps: int, members: np.ndarray, tick: Tick
) -> Reader:
    """The reader with the best preconditioner of its kind. sample: of all problems. members: those of
    every iteration."""
    free, put = trainable(reader)
    found = descend(Matrix(reader, conjugate, steps), free, sample, members, reader.A.rate, tick)
    return settled(put(found))


def refine_table(start: Table, sample: Sample, members: np.ndarray, tick: Tick) -> Method:
    """The best coefficients of every unknown."""
    return _made(start, descend(start, filled(start.base, 0.0), sample, members, RATE_TABLE, tick))


@eqx.filter_jit
def _made(start: Table, free: Array) -> Method:
    return start.method(free, None)


def trainable(tree: Any) -> tuple[list[Array], Callable[[list[Array]], Any]]:
    """The declared parameters of a reader, and the way back."""
    known = leaves(tree)

    def put(arrays: list[Array]) -> Any:
        given = iter(arrays)
        return replaced(tree, [leaf.array if leaf.kind is None else next(given) for leaf in known])

    return [leaf.array for leaf in known if leaf.kind is not None], put


@eqx.filter_jit
def settled(reader: Any) -> Reader:
    return eqx.tree_at(lambda r: r.A, reader, reader.A.settled())
