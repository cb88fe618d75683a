"""The distributions that prompts come from (Sections 2.1, 3.3 and 4.2)."""

import abc
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, PRNGKeyArray

from lfom.core import checks, room
from lfom.core.arrays import as_array, matmat, matvec, numpy_or_jax, on_host, pad_axes, transpose
from lfom.core.checks import InputError
from lfom.core.kernels import Kernel
from lfom.core.problems import JointGram, Problem, Quadratic
from lfom.core.states import VIEWS
from lfom.core.words import brief
from lfom.prompts.prompt import Prompt

PUBLISHED_SPECTRUM = (1.0, 1.0, 0.25, 0.0625, 1.0)  # of the authors' code and all their curves
LONGEST = 2**31 - 1  # examples of a prompt
FEW_DEGREES = 64  # chi-square numbers up to here are made of uniforms
TEXT_SPECTRUM = (1.0, 1.0, 0.5, 0.25, 1.0)  # of the paper's text (docs/mathematics.md 2.1)


def haar_rotation(key: PRNGKeyArray, d: int) -> Float[Array, "d d"]:
    """A rotation drawn uniformly from the orthogonal group.

    >>> import jax
    >>> import jax.numpy as jnp
    >>> from lfom import haar_rotation
    >>> U = haar_rotation(jax.random.key(0), 3)
    >>> bool(jnp.allclose(U @ U.T, jnp.eye(3), atol=1e-5))
    True
    """
    return jax.random.orthogonal(checks.random_key("key", key), square("d", d))


def square(name: str, d: int) -> int:
    """The size of a matrix."""
    d = checks.count(name, d)
    room.fits(f"{name} is {d}", 8.0 * d * d, "Pass a smaller one.")
    return d


def examples(context: Any) -> int:
    """How many a prompt has: they are counted in 32 bits."""
    if checks.count("context", context) > LONGEST:
        raise InputError(f"context is {context}: a prompt has at most {LONGEST:,} examples. Pass fewer.")
    return int(context)


def asked(key: Any, count: int, numbers: float) -> int:
    """How many prompts are drawn. numbers: of one prompt, at the least."""
    checks.random_key("key", key)
    count = checks.count("count", count)
    room.fits(f"count is {count}", 4.0 * count * numbers, "Draw them in parts.")
    return count


class Prior(NamedTuple):
    """What is known of a prompt before it is seen: w* ~ N(0, covariance), labels with noise * N(0, 1)."""

    covariance: Any  # (d, d)
    noise: Any


