"""What a method is run on: where it starts, how it moves, and two inner products.

`Tokens` is the paper's definition, `JointGram` all that linear attention sees of it, `KernelMatrix` all that
attention with a kernel sees. The others are the iterate view: `Quadratic` from the Gram matrix, `Examples` from the
examples themselves, `Operator` from products with a symmetric matrix, `Objective` from any differentiable loss. A step costs one product with the Hessian, or one gradient. The layout is the
problem's: prompts ride on the trailing axes of a `Quadratic`, a `KernelMatrix` and a `JointGram`, and a batch of any other is a
`vmap`.

>>> import jax.numpy as jnp
>>> import lfom
>>> problem = lfom.problems.Examples(jnp.eye(2), jnp.array([2.0, 1.0]))
>>> lfom.run(lfom.gradient_descent(2.0, steps=1), problem).predictions[-1].tolist()  # w after each step
[2.0, 1.0]
"""

import abc
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from lfom.core.arrays import (
    HIGHEST,
    dot,
    identity,
    matmat,
    matvec,
    norm,
    pad_axes,
    ratio,
    transpose,
    triangular_factor,
)
from lfom.core.checks import InputError
from lfom.core.states import Columns, Direction, Iterate, Track
from lfom.core.words import brief


class Problem(eqx.Module):
    """What the loop, the readers and the memories ask of a problem. prompts_last: whether prompts ride on
    trailing axes; parameters of each prompt's own may do so as well then. is_quadratic: whether the loss of the
    context is one, so that polynomials of its Hessian tell all.

    >>> import jax
    >>> import lfom
    >>> problem = lfom.LinearRegression([1.0, 0.5], context=6).prompt(jax.random.key(0)).problem("iterates")
    >>> isinstance(problem, lfom.Problem), problem.unknowns()
    (True, 2)
    """

    __repr__ = brief

    prompts_last: ClassVar[bool] = False
    is_quadratic: ClassVar[bool] = False
    view: ClassVar[str] = "iterates"  # that readers read it in

    @abc.abstractmethod
    def start(self, *, splits: bool, moves_covariates: bool) -> Any:
        """The first state. `splits`: context and query follow tracks of their own."""

    def move(self, state: Any, step: Any) -> Any:
        """The state after a step."""
        return state + step

    @abc.abstractmethod
    def read(self, reader: Any, state: Any) -> Any:
        """The reader's direction, in this problem's view."""

    @abc.abstractmethod
    def times(self, coefficient: Any, direction: Any) -> Any:
        """The coefficient times a direction, in this problem's view."""

    @abc.abstractmethod
    def slope(self, state: Any, direction: Any) -> Array:
        """-grad R(w) . direction, with R the loss of the context."""

    def curvature(self, direction: Any) -> tuple[Array, Any]:
        """direction . H direction, and the direction with its image under H kept in it, where that is known."""
        return self.conjugacy(direction, direction), direction

    def conjugacy(self, left: Any, right: Any) -> Array:
        """left . H right, for two directions."""
        raise InputError(f"{type(self).__name__} does not say what left . H right is: give it conjugacy.")

    @abc.abstractmethod
    def readout(self, state: Any) -> Array:
        """What the method answers with: the prediction (tokens) or w (iterates)."""

    @abc.abstractmethod
    def unknowns(self) -> int:
        """The number of unknowns of one problem."""

    @abc.abstractmethod
    def mean_eigenvalue(self) -> Array:
        """trace(H) / d at the start: the scale of the prompt's covariates, squared."""

    @abc.abstractmethod
    def diagonal(self) -> Array | None:
        """The diagonal of H, where it is known cheaply."""

    def as_quadratic(self) -> "Quadratic":
        """The same problem by its Gram matrix and moment, where it is a quadratic; nothing is asked."""
        raise InputError(
            f"this needs the Gram matrix of a quadratic, which {type(self).__name__} does not have."
        )

    def hessian_at_start(self) -> Array:
        """H where a method starts, (d, d, *prompts): it sets the scale of steps."""
        return self.as_quadratic().gram

    def residual(self, answer: Array) -> Float[Array, "k *prompts"]:
        """What training makes small: how far an answer is from the one that is asked for."""
        raise InputError(
            f"{type(self).__name__} asks nothing, so an answer has no loss. Use prompts with a query and a target."
        )

    def about_context(self) -> "Problem | None":
        """The same prompts, asked for the residuals of their own context, where a state holds them; else None."""
        return None

    def each(self, work: Callable[["Problem"], Array]) -> Array:
        """work(problem), whose last axis is that of prompts where this is a batch."""
        return work(self)


