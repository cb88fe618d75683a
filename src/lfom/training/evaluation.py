"""Scores on fresh prompts: every step of the trajectory, on all devices that are used.

Prompts are drawn in numbered blocks of a fixed size. A chunk is as many blocks as suit the device: it is drawn, run and summed
there, block by block, and what comes back is a few numbers of each block. The host adds them in float64, in the order of
blocks: who computed a block, and when, changes nothing.
"""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, overload

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lfom.core import checks, room
from lfom.core.arrays import ONE_SUM, as_array
from lfom.core.compiler import PLAINLY, jit_plainly, loops_are_functions
from lfom.core.devices import used
from lfom.core.hosts import everywhere
from lfom.core.kernels import Kernel, check_semidefinite
from lfom.core.methods import Algorithm
from lfom.core.parameters import check_dimension, check_numbers, rebuilt, widened
from lfom.core.problems import Problem, Quadratic
from lfom.core.runs import by_run, common_runs, each_run, take
from lfom.core.states import VIEWS, cheapest
from lfom.core.threads import cores, in_threads
from lfom.core.unroll import WRITTEN_OUT, losses, room_of
from lfom.prompts.distributions import Distribution
from lfom.prompts.prompt import Prompt, checked
from lfom.training.prefixes import PrefixScore, prefix_scores
from lfom.training.scores import BINS, GROUPS, Score, counted

ITERATES = ("iterates", None)
MOST = 2**20  # prompts of a chunk on an accelerator
BYTES = 2**29  # that the problems of a chunk may take there
IN_A_BLOCK = 100  # groups of prompts
AHEAD = 4  # chunks that an accelerator has to do at any time
# blocks of a chunk on a CPU: starting a program for each would take as long as what it computes
TOGETHER = 10
# bytes that the problems of such a chunk may take: larger blocks take long enough by themselves
LIGHT = 2**25
PIECE = 10  # chunks whose numbers travel together; blocks, where a chunk has as many
PER_PROMPT = 1e3  # operations of a method on one prompt, at the least
CORE = 2e9  # of them in a second on a core, at the most


DATA = "a distribution such as lfom.LinearRegression([1.0, 0.5], context=20), or prompts"
View = tuple[str, Kernel | None]  # its name, and the kernel if it is that of one
Progress = Callable[[float, str], None]  # (the part that is done, in words)


@dataclass(frozen=True)
class _Entry:
    """A method to be scored. What differs between methods of one structure, between runs and between
    calls is handed to the compiled program, so that it is compiled once for all of them."""

    name: str
    view: View
    structure: Any  # the method without its arrays
    arrays: list[list[Array]]  # of each run, or of one for all
    steps: int  # the layers that it uses, of those its structure has

    def of_run(self, run: int) -> list[Array]:
        return self.arrays[run if len(self.arrays) > 1 else 0]

    def sums(self, run: int, blocks: "Chunk") -> Any:
        return _sums(self.structure, self.of_run(run), self.steps, *blocks.of(self.view))


@dataclass(frozen=True)
class Chunk:
    """The prompts of a chunk in each of the views, blocks on the leading axis; alive: 1 for the blocks that count."""

    drawn: dict[View, Problem]
    alive: np.ndarray

    def of(self, view: View) -> tuple[Problem, np.ndarray]:
        return self.drawn[view], self.alive

    def first(self, view: View) -> Problem:
        return jax.tree.map(lambda a: a[0], self.drawn[view])


class Sums(NamedTuple):
    """Of every block: sums over prompts of the losses of each step and of their squares, and of the last losses over groups of
    prompts; how many of the last losses fall into each bin; the last losses themselves."""

    losses: Any  # (blocks, steps)
    squares: Any  # (blocks, steps)
    groups: Any  # (blocks, groups)
    counts: Any  # (BINS,)
    last: Any  # (blocks, prompts)


