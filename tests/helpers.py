"""Prompts, matrices and memories that the tests share."""

import itertools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from lfom.core.coefficients import Coefficient, CoordinateWise, Hadamard, Pair, Rows, Scalar, TokenWise
from lfom.core.memories import Bank, Forget, Memory, Register
from lfom.core.preconditioners import Full
from lfom.core.problems import Quadratic
from lfom.core.readers import Gradient
from lfom.prompts.distributions import Distribution
from lfom.prompts.prompt import Prompt, prompt_from_arrays


def make_prompt(seed: int, n: int, d: int, noise: float = 0.0, correlated: bool = True) -> Prompt:
    """A prompt whose covariates are strongly correlated, or standard normal; labels may be noisy."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    X = X @ (rng.normal(size=(d, d)) / np.sqrt(d)) if correlated else X
    w, query = rng.normal(size=d), rng.normal(size=d)
    return prompt_from_arrays(X, X @ w + noise * rng.normal(size=n), query, query @ w, w)


def make_batch(seed: int, prompts: int, n: int, d: int, noise: float = 0.3) -> Prompt:
    singles = [make_prompt(seed + k, n, d, noise) for k in range(prompts)]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *singles)


def safe_step(prompt: Prompt) -> float:
    """1 / largest eigenvalue over the prompts: gradient descent does not grow."""
    X = np.asarray(prompt.X)
    X = X[None] if X.ndim == 2 else X
    return float(1 / max(np.linalg.norm(x, 2) ** 2 / len(x) for x in X))


def matrices(seed: int, prompt: Prompt, depth: int) -> jax.Array:
    """A_l far from symmetric, small enough that the iteration does not overflow."""
    d = prompt.X.shape[-1]
    noise = np.random.default_rng(seed).normal(size=(depth, d, d)) / np.sqrt(d)
    return jnp.asarray(0.5 * safe_step(prompt) * (np.eye(d) + 0.5 * noise))


def gd_reader(seed: int, prompt: Prompt, depth: int, *, covariates: bool = False) -> Gradient:
    """Full A, and with `covariates` a full B (GD++)."""
    B = Full(0.3 * matrices(seed + 1, prompt, depth)) if covariates else None
    return Gradient(Full(matrices(seed, prompt, depth)), B)


def coefficient(kind: str, rng: np.random.Generator, lead: tuple[int, ...], d: int, n: int) -> Coefficient:
    def draw(*shape: int) -> jax.Array:
        return jnp.asarray(rng.uniform(-0.5, 0.5, (*lead, *shape)))

    if kind == "pair":
        return Pair(draw(), draw())
    shape: dict[str, tuple[Any, tuple[int, ...]]] = {
        "scalar": (Scalar, ()),
        "diagonal": (CoordinateWise, (d,)),
        "rows": (Rows, (d + 1,)),
        "tokens": (TokenWise, (n + 1,)),
        "hadamard": (Hadamard, (d + 1, n + 1)),
    }
    structure, size = shape[kind]
    return structure(draw(*size))


def linear_memories(seed: int, d: int, n: int, depth: int, kinds: tuple[str, ...]) -> dict[str, Memory]:
    """Every linear memory with random coefficients, by name."""
    rng = np.random.default_rng(seed)
    found: dict[str, Memory] = {
        "none": Forget(jnp.asarray(rng.uniform(0.5, 1, depth))),
        "register": Register(
            jnp.asarray(rng.uniform(0.5, 1, depth)), jnp.asarray(rng.uniform(-0.5, 0.5, depth))
        ),
    }
    for kind, tied, own in itertools.product(kinds, (True, False), (True, False)):
        gamma = coefficient(kind, rng, (depth,) if tied else (depth, depth), d, n)
        name = f"bank-{kind}{'-tied' if tied else ''}{'-own' if own else ''}"
        found[name] = Bank(gamma, tied, own)
    return found


def relative(found: Any, wanted: Any) -> float:
    """The largest error over the largest value wanted."""
    found, wanted = np.asarray(found), np.asarray(wanted)
    assert found.shape == wanted.shape
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


# Compiled: run op by op, drawing is mostly compilation.
@eqx.filter_jit
def draw_prompts(data: Distribution, key: jax.Array, count: int) -> Prompt:
    return data.prompts(key, count)


@eqx.filter_jit
def draw_quadratics(data: Distribution, key: jax.Array, count: int) -> Quadratic:
    return data.quadratics(key, count)
