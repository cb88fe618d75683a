"""Scores on fresh prompts: every step of the trajectory, spread, tails, paired differences."""

import functools
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lfom.core import checks
from lfom.core.methods import Algorithm, Method, Mixture
from lfom.core.problems import Quadratic
from lfom.core.threads import in_threads
from lfom.core.trees import take
from lfom.core.unroll import losses
from lfom.limits.optimum import Optimum, polynomial_answer
from lfom.training.parameters import truncate
from lfom.training.sources import number_of_runs

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
    return np.where(value <= math.exp(FLOOR), FLOOR, np.log(np.maximum(value, 1e-300)))  # NaN stays NaN


class _Horner(eqx.Module):
    """An optimum with its polynomial as numbers that are not compiled in."""

    coefficients: Array
    preconditioner: Array | None

    def losses(self, quadratics: Quadratic) -> Array:
        """The loss of w = 0 and of the answer."""
        start = jnp.sum(jnp.broadcast_to(quadratics.target, quadratics.target.shape) ** 2, axis=0)
        w = polynomial_answer(self.coefficients, self.preconditioner, quadratics)
        return jnp.stack([start, jnp.sum(quadratics.residual(w) ** 2, axis=0)])


@dataclass(frozen=True)
class _Entry:
    """A method to be scored. What differs between methods of one structure, between runs and between
    calls is handed to the compiled program, so that it is compiled once for all of them."""

    name: str
    structure: Any  # the method without its arrays
    arrays: list[list[Array]]  # of each run, or of one for all
    active: np.ndarray  # 1 for the layers that it uses, of those its structure has
    steps: int

    def sums(self, run: int, quadratics: Quadratic) -> Any:
        arrays = self.arrays[run if len(self.arrays) > 1 else 0]
        return _sums(self.structure, arrays, self.active, self.steps, quadratics)


@functools.partial(jax.jit, static_argnames="structure")
def _sums(structure: Any, arrays: list[Array], active: Array, steps: Array, quadratics: Quadratic) -> Any:
    """Sums over prompts of the losses (steps,) and of their squares, and the losses after `steps`."""
    treedef, rest = structure
    left = iter(arrays)
    method = jax.tree.unflatten(treedef, [next(left) if leaf is None else leaf for leaf in rest])
    values = method.losses(quadratics) if isinstance(method, _Horner) else losses(method, quadratics, active)
    return jnp.sum(values, axis=1), jnp.sum(values**2, axis=1), values[steps]


def _entries(methods: Mapping[str, Any]) -> list[_Entry]:
    """Methods that differ only in their numbers and in how many layers they use get one structure."""
    inner = {name: m.method if isinstance(m, PerRun) else m for name, m in methods.items()}
    layers = {name: m.depth for name, m in inner.items() if isinstance(m, Method | Mixture)}
    families: dict[Any, list[str]] = {}
    for name in layers:
        bare = truncate(inner[name], 0)
        shapes = tuple(leaf.shape for leaf in jax.tree.leaves(eqx.filter(bare, eqx.is_array)))
        families.setdefault((_structure(bare), isinstance(methods[name], PerRun), shapes), []).append(name)
    for names in families.values():
        deepest = max(layers[name] for name in names)
        inner |= {name: truncate(inner[name], deepest) for name in names}
    degree = max((m.depth for m in inner.values() if isinstance(m, Optimum)), default=0)
    found = []
    for name, method in inner.items():
        steps = 1 if isinstance(method, Optimum) else layers.get(name, method.depth)
        if isinstance(method, Optimum):
            numbers = -np.pad(method.polynomial[1:], (0, degree - method.depth))
            if (
                isinstance(methods[name], PerRun) and method.preconditioner is not None
            ):  # its polynomial is the same in every run
                numbers = np.broadcast_to(numbers, (method.preconditioner.shape[0], degree))
            method = _Horner(jnp.asarray(numbers, float), method.preconditioner)
        depth = 1 if isinstance(method, _Horner) else method.depth
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(method) if eqx.is_array(leaf)]
        runs = leaves[0].shape[0] if isinstance(methods[name], PerRun) and leaves else 0
        each = [[leaf[run] for leaf in leaves] for run in range(runs)] or [leaves]
        arrays = [[jnp.asarray(leaf) for leaf in own] for own in each]
        active = (np.arange(depth) < steps).astype(np.float32)
        found.append(_Entry(name, _structure(method), arrays, active, steps))
    return found