@functools.partial(jax.jit, static_argnames="structure", compiler_options=PLAINLY)
def _sums(structure: Any, arrays: list[Array], steps: Array, blocks: Problem, alive: Array) -> Sums:
    method = rebuilt(structure, arrays)
    values = _each_block(
        lambda problem: losses(method, problem, loop=_as_loop(method, problem), turns=steps), blocks
    )
    last = jnp.take(values, steps, axis=1)
    size = last.shape[1]
    groups = last.reshape(len(last), -1, size // IN_A_BLOCK) if size % IN_A_BLOCK == 0 else last[..., None]
    times = jnp.broadcast_to(alive[:, None], last.shape)
    return Sums(
        jnp.sum(values, axis=2), jnp.sum(values**2, axis=2), groups.sum(axis=2), counted(last, times), last
    )


def _as_loop(method: Algorithm, problem: Problem) -> bool:
    """Whether layers are a loop: where XLA makes one function of it, few unknowns are faster so (docs/design.md)."""
    few = problem.prompts_last and problem.unknowns() <= ONE_SUM
    return loops_are_functions() and few and method.depth > 0 and not method.moves_covariates


def _each_block(work: Callable[[Any], Any], blocks: Any) -> Any:
    """One after the other on a CPU, whose cache holds one of them. One alone is computed as it is: its program compiles faster."""
    if jax.tree.leaves(blocks)[0].shape[0] > 1:
        return jax.lax.map(work, blocks) if jax.default_backend() == "cpu" else jax.vmap(work)(blocks)
    return jax.tree.map(lambda a: a[None], work(jax.tree.map(lambda a: a[0], blocks)))


def _entries(methods: Mapping[str, Any], d: int, views: tuple[str, ...] = VIEWS) -> list[_Entry]:
    """Methods that differ only in their numbers and in how many layers they use get one structure: written
    in their common form, and as many layers as the deepest of them, the others switched off."""
    each = {}
    for name, own in methods.items():
        algorithms = [one.as_algorithm() for one in each_run(own)]
        for one in algorithms:
            check_numbers(name, one)
        each[name] = [one.canonical(d) for one in algorithms]
    read = {name: _view(name, own[0], views) for name, own in each.items()}
    for name, (_, kernel) in read.items():
        if kernel is not None:
            each[name] = [one.without_kernel() for one in each[name]]
    layers = {name: own[0].depth for name, own in each.items()}
    families: dict[Any, list[str]] = {}
    for name, own in each.items():
        bare = own[0].truncated(0) if own[0].takes_room else own[0]
        families.setdefault(_structure(bare), []).append(name)
    found = []
    for names in families.values():
        deepest = max(layers[name] for name in names)
        if deepest > WRITTEN_OUT and each[names[0]][0].takes_room:
            deepest = room_of(deepest) or deepest
        for name in names:
            filled = [widened(one, deepest).truncated(deepest) for one in each[name]]
            arrays = [[leaf for leaf in jax.tree.leaves(one) if eqx.is_array(leaf)] for one in filled]
            structure = _structure(filled[0])
            found.append(_Entry(name, read[name], structure, arrays, layers[name]))
    return sorted(found, key=lambda entry: list(methods).index(entry.name))


def _view(name: str, method: Algorithm, views: tuple[str, ...]) -> View:
    """The cheapest that both have."""
    view = cheapest(name, method.views, views)
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
    every: bool = ...,
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
    every: bool = False,
    key: Array,
    progress: Progress | None = None,
) -> dict[str, Score] | dict[str, PrefixScore]:
    """Score every method on the same fresh prompts.

    methods: by name; each a method, an optimum, or one per run (PerRun or a list). data: a distribution, or prompts, or
    one of these per run. The query is averaged out where the distribution does so. If one of the methods
    only runs on tokens or has a kernel, all are scored with the one query that was drawn with each prompt. Given prompts are all
    scored, with their queries: nothing should have been fitted to them.
    contexts: numbers of examples, such as range(1, n + 1). Each method is then scored after its last step on the first k
    examples of every prompt, for each k, with ridge regression and the Bayes predictor beside it (see `PrefixScore`).
    prompts: 200,000 by default, with contexts 10,000. chunk: how many are drawn with one key, which decides what is drawn.
    every: keep the loss of every prompt (`Score.last`), in memory that grows with their number.

    >>> import jax
    >>> from lfom import LinearRegression, evaluate, gradient_descent
    >>> data, methods = LinearRegression([1.0, 0.5], context=6), {"GD": gradient_descent(0.3, steps=4)}
    >>> found = evaluate(methods, data, contexts=[1, 2, 6], prompts=100, key=jax.random.key(0))
    >>> found["GD"].mean.shape, list(found)
    ((1, 3), ['GD', 'ridge', 'Bayes'])
    """
    each = by_run(data)
    first = checks.instance("data", data if each is None else each[0], Distribution | Prompt, DATA)
    if first.given:
        if (prompts, contexts) != (None, None):
            raise checks.InputError(
                "given prompts are all scored, with all examples: leave prompts and contexts out."
            )
        prompts = first.X.shape[0] if first.batched else 1
    prompts = checks.count(
        "prompts", (200_000 if contexts is None else 10_000) if prompts is None else prompts
    )
    check_asked(methods, data, prompts, checks.count("chunk", chunk), every, key, progress)
    chunk = min(chunk, prompts)
    for name, method in methods.items():
        own = by_run(method)
        check_dimension(method if own is None else own.stacked, first.dimension, name, own is not None)
    entries = _entries(methods, first.dimension, first.views)
    sources = [take(data, ...)] * common_runs(**methods) if each is None else each.each()
    _check_runs(methods, len(sources))
    if first.given:
        return _on_prompts(entries, [checked(one) for one in sources], prompts, progress)
    if contexts is not None:
        return prefix_scores(entries, sources, contexts, prompts, chunk, key, progress)
    views = tuple(dict.fromkeys(entry.view for entry in entries))

    blocks = max(prompts // chunk, 1)
    many = _at_once(sources[0], chunk, views, blocks)

    def draw(run: int, start: int) -> Chunk:
        place = np.arange(start, start + many, dtype=np.int32)
        drawn = _draw(sources[run], key, as_array(place), as_array(np.int32(run)), chunk, views)
        return Chunk(dict(zip(views, drawn, strict=True)), (place < blocks).astype(np.int32))

    starts = range(0, blocks, many)
    if jax.default_backend() != "cpu":  # where zeros would have to be sent
        return _scores(entries, draw, draw(0, 0), len(sources), starts, blocks * chunk, every, progress)
    places = jax.ShapeDtypeStruct((many,), np.int32)
    shapes = eqx.filter_eval_shape(
        _blocks, sources[0], key, places, jax.ShapeDtypeStruct((), np.int32), chunk, views
    )
    nothing = jax.tree.map(lambda a: np.zeros(a.shape, a.dtype), shapes)
    like = Chunk(dict(zip(views, nothing, strict=True)), np.zeros(many, np.int32))
    return _scores(entries, draw, like, len(sources), starts, blocks * chunk, every, progress)


def _on_prompts(
    entries: list[_Entry], sets: list[Prompt], prompts: int, progress: Progress | None
) -> dict[str, Score]:
    """The prompts of every run are one block."""
    views = tuple(dict.fromkeys(entry.view for entry in entries))

    def draw(run: int, start: int) -> Chunk:
        return Chunk(dict(zip(views, _asked(sets[run], views), strict=True)), np.ones(1, np.int32))

    return _scores(entries, draw, draw(0, 0), len(sets), range(1), prompts, True, progress)


@jit_plainly
def _asked(prompt: Prompt, views: tuple[View, ...]) -> list[Problem]:
    """In each of the views, as one block."""
    batch = prompt if prompt.batched else jax.tree.map(lambda a: a[None], prompt)
    return [jax.tree.map(lambda a: a[None], batch.problem(*view)) for view in views]


def check_asked(
    methods: Any, data: Any, prompts: int, chunk: int, every: bool, key: Any, progress: Any
) -> None:
    """What is scored, on what, and whether that many prompts can be had."""
    example = "pass evaluate({'name': method}, ...)"
    checks.instance("methods", methods, Mapping, f"methods by name: {example}")
    if not methods:
        raise checks.InputError(f"methods is empty: {example}.")
    for name, method in methods.items():
        checks.instance("a name in methods", name, str, "a text")
        own = by_run(method)
        one = method if own is None else own.stacked
        if not checks.has(one, "as_algorithm"):  # what a user hands over: methods and optima share no class
            raise checks.InputError(
                f"methods[{name!r}] is {checks.shown(one)}: it must be a method, an optimum, or one of these per run."
            )
    checks.random_key("key", key)
    checks.flag("every", every)
    checks.function("progress", progress, "a function of the part that is done and a text")
    runs = (None if (each := by_run(data)) is None else each.runs) or 1
    said = f"prompts is {prompts}"
    if every:
        room.fits(said, 4.0 * runs * prompts * len(methods), "Pass fewer, or every=False.")
    rate = min(CORE * cores(), room.RATE) if jax.default_backend() == "cpu" else 10 * room.RATE
    room.in_time(said, float(runs) * prompts * len(methods) * PER_PROMPT, "Pass fewer.", rate)
    room.fits(f"chunk is {chunk}", 4.0 * min(chunk, prompts), "Pass fewer.")


def _at_once(source: Any, chunk: int, views: tuple[View, ...], blocks: int) -> int:
    """Blocks of a chunk; on an accelerator a power of two."""
    on_cpu = jax.default_backend() == "cpu"
    if on_cpu and blocks < 2 * TOGETHER:
        return 1
    one = eqx.filter_eval_shape(
        _blocks, source, jax.random.key(0), jnp.zeros(1, jnp.int32), jnp.zeros((), jnp.int32), chunk, views
    )
    size = sum(a.size * a.dtype.itemsize for a in jax.tree.leaves(one))
    if on_cpu:
        return TOGETHER if TOGETHER * size <= LIGHT else 1
    many = max(min(BYTES // size, MOST // chunk, blocks), 1)
    return 1 << (many - 1).bit_length() if many == blocks else 1 << many.bit_length() - 1


def _blocks(
    source: Any, key: Array, places: Array, run: Array, chunk: int, views: tuple[View, ...]
) -> list[Problem]:
    """The same prompts in each of the views: blocks of them on the leading axis."""
    names = {view[0] for view in views}

    def block(index: Array) -> list[Problem]:
        own = jax.random.fold_in(jax.random.fold_in(key, index), run)
        if names <= {"iterates"}:
            return [source.problems(own, chunk, "iterates")]
        if names <= {"iterates", "joint"}:
            joints = source.joints(own, chunk)
            return [joints if view[0] == "joint" else joints.as_quadratic() for view in views]
        drawn = source.prompts(own, chunk)
        return [drawn.problem(*view) for view in views]

    return _each_block(block, places)


_draw: Any = jit_plainly(_blocks)


def evaluate_on(methods: Mapping[str, Any], sets: Quadratic, chunk: int = 2_000) -> dict[str, Score]:
    """Score every method on given prompts, which are not fresh: sets (runs, ..., prompts)."""
    whole = jax.tree.map(np.asarray, sets)
    runs, *_, prompts = whole.moment.shape

    def draw(run: int, index: int) -> Chunk:
        part = slice(index * chunk, min((index + 1) * chunk, prompts))
        empty = chunk - (part.stop - part.start)  # filled up with prompts whose loss is zero

        def cut(a: np.ndarray) -> np.ndarray:
            return np.pad(a[run, ..., part], [(0, 0)] * (a.ndim - 2) + [(0, empty)])[None]

        return Chunk({ITERATES: jax.tree.map(cut, whole)}, np.ones(1, np.int32))

    entries = _entries(methods, whole.moment.shape[1])
    _check_runs(methods, runs)
    found = _scores(entries, draw, draw(0, 0), runs, range(-(-prompts // chunk)), prompts, every=True)
    return {name: Score.of(name, one.mean, one.stderr, one.last[:, :prompts]) for name, one in found.items()}  # type: ignore[index]


def _check_runs(methods: Mapping[str, Any], runs: int) -> None:
    for name, method in methods.items():
        own = by_run(method)
        if own is not None and own.runs not in (None, runs):
            raise checks.InputError(
                f"{name} has models for {own.runs} runs and the data has {runs}: pass one of "
                "each for every run, or a method without PerRun for all of them."
            )


def _scores(
    entries: list[_Entry],
    draw: Callable[[int, int], Chunk],
    like: Chunk,
    runs: int,
    starts: range,
    prompts: int,
    every: bool,
    progress: Progress | None = None,
) -> dict[str, Score]:
    """Chunks of runs side by side in threads; before that, what has to be compiled, side by side too. like: a chunk of the
    shapes that are drawn. starts: the first block of each chunk."""
    for entry in entries:
        if entry.view not in like.drawn:
            raise checks.InputError(
                f"{entry.name} runs in the view {entry.view[0]!r}, and these prompts are given as "
                f"{', '.join(v for v, _ in like.drawn)}: score it with evaluate on a distribution."
            )
    programs = {e.structure: e for e in entries}.values()
    jobs = [lambda: draw(0, 0), *(functools.partial(entry.sums, 0, like) for entry in programs)]
    first, *_ = in_threads(lambda work: work(), jobs)
    for view in first.drawn:
        if view[1] is not None:
            problem: Any = first.first(view)
            check_semidefinite(view[1], problem.unknowns() * problem.gram)
    every = every or prompts <= GROUPS

    def of_chunk(run: int, start: int) -> list[Sums]:
        blocks = draw(run, start)
        begun = [entry.sums(run, blocks) for entry in entries]
        kept = [own if every else own._replace(last=None) for own in begun]
        return [_that_count(own, int(blocks.alive.sum())) for own in jax.device_get(kept)]

    def one(item: tuple[int, int]) -> list[Sums]:
        run, first = item
        parts = [of_chunk(run, start) for start in starts[first : first + piece]]
        whole = [_together(own) for own in zip(*parts, strict=True)]
        return [own._replace(counts=_filled(own.counts)) for own in whole]

    piece = PIECE if jax.default_backend() != "cpu" else max(PIECE // starts.step, 1)
    items = [(run, first) for run in range(runs) for first in range(0, len(starts), piece)]
    totals = [[Total.nothing(entry.steps + 1, every) for _ in range(runs)] for entry in entries]
    found = everywhere(one, items, None if jax.default_backend() == "cpu" else AHEAD * len(used()))
    for at, ((run, first_of), parts) in enumerate(zip(items, found, strict=True)):
        for own, part in zip(totals, parts, strict=True):
            own[run].add(part, starts[first_of])
        if progress:
            done = (at + 1) / len(items)
            progress(done, f"{int(done * prompts):,} of {prompts:,} prompts")
    return {entry.name: _score(entry.name, own, prompts) for entry, own in zip(entries, totals, strict=True)}


def _together(parts: Sequence[Sums]) -> Sums:
    """Of chunk after chunk."""
    if len(parts) == 1:
        return parts[0]
    joined = {
        name: None if own[0] is None else np.concatenate(own)
        for name, own in zip(Sums._fields, zip(*parts, strict=True), strict=True)
        if name != "counts"
    }
    return Sums(**joined, counts=np.sum([part.counts for part in parts], axis=0))


def _filled(counts: np.ndarray) -> np.ndarray:
    """The bins that hold something, and how much: (2, bins). Most hold nothing, and these numbers travel."""
    places = np.flatnonzero(counts)
    return np.stack([places, counts[places]])


def _that_count(part: Sums, blocks: int) -> Sums:
    """Without the blocks that only fill the chunk."""
    return Sums(*(a if name == "counts" or a is None else a[:blocks] for name, a in part._asdict().items()))


@dataclass
class Total:
    """The sums of a run so far, in float64."""

    losses: np.ndarray  # (steps,)
    squares: np.ndarray  # (steps,)
    groups: np.ndarray  # (GROUPS,)
    counts: np.ndarray  # (BINS,)
    last: list[np.ndarray] | None

    @classmethod
    def nothing(cls, steps: int, every: bool) -> "Total":
        last: list[np.ndarray] | None = [] if every else None
        return cls(np.zeros(steps), np.zeros(steps), np.zeros(GROUPS), np.zeros(BINS, np.int64), last)

    def add(self, part: Sums, start: int) -> None:
        """start: the number of the first block."""
        steps = len(self.losses)
        self.losses += part.losses[:, :steps].sum(axis=0, dtype=np.float64)
        self.squares += part.squares[:, :steps].sum(axis=0, dtype=np.float64)
        self.counts[part.counts[0]] += part.counts[1]
        blocks, size = part.groups.shape
        places = (start * size + np.arange(blocks * size)) % GROUPS
        self.groups += np.bincount(places, part.groups.ravel().astype(np.float64), GROUPS)
        if self.last is not None:
            self.last.append(part.last.ravel())


def _score(name: str, runs: list[Total], prompts: int) -> Score:
    mean, square = (
        np.stack([getattr(own, field) for own in runs]) / prompts for field in ("losses", "squares")
    )
    if not np.isfinite(mean).all():
        run, step = np.argwhere(~np.isfinite(mean))[0]
        raise FloatingPointError(
            f"the loss of {name} is not finite in run {run} after {step} steps: the method diverges "
            "on these prompts. Lower its step sizes, or train it on this distribution."
        )
    stderr = np.sqrt(np.maximum(square - mean**2, 0) / prompts)
    if any(own.last is None for own in runs):
        groups, counts = (np.stack([getattr(own, field) for own in runs]) for field in ("groups", "counts"))
        return Score(name, mean, stderr, prompts, groups, counts)
    return Score.of(name, mean, stderr, np.stack([np.concatenate(own.last or []) for own in runs]))
