"""Fitting one structure to convex losses: the quadratics' answer first, then Adam through the steps.

The fitted number is the mean over problems of log (f(w_k) - f*) / (f(0) - f*).
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from lfom.solving.fitting import Family, _descend, _settled, _trained, balanced_register
from lfom.solving.losses import hessians, zeros
from lfom.solving.preconditioners import Diagonal, Full, Identity, Scaled, Shared
from lfom.solving.problems import ConvexLosses
from lfom.solving.steps import Bank, as_bank, learned_steps
from lfom.solving.structures import Structure

DAMPED = (1.0, 0.7, 0.5, 0.3, 0.15)  # the quadratic model's steps may be too long: the best of these


class LossFamily(eqx.Module):
    """Problems to learn from. w, best: their minimisers and losses. weights: 0 leaves one out."""

    problems: ConvexLosses
    w: Array
    best: Array
    weights: Array

    @eqx.filter_jit
    def model(self) -> Family:
        """The quadratics with the losses' curvature half way to the solution, and their gradient at 0."""
        b = -self.problems.gradients(zeros(self.problems))
        return Family(hessians(self.problems, self.w / 2, b), self.w, self.weights)


def excess(family: LossFamily, bank: Bank, shared: Shared) -> Array:
    """(steps, problems): the excess loss after every step, relative to the start's."""
    problems = family.problems
    start = problems.values(zeros(problems)) - family.best
    start = jnp.where(start > 0, start, 1)

    def watch(w: Array, r: Array) -> Array:
        return (problems.values(w) - family.best) / start

    r = -problems.gradients(zeros(problems))
    return learned_steps(bank, lambda w: -problems.gradients(w), Scaled(shared), r, watch)[3]


def mean_log(family: LossFamily, relative: Array) -> Array:
    floor = 10 * jnp.finfo(relative.dtype).eps
    capped = jnp.where(relative < 1e6, jnp.maximum(relative, 0), 1e6)  # NaN and infinity too
    return jnp.sum(family.weights * jnp.log(capped + floor)) / jnp.sum(family.weights)


@eqx.filter_jit
def begin(
    structure: Structure, learning: LossFamily, held_out: LossFamily, shared: Shared, steps: int
) -> tuple[Bank, Array]:
    """The coefficients of the quadratic model, damped as the losses themselves like it best; and their
    held-out errors."""
    table = as_bank(balanced_register(learning.model(), Scaled(shared), steps)).gamma
    factors = jnp.asarray(DAMPED, table.dtype)
    tried = jax.lax.map(lambda f: mean_log(learning, excess(learning, Bank(f * table), shared)[-1]), factors)
    table = factors[jnp.argmin(tried)] * table
    if structure.family == "diagonal":
        shape = learning.w.shape[1:]
        table = jnp.broadcast_to(table.reshape(*table.shape, *(1,) * len(shape)), (*table.shape, *shape))
    return Bank(table), errors(Bank(table), shared, held_out)


def errors(bank: Bank, shared: Shared, family: LossFamily) -> Array:
    """(steps + 1, problems): relative excess losses; 1 at the start."""
    relative = excess(family, bank, shared)
    return jnp.concatenate([jnp.ones((1, relative.shape[1]), relative.dtype), relative])


@eqx.filter_jit
def refine(
    structure: Structure,
    family: LossFamily,
    held_out: LossFamily,
    bank: Bank,
    shared: Shared,
    iterations: int,
) -> tuple[Bank, Shared, Array]:
    """Adam on the coefficients and the preconditioner together, relative changes of both; and the
    held-out errors."""
    if structure.family == "diagonal" and isinstance(shared, Diagonal):  # its scale goes into the table
        bank, shared = Bank(bank.gamma * jnp.exp(shared.logs)), Identity()
    trained, fixed = eqx.partition(shared, _trained(shared))
    lead = bank.gamma.shape[:2]
    own = jnp.abs(jnp.moveaxis(jnp.diagonal(bank.gamma, axis1=0, axis2=1), -1, 0))
    size = own.reshape(lead[0], 1, *bank.gamma.shape[2:])

    def parts(vector: Any) -> tuple[Bank, Shared]:
        change, logs = vector
        return Bank(bank.gamma + size * change), eqx.combine(logs, fixed)

    def loss(vector: Any) -> Array:
        table, now = parts(vector)
        return mean_log(family, excess(family, table, now)[-1])

    rate = 0.01 if isinstance(shared, Full) or structure.family == "diagonal" else 0.02
    start = (jnp.zeros_like(bank.gamma), trained)
    bank, shared = parts(_descend(loss, start, rate, iterations))
    shared = _settled(shared)
    return bank, shared, errors(bank, shared, held_out)
