"""What a user hands over: a batch of related problems of one kind."""

import abc
from collections.abc import Hashable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lfom.core import checks
from lfom.core.arrays import as_array
from lfom.core.checks import InputError
from lfom.core.methods import Door
from lfom.solving.derivatives import differentiated
from lfom.solving.kinds import Kind
from lfom.solving.learners import Learner, QuadraticLearner
from lfom.solving.program import Program, Raw
from lfom.solving.systems import solve_systems


def some_problems(value: Any) -> Any:
    """`value` where it is a batch of problems."""
    kinds = "lfom.LeastSquaresProblems, lfom.LinearSystems or lfom.ConvexLosses"
    return checks.instance("problems", value, Problems, f"problems to solve: build {kinds}")


class Problems(eqx.Module):
    """A batch of problems. problems[3] is a batch of one, problems[2:5] a batch of three. single: whether one
    problem was brought without an axis of problems; its answer has none then."""

    single: eqx.AbstractVar[bool]

    @property
    @abc.abstractmethod
    def kind(self) -> Kind:
        """What the problems are."""

    @property
    @abc.abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The shape of one problem's unknowns."""

    @property
    @abc.abstractmethod
    def dtype(self) -> Any: ...

    @abc.abstractmethod
    def each(self) -> Any:
        """The problems as the core knows them: one of its own, with problems on the leading axis of every
        array. `jax.vmap` runs it."""

    @abc.abstractmethod
    def solved(
        self, program: Program, own: int, steps: int, tolerance: Array | None, start: Array | None
    ) -> Raw:
        """What a compiled `solve` does: `own` steps of the method, `steps` in all."""

    @abc.abstractmethod
    def learner(self, steps: int, seed: int) -> Learner:
        """What fits methods to them."""

    @abc.abstractmethod
    def errors(self, w: Any, best: Any) -> Array:
        """How far w is from the solution, relative to the start; one number per problem, see Kind.measure."""

    @property
    def knows_diagonal(self) -> bool:
        """Whether the diagonals of H are known."""
        return self.kind.matrix

    @property  # for which Equinox makes no module when it is asked
    def reads_outside(self) -> Hashable:
        """What a user's function reads that is no argument of it: see `lfom.solving.closures`."""
        return ()

    @property
    def sides(self) -> int | None:
        """How many right-hand sides a problem has; None for one, without an axis of them."""
        return None

    @Door
    def by_rows(self, ranged: bool, steps: int, tolerance: Any) -> bool:
        """Whether so many steps cost less by rows than by Gram matrices. ranged: they are brought into the range of a family."""
        return False

    def rows(self, members: np.ndarray) -> np.ndarray:
        """Where the problems with these numbers stand in `each`: one row for every right-hand side."""
        count = self.sides or 1
        return (np.asarray(members)[:, None] * count + np.arange(count)).ravel()

    def begun(self, start: Any) -> Array:
        """A start, shaped like an answer, with an axis of problems."""
        own = (*self.shape, *(() if self.sides is None else (self.sides,)))
        found = fitting("start", start, own if self.single else (len(self), *own), "the problems", self)
        return found[None] if self.single else found

    def shown(self, raw: Raw) -> Raw:
        """What was found, shaped as the problems were brought."""
        return jax.tree.map(lambda leaf: leaf[0], raw) if self.single else raw

    def __getitem__(self, index: Any) -> Any:
        if self.single:
            raise InputError(
                "this is one problem, which has no parts: bring several with an axis of problems."
            )
        chosen = slice(index, index + 1 or None) if isinstance(index, int | np.integer) else index
        count = len(self)
        if isinstance(index, int | np.integer) and not -count <= index < count:
            raise InputError(f"problem {index} does not exist: there are {count}, numbered from 0.")
        return jax.tree.map(lambda leaf: leaf[chosen], self)

    def described(self) -> str:
        """What else there is to say in a line."""
        return ""

    def __repr__(self) -> str:
        leaves = jax.tree.leaves(self)
        if not leaves or not all(eqx.is_array(leaf) and leaf.ndim for leaf in leaves):
            return eqx.tree_pformat(self)  # some part of it, or a specification for each
        count = "one problem" if self.single else f"{len(self):,} problems"
        return f"{type(self).__name__}({count} of {self.shape} unknowns{self.described()}, {self.dtype})"

    def __len__(self) -> int:
        return jax.tree.leaves(self)[0].shape[0]