class Distribution(eqx.Module):
    """Where prompts come from. views: those that its prompts can be read in. is_quadratic: whether the loss of a
    context is one, as that of linear regression is.

    >>> import jax
    >>> import lfom
    >>> class Sums(lfom.Distribution):
    ...     dimension = 3
    ...     def prompt(self, key):
    ...         X = jax.random.normal(key, (9, 3))
    ...         return lfom.Prompt(X[:-1], X[:-1].sum(1), X[-1], X[-1].sum())
    >>> Sums().prompts(jax.random.key(0), 4).X.shape
    (4, 8, 3)
    """

    __repr__ = brief

    views: ClassVar[tuple[str, ...]] = VIEWS
    is_quadratic: ClassVar[bool] = True
    given: ClassVar[bool] = False  # its prompts are drawn

    @property
    @abc.abstractmethod
    def dimension(self) -> int: ...

    @abc.abstractmethod
    def prompt(self, key: PRNGKeyArray) -> Prompt:
        """One prompt."""

    def quadratics(self, key: PRNGKeyArray, count: int) -> Quadratic:
        """`count` prompts as quadratics on a trailing axis. Here with the query that was drawn; classes that
        can average it out exactly do."""
        return self.prompts(key, count).problem("iterates")  # type: ignore[return-value]

    def joints(self, key: PRNGKeyArray, count: int) -> JointGram:
        """The same for linear attention with any P and Q: `count` joint Gram matrices of covariates and labels."""
        return JointGram.of(self.prompts(key, count))

    def problems(self, key: PRNGKeyArray, count: int, view: str, kernel: Kernel | None = None) -> Problem:
        """`count` prompts as what is read in a view, the query averaged out where this can be done."""
        if view == "iterates":
            return self.quadratics(key, count)
        if view == "joint":
            return self.joints(key, count)
        return self.prompts(key, count).problem(view, kernel)

    def outline(self) -> Prompt:
        """The shapes of a prompt, without drawing one."""
        return jax.eval_shape(lambda: self.prompt(jax.random.key(0)))

    def question(self, prompts: Prompt) -> tuple[Array, Array]:
        """What is asked of w in a batch of prompts, as a Quadratic's probe and target: here the query of each; all queries
        at once where E[x x^T] is known."""
        return prompts.query.T[None], prompts.target[None]

    @property
    def prior(self) -> Prior | None:
        """Of w*, where it is a normal one: the Bayes predictor follows from it."""
        return None

    @property
    def has_one_matrix(self) -> bool:
        """Whether it is known that the best A_l are multiples of one matrix (Appendix D), so that training
        need not free them one by one."""
        return False

    @property
    def has_exact_optimum(self) -> bool:
        """Whether `exact_optimum` is that of its prompts, which is so for normal covariates."""
        return False

    def prompts(self, key: PRNGKeyArray, count: int) -> Prompt:
        """A batch of `count` prompts on a leading axis."""
        count = asked(key, count, 2.0 * self.dimension * getattr(self, "context", 1))
        return _prompts(self, jax.random.split(key, count))

    def prompts_last(self, key: PRNGKeyArray, count: int) -> tuple[Array, Array, Array]:
        """The same as examples with their query (n + 1, d, count), labels (n, count) and targets (count,)."""
        drawn = self.prompts(key, count)
        X = jnp.concatenate([drawn.X, drawn.query[:, None]], axis=1)
        return jnp.moveaxis(X, 0, -1), drawn.y.T, drawn.target

    def at_once(self, key: PRNGKeyArray, count: int) -> Prompt:
        """The same from few calls of the random generator, where a class can: other prompts than those of `prompts`, in
        programs that compile several times faster."""
        return self.prompts(key, count)


class Remade(Distribution):
    """`base`, remade."""

    base: eqx.AbstractVar[Distribution]

    @property
    def dimension(self) -> int:
        return self.base.dimension


class Moved(Remade):
    """`base` with covariates elsewhere. What is known of w* is what it was: it does not depend on them."""

    @property
    def prior(self) -> Prior | None:
        return self.base.prior


def a_distribution(name: str, value: Any) -> Any:
    """`value` where prompts can be drawn from it."""
    return checks.instance(
        name, value, Distribution, "a distribution such as lfom.LinearRegression([1.0, 0.5], context=20)"
    )


@eqx.filter_jit
def _prompts(distribution: Distribution, keys: Array) -> Prompt:
    return jax.vmap(distribution.prompt)(keys)


