"""Fitting one structure to convex losses: the quadratics' answer first, then Adam through the steps.

The fitted number is the mean over problems of log (f(w_k) - f*) / (f(0) - f*).
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from lfom.core.coefficients import CoordinateWise
from lfom.core.memories import Bank, scalar_bank
from lfom.core.methods import Method
from lfom.core.preconditioners import Identity
from lfom.core.problems import Objective
from lfom.core.readers import Gradient, Reader
from lfom.core.unroll import trace
from lfom.solving.fitting import Errors, Sample, balanced_register, descend, settled, trainable
from lfom.solving.losses import hessians

DAMPED = (1.0, 0.7, 0.5, 0.3, 0.15)  # the quadratic model's steps may be too long: the best of these
RATE, RATE_DIAGONAL = 0.02, 0.01  # of Adam


class LossSample(eqx.Module):
    """Problems to learn from. w, best: their minimisers and losses. weights: 0 leaves one out."""

    problems: Objective
    w: Float[Array, "problems *shape"]
    best: Float[Array, " problems"]
    weights: Float[Array, " problems"]

    @eqx.filter_jit
    def model(self) -> Sample:
        """The quadratics with the losses' curvature half way to the solution, and their gradient at 0."""
        b = -jax.vmap(lambda one: one.initial()[1])(self.problems)
        return Sample(hessians(self.problems, self.w / 2, b), self.w, self.weights)


def excess(sample: LossSample, method: Method) -> Errors:
    """The excess loss after every step, relative to the start's."""

    def one(problem: Objective, best: Array) -> Array:
        start = problem.value(problem.w_0) - best
        start = jnp.where(start > 0, start, 1)

        def watch(state: Any, past: Any) -> Array:
            return (problem.value(state.w) - best) / start

        return trace(method, problem, None, watch, loop=True)[2]

    return jax.vmap(one, out_axes=1)(sample.problems, sample.best)


def mean_log(sample: LossSample, relative: Array) -> Array:
    floor = 10 * jnp.finfo(relative.dtype).eps
    capped = jnp.where(relative < 1e6, jnp.maximum(relative, 0), 1e6)  # NaN and infinity too
    return jnp.sum(sample.weights * jnp.log(capped + floor)) / jnp.sum(sample.weights)


@eqx.filter_jit
def begin(
    spread_out: bool, learning: LossSample, held_out: LossSample, reader: Reader, steps: int
) -> tuple[Bank, Errors]:
    """The coefficients of the quadratic model, damped as the losses themselves like it best; and their
    held-out errors. spread_out: whether every unknown gets coefficients of its own."""
    table: Any = balanced_register(learning.model(), reader, steps).table(steps)[0]
    factors = jnp.asarray(DAMPED, table.dtype)

    def tried(factor: Array) -> Array:
        method = Method(reader, scalar_bank(factor * table), steps)
        return mean_log(learning, excess(learning, method)[-1])

    table = factors[jnp.argmin(jax.lax.map(tried, factors))] * table
    bank = scalar_bank(table)
    if spread_out:
        shape = learning.w.shape[1:]
        wide = table.reshape(*table.shape, *(1,) * len(shape))
        bank = Bank(CoordinateWise(jnp.broadcast_to(wide, (*table.shape, *shape))), tied=False)
    return bank, errors(Method(reader, bank, steps), held_out)


def errors(method: Method, sample: LossSample) -> Errors:
    """After 0, 1, ... steps: relative excess losses; 1 at the start."""
    relative = excess(sample, method)
    return jnp.concatenate([jnp.ones((1, relative.shape[1]), relative.dtype), relative])


measured = eqx.filter_jit(errors)


@eqx.filter_jit
def table_loss(table: Float[Array, "steps steps"], sample: LossSample) -> tuple[Array, Array]:
    """The fitted number for a bank of these numbers on the plain gradient, and its slopes."""

    def loss(table: Array) -> Array:
        method = Method(Gradient(Identity()), scalar_bank(table), len(table))
        return mean_log(sample, excess(sample, method)[-1])

    return jax.value_and_grad(loss)(table)


@eqx.filter_jit
def refine(
    spread_out: bool, sample: LossSample, held_out: LossSample, fitted: Method, iterations: int
) -> tuple[Bank, Reader, Errors]:
    """Adam on the coefficients and the preconditioner together, relative changes of both; and the
    held-out errors."""
    reader: Any = fitted.reader
    gamma: Any = fitted.memory.gamma  # type: ignore[attr-defined]
    steps, rate = fitted.layers, min(reader.A.rate, RATE)
    if spread_out:  # the scale of the matrix goes into the table
        gamma = CoordinateWise(gamma.value * reader.A.diagonal(sample.w[0]))
        reader, rate = Gradient(Identity()), RATE_DIAGONAL
    trained, put = trainable(reader)
    own = jnp.abs(jnp.moveaxis(jnp.diagonal(gamma.value, axis1=0, axis2=1), -1, 0))
    size = own.reshape(steps, 1, *gamma.value.shape[2:])

    def method(vector: Any) -> Method:
        change, matrix = vector
        changed = eqx.tree_at(lambda g: g.value, gamma, gamma.value + size * change)
        return Method(put(matrix), Bank(changed, tied=False), steps)

    def loss(vector: Any) -> Array:
        return mean_log(sample, excess(sample, method(vector))[-1])

    found = method(descend(loss, (jnp.zeros_like(gamma.value), trained), rate, iterations))
    best = settled(found.reader)
    return found.memory, best, errors(Method(best, found.memory, steps), held_out)  # type: ignore[return-value]
