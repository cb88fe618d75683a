"""Step sizes searched on sample prompts: what a fair comparison needs."""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy.optimize import minimize

from lfom import checks
from lfom.problems import Quadratic
from lfom.unroll import Algorithm, losses


class Tuned(eqx.Module):
    """A method with the step sizes that were found, and its mean loss on the sample prompts."""

    method: Algorithm
    parameters: tuple[float, ...]
    loss: float


def tune(
    build: Callable[..., Algorithm],
    quadratics: Quadratic,
    *,
    steps: int,
    parameters: int,
    highest: float = 4.0,
) -> Tuned:
    """The method `build(*parameters, steps)` whose last step has the smallest mean loss.

    The first parameter is a step size, searched on (0, highest / largest mean eigenvalue), the
    others (momentum) on [0, 1): a grid first, then Nelder-Mead from its best.

    >>> from lfom import LinearRegression, gradient_descent
    >>> sample = LinearRegression([1.0, 0.5], context=6).quadratics(jax.random.key(0), 500)
    >>> tuned = tune(gradient_descent, sample, steps=2, parameters=1)
    >>> 0 < tuned.parameters[0] < 4
    True
    """
    return tune_each(build, quadratics, steps=[steps], parameters=parameters, highest=highest)[steps]


def tune_each(
    build: Callable[..., Algorithm],
    quadratics: Quadratic,
    *,
    steps: Sequence[int],
    parameters: int,
    highest: float = 4.0,
) -> dict[int, Tuned]:
    """`tune` for several numbers of steps at once, from one compiled program."""
    for number in steps:
        checks.count("steps", number)
    checks.count("parameters", parameters)
    largest = float(jnp.linalg.eigvalsh(jnp.mean(quadratics.gram, axis=-1))[-1])

    @jax.jit
    def mean_losses(values: Array) -> Array:
        """The mean loss after every step, for the parameters of one method."""
        return jnp.mean(losses(build(*values, max(steps)), quadratics), axis=-1)

    axes = [np.geomspace(0.02, 1.0, 16) * highest / largest] + [np.linspace(0.0, 0.95, 12)] * (parameters - 1)
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, parameters)
    on_grid = np.stack([np.asarray(mean_losses(jnp.asarray(point))) for point in grid])
    on_grid = np.where(np.isfinite(on_grid), on_grid, np.inf)
    found = {}
    for number in steps:

        def inside(values: Any, number: int = number) -> float:
            if values[0] <= 0 or np.any(values[1:] < 0) or np.any(values[1:] >= 1):
                return float("inf")
            loss = float(mean_losses(jnp.asarray(values))[number])
            return loss if np.isfinite(loss) else float("inf")

        start = grid[on_grid[:, number].argmin()]
        best = minimize(inside, start, method="Nelder-Mead", options={"xatol": 1e-3, "fatol": 1e-5})
        values = tuple(float(v) for v in best.x)
        found[number] = Tuned(build(*values, number), values, float(best.fun))
    return found
