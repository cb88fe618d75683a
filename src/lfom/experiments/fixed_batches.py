"""Training on a fixed set of prompts instead of fresh ones: the sets, the fits and their scores."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from lfom.core.methods import Algorithm
from lfom.core.problems import Quadratic
from lfom.core.runs import PerRun, concatenate, joined, take
from lfom.experiments.rows import by_depth, take_runs
from lfom.experiments.workbench import DEPTHS, Workbench
from lfom.methods.classical import conjugate_gradient
from lfom.training import Adam, LeastSquares, Score, evaluate, fit
from lfom.training.evaluation import evaluate_on

ROUNDING = 1e-12  # relative to the loss of w = 0: below this, single precision says no more than zero
Scores = dict[tuple[int, int], Score]  # by size of the set and depth


class OnSets(NamedTuple):
    """Models trained on fixed sets: scores on the sets and on fresh prompts; beside them those of
    CGD and of the optimum, if one was given, on the same prompts."""

    training: Scores
    fresh: Scores
    cgd_training: Scores
    cgd_fresh: Scores
    optimum_fresh: Scores

    def at_size(self, size: int) -> list[dict[int, Score]]:
        """All of them for one size, by depth."""
        return [{depth: score for (of, depth), score in part.items() if of == size} for part in self]

    def at_depth(self, depth: int) -> list[dict[int, Score]]:
        """All of them for one depth, by size."""
        return [{size: score for (size, at), score in part.items() if at == depth} for part in self]


def train_on_sets(
    bench: Workbench,
    model: Algorithm,
    data: PerRun,
    sizes: Sequence[int],
    training: str,
    label: str,
    depths: Sequence[int] = DEPTHS,
    optimiser: Adam | LeastSquares | None = None,
    optimum: dict[int, Any] | None = None,
    prompts: int | None = None,
) -> OnSets:
    """`model` fitted to a set of each size (which must divide the largest), for each run and depth.

    paper: Adam, converged: least squares (or the optimiser given), both from the model as it is,
    as far as these very prompts can be fitted. A smaller set is the beginning of a larger one; in
    the computer it is repeated until it is as long, which changes no mean over it: sizes and runs
    are then one axis of one compiled program.
    """
    runs, largest = bench.runs, max(sizes)
    bench.say(f"training on sets of {', '.join(map(str, sizes))} prompts ({training}, {label})")
    sets = training_sets(bench, data, sizes, label)
    items = [take(sets, i) for i in range(runs * len(sizes))]
    if optimiser is None:
        optimiser = LeastSquares(hold_out=0, passes=(15, 1))
    if training == "paper":
        optimiser = Adam(steps=bench.preset.adam_steps, batch=largest)
    found = fit(model, items, key=bench.key, depths=depths, optimiser=optimiser, start="model")
    methods: dict[str, Any] = {"ours": {depth: found.per_run(depth) for depth in depths}}
    methods["CGD"] = conjugate_gradient(max(depths))
    if optimum:
        methods["optimum"] = optimum
    own = by_depth(methods, depths, lambda named: scores_on_sets(named, sets, sizes, runs))
    bench.say(f"scoring models trained on sets ({training}, {label})")
    many, key = joined([data] * len(sizes)), bench.stream("score sets", label)
    count = prompts or bench.preset.prompts // 10
    new = by_depth(methods, depths, lambda named: evaluate(named, many, prompts=count, key=key))

    def table(scores: dict[int, Score]) -> Scores:
        return {
            (size, depth): take_runs(score, slice(i * runs, (i + 1) * runs))
            for i, size in enumerate(sizes)
            for depth, score in scores.items()
        }

    shown = [own["ours"], new["ours"], own["CGD"], new["CGD"], new.get("optimum", {})]
    return OnSets(*map(table, shown))


@functools.partial(jax.jit, static_argnames="count")
def asked(data: Any, keys: Any, count: int) -> Quadratic:
    """Prompts with one sampled query; runs lead, prompts are last."""
    draw = lambda one, key: Quadratic.of(one.prompts(key, count))  # noqa: E731
    return jax.vmap(draw)(data.stacked, keys)


def training_sets(bench: Workbench, data: PerRun, sizes: Sequence[int], label: str) -> Quadratic:
    """Prompts with one sampled query each: sizes and runs on the leading axis, prompts on the last."""
    largest = max(sizes)
    whole = asked(data, jax.random.split(bench.stream("fixed set", label), bench.runs), largest)
    return concatenate([take(whole, (..., np.arange(largest) % size)) for size in sizes])


def scores_on_sets(
    methods: dict[str, Any], sets: Quadratic, sizes: Sequence[int], runs: int
) -> dict[str, Score]:
    """Scores on fixed prompts with their own queries; a mean that is zero to rounding becomes 0."""
    found = {}
    for name, score in evaluate_on(methods, sets).items():
        zero = score.mean < ROUNDING * score.mean[:, :1]
        stderr = score.stderr * np.sqrt(score.prompts / np.repeat(sizes, runs))[:, None]
        mean, stderr = np.where(zero, 0.0, score.mean), np.where(zero, 0.0, stderr)
        found[name] = dataclasses.replace(score, mean=mean, stderr=stderr)
    return found
