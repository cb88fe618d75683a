"""Where the fit of a preconditioner begins: the inverse of the family's mean operator, in the
coordinates and of the kind asked for; or, mode by mode, the best map from b to w*."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lfom.solving.preconditioners import Diagonal, Full, Identity, LowRank, Shared, Transformed, along_axes
from lfom.solving.quadratics import HIGHEST, Quadratics, dots, matrices, spread

PROBES = 16  # random vectors per problem, where a diagonal has to be estimated
RANK = 8


def start(kind: str, quadratics: Quadratics, w: Array, scale: Array, key: Array) -> Shared:
    """scale: the diagonal change of coordinates, (problems, *shape). w: the solutions."""
    share = jnp.full(len(w), 1 / len(w), w.dtype)
    if kind == "identity":
        return Identity()
    if kind in ("sine", "cosine"):
        return _transformed(kind, quadratics, w, share, scale, key)
    small = quadratics.b[0].size <= 256
    if kind == "full" or small:
        mean = _mean(quadratics, share, scale)
        return _of_matrix(kind, mean, quadratics.b.shape[1:], quadratics.b.dtype)
    diagonal = _estimated_diagonal(quadratics, share, scale, key)
    if kind == "diagonal":
        return Diagonal(-jnp.log(diagonal))
    return _from_solutions(diagonal, quadratics, w, share, scale)


def _mean(quadratics: Quadratics, share: Array, scale: Array) -> np.ndarray:
    mean = np.asarray(_mean_matrix(quadratics, share, scale), np.float64)
    return (mean + mean.T) / 2


@eqx.filter_jit
def _mean_matrix(quadratics: Quadratics, share: Array, scale: Array) -> Array:
    flat = scale.reshape(len(scale), -1)
    return jnp.einsum("p,pi,pij,pj->ij", share, flat, matrices(quadratics), flat, precision=HIGHEST)


def _of_matrix(kind: str, mean: np.ndarray, shape: tuple[int, ...], dtype: jnp.dtype) -> Shared:
    if kind == "diagonal":
        return Diagonal(jnp.asarray(-np.log(np.diag(mean)).reshape(shape), dtype))
    values, vectors = np.linalg.eigh(mean)
    values = np.maximum(values, values[-1] * 1e-6)
    if kind == "full":
        base = vectors / np.sqrt(values)
        return Full(jnp.asarray(base, dtype), jnp.zeros(base.shape, dtype))
    # low rank: one scale for most directions, more for the softest ones
    rank = min(RANK, len(values) // 2)
    rest = 1 / np.exp(np.mean(np.log(values[rank:])))
    V = vectors[:, :rank] * np.sqrt(np.maximum(1 / (values[:rank] * rest) - 1, 1e-3))
    logs = np.full(shape, np.log(rest))
    return LowRank(jnp.asarray(logs, dtype), jnp.asarray(V.reshape(*shape, rank), dtype))


def _probed(quadratics: Quadratics, scale: Array, key: Array) -> tuple[Array, Array]:
    """Random vectors and their images in the given coordinates, (probes, problems, *shape)."""
    v = jax.random.rademacher(key, (PROBES, *quadratics.b.shape), quadratics.b.dtype)
    return v, jax.lax.map(lambda one: scale * quadratics.times(scale * one), v)


@eqx.filter_jit
def _estimated_diagonal(quadratics: Quadratics, share: Array, scale: Array, key: Array) -> Array:
    known = quadratics.diagonal()
    if known is not None:
        return jnp.sum(spread(share, known) * known * scale**2, axis=0)
    v, image = _probed(quadratics, scale, key)
    found = jnp.sum(spread(share, scale) * jnp.mean(v * image, axis=0), axis=0)
    return jnp.maximum(found, 1e-3 * jnp.mean(found))


@eqx.filter_jit
def _transformed(
    kind: str, quadratics: Quadratics, w: Array, share: Array, scale: Array, key: Array
) -> Transformed:
    """Mode by mode, the number m with the smallest sum of (m b - w*)^2, problems of unit energy."""
    energy = spread(jnp.sqrt(share / dots(quadratics.b, w)), w)
    b, solution = along_axes(scale * quadratics.b * energy, kind), along_axes(w / scale * energy, kind)
    modes = jnp.sum(b * solution, axis=0) / jnp.sum(b**2, axis=0)
    v, image = _probed(quadratics, scale, key)
    flat = jax.vmap(lambda x: along_axes(x, kind))
    inverse = jnp.sum(spread(share, scale) * jnp.mean(flat(v) * flat(image), axis=0), axis=0)
    inverse = 1 / jnp.maximum(inverse, 1e-6 * jnp.mean(inverse))
    sound = (modes > inverse / 30) & (modes < inverse * 30)
    return Transformed(jnp.log(jnp.where(sound, modes, inverse)), kind)


@eqx.filter_jit
def _from_solutions(diagonal: Array, quadratics: Quadratics, w: Array, share: Array, scale: Array) -> LowRank:
    """Directions in which the solutions lie, for operators too large for matrices."""
    energy = jnp.sqrt(share / dots(quadratics.b, w))
    root = jnp.sqrt(diagonal)
    rows = (root * w / scale * spread(energy, w)).reshape(len(w), -1)
    _, _, vectors = jnp.linalg.svd(rows, full_matrices=False)
    V = vectors[: min(RANK, len(vectors))].T.reshape(*w.shape[1:], -1)
    return LowRank(-jnp.log(diagonal), V)