def read_as(like: Array, found: Any, name: str) -> Any:
    """What a reader found, which is added to an array like this one."""
    if jnp.shape(found) != like.shape:
        raise InputError(
            f"{name} returns an array of shape {jnp.shape(found)}: what it returns is added to one of shape {like.shape}, so "
            "it must have that shape."
        )
    return found


class Unreadable(InputError):
    """A user's reader ends with an error inside JAX."""


def asked(reader: Any, state: Any, shape: tuple[int, ...], problem: Problem) -> tuple[Any, str]:
    """What a reader says in the problem's view, and the name of its function. A user's reader for other sizes, or with a slip,
    ends somewhere inside JAX: said with that name."""
    name = f"{type(reader).__name__}.on_{problem.view}"
    try:
        return getattr(reader, f"on_{problem.view}")(state, problem), name
    except InputError:
        raise
    except (TypeError, ValueError) as error:
        if type(reader).__module__.startswith("lfom."):
            raise
        reason = str(error).strip().split("\n")[0].rstrip(".")
        raise Unreadable(
            f"{name} cannot read a state of shape {shape} ({reason}). Build the reader for prompts of this size, pass prompts "
            "that fit it, or repair it."
        ) from error


class OnTokens(Problem):
    """A problem whose state is a matrix with a column for every token. A batch has a leading axis; `each` runs it."""

    view = "tokens"

    Z_0: Float[Array, "*prompts rows tokens"]

    def start(self, *, splits: bool, moves_covariates: bool) -> Array:
        return self.Z_0

    def seen(self, state: Array) -> Array:
        """What attention sees of it, (d+1, n+1)."""
        return state

    def read(self, reader: Any, state: Array) -> Array:
        Z = self.seen(state)
        with jax.default_matmul_precision("highest"):  # products of a GPU keep three digits otherwise
            return read_as(Z, *asked(reader, Z, Z.shape, self))

    def times(self, coefficient: Any, direction: Array) -> Array:
        return coefficient.on_tokens(direction)

    def each(self, work: Callable[[Problem], Array]) -> Array:
        return work(self) if self.Z_0.ndim == 2 else jax.vmap(work, out_axes=-1)(self)


class Tokens(OnTokens):
    """The prompt as the matrix Z_0 of Section 2.1, (d+1, n+1); the last column is the query."""

    is_quadratic = True

    target: Float[Array, "*prompts"] | None = None
    asks_context: bool = eqx.field(static=True, default=False)  # answers are the context's own residuals

    @staticmethod
    def of(prompt: Any) -> "Tokens":
        """Of one prompt, or of a batch with a leading axis."""
        if prompt.X.ndim == 3:
            return jax.vmap(Tokens.of)(prompt)
        labels = jnp.append(prompt.y, jnp.zeros((), prompt.y.dtype))
        return Tokens(jnp.vstack([jnp.vstack([prompt.X, prompt.query]).T, labels]), prompt.target)

    # The label entries of the context are y - x.w, those of a direction -x.d (docs/mathematics.md 2.6).
    def slope(self, state: Array, direction: Array) -> Array:
        return -jnp.mean(state[-1, :-1] * direction[-1, :-1])

    def conjugacy(self, left: Array, right: Array) -> Array:
        return jnp.mean(left[-1, :-1] * right[-1, :-1])

    def readout(self, state: Array) -> Array:
        return state[-1, :-1] if self.asks_context else -state[-1, -1]  # TF_L(Z_0), Section 2.1

    def unknowns(self) -> int:
        return self.Z_0.shape[-2] - 1

    def mean_eigenvalue(self) -> Array:
        return jnp.mean(self.Z_0[:-1, :-1] ** 2)

    def diagonal(self) -> Array:
        return jnp.mean(self.Z_0[:-1, :-1] ** 2, axis=1)

    def as_quadratic(self) -> "Quadratic":
        return Quadratic(*gram_of(self.Z_0[:-1, :-1].T, self.Z_0[-1, :-1]))

    def about_context(self) -> "Tokens":
        return Tokens(self.Z_0, asks_context=True)

    def residual(self, answer: Array) -> Array:
        """The prediction minus the target, one query per prompt; or the context's residuals over sqrt(n)."""
        if self.asks_context:
            return answer / answer.shape[0] ** 0.5
        return super().residual(answer) if self.target is None else (answer - self.target)[None]


