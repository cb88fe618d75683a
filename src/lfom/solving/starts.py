"""Where the fit of a preconditioner begins: the inverse of the family's mean operator, in the
coordinates and of the kind asked for; or, mode by mode, the best map from b to w*."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from lfom.core.arrays import HIGHEST, as_array, filled, pad_axes
from lfom.core.checks import InputError
from lfom.core.preconditioners import (
    Definite,
    Deflated,
    Diagonal,
    Factored,
    Identity,
    LowRank,
    Transformed,
    along_axes,
)
from lfom.core.problems import IterateProblem
from lfom.core.readers import Reader
from lfom.solving.spectra import matrices
from lfom.solving.structures import RANK, ranked

PROBES = 16  # random vectors per problem, where a diagonal has to be estimated
SMALL = 256  # unknowns: up to here the mean operator is formed for every kind


class Start(eqx.Module):
    """What a start is found from. b: the right-hand sides; w: the solutions. scale: the diagonal change of
    coordinates. key: of random vectors."""

    problems: IterateProblem
    b: Float[Array, "problems *shape"]
    w: Float[Array, "problems *shape"]
    scale: Float[Array, "problems *shape"]
    key: Array

    @property
    def shape(self) -> tuple[int, ...]:
        return self.w.shape[1:]

    def unit_energy(self) -> Array:
        """What makes b.w of every problem 1 / problems, shaped to multiply vectors."""
        energy = jnp.sum((self.b * self.w).reshape(len(self.w), -1), axis=1)
        return pad_axes(jnp.sqrt(1 / (len(self.w) * energy)), self.w.ndim)

    def probed(self) -> tuple[Array, Array]:
        """Random vectors and their images in the given coordinates, (probes, problems, *shape)."""
        v = jax.random.rademacher(self.key, (PROBES, *self.w.shape), self.w.dtype)
        times = jax.vmap(lambda one, v: one.hessian_times(v))
        return v, jax.lax.map(lambda one: self.scale * times(self.problems, self.scale * one), v)


def start(kind: str, problems: IterateProblem, w: Array, reader: Reader, key: Array) -> Definite:
    """A matrix of this kind. w: the solutions. reader: of the plain gradient, in the coordinates asked for."""
    kind, rank = ranked(kind)
    return STARTS[kind](_setting(problems, w, reader, key), rank)


@eqx.filter_jit
def _setting(problems: IterateProblem, w: Array, reader: Reader, key: Array) -> Start:
    b, seen = -jax.vmap(lambda one: one.initial()[1])(problems), jax.vmap(reader.look)(problems)
    return Start(problems, b, w, jnp.ones_like(w) if seen is None else seen, key)


def _full(at: Start, rank: int) -> Definite:
    values, vectors = _softest(at)
    base = as_array(vectors / np.sqrt(values), at.w.dtype)
    return Factored(base, filled(base, 0.0))


def _low_rank(at: Start, rank: int) -> Definite:
    """One scale for most directions, and more for the softest ones or less for the stiffest: whatever leaves the smaller
    condition number of the mean operator."""
    size = at.w[0].size
    if rank >= max(size, RANK + 1):
        raise InputError(
            f"rank is {rank}, and there are {size} unknowns: pass a smaller one, or structure full."
        )
    if size > SMALL and not at.problems.has_gram():
        return _from_solutions(at, _estimated_diagonal(at), rank)
    values, vectors = _softest(at)
    rank = min(rank, size // 2)
    soft, stiff = slice(0, rank), slice(size - rank, size)
    deflates = values[-rank - 1] / values[0] < values[-1] / values[rank]
    few, rest = (stiff, values[:-rank]) if deflates else (soft, values[rank:])
    scale = np.exp(np.mean(np.log(rest)))
    excess = values[few] / scale if deflates else scale / values[few]
    V = vectors[:, few] * np.sqrt(np.maximum(excess - 1, 1e-3))
    logs = as_array(np.full(at.shape, -np.log(scale)), at.w.dtype)
    return (Deflated if deflates else LowRank)(logs, as_array(V.reshape(*at.shape, rank), at.w.dtype))


def _diagonal(at: Start, rank: int) -> Definite:
    if at.w[0].size > SMALL:
        return Diagonal(-jnp.log(_estimated_diagonal(at)))
    return Diagonal(as_array(-np.log(np.diag(_mean(at))).reshape(at.shape), at.w.dtype))


def _softest(at: Start) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues of the mean operator, the smallest first and none of them too small, and vectors."""
    values, vectors = np.linalg.eigh(_mean(at))
    return np.maximum(values, values[-1] * 1e-6), vectors


def _mean(at: Start) -> np.ndarray:
    mean = np.asarray(_mean_matrix(at), np.float64)
    return (mean + mean.T) / 2


@eqx.filter_jit
def _mean_matrix(at: Start) -> Array:
    flat = at.scale.reshape(len(at.scale), -1)
    return jnp.einsum("pi,pij,pj->ij", flat, matrices(at.problems), flat, precision=HIGHEST) / len(flat)


@eqx.filter_jit
def _estimated_diagonal(at: Start) -> Array:
    known = jax.vmap(lambda one: one.diagonal())(at.problems)
    if known is not None:
        return jnp.mean(known * at.scale**2, axis=0)
    v, image = at.probed()
    found = jnp.mean(v * image, axis=(0, 1))
    return jnp.maximum(found, 1e-3 * jnp.mean(found))


def _transformed(transform: str) -> Callable[[Start, int], Definite]:
    @eqx.filter_jit
    def start(at: Start, rank: int) -> Definite:
        """Mode by mode, the number m with the smallest sum of (m b - w*)^2, problems of unit energy."""

        def modes_of(vector: Array) -> Array:
            return along_axes(vector, transform, len(at.shape))

        energy = at.unit_energy()
        b, solution = (
            jax.vmap(modes_of)(at.scale * at.b * energy),
            jax.vmap(modes_of)(at.w / at.scale * energy),
        )
        modes = jnp.sum(b * solution, axis=0) / jnp.sum(b**2, axis=0)
        v, image = (jax.vmap(jax.vmap(modes_of))(x) for x in at.probed())
        inverse = jnp.mean(v * image, axis=(0, 1))
        inverse = 1 / jnp.maximum(inverse, 1e-6 * jnp.mean(inverse))
        sound = (modes > inverse / 30) & (modes < inverse * 30)
        return Transformed(jnp.log(jnp.where(sound, modes, inverse)), transform)

    return start


@eqx.filter_jit
def _from_solutions(at: Start, diagonal: Array, rank: int) -> Definite:
    """Directions in which the solutions lie, for operators too large for matrices."""
    rows = (jnp.sqrt(diagonal) * at.w / at.scale * at.unit_energy()).reshape(len(at.w), -1)
    _, _, vectors = jnp.linalg.svd(rows, full_matrices=False)
    V = vectors[: min(rank, len(vectors))].T.reshape(*at.shape, -1)
    return LowRank(-jnp.log(diagonal), V)


STARTS: dict[str, Callable[[Any, int], Definite]] = {
    "identity": lambda at, rank: Identity(),
    "diagonal": _diagonal,
    "low-rank": _low_rank,
    "sine": _transformed("sine"),
    "cosine": _transformed("cosine"),
    "full": _full,
}
