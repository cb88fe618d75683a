"""Distributions of the experiments on shifts, in one class each: shifts of every kind are then runs of one
compiled program."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, PRNGKeyArray

from lfom.core.arrays import as_array
from lfom.core.problems import Quadratic, add_examples, no_sums
from lfom.prompts.distributions import Distribution
from lfom.prompts.prompt import Prompt
from lfom.prompts.shifts import RandomScale

MOST_DEGREES = 10  # of Student's t distribution here


class Drawn(Distribution):
    """x = mean + s root^T z and w* = weight_mean + weight_root z, y = x.w* + noise * N(0, 1).

    length: how many of the `most` examples the context has. degrees: of Student's t distribution, an
    even number up to 10, s^2 = (degrees - 2) / chi^2 for each example; or infinity, s = 1.
    """

    root: Float[Array, "d d"]
    weight_root: Float[Array, "d d"]
    mean: Float[Array, " d"]
    weight_mean: Float[Array, " d"]
    noise: Float[Array, ""]
    length: Float[Array, ""]
    degrees: Float[Array, ""]
    most: int = eqx.field(static=True)
    tailed: bool = eqx.field(static=True)  # whether any run has heavy tails: drawing them costs time

    @property
    def dimension(self) -> int:
        return self.root.shape[-1]

    def prompt(self, key: PRNGKeyArray) -> Prompt:
        """All `most` examples, of which the first `length` are the context."""
        return jax.tree.map(lambda a: a[0], self.prompts(key, 1))

    def prompts(self, key: PRNGKeyArray, count: int) -> Prompt:
        X, y, w = (jnp.moveaxis(a, -1, 0) for a in self._draw(key, count, self.most + 1))
        return Prompt(X[:, :-1], y[:, :-1], X[:, -1], jnp.sum(X[:, -1] * w, axis=1), w)

    def prompts_last(self, key: PRNGKeyArray, count: int) -> tuple[Array, Array, Array]:
        """Without the transposed arrays of `prompts`, which take three quarters of its time."""
        X, y, w = self._draw(key, count, self.most + 1)
        return X, y[:-1], jnp.sum(X[-1] * w, axis=0)

    def quadratics(self, key: PRNGKeyArray, count: int) -> Quadratic:
        X, y, w = self._draw(key, count, self.most)
        seen = (jnp.arange(self.most) < self.length)[:, None]
        X, y = X * seen[:, None], y * seen
        gram, moment = (a / self.length for a in add_examples(no_sums(X), X, y, 0, self.most))
        probe = jnp.concatenate([self.root, self.mean[None]])  # its rows' squares add up to E[x x^T]
        return _once(Quadratic(gram, moment, probe, _product(probe, w)))

    def _draw(self, key: PRNGKeyArray, count: int, tokens: int) -> tuple[Array, Array, Array]:
        """Examples (tokens, d, count) and their labels, and w* (d, count)."""
        d, dtype = self.dimension, self.root.dtype
        normal_key, tail_key = jax.random.split(key)
        normals = _once(jax.random.normal(normal_key, (tokens * (d + 1) + d, count), dtype))
        z = normals[: tokens * d].reshape(tokens, d, count)
        w = self.weight_mean[:, None] + _product(self.weight_root.T, normals[-d:])
        x = sum(self.root[i][None, :, None] * z[:, i, None] for i in range(d))
        if self.tailed:

            def scales() -> Array:
                u = jax.random.uniform(tail_key, (MOST_DEGREES // 2, tokens, count), dtype)
                used = (jnp.arange(MOST_DEGREES // 2) < self.degrees / 2)[:, None, None]
                chi_square = -2 * jnp.sum(jnp.where(used, jnp.log1p(-u), 0), axis=0)
                return jnp.sqrt((self.degrees - 2) / chi_square)

            ones = jnp.ones((tokens, count), dtype)
            x = x * jax.lax.cond(jnp.isfinite(self.degrees), scales, lambda: ones)[:, None]
        X = _once(self.mean[None, :, None] + x)
        y = jnp.sum(X * w[None], axis=1) + self.noise * normals[tokens * d : -d]
        return X, y, w


# Keeps the compiler from drawing the same numbers again wherever they are used.
_once = jax.lax.optimization_barrier


def _product(matrix: Array, vectors: Array) -> Array:
    return jnp.sum(matrix[:, :, None] * vectors[None], axis=1)


def drawn(data: Any, *, length: float | None = None, degrees: float = jnp.inf, most: int) -> Drawn:
    """A LinearRegression with runs on its leading axis, as `Drawn`."""

    def one(base: Any) -> Drawn:
        nothing = jnp.zeros(base.dimension)
        weight_root = jnp.sqrt(base.weight_variance) * base.inverse_root.T
        n, nu = as_array(float(base.context if length is None else length)), as_array(degrees)
        return Drawn(base.root, weight_root, nothing, nothing, base.noise, n, nu, most, True)

    return jax.vmap(one)(data)


class Rescaled(Distribution):
    """`base` with every prompt's covariates multiplied by one number: 1 / sqrt(trace(G) / d), which is how
    `Normalised` reads prompts, or a random one as in `RandomScale`. Labels stay as they are."""

    random: RandomScale
    by_itself: Array  # 1: the first of these, 0: the second

    @property
    def dimension(self) -> int:
        return self.random.dimension

    def prompt(self, key: PRNGKeyArray) -> Prompt:
        plain, scaled = self.random.base.prompt(key), self.random.prompt(key)
        c = 1 / jnp.sqrt(jnp.mean(plain.X**2))
        chosen = Prompt(c * plain.X, plain.y, c * plain.query, plain.target, scaled.weights)
        return jax.tree.map(lambda a, b: jnp.where(self.by_itself > 0, a, b), chosen, scaled)

    def quadratics(self, key: PRNGKeyArray, count: int) -> Quadratic:
        q = self.random.quadratics(key, count)
        own = 1 / jnp.sqrt(jnp.mean(jnp.einsum("ii...->i...", q.gram), axis=0))
        c = jnp.where(self.by_itself > 0, own, 1)  # the random scale drops out
        return _once(Quadratic(c**2 * q.gram, c * q.moment, c * q.probe, q.target))
