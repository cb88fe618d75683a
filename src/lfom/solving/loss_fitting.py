"""Fitting one structure to convex losses: the quadratics' answer first, then Adam through the steps.

The fitted number is the mean over problems of log (f(w_k) - f*) / (f(0) - f*).
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from lfom.core.arrays import filled
from lfom.core.coefficients import CoordinateWise
from lfom.core.memories import Bank, scalar_bank
from lfom.core.methods import Method
from lfom.core.preconditioners import Identity
from lfom.core.problems import Objective
from lfom.core.readers import Gradient, Reader
from lfom.core.unroll import trace
from lfom.solving.descent import Refined, Tick, descend
from lfom.solving.fitting import RATE_TABLE, Errors, Sample, balanced_register, settled, trainable
from lfom.solving.losses import hessians

DAMPED = (1.0, 0.7, 0.5, 0.3, 0.15)  # the quadratic model's steps may be too long: the best of these
RATE = 0.02  # of Adam


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

    def loss(self, method: Method) -> Array:
        """The fitted number."""
        return mean_log(self, excess(self, method)[-1])


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
def begin(spread_out: bool, learning: LossSample, reader: Reader, steps: int) -> Bank:
    """The coefficients of the quadratic model, damped as the losses themselves like it best. spread_out: whether
    every unknown gets coefficients of its own."""
    table: Any = balanced_register(learning.model(), reader, steps).table(steps)[0]
    factors = jnp.asarray(DAMPED, table.dtype)

    def tried(factor: Array) -> Array:
        method = Method(reader, scalar_bank(factor * table), steps)
        return learning.loss(method)

    table = factors[jnp.argmin(jax.lax.map(tried, factors))] * table
    bank = scalar_bank(table)
    if spread_out:
        shape = learning.w.shape[1:]
        wide = table.reshape(*table.shape, *(1,) * len(shape))
        bank = Bank(CoordinateWise(jnp.broadcast_to(wide, (*table.shape, *shape))), tied=False)
    return bank


@eqx.filter_jit
def errors(method: Method, sample: LossSample) -> Errors:
    """After 0, 1, ... steps: relative excess losses; 1 at the start."""
    relative = excess(sample, method)
    return jnp.concatenate([jnp.ones((1, relative.shape[1]), relative.dtype), relative])


class Changed(Refined):
    """Coefficients and a preconditioner together, relative changes of both."""

    reader: Any
    gamma: Any
    size: Array
    steps: int = eqx.field(static=True)

    def method(self, free: Any, sample: Any) -> Method:
        change, matrix = free
        changed = eqx.tree_at(lambda g: g.value, self.gamma, self.gamma.value + self.size * change)
        return Method(trainable(self.reader)[1](matrix), Bank(changed, tied=False), self.steps)


@eqx.filter_jit
def _changed(spread_out: bool, sample: LossSample, fitted: Method) -> Changed:
    reader: Any = fitted.reader
    gamma: Any = fitted.memory.gamma  # type: ignore[attr-defined]
    if spread_out:  # the scale of the matrix goes into the table
        gamma = CoordinateWise(gamma.value * reader.A.diagonal(sample.w[0]))
        reader = Gradient(Identity())
    own = jnp.abs(jnp.moveaxis(jnp.diagonal(gamma.value, axis1=0, axis2=1), -1, 0))
    size = own.reshape(fitted.layers, 1, *gamma.value.shape[2:])
    return Changed(reader, gamma, size, fitted.layers)


def refine(spread_out: bool, sample: LossSample, fitted: Method, members: np.ndarray, tick: Tick) -> Method:
    """The best coefficients and preconditioner. sample: of all problems. members: those of every iteration."""
    start = _changed(spread_out, sample, fitted)
    rate = RATE_TABLE if spread_out else min(start.reader.A.rate, RATE)
    free = filled(start.gamma.value, 0.0), trainable(start.reader)[0]
    return _made(start, descend(start, free, sample, members, rate, tick))


@eqx.filter_jit
def _made(start: Changed, free: Any) -> Method:
    found: Any = start.method(free, None)
    return Method(settled(found.reader), found.memory, found.layers)
