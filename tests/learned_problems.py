"""Small families of problems that the tests of learning share."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import lfom


def regressions(
    count: int = 60, n: int = 24, d: int = 6, seed: int = 0, dtype: Any = np.float64, ridge: float = 0.01
) -> lfom.LeastSquaresProblems:
    """Regressions whose covariates share one correlation."""
    rng = np.random.default_rng(seed)
    shared = np.random.default_rng(99).normal(size=(d, d)) / np.sqrt(d) * np.linspace(0.2, 1.5, d)
    X = rng.normal(size=(count, n, d)) @ shared
    y = np.einsum("pni,pi->pn", X, rng.normal(size=(count, d))) + 0.1 * rng.normal(size=(count, n))
    return lfom.LeastSquaresProblems(X.astype(dtype), y.astype(dtype), np.asarray(ridge, dtype))


def systems(**options: Any) -> lfom.LinearSystems:
    """The same as matrices."""
    each: Any = regressions(**options).each()
    return lfom.LinearSystems(each.gram, each.moment)


def diffusion(data: Any, v: jax.Array) -> jax.Array:
    """-div(k grad v) with zeros at the edge, five points, plus a little v."""
    padded, k = jnp.pad(v, 1), jnp.pad(data, 1, mode="edge")
    total = 0.01 * v
    for axis in (0, 1):
        for shift in (1, -1):
            between = (k + jnp.roll(k, shift, axis)) / 2
            total = total + (between * (padded - jnp.roll(padded, shift, axis)))[1:-1, 1:-1]
    return total


def grids(count: int = 16, side: int = 6, seed: int = 0, dtype: Any = np.float64) -> lfom.LinearSystems:
    rng = np.random.default_rng(seed)
    k = np.exp(0.5 * rng.normal(size=(count, side, side)))
    b = rng.normal(size=(count, side, side))
    return lfom.LinearSystems(diffusion, b.astype(dtype), data=k.astype(dtype))


def logistic(w: jax.Array, data: Any) -> jax.Array:
    X, y = data
    return jnp.mean(jax.nn.softplus(-y * (X @ w))) + 0.01 * w @ w


def classifications(
    count: int = 50, n: int = 30, d: int = 4, seed: int = 0, dtype: Any = np.float64
) -> lfom.ConvexLosses:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(count, n, d)) * np.linspace(0.3, 1.5, d)
    y = np.sign(np.einsum("pni,pi->pn", X, rng.normal(size=(count, d))) + 0.3 * rng.normal(size=(count, n)))
    return lfom.ConvexLosses(logistic, (X.astype(dtype), y.astype(dtype)), size=d)


def fresh_regressions(**options: Any) -> lfom.LeastSquaresProblems:
    """Problems that nothing was learned from; of one number, so that what was compiled serves again."""
    return regressions(count=40, seed=1, **options)


GRADIENT_STEPS = {
    "scalar": 0,
    "diagonal": 3,
    "preconditioned:jacobi+low-rank": 0,
    "preconditioned:full": 3,
    "conjugate:jacobi+diagonal": 0,
}


@functools.cache
def learned(name: str) -> lfom.Method:
    """A method of five steps for regressions of six unknowns, in float64."""
    with jax.enable_x64(True):
        return lfom.learn(regressions(), 5, name, iterations=GRADIENT_STEPS[name])


@functools.cache
def learned_on_grids() -> lfom.Method:
    with jax.enable_x64(True):
        return lfom.learn(grids(count=50), 4, ["preconditioned:sine", "conjugate:sine"], iterations=0)


@functools.cache
def learned_from_losses() -> lfom.Method:
    with jax.enable_x64(True):
        return lfom.learn(classifications(), 4, "preconditioned:diagonal", iterations=30)


def energies(problems: Any, w: Any) -> np.ndarray:
    """f(w) = w.Aw/2 - b.w of every problem, in more than double precision, so that the sign is right
    also where w lies far along a singular direction."""
    A, b, w = (np.asarray(x).astype(np.longdouble) for x in (problems.A, problems.b, w))
    return np.einsum("pi,pij,pj->p", w, A, w) / 2 - np.einsum("pi,pi->p", b, w)


def relative_errors(problems: Any, w: Any) -> np.ndarray:
    """|w - w*|_A / |w*|_A by NumPy's direct solver."""
    each = problems.each()
    A, b = np.asarray(each.gram, np.float64), np.asarray(each.moment, np.float64)
    best = np.linalg.solve(A, b[..., None])[..., 0]
    off = np.asarray(w, np.float64) - best
    return np.sqrt(np.einsum("pi,pij,pj->p", off, A, off) / np.einsum("pi,pij,pj->p", best, A, best))
