"""Covariates that are a random direction times a length: the other ones of the published code.

Whitened, they are as rotation invariant as normal ones are, which is all that the symmetry behind Appendix D's
Theorem 3 uses; a length that is the root of a chi-square number of d degrees makes them normal.
"""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, PRNGKeyArray

from lfom.core import checks
from lfom.core.arrays import as_array, matvec
from lfom.core.problems import Quadratic, add_examples, no_sums
from lfom.prompts.distributions import Distribution, LinearRegression, Prior, asked, chi_square
from lfom.prompts.prompt import Prompt


class Directed(Distribution):
    """x = R^T (length u), u uniform on the unit sphere, R^T R = E[x x^T].

    normal: the LinearRegression with the same second moments, which draws w* ~ N(0, weight_variance / E[x x^T]).
    """

    normal: eqx.AbstractVar[LinearRegression]

    @abc.abstractmethod
    def lengths(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Array:
        """One per example, with mean square d."""

    @property
    def dimension(self) -> int:
        return self.normal.dimension

    @property
    def context(self) -> int:
        return self.normal.context

    @property
    def has_one_matrix(self) -> bool:
        return self.normal.has_one_matrix

    @property
    def root(self) -> Any:  # (d, d)
        """R with R^T R = E[x x^T]."""
        return self.normal.root

    @property
    def covariance(self) -> Any:  # (d, d)
        """E[x x^T]; the mean is 0."""
        return self.normal.covariance

    def question(self, prompts: Prompt) -> tuple[Array, Array]:
        return self.normal.question(prompts)

    @property
    def prior(self) -> Prior | None:
        return self.normal.prior

    def prompt(self, key: PRNGKeyArray) -> Prompt:
        return jax.tree.map(lambda a: a[0], self.prompts(key, 1))

    def prompts(self, key: PRNGKeyArray, count: int) -> Prompt:
        count = asked(key, count, self.dimension * self.context)
        X, noise, w = _draw(self, key, count, self.context + 1)
        X, w = jnp.moveaxis(X, -1, 0), w.T
        labels = jnp.sum(X * w[:, None], axis=2)
        return Prompt(X[:, :-1], labels[:, :-1] + noise.T[:, :-1], X[:, -1], labels[:, -1], w)

    def quadratics(self, key: PRNGKeyArray, count: int) -> Quadratic:
        """Examples are drawn and reduced to Gram matrices; the query is averaged out."""
        count = asked(key, count, self.dimension * self.context)
        X, noise, w = _draw(self, key, count, self.context)
        n = jnp.asarray(self.context, X.dtype)
        gram, scatter = (a / n for a in add_examples(no_sums(X), X, noise, 0, self.context))
        root = as_array(self.root)
        return Quadratic(gram, matvec(gram, w) + scatter, root, matvec(root, w))


@eqx.filter_jit
def _draw(data: Directed, key: PRNGKeyArray, count: int, tokens: int) -> tuple[Array, Array, Array]:
    """Examples (tokens, d, count), the noise of their labels (tokens, count), and w* (d, count)."""
    d, dtype = data.dimension, data.normal.spectrum.dtype
    normal_key, length_key = jax.random.split(key)
    normals = jax.random.normal(normal_key, (tokens * (d + 1) + d, count), dtype)
    z = normals[: tokens * d].reshape(tokens, d, count)
    lengths = data.lengths(length_key, (tokens, count)).astype(dtype)
    white = z * (lengths / jnp.sqrt(jnp.sum(z**2, axis=1)))[:, None]
    root = as_array(data.root)
    X = sum(root[i][None, :, None] * white[:, i, None] for i in range(d))
    w = data.normal.draw_weights(normals[-d:])
    return jax.lax.optimization_barrier((X, data.normal.noise * normals[tokens * d : -d], w))


class OnSphere(Directed):
    """x = F^T u with u uniform on the unit sphere, F^T F = S = variance * U^T diag(spectrum) U: E[x x^T] = S / d.

    w* ~ N(0, weight_variance * d S^-1), so that labels have the variance weight_variance * d as those of
    `LinearRegression` have; the published code takes S^-1 instead, which is weight_variance = 1 / d. The other
    options are those of `LinearRegression`.

    >>> from lfom import OnSphere
    >>> data = OnSphere([1.0, 0.25], context=20)
    >>> [round(float(value), 3) for value in data.covariance.diagonal()]
    [0.5, 0.125]
    """

    normal: LinearRegression

    def __init__(self, spectrum: Any, context: int, *, variance: Any = 1.0, **options: Any):
        self.normal = _with_second_moment(spectrum, context, variance, 1.0, options)

    def lengths(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Array:
        return jnp.full(shape, jnp.sqrt(jnp.asarray(self.dimension, self.normal.spectrum.dtype)))


class GammaLengths(Directed):
    """x = sqrt(g) F^T u with u uniform on the unit sphere and g a gamma variable of this shape and scale, drawn for
    each example, F^T F = S = variance * U^T diag(spectrum) U: E[x x^T] = shape * scale * S / d.

    By default shape 0.1 and scale 10, as in the published code: g has mean 1 and variance 10, so that E[x x^T] =
    S / d and a few examples of a prompt are long. shape = d / 2 and scale = 2 are N(0, S). w* ~ N(0,
    weight_variance / E[x x^T]); the published code takes S^-1, which is weight_variance = shape * scale / d. The
    other options are those of `LinearRegression`.

    >>> from lfom import GammaLengths
    >>> data = GammaLengths([1.0, 0.25], context=20, shape=1.0, scale=2.0)
    >>> [round(float(value), 3) for value in data.covariance.diagonal()]
    [1.0, 0.25]
    """

    normal: LinearRegression
    shape: Float[Array, ""]

    def __init__(
        self,
        spectrum: Any,
        context: int,
        *,
        shape: Any = 0.1,
        scale: Any = 10.0,
        variance: Any = 1.0,
        **options: Any,
    ):
        self.shape = checks.positive("shape", shape)
        mean = self.shape * checks.positive("scale", scale)
        self.normal = _with_second_moment(spectrum, context, variance, mean, options)

    def lengths(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Array:
        """A gamma variable is half its scale times a chi-square number of twice its shape."""
        degrees = 2 * self.shape
        return jnp.sqrt(self.dimension * chi_square(key, degrees, shape) / degrees)


def _with_second_moment(
    spectrum: Any, context: int, variance: Any, square: Any, options: dict[str, Any]
) -> LinearRegression:
    """Normal covariates with E[x x^T] = square * S / d. square: the mean square of |u| times its length."""
    allowed = ("rotation", "noise", "weights", "weight_variance")
    for name in options:
        checks.known("option", name, allowed)
    values = checks.positive("spectrum", spectrum, (None,))
    scaled = checks.positive("variance", variance) * square / values.shape[0]
    return LinearRegression(values, context, variance=scaled, **options)
