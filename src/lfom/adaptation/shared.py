"""Parameters that all prompts share, fitted to new prompts by damped least squares.

Runs are a batch axis. The compiled programs depend on shapes only, so adapting again with as many
prompts compiles nothing.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lfom.adaptation.per_prompt import starts, with_gates
from lfom.problems import Quadratic
from lfom.training.direct import damped_steps, normal_equations
from lfom.training.parameters import Parameters, parameters
from lfom.unroll import Mixture, last_residual

DAMPING = (1e-6, 1e-3, 1e-1, 1.0)  # steps tried, relative to diag(J^T J)
GAIN = 1e-4  # a relative gain below this in every run ends the adaptation
_starts = eqx.filter_jit(starts)
CHUNK = 4_000  # prompts, or folds of prompts, at a time


@dataclass(frozen=True)
class Budget:
    """How much may be spent. steps: least-squares steps; seconds: no step begins after these."""

    steps: int
    seconds: float | None


@dataclass(frozen=True)
class Spent:
    """What a fit found: vectors (runs, all), and after every step the time and the loss of each run."""

    vectors: np.ndarray
    steps: int
    history: tuple[dict[str, Any], ...]


def chunked(sets: Quadratic) -> Quadratic:
    """(runs, ..., prompts) as (runs, chunks, ..., chunk), filled up with empty prompts."""
    prompts = sets.moment.shape[-1]
    chunks = -(-prompts // CHUNK)
    size = -(-prompts // chunks)

    def cut(values: Array) -> Array:
        padded = jnp.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, chunks * size - prompts)])
        return jnp.moveaxis(padded.reshape(*values.shape[:-1], chunks, size), -2, 1)

    return jax.tree.map(cut, sets)


@eqx.filter_jit
def _equations(model: Any, train: tuple[str, ...], vectors: Array, sets: Quadratic) -> tuple[Array, Array]:
    """J^T J (runs, p, p) and J^T r (runs, p) over all chunks."""
    known, active = parameters(model, train), jnp.ones(model.depth)

    def one_run(args: Any) -> Any:
        vector, chunks = args

        def one_chunk(total: Any, chunk: Quadratic) -> Any:
            normal, slope, _ = normal_equations(known, vector, chunk, active)
            return (total[0] + normal, total[1] + slope), None

        p = known.size
        zero = (jnp.zeros((p, p), vector.dtype), jnp.zeros(p, vector.dtype))
        return jax.lax.scan(one_chunk, zero, chunks)[0]

    return jax.lax.map(one_run, (vectors, sets))


@eqx.filter_jit
def total_losses(model: Any, candidates: Array, sets: Quadratic) -> Array:
    """Sums of |residual|^2 (runs, candidates) over all chunks; not finite is infinity."""
    known = _all(model)

    def one_run(args: Any) -> Array:
        vectors, chunks = args

        def one_model(vector: Array) -> Array:
            built = known.build(vector)
            return jnp.sum(jax.lax.map(lambda chunk: jnp.sum(last_residual(built, chunk) ** 2), chunks))

        return jax.lax.map(one_model, vectors)

    found = jax.lax.map(one_run, (candidates, sets))
    return jnp.where(jnp.isfinite(found), found, jnp.inf)


def _all(model: Any) -> Parameters:
    """The order of a model's numbers, none of them trained."""
    size = sum(array.size for array in jax.tree.leaves(eqx.filter(model, eqx.is_array)))
    return Parameters(model, np.zeros(size, bool), np.zeros(size, int))


def vector_of(model: Any) -> np.ndarray:
    """All numbers of a model, in the order of `Parameters`."""
    return np.concatenate([np.ravel(array) for array in jax.tree.leaves(eqx.filter(model, eqx.is_array))])


def build(model: Any, vector: np.ndarray) -> Any:
    """The model with these numbers."""
    arrays, static = eqx.partition(model, eqx.is_array)
    leaves, structure = jax.tree.flatten(arrays)
    parts = np.split(vector, np.cumsum([leaf.size for leaf in leaves])[:-1])
    shaped = [jnp.asarray(part.reshape(leaf.shape)) for part, leaf in zip(parts, leaves, strict=True)]
    return eqx.combine(jax.tree.unflatten(structure, shaped), static)


def fit_shared(
    model: Any,
    train: tuple[str, ...],
    vectors: np.ndarray,
    sets: Quadratic,
    judging: Quadratic | None,
    budget: Budget,
    watch: Callable[[int, float], None] | None = None,
) -> Spent:
    """Fit the kinds in `train` to `sets` (runs, chunks, ..., chunk), each run's model by itself.

    Gates start at the best of the model's own and the single experts. Steps are judged on `judging`,
    other prompts, or on the same ones where it is None.
    """
    begun = time.perf_counter()
    judging = sets if judging is None else judging
    hard = isinstance(model, Mixture) and model.gating == "hard"
    candidates = vectors[:, None]
    if isinstance(model, Mixture) and "gates" in train:
        candidates = np.stack([_with_starts(model, vector) for vector in vectors])
    known = None if hard and set(train) == {"gates"} else parameters(model, train)
    history: list[dict[str, Any]] = []
    loss: np.ndarray | None = None
    for step in range(budget.steps + 1):
        found = np.asarray(total_losses(model, jnp.asarray(candidates), judging), np.float64)
        first, best = found[:, 0], found.argmin(axis=1)
        vectors = np.take_along_axis(candidates, best[:, None, None], axis=1)[:, 0]
        loss, before = found.min(axis=1), first if loss is None else loss
        seconds = time.perf_counter() - begun
        history.append({"step": step, "seconds": seconds, "loss": loss.tolist()})
        if watch:
            watch(step, seconds)
        small = step > 0 and not (loss < (1 - GAIN) * before).any()
        late = budget.seconds is not None and seconds >= budget.seconds
        if known is None or small or late or step == budget.steps:
            break
        normal, slope = (
            np.asarray(a, np.float64) for a in _equations(model, train, jnp.asarray(vectors), sets)
        )
        steps = damped_steps(normal, slope, DAMPING)  # (runs, 1 + dampings, p), none at all first
        steps = np.where(np.isfinite(steps), steps, 0.0)
        candidates = np.repeat(vectors[:, None], steps.shape[1], axis=1)
        candidates[..., known.index] += steps
    return Spent(vectors, len(history) - 1, tuple(history))


def _with_starts(model: Mixture, vector: np.ndarray) -> np.ndarray:
    own = build(model, vector)
    return np.stack([vector_of(with_gates(own, gates)) for gates in np.asarray(_starts(own))])
