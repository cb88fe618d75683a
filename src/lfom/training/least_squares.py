"""Levenberg-Marquardt on streamed normal equations.

The loss is a mean of |residual|^2 over prompts, the residual k numbers per prompt, the
parameters few. A pass over fresh prompts accumulates J^T J and J^T r; a handful of damped
steps is tried on other fresh prompts, and the best is taken, or none: so no step is judged on
prompts that it was fitted to. Few prompts first and many last. Prompts are drawn in chunks inside
compiled loops, so memory does not grow with their number. Runs and depths are batch axes.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np
from jax import Array

from lfom.core import checks, room
from lfom.core.arrays import as_array
from lfom.core.checks import InputError
from lfom.core.compiler import reads_back
from lfom.core.hosts import everywhere, spread
from lfom.core.threads import is_worker
from lfom.core.vectors import vector_of
from lfom.core.words import brief
from lfom.training.direct import Direct
from lfom.training.krylov import Krylov, has_krylov_view
from lfom.training.spectral import PROMPTS, has_spectral_view, matrices_of, matrix_phase, spectral_state
from lfom.training.state import Phase, Setting, State, kept_by

DAMPING = (1e-6, 1e-3, 1e-2, 1e-1, 1.0)  # steps tried, relative to diag(J^T J)
CAREFUL = (1e-1, 1.0, 10.0, 100.0)  # when many parameters are freed at once: shrink towards where we are
PER_PROMPT = 1e4  # operations of a pass for one prompt, at the least
FEWEST = 5  # chunks of a pass, for shallow models too
MOST_PROMPTS = 100  # as a factor: a larger one was meant as a number
# from so many layers on, coefficients are found once more, from so many times the prompts
DEEP, MANY_MORE = 5, 4
SLICE = 10  # chunks per compiled call, so that progress shows and Ctrl-C is heard
LARGER = 128  # the same on an accelerator


@dataclass(frozen=True)
class LeastSquares(checks.SelfChecked):
    """How least squares spends its prompts.

    first: prompts of a pass in the beginning. last: prompts of the final passes; None lets both
    grow with depth. passes: the most passes at the beginning, and at the end. gain: a relative
    gain below this ends a level. hold_out: of a fixed set, the share that judges steps; 0 judges
    them on the set itself, which fits these prompts and not their distribution. every_matrix:
    whether every A_l is freed after the phase with one matrix; None frees them unless prompts are
    drawn from LinearRegression, where by Appendix D one matrix is enough. prompts: a factor on those of
    the default levels.

    >>> import lfom
    >>> quick = lfom.LeastSquares(prompts=0.1)  # lfom.fit(model, data, key=key, optimiser=quick)
    >>> quick.passes
    (30, 3)
    """

    __repr__ = brief

    first: int | None = None
    last: int | None = None
    passes: tuple[int, int] = (30, 3)
    gain: float = 3e-3
    hold_out: float = 0.2
    chunk: int = 2_000
    every_matrix: bool | None = None
    prompts: float = 1.0

    def __check_init__(self) -> None:
        checks.count("chunk", self.chunk)
        for name in ("first", "last"):
            if getattr(self, name) is not None:
                checks.count(name, getattr(self, name))
                said = f"{name} is {getattr(self, name)}"
                room.in_time(said, getattr(self, name) * PER_PROMPT, "Pass fewer prompts.")
        checks.instance("passes", self.passes, list | tuple, "two numbers of passes, such as (30, 3)")
        if len(self.passes) != 2:
            raise InputError(f"passes is {self.passes}: it must be two numbers. Pass (30, 3), for example.")
        for one in self.passes:
            checks.count("passes", one)
        checks.non_negative("gain", self.gain)
        if self.every_matrix is not None:
            checks.flag("every_matrix", self.every_matrix)
        room.fits(f"chunk is {self.chunk}", 4.0 * self.chunk, "Pass fewer prompts.")
        if not 0 <= checks.number("hold_out", self.hold_out) < 1:
            raise InputError(
                f"hold_out is {self.hold_out}: it is the share of a fixed set that judges, from 0 to below 1."
            )
        if not 0 < checks.number("prompts", self.prompts) <= MOST_PROMPTS:
            raise InputError(
                f"prompts is {self.prompts}: it is a factor on the usual number, above 0 and at most {MOST_PROMPTS}. Say "
                "numbers of prompts as first and last."
            )

    def check_view(self, view: str) -> None:
        """Residuals of tokens are not a function of few moments, and their queries cannot be averaged out."""
        if view == "tokens":
            raise InputError(
                "least squares needs the iterate view or the joint view, and this model only reads tokens: train it with "
                "optimiser=Adam(...)."
            )

    def begins_anew(self, start: str) -> bool:
        """Whether training begins from the scale of a few prompts instead of the model's own numbers."""
        return start == "data"

    def run(self, phase: Phase, setting: Setting, state: State) -> State:
        if phase.anew and not state.history and has_spectral_view(phase, setting):
            return _spectral(phase, self, setting, state)
        return run_least_squares(phase, self, setting, state)

    def levels(self, in_krylov_view: bool, depth: int, d: int) -> tuple[int, int]:
        """Prompts of a pass at the beginning and at the end. Tails get heavier with depth, so more
        prompts are needed; they are cheap in the Krylov view."""
        deeper = max(1.0, depth / 4)
        if in_krylov_view:
            first, last = 5_000 * deeper**2.5, 60_000 * deeper**4 * min(1.0, 5 / d)
        else:
            first, last = 2_000, 25_000 * deeper**3
        first = int(first * self.prompts) if self.first is None else self.first
        last = int(last * self.prompts) if self.last is None else self.last
        return min(first, last), last