class IterateProblem(Problem):
    """A problem whose state is an Iterate."""

    @abc.abstractmethod
    def initial(self) -> tuple[Array, Array]:
        """The first w and the gradient there."""

    def hessian_times(self, vector: Array) -> Array:
        """H times a vector, for quadratics."""
        raise InputError(
            "the conjugate register needs a quadratic: the curvature of a general loss changes with w. Use a "
            f"register or a bank, or give {type(self).__name__} hessian_times if it is a quadratic."
        )

    @abc.abstractmethod
    def gradient(self, w: Array) -> Array:
        """The gradient of the context's loss at w."""

    def value(self, w: Array) -> Array:
        """The context's loss at w."""
        raise InputError(f"{type(self).__name__} does not tell the value of its loss, only its gradient.")

    def hessian(self, w: Array) -> Array:
        """Its second derivative at w, (d, d, *prompts)."""
        raise InputError(f"{type(self).__name__} does not tell the second derivative of its loss.")

    def inner(self, left: Array, right: Array) -> Array:
        """The inner product of two vectors, one number per prompt."""
        return jnp.sum(left * right)

    def unknowns(self) -> int:
        return jax.eval_shape(self.initial)[0].size

    def diagonal(self) -> Array | None:
        return None

    def mean_eigenvalue(self) -> Array:
        known = self.diagonal()
        if known is None:
            raise InputError(
                "normalised readers need the trace of H, which is not known: give the problem its diagonal, or use the "
                "reader as it is."
            )
        return jnp.mean(known)

    def has_gram(self) -> bool:
        """Whether GD++ (B not 0), which rewrites covariates, can run here."""
        return False

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

    def gradient_after(self, gradient: Array, w: Array, step: Direction) -> Array:
        """The gradient at w, which lies one step after the given one. Where H times the step is known it is
        added; otherwise the gradient is computed at w, without what rounding left before."""
        return self.gradient(w) if step.image is None else gradient + step.image

    def read(self, reader: Any, state: Iterate) -> Direction:
        w = state.context.w
        found, name = asked(reader, state, w.shape, self)
        read_as(w, found.context.w, name)
        return found

    def times(self, coefficient: Any, direction: Direction) -> Direction:
        return coefficient.on_iterates(direction)

    def slope(self, state: Iterate, direction: Direction) -> Array:
        return -self.inner(state.gradient, direction.context.w)

    def curvature(self, direction: Direction) -> tuple[Array, Direction]:
        w = direction.context.w
        image = self.hessian_times(w) if direction.image is None else direction.image
        return self.inner(w, image), Direction(direction.context, direction.query, image)

    def conjugacy(self, left: Direction, right: Direction) -> Array:
        return self.inner(left.context.w, self.hessian_times(right.context.w))

    def readout(self, state: Iterate) -> Array:
        return state.w

    def left(self, state: Iterate) -> Array:
        """The gradient at the answer, which is the context's own where the query follows its track."""
        return state.gradient if state.query is None else self.gradient(state.w)

    def at_answer(self, state: Iterate) -> Iterate:
        """The state in which another method goes on from the answer."""
        return Iterate(Track(state.w), self.left(state))

    def stretch(self, state: Iterate, moved: Iterate, step: Direction) -> Array:
        """|H step| / |step| where the image is known and nothing tells the norm of H more cheaply, else 0."""
        w, image = step.context.w, step.image
        if image is None or self.has_gram():
            return jnp.zeros((), w.dtype)
        return ratio(norm(image), norm(w))

    def finite(self) -> Array:
        """Whether all numbers of the problem are finite."""
        floating = [leaf for leaf in jax.tree.leaves(self) if jnp.issubdtype(leaf.dtype, jnp.floating)]
        return jnp.stack([jnp.isfinite(leaf).all() for leaf in floating]).all()

    def blur(self) -> Array | None:
        """By how much rounding may have moved the gradient at 0, where that was computed and not brought."""
        return None

    def dominating(self, x: Array) -> Array | None:
        """c of the unknowns' shape with H <= diag(c), for positive x; None where that is not cheap.

        c = |H| x / x does it: diag(c) - H is diagonally dominant in the coordinates w / x, with a
        diagonal that is not negative, so it is positive semidefinite.
        """
        return None


