"""A batch of quadratics f(w) = w.Aw/2 - b.w, and the little linear algebra that methods need of it.

The problems' axis leads: a vector is (problems, *shape) and a number (problems,). No operation here
mixes problems, so a problem with NaN in it leaves the others as they are, to the last bit.
"""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

HIGHEST = jax.lax.Precision.HIGHEST  # GPUs would otherwise round the factors of float32 products


def dots(left: Array, right: Array) -> Array:
    """One inner product per problem."""
    return jnp.sum(left * right, axis=tuple(range(1, left.ndim)))


def norms(vector: Array) -> Array:
    """One Euclidean norm per problem; scaled, so that neither overflow nor underflow spoils it."""
    axes = tuple(range(1, vector.ndim))
    largest = jnp.max(jnp.abs(vector), axis=axes, keepdims=True)
    scale = jnp.where((largest > 0) & jnp.isfinite(largest), largest, 1)
    return jnp.squeeze(scale, axes) * jnp.sqrt(jnp.sum((vector / scale) ** 2, axis=axes))


def spread(number: Array, like: Array) -> Array:
    """A number per problem, shaped so that it multiplies vectors."""
    return number.reshape(number.shape + (1,) * (like.ndim - number.ndim))


class Quadratics(eqx.Module):
    """What methods ask of a batch of quadratics."""

    b: eqx.AbstractVar[Array]

    @abc.abstractmethod
    def times(self, vector: Array) -> Array:
        """A v of every problem."""

    @abc.abstractmethod
    def diagonal(self) -> Array | None:
        """The diagonal of A, (problems, *shape), where it is known cheaply."""

    @abc.abstractmethod
    def dominating(self, x: Array) -> Array | None:
        """c (problems, *shape) with A <= diag(c), for positive x (problems, *shape).

        c = |A| x / x does it: diag(c) - A is diagonally dominant in the coordinates w / x, with a
        diagonal that is not negative, so it is positive semidefinite.
        """

    @abc.abstractmethod
    def finite(self) -> Array:
        """Which problems hold finite numbers only, (problems,)."""


class Matrices(Quadratics):
    """A given as matrices."""

    A: Array
    b: Array

    def times(self, vector: Array) -> Array:
        return jnp.einsum("pij,pj->pi", self.A, vector, precision=HIGHEST)

    def diagonal(self) -> Array:
        return jnp.diagonal(self.A, axis1=1, axis2=2)

    def dominating(self, x: Array) -> Array:
        return jnp.einsum("pij,pj->pi", jnp.abs(self.A), x, precision=HIGHEST) / x

    def finite(self) -> Array:
        return jnp.isfinite(self.A).all(axis=(1, 2)) & jnp.isfinite(self.b).all(axis=1)


class Operators(Quadratics):
    """A given as a function: operator(data of one problem, v) = A v."""

    operator: Callable[[Any, Array], Array] = eqx.field(static=True)
    data: Any
    b: Array
    known_diagonal: Array | None = None

    def times(self, vector: Array) -> Array:
        return jax.vmap(self.operator)(self.data, vector)

    def diagonal(self) -> Array | None:
        return self.known_diagonal

    def dominating(self, x: Array) -> None:
        return None

    def finite(self) -> Array:
        leaves = [self.b, *jax.tree.leaves(eqx.filter(self.data, eqx.is_inexact_array))]
        return jnp.stack([jnp.isfinite(leaf.reshape(len(leaf), -1)).all(axis=1) for leaf in leaves]).all(0)


@eqx.filter_jit
def matrices(quadratics: Quadratics) -> Array:
    """Every A as a matrix over the flattened unknowns: for learning and for tests, where d is small."""
    if isinstance(quadratics, Matrices):
        return quadratics.A
    shape = quadratics.b.shape[1:]
    size = quadratics.b[0].size
    units = jnp.eye(size, dtype=quadratics.b.dtype).reshape(size, *shape)

    def column(unit: Array) -> Array:
        return quadratics.times(jnp.broadcast_to(unit, quadratics.b.shape))

    columns = jax.lax.map(column, units)  # (size, problems, *shape)
    return jnp.moveaxis(columns.reshape(size, -1, size), 0, -1)