def _structure(method: Any) -> Any:
    leaves, treedef = jax.tree.flatten(method)
    return treedef, tuple(None if eqx.is_array(leaf) else leaf for leaf in leaves)


def evaluate(
    methods: Mapping[str, Algorithm | Optimum | PerRun],
    data: Any,
    *,
    prompts: int = 200_000,
    chunk: int = 2_000,
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
    sources = [take(data, run) for run in range(runs)] or [take(data, ...)]

    def draw(run: int, index: int) -> Quadratic:
        return _draw(sources[run], key, index, run, chunk)

    chunks = max(prompts // chunk, 1)
    return _scores(methods, draw, len(sources), chunks, chunks * chunk, progress)


@functools.partial(jax.jit, static_argnames="chunk")
def _draw(source: Any, key: Array, index: Array, run: Array, chunk: int) -> Quadratic:
    return source.quadratics(jax.random.fold_in(jax.random.fold_in(key, index), run), chunk)


def evaluate_on(methods: Mapping[str, Any], sets: Quadratic, chunk: int = 2_000) -> dict[str, Score]:
    """Score every method on given prompts, which are not fresh: sets (runs, ..., prompts)."""
    whole = jax.tree.map(np.asarray, sets)
    runs, *_, prompts = whole.moment.shape

    def draw(run: int, index: int) -> Quadratic:
        part = slice(index * chunk, min((index + 1) * chunk, prompts))
        empty = chunk - (part.stop - part.start)  # filled up with prompts whose loss is zero

        def cut(a: np.ndarray) -> np.ndarray:
            return np.pad(a[run, ..., part], [(0, 0)] * (a.ndim - 2) + [(0, empty)])

        return jax.tree.map(cut, whole)

    return _scores(methods, draw, runs, -(-prompts // chunk), prompts)


def _scores(
    methods: Mapping[str, Any],
    draw: Callable[[int, int], Quadratic],
    runs: int,
    chunks: int,
    prompts: int,
    progress: Progress | None = None,
) -> dict[str, Score]:
    """Chunks of runs side by side in threads; before that, what has to be compiled."""
    entries, finished = _entries(methods), itertools.count(1)
    for entry in entries:
        if isinstance(methods[entry.name], PerRun) and entry.arrays[0] and len(entry.arrays) != runs:
            raise checks.InputError(
                f"{entry.name} has models for {len(entry.arrays)} runs and the data has {runs}: pass one of "
                "each for every run, or a method without PerRun for all of them."
            )
    first = draw(0, 0)
    list(in_threads(lambda entry: entry.sums(0, first), {e.structure: e for e in entries}.values()))

    def one(item: tuple[int, int]) -> list[Any]:
        run, index = item
        quadratics = draw(run, index)
        found = jax.device_get([entry.sums(run, quadratics) for entry in entries])
        if progress:
            done = next(finished) / (runs * chunks)
            progress(done, f"{int(done * prompts):,} of {prompts:,} prompts")
        return found

    found = list(in_threads(one, [(run, index) for run in range(runs) for index in range(chunks)]))
    return {
        entry.name: _score(
            entry, [[part[at] for part in found[r * chunks : (r + 1) * chunks]] for r in range(runs)], prompts
        )
        for at, entry in enumerate(entries)
    }


def _score(entry: _Entry, parts: list[list[Any]], prompts: int) -> Score:
    """parts: of each run and chunk."""
    steps = entry.steps + 1
    mean, square = (
        np.stack([sum(part[i].astype(np.float64) for part in own)[:steps] for own in parts]) / prompts
        for i in range(2)
    )
    if not np.isfinite(mean).all():
        run, step = np.argwhere(~np.isfinite(mean))[0]
        raise FloatingPointError(
            f"the loss of {entry.name} is not finite in run {run} after {step} steps: the method diverges "
            "on these prompts. Lower its step sizes, or train it on this distribution."
        )
    stderr = np.sqrt(np.maximum(square - mean**2, 0) / prompts)
    last = np.stack([np.concatenate([part[2] for part in own])[:prompts] for own in parts])
    return Score(entry.name, mean, stderr, last, prompts)
