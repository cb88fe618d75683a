"""Step sizes searched on sample prompts: what a fair comparison needs."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy.optimize import minimize

from lfom.problems import Quadratic
from lfom.unroll import Algorithm, last_residual


class Tuned(eqx.Module):
    """A method with the step sizes that were found, and its mean loss on the sample prompts."""

    method: Algorithm
    parameters: tuple[float, ...]
    loss: float


def tune(
    build: Callable[..., Algorithm], quadratics: Quadratic, *, parameters: int, highest: float = 4.0
) -> Tuned:
    """The method `build(*parameters)` whose last step has the smallest mean loss.

    The first parameter is a step size, searched on (0, highest / largest mean eigenvalue); the
    others (momentum) on [0, 1). A grid first, all points in one compiled batch, then
    Nelder-Mead from the best one.

    >>> from lfom import LinearRegression, gradient_descent
    >>> sample = LinearRegression([1.0, 0.5], context=6).quadratics(jax.random.key(0), 500)
    >>> tuned = tune(lambda eta: gradient_descent(eta, steps=2), sample, parameters=1)
    >>> 0 < tuned.parameters[0] < 4
    True
    """
    largest = float(jnp.linalg.eigvalsh(jnp.mean(quadratics.gram, axis=-1))[-1])

    @jax.jit
    def mean_loss(values: Array) -> Array:
        residual = last_residual(build(*values), quadratics)
        return jnp.mean(jnp.sum(residual**2, axis=0))

    steps = np.geomspace(0.02, 1.0, 16) * highest / largest
    axes = [steps] + [np.linspace(0.0, 0.95, 12)] * (parameters - 1)
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, parameters)
    on_grid = np.asarray(jax.lax.map(mean_loss, jnp.asarray(grid)))
    on_grid = np.where(np.isfinite(on_grid), on_grid, np.inf)

    def inside(values: Any) -> float:
        if values[0] <= 0 or np.any(values[1:] < 0) or np.any(values[1:] >= 1):
            return float("inf")
        loss = float(mean_loss(jnp.asarray(values)))
        return loss if np.isfinite(loss) else float("inf")

    best = minimize(
        inside, grid[on_grid.argmin()], method="Nelder-Mead", options={"xatol": 1e-4, "fatol": 1e-6}
    )
    found = tuple(float(v) for v in best.x)
    return Tuned(build(*found), found, float(best.fun))