class LinearRegression(Distribution):
    """x ~ N(0, S), S = variance * U^T diag(spectrum) U, w* ~ N(0, weight_variance * S^-1),
    y = x.w* + noise * N(0, 1); the target is x.w* without noise.

    context: the number n of examples in a prompt. rotation: U (d, d), or None for none;
    draw one with haar_rotation. weights: a fixed w* instead of a random one.

    >>> import jax
    >>> from lfom import PUBLISHED_SPECTRUM, LinearRegression
    >>> data = LinearRegression(PUBLISHED_SPECTRUM, context=20)
    >>> data.prompts(jax.random.key(0), 8).X.shape
    (8, 20, 5)
    """

    spectrum: Float[Array, " d"]
    variance: Float[Array, ""]
    noise: Float[Array, ""]
    weight_variance: Float[Array, ""]
    rotation: Float[Array, "d d"] | None
    weights: Float[Array, " d"] | None
    context: int = eqx.field(static=True)

    def __init__(
        self,
        spectrum: Any,
        context: int,
        *,
        rotation: Any = None,
        variance: Any = 1.0,
        noise: Any = 0.0,
        weights: Any = None,
        weight_variance: Any = 1.0,
    ):
        self.spectrum = checks.positive("spectrum", spectrum, (None,))
        d = self.spectrum.shape[0]
        self.context = examples(context)
        self.rotation = None if rotation is None else checks.rotation("rotation", rotation, d)
        self.variance = checks.positive("variance", variance)
        self.noise = checks.non_negative("noise", noise)
        self.weight_variance = checks.positive("weight_variance", weight_variance)
        self.weights = None if weights is None else checks.real_array("weights", weights, (d,))

    @property
    def dimension(self) -> int:
        return self.spectrum.shape[-1]

    @property
    def has_one_matrix(self) -> bool:
        """Appendix D: for w* ~ N(0, S^-1), whatever its scale. A given w* is not covered."""
        return self.weights is None

    @property
    def has_exact_optimum(self) -> bool:
        return self.has_one_matrix

    @property
    def root(self) -> Any:  # (d, d)
        """F with F^T F = S: x = F^T z for standard normal z."""
        xp, variance, spectrum, rotation = self._known()
        scale = xp.sqrt(variance * spectrum)
        return xp.diag(scale) if rotation is None else scale[:, None] * rotation

    def _known(self) -> tuple[Any, ...]:
        """NumPy and its arrays where the numbers are known, else JAX and its own."""
        arrays = [None if a is None else on_host(a) for a in (self.variance, self.spectrum, self.rotation)]
        return numpy_or_jax(*arrays), *arrays

    @property
    def covariance(self) -> Any:  # (d, d)
        return self.root.T @ self.root

    @property
    def inverse_root(self) -> Any:  # (d, d)
        """F^-1: w = F^-1 z has covariance S^-1."""
        xp, variance, spectrum, rotation = self._known()
        scale = xp.sqrt(variance * spectrum)
        return xp.diag(1 / scale) if rotation is None else rotation.T / scale

    def prompt(self, key: PRNGKeyArray) -> Prompt:
        covariates, weights, labels = jax.random.split(key, 3)
        d, dtype = self.dimension, self.spectrum.dtype
        X = jax.random.normal(covariates, (self.context + 1, d), dtype) @ self.root
        w = self.draw_weights(jax.random.normal(weights, (d,), dtype))
        y = X[:-1] @ w + self.noise * jax.random.normal(labels, (self.context,), dtype)
        return Prompt(X[:-1], y, X[-1], X[-1] @ w, w)

    def at_once(self, key: PRNGKeyArray, count: int) -> Prompt:
        n, d = self.context, self.dimension
        count = asked(key, count, 2 * n * d)
        z = jax.random.normal(key, (count, (n + 1) * d + d + n), self.spectrum.dtype)
        z = jax.lax.optimization_barrier(z)  # in sums every product would draw its factors again
        X = z[:, : (n + 1) * d].reshape(count, n + 1, d) @ self.root
        w = self.draw_weights(z[:, (n + 1) * d : (n + 2) * d].T).T
        labels = jnp.sum(X * w[:, None], axis=2)
        return Prompt(
            X[:, :-1], labels[:, :-1] + self.noise * z[:, (n + 2) * d :], X[:, -1], labels[:, -1], w
        )

    def question(self, prompts: Prompt) -> tuple[Array, Array]:
        root = as_array(self.root)
        return root, matvec(root, jnp.asarray(prompts.weights).T)

    @property
    def prior(self) -> Prior | None:
        if self.weights is not None:
            return None
        inverse = self.inverse_root
        return Prior(self.weight_variance * (inverse @ inverse.T), self.noise)

    def quadratics(self, key: PRNGKeyArray, count: int) -> Quadratic:
        """Gram matrices drawn directly (Wishart): the cost does not depend on `context`.

        G = F^T (C C^T / n) F with the Bartlett factor C, and given G, b has mean G w* and
        covariance noise^2 G / n (docs/mathematics.md 4).
        """
        half, w, xi, _ = self._factors(key, count, [])
        gram = matmat(half, transpose(half))
        scatter = self.noise * self._shrunk(matvec(half, xi))
        root = as_array(self.root)
        return Quadratic(gram, matvec(gram, w) + scatter, root, matvec(root, w))

    def joints(self, key: PRNGKeyArray, count: int) -> JointGram:
        """The joint matrix of covariates and labels is Wishart as well: one row and, where n > d, one column
        more of the factor, which belong to the noise. The same prompts as those of `quadratics`."""
        more = [self.context - self.dimension] if self.context > self.dimension else []
        half, w, xi, chi_squares = self._factors(key, count, more)
        noise = self._shrunk(jnp.concatenate([xi, jnp.sqrt(chi_squares)]))
        half = jnp.concatenate([half, jnp.zeros((self.dimension, len(more), count), half.dtype)], axis=1)
        labels = matvec(transpose(half), w) + self.noise * noise
        root = as_array(self.root)
        return JointGram(jnp.concatenate([half, labels[None]]), root, matvec(root, w))

    def _factors(self, key: PRNGKeyArray, count: int, more: list[int]) -> tuple[Array, ...]:
        """Y (d, min(n, d), count) with Y Y^T = G, w*, normals of the noise, and chi-square numbers of `more`
        degrees of freedom, which change nothing else."""
        d, dtype = self.dimension, self.spectrum.dtype
        count = asked(key, count, 2 * d * d)
        degrees, below = _bartlett_sizes(d, self.context)
        normals, chi_squares = _normals_and_chi_squares(key, below + 2 * d, degrees, count, dtype, more)
        factor = _bartlett(normals[:below], chi_squares[: len(degrees)], d)
        z, xi = normals[below : below + d], normals[below + d : below + d + factor.shape[1]]
        half = self._shrunk(matmat(as_array(self.root).T, factor))
        return half, self.draw_weights(z), xi, chi_squares[len(degrees) :]

    def _shrunk(self, total: Array) -> Array:
        """Over sqrt(n)."""
        return total / jnp.sqrt(jnp.asarray(self.context, total.dtype))

    def draw_weights(self, z: Array) -> Array:
        """w* from standard normal z (d, *prompts)."""
        if self.weights is not None:
            return jnp.broadcast_to(pad_axes(self.weights, z.ndim), z.shape)
        return jnp.sqrt(self.weight_variance) * matvec(as_array(self.inverse_root), z)


