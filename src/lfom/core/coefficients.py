"""Gamma: what a bank multiplies a stored direction with.

Each class is one structure. It knows how it acts on tokens, (d+1, n+1), and how the same numbers act in the
other views, where they do: a Gamma that differs between context tokens is not a scaling of the coordinates of
w, and no few columns stand for all tokens (docs/mathematics.md 2.5). A bank holds one coefficient per pair of layers, on
leading axes; a coefficient itself sees one.

>>> import jax.numpy as jnp
>>> import lfom
>>> gamma = lfom.coefficients.Scalar(0.3 * jnp.eye(3))  # Gamma_j^l at [l, j]
>>> lfom.memories.Bank(gamma, tied=False).has_numbers
True
"""

import abc
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from lfom.core import checks
from lfom.core.arrays import pad_axes
from lfom.core.checks import InputError
from lfom.core.parameters import parameter
from lfom.core.states import Columns, Direction, NoSuchView, Track, no_view, views_of
from lfom.core.words import brief

DIFFERS = " (a Gamma that differs between context tokens needs them all, docs/mathematics.md 2.5; Pair has one value for the context and one for the query)"


class Coefficient(eqx.Module):
    """One structure of Gamma. views: where it acts. splits: whether context and query are multiplied
    differently. is_number: whether it is one number, or one for each of them.

    >>> import lfom
    >>> class Half(lfom.Coefficient):
    ...     def on_tokens(self, direction):
    ...         return direction / 2
    >>> Half().views
    ('tokens',)
    """

    __repr__ = brief

    views: ClassVar[tuple[str, ...]] = ("tokens",)
    splits: ClassVar[bool] = True
    is_number: ClassVar[bool] = False
    why_not: ClassVar[str] = ""  # it acts in fewer views, in words

    def __init_subclass__(cls, **options: Any) -> None:
        """Whoever says what it does in a view acts there."""
        super().__init_subclass__(**options)
        if "views" not in vars(cls):
            cls.views = views_of(cls, Coefficient)

    def numbers(self) -> tuple[Any, Any]:
        """What multiplies the context's and the query's w: a number, or one per coordinate."""
        raise InputError(
            f"{type(self).__name__} does not multiply w by numbers, which is all that a table of coefficients tells. Use Scalar, "
            "Pair, Rows or CoordinateWise, or give it numbers()."
        )

    def with_numbers(self, context: Any, query: Any) -> "Coefficient | None":
        """The same with these, where it has one for the context and one for the query; else None."""
        return None

    @property
    def on_eigenvectors(self) -> "Coefficient | None":
        """What it is where w has one coordinate and covariates stay: itself, or numbers; None where neither is true."""
        return self if self.is_number else None

    @abc.abstractmethod
    def on_tokens(self, direction: Array) -> Array:
        """Gamma times a direction (d+1, n+1)."""

    def on_iterates(self, direction: Direction) -> Direction:
        """The same on iterates."""
        raise no_view(self, "iterates", self.why_not)

    def on_kernel(self, direction: Direction) -> Direction:
        """The same on what is one number per example."""
        raise no_view(self, "kernel", self.why_not)

    def on_joint(self, direction: Columns) -> Columns:
        """The same on the columns of the joint view."""
        raise no_view(self, "joint", self.why_not)


class Scalar(Coefficient):
    """One number."""

    splits, is_number = False, True
    value: Float[Array, "..."] = parameter(scales="all")

    def numbers(self) -> tuple[Any, Any]:
        return self.value, self.value

    def on_tokens(self, direction: Any) -> Any:
        return self.value * direction

    on_iterates = on_kernel = on_joint = on_tokens  # the same in every view


