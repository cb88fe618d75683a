"""The best that can be done with labels from a Gaussian process: the posterior mean."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from lfom.core import checks
from lfom.core.arrays import identity
from lfom.core.kernels import Kernel, as_kernel
from lfom.core.methods import OneStep
from lfom.core.problems import Quadratic


class PosteriorMean(OneStep):
    """The Bayes predictor for labels of a Gaussian process with this kernel, f = sum_i alpha_i k(x_i, .)
    with (K + noise^2 I) alpha = y. Without noise it goes through all labels.

    >>> import jax
    >>> from lfom import ExponentialKernel, GaussianProcess, PosteriorMean, run
    >>> prompts = GaussianProcess(5, 14, ExponentialKernel()).prompts(jax.random.key(0), 3)
    >>> run(PosteriorMean(ExponentialKernel()), prompts).predictions.shape
    (2, 3)
    """

    noise: Float[Array, ""]
    weights: Kernel = eqx.field(static=True)

    def __init__(self, kernel: Kernel | str, noise: Any = 0.0):
        self.weights, self.noise = as_kernel(kernel), checks.non_negative("noise", noise)

    views = ("kernel",)

    @property
    def kernel(self) -> Kernel:
        return self.weights

    def answer(self, quadratic: Quadratic) -> Array:
        n = quadratic.unknowns()  # it holds K / n and y / n
        return semidefinite_solve(
            quadratic.gram + self.noise**2 / n * identity(n, quadratic.moment), quadratic.moment
        )


def semidefinite_solve(
    K: Float[Array, "n n *prompts"], y: Float[Array, "n *prompts"]
) -> Float[Array, "n *prompts"]:
    """alpha with K alpha = y for positive semidefinite K: Cholesky's factor C with the largest pivot first, until it is
    zero to rounding; alpha is zero where no pivot stands."""
    n = K.shape[0]
    diagonal = jnp.moveaxis(jnp.diagonal(K, axis1=0, axis2=1), -1, 0)
    least = 10 * n * jnp.finfo(K.dtype).eps * jnp.max(diagonal, axis=0)
    at = jnp.arange(n).reshape(n, *(1,) * (y.ndim - 1))

    def column(carry: tuple[Array, Array], t: Array) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        C, left = carry
        j = jnp.argmax(left, axis=0)
        row = jnp.take_along_axis(C, j[None, None], axis=0)
        c = jnp.take_along_axis(K, j[None, None], axis=1)[:, 0] - jnp.sum(C * row, axis=1)
        pivot = jnp.max(left, axis=0)
        good = pivot > least
        inverse = jnp.where(good, 1 / jnp.sqrt(jnp.where(good, pivot, 1)), 0)
        c = c * inverse
        left = jnp.where(at == j, -jnp.inf, left - c**2)
        return (jax.lax.dynamic_update_index_in_dim(C, c, t, 1), left), (j, inverse)

    (C, _), (order, inverses) = jax.lax.scan(column, (jnp.zeros_like(K), diagonal), jnp.arange(n))
    rows = jnp.take_along_axis(C, order[:, None], axis=0)  # triangular

    def substitute(rows: Array, right: Array, reverse: bool) -> Array:
        def one(found: Array, now: Any) -> tuple[Array, None]:
            t, row, target, inverse = now
            return found.at[t].set((target - jnp.sum(row * found, axis=0)) * inverse), None

        each = (jnp.arange(n), rows, right, inverses)
        return jax.lax.scan(one, jnp.zeros_like(right), each, reverse=reverse)[0]

    ordered = substitute(rows, jnp.take_along_axis(y, order, axis=0), False)
    ordered = substitute(jnp.swapaxes(rows, 0, 1), ordered, True)
    return jnp.take_along_axis(ordered, jnp.argsort(order, axis=0), axis=0)
