"""Scores on fresh prompts: every step of the trajectory, spread, tails, paired differences."""

import itertools
import math
from dataclasses import dataclass
from typing import Any, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lfom import checks
from lfom.optimum import Optimum
from lfom.problems import Quadratic
from lfom.threads import in_threads
from lfom.training.sources import number_of_runs
from lfom.unroll import Algorithm, losses

FLOOR = -60.0  # what the log of a loss that is zero to rounding is written as
WORST = 1e-4  # the share of prompts called the worst


class Progress(Protocol):
    def __call__(self, done: float, text: str) -> None: ...


class PerRun(eqx.Module):
    """A method whose arrays have a leading axis of runs: each run has its own."""

    method: Any


@dataclass(frozen=True)
class Score:
    """What one method scored. Axes: run, step (0 to depth)."""

    name: str
    mean: np.ndarray  # (runs, steps) mean loss over prompts
    stderr: np.ndarray  # (runs, steps) its standard error
    last: np.ndarray  # (runs, prompts) loss of every prompt after the last step
    prompts: int

    @property
    def log_mean(self) -> np.ndarray:
        """(runs, steps), FLOOR where the loss is zero to rounding."""
        return log_floor(self.mean)

    @property
    def log_loss(self) -> float:
        """Log loss after the last step, averaged over runs."""
        return float(np.mean(self.log_mean[:, -1]))

    @property
    def log_stderr(self) -> np.ndarray:
        return self.stderr / np.maximum(self.mean, 1e-300)

    @property
    def spread(self) -> float:
        """Standard deviation over runs of the last log loss (0 for one run)."""
        column = self.log_mean[:, -1]
        return float(np.std(column, ddof=1)) if len(column) > 1 else 0.0

    @property
    def log_median(self) -> float:
        """Log of the median prompt's loss, averaged over runs."""
        return float(np.mean(log_floor(np.median(self.last, axis=1))))

    @property
    def worst_share(self) -> float:
        """The part of the total loss that the worst 0.01 % of prompts make."""
        count = max(1, round(WORST * self.prompts))
        top = np.partition(self.last, -count, axis=1)[:, -count:].sum(axis=1)
        return float(np.mean(top / np.maximum(self.last.sum(axis=1), 1e-300)))

    def minus(self, other: "Score") -> tuple[float, float]:
        """This method's last log loss minus another's on the same prompts, and the standard
        error of that difference: over runs if there are several, else over prompts."""
        per_run = self.log_mean[:, -1] - other.log_mean[:, -1]
        if len(per_run) > 1:
            return float(per_run.mean()), float(per_run.std(ddof=1) / math.sqrt(len(per_run)))
        ratio = self.last / max(self.mean[0, -1], 1e-300) - other.last / max(other.mean[0, -1], 1e-300)
        return float(per_run[0]), float(ratio.std() / math.sqrt(self.prompts))


def log_floor(value: Any) -> np.ndarray:
    value = np.asarray(value, np.float64)
    return np.where(value > math.exp(FLOOR), np.log(np.maximum(value, 1e-300)), FLOOR)


def step_losses(method: Any, quadratics: Quadratic) -> Array:
    """Losses (steps, prompts) of an algorithm, or of an optimum (its start and its answer)."""
    if isinstance(method, Optimum):
        start = jnp.sum(jnp.broadcast_to(quadratics.target, quadratics.target.shape) ** 2, axis=0)
        return jnp.stack([start, method.losses(quadratics)])
    return losses(method, quadratics)


def evaluate(
    methods: dict[str, Algorithm | Optimum | PerRun],
    data: Any,
    *,
    prompts: int = 200_000,
    chunk: int = 10_000,
    key: Array,
    progress: Progress | None = None,
) -> dict[str, Score]:
    """Score every method on the same fresh prompts.

    data: a distribution, or several stacked on a leading axis of runs. A method wrapped in
    PerRun is taken run by run, any other is the same for all runs. The query is averaged out where the distribution does so.
    """
    prompts = checks.count("prompts", prompts)
    chunk = min(chunk, prompts)
    runs = number_of_runs(data)
    sources = data if runs else jax.tree.map(lambda x: x[None], data)
    runs = runs or 1
    dynamic, static, varies = {}, {}, {}
    for name, method in methods.items():
        varies[name] = isinstance(method, PerRun)
        inner = method.method if isinstance(method, PerRun) else method
        dynamic[name], static[name] = eqx.partition(inner, eqx.is_array)

    @jax.jit
    def score(sources: Any, stacked: Any, common: Any, keys: Array) -> Any:
        def one_run(args: Any) -> Any:
            source, own, key = args
            quadratics = source.quadratics(key, chunk)
            found = {}
            for name in methods:
                arrays = own[name] if varies[name] else common[name]
                values = step_losses(eqx.combine(arrays, static[name]), quadratics)
                found[name] = (jnp.sum(values, axis=1), jnp.sum(values**2, axis=1), values[-1])
            return found

        return jax.lax.map(one_run, (sources, stacked, keys))

    stacked = {name: d for name, d in dynamic.items() if varies[name]}
    common = {name: d for name, d in dynamic.items() if not varies[name]}
    chunks = max(prompts // chunk, 1)

    def one_chunk(index: int) -> dict[str, Any]:
        keys = jax.random.split(jax.random.fold_in(key, index), runs)
        return jax.tree.map(np.asarray, score(sources, stacked, common, keys))

    sums: dict[str, list[Any]] = {name: [] for name in methods}
    # The first chunk compiles; the others run two at a time, since a chunk keeps one core busy.
    for index, found in enumerate(itertools.chain([one_chunk(0)], in_threads(one_chunk, range(1, chunks)))):
        for name, part in found.items():
            sums[name].append(part)
        if progress:
            progress((index + 1) / chunks, f"{(index + 1) * chunk:,} of {chunks * chunk:,} prompts")
    return {name: _score(name, parts, chunks * chunk) for name, parts in sums.items()}


def _score(name: str, parts: list[Any], prompts: int) -> Score:
    mean = sum(part[0].astype(np.float64) for part in parts) / prompts
    square = sum(part[1].astype(np.float64) for part in parts) / prompts
    stderr = np.sqrt(np.maximum(square - mean**2, 0) / prompts)
    last = np.concatenate([part[2] for part in parts], axis=1)
    if not np.isfinite(mean).all():
        run, step = np.argwhere(~np.isfinite(mean))[0]
        raise FloatingPointError(
            f"the loss of {name} is not finite in run {run} after {step} steps: the method diverges "
            "on these prompts. Lower its step sizes, or train it on this distribution."
        )
    return Score(name, mean, stderr, last, prompts)
