"""What a method is run on: where it starts, how it moves, and two inner products.

`Tokens` is the paper's definition. The others are the iterate view: `Quadratic` from the
Gram matrix, `Examples` from the examples themselves (matrix-free), `Objective` from any
differentiable loss. A step costs one product with the Hessian, or one gradient.
"""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from lfom.core.arrays import dot, identity, matvec
from lfom.core.checks import InputError
from lfom.core.states import Direction, Iterate, Track
from lfom.prompts.prompt import Prompt


class Problem(eqx.Module):
    """What the loop, the readers and the memories ask of a problem."""

    @abc.abstractmethod
    def start(self, *, splits: bool, moves_covariates: bool) -> Any:
        """The first state. `splits`: context and query follow tracks of their own."""

    @abc.abstractmethod
    def move(self, state: Any, step: Any) -> Any:
        """The state after a step."""

    @abc.abstractmethod
    def slope(self, state: Any, direction: Any) -> Array:
        """-grad R(w) . direction, with R the loss of the context."""

    @abc.abstractmethod
    def curvature(self, direction: Any) -> tuple[Array, Any]:
        """direction . H direction, and the direction with its image under H kept in it."""

    @abc.abstractmethod
    def readout(self, state: Any) -> Array:
        """What the method answers with: the prediction (tokens) or w (iterates)."""

    @abc.abstractmethod
    def mean_eigenvalue(self) -> Array:
        """trace(H) / d at the start: the scale of the prompt's covariates, squared."""


class Tokens(Problem):
    """The prompt as the matrix Z_0 of Section 2.1, (d+1, n+1); the last column is the query."""

    Z_0: Float[Array, "rows tokens"]

    @staticmethod
    def of(prompt: Prompt) -> "Tokens":
        labels = jnp.append(prompt.y, jnp.zeros((), prompt.y.dtype))
        return Tokens(jnp.vstack([jnp.vstack([prompt.X, prompt.query]).T, labels]))

    def start(self, *, splits: bool, moves_covariates: bool) -> Array:
        return self.Z_0

    def move(self, state: Array, step: Array) -> Array:
        return state + step

    # The label entries of the context are y - x.w, those of a direction -x.d (NOTES 2.6).
    def slope(self, state: Array, direction: Array) -> Array:
        return -jnp.mean(state[-1, :-1] * direction[-1, :-1])

    def curvature(self, direction: Array) -> tuple[Array, Array]:
        return jnp.mean(direction[-1, :-1] ** 2), direction

    def readout(self, state: Array) -> Array:
        return -state[-1, -1]  # TF_L(Z_0), Section 2.1

    def mean_eigenvalue(self) -> Array:
        return jnp.mean(self.Z_0[:-1, :-1] ** 2)


class IterateProblem(Problem):
    """A problem whose state is an Iterate."""

    @abc.abstractmethod
    def initial(self) -> tuple[Array, Array]:
        """The first w and the gradient there."""

    @abc.abstractmethod
    def hessian_times(self, vector: Array) -> Array: ...

    @abc.abstractmethod
    def gradient_after(self, gradient: Array, w: Array, step: Direction) -> Array:
        """The gradient at w, which lies one step after the given gradient."""

    @abc.abstractmethod
    def has_gram(self) -> bool:
        """Whether GD++ (B not 0), which rewrites covariates, can run here."""

    def start(self, *, splits: bool, moves_covariates: bool) -> Iterate:
        if moves_covariates and not self.has_gram():
            raise InputError(
                f"GD++ (B not 0) needs the Gram matrix, which {type(self).__name__} does not have: "
                "use Quadratic.of(prompt), or set B = None."
            )
        w, gradient = self.initial()
        track = Track(w, identity(w.shape[0], w) if moves_covariates else None)
        return Iterate(track, gradient, track if splits else None)

    def move(self, state: Iterate, step: Direction) -> Iterate:
        context = state.context + step.context
        query = None if state.query is None or step.query is None else state.query + step.query
        return Iterate(context, self.gradient_after(state.gradient, context.w, step), query)

    def slope(self, state: Iterate, direction: Direction) -> Array:
        return -dot(state.gradient, direction.context.w)

    def curvature(self, direction: Direction) -> tuple[Array, Direction]:
        w = direction.context.w
        image = self.hessian_times(w) if direction.image is None else direction.image
        return dot(w, image), Direction(direction.context, direction.query, image)

    def readout(self, state: Iterate) -> Array:
        return state.w


