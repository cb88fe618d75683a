"""What a method reads: attention over tokens, and the same reading in the views that it has beside them.

A reader returns the direction of a layer: Attn(Z_l) / n on tokens, on iterates the change of w (and of the
covariates) that these tokens describe, in the joint view the change of the few columns that stand for them.

>>> import lfom
>>> lfom.readers.Gradient(lfom.preconditioners.Identity()).views[0]
'iterates'
"""

import abc
import functools
import operator
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float

from lfom.core.arrays import as_array, matmat, matvec, pad_axes, transpose
from lfom.core.checks import InputError, known
from lfom.core.kernels import Kernel
from lfom.core.parameters import parameter, part
from lfom.core.parts import Reading
from lfom.core.preconditioners import Full, Preconditioner, Scaled
from lfom.core.states import Columns, Direction, Iterate, Track, common_views, no_view, one_kernel, views_of
from lfom.core.words import brief


def _mask(Z: Array) -> np.ndarray:
    """The diagonal of M: it leaves out the query. A constant, as `.at[-1].set(0)` is a scatter, which compiles slowly."""
    return (np.arange(Z.shape[1]) < Z.shape[1] - 1).astype(Z.dtype)


def _label_row(labels: Array, Z: Array) -> Array:
    """A direction in which labels change and covariates do not."""
    return jnp.pad(labels[None].astype(Z.dtype), ((Z.shape[0] - 1, 0), (0, 0)))


def attention(P: Array, Q: Array, Z: Array) -> Array:
    """Attn_{P,Q}(Z) = P Z M (Z^T Q Z), the mask M leaving out the query (equation eq:attention)."""
    return P @ (Z * _mask(Z)) @ (Z.T @ Q @ Z)


def softmax_attention(W_v: Array, W_k: Array, W_q: Array, Z: Array) -> Array:
    """Attn_smax(Z) = W_v Z M smax(Z^T W_k^T W_q Z), softmax over each column."""
    return W_v @ (Z * _mask(Z)) @ jax.nn.softmax(Z.T @ W_k.T @ W_q @ Z, axis=0)


class Reader(Reading):
    """What a layer reads: a direction. Reading tokens is the only thing that a reader must do.

    moves_covariates: whether it rewrites covariates as well as labels (GD++). one_matrix: whether it reads
    the gradient times a_l M, M one symmetric matrix. definite: whether times one M in all layers, positive
    definite. from_gradient: whether it reads nothing of the problem but its gradient.

    >>> import lfom
    >>> class Nothing(lfom.Reader):
    ...     def on_tokens(self, Z, problem):
    ...         return 0 * Z
    >>> Nothing().views
    ('tokens',)
    """

    __repr__ = brief

    @property
    def views(self) -> tuple[str, ...]:
        """Where it can read: in the views that it has a function for."""
        return views_of(type(self), Reader)

    @property
    def moves_covariates(self) -> bool:
        return False

    @property
    def one_matrix(self) -> bool:
        return False

    @property
    def definite(self) -> bool:
        return False

    def sizes(self, depth: int) -> Any:
        """a_l of all layers, (depth, ...), where it reads the gradient times a_l M; None where it does not say."""
        return None

    @property
    def common(self) -> Array | None:
        """M's own parameter, M its symmetric part, where there are sizes; None for the identity."""
        return None

    def matrices(self, depth: int, d: int) -> Any:
        """A_l of all layers, (depth, d, d), where it reads nothing but A_l^T times the gradient; else None."""
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
        raise no_view(self, "iterates")

    def on_kernel(self, state: Iterate, problem: Any) -> Direction:
        """The same direction on one number per example, for attention with a kernel."""
        raise no_view(self, "kernel")

    def on_joint(self, state: Columns, problem: Any) -> Columns:
        """The same direction on the columns of the joint view."""
        raise no_view(self, "joint")

    def canonical(self, depth: int, d: int) -> "Reader":
        """The same with full matrices in every layer, where it has matrices: readers of several classes
        then share what is compiled for one."""
        return self

    def merged(self, depth: int, d: int | None) -> "Reader":
        """The same as one head, where its heads are matrices whose sum is one. d: None where it is for any."""
        return self


def on_columns(P: Array, Q: Array, state: Columns) -> Columns:
    """The same attention over n, where columns Y with Y Y^T = Z M Z^T / n stand for the context:
    P (Y Y^T) Q times every column (docs/mathematics.md 6)."""
    K = matmat(matmat(P, matmat(state.context, transpose(state.context))), Q)
    return Columns(matmat(K, state.context), matmat(K, state.query))


