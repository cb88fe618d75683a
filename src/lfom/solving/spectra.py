"""The extreme eigenvalues of M A over a batch of problems."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lfom.solving.preconditioners import Scaled, Shared
from lfom.solving.quadratics import Matrices, Quadratics, dots, spread

LARGEST_EXACT = 512  # unknowns
LANCZOS = 40  # steps


def extreme_eigenvalues(quadratics: Quadratics, shared: Shared, scale: Array) -> tuple[float, float, bool]:
    """The smallest and the largest, and whether they are exact."""
    if isinstance(quadratics, Matrices) and quadratics.b.shape[1] <= LARGEST_EXACT:
        d = quadratics.b.shape[1]
        M = np.asarray(shared(jnp.eye(d, dtype=quadratics.b.dtype)), np.float64)
        values, vectors = np.linalg.eigh((M + M.T) / 2)
        root = vectors * np.sqrt(values) @ vectors.T
        flat = np.asarray(scale, np.float64)
        A = flat[:, :, None] * np.asarray(quadratics.A, np.float64) * flat[:, None, :]
        found = np.linalg.eigvalsh(root @ A @ root)
        return max(float(found.min()), 0.0), float(found.max()), True
    low, high = _lanczos(quadratics, Scaled(shared, scale), min(LANCZOS, quadratics.b[0].size))
    return float(low.min()), float(high.max()), False


@eqx.filter_jit
def _lanczos(quadratics: Quadratics, precondition: Scaled, steps: int) -> tuple[Array, Array]:
    """Extreme Ritz values of M A from a random start: inside the spectrum, close to its ends.

    Conjugate gradients hold Lanczos' tridiagonal matrix in their coefficients:
    T[l, l] = 1 / alpha_l + beta_l / alpha_{l-1}, T[l, l+1] = sqrt(beta_{l+1}) / alpha_l.
    """
    r = jax.random.normal(jax.random.key(0), quadratics.b.shape, quadratics.b.dtype)

    def body(
        carry: tuple[Array, Array, Array], _: None
    ) -> tuple[tuple[Array, Array, Array], tuple[Array, Array]]:
        r, direction, before = carry
        z = precondition(r)
        rz = dots(r, z)
        beta = jnp.where(before > 0, rz / jnp.where(before > 0, before, 1), 0)
        direction = z + spread(beta, z) * direction
        image = quadratics.times(direction)
        curvature = dots(direction, image)
        good = (curvature > 0) & (rz > 0)
        alpha = jnp.where(good, rz / jnp.where(good, curvature, 1), 1)
        return (r - spread(alpha, r) * image, direction, rz), (alpha, beta)

    start = (r, jnp.zeros_like(r), jnp.zeros(len(r), r.dtype))
    _, (alpha, beta) = jax.lax.scan(body, start, None, length=steps)
    shifted = jnp.concatenate([jnp.ones((1, alpha.shape[1]), alpha.dtype), alpha[:-1]])
    main = 1 / alpha + beta / shifted
    off = jnp.sqrt(beta[1:]) / alpha[:-1]
    T = jax.vmap(lambda a, b: jnp.diag(a) + jnp.diag(b, 1) + jnp.diag(b, -1), (1, 1))(main, off)
    values = jnp.linalg.eigvalsh(T)
    return values[:, 0], values[:, -1]
