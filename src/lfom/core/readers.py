"""What a method reads: attention over tokens, and the same reading on iterates.

A reader returns the direction of a layer: Attn(Z_l) / n on tokens, or on iterates the change
of w (and of the covariates) that these tokens describe.
"""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from lfom.core.arrays import matmat, matvec, transpose
from lfom.core.coefficients import NoSuchView
from lfom.core.preconditioners import Preconditioner
from lfom.core.problems import Problem, Quadratic
from lfom.core.states import Direction, Iterate, Track


def attention(P: Array, Q: Array, Z: Array) -> Array:
    """Attn_{P,Q}(Z) = P Z M (Z^T Q Z), the mask M leaving out the query (equation eq:attention)."""
    mask = jnp.ones(Z.shape[1], Z.dtype).at[-1].set(0)
    return P @ (Z * mask) @ (Z.T @ Q @ Z)


def softmax_attention(W_v: Array, W_k: Array, W_q: Array, Z: Array) -> Array:
    """Attn_smax(Z) = W_v Z M smax(Z^T W_k^T W_q Z), softmax over each column."""
    mask = jnp.ones(Z.shape[1], Z.dtype).at[-1].set(0)
    return W_v @ (Z * mask) @ jax.nn.softmax(Z.T @ W_k.T @ W_q @ Z, axis=0)


class Reader(eqx.Module):
    """direction = reader(state, problem, layer)."""

    @property
    @abc.abstractmethod
    def moves_covariates(self) -> bool: ...

    @abc.abstractmethod
    def on_tokens(self, Z: Array, problem: Problem, layer: int) -> Array:
        """Attention of the layer over n."""

    @abc.abstractmethod
    def on_iterates(self, state: Iterate, problem: Problem, layer: int) -> Direction:
        """The same direction on iterates."""

    def __call__(self, state: Any, problem: Problem, layer: int) -> Any:
        if isinstance(state, Iterate):
            return self.on_iterates(state, problem, layer)
        return self.on_tokens(state, problem, layer)


class Attention(Reader):
    """Linear attention with any P and Q: tokens only."""

    P: Float[Array, "depth rows rows"]
    Q: Float[Array, "depth rows rows"]

    @property
    def moves_covariates(self) -> bool:
        return True

    def on_tokens(self, Z: Array, problem: Problem, layer: int) -> Array:
        return attention(self.P[layer], self.Q[layer], Z) / (Z.shape[1] - 1)

    def on_iterates(self, state: Iterate, problem: Problem, layer: int) -> Direction:
        raise NoSuchView(
            "attention with any P and Q has no iterate view: run it on tokens (view='tokens'), or "
            "use Gradient(A, B), the sparse parametrisation of equation params_Thm3."
        )


class SoftmaxAttention(Reader):
    """Softmax attention as Section 2.1 states it: tokens only."""

    W_v: Float[Array, "depth rows rows"]
    W_k: Float[Array, "depth rows rows"]
    W_q: Float[Array, "depth rows rows"]

    @property
    def moves_covariates(self) -> bool:
        return True

    def on_tokens(self, Z: Array, problem: Problem, layer: int) -> Array:
        n = Z.shape[1] - 1
        return softmax_attention(self.W_v[layer], self.W_k[layer], self.W_q[layer], Z) / n

    def on_iterates(self, state: Iterate, problem: Problem, layer: int) -> Direction:
        raise NoSuchView(
            "softmax attention is not linear in its weights, so no recursion on w equals it: run "
            "it on tokens (view='tokens')."
        )


class Gradient(Reader):
    """The sparse parametrisation P = diag(B, 1), Q = -diag(A, 0) (equation params_Thm3).

    With B = None (zero) it reads the gradient of R, preconditioned: -A^T grad R(w) (Lemma 1,
    with the transpose of NOTES 2.2). With B it also rewrites the covariates (GD++).
    """

    A: Preconditioner
    B: Preconditioner | None = None

    @property
    def moves_covariates(self) -> bool:
        return self.B is not None

    def on_tokens(self, Z: Array, problem: Problem, layer: int) -> Array:
        d = Z.shape[0] - 1
        B = jnp.zeros((d, d), Z.dtype) if self.B is None else self.B.matrix(layer, d)
        P = jnp.zeros((d + 1, d + 1), Z.dtype).at[:d, :d].set(B).at[d, d].set(1)
        Q = jnp.zeros((d + 1, d + 1), Z.dtype).at[:d, :d].set(-self.A.matrix(layer, d))
        return attention(P, Q, Z) / (Z.shape[1] - 1)

    def on_iterates(self, state: Iterate, problem: Problem, layer: int) -> Direction:
        """du = T^T A^T r, dT = -B (T G T^T) A T with r = -T grad R, and the same with S for
        the query's track (NOTES section 4)."""
        T = state.context.T
        if self.B is None and T is None:
            track = Track(-self.A.transposed_times(layer, state.gradient))
            return Direction(track, None if state.query is None else track)
        assert T is not None
        assert isinstance(problem, Quadratic)
        d = state.gradient.shape[0]
        a = self.A.transposed_times(layer, -matvec(T, state.gradient))
        K = None
        if self.B is not None:
            A, B = self.A.matrix(layer, d), self.B.matrix(layer, d)
            K = matmat(B, matmat(matmat(matmat(T, problem.gram), transpose(T)), A))

        def change(frame: Array) -> Track:
            still = jnp.zeros_like(frame) if K is None else -matmat(K, frame)
            return Track(matvec(transpose(frame), a), still)

        query = None
        if state.query is not None:
            assert state.query.T is not None
            query = change(state.query.T)
        return Direction(change(T), query)


class Heads(Reader):
    """Several readers whose directions are summed into one memory (Section 4.1)."""

    readers: tuple[Reader, ...]

    @property
    def moves_covariates(self) -> bool:
        return any(reader.moves_covariates for reader in self.readers)

    def on_tokens(self, Z: Array, problem: Problem, layer: int) -> Array:
        total = self.readers[0].on_tokens(Z, problem, layer)
        for reader in self.readers[1:]:
            total = total + reader.on_tokens(Z, problem, layer)
        return total

    def on_iterates(self, state: Iterate, problem: Problem, layer: int) -> Direction:
        total = self.readers[0].on_iterates(state, problem, layer)
        for reader in self.readers[1:]:
            total = total + reader.on_iterates(state, problem, layer)
        return total


class Normalised(Reader):
    """Another reader on prompts whose covariates are divided by a scale of their own.

    With c^2 the mean eigenvalue of the prompt's Gram matrix, trace(G) / d, running on x / c is the
    same as dividing every direction by c^2: attention reads two covariates for each label that it
    writes, and three for each covariate. Predictions then do not change when all covariates of a
    prompt are multiplied by a number: a shift of their variance is no shift.
    """

    reader: Reader

    @property
    def moves_covariates(self) -> bool:
        return self.reader.moves_covariates

    def on_tokens(self, Z: Array, problem: Problem, layer: int) -> Array:
        return self.reader.on_tokens(Z, problem, layer) / _not_zero(problem.mean_eigenvalue())

    def on_iterates(self, state: Iterate, problem: Problem, layer: int) -> Direction:
        return 1 / _not_zero(problem.mean_eigenvalue()) * self.reader.on_iterates(state, problem, layer)


def _not_zero(size: Array) -> Array:
    """An empty prompt has no scale, and needs none."""
    return jnp.where(size > 0, size, 1)
