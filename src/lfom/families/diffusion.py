"""Steady diffusion -div(k grad u) = f on the unit square, u = 0 on its edge.

k is a log-normal random field, so that it varies by a factor of a hundred or so; f is a smooth
random source. Finite volumes on a grid of 64 x 64 unknowns: the flux between two cells is the
harmonic mean of their k times the difference of u. The system is never formed.
"""

import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy.ndimage import gaussian_filter

from lfom.families.family import Family, rounded
from lfom.solving.linear_systems import LinearSystems

SIDE = 64
SPREAD = 1.0  # standard deviation of log k
LENGTH = 6.0  # correlation length of k in cells; that of the source is half


def apply(data: dict[str, Array], u: Array) -> Array:
    """(A u) = sum over the four faces of conductance times (u here - u there); u (side, side)."""
    rows, columns = jnp.zeros_like(u[:1]), jnp.zeros_like(u[:, :1])
    above, below = jnp.concatenate([rows, u[:-1]]), jnp.concatenate([u[1:], rows])
    left, right = jnp.concatenate([columns, u[:, :-1]], 1), jnp.concatenate([u[:, 1:], columns], 1)
    vertical, horizontal = data["vertical"], data["horizontal"]
    return (
        data["diagonal"] * u
        - vertical[:-1] * above
        - vertical[1:] * below
        - horizontal[:, :-1] * left
        - horizontal[:, 1:] * right
    )


def conductances(k: np.ndarray) -> dict[str, np.ndarray]:
    """Faces and diagonal from k on the cells and one ring around them, (problems, side+2, side+2)."""
    vertical = _harmonic(k[:, :-1, 1:-1], k[:, 1:, 1:-1])  # (problems, side + 1, side)
    horizontal = _harmonic(k[:, 1:-1, :-1], k[:, 1:-1, 1:])
    diagonal = vertical[:, 1:] + vertical[:, :-1] + horizontal[:, :, 1:] + horizontal[:, :, :-1]
    return {"vertical": vertical, "horizontal": horizontal, "diagonal": diagonal}


def _harmonic(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    return 2 * one * other / (one + other)


def smooth(random: np.random.Generator, problems: int, side: int, length: float) -> np.ndarray:
    """Gaussian random fields of mean 0 and variance 1, (problems, side, side)."""
    noise = random.standard_normal((problems, 2 * side, 2 * side))
    field = gaussian_filter(noise, (0, length, length), mode="wrap")
    scale = field.std(axis=(1, 2), keepdims=True)
    return field[:, :side, :side] / scale


def systems(
    problems: int, random: np.random.Generator, spread: float = SPREAD, length: float = LENGTH
) -> LinearSystems:
    """Random materials and sources. spread: standard deviation of log k; length: of its correlation."""
    data = rounded(conductances(np.exp(spread * smooth(random, problems, SIDE + 2, length))))
    source = rounded(smooth(random, problems, SIDE, LENGTH / 2))
    return LinearSystems(apply, source, data=data, diagonal=data["diagonal"])


DIFFUSION = Family(
    "diffusion", lambda part, problems, random: systems(problems, random), batch=32
)  # 4,096 unknowns
