"""Kernels that attention can have: k(x, x') as a function of the inner product of two covariates and their lengths.

A layer of attention with weights k(x_i, x_j), which leaves covariates as they are, is a step of gradient descent on
functions f = sum_i alpha_i k(x_i, .). Each class is one kernel.
"""

import abc
from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from lfom.core import checks
from lfom.core.arrays import matmat, transpose
from lfom.core.checks import InputError

ROUNDING = 1e-5  # of the largest eigenvalue: a negative one so small may be rounding


@dataclass(frozen=True)
class Kernel(abc.ABC):
    """k(x, x'). semidefinite: whether it is known to be positive semidefinite; where it is not, prompts that are
    handed over are looked at.

    >>> from dataclasses import dataclass
    >>> import jax.numpy as jnp
    >>> import lfom
    >>> @dataclass(frozen=True)
    ... class Square(lfom.Kernel):
    ...     def __call__(self, inner, left, right):
    ...         return (1 + inner) ** 2
    >>> Square().between(jnp.ones((4, 2)), jnp.ones((3, 2))).shape
    (4, 3)
    """

    semidefinite: ClassVar[bool] = False

    @abc.abstractmethod
    def __call__(self, inner: Array, left: Array, right: Array) -> Array:
        """k(x, x') from x.x', |x|^2 and |x'|^2, entry by entry."""

    def between(
        self, X: Float[Array, "n d *prompts"], Y: Float[Array, "m d *prompts"]
    ) -> Float[Array, "n m *prompts"]:
        """k(x, y) for every row of X and every row of Y."""
        inner = matmat(X, transpose(Y))
        found = self(inner, jnp.sum(X**2, axis=1)[:, None], jnp.sum(Y**2, axis=1)[None])
        if jnp.shape(found) != inner.shape:
            raise InputError(
                f"{type(self).__name__} returns an array of shape {jnp.shape(found)} for {inner.shape} inner products: a "
                "kernel is computed entry by entry."
            )
        return found


@dataclass(frozen=True)
class LinearKernel(Kernel):
    """x.x': linear attention, and linear regression.

    >>> import jax.numpy as jnp
    >>> import lfom
    >>> lfom.LinearKernel().between(jnp.array([[1.0, 1.0]]), jnp.array([[2.0, 0.0]])).tolist()
    [[2.0]]
    """

    semidefinite = True

    def __call__(self, inner: Array, left: Array, right: Array) -> Array:
        return inner


@dataclass(frozen=True)
class ExponentialKernel(Kernel):
    """exp(x.x').

    >>> import jax.numpy as jnp
    >>> import lfom
    >>> lfom.ExponentialKernel().between(jnp.array([[1.0, 0.0]]), jnp.array([[0.0, 1.0]])).tolist()
    [[1.0]]
    """

    semidefinite = True

    def __call__(self, inner: Array, left: Array, right: Array) -> Array:
        return jnp.exp(inner)


@dataclass(frozen=True)
class GaussianKernel(Kernel, checks.SelfChecked):
    """exp(-|x - x'|^2 / (2 width^2)).

    >>> import jax.numpy as jnp
    >>> import lfom
    >>> lfom.GaussianKernel(width=2.0).between(jnp.ones((1, 3)), jnp.ones((1, 3))).tolist()
    [[1.0]]
    """

    semidefinite = True
    width: float = 1.0

    def __check_init__(self) -> None:
        checks.above_zero("width", self.width)

    def __call__(self, inner: Array, left: Array, right: Array) -> Array:
        return jnp.exp((inner - (left + right) / 2) / self.width**2)


@dataclass(frozen=True)
class ArcCosineKernel(Kernel):
    """|x| |x'| (sin t + (pi - t) cos t) / pi, t the angle between them: twice the mean of relu(u.x) relu(u.x') over
    standard normal u, the kernel of a wide layer of ReLU units.

    >>> import jax.numpy as jnp
    >>> import lfom
    >>> x = jnp.array([[1.0, 0.0]])
    >>> lfom.ArcCosineKernel().between(x, jnp.array([[1.0, 0.0], [-1.0, 0.0]])).round(4).tolist()
    [[1.0, 0.0]]
    """

    semidefinite = True

    def __call__(self, inner: Array, left: Array, right: Array) -> Array:
        lengths = jnp.sqrt(left * right)
        cosine = jnp.clip(inner / jnp.where(lengths > 0, lengths, 1), -1, 1)
        sine = jnp.sqrt(1 - cosine**2)
        return lengths * (sine + (jnp.pi - jnp.arctan2(sine, cosine)) * cosine) / jnp.pi


KERNELS: dict[str, Kernel] = {
    "linear-kernel": LinearKernel(),
    "exponential": ExponentialKernel(),
    "gaussian": GaussianKernel(),
    "arc-cosine": ArcCosineKernel(),
}


def as_kernel(kernel: Any) -> Kernel:
    """What a user hands over: a kernel, or the name of one."""
    if isinstance(kernel, str):
        return KERNELS[checks.known("kernel", kernel, KERNELS)]
    return checks.instance("kernel", kernel, Kernel, f"a Kernel, or one of the names {', '.join(KERNELS)}")


def check_semidefinite(kernel: Kernel, matrices: Any) -> None:
    """Kernel matrices (n, n, prompts), of prompts that are handed over: an error names the first that has a negative
    eigenvalue."""
    if kernel.semidefinite or not checks.is_concrete(matrices):
        return
    K = np.moveaxis(np.asarray(matrices, np.float64).reshape(*matrices.shape[:2], -1), -1, 0)
    values = np.linalg.eigvalsh((K + np.swapaxes(K, 1, 2)) / 2)
    odd = np.abs(K - np.swapaxes(K, 1, 2)).max(axis=(1, 2)) > ROUNDING * np.abs(K).max(axis=(1, 2))
    bad = np.flatnonzero(odd | (values[:, 0] < -ROUNDING * np.abs(values).max(axis=1)))
    if bad.size:
        at = int(bad[0])
        what = "not symmetric" if odd[at] else f"indefinite: it has the eigenvalue {values[at, 0]:.3g}"
        raise InputError(
            f"the matrix of {type(kernel).__name__} on prompt {at} is {what}. Gradient descent on functions needs a "
            "positive semidefinite kernel; attention with other weights runs on tokens (a Reader with on_tokens)."
        )
