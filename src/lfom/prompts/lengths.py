"""Prompts of every length in one batch."""

from collections.abc import Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Int, PRNGKeyArray

from lfom.core import checks
from lfom.core.arrays import as_array
from lfom.core.checks import InputError
from lfom.core.kernels import Kernel
from lfom.core.problems import JointGram, Problem, Quadratic
from lfom.prompts.distributions import Distribution, Moved, a_distribution
from lfom.prompts.prompt import Prompt


class Filled(Prompt):
    """A prompt of k examples as one of n: the first k times sqrt(n / k), the others zero.

    Its Gram matrices are those of k examples, so that linear attention cannot tell it from them. Anything else can:
    it is no prompt for tokens, nor for kernels.
    """

    has_prefixes: ClassVar[bool] = False

    def problem(self, view: str, kernel: Kernel | None = None) -> Problem:
        if view not in ("iterates", "joint"):
            raise InputError(
                f"prompts of several lengths are filled up with zeros, which only linear attention does not see, and this "
                f"model reads them in the view {view!r}: train it on prompts of one length."
            )
        return super().problem(view, kernel)


class AnyLength(Moved):
    """`base` with a number of examples of its own for every prompt, uniform between the two `lengths`; these lie
    between 1 and the context n of `base`.

    For methods that are linear attention: those with a view of iterates or the joint Gram matrix. `lfom.fit` on it trains
    over all lengths.

    >>> import jax
    >>> from lfom import AnyLength, LinearRegression
    >>> prompt = AnyLength(LinearRegression([1.0, 0.5], 8), (3, 3)).prompt(jax.random.key(0))
    >>> [bool(row.any()) for row in prompt.X]
    [True, True, True, False, False, False, False, False]
    """

    base: Distribution
    lengths: Int[Array, "2"]  # numbers, not a part of the program: one is compiled for all

    def __init__(self, base: Distribution, lengths: Sequence[int]):
        self.base = a_distribution("base", base)
        if not isinstance(lengths, list | tuple) or len(lengths) != 2:
            raise InputError(f"lengths is {lengths!r}: pass the shortest and the longest.")
        shortest, longest = (checks.count("lengths", k) for k in lengths)
        if shortest > longest:
            raise InputError(f"lengths is {(shortest, longest)}: the shortest comes first.")
        drawn = base.outline()
        if longest > drawn.X.shape[0]:
            raise InputError(
                f"lengths goes up to {longest}, and prompts of base have {drawn.X.shape[0]} examples: give base a longer context."
            )
        if not (drawn.has_prefixes and drawn.is_quadratic):
            raise InputError(f"{type(base).__name__} is no least squares of one length: pass a base that is.")
        self.lengths = as_array(np.asarray([shortest, longest], np.int32))

    @property
    def has_one_matrix(self) -> bool:
        """The symmetry behind it is that of every length."""
        return self.base.has_one_matrix

    def question(self, prompts: Prompt) -> tuple[Array, Array]:
        return self.base.question(prompts)

    def prompt(self, key: PRNGKeyArray) -> Filled:
        base_key, length_key = jax.random.split(key)
        return self._filled(self.base.prompt(base_key), length_key)

    def at_once(self, key: PRNGKeyArray, count: int) -> Filled:
        base_key, length_key = jax.random.split(key)
        return self._filled(self.base.at_once(base_key, count), length_key)

    def quadratics(self, key: PRNGKeyArray, count: int) -> Quadratic:
        found = Quadratic.of(prompts := self.at_once(key, count))
        return Quadratic(found.gram, found.moment, *self.question(prompts))

    def joints(self, key: PRNGKeyArray, count: int) -> JointGram:
        found = JointGram.of(prompts := self.at_once(key, count))
        return JointGram(found.context, *self.question(prompts))

    def _filled(self, whole: Prompt, key: PRNGKeyArray) -> Filled:
        """One prompt or a batch, each with its own k."""
        *batch, n = whole.y.shape
        k = jax.random.randint(key, (*batch, 1), self.lengths[0], self.lengths[1] + 1)
        factor = jnp.where(jnp.arange(n) < k, jnp.sqrt(n / k.astype(whole.y.dtype)), 0)
        return Filled(factor[..., None] * whole.X, factor * whole.y, whole.query, whole.target, whole.weights)