class Quadratic(IterateProblem):
    """R(w) = w.Gw/2 - b.w with G = X^T X / n and b = X^T y / n, and the question asked of w.

    The loss of a prompt is |probe w - target|^2. With one query x the probe is x^T; with the
    query averaged out exactly it is a root of E[x x^T] and the target is that root times w*.
    Prompts ride on trailing axes; a probe without them is shared by all.
    """

    gram: Float[Array, "d d *prompts"]
    moment: Float[Array, "d *prompts"]
    probe: Array  # (k, d, *prompts), or (k, d) shared
    target: Float[Array, "k *prompts"]

    @staticmethod
    def of(prompt: Prompt) -> "Quadratic":
        """The quadratic of one prompt; its probe is the prompt's query."""
        n = prompt.X.shape[0]
        return Quadratic(
            prompt.X.T @ prompt.X / n, prompt.X.T @ prompt.y / n, prompt.query[None], prompt.target[None]
        )

    def initial(self) -> tuple[Array, Array]:
        return jnp.zeros_like(self.moment), -self.moment

    def hessian_times(self, vector: Array) -> Array:
        return matvec(self.gram, vector)

    def gradient_after(self, gradient: Array, w: Array, step: Direction) -> Array:
        return gradient + (self.hessian_times(step.context.w) if step.image is None else step.image)

    def has_gram(self) -> bool:
        return True

    def mean_eigenvalue(self) -> Array:
        d = self.gram.shape[0]
        return sum((self.gram[i, i] for i in range(1, d)), self.gram[0, 0]) / d

    def residual(self, w: Array) -> Array:
        """probe w - target, (k, *prompts)."""
        return matvec(self.probe, w) - self.target


class Examples(IterateProblem):
    """The same quadratic from the examples X (n, d) and y (n,), without forming G: cheaper
    while twice the number of steps stays below d."""

    X: Float[Array, "n d"]
    y: Float[Array, " n"]

    def initial(self) -> tuple[Array, Array]:
        moment = self.X.T @ self.y / self.X.shape[0]
        return jnp.zeros_like(moment), -moment

    def hessian_times(self, vector: Array) -> Array:
        return self.X.T @ (self.X @ vector) / self.X.shape[0]

    def gradient_after(self, gradient: Array, w: Array, step: Direction) -> Array:
        return gradient + (self.hessian_times(step.context.w) if step.image is None else step.image)

    def has_gram(self) -> bool:
        return False

    def mean_eigenvalue(self) -> Array:
        return jnp.mean(self.X**2)


class Objective(IterateProblem):
    """Any differentiable loss of w (d,), read through its gradient; needs B = 0."""

    loss: Callable[[Array], Array] = eqx.field(static=True)
    w_0: Float[Array, " d"]

    def initial(self) -> tuple[Array, Array]:
        return self.w_0, jax.grad(self.loss)(self.w_0)

    def hessian_times(self, vector: Array) -> Array:
        raise InputError(
            "the conjugate register needs a quadratic: the curvature of a general loss changes "
            "with w. Use a register or a bank."
        )

    def gradient_after(self, gradient: Array, w: Array, step: Direction) -> Array:
        return jax.grad(self.loss)(w)

    def has_gram(self) -> bool:
        return False

    def mean_eigenvalue(self) -> Array:
        raise InputError(
            "normalised readers need a quadratic: the scale of a general loss is not known. Use the reader "
            "as it is."
        )