class Pair(Coefficient):
    """One number for the context, another for the query: the context runs one method, the
    query reads out another combination of the same gradients."""

    splits, is_number = True, True
    context: Float[Array, "..."] = parameter(scales="all")
    query: Float[Array, "..."] = parameter()

    def numbers(self) -> tuple[Any, Any]:
        return self.context, self.query

    def with_numbers(self, context: Any, query: Any) -> Coefficient:
        return Pair(context, query)

    def on_tokens(self, direction: Array) -> Array:
        last = direction.shape[1] - 1
        columns = jnp.where(np.arange(last + 1) < last, self.context, self.query)
        return columns * direction

    def on_iterates(self, direction: Direction) -> Direction:
        assert direction.query is not None
        image = None if direction.image is None else self.context * direction.image
        return Direction(
            direction.context.times(self.context, self.context),
            direction.query.times(self.query, self.query),
            image,
        )

    on_kernel = on_iterates

    def on_joint(self, direction: Columns) -> Columns:
        return Columns(self.context * direction.context, self.query * direction.query)


class Rows(Coefficient):
    """One number per row of Z, the same for every token: d for covariates, one for labels."""

    splits, is_number = False, False
    value: Float[Array, "... rows"] = parameter(axes="rows", scales="last")

    def numbers(self) -> tuple[Any, Any]:
        return self.value[..., -1], self.value[..., -1]

    @property
    def on_eigenvectors(self) -> Coefficient:
        return Scalar(self.value[..., -1])

    def on_tokens(self, direction: Array) -> Array:
        checks.size("gamma", self.value, 0, direction.shape[0], "d + 1")
        return self.value[:, None] * direction

    def on_iterates(self, direction: Direction) -> Direction:
        checks.size("gamma", self.value, 0, direction.context.w.shape[0] + 1, "d + 1")
        label = self.value[-1]

        def scale(track: Track) -> Track:
            rows = self.value[:-1]
            return track.times(label, 1.0 if track.T is None else pad_axes(rows[:, None], track.T.ndim))

        query = None if direction.query is None else scale(direction.query)
        return Direction(scale(direction.context), query)

    def on_kernel(self, direction: Direction) -> Direction:
        return self.value[-1] * direction  # only labels move

    def on_joint(self, direction: Columns) -> Columns:
        checks.size("gamma", self.value, 0, direction.context.shape[0], "d + 1")
        rows = pad_axes(self.value[:, None], direction.context.ndim)
        return Columns(rows * direction.context, rows * direction.query)


class CoordinateWise(Coefficient):
    """Lambda, a diagonal matrix on the coordinates of w (equation 1.1): iterates only."""

    views, splits, is_number = ("iterates",), False, False
    value: Float[Array, "... d"] = parameter(axes="*d", scales="last")

    def numbers(self) -> tuple[Any, Any]:
        return self.value, self.value

    def on_tokens(self, direction: Array) -> Array:
        raise NoSuchView(
            "diagonal coefficients act on the coordinates of w, and a Hadamard product on tokens "
            "cannot: use lfom.theorems.diagonal_lfom, which builds them from d heads."
        )

    def on_iterates(self, direction: Direction) -> Direction:
        def scale(track: Track) -> Track:
            if track.T is not None:
                raise NoSuchView("diagonal coefficients on iterates need B = 0.")
            checks.size("gamma", self.value, 0, track.w.shape[0], "d")
            return Track(pad_axes(self.value, track.w.ndim) * track.w)

        query = None if direction.query is None else scale(direction.query)
        return Direction(scale(direction.context), query)


class TokenWise(Coefficient):
    """One number per token: tokens only."""

    why_not = DIFFERS
    value: Float[Array, "... tokens"] = parameter(axes="tokens", scales="last")

    def on_tokens(self, direction: Array) -> Array:
        checks.size("gamma", self.value, 0, direction.shape[1], "n + 1")
        return self.value[None, :] * direction


class Hadamard(Coefficient):
    """One number per entry of Z, Gamma of equation (LFOM_memory) in full: tokens only."""

    why_not = DIFFERS
    value: Float[Array, "... rows tokens"] = parameter(axes="rows tokens", scales="last")

    def on_tokens(self, direction: Array) -> Array:
        checks.size("gamma", self.value, 0, direction.shape[0], "d + 1")
        checks.size("gamma", self.value, 1, direction.shape[1], "n + 1")
        return self.value * direction
