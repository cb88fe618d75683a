"""Where query and examples lie, as "What can Transformers learn in-context?" (Garg et al., 2022) shifts them: examples in
one orthant, a query orthogonal to all of them, a query that is one of them. w* and the noise of labels stay as they are.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import PRNGKeyArray

from lfom.core import checks
from lfom.core.arrays import HIGHEST, ratio
from lfom.core.checks import InputError
from lfom.prompts.distributions import Distribution, Moved, a_distribution
from lfom.prompts.prompt import Prompt

QUERIES = ("opposite", "same", "anywhere")


class OneOrthant(Moved):
    """`base` with all examples of a prompt in one orthant, another one in every prompt: their coordinates take signs that
    the whole prompt shares. query: in the "opposite" orthant, the "same", or "anywhere".

    >>> import jax
    >>> from lfom import LinearRegression, OneOrthant
    >>> prompt = OneOrthant(LinearRegression([1.0, 0.5], 8)).prompt(jax.random.key(0))
    >>> bool((prompt.X * prompt.query <= 0).all())
    True
    """

    base: Distribution
    query: str = eqx.field(static=True)

    def __init__(self, base: Distribution, query: str = "opposite"):
        self.base, self.query = _checked(base), checks.known("query", query, QUERIES)

    def prompt(self, key: PRNGKeyArray) -> Prompt:
        base_key, sign_key = jax.random.split(key)
        plain = self.base.prompt(base_key)
        signs = jax.random.rademacher(sign_key, (self.dimension,), plain.X.dtype)
        X, query = signs * jnp.abs(plain.X), plain.query
        if self.query != "anywhere":
            query = (-signs if self.query == "opposite" else signs) * jnp.abs(query)
        w = jnp.asarray(plain.weights)
        return Prompt(X, plain.y + (X - plain.X) @ w, query, query @ w, w)


class OrthogonalQuery(Moved):
    """`base` with the part of the query that is orthogonal to all examples: of them nothing can be learned about its
    label. Needs fewer examples than covariates. A prefix of the prompt is such a prompt as well.

    >>> import jax
    >>> from lfom import LinearRegression, OrthogonalQuery
    >>> prompt = OrthogonalQuery(LinearRegression([1.0, 0.5, 0.5], 2)).prompt(jax.random.key(0))
    >>> bool((abs(prompt.X @ prompt.query) < 1e-5).all())
    True
    """

    base: Distribution

    def __init__(self, base: Distribution):
        self.base, n = _checked(base), base.outline().X.shape[0]
        if n >= base.dimension:
            raise InputError(
                f"prompts of base have {n} examples of {base.dimension} covariates, and no query is orthogonal to all of "
                f"them: give base a context of at most {base.dimension - 1}."
            )

    def prompt(self, key: PRNGKeyArray) -> Prompt:
        plain = self.base.prompt(key)

        def left(vector: Array, basis: Array) -> Array:
            for _ in range(2):  # twice: what rounding left goes as well
                vector = vector - jnp.matmul(basis @ vector, basis, precision=HIGHEST)
            return vector

        def add(basis: Array, i: Array) -> tuple[Array, None]:
            one = left(plain.X[i], basis)
            return basis.at[i].set(ratio(one, jnp.linalg.norm(one))), None

        # Gram-Schmidt by hand: LAPACK's routines on batches wait for each other where two threads draw at once.
        basis = jax.lax.scan(add, jnp.zeros_like(plain.X), jnp.arange(len(plain.X)))[0]
        return _asked(plain, left(plain.query, basis))


class RepeatedQuery(Moved):
    """`base` with a query that is one of the examples: the first, so that it is one in every prefix; examples are
    drawn alike, so another one would do as well. The target is its label without noise.

    >>> import jax
    >>> from lfom import LinearRegression, RepeatedQuery
    >>> prompt = RepeatedQuery(LinearRegression([1.0, 0.5], 8)).prompt(jax.random.key(0))
    >>> bool((prompt.query == prompt.X[0]).all())
    True
    """

    base: Distribution

    def __init__(self, base: Distribution):
        self.base = _checked(base)

    def prompt(self, key: PRNGKeyArray) -> Prompt:
        plain = self.base.prompt(key)
        return _asked(plain, plain.X[0])


def _asked(plain: Prompt, query: Array) -> Prompt:
    """The same examples with another query."""
    w = jnp.asarray(plain.weights)
    return Prompt(plain.X, plain.y, query, query @ w, w)


def _checked(base: Distribution) -> Distribution:
    a_distribution("base", base)
    drawn, name = base.outline(), type(base).__name__
    if drawn.weights is None or not drawn.is_quadratic:
        raise InputError(
            f"labels elsewhere are asked for, which are x.w*, and prompts of {name} do not say their w*: let them hold weights."
        )
    if not drawn.has_prefixes:
        raise InputError(
            f"examples of {name} are filled up with zeros: move those of its base, then wrap that."
        )
    return base