class Attention(Reader):
    """Linear attention with any P and Q."""

    moves_covariates = True
    P: Float[Array, "depth rows rows ..."] = parameter("P", axes="layers rows rows")
    Q: Float[Array, "depth rows rows ..."] = parameter("Q", axes="layers rows rows")

    def on_tokens(self, Z: Array, problem: Any) -> Array:
        return attention(self.P, self.Q, Z) / (Z.shape[1] - 1)

    def on_joint(self, state: Columns, problem: Any) -> Columns:
        return on_columns(self.P, self.Q, state)


class SoftmaxAttention(Reader):
    """Softmax attention: not linear in its weights, so that it needs all tokens."""

    moves_covariates = True
    W_v: Float[Array, "depth rows rows ..."] = parameter("W_v", axes="layers rows rows")
    W_k: Float[Array, "depth rows rows ..."] = parameter("W_k", axes="layers rows rows")
    W_q: Float[Array, "depth rows rows ..."] = parameter("W_q", axes="layers rows rows")

    def on_tokens(self, Z: Array, problem: Any) -> Array:
        return softmax_attention(self.W_v, self.W_k, self.W_q, Z) / (Z.shape[1] - 1)


LARGEST = 5.0  # exp grows no further: of Gaussian covariates exp(x.Qx) may have no mean


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": jax.nn.relu,
    "exp": lambda weights: jnp.exp(jnp.minimum(weights, LARGEST)),
}


class ActivatedAttention(Reader):
    """Attention whose weights pass through an activation, entry by entry: P Z M s(Z^T Q Z), s(t) = max(t, 0) or
    exp(t), which ends at e^5. It needs all tokens."""

    moves_covariates = True
    P: Float[Array, "depth rows rows ..."] = parameter("P", axes="layers rows rows")
    Q: Float[Array, "depth rows rows ..."] = parameter("Q", axes="layers rows rows")
    activation: str = eqx.field(static=True)  # type: ignore[misc]  # a name of ACTIVATIONS

    def __check_init__(self) -> None:
        known("activation", self.activation, ACTIVATIONS)

    def on_tokens(self, Z: Array, problem: Any) -> Array:
        context = Z.at[:, -1].set(0)
        return self.P @ context @ ACTIVATIONS[self.activation](Z.T @ self.Q @ Z) / (Z.shape[1] - 1)


class Gradient(Reader):
    """The sparse parametrisation P = diag(B, 1), Q = -diag(A, 0) (equation params_Thm3).

    With B = None (zero) it reads the gradient of R, preconditioned: -A^T grad R(w) (Lemma 1,
    with the transpose of docs/mathematics.md 2.2). With B it also rewrites the covariates (GD++).
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

    def sizes(self, depth: int) -> Any:
        return None if self.B is not None else self.A.sizes(depth)

    @property
    def common(self) -> Array | None:
        return self.A.common

    def matrices(self, depth: int, d: int) -> Any:
        return None if self.B is not None else self.A.all_layers(depth, d)

    @property
    def on_eigenvectors(self) -> Reader | None:
        A = self.A.on_eigenvectors
        return None if self.B is not None or A is None else Gradient(A)

    @property
    def on_eigenvalues(self) -> Reader | None:
        A, B = self.A.on_eigenvectors, self.B
        multiples = B is None or (B.one_matrix and B.common is None and B.on_eigenvectors is not None)
        return Gradient(A, B) if multiples and A is not None else None

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
        the query's track (docs/mathematics.md 4)."""
        T, K = state.context.T, None
        if T is not None and self.B is not None:
            d = state.gradient.shape[0]
            A, B = self.A.matrix(d), self.B.matrix(d)
            K = matmat(B, matmat(matmat(matmat(T, problem.gram), transpose(T)), A))
        return _along(state, self.A.transposed_times, K)

    def on_joint(self, state: Columns, problem: Any) -> Columns:
        d = state.context.shape[0] - 1
        A = self.A.matrix(d)
        B = jnp.zeros_like(A) if self.B is None else self.B.matrix(d)
        return on_columns(*_sparse(A, B, state.context.dtype), state)

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


def only_numbers(A: Preconditioner, reader: Reader) -> None:
    if not A.one_matrix or A.common is not None:
        raise InputError(
            f"{type(reader).__name__} has a {type(A).__name__}: attention that moves labels alone is multiplied by a number "
            "a_l, so use Scaled(a) or Identity()."
        )