def _spectral(phase: Phase, options: LeastSquares, setting: Setting, state: State) -> State:
    """GD++ in spectral coordinates, where M can be found; else by passes."""
    before, fewer, first = matrix_phase(phase, setting)
    vectors = run_least_squares(before, options, fewer, first).vectors
    matrices = matrices_of(before, vectors, setting)
    if matrices is None:
        return run_least_squares(phase, options, setting, state)
    if setting.tick:
        setting.tick(0.3)
    prompts = int(PROMPTS * options.prompts) if options.last is None else options.last
    return spectral_state(phase, setting, state, matrices, prompts)


@runtime_checkable
class Passes(Protocol):
    """Passes over prompts in some coordinates of the models: `Direct` for all, `Krylov` where it exists.

    A span of chunks is (first, last, limits): those from first to last - 1, of which each depth
    uses the ones below its limit.
    """

    shares: np.ndarray  # (depths,) the part of a pass's prompts that each depth needs
    finds_coefficients: bool  # whether it can solve for coefficients alone

    def prepare(self, vectors: np.ndarray, keys: Array, tried: int) -> None:
        """Compile what will be run, for this many candidates."""

    def coordinates(self, vectors: np.ndarray) -> np.ndarray:
        """Where models stand, (runs, depths, p)."""

    def equations(self, vectors: np.ndarray, keys: Array, *span: Any) -> tuple[Any, ...]:
        """J^T J and J^T r in these coordinates over a span."""

    def candidates(
        self, vectors: np.ndarray, normal: np.ndarray, slope: np.ndarray, damping: tuple[float, ...]
    ) -> np.ndarray:
        """Models to try (runs, depths, 1 + dampings, all): the present one first."""

    def score(self, candidates: np.ndarray, keys: Array, *span: Any) -> tuple[Any, ...]:
        """For each candidate the sums of its loss, of its gain over the first, and of that squared."""


def run_least_squares(phase: Phase, options: LeastSquares, setting: Setting, state: State) -> State:
    """Passes until the last level is done."""
    in_krylov_view = setting.source.is_quadratic and has_krylov_view(phase.parameters.template)
    passes: Passes = (Krylov if in_krylov_view else Direct)(phase.parameters, setting)
    fixed = setting.source.is_fixed
    levels = options.levels(in_krylov_view, max(setting.depths), setting.pilot.mean_gram.shape[-1])
    levels = (levels[1],) if phase.careful or fixed else levels  # type: ignore[assignment]
    damping = CAREFUL if phase.careful else DAMPING
    if state.level < len(levels):
        passes.prepare(state.vectors, setting.keys(state.phase, state.step), len(damping))
    if phase.anew and not state.step and not setting.source.is_quadratic:
        state = replace(state, vectors=_best_scale(passes, phase, setting, state, len(damping)))
    while state.level < len(levels):
        here = (state.phase, state.level)
        done = sum(1 for row in state.history if (row["number"], row["level"]) == here)
        most = options.passes[0] if (state.level == 0 and not phase.careful) else options.passes[1]
        training, judging, judges = setting.source.ranges(levels[state.level])
        shares = np.ones(len(setting.depths)) if fixed else passes.shares
        limits = [_limits(chunks, shares) for chunks in (training, judging)]
        judged = judges * (limits[1] - judging.start)[:, None] / len(judging)  # (depths, 1) prompts
        keys = setting.keys(state.phase, state.step)
        equations = partial(passes.equations, state.vectors, keys)
        normal, slope = _total(equations, training, limits[0], setting, (0, 0.7))
        last = state.level == len(levels) - 1 and not fixed
        if last and state.extra:  # the last passes are added up: together they are one larger sample
            kept = kept_by(state, {"normal": normal.shape, "slope": slope.shape})
            normal, slope = normal + kept["normal"], slope + kept["slope"]
        if not (np.isfinite(normal).all() and np.isfinite(slope).all()):
            raise setting.diverged(slope.sum(axis=-1), state, f"pass {state.step}")
        candidates = passes.candidates(state.vectors, normal, slope, damping)
        score = partial(passes.score, candidates, keys)
        total, gain, square = _total(score, judging, limits[1], setting, (0.7, 1))
        if not np.isfinite(total[..., 0]).all():
            raise setting.diverged(total[..., 0], state, f"pass {state.step}")
        best, relative = _best(total, gain, square, judged, cautious=phase.careful)
        vectors = np.take_along_axis(candidates, best[..., None, None], axis=-2)[..., 0, :]
        moved = passes.coordinates(vectors) - passes.coordinates(state.vectors)
        kept = {"normal": normal, "slope": slope + np.einsum("...pq,...q->...p", normal, moved)}
        loss = np.take_along_axis(total, best[..., None], axis=-1)[..., 0] / judged[:, 0]
        gains = bool((relative >= options.gain).any()) or (last and not phase.careful)
        finished = not gains or done + 1 >= most
        prompts, log_loss = len(training) * setting.source.chunk, np.log(np.maximum(loss, 1e-300)).tolist()
        facts = {"step": state.step, "prompts": prompts, "log_loss": log_loss}
        level, extra = state.level + finished, kept if last else {}
        state = setting.passed(phase, state, vectors, level, extra, **facts)
    return state if phase.careful or fixed else _with_best_coefficients(passes, levels[-1], setting, state)


