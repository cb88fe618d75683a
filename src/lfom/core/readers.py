"""What a method reads: attention over tokens, and the same reading on iterates.

A reader returns the direction of a layer: Attn(Z_l) / n on tokens, or on iterates the change
of w (and of the covariates) that these tokens describe.
"""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

from lfom.core.arrays import as_array, matmat, matvec, transpose
from lfom.core.checks import InputError
from lfom.core.parameters import parameter, part
from lfom.core.preconditioners import Full, Preconditioner
from lfom.core.states import BOTH, TOKENS, Direction, Iterate, NoSuchView, Track, common


def attention(P: Array, Q: Array, Z: Array) -> Array:
    """Attn_{P,Q}(Z) = P Z M (Z^T Q Z), the mask M leaving out the query (equation eq:attention)."""
    mask = jnp.ones(Z.shape[1], Z.dtype).at[-1].set(0)
    return P @ (Z * mask) @ (Z.T @ Q @ Z)


def softmax_attention(W_v: Array, W_k: Array, W_q: Array, Z: Array) -> Array:
    """Attn_smax(Z) = W_v Z M smax(Z^T W_k^T W_q Z), softmax over each column."""
    mask = jnp.ones(Z.shape[1], Z.dtype).at[-1].set(0)
    return W_v @ (Z * mask) @ jax.nn.softmax(Z.T @ W_k.T @ W_q @ Z, axis=0)


class Reader(eqx.Module):
    """What a layer reads: a direction. Reading tokens is the only thing that a reader must do.

    moves_covariates: whether it rewrites covariates as well as labels (GD++). one_matrix: whether it reads
    the gradient times a_l M, M one symmetric matrix. definite: whether times one M in all layers, positive
    definite. from_gradient: whether it reads nothing of the problem but its gradient.
    """

    @property
    def views(self) -> tuple[str, ...]:
        """Where it can read, of "tokens" and "iterates": whatever it has a function for."""
        return TOKENS if type(self).on_iterates is Reader.on_iterates else BOTH

    @property
    def moves_covariates(self) -> bool:
        return False

    @property
    def one_matrix(self) -> bool:
        return False

    @property
    def definite(self) -> bool:
        return False

    @property
    def from_gradient(self) -> bool:
        return False

    @property
    def on_eigenvectors(self) -> "Reader | None":
        """What it reads of a problem with one unknown, an eigenvalue of M H, where it reads the gradient
        times a_l M with M symmetric; else None."""
        return None

    def plain(self) -> dict[str, Any]:
        """What it reads as numbers by name, for files that are read without this library."""
        raise InputError(
            f"{type(self).__name__} reads something else than the gradient times a matrix, so that plain numbers do "
            "not tell it. Use a method that reads the gradient (B = 0, one head, not normalised)."
        )

    @abc.abstractmethod
    def on_tokens(self, Z: Array, problem: Any) -> Array:
        """The direction on tokens (d+1, n+1): attention of the layer over n."""

    def on_iterates(self, state: Iterate, problem: Any) -> Direction:
        """The same direction on iterates."""
        raise NoSuchView(
            f"{type(self).__name__} reads tokens only: run it on tokens (view='tokens'), or give it on_iterates."
        )

    def begin(self, scales: Float[Array, " depth"]) -> "Reader":
        """Where training begins, with these step sizes; a reader of another kind begins as it is."""
        return self

    def write(self, found: Any) -> "Reader":
        """What a reader that began as `begin` says has found, in this one's parameters."""
        return found

    def ready(self) -> "Reader":
        """The same, with what every layer needs computed once."""
        return self

    def canonical(self, depth: int, d: int) -> "Reader":
        """The same with full matrices in every layer, where it has matrices: readers of several classes
        then share what is compiled for one."""
        return self

    def look(self, problem: Any) -> Any:
        """What it needs of a problem and every layer would otherwise compute again."""
        return None

    def bind(self, seen: Any) -> "Reader":
        """The same for the problem that it looked at."""
        return self


