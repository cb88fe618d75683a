"""Least squares: a regression per problem, with weights, several outputs, an intercept, and groups of any length."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from lfom.core import checks
from lfom.core.arrays import HIGHEST, on_host, pad_axes
from lfom.core.checks import InputError
from lfom.core.methods import Door
from lfom.core.problems import ByRows, Quadratic, Regression, cheaper_by_rows, gram_of
from lfom.solving import kinds
from lfom.solving.groups import check_weights, padded
from lfom.solving.problems import Quadratics, fitting, with_moment
from lfom.solving.program import Program, Raw


class Group(eqx.Module):
    """One regression: examples, less their means where there is an intercept; shares: what each counts, in all 1."""

    X: Float[Array, "n d"]
    y: Float[Array, "n *k"]
    shares: Float[Array, " n"] | None  # None: all alike
    mean_X: Float[Array, " d"] | None = None
    mean_y: Float[Array, "*k"] | None = None


class LeastSquaresProblems(Quadratics):
    """f(w) = sum_i s_i (x_i.w - y_i)^2 / (2 sum_i s_i) + ridge |w|^2 / 2: a regression per problem. Without weights
    s_i = 1, which is |X w - y|^2 / 2n + ridge |w|^2 / 2.

    X: (problems, n, d), or a list of arrays (n_i, d): groups of any length. y: (problems, n), or (problems, n, outputs) for
    several outputs, with w (problems, d, outputs); a list where X is one. ridge: a number, or one per problem. weights: like
    y with one output, 0 or more. intercept: add a constant to x.w that no ridge holds back; `solution.intercept` tells
    it. X (n, d) with y (n,) or (n, outputs) is one problem, and so is the answer.

    >>> import numpy as np
    >>> from lfom import LeastSquaresProblems
    >>> X, y = np.ones((3, 5, 2), np.float32), np.ones((3, 5), np.float32)
    >>> problems = LeastSquaresProblems(X, y, ridge=0.1)
    >>> len(problems), problems.shape, len(problems[1])
    (3, (2,), 1)
    >>> len(LeastSquaresProblems([X[0], X[1, :2]], [y[0], y[1, :2]], intercept=True))
    2
    """

    kind = kinds.LEAST_SQUARES

    X: Array
    y: Array
    ridge: Array
    weights: Array | None
    intercept: bool = eqx.field(static=True)
    single: bool = eqx.field(static=True)

    def __init__(self, X: Any, y: Any, ridge: Any = 0.0, *, weights: Any = None, intercept: bool = False):
        if checks.are_groups(X):
            X, y, weights = padded(X, y, weights)
        X, y = checks.as_brought("X", X), checks.as_brought("y", y)
        self.single, self.intercept = X.ndim == 2, checks.flag("intercept", intercept)
        lead = (lambda array: array[None]) if self.single else (lambda array: array)
        self.X = checks.as_brought("X", lead(X), (None, None, None))
        count, n, _ = self.X.shape
        outputs = lead(y).shape[2:]
        if len(outputs) > 1 or 0 in outputs:
            raise InputError(
                f"y has shape {y.shape}: behind the rows of X there may be one axis, of outputs."
            )
        self.y = fitting("y", lead(y), (count, n, *outputs), "X", self.X)
        self.ridge = _penalty(ridge, count, self.X.dtype)
        self.weights = None
        if weights is not None:
            given = lead(checks.as_brought("weights", weights))
            self.weights = fitting("weights", given, (count, n), "X", self.X)
            known = on_host(self.weights)
            if checks.is_concrete(known) and not ((known >= 0).all() and known.any(axis=1).all()):
                check_weights(known)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.X.shape[2],)

    @property
    def sides(self) -> int | None:
        return self.y.shape[2] if self.y.ndim == 3 else None

    @property
    def dtype(self) -> Any:
        return self.X.dtype

    def described(self) -> str:
        outputs = "" if self.sides is None else f", {self.sides} outputs"
        weights = "" if self.weights is None else ", weights"
        return f", {self.X.shape[1]} rows{outputs}{weights}{', an intercept' * self.intercept}"

    def groups(self) -> Group:
        """The regressions, on a leading axis."""

        def one(X: Array, y: Array, weights: Array | None) -> Group:
            shares = None if weights is None else weights / jnp.sum(weights)
            if not self.intercept:
                return Group(X, y, shares)
            mean_X, mean_y = (_mean(a, shares) for a in (X, y))
            return Group(X - mean_X, y - mean_y, shares, mean_X, mean_y)

        return jax.vmap(one)(self.X, self.y, self.weights)

    def formed(self) -> Quadratic:
        """A = X^T S X + ridge I and b = X^T S y, with S = diag(shares)."""

        def one(group: Group, ridge: Array) -> tuple[Quadratic, Array]:
            gram, moment = gram_of(group.X, group.y, group.shares)
            trace = jax.lax.stop_gradient(jnp.trace(gram))
            gram = gram + ridge * jnp.eye(len(gram), dtype=gram.dtype)
            return Regression(gram, gram[0], rms=_rms(group), trace=trace), moment

        return with_moment(*jax.vmap(one)(self.groups(), self.ridge))

    @Door
    def by_rows(self, ranged: bool, steps: int, tolerance: Any) -> bool:
        """To a tolerance, were it to take as many steps as there are unknowns. Where a problem is brought into the range of a
        family, its size is read off the Gram matrix."""
        _, n, d = self.X.shape
        expected = steps if tolerance is None else min(steps, d)
        return not ranged and cheaper_by_rows(n, d, expected, self.sides or 1)

    def formed_for(self, program: Program) -> Any:
        if not program.by_rows:
            return self.formed()
        n = self.X.shape[1]

        def one(group: Group, ridge: Array) -> tuple[ByRows, Array]:
            shares = jnp.asarray(1 / n, ridge.dtype) if group.shares is None else group.shares
            counted = pad_axes(shares, group.y.ndim) * group.y
            moment = jnp.matmul(group.X.T, counted, precision=HIGHEST)
            return ByRows(group.X, shares, ridge, group.X[0], _rms(group)), moment

        return with_moment(*jax.vmap(one)(self.groups(), self.ridge))

    def solved(
        self, program: Program, own: int, steps: int, tolerance: Array | None, start: Array | None
    ) -> Raw:
        raw = super().solved(program, own, steps, tolerance, start)
        if not self.intercept:
            return raw
        found = jax.vmap(lambda one, w: one.mean_y - jnp.tensordot(one.mean_X, w, 1))(
            self.groups(), raw.value
        )
        return raw._replace(intercept=found)


def _rms(group: Group) -> Array:
    """sqrt(sum of shares y^2), of the largest output; it is compared with, and has no derivative."""
    y = jax.lax.stop_gradient(group.y)
    largest = jnp.max(jnp.abs(y))
    unit = y / jnp.where(largest > 0, largest, 1)  # whose squares are not lost
    shares = 1 / len(y) if group.shares is None else pad_axes(jax.lax.stop_gradient(group.shares), y.ndim)
    return largest * jnp.sqrt(jnp.max(jnp.sum(shares * unit**2, axis=0)))


def _mean(a: Array, shares: Array | None) -> Array:
    return jnp.mean(a, axis=0) if shares is None else jnp.tensordot(shares, a, 1)


def _penalty(ridge: Any, count: int, dtype: Any) -> Array:
    penalty = checks.as_brought("ridge", ridge).astype(dtype)
    if penalty.shape not in ((), (count,)):
        raise InputError(f"ridge has shape {penalty.shape}: pass one number, or one per problem ({count},).")
    if checks.is_concrete(penalty) and bool((np.asarray(penalty) < 0).any()):
        lowest = float(np.min(penalty))
        raise InputError(f"ridge is {lowest}: it must be 0 or greater. Pass 0 for none.")
    return jnp.broadcast_to(penalty, (count,))
