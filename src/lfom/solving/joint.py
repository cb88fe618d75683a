"""Shared numbers in closed form: all problems as one large quadratic, solved by conjugate gradients."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from lfom.core.checks import InputError
from lfom.core.memories import Conjugate, Conjugated, Register
from lfom.core.methods import Method
from lfom.core.problems import IterateProblem
from lfom.core.readers import Reader
from lfom.core.states import Direction, Iterate, NoSuchView, Track
from lfom.core.unroll import trace


class Guard(eqx.Module):
    """Eigenvalues that the shared coefficients must also contract: one problem of one unknown each."""

    eigenvalues: Float[Array, " points"]
    weight: Float[Array, ""]


class Joint(IterateProblem):
    """All problems of a batch as the blocks of one matrix, each times its weight in the inner products, and
    a guard's eigenvalues t as further blocks A = t, b = sqrt(t) with an error of 1 at the start. Unknowns are
    one vector: those of the problems, then those of the guard."""

    problems: IterateProblem
    weights: Float[Array, " problems"]
    guard: Guard

    @property
    def _moments(self) -> Float[Array, "problems *shape"]:
        return -jax.vmap(lambda one: one.initial()[1])(self.problems)

    def split(self, vector: Float[Array, " all"]) -> tuple[Array, Float[Array, " points"]]:
        shape = jax.eval_shape(lambda: self._moments).shape
        inside = vector.shape[0] - self.guard.eigenvalues.shape[0]
        return vector[:inside].reshape(shape), vector[inside:]

    def joined(self, blocks: Array, points: Float[Array, " points"]) -> Float[Array, " all"]:
        return jnp.concatenate([blocks.reshape(-1), points])

    def initial(self) -> tuple[Array, Array]:
        b = self.joined(self._moments, jnp.sqrt(self.guard.eigenvalues))
        return jnp.zeros_like(b), -b

    def hessian_times(self, vector: Array) -> Array:
        blocks, points = self.split(vector)
        images = jax.vmap(lambda one, v: one.hessian_times(v))(self.problems, blocks)
        return self.joined(images, self.guard.eigenvalues * points)

    def gradient(self, w: Array) -> Array:
        return self.hessian_times(w) + self.initial()[1]

    def inner(self, left: Array, right: Array) -> Array:
        blocks, points = self.split(left * right)
        sums = jnp.sum(blocks.reshape(len(blocks), -1), axis=1)
        return jnp.sum(self.weights * sums) + self.guard.weight * jnp.sum(points)

    def unknowns(self) -> int:
        """Of one block: rounding does not add up over blocks."""
        return jax.tree.map(lambda leaf: leaf[0], self.problems).unknowns()

    def mean_eigenvalue(self) -> Array:
        raise InputError("problems that are joined have no common scale: use the reader as it is.")

    def diagonal(self) -> None:
        return None


class Blockwise(Reader):
    """Another reader in every block of a joint problem, and the plain gradient in those of the guard."""

    reader: Reader
    seen: Any = None

    views = ("iterates",)

    def on_tokens(self, Z: Array, problem: Any) -> Array:
        raise NoSuchView("problems that are joined have no tokens: run it on iterates.")

    def on_iterates(self, state: Iterate, problem: Joint) -> Direction:
        blocks, points = problem.split(state.gradient)

        def one(problem: IterateProblem, gradient: Array, seen: Any) -> Array:
            here = Iterate(Track(jnp.zeros_like(gradient)), gradient)
            return problem.read(self.reader.bind(seen), here).context.w

        return Direction(Track(problem.joined(jax.vmap(one)(problem.problems, blocks, self.seen), -points)))

    def ready(self) -> "Blockwise":
        return Blockwise(self.reader.ready(), self.seen)

    def look(self, problem: Joint) -> Any:
        return jax.vmap(self.reader.look)(problem.problems)

    def bind(self, seen: Any) -> "Blockwise":
        return Blockwise(self.reader, seen)


def coefficients_met(state: Any, past: Conjugated) -> tuple[Array, Array]:
    """What to watch of conjugate gradients: their two coefficients of every step."""
    return past.alpha, past.gamma


def best_register(
    reader: Reader,
    problems: IterateProblem,
    weights: Float[Array, " problems"],
    steps: int,
    guard: Guard | None = None,
) -> Register:
    """The shared scalar coefficients with the smallest sum over problems of weight |w_l - w*|_A^2, for
    every l up to `steps` at once: those of conjugate gradients on the joint problem, which minimise exactly
    that sum over all polynomials."""
    if guard is None:
        guard = Guard(jnp.zeros(0, weights.dtype), jnp.zeros((), weights.dtype))
    joint = Joint(problems, weights, guard)
    method = Method(Blockwise(reader), Conjugate(), steps)
    _, _, (alpha, gamma) = trace(method, joint, None, coefficients_met, loop=True)
    return Register(alpha, gamma)