class GaussianMixture(Distribution):
    """Each prompt comes from one component m, chosen with probability weights[m]:
    x ~ N(mean_m, variance_m * S), S = U^T diag(spectrum) U.

    w* ~ N(mean_m or 0, s * S^-1). `weight_mean` says whether w* takes the component's mean
    too; `weight_variance` is "inverse" for s = 1 / variance_m (the theorem of Section 4.2) or
    "same" for s = variance_m (the authors' code, docs/mathematics.md 2.12).

    means: (components, d). variances, weights: (components,).

    >>> import jax
    >>> import lfom
    >>> data = lfom.GaussianMixture([[0.0], [3.0]], variances=[1.0, 2.0], weights=[0.5, 0.5], context=6)
    >>> data.prompts(jax.random.key(0), 4).X.shape, data.component(1).means.tolist()
    ((4, 6, 1), [[3.0]])
    """

    means: Float[Array, "components d"]
    variances: Float[Array, " components"]
    weights: Float[Array, " components"]
    spectrum: Float[Array, " d"]
    rotation: Float[Array, "d d"] | None
    noise: Float[Array, ""]
    context: int = eqx.field(static=True)
    weight_mean: bool = eqx.field(static=True)
    weight_variance: str = eqx.field(static=True)

    def __init__(
        self,
        means: Any,
        variances: Any,
        weights: Any,
        context: int,
        *,
        spectrum: Any = None,
        rotation: Any = None,
        noise: Any = 0.0,
        weight_mean: bool = True,
        weight_variance: str = "inverse",
    ):
        self.means = checks.real_array("means", means, (None, None))
        components, d = self.means.shape
        self.variances = checks.positive("variances", variances, (components,))
        self.weights = checks.probabilities("weights", weights)
        if self.weights.shape[0] != components:
            raise InputError(
                f"weights has {self.weights.shape[0]} entries for {components} means: give one "
                "weight per component."
            )
        self.spectrum = checks.positive("spectrum", [1.0] * d if spectrum is None else spectrum, (d,))
        self.rotation = None if rotation is None else checks.rotation("rotation", rotation, d)
        self.noise = checks.non_negative("noise", noise)
        self.context = examples(context)
        self.weight_mean = checks.flag("weight_mean", weight_mean)
        self.weight_variance = checks.known("weight_variance", weight_variance, ("inverse", "same"))

    @property
    def dimension(self) -> int:
        return self.spectrum.shape[-1]

    def component(self, index: int) -> "GaussianMixture":
        """The distribution of one component alone."""
        keep = slice(index, index + 1)
        means, variances, weights = (on_host(a)[keep] for a in (self.means, self.variances, self.weights))
        own = tuple(map(as_array, (means, variances, weights * 0 + 1)))
        return eqx.tree_at(lambda m: (m.means, m.variances, m.weights), self, own)

    def prompt(self, key: PRNGKeyArray) -> Prompt:
        return self._draw(key)[0]

    def quadratics(self, key: PRNGKeyArray, count: int) -> Quadratic:
        """Not central, so the examples themselves are drawn and reduced to Gram matrices."""

        def one(key: PRNGKeyArray) -> Quadratic:
            prompt, root = self._draw(key)
            exact = Quadratic.of(prompt)
            return Quadratic(exact.gram, exact.moment, root, root @ jnp.asarray(prompt.weights))

        return jax.vmap(one, out_axes=-1)(jax.random.split(key, checks.count("count", count)))

    def _draw(self, key: PRNGKeyArray) -> tuple[Prompt, Array]:
        which, covariates, weights, labels = jax.random.split(key, 4)
        d, dtype = self.dimension, self.spectrum.dtype
        m = jax.random.choice(which, self.weights.shape[0], p=self.weights)
        mean, variance = self.means[m], self.variances[m]
        scale = jnp.sqrt(self.spectrum)
        root = jnp.diag(scale) if self.rotation is None else scale[:, None] * self.rotation
        inverse = jnp.diag(1 / scale) if self.rotation is None else self.rotation.T / scale
        X = mean + jnp.sqrt(variance) * jax.random.normal(covariates, (self.context + 1, d), dtype) @ root
        spread = variance if self.weight_variance == "same" else 1 / variance
        w = jnp.sqrt(spread) * inverse @ jax.random.normal(weights, (d,), dtype)
        w = w + mean if self.weight_mean else w
        y = X[:-1] @ w + self.noise * jax.random.normal(labels, (self.context,), dtype)
        # E[x x^T] = variance S + mean mean^T = R^T R with d + 1 rows
        second_moment_root = jnp.vstack([jnp.sqrt(variance) * root, mean])
        return Prompt(X[:-1], y, X[-1], X[-1] @ w, w), second_moment_root