def _best_scale(passes: Passes, phase: Phase, setting: Setting, state: State, halvings: int) -> np.ndarray:
    """Where to begin: with steps as they are, half as long, a quarter, ..., whatever has the smallest loss. Away from
    w = 0 the curvature may be many times that at the start, and from steps far too long no way leads back."""
    model = phase.parameters.template
    still, longer = (
        vector_of(model.begin(as_array(np.full(model.depth, one, np.float32)))) for one in (0, 1)
    )
    trained = np.isin(np.arange(still.size), phase.parameters.index)
    parts, now = 0.5 ** np.arange(1 + halvings)[:, None], state.vectors[..., None, :]
    candidates = np.where(trained & (still != longer), still + parts * (now - still), now)
    total = passes.score(candidates, setting.keys(state.phase, state.step), np.int32(0), np.int32(1))[0]
    best = np.nan_to_num(np.asarray(total), nan=np.inf).argmin(axis=-1)
    return np.take_along_axis(candidates, best[..., None, None], axis=-2)[..., 0, :]


def _with_best_coefficients(passes: Any, prompts: int, setting: Setting, state: State) -> State:
    """In the Krylov view the best coefficients for the M that was found, from many more prompts: deep models lose
    there, since rare prompts weigh most (docs/design.md)."""
    if max(setting.depths) < DEEP or not passes.finds_coefficients:
        return state
    chunks = range(-(-MANY_MORE * prompts // setting.source.chunk))
    keys = setting.keys(state.phase, state.step + 1)
    equations = partial(passes.coefficient_equations, state.vectors, keys)
    found = _total(equations, chunks, _limits(chunks, passes.shares), setting, (0, 1))
    return replace(state, vectors=passes.with_best_coefficients(state.vectors, *found))


def _limits(chunks: range, shares: np.ndarray) -> np.ndarray:
    """Where each depth stops in these chunks: after its share of them, but not before a few."""
    own = np.ceil(len(chunks) * shares).astype(int)
    return chunks.start + np.maximum(own, min(len(chunks), FEWEST))


def _total(
    program: Callable[..., tuple[Array, ...]],
    chunks: range,
    limits: np.ndarray,
    setting: Setting,
    part: tuple[float, float],
) -> list[np.ndarray]:
    """program(first, last) over all chunks in slices, added up in float64. `part`: which part of the
    pass this is, for the bar."""
    size = SLICE if jax.default_backend() == "cpu" else LARGER
    spans = [(first, min(first + size, chunks.stop)) for first in range(chunks.start, chunks.stop, size)]

    def over(span: tuple[int, int]) -> list[np.ndarray]:
        first, last = (np.int32(place) for place in span)
        return [np.asarray(a, np.float64) for a in program(first, last, limits)]

    total: list[np.ndarray] | None = None
    side_by_side = spread() or (not reads_back() and not is_worker())
    found = everywhere(over, spans) if side_by_side else map(over, spans)
    for (_, last), arrays in zip(spans, found, strict=True):
        total = arrays if total is None else [a + b for a, b in zip(total, arrays, strict=True)]
        if setting.tick:
            setting.tick(part[0] + (part[1] - part[0]) * (last - chunks.start) / len(chunks))
    assert total is not None
    return total


def _best(
    total: np.ndarray, gain: np.ndarray, square: np.ndarray, judged: np.ndarray, *, cautious: bool
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
    return best, won / np.maximum(total[..., 0] / judged[:, 0], 1e-300)
