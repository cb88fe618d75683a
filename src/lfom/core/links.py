"""Links of generalised linear models: how labels follow from eta = x.w.

A label y has the density exp(y eta - b(eta)), up to what does not depend on eta. So its mean is b'(eta), and the
mean log loss of a context has the gradient X^T (b'(X w) - y) / n: that of least squares, with y - mean(x.w) in the
place of y - x.w. Each class is one link.

>>> import jax.numpy as jnp
>>> import lfom
>>> float(lfom.links.LogisticLink().mean(jnp.zeros(()))), float(lfom.links.PoissonLink().mean(jnp.zeros(())))
(0.5, 1.0)
"""

import abc
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import xlogy

from lfom.core import checks
from lfom.core.checks import InputError, is_concrete


@dataclass(frozen=True)
class Link(abc.ABC):
    """b and what follows from it, entry by entry. labels, means: what these can be, in words."""

    labels: ClassVar[str]
    means: ClassVar[str]

    @abc.abstractmethod
    def log_partition(self, eta: Array) -> Array:
        """b(eta)."""

    @abc.abstractmethod
    def mean(self, eta: Array) -> Array:
        """b'(eta), the mean of a label."""

    @abc.abstractmethod
    def curvature(self, eta: Array) -> Array:
        """b''(eta), its variance."""

    @abc.abstractmethod
    def least(self, target: Array) -> Array:
        """The smallest b(eta) - target eta over all eta."""

    @abc.abstractmethod
    def quantile(self, share: Array, eta: Array) -> Array:
        """The smallest label with at least this share of labels below it or at it: drawn from uniform shares, labels
        have their law."""

    @abc.abstractmethod
    def is_label(self, values: np.ndarray) -> np.ndarray:
        """Which of these numbers can be labels."""

    @abc.abstractmethod
    def is_mean(self, values: np.ndarray) -> np.ndarray:
        """Which can be means of labels, or labels."""

    def deviance(self, eta: Array, target: Array) -> Array:
        """2 (b(eta) - target eta) above its smallest value: twice the log loss of a label, or, where the target is
        the mean of the label, twice what eta loses to the truth on average."""
        return self.residual(eta, target) ** 2

    def residual(self, eta: Array, target: Array) -> Array:
        """The root of the deviance, with the sign of mean(eta) - target; smooth, also where it is zero.

        Near there the difference of two large numbers is nothing but rounding. The deviance is
        (mean - target)^2 / b'' with b'' at a third of the way from eta to where it is zero, up to the third order.
        """
        off, bends = self.mean(eta) - target, self.curvature(eta)
        above = 2 * (self.log_partition(eta) - target * eta - self.least(target))
        near = (jnp.abs(off) < jnp.finfo(off.dtype).eps ** 0.25 * bends) | (above <= 0)

        def safe(values: Array, wanted: Array) -> Array:
            """Where they are not used they are 1, and so are their derivatives finite."""
            return jnp.where(wanted & (values > 0), values, 1)

        third = jnp.where(near, off, 0) / safe(bends, near) / 3
        close = off / jnp.sqrt(safe(self.curvature(eta - third), near))
        return jnp.where(near, close, jnp.sign(off) * jnp.sqrt(safe(above, ~near)))

    def check(self, y: Any, target: Any) -> None:
        """Labels (*prompts, n) and targets (*prompts) of prompts, which an error names by their index."""
        _all(self.is_label, "y", y, self.labels)
        _all(self.is_mean, "target", target, self.means)


def _all(allowed: Any, name: str, values: Any, rule: str) -> None:
    if not is_concrete(values):
        return
    prompts = np.ndim(values) == (2 if name == "y" else 1)
    known = np.atleast_1d(np.asarray(values))
    bad = np.argwhere(~allowed(known))
    if len(bad):
        places = bad[0].tolist()
        of_prompt = [f"prompt {places[0]}"] if prompts else []
        of_label = [f"label {places[-1]}"] if name == "y" else []
        where = ", ".join(of_prompt + of_label)
        raise InputError(
            f"{name} holds {known[tuple(bad[0])]:g}{f' at {where}' if where else ''}: {rule}. Correct it, or choose "
            "another link."
        )


@dataclass(frozen=True)
class LogisticLink(Link):
    """Two classes, 0 and 1: b = log(1 + exp(eta)), and the mean is the probability of class 1."""

    labels = "a class is 0 or 1"
    means = "a class, or the probability of class 1, lies between 0 and 1"

    def log_partition(self, eta: Array) -> Array:
        return jax.nn.softplus(eta)

    def mean(self, eta: Array) -> Array:
        return jax.nn.sigmoid(eta)

    def curvature(self, eta: Array) -> Array:
        return jax.nn.sigmoid(eta) * jax.nn.sigmoid(-eta)

    def least(self, target: Array) -> Array:
        return -xlogy(target, target) - xlogy(1 - target, 1 - target)

    def quantile(self, share: Array, eta: Array) -> Array:
        return (share > self.mean(-eta)).astype(eta.dtype)

    def is_label(self, values: np.ndarray) -> np.ndarray:
        return (values == 0) | (values == 1)

    def is_mean(self, values: np.ndarray) -> np.ndarray:
        return (values >= 0) & (values <= 1)


@dataclass(frozen=True)
class PoissonLink(Link, checks.SelfChecked):
    """Counts: b = exp(eta), which is the mean as well, the rate. Rates end at exp(largest), where b goes on as a line:
    of normal covariates the exponential of what was already one has no mean, and one step too far no end."""

    labels = "a count is a whole number, 0 or greater"
    means = "a count, or the rate of counts, is 0 or greater, and at most exp(largest), where rates end"
    largest: float = 10.0

    def __check_init__(self) -> None:
        checks.real_array("largest", self.largest, ())

    def log_partition(self, eta: Array) -> Array:
        return self.mean(eta) * (1 + jnp.maximum(eta - self.largest, 0))

    def mean(self, eta: Array) -> Array:
        return jnp.exp(jnp.minimum(eta, self.largest))

    def curvature(self, eta: Array) -> Array:
        return jnp.where(eta < self.largest, self.mean(eta), 0)

    def least(self, target: Array) -> Array:
        return target - xlogy(target, target)

    def quantile(self, share: Array, eta: Array) -> Array:
        """Probabilities taken away one by one, as long as something is left. Those of large counts end where a number
        of this precision does not tell their sum from 1."""
        log_rate, rate, eps = jnp.minimum(eta, self.largest), self.mean(eta), jnp.finfo(eta.dtype).eps

        def take(state: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
            k, log_factorial, left, count = state
            probability = jnp.exp(k * log_rate - rate - log_factorial)
            more = (left > probability) & ((k < rate) | (probability > eps))
            return (
                k + 1,
                log_factorial + jnp.log(k + 1),
                jnp.where(more, left - probability, 0),
                count + more,
            )

        zero = jnp.zeros((), eta.dtype)
        start = (zero, zero, share, jnp.zeros_like(eta))
        return jax.lax.while_loop(lambda state: (state[2] > 0).any(), take, start)[3]

    def is_label(self, values: np.ndarray) -> np.ndarray:
        return (values >= 0) & (values == np.floor(values))

    def is_mean(self, values: np.ndarray) -> np.ndarray:
        return (values >= 0) & (values <= math.exp(self.largest))
