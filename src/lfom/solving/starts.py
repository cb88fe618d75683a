"""Where the fit of a preconditioner begins: the inverse of the family's mean operator, in the
coordinates and of the kind asked for."""

from collections.abc import Callable
from functools import partial
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

Along = Callable[[Array], Array]  # a transform of one vector


class Start(eqx.Module):
    """What a start is found from. w: the solutions. reader: of the plain gradient, in the coordinates asked
    for. seed: of random vectors."""

    problems: IterateProblem
    w: Float[Array, "problems *shape"]
    reader: Reader
    seed: int = eqx.field(static=True)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.w.shape[1:]

    @property
    def scale(self) -> Float[Array, "problems *shape"]:
        """The diagonal change of coordinates."""
        seen = jax.vmap(self.reader.look)(self.problems)
        return jnp.ones_like(self.w) if seen is None else seen

    def unit_energy(self) -> Array:
        """What makes b.w of every problem 1 / problems, shaped to multiply vectors."""
        b = -jax.vmap(lambda one: one.initial()[1])(self.problems)
        energy = jnp.sum((b * self.w).reshape(len(self.w), -1), axis=1)
        return pad_axes(jnp.sqrt(1 / (len(self.w) * energy)), self.w.ndim)

    def signs(self) -> np.ndarray:
        """Random signs, (probes, problems, *shape); drawn on the host, where nothing is compiled for it."""
        return np.random.default_rng(self.seed).integers(0, 2, (PROBES, *self.w.shape), np.int8)

    def probed(self, signs: Array, there: Along, back: Along) -> Float[Array, "*shape"]:
        """The diagonal of the mean operator on the vectors that `back` makes of units, each problem divided
        by the mean of its own: v.(there A back v) over random signs v, in which the entries off the diagonal
        cancel on average. Exact where there are none."""
        scale, times = self.scale, jax.vmap(lambda one, v: one.hessian_times(v))

        def one(total: Array, now: Array) -> tuple[Array, None]:
            v = 2 * now.astype(self.w.dtype) - 1
            image = scale * times(self.problems, scale * jax.vmap(back)(v))
            return total + v * jax.vmap(there)(image), None

        total = jax.lax.scan(one, jnp.zeros_like(self.w), signs)[0] / len(signs)
        size = jnp.mean(total.reshape(len(total), -1), axis=1)
        return jnp.mean(total / pad_axes(size, total.ndim), axis=0) * jnp.mean(size)


def start(kind: str, problems: IterateProblem, w: Array, reader: Reader, seed: int) -> Definite:
    """A matrix of this kind. w: the solutions. reader: of the plain gradient, in the coordinates asked for."""
    kind, rank = ranked(kind)
    return STARTS[kind](Start(problems, w, reader, seed), rank)


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
        return Diagonal(as_array(-np.log(np.asarray(_estimated_diagonal(at)))))
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
    flat = at.scale.reshape(len(at.w), -1)
    return jnp.einsum("pi,pij,pj->ij", flat, matrices(at.problems), flat, precision=HIGHEST) / len(flat)


def _estimated_diagonal(at: Start) -> Array:
    known = _known_diagonal(at)
    return _probed_diagonal(at, as_array(at.signs())) if known is None else known


@eqx.filter_jit
def _known_diagonal(at: Start) -> Array | None:
    known = jax.vmap(lambda one: one.diagonal())(at.problems)
    return None if known is None else jnp.mean(known * at.scale**2, axis=0)


@eqx.filter_jit
def _probed_diagonal(at: Start, signs: Array) -> Array:
    return _above(at.probed(signs, lambda v: v, lambda v: v), 1e-3)


def _above(found: Array, share: float) -> Array:
    """None below a share of their mean: an estimate may be negative."""
    return jnp.maximum(found, share * jnp.mean(found))


def _transformed(transform: str) -> Callable[[Start, int], Definite]:
    @eqx.filter_jit
    def found(at: Start, signs: Array) -> Definite:
        there, back = (
            partial(along_axes, transform=transform, axes=len(at.shape), inverse=inverse)
            for inverse in (False, True)
        )
        return Transformed(-jnp.log(_above(at.probed(signs, there, back), 1e-6)), transform)

    return lambda at, rank: found(at, as_array(at.signs()))


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