class WithMoment(IterateProblem):
    """w.Hw/2 - b.w with a constant H, begun at w = 0; b is the field `moment` of every such class."""

    is_quadratic = True

    def initial(self: Any) -> tuple[Array, Array]:
        return jnp.zeros_like(self.moment), -self.moment

    def gradient(self: Any, w: Array) -> Array:
        return self.hessian_times(w) - self.moment

    def unknowns(self: Any) -> int:
        return self.moment.size


class Quadratic(WithMoment):
    """R(w) = w.Gw/2 - b.w with G = X^T X / n and b = X^T y / n, and the question asked of w.

    The loss of a prompt is |probe w - target|^2. With one query x the probe is x^T; with the
    query averaged out exactly it is a root of E[x x^T] and the target is that root times w*.
    Prompts ride on trailing axes; a probe without them is shared by all.
    """

    prompts_last = True

    gram: Float[Array, "d d *prompts"]
    moment: Float[Array, "d *prompts"]
    probe: Any = None  # (k, d, *prompts), or (k, d) shared by all; None where nothing is asked
    target: Any = None  # (k, *prompts)
    anew: bool = eqx.field(static=True, default=False)  # whether every gradient is computed at its own w

    @staticmethod
    def of(prompt: Any) -> "Quadratic":
        """The quadratic of one prompt, or of a batch; its probe is the prompt's query."""
        if prompt.X.ndim == 3:
            return jax.vmap(Quadratic.of, out_axes=-1)(prompt)
        gram, moment = gram_of(prompt.X, prompt.y)
        return Quadratic(gram, moment, prompt.query[None], prompt.target[None])

    def hessian_times(self, vector: Array) -> Array:
        return matvec(self.gram, vector)

    def gradient_after(self, gradient: Array, w: Array, step: Direction) -> Array:
        """Added up, which is how training and scores have always done it, unless `anew`."""
        if self.anew:
            return super().gradient_after(gradient, w, step)
        return gradient + (self.hessian_times(step.context.w) if step.image is None else step.image)

    def inner(self, left: Array, right: Array) -> Array:
        return dot(left, right)

    def has_gram(self) -> bool:
        return True

    def unknowns(self) -> int:
        return self.moment.shape[0]

    def mean_eigenvalue(self) -> Array:
        d = self.gram.shape[0]
        return sum((self.gram[i, i] for i in range(1, d)), self.gram[0, 0]) / d

    def diagonal(self) -> Array:
        return jnp.moveaxis(jnp.diagonal(self.gram, axis1=0, axis2=1), -1, 0)

    def dominating(self, x: Array) -> Array:
        return matvec(jnp.abs(self.gram), x) / x

    def as_quadratic(self) -> "Quadratic":
        return self

    def residual(self, answer: Array) -> Array:
        """probe w - target, (k, *prompts)."""
        if self.probe is None or self.target is None:
            return super().residual(answer)
        return matvec(self.probe, answer) - self.target


