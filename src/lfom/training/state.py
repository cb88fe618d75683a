"""Where a fit stands, and what stays the same throughout it."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lfom.core.arrays import as_array
from lfom.core.checks import InputError
from lfom.core.compiler import QUICKLY, jit_draws
from lfom.core.kept import Keep, anew
from lfom.core.vectors import Parameters
from lfom.core.words import brief


@dataclass(frozen=True)
class State:
    """Where a fit stands: all that is needed to go on, bit for bit."""

    __repr__ = brief

    phase: int
    level: int
    step: int  # passes or blocks done in this phase
    vectors: np.ndarray  # (runs, depths, all) every number of every model
    extra: dict[str, np.ndarray] = field(default_factory=dict)
    history: tuple[dict[str, Any], ...] = ()


PROGRAMS = 64  # that a way to train keeps, compiled, for fits of models that differ in their numbers only
RECORD = {"phase": str, "number": int, "level": int, "step": int, "log_loss": list}  # what every pass leaves


def check_history(history: Any) -> None:
    """Rows as passes write them: a file that is signed can still hold others."""
    for number, row in enumerate(history):
        wrong = [
            name
            for name, kind in RECORD.items()
            if not isinstance(row, dict) or not isinstance(row.get(name), kind)
        ]
        if wrong:
            raise InputError(f"row {number} of its history has no {wrong[0]!r} as a pass writes it.")


def kept_by(state: State, wanted: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """What an optimiser kept from pass to pass, with the shapes that it has."""
    for name, shape in wanted.items():
        if name not in state.extra or state.extra[name].shape != shape:
            raise InputError(
                f"resume holds no {name!r} of shape {shape}: it is the state of another optimiser or model. Go on with the "
                "one that it comes from."
            )
    return {name: state.extra[name] for name in wanted}


@dataclass(frozen=True)
class Phase:
    """One part of a fit: what is trained, in which parametrisation, and how."""

    name: str
    parameters: Parameters
    optimiser: Any  # LeastSquares, Adam, or None: only a change of parametrisation
    careful: bool = False
    anew: bool = False  # begins from the scale of a few prompts, not from the model's own numbers


class Diverged(FloatingPointError):
    """The loss is no longer finite."""


Watch = Callable[[State, dict[str, Any]], None]  # after every pass: where it stands, a record of it
Tick = Callable[[float], None]  # inside a pass: the part of it that is done


@dataclass(frozen=True)
class Pilot:
    """What a first look at the prompts tells, run by run: it sets scales, nothing else."""

    mean_gram: np.ndarray  # (runs, d, d)
    largest: np.ndarray  # (runs,) mean of the largest eigenvalue

    @property
    def step(self) -> np.ndarray:
        """(runs,) one over the mean eigenvalue."""
        return self.mean_gram.shape[1] / np.einsum("rii->r", self.mean_gram)


@jit_draws
def _first_grams(source: Any, keys: Array) -> Array:
    def one(arrays: Any, key: Array) -> Array:
        return source.draw(arrays, key, jnp.asarray(0)).hessian_at_start()

    return jax.vmap(one)(source.arrays, keys)


def actives(depths: Sequence[int], depth: int | None = None) -> Array:
    """1 for the layers that each depth uses, of `depth` in all (by default as many as the deepest), and 0 for the others."""
    most = max(depths) if depth is None else depth
    return as_array(np.arange(most) < np.asarray(depths)[:, None], np.float32)


@dataclass(frozen=True)
class Setting:
    """What stays the same throughout a fit."""

    source: Any  # where prompts come from: lfom.training.sources
    depths: tuple[int, ...]
    depth: int
    key: Array
    watch: Watch | None
    tick: Tick | None = None
    keep: Keep = anew

    @property
    def actives(self) -> Array:
        return actives(self.depths, self.depth)

    @functools.cached_property
    def pilot(self) -> Pilot:
        gram = np.moveaxis(np.asarray(_first_grams(self.source, self.keys(1_000, 0)), np.float64), -1, 1)
        eigenvalues = np.linalg.eigvalsh(gram)
        used = np.maximum((eigenvalues[..., -1] > 0).sum(axis=1), 1)  # a set may be filled up with zeros
        return Pilot(gram.sum(axis=1) / used[:, None, None], eigenvalues[..., -1].sum(axis=1) / used)

    def keys(self, phase: int, step: int) -> Array:
        """One key per run for a pass: a pure function of where the fit stands."""
        return _keys(self.key, np.int32(phase), np.int32(step), self.source.runs)

    def passed(
        self, phase: Phase, state: State, vectors: np.ndarray, level: int, extra: Any, **facts: Any
    ) -> State:
        """Where the fit stands after a pass, or a block of steps: `watch` is told, with a record of these facts. level: of
        what comes next. extra: what the optimiser keeps."""
        record = {"phase": phase.name, "number": state.phase, "level": state.level, **facts}
        now = State(state.phase, level, state.step + 1, vectors, extra, (*state.history, record))
        if self.watch:
            self.watch(now, record)
        return now

    def diverged(self, loss: np.ndarray, state: State, step: str) -> Diverged:
        bad = np.argwhere(~np.isfinite(loss))
        run, depth = bad[0] if len(bad) else (0, 0)
        norm = float(np.linalg.norm(state.vectors[run, depth]))
        return Diverged(
            f"the loss is not finite after {step} in run {run} at depth {self.depths[depth]}; the "
            f"norm of its parameters is {norm:.3g}. The last good state is kept. Lower the learning "
            "rate, or check the prompts for values that are too large."
        )


@functools.partial(jax.jit, static_argnames="runs", compiler_options=QUICKLY)
def _keys(key: Array, phase: Array, step: Array, runs: int) -> Array:
    return jax.random.split(jax.random.fold_in(jax.random.fold_in(key, phase), step), runs)
