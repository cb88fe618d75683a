"""The views, and what a method has computed so far in those that are not tokens.

Tokens need no type: their state is the matrix Z. In the iterate view the same numbers are written as a
recursion on w (docs/mathematics.md 4): a token that started as (x, y) is, after l layers, (T_l x, y - x.w_l); with
one Gamma for the context and another for the query, the two kinds of token follow tracks of their own. The kernel
view is the same with one unknown per example. In the joint view the state is a few columns that linear attention cannot tell from all tokens (docs/mathematics.md 6).
"""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
from jax import Array
from jaxtyping import Float

from lfom.core.checks import InputError

VIEWS = ("iterates", "kernel", "joint", "tokens")  # the cheapest first; tokens are the definition


class NoSuchView(InputError):
    """The computation does not exist in the view that was asked for."""


def views_of(kind: type, base: type) -> tuple[str, ...]:
    """The views that a class of readers or coefficients has: it acts in those that it has a function for."""
    return tuple(view for view in VIEWS if getattr(kind, f"on_{view}") is not getattr(base, f"on_{view}"))


def no_view(part: Any, view: str, why: str = "") -> NoSuchView:
    """The error of a reader or a coefficient that does not act in this view."""
    others = " or ".join(f"view={other!r}" for other in part.views)
    return NoSuchView(
        f"{type(part).__name__} does not act in the view {view!r}{why}: run it with {others}, or give it on_{view}."
    )


def common(*views: tuple[str, ...]) -> tuple[str, ...]:
    """The views that all of these have, the cheapest first."""
    return tuple(view for view in VIEWS if all(view in some for some in views))


def cheapest(name: str, *views: tuple[str, ...]) -> str:
    """The cheapest view that all of these have. name: of the method that one of them is of."""
    found = common(*views)
    if not found:
        raise InputError(
            f"{name} has no view: its reader and its coefficients do not run in the same one. Run it to see which "
            "part needs which."
        )
    return found[0]


def one_kernel(parts: Sequence[Any]) -> Any:
    """The kernel that all of them have, else None."""
    kernels = [part.kernel for part in parts]
    return kernels[0] if all(kernel == kernels[0] for kernel in kernels) else None


def common_views(parts: Sequence[Any]) -> tuple[str, ...]:
    """The views that several readers or methods have together: in that of a kernel all need the same one."""
    shared = common(*(part.views for part in parts))
    return tuple(view for view in shared if view != "kernel" or one_kernel(parts) is not None)


class Track(eqx.Module):
    """Where tokens of one kind stand: labels y - x.w and covariates T x.

    T is None as long as it is the identity, which it stays when B = 0.
    """

    w: Float[Array, "d *prompts"]
    T: Float[Array, "d d *prompts"] | None = None

    def __add__(self, other: "Track") -> "Track":
        T = self.T if self.T is None or other.T is None else self.T + other.T
        return Track(self.w + other.w, T)

    def times(self, w_factor: Array | float, T_factor: Array | float) -> "Track":
        return Track(w_factor * self.w, None if self.T is None else T_factor * self.T)


class Iterate(eqx.Module):
    """The state of the iterate view: where context and query stand, and the gradient there."""

    context: Track
    gradient: Float[Array, "d *prompts"]
    query: Track | None = None  # None: the query follows the context's track

    @property
    def w(self) -> Array:
        """The iterate that the prediction is read from."""
        return self.context.w if self.query is None else self.query.w


class Change(eqx.Module):
    """What can be added, and multiplied by a number or by one per prompt."""

    def __mul__(self: Any, factor: Array | float) -> Any:
        return self.__rmul__(factor)

    def __truediv__(self: Any, number: Array | float) -> Any:
        return self.__rmul__(1 / number)

    def __sub__(self: Any, other: Any) -> Any:
        return self + other.__rmul__(-1.0)


class Direction(Change):
    """A change of the state. `image` is H times context.w where it is already known, so that
    no product with the Hessian is computed twice."""

    context: Track
    query: Track | None = None
    image: Float[Array, "d *prompts"] | None = None

    def __add__(self, other: "Direction") -> "Direction":
        query = None if self.query is None or other.query is None else self.query + other.query
        image = None if self.image is None or other.image is None else self.image + other.image
        return Direction(self.context + other.context, query, image)

    def __rmul__(self, factor: Array | float) -> "Direction":
        """The direction times a number, or one number per prompt."""
        return Direction(
            self.context.times(factor, factor),
            None if self.query is None else self.query.times(factor, factor),
            None if self.image is None else factor * self.image,
        )


class Columns(Change):
    """The state of the joint view, and a change of it: columns that stand for the context, and the queries."""

    context: Float[Array, "rows short *prompts"]
    query: Float[Array, "rows k *prompts"]

    def __add__(self, other: "Columns") -> "Columns":
        return Columns(self.context + other.context, self.query + other.query)

    def __rmul__(self, factor: Array | float) -> "Columns":
        """Times a number, or one number per prompt."""
        return Columns(factor * self.context, factor * self.query)
