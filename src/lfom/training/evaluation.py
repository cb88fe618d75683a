"""Scores on fresh prompts: every step of the trajectory, spread, tails, paired differences."""

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, overload

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lfom.core import checks, room
from lfom.core.arrays import as_array
from lfom.core.kernels import Kernel, check_semidefinite
from lfom.core.methods import Algorithm
from lfom.core.parameters import check_dimension, rebuilt, widened
from lfom.core.problems import Problem, Quadratic
from lfom.core.runs import PerRun, by_run, common_runs, take
from lfom.core.states import VIEWS, common
from lfom.core.threads import in_threads
from lfom.core.unroll import losses
from lfom.prompts.distributions import a_distribution
from lfom.training.prefixes import PrefixScore, prefix_scores

ITERATES = ("iterates", None)
FLOOR = -60.0  # what the log of a loss that is zero to rounding is written as
PER_PROMPT = 1e3  # operations of a method on one prompt, at the least
WORST = 1e-4  # the share of prompts called the worst


View = tuple[str, Kernel | None]  # its name, and the kernel if it is that of one
Progress = Callable[[float, str], None]  # (the part that is done, in words)


@dataclass(frozen=True)
class Score:
    """What one method scored. Axes: run, step (0 to depth)."""

    def __repr__(self) -> str:
        runs = len(self.mean)
        return f"Score({self.name!r}, log loss {self.log_loss:.3f}, {runs} run{'s' * (runs > 1)}, {self.prompts:,} prompts)"

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


@dataclass(frozen=True)
class _Entry:
    """A method to be scored. What differs between methods of one structure, between runs and between
    calls is handed to the compiled program, so that it is compiled once for all of them."""

    name: str
    view: View
    structure: Any  # the method without its arrays
    arrays: list[list[Array]]  # of each run, or of one for all
    active: np.ndarray  # 1 for the layers that it uses, of those its structure has
    steps: int

    def of_run(self, run: int) -> list[Array]:
        return self.arrays[run if len(self.arrays) > 1 else 0]

    def sums(self, run: int, prompts: dict[View, Problem]) -> Any:
        return _sums(self.structure, self.of_run(run), self.active, self.steps, prompts[self.view])


@functools.partial(jax.jit, static_argnames="structure")
def _sums(structure: Any, arrays: list[Array], active: Array, steps: Array, prompts: Problem) -> Any:
    """Sums over prompts of the losses (steps,) and of their squares, and the losses after `steps`."""
    values = losses(rebuilt(structure, arrays), prompts, active)
    return jnp.sum(values, axis=1), jnp.sum(values**2, axis=1), values[steps]


def _entries(methods: Mapping[str, Any], d: int, views: tuple[str, ...] = VIEWS) -> list[_Entry]:
    """Methods that differ only in their numbers and in how many layers they use get one structure: written
    in their common form, and as many layers as the deepest of them, the others switched off."""
    runs = {name: by_run(method) for name, method in methods.items()}
    each = {
        name: [method.as_algorithm()] if runs[name] is None else _each_run(runs[name])
        for name, method in methods.items()
    }
    each = {name: [one.canonical(d) for one in own] for name, own in each.items()}
    read = {name: _view(name, own[0], views) for name, own in each.items()}
    for name, (_, kernel) in read.items():
        if kernel is not None:
            each[name] = [one.without_kernel() for one in each[name]]
    layers = {name: own[0].depth for name, own in each.items()}
    families: dict[Any, list[str]] = {}
    for name, own in each.items():
        bare = own[0].truncated(0) if own[0].switches_off else own[0]
        families.setdefault(_structure(bare), []).append(name)
    found = []
    for names in families.values():
        deepest = max(layers[name] for name in names)
        for name in names:
            filled = [widened(one, deepest).truncated(deepest) for one in each[name]]
            arrays = [[leaf for leaf in jax.tree.leaves(one) if eqx.is_array(leaf)] for one in filled]
            active = (np.arange(filled[0].depth) < layers[name]).astype(np.float32)
            structure = _structure(filled[0])
            found.append(_Entry(name, read[name], structure, arrays, active, layers[name]))
    return sorted(found, key=lambda entry: list(methods).index(entry.name))