class KernelMatrix(Quadratic):
    """Least squares over functions f = sum_i alpha_i k(x_i, .) of the context's examples, one unknown alpha_i each:
    what attention with a kernel works on.

    gram is K / n, moment y / n, and the probe k(x_i, query). The gradient K alpha / n - y / n is that of
    |f(X) - y|^2 / 2n in the space of the kernel, whose inner product is u.Kv.
    """

    view = "kernel"

    @staticmethod
    def of(prompt: Any, kernel: Any = None) -> "KernelMatrix":
        """Of one prompt, or of a batch."""
        last = jax.tree.map(lambda a: jnp.moveaxis(a, 0, -1), prompt) if prompt.X.ndim == 3 else prompt
        return KernelMatrix.between(
            kernel.between(jnp.concatenate([last.X, last.query[None]]), last.X), last.y, last.target
        )

    @staticmethod
    def between(K: Float[Array, "tokens n *prompts"], y: Array, target: Array) -> "KernelMatrix":
        """From k(x, x') between all tokens, the query last, and the context, and the labels."""
        n = y.shape[0]
        return KernelMatrix(K[:-1] / n, y / n, K[-1:], target[None])

    def times(self, coefficient: Any, direction: Direction) -> Direction:
        return coefficient.on_kernel(direction)

    def inner(self, left: Array, right: Array) -> Array:
        return self.unknowns() * dot(left, matvec(self.gram, right))

    def curvature(self, direction: Direction) -> tuple[Array, Direction]:
        """R.K(K/n)R, from the image alone."""
        image = self.hessian_times(direction.context.w) if direction.image is None else direction.image
        return self.unknowns() * dot(image, image), Direction(direction.context, direction.query, image)

    def about_context(self) -> "KernelMatrix":
        """|f(X) - y|^2 / n, as on tokens."""
        root = self.unknowns() ** 0.5
        return KernelMatrix(self.gram, self.moment, root * self.gram, root * self.moment)

    def has_gram(self) -> bool:
        return False

    def mean_eigenvalue(self) -> Array:
        raise InputError(
            "normalised readers need the scale of covariates, which a kernel matrix does not tell."
        )


class JointGram(Problem):
    """All that linear attention sees of a prompt, whatever P and Q: the joint Gram matrix S = Z_0 M Z_0^T / n of
    covariates and labels, and the questions that are asked (docs/mathematics.md 6).

    S is kept as Y Y^T with at most d + 1 columns: a shorter prompt, which no layer can tell from the whole. The
    queries are columns of their own, that all see the same context, as many as the probe has rows. What is
    asked is said as in `Quadratic`; prompts ride on trailing axes.
    """

    prompts_last, is_quadratic, view = True, True, "joint"

    context: Float[Array, "rows short *prompts"]  # Y
    probe: Any = None  # (k, d, *prompts), or (k, d) shared by all
    target: Any = None  # (k, *prompts)
    asks_context: bool = eqx.field(static=True, default=False)  # answers are the context's own residuals

    @staticmethod
    def of(prompt: Any) -> "JointGram":
        """Of one prompt, or of a batch; its probe is the prompt's query."""
        last = jax.tree.map(lambda a: jnp.moveaxis(a, 0, -1), prompt) if prompt.X.ndim == 3 else prompt
        n, d = last.X.shape[:2]
        Z = jnp.concatenate([last.X, last.y[:, None]], axis=1) / n**0.5
        short = Z if n <= d + 1 else triangular_factor(Z)
        return JointGram(transpose(short), last.query[None], last.target[None])

    def start(self, *, splits: bool, moves_covariates: bool) -> Columns:
        if self.probe is None:
            return Columns(self.context, self.context[:, :0])
        queries = pad_axes(transpose(self.probe), self.context.ndim)
        queries = jnp.broadcast_to(queries, (*queries.shape[:2], *self.context.shape[2:]))
        return Columns(self.context, jnp.concatenate([queries, jnp.zeros_like(queries[:1])]))

    def read(self, reader: Any, state: Columns) -> Columns:
        found, name = asked(reader, state, state.context.shape, self)
        return Columns(
            read_as(state.context, found.context, name),
            read_as(state.query, found.query, f"{name}, of the query,"),
        )

    def times(self, coefficient: Any, direction: Columns) -> Columns:
        return coefficient.on_joint(direction)

    def slope(self, state: Columns, direction: Columns) -> Array:
        return -dot(state.context[-1], direction.context[-1])

    def conjugacy(self, left: Columns, right: Columns) -> Array:
        return dot(left.context[-1], right.context[-1])

    def readout(self, state: Columns) -> Array:
        return state.context[-1] if self.asks_context else -state.query[-1]

    def unknowns(self) -> int:
        return self.context.shape[0] - 1

    def mean_eigenvalue(self) -> Array:
        return jnp.sum(self.diagonal(), axis=0) / self.unknowns()

    def diagonal(self) -> Array:
        return jnp.sum(self.context[:-1] ** 2, axis=1)

    def as_quadratic(self) -> Quadratic:
        X, y = self.context[:-1], self.context[-1]
        return Quadratic(matmat(X, transpose(X)), matvec(X, y), self.probe, self.target)

    def residual(self, answer: Array) -> Array:
        """The predictions minus the targets, (k, *prompts); or the context's residuals over sqrt(n)."""
        if self.asks_context:
            return answer
        return super().residual(answer) if self.target is None else answer - self.target

    def about_context(self) -> "JointGram":
        return JointGram(self.context, asks_context=True)