def bartlett_factor(key: PRNGKeyArray, d: int, n: int, count: int, dtype: Any = float) -> Array:
    """C (d, min(n, d), count), lower trapezoidal, with C C^T distributed as X^T X for an
    (n, d) matrix X of standard normals: chi on the diagonal, normal below (Bartlett 1933).

    n < d gives the singular case: the factor then has n columns.
    """
    degrees, below = _bartlett_sizes(d, n)
    return _bartlett(*_normals_and_chi_squares(key, below, degrees, count, dtype), d)


def _bartlett_sizes(d: int, n: int) -> tuple[list[int], int]:
    """Degrees of freedom on the diagonal, and how many normals stand below it."""
    rank = min(n, d)
    return [n - j for j in range(rank)], d * rank - rank * (rank + 1) // 2


def _bartlett(normals: Array, chi_squares: Array, d: int) -> Array:
    below, (rank, count) = normals.shape[0], chi_squares.shape
    parts = jnp.concatenate([normals, jnp.sqrt(chi_squares), jnp.zeros((1, count), normals.dtype)])
    place = np.full((d, rank), below + rank)  # the row of zeros
    place[np.tril_indices(d, -1, rank)] = np.arange(below)
    place[np.arange(rank), np.arange(rank)] = below + np.arange(rank)
    return parts[place.reshape(-1)].reshape(d, rank, count)