class Attention(Reader):
    """Linear attention with any P and Q: tokens only."""

    P: Float[Array, "depth rows rows ..."] = parameter("P", axes="layers rows rows")
    Q: Float[Array, "depth rows rows ..."] = parameter("Q", axes="layers rows rows")

    @property
    def views(self) -> tuple[str, ...]:
        return TOKENS

    @property
    def moves_covariates(self) -> bool:
        return True

    def on_tokens(self, Z: Array, problem: Any) -> Array:
        return attention(self.P, self.Q, Z) / (Z.shape[1] - 1)

    def on_iterates(self, state: Iterate, problem: Any) -> Direction:
        raise NoSuchView(
            "attention with any P and Q has no iterate view: run it on tokens (view='tokens'), or use "
            "the sparse parametrisation Gradient(A, B)."
        )


class SoftmaxAttention(Reader):
    """Softmax attention: tokens only."""

    W_v: Float[Array, "depth rows rows ..."] = parameter("W_v", axes="layers rows rows")
    W_k: Float[Array, "depth rows rows ..."] = parameter("W_k", axes="layers rows rows")
    W_q: Float[Array, "depth rows rows ..."] = parameter("W_q", axes="layers rows rows")

    @property
    def views(self) -> tuple[str, ...]:
        return TOKENS

    @property
    def moves_covariates(self) -> bool:
        return True

    def on_tokens(self, Z: Array, problem: Any) -> Array:
        return softmax_attention(self.W_v, self.W_k, self.W_q, Z) / (Z.shape[1] - 1)

    def on_iterates(self, state: Iterate, problem: Any) -> Direction:
        raise NoSuchView(
            "softmax attention is not linear in its weights, so no recursion on w equals it: run "
            "it on tokens (view='tokens')."
        )


class Gradient(Reader):
    """The sparse parametrisation P = diag(B, 1), Q = -diag(A, 0) (equation params_Thm3).

    With B = None (zero) it reads the gradient of R, preconditioned: -A^T grad R(w) (Lemma 1,
    with the transpose of NOTES 2.2). With B it also rewrites the covariates (GD++).
    """

    A: Preconditioner = part("A", sets_scale=True)
    B: Preconditioner | None = part("B", default=None)

    @property
    def moves_covariates(self) -> bool:
        return self.B is not None

    @property
    def one_matrix(self) -> bool:
        return self.B is None and self.A.one_matrix

    @property
    def definite(self) -> bool:
        return self.B is None and self.A.definite

    @property
    def from_gradient(self) -> bool:
        return self.B is None

    @property
    def on_eigenvectors(self) -> Reader | None:
        A = self.A.on_eigenvectors
        return None if self.B is not None or A is None else Gradient(A)

    def plain(self) -> dict[str, Any]:
        if self.B is not None:
            return super().plain()
        return {"jacobi": False, "preconditioner": {"kind": self.A.kind, **self.A.plain()}}

    def on_tokens(self, Z: Array, problem: Any) -> Array:
        d = Z.shape[0] - 1
        B = jnp.zeros((d, d), Z.dtype) if self.B is None else self.B.matrix(d)
        return attention(*_sparse(self.A.matrix(d), B, Z.dtype), Z) / (Z.shape[1] - 1)

    def on_iterates(self, state: Iterate, problem: Any) -> Direction:
        """du = T^T A^T r, dT = -B (T G T^T) A T with r = -T grad R, and the same with S for
        the query's track (NOTES section 4)."""
        T, K = state.context.T, None
        if T is not None and self.B is not None:
            d = state.gradient.shape[0]
            A, B = self.A.matrix(d), self.B.matrix(d)
            K = matmat(B, matmat(matmat(matmat(T, problem.gram), transpose(T)), A))
        return _along(state, self.A.transposed_times, K)

    def begin(self, scales: Float[Array, " depth"]) -> "Gradient":
        return Gradient(self.A.begin(scales), None if self.B is None else self.B.begin_at(0.5))

    def write(self, found: Any) -> "Gradient":
        return Gradient(self.A.write(found.A), None if self.B is None else self.B.write(found.B))

    def canonical(self, depth: int, d: int) -> "Gradient":
        A = self.A.all_layers(depth, d)
        B = None if self.B is None else self.B.all_layers(depth, d)
        if A is None or (self.B is not None and B is None):
            return self
        return Gradient(Full(as_array(A)), None if B is None else Full(as_array(B)))

    def ready(self) -> "Gradient":
        return Gradient(self.A.ready(), None if self.B is None else self.B.ready())