Sums = tuple[Float[Array, "d d *prompts"], Float[Array, "d *prompts"]]


def unshared(problem: Any) -> Any:
    """The same prompts, prompts last, each with a probe of its own, (k, d, prompts), also where all share one."""
    probe, count = problem.probe, problem.target.shape[-1]
    own = probe if probe.ndim == 3 else jnp.broadcast_to(probe[..., None], (*probe.shape, count))
    return replace(problem, probe=own)


def gram_of(
    X: Float[Array, "n d *prompts"], y: Float[Array, "n ..."], shares: Float[Array, " n"] | None = None
) -> tuple[Array, Array]:
    """X^T X / n and X^T y / n, in full precision on every device. y: (n, *prompts), or of one prompt several labels for
    each example. shares: what every example of one prompt counts instead of 1 / n."""
    n = X.shape[0]
    if X.ndim > 2:  # as sums of products: an einsum with prompts last becomes a slow batched product
        return jnp.sum(X[:, :, None] * X[:, None], axis=0) / n, jnp.sum(X * y[:, None], axis=0) / n
    if shares is None:
        return jnp.matmul(X.T, X, precision=HIGHEST) / n, jnp.matmul(X.T, y, precision=HIGHEST) / n
    counted = (X * shares[:, None]).T
    return jnp.matmul(counted, X, precision=HIGHEST), jnp.matmul(counted, y, precision=HIGHEST)


def no_sums(X: Float[Array, "n d *prompts"]) -> Sums:
    return jnp.zeros((X.shape[1], *X.shape[1:]), X.dtype), jnp.zeros_like(X[0])


def add_examples(
    sums: Sums, X: Float[Array, "n d *prompts"], y: Float[Array, "n *prompts"], first: Any, last: Any
) -> Sums:
    """X^T X and X^T y with the examples first .. last - 1 added. A loop, so that X that is drawn in the same program is
    drawn once: in sums every product would draw its factors again (ten times slower)."""

    def add(i: Array, total: Sums) -> Sums:
        return total[0] + X[i][:, None] * X[i][None], total[1] + X[i] * y[i]

    return jax.lax.fori_loop(first, last, add, sums)


class Examples(IterateProblem):
    """The same quadratic from the examples X (n, d) and y (n,), without forming G: cheaper
    while twice the number of steps stays below d."""

    is_quadratic = True

    X: Float[Array, "n d"]
    y: Float[Array, " n"]

    def initial(self) -> tuple[Array, Array]:
        moment = self.X.T @ self.y / self.X.shape[0]
        return jnp.zeros_like(moment), -moment

    def hessian_times(self, vector: Array) -> Array:
        return self.X.T @ (self.X @ vector) / self.X.shape[0]

    def gradient(self, w: Array) -> Array:
        return self.X.T @ (self.X @ w - self.y) / self.X.shape[0]

    def unknowns(self) -> int:
        return self.X.shape[1]

    def diagonal(self) -> Array:
        return jnp.mean(self.X**2, axis=0)

    def as_quadratic(self) -> Quadratic:
        return Quadratic(*gram_of(self.X, self.y))


