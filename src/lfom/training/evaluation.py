"""Scores on fresh prompts: every step of the trajectory, spread, tails, paired differences."""

import dataclasses
import itertools
import math
import os
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
from lfom.unroll import Algorithm, Method, losses

FLOOR = -60.0  # what the log of a loss that is zero to rounding is written as
MOST_TEAMS = 4
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


def step_losses(method: Any, quadratics: Quadratic, active: Array | None = None) -> Array:
    """Losses (steps, prompts) of an algorithm, or of an optimum (its start and its answer)."""
    if isinstance(method, Optimum):
        start = jnp.sum(jnp.broadcast_to(quadratics.target, quadratics.target.shape) ** 2, axis=0)
        return jnp.stack([start, method.losses(quadratics)])
    return losses(method, quadratics, active)


@dataclass(frozen=True)
class Group:
    """Methods that differ only in their numbers and in how many layers they use: they run as one
    batch, compiled once. Anything else is a group of its own."""

    names: list[str]
    layers: list[int]  # of each member
    per_run: bool
    arrays: Any  # of all members: an axis of members, after that of runs if there is one
    static: Any  # the rest of a member with the most layers

    def losses(self, arrays: Any, quadratics: Quadratic) -> list[tuple[Array, Array, Array]]:
        """Per member: sums over prompts of the losses (steps,) and of their squares, the last losses."""

        def one(arrays: Any, active: Array | None) -> tuple[Array, Array, Array]:
            values = step_losses(eqx.combine(arrays, self.static), quadratics, active)
            return jnp.sum(values, axis=1), jnp.sum(values**2, axis=1), values[-1]

        if len(self.names) == 1:
            return [one(jax.tree.map(lambda a: a[0], arrays), None)]
        steps = range(max(self.layers))
        active = jnp.asarray([[1.0 * (step < own) for step in steps] for own in self.layers])
        total, square, last = jax.lax.map(lambda pair: one(*pair), (arrays, active))
        return [(total[i, : own + 1], square[i, : own + 1], last[i]) for i, own in enumerate(self.layers)]


def grouped(methods: dict[str, Any]) -> list[Group]:
    """The methods in as few groups as they allow."""
    members: dict[Any, list[tuple[str, Any]]] = {}
    for name, method in methods.items():
        inner = method.method if isinstance(method, PerRun) else method
        if isinstance(inner, Method):
            arrays, rest = eqx.partition(dataclasses.replace(inner, layers=0), eqx.is_array)
            leaves, structure = jax.tree.flatten(arrays)
            shapes = tuple((leaf.shape, str(leaf.dtype)) for leaf in leaves)
            key: Any = (isinstance(method, PerRun), shapes, structure, tuple(jax.tree.leaves(rest)))
        else:
            key = name
        members.setdefault(key, []).append((name, method))
    return [_group(dict(pairs)) for pairs in members.values()]


def _group(members: dict[str, Any]) -> Group:
    methods = list(members.values())
    per_run = isinstance(methods[0], PerRun)
    inner = [method.method for method in methods] if per_run else methods
    layers = [method.layers if isinstance(method, Method) else 0 for method in inner]
    leaves = [jax.tree.leaves(eqx.filter(method, eqx.is_array)) for method in inner]
    largest = inner[int(np.argmax(layers))]
    arrays, static = eqx.partition(largest, eqx.is_array)
    stacked = [jnp.stack(same, axis=int(per_run)) for same in zip(*leaves, strict=True)]
    return Group(
        list(members), layers, per_run, jax.tree.unflatten(jax.tree.structure(arrays), stacked), static
    )


def evaluate(
    methods: dict[str, Algorithm | Optimum | PerRun],
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
    sources = data if runs else jax.tree.map(lambda x: x[None], data)
    runs = runs or 1
    chunks = max(prompts // chunk, 1)
    teams = _teams(grouped(methods), os.cpu_count() or 1)
    finished = itertools.count(1)

    def run_team(groups: list[Group]) -> dict[str, list[Any]]:
        """All chunks, for some of the groups: every team draws the same prompts."""
        program = _program(groups, chunk)
        own = [group.arrays if group.per_run else None for group in groups]
        common = [None if group.per_run else group.arrays for group in groups]
        sums: dict[str, list[Any]] = {name: [] for group in groups for name in group.names}
        for index in range(chunks):
            keys = jax.random.split(jax.random.fold_in(key, index), runs)
            found = jax.tree.map(np.asarray, program(sources, own, common, keys))
            for group, parts in zip(groups, found, strict=True):
                for name, part in zip(group.names, parts, strict=True):
                    sums[name].append(part)
            if progress:
                done = next(finished) / (chunks * len(teams))
                progress(done, f"{int(done * chunks) * chunk:,} of {chunks * chunk:,} prompts")
        return sums

    sums = {name: parts for team in in_threads(run_team, teams) for name, parts in team.items()}
    return {name: _score(name, sums[name], chunks * chunk) for name in methods}


def _teams(groups: list[Group], cores: int) -> list[list[Group]]:
    """Groups shared out over cores, the largest first: each team is compiled and run on its own, since
    both keep only one core busy."""
    size = {id(group): max(1, *group.layers) for group in groups}
    teams: list[list[Group]] = [[] for _ in range(min(cores, len(groups), MOST_TEAMS))]
    for group in sorted(groups, key=lambda group: -size[id(group)]):
        min(teams, key=lambda team: sum(size[id(member)] for member in team)).append(group)
    return teams


def _program(groups: list[Group], chunk: int) -> Any:
    @jax.jit
    def score(sources: Any, own: Any, common: Any, keys: Array) -> Any:
        def one_run(args: Any) -> Any:
            source, own, key = args
            quadratics = source.quadratics(key, chunk)
            return [
                group.losses(own[i] if group.per_run else common[i], quadratics)
                for i, group in enumerate(groups)
            ]

        return jax.lax.map(one_run, (sources, own, keys))

    return score


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
