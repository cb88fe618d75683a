"""Training on a fixed set of prompts instead of fresh ones: the sets, the fits and their scores."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lfom.core.arrays import as_array
from lfom.core.coefficients import CoordinateWise
from lfom.core.compiler import jit_draws
from lfom.core.memories import Bank
from lfom.core.methods import Algorithm, Method
from lfom.core.preconditioners import Full, Identity
from lfom.core.problems import Quadratic
from lfom.core.readers import Gradient
from lfom.core.runs import PerRun, concatenate, joined, take
from lfom.experiments.rows import Row, by_depth, score_rows, take_runs
from lfom.experiments.workbench import CONTEXT, DEPTHS, PHASES, Optimiser, Workbench, kept
from lfom.limits.optimum import exact_optimum
from lfom.methods.classical import conjugate_gradient
from lfom.training import Adam, Fit, LeastSquares, Score, State, evaluate, fit
from lfom.training.evaluation import evaluate_on

SMALL, LARGE = (1, 10), (50, 100, 1000)  # sizes of the sets of `memformers`
ISOTROPIC = (1.0,) * 5
ROUNDING = 1e-12  # relative to the loss of w = 0: below this, single precision says no more than zero
Sizes = tuple[int, ...]
Scores = dict[tuple[int, int], Score]  # by size of the set and depth


def both_rows(curve: str, training: str, own: dict[int, Score], fresh: dict[int, Score]) -> list[Row]:
    return score_rows(curve, training, own, "training prompts") + score_rows(curve, training, fresh)


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
    optimiser: Optimiser | None = None,
    optimum: dict[int, Any] | None = None,
    prompts: int | None = None,
) -> OnSets:
    """`model` fitted to a set of each size (which must divide the largest), for each run and depth.

    paper, and A, then Gamma: Adam; converged: least squares (or the optimiser given), both from the model as it is,
    as far as these very prompts can be fitted. A smaller set is the beginning of a larger one; in
    the computer it is repeated until it is as long, which changes no mean over it: sizes and runs
    are then one axis of one compiled program.
    """
    runs, largest = bench.runs, max(sizes)
    bench.say(f"training on sets of {', '.join(map(str, sizes))} prompts ({training}, {label})")
    sets = training_sets(bench, data, sizes, label)
    optimiser = optimiser or LeastSquares(hold_out=0, passes=(15, 1))
    if training != "converged":
        optimiser = Adam(steps=bench.preset.adam_steps, batch=largest)
    found = fit_on_sets(bench, model, sets, optimiser, depths, PHASES.get(training))
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


@jit_draws
def asked(data: Any, keys: Any, count: int) -> Quadratic:
    """Prompts with one sampled query; runs lead, prompts are last."""
    draw = lambda one, key: Quadratic.of(one.prompts(key, count))  # noqa: E731
    return jax.vmap(draw)(data.stacked, keys)


def fit_on_sets(
    bench: Workbench,
    model: Any,
    sets: Quadratic,
    optimiser: Optimiser,
    depths: Sequence[int] = DEPTHS,
    train: Any = None,
    vectors: np.ndarray | None = None,
) -> Fit:
    """`model` fitted to one set for each run, from the model as it is, or from the numbers (runs, depths, all) given."""
    items = [take(sets, run) for run in range(len(sets.moment))]
    begun = None if vectors is None else State(0, 0, 0, vectors)
    options: dict[str, Any] = {"train": train, "optimiser": optimiser, "start": "model", "resume": begun}
    return fit(model, items, key=bench.key, depths=depths, **options)


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


@kept
def memformers(bench: Workbench, training: str, sizes: Sizes, depths: Sizes) -> OnSets:
    """The Memformer of the figures, trained on sets of the main data."""
    data, deepest = bench.data(), max(depths)
    model = bench.model("Memformer, own 1", 5, deepest)
    if training == "converged" and sizes == LARGE:  # least squares: from steps of a sensible size
        size = float(1 / np.mean(data.stacked.spectrum))
        steps = size * (1 + 0.6 * np.cos(np.pi * (np.arange(deepest) + 0.5) / deepest))
        matrices = (steps[:, None, None] * np.eye(5)).astype(np.float32)
        model = dataclasses.replace(model, reader=Gradient(Full(as_array(matrices))))
    # One prompt leaves so much open that damped steps stall: Adam to the end fits it reliably.
    longer = Adam(steps=10_000, resample=1_000, schedule="cosine") if sizes == SMALL else None
    return train_on_sets(bench, model, data, sizes, training, f"main {max(sizes)}", depths, longer)


@kept
def learned_lfom(
    bench: Workbench, training: str, sizes: Sizes, depths: Sizes, passes: int = 15, prompts: int | None = None
) -> OnSets:
    """w_{k+1} = w_k - sum over j <= k of Lambda_j^k grad R(w_j), every Lambda_j^k diagonal and free."""
    deepest = max(depths)
    if training == "paper":
        start = 1e-4 * jax.random.normal(jax.random.fold_in(bench.key, 13), (deepest, deepest, 5))
    else:  # gradient descent with steps that differ
        steps = 1 + 0.6 * jnp.cos(jnp.pi * (jnp.arange(deepest) + 0.5) / deepest)
        start = jnp.diag(steps)[..., None] * jnp.ones(5)
    model = Method(Gradient(Identity()), Bank(CoordinateWise(start), tied=False), deepest)
    data, label = bench.data(ISOTROPIC), f"isotropic {max(sizes)}"
    squares = LeastSquares(hold_out=0, passes=(passes, 1))
    optimum = {depth: exact_optimum(5, CONTEXT, depth) for depth in depths}
    return train_on_sets(bench, model, data, sizes, training, label, depths, squares, optimum, prompts)