def _each_run(runs: Any) -> list[Any]:
    """Every run's own; an optimum's polynomial is the same in each."""
    return PerRun(runs.stacked.as_algorithm()).each()


def _view(name: str, method: Algorithm, views: tuple[str, ...]) -> View:
    """The cheapest that both have."""
    found = common(method.views, views)
    if not found:
        raise checks.InputError(
            f"{name} has no view: its reader and its coefficients do not run in the same one. Run it to see which "
            "part needs which."
        )
    view = found[0]
    return view, method.kernel if view == "kernel" else None


def _structure(method: Any) -> Any:
    leaves, treedef = jax.tree.flatten(method)
    return treedef, tuple(None if eqx.is_array(leaf) else leaf for leaf in leaves)


@overload
def evaluate(
    methods: Mapping[str, Any],
    data: Any,
    *,
    contexts: None = ...,
    prompts: int | None = ...,
    chunk: int = ...,
    key: Array,
    progress: Progress | None = ...,
) -> dict[str, Score]: ...


@overload
def evaluate(
    methods: Mapping[str, Any],
    data: Any,
    *,
    contexts: Iterable[int],
    prompts: int | None = ...,
    chunk: int = ...,
    key: Array,
    progress: Progress | None = ...,
) -> dict[str, PrefixScore]: ...