def _along(state: Iterate, precondition: Callable[[Array], Array], K: Array | None) -> Direction:
    """The direction of labels that were read through `precondition`; K: what covariates are multiplied
    with, None if they stay."""
    T = state.context.T
    if T is None:
        track = Track(-precondition(state.gradient))
        return Direction(track, None if state.query is None else track)
    a = precondition(-matvec(T, state.gradient))

    def change(frame: Array) -> Track:
        still = jnp.zeros_like(frame) if K is None else -matmat(K, frame)
        return Track(matvec(transpose(frame), a), still)

    query = None
    if state.query is not None:
        assert state.query.T is not None
        query = change(state.query.T)
    return Direction(change(T), query)


def _sparse(A: Array, B: Array, dtype: Any) -> tuple[Array, Array]:
    """P = diag(B, 1) and Q = -diag(A, 0)."""
    d = A.shape[0]
    P = jnp.zeros((d + 1, d + 1), dtype).at[:d, :d].set(B).at[d, d].set(1)
    return P, jnp.zeros((d + 1, d + 1), dtype).at[:d, :d].set(-A)


class Jacobi(Reader):
    """The gradient read in coordinates in which the problem has a unit diagonal: -S A^T S grad R with
    S = 1 / sqrt(diagonal of H), which differs from problem to problem."""

    A: Preconditioner = part("A", sets_scale=True)
    seen: Array | None = None  # the diagonal of S, once a problem was looked at

    @property
    def definite(self) -> bool:
        return self.A.definite

    @property
    def on_eigenvectors(self) -> Reader | None:
        A = self.A.on_eigenvectors
        return None if A is None else Gradient(A)

    def plain(self) -> dict[str, Any]:
        return {"jacobi": True, "preconditioner": {"kind": self.A.kind, **self.A.plain()}}

    def on_tokens(self, Z: Array, problem: Any) -> Array:
        d, s = Z.shape[0] - 1, self._roots(problem)
        A = s[:, None] * self.A.matrix(d) * s[None]
        return attention(*_sparse(A, jnp.zeros_like(A), Z.dtype), Z) / (Z.shape[1] - 1)

    def on_iterates(self, state: Iterate, problem: Any) -> Direction:
        s = self._roots(problem)
        return _along(state, lambda v: s * self.A.transposed_times(s * v), None)

    def _roots(self, problem: Any) -> Array:
        return self.look(problem) if self.seen is None else self.seen

    def ready(self) -> "Jacobi":
        return Jacobi(self.A.ready(), self.seen)

    def look(self, problem: Any) -> Array:
        """1 / sqrt(diagonal of H), and 1 where that is not positive."""
        diagonal = problem.diagonal()
        if diagonal is None:
            raise InputError(
                f"this method works in coordinates set by the diagonal of H, which {type(problem).__name__} does not "
                "tell: pass diagonal=..., or use a method without Jacobi."
            )
        good = diagonal > 0
        return jnp.where(good, 1 / jnp.sqrt(jnp.where(good, diagonal, 1)), 1)

    def bind(self, seen: Array) -> "Jacobi":
        return Jacobi(self.A, seen)