class KernelAttention(Reader):
    """Attention whose weights are a kernel of the covariates, which stay as they are: P = diag(0, -a_l). A step of
    gradient descent on functions f = sum_i alpha_i k(x_i, .), whose values at the covariates the labels hold."""

    A: Preconditioner = part("A", sets_scale=True)  # a_l I
    weights: Kernel | None = eqx.field(static=True)  # type: ignore[misc]  # None: problems hold its matrices

    def __check_init__(self) -> None:
        only_numbers(self.A, self)

    @property
    def kernel(self) -> Kernel | None:
        return self.weights

    def without_kernel(self) -> "KernelAttention":
        return KernelAttention(self.A, None)

    @property
    def one_matrix(self) -> bool:
        return self.A.one_matrix

    @property
    def definite(self) -> bool:
        return self.A.definite

    def sizes(self, depth: int) -> Any:
        return self.A.sizes(depth)

    def on_tokens(self, Z: Array, problem: Any) -> Array:
        X, labels = Z[:-1].T, Z[-1, :-1]
        assert self.weights is not None
        read = self.weights.between(X[:-1], X)
        scale = self.A.matrix(1)[0, 0] / labels.shape[0]
        return _label_row(-scale * (labels @ read), Z)

    def on_kernel(self, state: Iterate, problem: Any) -> Direction:
        return _along(state, self.A.transposed_times, None)

    def begin(self, scales: Float[Array, " depth"]) -> "KernelAttention":
        return KernelAttention(self.A.begin(scales), self.weights)

    def write(self, found: Any) -> "KernelAttention":
        return KernelAttention(self.A.write(found.A), self.weights)

    def ready(self) -> "KernelAttention":
        return KernelAttention(self.A.ready(), self.weights)


class LabelAttention(Reader):
    """The same form with weights that are no kernel, and a sharpness b_l: max(b_l x.x', 0), which is not positive
    semidefinite, or the softmax of b_l x.x' over the context, which is not symmetric. It needs all tokens."""

    A: Preconditioner = part("A", sets_scale=True)  # a_l I
    sharpness: Float[Array, "depth ..."] = parameter("sharpness", axes="layers")
    form: str = eqx.field(static=True)  # type: ignore[misc]  # relu or softmax

    def __check_init__(self) -> None:
        known("form", self.form, ("relu", "softmax"))
        only_numbers(self.A, self)

    def on_tokens(self, Z: Array, problem: Any) -> Array:
        inner = self.sharpness * (Z[:-1, :-1].T @ Z[:-1])
        shares = jax.nn.relu(inner) / inner.shape[0] if self.form == "relu" else jax.nn.softmax(inner, axis=0)
        return _label_row(-self.A.matrix(1)[0, 0] * (Z[-1, :-1] @ shares), Z)

    def begin(self, scales: Float[Array, " depth"]) -> "LabelAttention":
        return LabelAttention(self.A.begin(scales), self.sharpness, self.form)  # type: ignore[call-arg,arg-type]


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
    d, prompts = B.shape[0], B.ndim - 2
    corner = np.diag(np.arange(d + 1) == d).reshape(d + 1, d + 1, *(1,) * prompts)
    return _one_more(B, dtype) + corner.astype(dtype), _one_more(-A, dtype)


def _one_more(matrix: Array, dtype: Any) -> Array:
    """With a row and a column of zeros for the labels."""
    return jnp.pad(matrix.astype(dtype), [(0, 1), (0, 1)] + [(0, 0)] * (matrix.ndim - 2))


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

    def on_joint(self, state: Columns, problem: Any) -> Columns:
        s = self._roots(problem)
        A = s[:, None] * pad_axes(self.A.matrix(s.shape[0]), s.ndim + 1) * s[None]
        return on_columns(*_sparse(A, jnp.zeros_like(A), state.context.dtype), state)

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