class Quadratics(Problems):
    """Problems with a quadratic loss w.Aw/2 - b.w, some of them with several b for one A."""

    @abc.abstractmethod
    def formed(self) -> Any:
        """The problems as the core knows them; where they have several right-hand sides, `moment` has a last axis of
        them."""

    def formed_for(self, program: Program) -> Any:
        """The same in the form in which the program reads them."""
        return self.formed()

    def each(self) -> Any:
        """One for every right-hand side."""
        problems, count = self.formed(), self.sides
        if count is None:
            return problems
        moment = _columns(problems.moment)
        repeated = jax.tree.map(lambda leaf: jnp.repeat(leaf, count, axis=0), problems)
        return with_moment(repeated, moment)

    def times(self, vectors: Any) -> Array:
        """A v of every problem."""
        return jax.vmap(lambda one, v: one.hessian_times(v))(self.formed(), vectors)

    def solved(
        self, program: Program, own: int, steps: int, tolerance: Array | None, start: Array | None
    ) -> Raw:
        problems = self.formed_for(program)
        solve = partial(_every_side, own, steps, self.sides)

        def inverse(program: Any, problems: Any, tolerance: Array, w: Array, g: Array) -> Array:
            return solve(program, with_moment(problems, g), None, tolerance).value

        return differentiated(solve, inverse, program, problems, start, tolerance)

    def learner(self, steps: int, seed: int) -> Learner:
        return QuadraticLearner(self, steps, seed)

    def errors(self, w: Array, best: Array) -> Array:
        def energy(one: Any, v: Array) -> Array:
            return jnp.sum(v * one.hessian_times(v))

        if self.single:
            w, best = w[None], best[None]
        shape = w.shape[:1] if self.sides is None else (w.shape[0], w.shape[-1])
        if self.sides is not None:
            w, best = _columns(w), _columns(best)
        each = self.each()
        squares = jax.vmap(energy)(each, w - best) / jax.vmap(energy)(each, best)
        found = jnp.sqrt(jnp.maximum(squares, 0)).reshape(shape)
        return found[0] if self.single else found


def with_moment(problems: Any, moment: Array) -> Any:
    """The same with other right-hand sides."""
    return eqx.tree_at(lambda some: some.moment, problems, moment)


def _columns(vectors: Array) -> Array:
    """(problems, d, k) as (problems k, d)."""
    return jnp.moveaxis(vectors, -1, 1).reshape(-1, vectors.shape[1])


def _every_side(
    own: int,
    steps: int,
    sides: int | None,
    program: Any,
    problems: Any,
    start: Any = None,
    tolerance: Any = None,
    written: bool = False,
) -> Raw:
    """What is differentiated: a function of arrays alone but for numbers of steps, see lfom.solving.derivatives. Matrices are
    not repeated for several right-hand sides: a step multiplies each with all its vectors at once."""

    def one(moment: Array, start: Array | None) -> Raw:
        return solve_systems(program, with_moment(problems, moment), own, steps, tolerance, start, written)

    if sides is None:
        return one(problems.moment, start)
    where = None if start is None else -1
    return jax.vmap(one, (-1, where), Raw(-1, 1, 1, 1, None))(problems.moment, start)  # type: ignore[arg-type]


def fitting(name: str, value: Any, shape: tuple[int, ...], other: str = "b", like: Any = None) -> Array:
    """An array of this shape, and of the precision of another one."""
    array = checks.as_brought(name, value)
    if array.shape != shape:
        raise InputError(f"{name} has shape {array.shape}, and {other} asks for {shape}. Make them match.")
    if like is not None and array.dtype != like.dtype:
        raise InputError(
            f"{name} has dtype {array.dtype} and {other} {like.dtype}. Convert one of them, so that "
            "everything is computed in one precision."
        )
    return array


def data_array(value: Any) -> Array:
    """An array of the data of problems, whatever it holds, in the precision in which it was brought."""
    checks.keeps_precision("data", value)
    try:
        return as_array(value)
    except (TypeError, ValueError, OverflowError):
        raise InputError(
            f"data holds {checks.shown(value)}: it must hold arrays of numbers, each with a leading axis of problems."
        ) from None