def _normals_and_chi_squares(
    key: PRNGKeyArray, normals: int, degrees: list[int], count: int, dtype: Any, more: Sequence[int] = ()
) -> tuple[Array, Array]:
    """Standard normals (normals, count) and chi-square numbers (degrees and more, count), from one call of the
    random generator: it takes seconds to compile, each time that it is called. more: further degrees, which
    leave all other numbers as they are.

    A chi-square of an even number of degrees is -2 log of a product of uniforms, of an odd number that
    plus the square of a normal. Many degrees take a rejection method instead.
    """
    few = max(degrees) <= FEW_DEGREES
    wanted = [*degrees, *more]
    odd, halves = [k % 2 for k in wanted if few], [k // 2 for k in wanted if few]
    bell, late = normals + sum(odd[: len(degrees)]), sum(odd[len(degrees) :])
    u = jax.lax.optimization_barrier(jax.random.uniform(key, (bell + sum(halves) + late, count), dtype))
    edge = jnp.finfo(u.dtype).epsneg
    to_bell = jnp.concatenate([u[:bell], u[u.shape[0] - late :]]) if late else u[:bell]
    bounded = jnp.clip(2 * to_bell - 1, edge - 1, 1 - edge)
    z = jax.lax.optimization_barrier(jnp.sqrt(jnp.asarray(2, u.dtype)) * jax.scipy.special.erfinv(bounded))
    if not few:
        found = [
            chi_square(
                jax.random.fold_in(key, number), jnp.asarray(some, u.dtype)[:, None], (len(some), count)
            )
            for number, some in enumerate((degrees, more), start=1)
            if some
        ]
        return z, jnp.concatenate(found)
    chi_squares, at, square = [], bell, normals
    for is_odd, half in zip(odd, halves, strict=True):
        total = jnp.zeros(count, u.dtype)
        for first in range(at, at + half, 8):  # eight at a time: products of more might underflow
            some = 1 - u[first : min(first + 8, at + half)]  # u may be 0, this may not
            total = total - 2 * jnp.log(jnp.prod(some, axis=0))
        if is_odd:
            total = total + z[square] ** 2
        chi_squares.append(total)
        at, square = at + half, square + is_odd
    return z[:normals], jnp.stack(chi_squares)


def chi_square(key: PRNGKeyArray, degrees: Array, shape: tuple[int, ...]) -> Array:
    """Chi-square numbers for any degrees above 0, by the method of Marsaglia and Tsang (2000).

    Whole arrays are proposed until every entry is accepted (three rounds or so), which on a CPU
    is several times faster than jax.random.gamma's loop per entry.
    """
    dtype = degrees.dtype
    boosted = degrees < 2  # Gamma(a) = Gamma(a + 1) U^(1/a) where a = degrees / 2 is below 1
    shape_parameter = jnp.broadcast_to(jnp.where(boosted, degrees / 2 + 1, degrees / 2), shape)
    a = shape_parameter - 1 / 3
    c = 1 / (3 * jnp.sqrt(a))
    boost_key, loop_key = jax.random.split(key)

    def propose(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        key, value, accepted = state
        key, normal_key, uniform_key = jax.random.split(key, 3)
        x = jax.random.normal(normal_key, shape, dtype)
        v = (1 + c * x) ** 3
        safe = jnp.where(v > 0, v, 1)
        u = jax.random.uniform(uniform_key, shape, dtype, minval=jnp.finfo(dtype).tiny)
        fits = (v > 0) & (jnp.log(u) < 0.5 * x**2 + a * (1 - safe + jnp.log(safe)))
        return key, jnp.where(fits & ~accepted, a * safe, value), accepted | fits

    start = (loop_key, jnp.zeros(shape, dtype), jnp.zeros(shape, bool))
    _, gamma, _ = jax.lax.while_loop(lambda state: ~state[2].all(), propose, start)
    u = jax.random.uniform(boost_key, shape, dtype, minval=jnp.finfo(dtype).tiny)
    return 2 * jnp.where(boosted, gamma * u ** (2 / degrees), gamma)