READ = 3  # multiplications in the time of reading a matrix entry: products with one vector wait for memory (measured)


def cheaper_by_rows(n: int, d: int, steps: int, sides: int = 1) -> bool:
    """Whether `steps` products with X (n, d) and its transpose, for so many right-hand sides, cost less than forming
    X^T X, n d^2 multiplications, and as many products with it."""
    product = steps * max(READ, sides)
    return 2 * n * d * product < n * d * d + d * d * product


class Regression(Quadratic):
    """A quadratic that was formed of examples. rms: sqrt(sum_i s_i y_i^2), the size of their labels. trace: of X^T S X, without
    the ridge."""

    rms: Any = None
    trace: Any = None

    def blur(self) -> Array:
        return blurred(self.trace, self.rms, self.moment)


def blurred(trace: Array, rms: Array, moment: Array) -> Array:
    """By how much X^T S y is off: a few eps |X|^T S |y|, which is at most eps sqrt(trace(X^T S X)) rms. Zeros are what they say
    unless their products are lost."""
    limits, most = jnp.finfo(rms.dtype), jnp.sqrt(trace) * rms
    exact = (rms == 0) | (~jnp.any(moment != 0) & (most > limits.smallest_normal / limits.eps))
    return jnp.where(exact, 0, jnp.maximum(2 * limits.eps * most, limits.smallest_normal))


class ByRows(WithMoment):
    """w.Hw/2 - b.w with H = X^T diag(shares) X + ridge I, through products with X and its transpose: H is never formed. rms:
    see `Regression`."""

    X: Float[Array, "n d"]
    shares: Float[Array, " n"] | Float[Array, ""]
    ridge: Float[Array, ""]
    moment: Float[Array, " d"]
    rms: Any = None

    def blur(self) -> Array | None:
        if self.rms is None:
            return None
        return blurred(jnp.sum(self.diagonal() - self.ridge), self.rms, self.moment)

    def hessian_times(self, vector: Array) -> Array:
        seen = pad_axes(self.shares, vector.ndim) * jnp.matmul(self.X, vector, precision=HIGHEST)
        return jnp.tensordot(self.X, seen, (0, 0), precision=HIGHEST) + self.ridge * vector

    def unknowns(self) -> int:
        return self.X.shape[1]

    def diagonal(self) -> Array:
        shares = jnp.broadcast_to(self.shares, self.X.shape[:1])
        return jnp.matmul(shares, self.X**2, precision=HIGHEST) + self.ridge


class Operator(WithMoment):
    """w.Aw/2 - b.w with A given as a function: operator(data, v) = A v. Unknowns may be grids."""

    operator: Callable[[Any, Array], Array] = eqx.field(static=True)
    data: Any
    moment: Array
    known_diagonal: Array | None = None

    def hessian_times(self, vector: Array) -> Array:
        return self.operator(self.data, vector)

    def diagonal(self) -> Array | None:
        return self.known_diagonal


class Objective(IterateProblem):
    """Any differentiable loss(w, data), read through its gradient; needs B = 0."""

    loss: Callable[..., Array] = eqx.field(static=True)
    w_0: Array
    data: Any = ()

    def value(self, w: Array) -> Array:
        return self.loss(w, self.data) if jax.tree.leaves(self.data) else self.loss(w)

    def initial(self) -> tuple[Array, Array]:
        return self.w_0, self.gradient(self.w_0)

    def gradient(self, w: Array) -> Array:
        return jax.grad(self.value)(w)

    def stretch(self, state: Iterate, moved: Iterate, step: Direction) -> Array:
        """From the change of the gradient; of a step that is lost beside w that is rounding."""
        w = step.context.w
        least = jnp.finfo(w.dtype).eps * norm(moved.context.w)
        return ratio(norm(moved.gradient - state.gradient), norm(w) + least)

    def unknowns(self) -> int:
        return self.w_0.size
