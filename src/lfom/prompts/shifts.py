"""Shifted distributions: what prompts may look like after training.

Variance, rotation, spectrum, context length and label noise are options of `LinearRegression`, and
mixtures with unequal means are `GaussianMixture`. Here are heavy tails, a variance that differs
from prompt to prompt, the union of several distributions, and a rotation by a given angle.
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, PRNGKeyArray

from lfom.core import checks, room
from lfom.core.checks import InputError
from lfom.core.problems import Quadratic, unshared
from lfom.prompts.distributions import (
    Distribution,
    LinearRegression,
    Moved,
    Remade,
    a_distribution,
    asked,
    square,
)
from lfom.prompts.prompt import Prompt


def turn(key: PRNGKeyArray, d: int, angle: Any) -> Float[Array, "d d"]:
    """A random rotation whose largest angle is `angle` (radians): no vector is turned further.

    >>> import jax
    >>> import jax.numpy as jnp
    >>> from lfom import turn
    >>> R = turn(jax.random.key(0), 3, 0.5)
    >>> round(float(jnp.arccos((jnp.trace(R) - 1) / 2)), 3)
    0.5
    """
    angle = checks.real_array("angle", angle, ())
    normal = jax.random.normal(checks.random_key("key", key), (square("d", d),) * 2)
    skew = normal - normal.T
    largest = jnp.linalg.norm(skew, 2)
    return jax.scipy.linalg.expm(angle * skew / jnp.where(largest > 0, largest, 1))


class HeavyTailed(Moved):
    """`base` with covariates of Student's t distribution: x * sqrt((degrees - 2) / chi^2), one
    number per example. The covariance stays the same. degrees: a whole number of 3 or more.

    >>> import jax
    >>> from lfom import HeavyTailed, LinearRegression
    >>> HeavyTailed(LinearRegression([1.0, 0.5], 8), 5).prompts(jax.random.key(0), 3).X.shape
    (3, 8, 2)
    """

    base: LinearRegression
    degrees: int = eqx.field(static=True)

    def __init__(self, base: LinearRegression, degrees: int):
        self.base = checks.instance("base", base, LinearRegression, "an lfom.LinearRegression")
        self.degrees = checks.count("degrees", degrees, 3)  # 2: no covariance
        room.fits(
            f"degrees is {degrees}",
            4.0 * degrees * base.context,
            "Pass fewer; from 100 on it is the normal one.",
        )

    def prompt(self, key: PRNGKeyArray) -> Prompt:
        base_key, scale_key = jax.random.split(key)
        plain = self.base.prompt(base_key)
        n = plain.X.shape[0]
        normals = jax.random.normal(scale_key, (n + 1, self.degrees), plain.X.dtype)
        scale = jnp.sqrt((self.degrees - 2) / jnp.sum(normals**2, axis=1))
        X, query = scale[:-1, None] * plain.X, scale[-1] * plain.query
        w = jnp.asarray(plain.weights)
        return Prompt(X, plain.y + (X - plain.X) @ w, query, query @ w, w)

    def question(self, prompts: Prompt) -> tuple[Array, Array]:
        """E[x x^T] is that of `base`, so the same root asks for all queries."""
        return self.base.question(prompts)

    def quadratics(self, key: PRNGKeyArray, count: int) -> Quadratic:
        found = Quadratic.of(prompts := self.prompts(key, count))
        return Quadratic(found.gram, found.moment, *self.question(prompts))


class RandomScale(Remade):
    """`base` with the covariance of every prompt multiplied by its own number v, log-uniform between
    lowest and highest, and w* divided by sqrt(v), so that labels stay as they are.

    >>> import jax
    >>> from lfom import LinearRegression, RandomScale
    >>> RandomScale(LinearRegression([1.0, 0.5], 8), 0.25, 16.0).prompts(jax.random.key(0), 3).y.shape
    (3, 8)
    """

    base: Distribution
    lowest: Float[Array, ""]
    highest: Float[Array, ""]

    def __init__(self, base: Distribution, lowest: Any, highest: Any):
        self.base = a_distribution("base", base)
        self.lowest, self.highest = checks.positive("lowest", lowest), checks.positive("highest", highest)
        if checks.is_concrete(self.lowest) and float(self.lowest) > float(self.highest):
            raise InputError(
                f"lowest is {float(self.lowest):g} and highest {float(self.highest):g}: swap them."
            )

    def _scale(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Array:
        low, high = jnp.log(self.lowest), jnp.log(self.highest)
        return jnp.exp((low + (high - low) * jax.random.uniform(key, shape, low.dtype)) / 2)

    def prompt(self, key: PRNGKeyArray) -> Prompt:
        base_key, scale_key = jax.random.split(key)
        plain, c = self.base.prompt(base_key), self._scale(scale_key, ())
        w = None if plain.weights is None else plain.weights / c
        return dataclasses.replace(plain, X=c * plain.X, query=c * plain.query, weights=w)

    def quadratics(self, key: PRNGKeyArray, count: int) -> Quadratic:
        base_key, scale_key = jax.random.split(key)
        plain, c = self.base.quadratics(base_key, count), self._scale(scale_key, (count,))
        return Quadratic(c**2 * plain.gram, c * plain.moment, c * unshared(plain).probe, plain.target)


class AnyOf(Distribution):
    """Each prompt comes from one of several distributions, chosen with the given weights (equal
    ones by default). `quadratics` takes exactly the expected number from each, in their order.

    >>> import jax
    >>> from lfom import AnyOf, LinearRegression
    >>> parts = [LinearRegression([1.0, 0.5], 8, variance=v) for v in (1.0, 4.0)]
    >>> AnyOf(parts).quadratics(jax.random.key(0), 10).moment.shape
    (2, 10)
    """

    parts: tuple[Distribution, ...]
    weights: tuple[float, ...] = eqx.field(static=True)

    def __init__(self, parts: Any, weights: Any = None):
        self.parts = tuple(checks.instance("parts", parts, list | tuple, "a list of distributions"))
        for one in self.parts:
            a_distribution("parts", one)
        if not self.parts:
            raise InputError("parts is empty: pass at least one distribution.")
        given = [1 / len(self.parts)] * len(self.parts) if weights is None else weights
        self.weights = tuple(float(w) for w in checks.probabilities("weights", given))
        if len(self.weights) != len(self.parts):
            raise InputError(
                f"weights has {len(self.weights)} entries for {len(self.parts)} parts: give one for each."
            )
        dimensions = sorted({part.dimension for part in self.parts})
        if len(dimensions) > 1:
            raise InputError(f"the parts have dimensions {dimensions}: they must all have the same.")

    @property
    def dimension(self) -> int:
        return self.parts[0].dimension

    def prompt(self, key: PRNGKeyArray) -> Prompt:
        contexts = {jax.eval_shape(part.prompt, key).X.shape[0] for part in self.parts}
        if len(contexts) > 1:
            raise InputError(
                f"the parts have contexts of {sorted(contexts)} examples: prompts of different length are no "
                "batch. Draw from the parts one by one, or use quadratics."
            )
        which, own = jax.random.split(key)
        index = jax.random.choice(which, len(self.parts), p=jnp.asarray(self.weights))
        branches = [lambda key, part=part: part.prompt(key) for part in self.parts]
        return jax.lax.switch(index, branches, own)

    def quadratics(self, key: PRNGKeyArray, count: int) -> Quadratic:
        count = asked(key, count, self.dimension)
        ends = np.rint(np.cumsum(self.weights) * count).astype(int)
        sizes = np.diff(ends, prepend=0).tolist()
        keys = jax.random.split(key, len(self.parts))
        drawn = [
            part.quadratics(k, size) for part, k, size in zip(self.parts, keys, sizes, strict=True) if size
        ]
        rows = max(one.target.shape[0] for one in drawn)

        def fill(values: Array) -> Array:
            """Questions that a part does not ask: probe and target 0."""
            return jnp.pad(values, [(0, rows - values.shape[0])] + [(0, 0)] * (values.ndim - 1))

        each = [(one.gram, one.moment, fill(unshared(one).probe), fill(one.target)) for one in drawn]
        gram, moment, probe, target = (jnp.concatenate(own, axis=-1) for own in zip(*each, strict=True))
        return Quadratic(gram, moment, probe, target)
