"""Parameters that all prompts share, fitted to new prompts by damped least squares.

The compiled programs take one model and one chunk of prompts: adapting again, to however many prompts
and runs, compiles nothing.
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

from lfom.core.arrays import as_array
from lfom.core.problems import Problem
from lfom.core.threads import in_threads
from lfom.core.unroll import last_residual
from lfom.core.vectors import frees, from_vector, parameters, vector_of
from lfom.training.direct import damped_steps, normal_equations

DAMPING = (1e-6, 1e-3, 1e-1, 1.0)  # steps tried, relative to diag(J^T J)
GAIN = 1e-4  # a relative gain below this in every run ends the adaptation
CHUNK = 4_096  # prompts, or folds of prompts, at a time


@dataclass(frozen=True)
class Budget:
    """How much may be spent. steps: least-squares steps; seconds: no step begins after these."""

    steps: int
    seconds: float | None


Chunks = list[list[Problem]]  # of every run


def chunked(sets: Problem) -> Chunks:
    """(runs, ..., prompts), or (runs, prompts, ...) where prompts do not ride last, cut into pieces, filled up with empty prompts to one of a few sizes: programs
    that were compiled for other prompts serve these too."""
    whole, axis = jax.tree.map(np.asarray, sets), -1 if sets.prompts_last else 0  # of one run's prompts
    first_leaf = jax.tree.leaves(whole)[0]
    runs, prompts = len(first_leaf), first_leaf[0].shape[axis]
    size = min(CHUNK, max(64, 1 << (prompts - 1).bit_length()))

    def piece(run: int, first: int) -> Problem:
        def cut(values: np.ndarray) -> Array:
            part = np.moveaxis(values[run], axis, 0)[first : first + size]
            filled = np.pad(part, [(0, size - len(part))] + [(0, 0)] * (part.ndim - 1))
            return as_array(np.moveaxis(filled, 0, axis))

        return jax.tree.map(cut, whole)

    return [[piece(run, first) for first in range(0, prompts, size)] for run in range(runs)]


@eqx.filter_jit
def _equations(
    model: Any, train: tuple[str, ...], vector: Array, chunk: Problem
) -> tuple[Array, Array, Array]:
    return normal_equations(parameters(model, train), vector, chunk, jnp.ones(model.depth))


def equations(
    model: Any, train: tuple[str, ...], vectors: np.ndarray, sets: Chunks
) -> tuple[np.ndarray, np.ndarray]:
    """J^T J (runs, p, p) and J^T r (runs, p) over all chunks."""

    def one(job: tuple[np.ndarray, Problem]) -> list[np.ndarray]:
        vector, chunk = job
        found = jax.device_get(_equations(model, train, as_array(vector), chunk))
        return [part.astype(np.float64) for part in found[:2]]

    found = _by_run(one, vectors, sets)
    normal, slope = ([sum(part[i] for part in parts) for parts in found] for i in range(2))
    return np.stack(normal), np.stack(slope)


@eqx.filter_jit
def _total_loss(model: Any, vector: Array, chunk: Problem) -> Array:
    return jnp.sum(last_residual(parameters(model).build(vector), chunk) ** 2)


def total_losses(model: Any, candidates: np.ndarray, sets: Chunks) -> np.ndarray:
    """Sums of |residual|^2 (runs, candidates) over all chunks; not finite is infinity."""

    def one(job: tuple[np.ndarray, Problem]) -> list[float]:
        vectors, chunk = job
        return [float(_total_loss(model, as_array(vector), chunk)) for vector in vectors]

    by_run = _by_run(one, candidates, sets)
    found = np.asarray([[sum(losses) for losses in zip(*parts, strict=True)] for parts in by_run])
    return np.where(np.isfinite(found), found, np.inf)


def _by_run(work: Callable[[Any], Any], vectors: np.ndarray, sets: Chunks) -> list[list[Any]]:
    """work((vectors of a run, chunk)) for every chunk of every run, on all devices; the first one alone, which compiles
    what the others use. Sums over them are taken in their order, so that they do not depend on devices."""
    jobs = [(vector, chunk) for vector, chunks in zip(vectors, sets, strict=True) for chunk in chunks]
    found = iter([work(jobs[0]), *in_threads(work, jobs[1:])])
    return [[next(found) for _ in chunks] for chunks in sets]


def fit_shared(
    model: Any,
    train: tuple[str, ...],
    vectors: np.ndarray,
    sets: Chunks,
    judging: Chunks | None,
    budget: Budget,
    watch: Callable[[int, float], None] | None = None,
) -> tuple[np.ndarray, tuple[dict[str, Any], ...]]:
    """Fit the kinds in `train` to `sets`, each run's model by itself: vectors (runs, all), and after every
    step the time and the loss of each run.

    Gates start at the best of the model's own and the single experts. Steps are judged on `judging`,
    other prompts, or on the same ones where it is None.
    """
    begun = time.perf_counter()
    judging = sets if judging is None else judging
    candidates = vectors[:, None]
    if "gates" in train:
        starts = [from_vector(model, vector).starts() for vector in vectors]
        candidates = np.stack([[vector_of(start) for start in own] for own in starts])
    known = parameters(model, train) if frees(model, train) else None  # hard gates are chosen, not fitted
    history: list[dict[str, Any]] = []
    loss: np.ndarray | None = None
    for step in range(budget.steps + 1):
        if loss is None:
            found = total_losses(model, candidates, judging)
        else:  # the first is where the last step ended
            found = np.column_stack([loss, total_losses(model, candidates[:, 1:], judging)])
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
        normal, slope = equations(model, train, vectors, sets)
        with np.errstate(all="ignore"):  # of a run that overflows, whose steps are none
            steps = damped_steps(normal, slope, DAMPING)  # (runs, 1 + dampings, p), none at all first
        steps = np.where(np.isfinite(steps), steps, 0.0)
        candidates = np.repeat(vectors[:, None], steps.shape[1], axis=1)
        candidates[..., known.index] += steps
    return vectors, tuple(history)
