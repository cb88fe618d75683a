"""What a method remembers of its directions, and the step it makes of them (Section 3).

A memory is linear in the directions, except for the conjugate register, whose two coefficients are computed
from each prompt. The same code acts in every view and layout: a direction can be added, and multiplied by a
number or by one per prompt; the problem says what a coefficient does to it. What is remembered has the same
shapes in every layer, so that layers can be a loop.

>>> import jax.numpy as jnp
>>> import lfom
>>> lfom.memories.Register(jnp.ones(2), jnp.array([0.0, 0.5])).gamma.tolist()  # R <- direction + gamma R
[0.0, 0.5]
"""

import abc
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from lfom.core.arrays import as_array, default_dtype, filled, numpy_or_jax, on_host, unstacked
from lfom.core.checks import InputError
from lfom.core.coefficients import Coefficient, Pair, Scalar
from lfom.core.parameters import parameter, part
from lfom.core.problems import Problem
from lfom.core.states import VIEWS
from lfom.core.words import brief


class Memory(eqx.Module):
    """step, past = memory(direction, past, state, problem, layer); its parameters are those of the layer.

    linear: whether the step is a fixed linear combination of directions. conjugate: whether the steps are those of
    conjugate gradients. forgets: whether the step is a number times the direction just read. has_numbers: whether its
    coefficients are numbers, or one for the context and one for the query. fills_up: whether layer l fills entry l of
    its room, and reads no later one, so that a loop may be given room bit by bit. takes_room: whether room and entries for more layers
    than are taken change nothing, so that methods of several depths may share a program.

    >>> import lfom
    >>> class Twice(lfom.Memory):
    ...     def __call__(self, direction, past, state, problem, layer):
    ...         return 0.2 * direction + 0.1 * past, direction
    >>> gradient = lfom.readers.Gradient(lfom.preconditioners.Identity())
    >>> lfom.Method(gradient, Twice(), 3).depth
    3
    """

    __repr__ = brief

    linear: ClassVar[bool] = True
    conjugate: ClassVar[bool] = False
    forgets: ClassVar[bool] = False
    fills_up: ClassVar[bool] = False
    takes_room: ClassVar[bool] = False

    @property
    def views(self) -> tuple[str, ...]:
        return VIEWS

    @property
    def splits(self) -> bool:
        """Whether context and query follow tracks of their own."""
        return False

    @property
    def has_numbers(self) -> bool:
        return False

    def start(self, nothing: Any, state: Any, problem: Problem, room: int | None) -> Any:
        """What is remembered before the first layer: one direction, of zeros, unless a memory says otherwise.
        room: see Algorithm."""
        return nothing

    @abc.abstractmethod
    def __call__(
        self, direction: Any, past: Any, state: Any, problem: Problem, layer: Array | int
    ) -> tuple[Any, Any]:
        """The step of a layer, and what is remembered after it."""

    def table(self, depth: int) -> tuple[Any, Any]:
        """[l, j]: the coefficient of direction j in the step of layer l, a number or one per coordinate, for
        the context and for the query; by NumPy where the values are known. Further axes of the parameters
        stay last."""
        raise InputError(
            "conjugate gradients compute their coefficients from each prompt, so they have no "
            "fixed coefficients. Run them on the prompt instead."
            if self.conjugate
            else f"{type(self).__name__} has no fixed coefficients of past gradients that act on w. Run it, or give it table()."
        )

    def canonical(self, depth: int, wide: bool) -> "Memory":
        """The same as an untied bank of numbers, where it has numbers: memories of several classes then share
        what is compiled for one. wide: with one number for the context and one for the query."""
        if not self.has_numbers:
            return self
        context, query = (as_array(rows.astype(default_dtype())) for rows in self.table(depth))
        return Bank(Pair(context, query) if wide or self.splits else Scalar(context), False)

    @property
    def on_eigenvectors(self) -> "Memory | None":
        """What it is on problems of one unknown, where it multiplies all coordinates of w alike; else None."""
        return self if self.has_numbers else None

    def with_numbers(self, context: Any, query: Any) -> "Memory | None":
        """The same with other tables, where it has one for the context and one for the query; else None."""
        return None

    def begin(self) -> "Memory":
        """Where training begins."""
        return self

    def first_steps(self, depth: int) -> np.ndarray:
        """Step sizes to begin with, relative to one over the mean eigenvalue. Layers must differ, or
        training stays where all are equal."""
        return 1 + 0.6 * np.cos(np.pi * (np.arange(depth) + 0.5) / depth)

    def stuck(self, past: Any) -> Array | bool:
        """Whether it can go no further, by problem."""
        return False

    def marked(self, past: Any, going: Array) -> Any:
        """What is remembered, knowing whether the problem goes on: one that is done needs no work."""
        return past


