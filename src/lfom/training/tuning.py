"""Step sizes searched on sample prompts: what a fair comparison needs."""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lfom.core import checks
from lfom.core.arrays import as_array
from lfom.core.methods import Algorithm
from lfom.core.parameters import dimension
from lfom.core.problems import Problem
from lfom.core.unroll import losses
from lfom.core.words import brief
from lfom.limits.krylov import moments
from lfom.training.krylov import coefficients_of_tables

MOST = 5  # parameters: a grid of 16 x 12^4 points


class Tuned(eqx.Module):
    """A method with the step sizes that were found, and its mean loss on the sample prompts."""

    __repr__ = brief

    method: Algorithm
    parameters: tuple[float, ...]
    loss: float


def tune(
    build: Callable[..., Algorithm],
    prompts: Problem,
    *,
    steps: int,
    parameters: int,
    highest: float = 4.0,
) -> Tuned:
    """The method `build(*parameters, steps)` whose last step has the smallest mean loss.

    The first parameter is a step size, searched on (0, highest / largest mean eigenvalue), the
    others (momentum) on [0, 1): a grid first, then Nelder-Mead from its best. prompts: with prompts on the last axis.

    >>> import jax
    >>> from lfom import LinearRegression, gradient_descent, tune
    >>> sample = LinearRegression([1.0, 0.5], context=6).quadratics(jax.random.key(0), 500)
    >>> tuned = tune(gradient_descent, sample, steps=2, parameters=1)
    >>> 0 < tuned.parameters[0] < 4
    True
    """
    if not callable(build):
        raise checks.InputError(
            f"build is {checks.shown(build)}: it must be a function such as lfom.momentum, called with numbers and steps."
        )
    checks.instance(
        "prompts", prompts, Problem, "quadratics, such as data.quadratics(jax.random.key(0), 500)"
    )
    checks.positive("highest", highest)
    if checks.count("parameters", parameters) > MOST:
        raise checks.InputError(
            f"parameters is {parameters}: at most {MOST} are searched on a grid. Pass fewer."
        )
    return tune_each(build, prompts, steps=[steps], parameters=parameters, highest=highest)[steps]


def tune_each(
    build: Callable[..., Algorithm],
    prompts: Problem,
    *,
    steps: Sequence[int],
    parameters: int,
    highest: float = 4.0,
) -> dict[int, Tuned]:
    """`tune` for several numbers of steps at once, from one compiled program."""
    from scipy.optimize import minimize  # takes as long to import as all of lfom

    for number in steps:
        checks.count("steps", number)
    checks.count("parameters", parameters)
    deepest = max(steps)
    hessian = np.asarray(prompts.hessian_at_start())
    largest = float(np.linalg.eigvalsh(np.mean(hessian, axis=-1, dtype=np.float64))[-1])
    mean_losses = _mean_losses(build, prompts, deepest, parameters)
    axes = [np.geomspace(0.02, 1.0, 16) * highest / largest] + [np.linspace(0.0, 0.95, 12)] * (parameters - 1)
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, parameters)
    on_grid = mean_losses(grid)
    on_grid = np.where(np.isfinite(on_grid), on_grid, np.inf)
    found = {}
    for number in steps:

        def inside(values: Any, number: int = number) -> float:
            if values[0] <= 0 or np.any(values[1:] < 0) or np.any(values[1:] >= 1):
                return float("inf")
            loss = float(mean_losses(np.resize(values, grid.shape))[0, number])
            return loss if np.isfinite(loss) else float("inf")

        start = grid[on_grid[:, number].argmin()]
        best = minimize(inside, start, method="Nelder-Mead", options={"xatol": 1e-3, "fatol": 1e-5})
        values = tuple(float(v) for v in best.x)
        found[number] = Tuned(build(*values, number), values, float(best.fun))
    return found


def _mean_losses(
    build: Callable[..., Algorithm], prompts: Problem, steps: int, parameters: int
) -> Callable[[np.ndarray], np.ndarray]:
    """A function from parameters (candidates, parameters) to the mean losses after every step. A method
    whose coefficients are numbers is scored by the moments of the prompts: no prompt is looked at again."""
    example = build(*[0.5] * parameters, steps)
    told = example.is_polynomial and example.parts()[0].sizes(steps) is not None
    if not prompts.is_quadratic or not told or dimension(example) is not None:
        compiled = jax.jit(lambda values, on: jnp.mean(losses(build(*values, steps), on), axis=-1))

        def one_by_one(grid: np.ndarray) -> np.ndarray:
            several, place = np.unique(grid, axis=0, return_inverse=True)  # of one that is repeated, one
            return np.stack([np.asarray(compiled(as_array(values), prompts)) for values in several])[place]

        return one_by_one
    quadratics = prompts.as_quadratic()
    h = 1.2 * float(np.linalg.eigvalsh(np.moveaxis(np.asarray(quadratics.gram)[..., :1_000], -1, 0)).max())
    H, g, t = (np.asarray(a, np.float64) for a in moments(quadratics, None, steps, as_array(h)))
    every = np.ones((steps, 1))

    def tables(values: Array) -> Array:
        one: Any = build(*values, steps)
        return jnp.stack(one.memory.table(steps)) * one.reader.sizes(steps)

    compiled = jax.jit(jax.vmap(tables, out_axes=-1))

    def from_moments(grid: np.ndarray) -> np.ndarray:
        with jax.enable_x64(True):
            found = coefficients_of_tables(np.asarray(compiled(grid)), h, every)
        c = np.moveaxis(np.stack(found), 2, 0)  # (candidates, steps + 1, steps)
        return np.einsum("...i,ij,...j->...", c, H, c) - 2 * c @ g + t

    return from_moments