class Composed(Reader):
    """A reader made of others: it combines what they read, in every view that they have in common."""

    @abc.abstractmethod
    def parts(self) -> tuple[Reader, ...]: ...

    @abc.abstractmethod
    def rebuilt(self, parts: tuple[Reader, ...]) -> "Reader":
        """The same with other readers."""

    @abc.abstractmethod
    def combined(self, read: Callable[[Reader], Any], problem: Any) -> Any:
        """The direction, from read(reader) of each of them."""

    @property
    def views(self) -> tuple[str, ...]:
        return common_views(self.parts())

    @property
    def moves_covariates(self) -> bool:
        return any(reader.moves_covariates for reader in self.parts())

    def on_tokens(self, Z: Array, problem: Any) -> Array:
        return self.combined(lambda reader: reader.on_tokens(Z, problem), problem)

    def on_iterates(self, state: Iterate, problem: Any) -> Direction:
        return self.combined(lambda reader: reader.on_iterates(state, problem), problem)

    def on_kernel(self, state: Iterate, problem: Any) -> Direction:
        return self.combined(lambda reader: reader.on_kernel(state, problem), problem)

    def on_joint(self, state: Columns, problem: Any) -> Columns:
        return self.combined(lambda reader: reader.on_joint(state, problem), problem)

    @property
    def kernel(self) -> Kernel | None:
        return one_kernel(self.parts())

    def begin(self, scales: Float[Array, " depth"]) -> Reader:
        return self.rebuilt(tuple(reader.begin(scales) for reader in self.parts()))

    def write(self, found: Any) -> Reader:
        return self.rebuilt(tuple(a.write(b) for a, b in zip(self.parts(), found.parts(), strict=True)))

    def ready(self) -> Reader:
        return self.rebuilt(tuple(reader.ready() for reader in self.parts()))

    def look(self, problem: Any) -> tuple[Any, ...]:
        return tuple(reader.look(problem) for reader in self.parts())

    def bind(self, seen: tuple[Any, ...]) -> Reader:
        return self.rebuilt(tuple(reader.bind(one) for reader, one in zip(self.parts(), seen, strict=True)))


class Heads(Composed):
    """Several readers whose directions are summed into one memory (Section 4.1)."""

    readers: tuple[Reader, ...] = part()

    @property
    def from_gradient(self) -> bool:
        return all(reader.from_gradient for reader in self.readers)

    def parts(self) -> tuple[Reader, ...]:
        return self.readers

    def rebuilt(self, parts: tuple[Reader, ...]) -> "Heads":
        return Heads(parts)

    def combined(self, read: Callable[[Reader], Any], problem: Any) -> Any:
        return functools.reduce(operator.add, map(read, self.readers))

    def canonical(self, depth: int, d: int) -> Reader:
        return self.merged(depth, d)

    def merged(self, depth: int, d: int | None) -> Reader:
        # those for any d are multiples of I
        each = [reader.matrices(depth, d or 1) for reader in self.readers]
        if any(matrices is None for matrices in each):
            return self
        total = as_array(sum(each))
        return Gradient(Scaled(total[:, 0, 0]) if d is None else Full(total))


class Normalised(Composed):
    """Another reader on prompts whose covariates are divided by a scale of their own.

    With c^2 the mean eigenvalue of the prompt's Gram matrix, trace(G) / d, running on x / c is the
    same as dividing every direction by c^2: attention reads two covariates for each label that it
    writes, and three for each covariate. Predictions then do not change when all covariates of a
    prompt are multiplied by a number: a shift of their variance is no shift.
    """

    reader: Reader = part()

    @property
    def views(self) -> tuple[str, ...]:
        """A kernel matrix does not tell the scale of covariates."""
        return tuple(view for view in super().views if view != "kernel")

    def parts(self) -> tuple[Reader, ...]:
        return (self.reader,)

    def rebuilt(self, parts: tuple[Reader, ...]) -> "Normalised":
        return Normalised(*parts)

    def combined(self, read: Callable[[Reader], Any], problem: Any) -> Any:
        size = problem.mean_eigenvalue()
        # an empty prompt has no scale, and needs none
        return read(self.reader) / jnp.where(size > 0, size, 1)


class Multiplied(Composed):
    """Another reader's directions times a number of the problem's own."""

    reader: Reader = part()
    factor: Array  # type: ignore[misc]

    def parts(self) -> tuple[Reader, ...]:
        return (self.reader,)

    def rebuilt(self, parts: tuple[Reader, ...]) -> "Multiplied":
        return Multiplied(*parts, self.factor)  # type: ignore[call-arg,arg-type]

    def combined(self, read: Callable[[Reader], Any], problem: Any) -> Any:
        return self.factor * read(self.reader)


class Either(Composed):
    """One reader or another, as the problem decides: both read, and one is kept."""

    first: Bool[Array, ""]
    yes: Reader = part()
    no: Reader = part()

    def parts(self) -> tuple[Reader, ...]:
        return self.yes, self.no

    def rebuilt(self, parts: tuple[Reader, ...]) -> "Either":
        return Either(self.first, *parts)

    def combined(self, read: Callable[[Reader], Any], problem: Any) -> Any:
        return jax.tree.map(lambda a, b: jnp.where(self.first, a, b), read(self.yes), read(self.no))