class Forget(Memory):
    """No memory: the step is the direction times a step size. Z += eta_l * direction."""

    forgets, takes_room = True, True
    eta: Float[Array, "depth ..."] = parameter(axes="layers", scales="all")

    @property
    def has_numbers(self) -> bool:
        return True

    def table(self, depth: int) -> tuple[Any, Any]:
        eta = on_host(self.eta)[:depth]
        return (np.eye(depth, dtype=eta.dtype).reshape(depth, depth, *(1,) * (eta.ndim - 1)) * eta,) * 2

    def start(self, nothing: Any, state: Any, problem: Problem, room: int | None) -> None:
        return None

    def __call__(
        self, direction: Any, past: None, state: Any, problem: Problem, layer: Array | int
    ) -> tuple[Any, None]:
        return self.eta * direction, None


def _first(memory: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Nothing is remembered before the first layer."""
    return np.arange(shape[0]) == 0


class Register(Memory):
    """R_l = direction + gamma_l R_{l-1}; step alpha_l R_l (equation dynamic-mem)."""

    takes_room = True
    alpha: Float[Array, "depth ..."] = parameter(axes="layers", scales="all")
    gamma: Float[Array, "depth ..."] = parameter(axes="layers", unread=_first)

    @property
    def has_numbers(self) -> bool:
        return True

    def table(self, depth: int) -> tuple[Any, Any]:
        """R_l = sum over j of gamma_l ... gamma_{j+1} times direction j."""
        alpha, gamma = on_host(self.alpha), on_host(self.gamma)
        units = np.eye(depth, dtype=alpha.dtype).reshape(depth, depth, *(1,) * (alpha.ndim - 1))
        rows, row = [], 0 * units[0]
        for layer in range(depth):
            row = gamma[layer] * row + units[layer]
            rows.append(alpha[layer] * row)
        return (numpy_or_jax(alpha, gamma).stack(rows),) * 2

    def __call__(
        self, direction: Any, past: Any, state: Any, problem: Problem, layer: Array | int
    ) -> tuple[Any, Any]:
        register = direction + self.gamma * past
        return self.alpha * register, register


def _with_room(nothing: Any, room: int) -> Any:
    """Of so many layers."""
    return jax.tree.map(lambda a: jnp.zeros((room, *a.shape), a.dtype), nothing)


def _stored(past: Any, new: Any, layer: Array | int) -> Any:
    """With what is new of this layer."""

    def one(stored: Array, own: Array) -> Array:
        return jax.lax.dynamic_update_index_in_dim(stored, own.astype(stored.dtype), layer, 0)

    return jax.tree.map(one, past, new)


def _grows(past: Any) -> bool:
    """Whether layers are written out, and what is kept of directions grows with them: no sum is longer than it has to be."""
    return type(past) is tuple  # of a loop it is one tree with an axis of layers


def _never_read(bank: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Gamma_j^l with j > l, and own coefficients that are 1; of tied ones the last, never an older one."""
    if bank.tied:
        return (np.arange(shape[0]) == shape[0] - 1) & bank.own_is_one
    return np.triu(np.ones(shape, bool), k=0 if bank.own_is_one else 1)


def _own(bank: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Gamma_l^l: what multiplies the direction just read."""
    if bank.own_is_one:
        return np.zeros(shape, bool)
    return np.ones(shape, bool) if bank.tied else np.arange(shape[0])[:, None] == np.arange(shape[1])


class Bank(Memory):
    """step = sum over j <= l of Gamma_j^l * R_j (equation LFOM_memory), R_j the directions.

    gamma: a Coefficient with leading axes (depth,) if tied over layers (Gamma_j, the same for
    every l) or (depth, depth) if untied, indexed [l, j]. own_is_one: the current direction's
    own coefficient is 1 instead of Gamma_l^l (docs/mathematics.md 2.3).
    """

    fills_up, takes_room = True, True
    gamma: Coefficient = part(
        axes=lambda bank: "past" if bank.tied else "layers past", unread=_never_read, scales=_own
    )
    tied: bool = eqx.field(static=True)  # type: ignore[misc]  # mypy takes `part` for a default
    own_is_one: bool = eqx.field(static=True, default=False)

    @property
    def views(self) -> tuple[str, ...]:
        return self.gamma.views

    @property
    def splits(self) -> bool:
        return self.gamma.splits

    @property
    def has_numbers(self) -> bool:
        return self.gamma.is_number

    def start(self, nothing: Any, state: Any, problem: Problem, room: int | None) -> Any:
        return () if room is None else _with_room(nothing, room)

    def __call__(
        self, direction: Any, past: Any, state: Any, problem: Problem, layer: Array | int
    ) -> tuple[Any, Any]:
        if _grows(past):
            return self._written_out(direction, past, problem)

        bank = _stored(past, direction, layer)
        room = jax.tree.leaves(past)[0].shape[0]
        gamma = jax.tree.map(lambda a: a[:room], self.gamma)  # of directions that there is room for
        terms = jax.vmap(problem.times)(gamma, past if self.own_is_one else bank)  # later ones are zero
        step = jax.tree.map(lambda a: jnp.sum(a, axis=0), terms)
        return direction + step if self.own_is_one else step, bank

    def _written_out(self, direction: Any, past: tuple[Any, ...], problem: Problem) -> tuple[Any, Any]:
        bank, step = (*past, direction), None
        leaves, structure = jax.tree.flatten(self.gamma)
        numbers = zip(*map(unstacked, leaves), strict=True)  # of each direction
        for j, (stored, own) in enumerate(zip(bank, numbers, strict=False)):
            if self.own_is_one and j == len(past):
                term = stored
            else:
                term = problem.times(jax.tree.unflatten(structure, own), stored)
            step = term if step is None else step + term
        return step, bank

    def table(self, depth: int) -> tuple[Any, Any]:
        def rows(values: Any) -> Any:
            known = on_host(values)[None, :depth] if self.tied else on_host(values)[:depth, :depth]
            inner = (1,) * (known.ndim - 2)
            older = np.tril(np.ones((depth, depth), known.dtype), -1 if self.own_is_one else 0)
            own = np.eye(depth, dtype=known.dtype) * self.own_is_one
            return known * older.reshape(depth, depth, *inner) + own.reshape(depth, depth, *inner)

        context, query = self.gamma.numbers()
        return rows(context), rows(query)

    @property
    def on_eigenvectors(self) -> "Bank | None":
        return self._with(self.gamma.on_eigenvectors)

    def with_numbers(self, context: Any, query: Any) -> "Bank | None":
        return None if self.tied else self._with(self.gamma.with_numbers(context, query))

    def _with(self, gamma: Coefficient | None) -> "Bank | None":
        return None if gamma is None else Bank(gamma, self.tied, self.own_is_one)

    @property
    def accumulates(self) -> bool:
        """A tied bank adds each direction again in every later layer."""
        return self.tied and not self.own_is_one

    def begin(self) -> "Bank":
        """The query's values of a tied pair at a small number; the context's stay at 1."""
        if not (self.accumulates and self.gamma.splits and self.gamma.is_number):
            return self
        context, query = self.gamma.numbers()
        return self._with(self.gamma.with_numbers(context, filled(query, 0.3))) or self

    def first_steps(self, depth: int) -> np.ndarray:
        """Those of a tied bank differ by what they accumulate. For a pair of values the context should not
        be timid there: equal steps of 1 make its gradients a well-conditioned basis (at depth 4 the
        condition number of the query's values is 8e1, with steps of 1/4 it is 3e6)."""
        if not self.accumulates:
            return super().first_steps(depth)
        return np.ones(depth) if self.gamma.splits else super().first_steps(depth) / depth


class Conjugated(NamedTuple):
    """What the conjugate register remembers; numbers are one per prompt. slope: r.Ar of the last layer, 0
    before the first. first: of the first. alpha, gamma: the last coefficients. size: R.A^-1 R. steepest:
    the largest Rayleigh quotient R.HR / R.A^-1 R so far. flat: a direction without curvature was met."""

    register: Any
    slope: Array
    first: Array
    alpha: Array
    gamma: Array
    size: Array
    steepest: Array
    begun: Array
    flat: Array


class Conjugate(Memory):
    """The conjugate register: R_l = direction + gamma_l R_{l-1}, step alpha_l R_l with

        gamma_l = r_l.A r_l / r_{l-1}.A r_{l-1}      alpha_l = r_l.A r_l / R_l.H R_l

    computed from each prompt, so that the loop is (preconditioned) conjugate gradients. Needs B = 0 and one
    symmetric A for all layers. The step is zero, never 0/0, where r.Ar has fallen below stop^2 of its first
    value, and where the curvature R.HR is not positive or so small that rounding may have made it: such a
    step could lead anywhere. The measure is the Rayleigh quotient of A H beside the largest seen, which does
    not depend on the scale of the problem; r_l is orthogonal to R_{l-1}, so that its denominator is
    R_l.A^-1 R_l = r_l.A r_l + gamma_l^2 R_{l-1}.A^-1 R_{l-1}.
    """

    linear, conjugate, takes_room = False, True, True
    stop: float = eqx.field(static=True, default=0.0)

    def start(self, nothing: Any, state: Any, problem: Problem, room: int | None) -> Conjugated:
        zero = jnp.zeros_like(problem.slope(state, nothing))
        never = jnp.zeros(zero.shape, bool)
        return Conjugated(nothing, zero, zero, zero, zero, zero, zero, never, never)

    def __call__(
        self, direction: Any, past: Conjugated, state: Any, problem: Problem, layer: Array | int
    ) -> tuple[Any, Conjugated]:
        slope = problem.slope(state, direction)
        first = jnp.where(past.begun, past.first, slope)
        moving = slope > self.stop**2 * first
        continues = (past.slope > 0) & moving
        gamma = jnp.where(continues, slope / jnp.where(continues, past.slope, 1), 0)
        register = direction + gamma * past.register
        curvature, imaged = problem.curvature(register)
        size = slope + gamma**2 * past.size
        quotient = jnp.where(size > 0, curvature / jnp.where(size > 0, size, 1), 0)
        steepest = jnp.maximum(past.steepest, jax.lax.stop_gradient(quotient))
        least = 10 * problem.unknowns() ** 0.5 * jnp.finfo(slope.dtype).eps * steepest
        bends = (curvature > 0) & (quotient > least)
        alpha = jnp.where(moving & bends, slope / jnp.where(bends, curvature, 1), 0)
        flat = past.flat | ((slope > 0) & ~bends)
        begun = jnp.ones_like(past.begun)
        now = Conjugated(register, slope, first, alpha, gamma, size, steepest, begun, flat)
        return alpha * imaged, now

    def stuck(self, past: Conjugated) -> Array:
        return past.flat


class ConjugatedBank(NamedTuple):
    """What the conjugate bank remembers, each of every layer so far: registers, their curvatures R.HR, and their
    sizes R.A^-1 R; and the first r.Ar, and the largest Rayleigh quotient."""

    registers: Any
    curvatures: Any
    sizes: Any
    first: Array
    steepest: Array


class ConjugateBank(Memory):
    """The conjugate register with a memory of all its registers: each new one is made conjugate to every one of them,
    twice, and the step ends where the context's loss is smallest along it.

    Without rounding both are the same. With it the register loses conjugacy to directions of long ago once an
    eigenvalue stands out, as that of the constant function does for most kernels, and needs some layers more: of
    prompts with n = 14 and the kernel exp(x.x') 97 % are further than 1e-6 from the end after 14 layers, with the bank
    none (in float64).
    """

    linear, conjugate, fills_up, takes_room = False, True, True, True
    stop: ClassVar[float] = 0.0  # it goes on as far as rounding lets it

    def start(self, nothing: Any, state: Any, problem: Problem, room: int | None) -> ConjugatedBank:
        zero = jnp.zeros_like(problem.slope(state, nothing))
        kept: Any = ((), (), ()) if room is None else _with_room((nothing, zero, zero), room)
        return ConjugatedBank(kept[0], kept[1], kept[2], zero, zero)

    def __call__(
        self, direction: Any, past: ConjugatedBank, state: Any, problem: Problem, layer: Array | int
    ) -> tuple[Any, ConjugatedBank]:
        written_out = _grows(past.registers)
        before: Any = past[:3]
        if written_out:
            before = [jax.tree.map(lambda *rows: jnp.stack(rows), *rows) for rows in before if rows]
        slope, register = problem.slope(state, direction), direction
        size = slope
        if before:
            registers, curvatures, sizes = before
            bent = curvatures > 0
            for again in range(2):
                products = jax.vmap(problem.conjugacy, (0, None))(registers, register)
                shares = jnp.where(bent, products / jnp.where(bent, curvatures, 1), 0)
                parts = jax.vmap(lambda share, one: share * one)(shares, registers)
                register = register - jax.tree.map(lambda a: jnp.sum(a, axis=0), parts)
                size = size if again else slope + jnp.sum(shares**2 * sizes, axis=0)
        curvature, imaged = problem.curvature(register)
        quotient = jnp.where(size > 0, curvature / jnp.where(size > 0, size, 1), 0)
        steepest = jnp.maximum(past.steepest, jax.lax.stop_gradient(quotient))
        first = jnp.where(past.first > 0, past.first, slope)
        rounding = 10 * problem.unknowns() ** 0.5 * jnp.finfo(slope.dtype).eps
        good = (quotient > rounding * steepest) & (slope > rounding**2 * first)
        alpha = jnp.where(good, problem.slope(state, register) / jnp.where(good, curvature, 1), 0)
        new = (register, jnp.where(good, curvature, 0), size)
        kept: Any
        if written_out:
            kept = [(*old, one) for old, one in zip(past[:3], new, strict=True)]
        else:
            kept = _stored(past[:3], new, layer)
        return alpha * imaged, ConjugatedBank(kept[0], kept[1], kept[2], first, steepest)


def scalar_bank(gamma: Array, *, tied: bool = False, own_is_one: bool = False) -> Bank:
    """A bank with one number per coefficient: (depth, depth) untied, (depth,) tied."""
    return Bank(Scalar(gamma), tied, own_is_one)