class Heads(Reader):
    """Several readers whose directions are summed into one memory (Section 4.1)."""

    readers: tuple[Reader, ...] = part()

    @property
    def views(self) -> tuple[str, ...]:
        return common(*(reader.views for reader in self.readers))

    @property
    def moves_covariates(self) -> bool:
        return any(reader.moves_covariates for reader in self.readers)

    @property
    def from_gradient(self) -> bool:
        return all(reader.from_gradient for reader in self.readers)

    def on_tokens(self, Z: Array, problem: Any) -> Array:
        total = self.readers[0].on_tokens(Z, problem)
        for reader in self.readers[1:]:
            total = total + reader.on_tokens(Z, problem)
        return total

    def on_iterates(self, state: Iterate, problem: Any) -> Direction:
        total = self.readers[0].on_iterates(state, problem)
        for reader in self.readers[1:]:
            total = total + reader.on_iterates(state, problem)
        return total

    def begin(self, scales: Float[Array, " depth"]) -> "Heads":
        return Heads(tuple(reader.begin(scales) for reader in self.readers))

    def write(self, found: Any) -> "Heads":
        return Heads(tuple(a.write(b) for a, b in zip(self.readers, found.readers, strict=True)))

    def ready(self) -> "Heads":
        return Heads(tuple(reader.ready() for reader in self.readers))

    def look(self, problem: Any) -> tuple[Any, ...]:
        return tuple(reader.look(problem) for reader in self.readers)

    def bind(self, seen: tuple[Any, ...]) -> "Heads":
        return Heads(tuple(reader.bind(one) for reader, one in zip(self.readers, seen, strict=True)))


class Normalised(Reader):
    """Another reader on prompts whose covariates are divided by a scale of their own.

    With c^2 the mean eigenvalue of the prompt's Gram matrix, trace(G) / d, running on x / c is the
    same as dividing every direction by c^2: attention reads two covariates for each label that it
    writes, and three for each covariate. Predictions then do not change when all covariates of a
    prompt are multiplied by a number: a shift of their variance is no shift.
    """

    reader: Reader = part()

    @property
    def views(self) -> tuple[str, ...]:
        return self.reader.views

    @property
    def moves_covariates(self) -> bool:
        return self.reader.moves_covariates

    def on_tokens(self, Z: Array, problem: Any) -> Array:
        return self.reader.on_tokens(Z, problem) / _not_zero(problem.mean_eigenvalue())

    def on_iterates(self, state: Iterate, problem: Any) -> Direction:
        return 1 / _not_zero(problem.mean_eigenvalue()) * self.reader.on_iterates(state, problem)

    def begin(self, scales: Float[Array, " depth"]) -> "Normalised":
        return Normalised(self.reader.begin(scales))

    def write(self, found: Any) -> "Normalised":
        return Normalised(self.reader.write(found.reader))

    def ready(self) -> "Normalised":
        return Normalised(self.reader.ready())

    def look(self, problem: Any) -> Any:
        return self.reader.look(problem)

    def bind(self, seen: Any) -> "Normalised":
        return Normalised(self.reader.bind(seen))


def _not_zero(size: Array) -> Array:
    """An empty prompt has no scale, and needs none."""
    return jnp.where(size > 0, size, 1)


class Multiplied(Reader):
    """Another reader's directions times a number of the problem's own."""

    reader: Reader = part()
    factor: Array  # type: ignore[misc]

    @property
    def views(self) -> tuple[str, ...]:
        return self.reader.views

    @property
    def moves_covariates(self) -> bool:
        return self.reader.moves_covariates

    def on_tokens(self, Z: Array, problem: Any) -> Array:
        return self.factor * self.reader.on_tokens(Z, problem)

    def on_iterates(self, state: Iterate, problem: Any) -> Direction:
        return self.factor * self.reader.on_iterates(state, problem)

    def ready(self) -> "Multiplied":
        return Multiplied(self.reader.ready(), self.factor)

    def look(self, problem: Any) -> Any:
        return self.reader.look(problem)

    def bind(self, seen: Any) -> "Multiplied":
        return Multiplied(self.reader.bind(seen), self.factor)


class Either(Reader):
    """One reader or another, as the problem decides: both read, and one is kept."""

    first: Bool[Array, ""]
    yes: Reader = part()
    no: Reader = part()

    @property
    def views(self) -> tuple[str, ...]:
        return common(self.yes.views, self.no.views)

    def on_tokens(self, Z: Array, problem: Any) -> Array:
        return jnp.where(self.first, self.yes.on_tokens(Z, problem), self.no.on_tokens(Z, problem))

    def on_iterates(self, state: Iterate, problem: Any) -> Direction:
        yes, no = self.yes.on_iterates(state, problem), self.no.on_iterates(state, problem)
        return jax.tree.map(lambda a, b: jnp.where(self.first, a, b), yes, no)
