"""lfom.fit: train any model on any distribution, or on a fixed set of prompts.

Least squares is the default where the parameters are few. Full matrices are trained in two
phases: first A_l = a_l M with one matrix for all layers, which few prompts determine well, then
every A_l by itself, in steps that are kept only if fresh prompts confirm them (the second phase
alone overfits badly at depth, NOTES section 3). Training starts from the scale of a few
prompts; neither the covariance nor the optimum is used.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lfom import checks
from lfom.checks import InputError
from lfom.distributions import LinearRegression
from lfom.training.adam import Adam, make_block
from lfom.training.evaluation import PerRun
from lfom.training.least_squares import CAREFUL, DAMPING, damped_steps, make_passes
from lfom.training.parameters import (
    KINDS,
    Parameters,
    as_full,
    from_scale,
    has_full_matrices,
    parameters,
    start_scales,
    truncate,
)
from lfom.training.sources import Fixed, Fresh, sources
from lfom.unroll import Algorithm

LEAST_SQUARES_UP_TO = 1_500  # parameters: beyond this J^T J is too large, and Adam is used
SLICE = 25  # chunks per compiled call, so that progress shows and Ctrl-C is heard


@dataclass(frozen=True)
class LeastSquares:
    """How least squares spends its prompts.

    first: prompts of a pass in the beginning. last: prompts of the final passes; None lets it
    grow with depth. passes: the most passes at the beginning, and at the end. gain: a relative
    gain below this ends a level. hold_out: of a fixed set, the share that judges steps; 0 judges
    them on the set itself, which fits these prompts and not their distribution. every_matrix:
    whether every A_l is freed after the phase with one matrix; None frees them unless prompts are
    drawn from LinearRegression, where by Appendix D one matrix is enough.
    """

    first: int = 2_000
    last: int | None = None
    passes: tuple[int, int] = (30, 3)
    gain: float = 3e-3
    hold_out: float = 0.2
    chunk: int = 2_000
    every_matrix: bool | None = None

    def levels(self, depth: int) -> tuple[int, int]:
        """Prompts of a pass at the beginning and at the end."""
        last = self.last if self.last is not None else int(25_000 * max(1.0, (depth / 4) ** 3))
        return min(self.first, last), last


@dataclass(frozen=True)
class State:
    """Where a fit stands: all that is needed to go on, bit for bit."""

    phase: int
    level: int
    step: int  # passes or blocks done in this phase
    vectors: np.ndarray  # (runs, depths, all) every number of every model
    extra: dict[str, np.ndarray] = field(default_factory=dict)
    history: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True)
class Fit:
    """Trained models, one per run and depth."""

    template: Any
    depths: tuple[int, ...]
    vectors: np.ndarray  # (runs, depths, all)
    history: tuple[dict[str, Any], ...]
    seconds: float

    @property
    def runs(self) -> int:
        return self.vectors.shape[0]

    def model(self, run: int = 0, depth: int | None = None) -> Any:
        """The trained model of one run and depth."""
        return self._pick(run, depth)

    def per_run(self, depth: int | None = None) -> PerRun:
        """The models of one depth for all runs, as `evaluate` takes them."""
        models = [self._pick(run, depth) for run in range(self.runs)]
        return PerRun(jax.tree.map(lambda *arrays: jnp.stack(arrays), *models))

    def _pick(self, run: int, depth: int | None) -> Any:
        depth = self.depths[-1] if depth is None else depth
        if depth not in self.depths:
            raise InputError(f"depth is {depth}: this fit has the depths {list(self.depths)}.")
        vector = self.vectors[run, self.depths.index(depth)]
        return truncate(parameters(self.template).build(jnp.asarray(vector)), depth)


@dataclass(frozen=True)
class Phase:
    """One part of a fit: what is trained, in which parametrisation, and how."""

    name: str
    parameters: Parameters
    optimiser: LeastSquares | Adam | None  # None: only a change of parametrisation
    careful: bool = False


class Diverged(FloatingPointError):
    """The loss is no longer finite."""


Watch = Callable[[State, dict[str, Any]], None]


def fit(
    model: Algorithm,
    data: Any,
    *,
    key: Array,
    depths: Sequence[int] | None = None,
    train: Sequence[str] | Sequence[Sequence[str]] = KINDS,
    optimiser: LeastSquares | Adam | None = None,
    start: str = "data",
    watch: Watch | None = None,
    resume: State | None = None,
) -> Fit:
    """Train `model` on `data`, for every run in it and every depth at once.

    data: a Distribution; several of them (a list, or one with a leading axis of runs on its
    arrays), one per run; or prompts (a batch, or a Quadratic with prompts on its last axis), or a
    list of these, one per run.
    depths: train the first L layers for each L; by default the whole model.
    train: the kinds of parameters that are free (A, B, coefficients, gates), the others stay as
    they are; a sequence of such lists trains one after the other (Appendix D: A, then Gamma).
    optimiser: LeastSquares or Adam; by default least squares where the parameters are few.
    start: "data" starts least squares from the scale of a few prompts, "model" from the model's
    own numbers. Adam always starts from the model.
    watch: called after every pass with the state and a record of it. resume: such a state.

    >>> from lfom import LinearRegression, fit, memformer
    >>> data = LinearRegression([1.0, 0.5], context=8)
    >>> trained = fit(memformer(2, 1, memory="none", key=jax.random.key(0)), data, key=jax.random.key(1))
    >>> trained.model().depth
    1
    """
    begun = time.perf_counter()
    wanted = _depths(model, depths)
    if optimiser is None:
        few = parameters(model, _groups_of(train)[0]).size <= LEAST_SQUARES_UP_TO
        optimiser = LeastSquares() if few else Adam(steps=10_000, schedule="cosine")
    least_squares = optimiser if isinstance(optimiser, LeastSquares) else LeastSquares()
    source = sources(data, chunk=least_squares.chunk, hold_out=least_squares.hold_out)
    phases = plan(model, train, optimiser, start, data)
    setting = _Setting(source, wanted, model.depth, key, watch)
    state = resume
    if state is None:
        state = State(0, 0, 0, _initial(model, phases[0].parameters, setting, optimiser, start))
    for index in range(state.phase, len(phases)):
        phase = phases[index]
        if isinstance(phase.optimiser, Adam):
            state = _adam(phase, phase.optimiser, setting, state)
        elif phase.optimiser is not None:
            state = _least_squares(phase, phase.optimiser, setting, state)
        if index + 1 < len(phases):
            vectors = _convert(phase.parameters, phases[index + 1].parameters, state.vectors)
            state = State(index + 1, 0, 0, vectors, {}, state.history)
    return Fit(
        phases[-1].parameters.template, wanted, state.vectors, state.history, time.perf_counter() - begun
    )


def plan(
    model: Algorithm,
    train: Any = KINDS,
    optimiser: LeastSquares | Adam | None = None,
    start: str = "data",
    data: Any = None,
) -> list[Phase]:
    """The phases of a fit."""
    gaussian = isinstance(data[0] if isinstance(data, list | tuple) else data, LinearRegression)
    checks.known("start", start, ("data", "model"))
    optimiser = LeastSquares() if optimiser is None else optimiser
    phases: list[Phase] = []
    for kinds in _groups_of(train):
        name = " and ".join(kinds) if set(kinds) != set(KINDS) else "all"
        two = isinstance(optimiser, LeastSquares) and start == "data" and "A" in kinds
        if two and has_full_matrices(model):
            one_matrix = from_scale(model, jnp.zeros(model.depth))
            phases.append(Phase(f"{name}, one matrix", parameters(one_matrix, kinds), optimiser))
            assert isinstance(optimiser, LeastSquares)
            frees = not gaussian if optimiser.every_matrix is None else optimiser.every_matrix
            every = parameters(model, kinds)
            phases.append(Phase(f"{name}, every matrix", every, optimiser if frees else None, careful=True))
        else:
            phases.append(Phase(name, parameters(model, kinds), optimiser))
    return phases


@dataclass(frozen=True)
class _Setting:
    """What stays the same throughout a fit."""

    source: Fresh | Fixed
    depths: tuple[int, ...]
    depth: int
    key: Array
    watch: Watch | None

    @property
    def actives(self) -> Array:
        return jnp.asarray([[1.0 * (layer < depth) for layer in range(self.depth)] for depth in self.depths])

    def keys(self, phase: int, step: int) -> Array:
        """One key per run for a pass: a pure function of where the fit stands."""
        return jax.random.split(
            jax.random.fold_in(jax.random.fold_in(self.key, phase), step), self.source.runs
        )

    def sum_over(
        self, program: Callable, vectors: np.ndarray, keys: Array, chunks: range
    ) -> list[np.ndarray]:
        """A compiled pass in slices, added up in float64."""
        total: list[np.ndarray] | None = None
        sent = jnp.asarray(vectors, jnp.float32 if not jax.config.jax_enable_x64 else None)  # type: ignore[attr-defined]
        for first in range(chunks.start, chunks.stop, SLICE):
            last = min(first + SLICE, chunks.stop)
            parts = program(
                sent, self.actives, self.source.arrays, keys, jnp.asarray(first), jnp.asarray(last)
            )
            arrays = [np.asarray(part, np.float64) for part in parts]
            total = arrays if total is None else [a + b for a, b in zip(total, arrays, strict=True)]
        assert total is not None
        return total


def _least_squares(phase: Phase, options: LeastSquares, setting: _Setting, state: State) -> State:
    accumulate, score = make_passes(phase.parameters, setting.source.draw)
    fixed = isinstance(setting.source, Fixed)
    levels = options.levels(max(setting.depths))
    levels = (levels[1],) if phase.careful or fixed else levels  # type: ignore[assignment]
    damping = CAREFUL if phase.careful else DAMPING
    while state.level < len(levels):
        done = sum(1 for row in state.history if row["phase"] == phase.name and row["level"] == state.level)
        most = options.passes[0] if (state.level == 0 and not phase.careful) else options.passes[1]
        training, judging, judged = setting.source.ranges(levels[state.level])
        keys = setting.keys(state.phase, state.step)
        normal, slope, _ = setting.sum_over(accumulate, state.vectors, keys, training)
        last = state.level == len(levels) - 1 and not fixed
        if last and state.extra:  # the last passes are added up: together they are one larger sample
            normal, slope = normal + state.extra["normal"], slope + state.extra["slope"]
        steps = damped_steps(normal, slope, damping) if np.isfinite(normal).all() else None
        candidates = np.repeat(state.vectors[..., None, :], 1 + len(damping), axis=-2)
        if steps is not None:
            candidates[..., phase.parameters.index] += steps
        total, gain, square = setting.sum_over(score, candidates, keys, judging)
        if not np.isfinite(total[..., 0]).all() or steps is None:
            raise _diverged(total[..., 0], state, setting, f"pass {state.step}")
        best, relative = _best(total, gain, square, judged, cautious=phase.careful)
        vectors = np.take_along_axis(candidates, best[..., None, None], axis=-2)[..., 0, :]
        moved = (vectors - state.vectors)[..., phase.parameters.index]
        kept = {"normal": normal, "slope": slope + np.einsum("...pq,...q->...p", normal, moved)}
        loss = np.take_along_axis(total, best[..., None], axis=-1)[..., 0] / judged
        gains = bool((relative >= options.gain).any()) or (last and not phase.careful)
        finished = not gains or done + 1 >= most
        record = {
            "phase": phase.name,
            "level": state.level,
            "step": state.step,
            "prompts": len(training) * setting.source.chunk,
            "log_loss": np.log(np.maximum(loss, 1e-300)).tolist(),
        }
        state = State(
            state.phase,
            state.level + finished,
            state.step + 1,
            vectors,
            kept if last else {},
            (*state.history, record),
        )
        if setting.watch:
            setting.watch(state, record)
    return state


def _best(
    total: np.ndarray, gain: np.ndarray, square: np.ndarray, judged: int, *, cautious: bool
) -> tuple[np.ndarray, np.ndarray]:
    """The best candidate of each model, and its relative gain if that is above two standard
    errors, else 0; if cautious, a step is only taken where it is."""
    tame = np.isfinite(total) & np.isfinite(gain) & np.isfinite(square)
    mean = np.where(tame, gain, -1.0) / judged
    error = np.sqrt(np.maximum(np.where(tame, square, 1.0) / judged - mean**2, 0) / judged)
    sure = mean > 2 * error
    worth = np.where(tame & (sure if cautious else mean > 0), mean, 0.0)
    best = worth.argmax(axis=-1)
    won = np.take_along_axis(np.where(sure, worth, 0.0), best[..., None], axis=-1)[..., 0]
    return best, won / np.maximum(total[..., 0] / judged, 1e-300)


def _adam(phase: Phase, adam: Adam, setting: _Setting, state: State) -> State:
    block = make_block(phase.parameters, adam)
    vectors = jnp.asarray(state.vectors)
    fresh = jax.vmap(jax.vmap(adam.optimiser().init))(vectors[..., phase.parameters.index])
    leaves, structure = jax.tree.flatten(fresh)
    if state.extra:
        leaves = [jnp.asarray(state.extra[f"adam_{i}"], leaf.dtype) for i, leaf in enumerate(leaves)]
    moments = jax.tree.unflatten(structure, leaves)
    draw = jax.jit(jax.vmap(lambda source, key: setting.source.batch(source, key, adam.batch)))
    while state.step * adam.resample < adam.steps:
        batch = draw(setting.source.arrays, setting.keys(state.phase, state.step))
        vectors, moments, losses = block(vectors, moments, setting.actives, batch)
        losses = np.asarray(losses, np.float64)
        if not (np.isfinite(losses).all() and bool(jnp.isfinite(vectors).all())):
            raise _diverged(losses.sum(axis=-1), state, setting, f"Adam step {state.step * adam.resample}")
        record = {
            "phase": phase.name,
            "level": 0,
            "step": (state.step + 1) * adam.resample,
            "prompts": adam.batch,
            "log_loss": np.log(np.maximum(losses[..., -1], 1e-300)).tolist(),
        }
        extra = {f"adam_{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(moments))}
        state = State(state.phase, 0, state.step + 1, np.asarray(vectors), extra, (*state.history, record))
        if setting.watch:
            setting.watch(state, record)
    return state


def _diverged(loss: np.ndarray, state: State, setting: _Setting, step: str) -> Diverged:
    bad = np.argwhere(~np.isfinite(loss))
    run, depth = bad[0] if len(bad) else (0, 0)
    norm = float(np.linalg.norm(state.vectors[run, depth]))
    return Diverged(
        f"the loss is not finite after {step} in run {run} at depth {setting.depths[depth]}; the "
        f"norm of its parameters is {norm:.3g}. The last good state is kept. Lower the learning rate, or "
        "check the prompts for values that are too large."
    )


def _depths(model: Algorithm, depths: Sequence[int] | None) -> tuple[int, ...]:
    if depths is None:
        return (model.depth,)
    if not depths:
        raise InputError("depths is empty: name at least one depth.")
    for depth in depths:
        checks.count("depth", depth)
        if depth > model.depth:
            raise InputError(
                f"depth {depth} is more than the model's {model.depth} layers: build a deeper one."
            )
    return tuple(sorted(set(depths)))


def _groups_of(train: Any) -> list[tuple[str, ...]]:
    """[kinds] or [kinds, kinds, ...] as a list of kinds."""
    if isinstance(train, str):
        return [(train,)]
    items: list[Any] = list(train)
    if all(isinstance(item, str) for item in items):
        return [tuple(items)]
    return [(item,) if isinstance(item, str) else tuple(item) for item in items]


def _initial(
    model: Algorithm, first: Parameters, setting: _Setting, optimiser: Any, start: str
) -> np.ndarray:
    """The starting vectors (runs, depths, all)."""
    runs = setting.source.runs
    if isinstance(optimiser, Adam) or start == "model":
        vector = np.asarray(first.vector(model))
        return np.broadcast_to(vector, (runs, len(setting.depths), vector.size)).copy()
    pilot = jax.jit(jax.vmap(lambda source, key: setting.source.draw(source, key, jnp.asarray(0))))
    quadratics = pilot(setting.source.arrays, setting.keys(1_000, 0))
    trace = np.einsum("riip->rp", np.asarray(quadratics.gram, np.float64))
    mean = trace.sum(axis=1) / np.maximum((trace > 0).sum(axis=1), 1)
    size = quadratics.gram.shape[1] / mean  # one over the mean eigenvalue
    jitter = np.asarray(jax.random.uniform(jax.random.fold_in(setting.key, 7), (runs, setting.depth)))
    rows = []
    for run in range(runs):
        for depth in setting.depths:
            scales = np.zeros(setting.depth)
            scales[:depth] = size[run] * start_scales(model, depth) * (1 + 0.05 * jitter[run, :depth])
            rows.append(np.asarray(first.vector(from_scale(model, jnp.asarray(scales, jnp.float32)))))
    return np.stack(rows).reshape(runs, len(setting.depths), -1)


def _convert(before: Parameters, after: Parameters, vectors: np.ndarray) -> np.ndarray:
    """The same models in the next phase's parametrisation."""

    def one(vector: Array) -> Array:
        return after.vector(as_full(before.build(vector), after.template))

    return np.asarray(jax.vmap(jax.vmap(one))(jnp.asarray(vectors)))
