"""Prompts whose labels are values of a random function: a Gaussian process with a kernel of the covariates."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, PRNGKeyArray

from lfom.core import checks
from lfom.core.arrays import matvec, semidefinite_root
from lfom.core.kernels import Kernel, as_kernel, check_semidefinite
from lfom.core.problems import KernelMatrix, Problem
from lfom.prompts.distributions import Distribution, asked
from lfom.prompts.prompt import Prompt


class GaussianProcess(Distribution):
    """Covariates uniform on the unit sphere, labels f(x) + noise * N(0, 1) with f a Gaussian process of mean 0 and
    covariance k(x, x'); the target is f(query) without noise.

    The setting of Cheng, Chen and Sra, "Transformers implement functional gradient descent": d = 5, context = 14.

    >>> import jax
    >>> from lfom import GaussianProcess
    >>> from lfom.core.kernels import ExponentialKernel
    >>> GaussianProcess(5, 14, ExponentialKernel()).prompts(jax.random.key(0), 3).y.shape
    (3, 14)
    """

    noise: Float[Array, ""]
    kernel: Kernel = eqx.field(static=True)
    size: int = eqx.field(static=True)
    context: int = eqx.field(static=True)

    def __init__(self, d: int, context: int, kernel: Kernel | str, *, noise: Any = 0.0):
        self.size, self.context = checks.count("d", d), checks.count("context", context)
        self.kernel = kernel = as_kernel(kernel)
        self.noise = checks.non_negative("noise", noise)
        if not kernel.semidefinite:
            X = _covariates(self, jax.random.key(0), 100)
            check_semidefinite(kernel, kernel.between(X, X))

    @property
    def dimension(self) -> int:
        return self.size

    def prompt(self, key: PRNGKeyArray) -> Prompt:
        return jax.tree.map(lambda a: a[0], self.prompts(key, 1))

    def prompts(self, key: PRNGKeyArray, count: int) -> Prompt:
        return _draw(self, key, asked(key, count, self.size * self.context))[0]

    def problems(self, key: PRNGKeyArray, count: int, view: str, kernel: Kernel | None = None) -> Problem:
        """Read with the kernel of the process, its matrix is computed once."""
        if view != "kernel" or kernel != self.kernel:
            return super().problems(key, count, view, kernel)
        prompt, K = _draw(self, key, asked(key, count, self.context**2))
        return KernelMatrix.between(K[:, :-1], prompt.y.T, prompt.target)


def _covariates(data: GaussianProcess, key: PRNGKeyArray, count: int) -> Float[Array, "tokens d count"]:
    def one(key: Array) -> Array:
        z = jax.random.normal(key, (data.size, count), data.noise.dtype)
        return z / jnp.sqrt(jnp.sum(z**2, axis=0))

    # A loop, so that they are drawn once: in products every factor would be drawn again.
    return jax.lax.map(one, jax.random.split(key, data.context + 1))


@eqx.filter_jit
def _draw(data: GaussianProcess, key: PRNGKeyArray, count: int) -> tuple[Prompt, Array]:
    """Prompts, and the kernel between all their tokens (tokens, tokens, count)."""
    covariates, labels = jax.random.split(key)
    X = _covariates(data, covariates, count)
    K = data.kernel.between(X, X)
    z = jax.random.normal(labels, (2, data.context + 1, count), X.dtype)
    f = matvec(semidefinite_root(K), z[0])
    y = f + data.noise * z[1]
    X = jnp.moveaxis(X, -1, 0)
    return Prompt(X[:, :-1], y[:-1].T, X[:, -1], f[-1]), K
