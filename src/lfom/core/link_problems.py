"""Prompts whose labels follow from x.w through a link, in the two views that they have.

Attention sees y - mean(x.w) where it would see y - x.w, so every reader and memory that does not count on a
quadratic runs here as it is.
"""

from typing import Any, NoReturn

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from lfom.core.arrays import dot, matmat, matvec, transpose
from lfom.core.checks import InputError
from lfom.core.links import Link
from lfom.core.problems import IterateProblem, OnTokens


def no_constant_curvature(link: Link) -> NoReturn:
    raise InputError(
        f"the conjugate register needs a quadratic, and with {type(link).__name__} the curvature of the loss changes "
        "with w: use a register or a bank."
    )


class LinkTokens(OnTokens):
    """Tokens (x, y, x.w), with x.w = 0 at first: (d+2, n+1), the query in the last column. Its y is mean(0), so
    that attention sees nothing of a label there at first, as in `Tokens`.

    A direction is what attention returns, (d+1, n+1): a change of covariates and of labels y - mean(x.w), where
    that of a label is minus the change of x.w.
    """

    target: Float[Array, "*prompts"]
    asked: Float[Array, "*prompts"]  # 1; 0 for a prompt that only fills up a batch
    link: Link = eqx.field(static=True)
    # answers are x.w of the context's own examples
    asks_context: bool = eqx.field(static=True, default=False)

    @staticmethod
    def of(prompt: Any) -> "LinkTokens":
        """Of one prompt, or of a batch with a leading axis."""
        if prompt.X.ndim == 3:
            return jax.vmap(LinkTokens.of)(prompt)
        x = jnp.vstack([prompt.X, prompt.query]).T
        unknown = prompt.link.mean(jnp.zeros((), prompt.y.dtype))
        Z_0 = jnp.vstack([x, jnp.append(prompt.y, unknown), jnp.zeros_like(x[0])])
        return LinkTokens(Z_0, prompt.target, jnp.ones_like(prompt.target), prompt.link)

    def seen(self, state: Array) -> Array:
        return jnp.vstack([state[:-2], state[-2] - self.link.mean(state[-1])])

    def move(self, state: Array, step: Array) -> Array:
        return state + jnp.vstack([step[:-1], jnp.zeros_like(step[0]), -step[-1]])

    def slope(self, state: Array, direction: Array) -> Array:
        return -jnp.mean(self.seen(state)[-1, :-1] * direction[-1, :-1])

    def curvature(self, direction: Array) -> NoReturn:
        no_constant_curvature(self.link)

    def readout(self, state: Array) -> Array:
        return state[-1, :-1] if self.asks_context else state[-1, -1]

    def unknowns(self) -> int:
        return self.Z_0.shape[-2] - 2

    def diagonal(self) -> Array:
        x = self.Z_0[:-2, :-1]
        return self.link.curvature(jnp.zeros((), x.dtype)) * jnp.mean(x**2, axis=1)

    def mean_eigenvalue(self) -> Array:
        return jnp.mean(self.diagonal())

    def residual(self, answer: Array) -> Array:
        """The signed root of the deviance; that of the context's labels over sqrt(n)."""
        if self.asks_context:
            return self.link.residual(answer, self.Z_0[-2, :-1]) / answer.shape[0] ** 0.5
        return self.asked * self.link.residual(answer, self.target)[None]

    def about_context(self) -> "LinkTokens":
        return LinkTokens(self.Z_0, self.target, self.asked, self.link, asks_context=True)


class LinkExamples(IterateProblem):
    """R(w), the mean log loss b(x.w) - y x.w of the examples, and the question asked of w, whose loss is the
    deviance at the query. Prompts ride on trailing axes."""

    prompts_last = True

    X: Float[Array, "n d *prompts"]
    y: Float[Array, "n *prompts"]
    probe: Any  # (k, d, *prompts)
    target: Float[Array, "k *prompts"]
    asked: Float[Array, "k *prompts"]  # 1; 0 for a prompt that only fills up a batch
    link: Link = eqx.field(static=True)

    @staticmethod
    def of(prompt: Any) -> "LinkExamples":
        """Of one prompt, or of a batch; its probe is the prompt's query."""
        if prompt.X.ndim == 3:
            return jax.vmap(LinkExamples.of, out_axes=-1)(prompt)
        target = prompt.target[None]
        return LinkExamples(
            prompt.X, prompt.y, prompt.query[None], target, jnp.ones_like(target), prompt.link
        )

    def initial(self) -> tuple[Array, Array]:
        w = jnp.zeros_like(self.X[0])
        return w, self.gradient(w)

    def _means(self, values: Array) -> Array:
        """X^T values / n, values one number per example."""
        if self.X.ndim == 2:
            return matvec(transpose(self.X), values) / self.X.shape[0]
        return jnp.mean(self.X * values[:, None], axis=0)  # elementwise over prompts, however many examples

    def gradient(self, w: Array) -> Array:
        return self._means(self.link.mean(matvec(self.X, w)) - self.y)

    def value(self, w: Array) -> Array:
        eta = matvec(self.X, w)
        return jnp.mean(self.link.log_partition(eta) - self.y * eta, axis=0)

    def hessian(self, w: Array) -> Array:
        """X^T diag(b''(x.w)) X / n."""
        bends = self.link.curvature(matvec(self.X, w))
        return matmat(transpose(self.X), bends[:, None] * self.X) / self.X.shape[0]

    def hessian_times(self, vector: Array) -> NoReturn:
        no_constant_curvature(self.link)

    @property
    def gram(self) -> Array:
        """X^T X / n: what covariates are rewritten with (GD++)."""
        return matmat(transpose(self.X), self.X) / self.X.shape[0]

    def has_gram(self) -> bool:
        return True

    def inner(self, left: Array, right: Array) -> Array:
        return dot(left, right)

    def unknowns(self) -> int:
        return self.X.shape[1]

    def diagonal(self) -> Array:
        return self.link.curvature(jnp.zeros((), self.X.dtype)) * jnp.mean(self.X**2, axis=0)

    def mean_eigenvalue(self) -> Array:
        return jnp.mean(self.diagonal(), axis=0)

    def hessian_at_start(self) -> Array:
        return self.link.curvature(jnp.zeros((), self.X.dtype)) * self.gram

    def about_context(self) -> "LinkExamples":
        shares = jnp.full_like(self.y, self.y.shape[0] ** -0.5)
        return LinkExamples(self.X, self.y, self.X, self.y, shares, self.link)

    def residual(self, answer: Array) -> Array:
        """The signed root of the deviance, (k, *prompts)."""
        return self.asked * self.link.residual(matvec(self.probe, answer), self.target)
