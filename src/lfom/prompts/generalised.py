"""Prompts of generalised linear models: classes and counts, whose mean follows from x.w through a link."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import PRNGKeyArray

from lfom.core import checks
from lfom.core.arrays import as_array
from lfom.core.checks import InputError
from lfom.core.kernels import Kernel
from lfom.core.links import Link, LogisticLink, PoissonLink
from lfom.core.problems import JointGram, Problem, Quadratic
from lfom.prompts.distributions import Distribution, LinearRegression, Remade, a_distribution, asked
from lfom.prompts.prompt import LinkPrompt, Prompt


class LinkRegression(Remade):
    """The prompts of `base`, with labels drawn through a link: where `base` has the label x.w*, the mean is
    link.mean(x.w*). The target is the mean of the query's label, so that scores average labels out.

    >>> import jax
    >>> from lfom.core.links import LogisticLink
    >>> from lfom import LinearRegression, LinkRegression
    >>> data = LinkRegression(LinearRegression([1.0, 0.5], context=8), LogisticLink())
    >>> sorted(set(data.prompts(jax.random.key(0), 3).y.ravel().tolist()))
    [0.0, 1.0]
    """

    views = LinkPrompt.views
    is_quadratic = False

    base: Distribution
    link: Link = eqx.field(static=True)

    def __check_init__(self) -> None:
        a_distribution("base", self.base)
        checks.instance("link", self.link, Link, "a link such as lfom.links.LogisticLink()")

    def prompt(self, key: PRNGKeyArray) -> Prompt:
        return jax.tree.map(lambda a: a[0], self.prompts(key, 1))

    def prompts(self, key: PRNGKeyArray, count: int) -> LinkPrompt:
        return _prompts(self, key, asked(key, count, self.dimension))

    def drawn(self, key: PRNGKeyArray, count: int) -> tuple[Prompt, Array]:
        """Prompts with labels x.w*, and uniform numbers for the labels that follow from them."""
        base, shares = jax.random.split(key)
        plain = self.base.prompts(base, count).linear()
        return plain, jax.random.uniform(shares, plain.y.shape, plain.y.dtype)

    def problems(self, key: PRNGKeyArray, count: int, view: str, kernel: Kernel | None = None) -> Problem:
        return self.prompts(key, count).problem(view, kernel)

    def quadratics(self, key: PRNGKeyArray, count: int) -> Quadratic:
        raise self._not_quadratic()

    def joints(self, key: PRNGKeyArray, count: int) -> JointGram:
        raise self._not_quadratic()

    def _not_quadratic(self) -> InputError:
        return InputError(
            f"prompts with a {type(self.link).__name__} are no quadratics: a Gram matrix does not tell them. Use prompts "
            "or problems; of a shift or a union of such prompts, pass LinkRegression(shift, link) instead."
        )


@eqx.filter_jit
def _prompts(data: LinkRegression, key: PRNGKeyArray, count: int) -> LinkPrompt:
    plain, shares = data.drawn(key, count)
    y, target = data.link.quantile(shares, plain.y), data.link.mean(plain.target)
    return LinkPrompt(plain.X, y, plain.query, target, plain.weights, link=data.link)


class NormalLinkRegression(LinkRegression):
    """That of `LinearRegression`, from one call of the random generator: each takes a second to compile."""

    def drawn(self, key: PRNGKeyArray, count: int) -> tuple[Prompt, Array]:
        base: Any = self.base
        d, n = base.dimension, base.context
        normals = jax.random.normal(key, (count, (n + 1) * (d + 1) + d - 1), base.spectrum.dtype)
        normals = jax.lax.optimization_barrier(normals)  # or they are drawn again wherever they are used
        z, shares, weights = jnp.split(normals, [(n + 1) * d, (n + 1) * d + n], axis=1)
        X, w = z.reshape(count, n + 1, d) @ as_array(base.root), base.draw_weights(weights.T).T
        eta = jnp.sum(X * w[:, None], axis=2)
        plain = Prompt(X[:, :-1], eta[:, :-1], X[:, -1], eta[:, -1], w)
        return plain, jax.scipy.special.ndtr(shares)


class LogisticRegression(NormalLinkRegression):
    """Classes 0 and 1 with the probability 1 / (1 + exp(-x.w*)) of class 1, x ~ N(0, S) as in `LinearRegression`,
    w* ~ N(0, signal^2 S^-1 / d): x.w* has the standard deviation `signal`. With 3, the best guess at a class is
    right in 83 % of cases.

    >>> import jax
    >>> from lfom import LogisticRegression
    >>> LogisticRegression([1.0, 0.5], context=8).prompts(jax.random.key(0), 3).X.shape
    (3, 8, 2)
    """

    def __init__(
        self, spectrum: Any, context: int, *, signal: Any = 3.0, rotation: Any = None, variance: Any = 1.0
    ):
        self.base, self.link = _normal(spectrum, context, signal, rotation, variance), LogisticLink()


class PoissonRegression(NormalLinkRegression):
    """Counts with the rate exp(x.w*), x ~ N(0, S) as in `LinearRegression`, w* ~ N(0, signal^2 S^-1 / d): the log of
    the rate has the standard deviation `signal`, and ends at `largest`.

    >>> import jax
    >>> from lfom import PoissonRegression
    >>> bool((PoissonRegression([1.0, 0.5], context=8).prompts(jax.random.key(0), 3).y >= 0).all())
    True
    """

    def __init__(
        self,
        spectrum: Any,
        context: int,
        *,
        signal: Any = 0.5,
        rotation: Any = None,
        variance: Any = 1.0,
        largest: float = 3.0,
    ):
        self.base, self.link = _normal(spectrum, context, signal, rotation, variance), PoissonLink(largest)


def _normal(spectrum: Any, context: int, signal: Any, rotation: Any, variance: Any) -> LinearRegression:
    d = checks.positive("spectrum", spectrum, (None,)).shape[0]
    weights = checks.positive("signal", signal) ** 2 / d
    return LinearRegression(spectrum, context, rotation=rotation, variance=variance, weight_variance=weights)
