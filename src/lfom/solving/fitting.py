"""Fitting one structure to quadratics: coefficients in closed form, preconditioners by gradients.

The fitted number is the mean over problems of log |w_k - w*|_A / |w*|_A, the log of the geometric
mean of the relative errors after the last step. Every problem counts alike, whatever its size.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import Array
from jaxtyping import Float

from lfom.core.coefficients import CoordinateWise
from lfom.core.memories import Bank, Conjugate, Memory, Register, scalar_bank
from lfom.core.methods import Method
from lfom.core.parameters import leaves, replaced
from lfom.core.preconditioners import Definite, Identity
from lfom.core.problems import IterateProblem
from lfom.core.readers import Gradient, Jacobi, Reader
from lfom.core.unroll import trace
from lfom.solving.joint import Guard, best_register

Errors = Float[Array, "steps problems"]


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


def reader_of(matrix: Definite, jacobi: bool) -> Reader:
    return Jacobi(matrix) if jacobi else Gradient(matrix)


def squared_errors(sample: Sample, method: Method) -> Errors:
    """Squared energy norms of the errors after every step, relative to the start."""

    def one(problem: IterateProblem, w: Array, energy: Array) -> Array:
        def watch(state: Any, past: Any) -> Array:  # -gradient = A (w* - w)
            return jnp.sum((state.w - w) * state.gradient) / energy

        return trace(method, problem, None, watch, loop=True)[2]

    return jnp.abs(jax.vmap(one, out_axes=1)(sample.problems, sample.w, sample.energies()))


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


def closed_form(conjugate: bool, sample: Sample, reader: Reader, steps: int) -> Memory:
    """The memory that goes with a reader."""
    return Conjugate() if conjugate else balanced_register(sample, reader, steps)


@eqx.filter_jit
def errors(method: Method, sample: Sample) -> Errors:
    """After 0, 1, ... steps: relative errors in the energy norm; 1 at the start."""
    squares = squared_errors(sample, method)
    return jnp.concatenate([jnp.ones((1, squares.shape[1]), squares.dtype), jnp.sqrt(squares)])


@eqx.filter_jit
def table_loss(table: Float[Array, "steps steps"], sample: Sample) -> tuple[Array, Array]:
    """The fitted number for a bank of these numbers on the plain gradient, and its slopes."""

    def loss(table: Array) -> Array:
        method = Method(Gradient(Identity()), scalar_bank(table), len(table))
        return mean_log(sample, squared_errors(sample, method)[-1])

    return jax.value_and_grad(loss)(table)


@eqx.filter_jit
def start_errors(
    learning: Sample, held_out: Sample, reader: Reader, steps: int
) -> tuple[tuple[Register, Errors], tuple[Conjugate, Errors]]:
    """The register that goes with a first preconditioner, and held-out errors of that register and of
    conjugate gradients with it: one compiled program for two structures."""
    both = balanced_register(learning, reader, steps), Conjugate()
    register, conjugate = ((memory, errors(Method(reader, memory, steps), held_out)) for memory in both)
    return register, conjugate  # type: ignore[return-value]


@eqx.filter_jit
def refine(
    conjugate: bool, sample: Sample, reader: Any, steps: int, iterations: int
) -> tuple[Memory, Reader]:
    """Adam on the preconditioner; shared coefficients follow it in closed form."""
    trained, put = trainable(reader)

    def loss(trained: list[Array]) -> Array:
        now = put(trained).ready()
        memory = closed_form(conjugate, sample, now, steps)
        return mean_log(sample, squared_errors(sample, Method(now, memory, steps))[-1])

    best = settled(put(descend(loss, trained, reader.A.rate, iterations)))
    return closed_form(conjugate, sample, best, steps), best


@eqx.filter_jit
def refine_diagonal(sample: Sample, reader: Any, steps: int, iterations: int) -> tuple[Memory, Reader]:
    """Diagonal coefficients Lambda_i^k: from a diagonal preconditioner with shared numbers, relative
    changes of every entry."""
    shape = sample.w.shape[1:]
    table: Any = balanced_register(sample, reader, steps).table(steps)[0]
    matrix = reader.A.diagonal(sample.w[0])
    base = table.reshape(*table.shape, *(1,) * len(shape)) * matrix
    size = jnp.abs(jnp.diagonal(table)).reshape(-1, 1, *(1,) * len(shape)) * matrix
    plain = reader_of(Identity(), not reader.from_gradient)

    def bank(change: Array) -> Bank:
        return Bank(CoordinateWise(base + size * change), tied=False)

    def loss(change: Array) -> Array:
        return mean_log(sample, squared_errors(sample, Method(plain, bank(change), steps))[-1])

    return bank(descend(loss, jnp.zeros_like(base), 0.01, iterations)), plain


def trainable(tree: Any) -> tuple[list[Array], Callable[[list[Array]], Any]]:
    """The declared parameters of a reader, and the way back."""
    known = leaves(tree)

    def put(arrays: list[Array]) -> Any:
        given = iter(arrays)
        return replaced(tree, [leaf.array if leaf.kind is None else next(given) for leaf in known])

    return [leaf.array for leaf in known if leaf.kind is not None], put


def settled(reader: Any) -> Reader:
    return eqx.tree_at(lambda r: r.A, reader, reader.A.settled())


def descend(loss: Callable[[Any], Array], trained: Any, rate: float, iterations: int) -> Any:
    """Adam with a falling rate; the best point met, by the loss it was fitted to."""
    optimiser = optax.adam(optax.cosine_decay_schedule(rate, max(iterations, 1), 0.02))

    def body(carry: Any, _: None) -> Any:
        now, state, best, lowest = carry
        value, gradient = jax.value_and_grad(loss)(now)
        better = value < lowest
        best = jax.tree.map(lambda a, b: jnp.where(better, a, b), now, best)
        gradient = jax.tree.map(lambda g: jnp.where(jnp.isfinite(g), g, 0), gradient)
        updates, state = optimiser.update(gradient, state, now)
        return (optax.apply_updates(now, updates), state, best, jnp.minimum(value, lowest)), None

    lowest = jnp.asarray(jnp.inf, jax.tree.leaves(trained)[0].dtype)
    carry: Any = (trained, optimiser.init(trained), trained, lowest)
    (_, _, best, _), _ = jax.lax.scan(body, carry, None, length=iterations)
    return best