def evaluate(
    methods: Mapping[str, Any],
    data: Any,
    *,
    contexts: Any = None,
    prompts: int | None = None,
    chunk: int = 2_000,
    key: Array,
    progress: Progress | None = None,
) -> dict[str, Score] | dict[str, PrefixScore]:
    """Score every method on the same fresh prompts.

    methods: by name; each a method, an optimum, or one per run (PerRun or a list). data: a distribution, or
    one per run. The query is averaged out where the distribution does so. If one of the methods
    only runs on tokens or has a kernel, all are scored with the one query that was drawn with each prompt.
    contexts: numbers of examples, such as range(1, n + 1). Each method is then scored after its last step on the first k
    examples of every prompt, for each k, with ridge regression and the Bayes predictor beside it (see `PrefixScore`).
    prompts: 200,000 by default, with contexts 10,000.

    >>> from lfom import LinearRegression, evaluate, gradient_descent
    >>> data, methods = LinearRegression([1.0, 0.5], context=6), {"GD": gradient_descent(0.3, steps=4)}
    >>> found = evaluate(methods, data, contexts=[1, 2, 6], prompts=100, key=jax.random.key(0))
    >>> found["GD"].mean.shape, list(found)
    ((1, 3), ['GD', 'ridge', 'Bayes'])
    """
    prompts = checks.count(
        "prompts", (200_000 if contexts is None else 10_000) if prompts is None else prompts
    )
    check_asked(methods, data, prompts, checks.count("chunk", chunk), key, progress)
    chunk = min(chunk, prompts)
    each = by_run(data)
    first = a_distribution("data", data if each is None else each[0])
    for name, method in methods.items():
        own = by_run(method)
        check_dimension(method if own is None else own.stacked, first.dimension, name, own is not None)
    entries = _entries(methods, first.dimension, first.views)
    sources = [take(data, ...)] if each is None else each.each()
    if len(sources) == 1 and each is None:
        sources = sources * common_runs(**methods)
    _check_runs(entries, len(sources))
    if contexts is not None:
        return prefix_scores(entries, sources, contexts, prompts, chunk, key, progress)
    views = tuple(dict.fromkeys(entry.view for entry in entries))

    def draw(run: int, index: int) -> dict[View, Problem]:
        place = (as_array(np.int32(index)), as_array(np.int32(run)))
        return dict(zip(views, _draw(sources[run], key, *place, chunk, views), strict=True))

    chunks = max(prompts // chunk, 1)
    return _scores(entries, draw, len(sources), chunks, chunks * chunk, progress)


def check_asked(methods: Any, data: Any, prompts: int, chunk: int, key: Any, progress: Any) -> None:
    """What is scored, on what, and whether that many prompts can be had."""
    example = "pass evaluate({'name': method}, ...)"
    checks.instance("methods", methods, Mapping, f"methods by name: {example}")
    if not methods:
        raise checks.InputError(f"methods is empty: {example}.")
    for name, method in methods.items():
        checks.instance("a name in methods", name, str, "a text")
        own = by_run(method)
        one = method if own is None else own.stacked
        if not checks.has(one, "as_algorithm"):
            raise checks.InputError(
                f"methods[{name!r}] is {checks.shown(one)}: it must be a method, an optimum, or one of these per run."
            )
    checks.random_key("key", key)
    checks.function("progress", progress, "a function of the part that is done and a text")
    runs = (None if (each := by_run(data)) is None else each.runs) or 1
    said = f"prompts is {prompts}"
    room.fits(said, 4.0 * runs * prompts * len(methods), "Pass fewer.")
    room.in_time(said, float(runs) * prompts * len(methods) * PER_PROMPT, "Pass fewer.")
    room.fits(f"chunk is {chunk}", 4.0 * min(chunk, prompts), "Pass fewer.")


@eqx.filter_jit
def _draw(
    source: Any, key: Array, index: Array, run: Array, chunk: int, views: tuple[View, ...]
) -> list[Problem]:
    """The same prompts in each of the views."""
    key = jax.random.fold_in(jax.random.fold_in(key, index), run)
    names = {view[0] for view in views}
    if names <= {"iterates"}:
        return [source.problems(key, chunk, "iterates")]
    if names <= {"iterates", "joint"}:
        joints = source.joints(key, chunk)
        return [joints if view[0] == "joint" else joints.as_quadratic() for view in views]
    drawn = source.prompts(key, chunk)
    return [drawn.problem(*view) for view in views]


def evaluate_on(methods: Mapping[str, Any], sets: Quadratic, chunk: int = 2_000) -> dict[str, Score]:
    """Score every method on given prompts, which are not fresh: sets (runs, ..., prompts)."""
    whole = jax.tree.map(np.asarray, sets)
    runs, *_, prompts = whole.moment.shape

    def draw(run: int, index: int) -> dict[View, Problem]:
        part = slice(index * chunk, min((index + 1) * chunk, prompts))
        empty = chunk - (part.stop - part.start)  # filled up with prompts whose loss is zero

        def cut(a: np.ndarray) -> np.ndarray:
            return np.pad(a[run, ..., part], [(0, 0)] * (a.ndim - 2) + [(0, empty)])

        return {ITERATES: jax.tree.map(cut, whole)}

    entries = _entries(methods, whole.moment.shape[1])
    _check_runs(entries, runs)
    return _scores(entries, draw, runs, -(-prompts // chunk), prompts)


def _check_runs(entries: list[_Entry], runs: int) -> None:
    for entry in entries:
        if len(entry.arrays) not in (1, runs):
            raise checks.InputError(
                f"{entry.name} has models for {len(entry.arrays)} runs and the data has {runs}: pass one of "
                "each for every run, or a method without PerRun for all of them."
            )


def _scores(
    entries: list[_Entry],
    draw: Callable[[int, int], dict[View, Problem]],
    runs: int,
    chunks: int,
    prompts: int,
    progress: Progress | None = None,
) -> dict[str, Score]:
    """Chunks of runs side by side in threads; before that, what has to be compiled."""
    finished = itertools.count(1)
    first = draw(0, 0)
    for entry in entries:
        if entry.view not in first:
            raise checks.InputError(
                f"{entry.name} runs in the view {entry.view[0]!r}, and these prompts are given as {', '.join(v for v, _ in first)}: score it "
                "with evaluate on a distribution."
            )
    for (_, kernel), problem in first.items():
        if kernel is not None:
            check_semidefinite(kernel, problem.unknowns() * problem.gram)  # type: ignore[attr-defined]
    list(in_threads(lambda entry: entry.sums(0, first), {e.structure: e for e in entries}.values()))

    def one(item: tuple[int, int]) -> list[Any]:
        run, index = item
        drawn = draw(run, index)
        found = jax.device_get([entry.sums(run, drawn) for entry in entries])
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
