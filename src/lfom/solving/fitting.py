"""Fitting one structure to quadratics: coefficients in closed form, preconditioners by gradients.

The fitted number is the mean over problems of log |w_k - w*|_A / |w*|_A, the log of the geometric
mean of the relative errors after the last step. Every problem counts alike, whatever its size.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import Array

from lfom.solving.preconditioners import Diagonal, Full, Identity, Scaled, Shared
from lfom.solving.quadratics import Quadratics, dots
from lfom.solving.steps import (
    Bank,
    Coefficients,
    Conjugate,
    Guard,
    Register,
    as_bank,
    best_register,
    conjugate_steps,
    learned_steps,
)
from lfom.solving.structures import Structure


class Family(eqx.Module):
    """Problems to learn from. w: their solutions. weights: 0 leaves a problem out."""

    quadratics: Quadratics
    w: Array
    weights: Array

    def energies(self) -> Array:
        """|w*|_A^2, the squared error of the start."""
        tiny = jnp.finfo(self.w.dtype).tiny
        return jnp.maximum(dots(self.quadratics.b, self.w), tiny)

    def scale(self, jacobi: bool) -> Array:
        diagonal = self.quadratics.diagonal() if jacobi else None
        return jnp.ones_like(self.w) if diagonal is None else 1 / jnp.sqrt(diagonal)


def squared_errors(family: Family, coefficients: Coefficients, precondition: Scaled, steps: int) -> Array:
    """(steps, problems): squared energy norms of the errors, relative to the start."""
    energies, quadratics = family.energies(), family.quadratics

    def watch(w: Array, r: Array) -> Array:  # r = A (w* - w)
        return dots(family.w - w, r) / energies

    if isinstance(coefficients, Conjugate):
        seen = conjugate_steps(quadratics, precondition, steps, watch)[1]
    else:
        residual = lambda w: quadratics.b - quadratics.times(w)  # noqa: E731
        seen = learned_steps(coefficients, residual, precondition, quadratics.b, watch)[3]
    return jnp.abs(seen)


def mean_log(family: Family, squares: Array) -> Array:
    floor = (10 * jnp.finfo(squares.dtype).eps) ** 2
    return jnp.sum(family.weights * 0.5 * jnp.log(squares + floor)) / jnp.sum(family.weights)


def balanced_register(
    family: Family, precondition: Scaled, steps: int, guard: Guard | None = None
) -> Register:
    """Shared scalar coefficients for the geometric mean of the errors: least squares, reweighted by
    the errors that it leaves, so that the hardest problems do not decide alone."""
    weights = family.weights / (family.energies() * jnp.sum(family.weights))
    register = best_register(family.quadratics, precondition, weights, steps)
    squares = jax.lax.stop_gradient(squared_errors(family, register, precondition, steps)[-1])
    typical = jnp.exp(2 * mean_log(family, squares))
    bounded = weights * typical / (squares + typical)
    return best_register(family.quadratics, precondition, bounded, steps, guard)


@eqx.filter_jit
def fit_register(family: Family, precondition: Scaled, steps: int, guard: Guard | None = None) -> Register:
    return balanced_register(family, precondition, steps, guard)


def coefficients_for(structure: Structure, family: Family, precondition: Scaled, steps: int) -> Any:
    if structure.family == "conjugate":
        return Conjugate()
    return balanced_register(family, precondition, steps)


@eqx.filter_jit
def errors(coefficients: Coefficients, precondition: Scaled, family: Family, steps: int) -> Array:
    """(steps + 1, problems): relative errors in the energy norm; 1 at the start."""
    squares = squared_errors(family, coefficients, precondition, steps)
    return jnp.concatenate([jnp.ones((1, squares.shape[1]), squares.dtype), jnp.sqrt(squares)])


@eqx.filter_jit
def start_errors(
    learning: Family, held_out: Family, shared: Shared, scales: tuple[Array, Array], steps: int
) -> tuple[Register, Array, Array]:
    """The register that goes with a first preconditioner, and held-out errors of that register and of
    conjugate gradients with it: one compiled program for two structures."""
    register = balanced_register(learning, Scaled(shared, scales[0]), steps)
    outside = Scaled(shared, scales[1])
    return register, errors(register, outside, held_out, steps), errors(Conjugate(), outside, held_out, steps)


@eqx.filter_jit
def refine(
    structure: Structure, family: Family, shared: Shared, scale: Array, steps: int, iterations: int
) -> tuple[Any, Shared]:
    """Adam on the preconditioner; shared coefficients follow it in closed form."""
    trained, fixed = eqx.partition(shared, _trained(shared))

    def loss(trained: Any) -> Array:
        now = eqx.combine(trained, fixed)
        precondition = Scaled(now, scale)
        coefficients = coefficients_for(structure, family, precondition, steps)
        return mean_log(family, squared_errors(family, coefficients, precondition, steps)[-1])

    rate = 0.01 if isinstance(shared, Full) else 0.05
    best = _descend(loss, trained, rate, iterations)
    shared = _settled(eqx.combine(best, fixed))
    return coefficients_for(structure, family, Scaled(shared, scale), steps), shared


@eqx.filter_jit
def refine_diagonal(family: Family, matrix: Diagonal, scale: Array, steps: int, iterations: int) -> Bank:
    """Diagonal coefficients Lambda_i^k: from a diagonal preconditioner with shared numbers, relative
    changes of every entry."""
    table = as_bank(balanced_register(family, Scaled(matrix, scale), steps)).gamma
    shape = family.w.shape[1:]
    own = jnp.abs(jnp.diagonal(table))
    base = table.reshape(*table.shape, *(1,) * len(shape)) * jnp.exp(matrix.logs)
    size = own.reshape(-1, 1, *(1,) * len(shape)) * jnp.exp(matrix.logs)

    def bank(change: Array) -> Bank:
        return Bank(base + size * change)

    def loss(change: Array) -> Array:
        squares = squared_errors(family, bank(change), Scaled(Identity(), scale), steps)
        return mean_log(family, squares[-1])

    return bank(_descend(loss, jnp.zeros_like(base), 0.01, iterations))


def _descend(loss: Any, trained: Any, rate: float, iterations: int) -> Any:
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

    carry: Any = (trained, optimiser.init(trained), trained, jnp.asarray(jnp.inf, _dtype(trained)))
    (_, _, best, _), _ = jax.lax.scan(body, carry, None, length=iterations)
    return best


def _dtype(tree: Any) -> Any:
    return jax.tree.leaves(tree)[0].dtype


def _trained(shared: Shared) -> Any:
    if isinstance(shared, Full):  # the base stays; the relative change is trained
        return Full(False, True)  # type: ignore[arg-type]
    return jax.tree.map(eqx.is_inexact_array, shared)


def _settled(shared: Shared) -> Shared:
    if isinstance(shared, Full):
        factor = shared.base + shared.base @ shared.change
        return Full(factor, jnp.zeros_like(factor))
    return shared
