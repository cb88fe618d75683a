"""Scores on shifted prompts, of adapted experts and of what they have to beat: made once, used by several figures."""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from lfom.adaptation import PerPrompt, adapt
from lfom.core.arrays import as_array
from lfom.core.compiler import jit_draws
from lfom.core.parameters import leaves
from lfom.core.readers import Normalised
from lfom.core.runs import PerRun, concatenate, joined
from lfom.core.threads import in_threads
from lfom.experiments.drawn import Rescaled, drawn
from lfom.experiments.ridge import best_penalty, ridges, take_ridges
from lfom.experiments.rows import run_rows
from lfom.experiments.workbench import CONTEXT, Workbench, kept
from lfom.methods.classical import conjugate_gradient
from lfom.methods.memformer import mixture
from lfom.prompts.prompt import Prompt
from lfom.prompts.shifts import RandomScale, turn
from lfom.report.results import FLOOR, Row
from lfom.training import Fit, LeastSquares, Score, evaluate, fit

EXPERTS = (1.0, 2.0, 3.0)  # the variances that they are trained for
DEPTH, LOWEST, HIGHEST = 4, 0.25, 16.0
SHIFTS: dict[str, tuple[float, ...]] = {
    "variance": (0.25, 0.5, 1.0, 1.5, 2.5, 3.5, 8.0, 16.0),
    "angle": (0.5, 1.0, 1.5),
    "power": (0.0, 0.5, 1.5),
    "noise": (0.1, 0.5),
    "length": (10.0, 40.0),
    "degrees": (4.0, 6.0, 10.0),
}
PLACES = [(family, x) for family, xs in SHIFTS.items() for x in xs]
UNSHIFTED = {"angle": 0.0, "power": 1.0, "noise": 0.0, "length": float(CONTEXT)}  # these are variance 1
LENGTHS = [int(x) if family == "length" else CONTEXT for family, x in PLACES]
MOST = int(max(SHIFTS["length"]))
LABELS, STEPS = 4_096, 8  # adaptation prompts for every run and shift; least-squares steps
UNADAPTED, WITH_LABELS = "gates, unadapted", "gates, labelled"
LABEL_FREE, OWN_GATES = "gates, label-free", "gates, per prompt"
BEST_RIDGE, LEAST_SQUARES = "ridge, best penalty", "least squares"
FOUR_STEPS = ("one expert", "union", "normalised", "conjugate register", "CGD", "preconditioned CGD")
CLASSICAL = ("CGD", "preconditioned CGD", LEAST_SQUARES, BEST_RIDGE)


@dataclass(frozen=True)
class OnShifts:
    """Relative log losses (shifts, runs) by curve; shifts in the order of PLACES, or of another list."""

    table: dict[str, np.ndarray]
    prompts: int

    def rows(self, points: Iterable[tuple[int, str, float]], before: str = "") -> list[Row]:
        """points: a place in the table, and the measure and the x that it is drawn at."""
        every, rows = list(points), []
        for name, values in self.table.items():
            training = "none" if name in CLASSICAL else "converged"
            for at, measure, x in every:
                rows += run_rows(before + name, training, x, values[at], measure, prompts=self.prompts)
        return rows


def shifted_data(bench: Workbench) -> PerRun:
    """All shifts of all runs on one leading axis, shifts first."""
    base, parts = bench.data().stacked, []
    keys = jax.random.split(bench.stream("turn"), bench.runs)
    for family, x in PLACES:
        data: Any = base
        if family in ("variance", "noise"):
            other: dict[str, Any] = {family: x}
            data = bench.data(**other).stacked
        elif family == "angle":
            turned = jax.vmap(lambda key, U, x=x: U @ turn(key, U.shape[0], x))(keys, base.rotation)
            data = eqx.tree_at(lambda d: d.rotation, base, turned)
        elif family == "power":
            data = eqx.tree_at(lambda d: d.spectrum, base, base.spectrum**x)
        length, degrees = x if family == "length" else None, x if family == "degrees" else jnp.inf
        parts.append(drawn(data, length=length, degrees=degrees, most=MOST))
    return PerRun(concatenate(parts))


def base_model(bench: Workbench) -> Fit:
    return bench.trained("Memformer, own 1", "converged", bench.data())


def scaled(found: Fit, variance: float) -> Fit:
    """The expert of a variance, from the one of variance 1."""
    in_A = np.concatenate([np.full(leaf.array.size, leaf.kind == "A") for leaf in leaves(found.template)])
    vectors = np.where(in_A, found.vectors / np.float32(variance), found.vectors)
    return dataclasses.replace(found, vectors=vectors)


def experts_of(bench: Workbench, variances: tuple[float, ...]) -> PerRun:
    """Each run's mixture of experts, gates 1 / heads."""
    each = [scaled(base_model(bench), v) for v in variances]
    return PerRun([mixture([one.model(run, DEPTH) for one in each]) for run in range(bench.runs)])


def repeated(method: PerRun, times: int) -> PerRun:
    return joined([method] * times)


def union_data(bench: Workbench, *, normalised: bool = False) -> PerRun:
    """Prompts of all variances, log-uniform; or each divided by its own scale."""
    own = as_array(np.float32(normalised))
    return PerRun([Rescaled(RandomScale(one, LOWEST, HIGHEST), own) for one in bench.data().each()])


@kept
def single_models(bench: Workbench) -> dict[str, PerRun]:
    """The models without experts: as it is, trained on the union of variances, normalised, and the
    conjugate register with its learned preconditioner.

    A normalised model is the plain one on normalised prompts, so it is trained as a plain one on these.
    """
    data = joined([union_data(bench), union_data(bench, normalised=True)])
    bench.say("training on the union of variances, and on normalised prompts")
    last = int(20_000 * bench.preset.least_squares)
    squares = LeastSquares(first=4_000, last=last, passes=(15, 2), every_matrix=False)
    model, key = bench.model("Memformer, own 1", 5, DEPTH), bench.stream("train", "rescaled")
    both = fit(model, data, key=key, optimiser=squares).per_run()
    union, plain = both[: bench.runs], both[bench.runs :]
    conjugate = bench.trained("Conjugate register", "converged", bench.data())
    return {
        "one expert": base_model(bench).per_run(DEPTH),
        "union": union,
        "normalised": PerRun(eqx.tree_at(lambda m: m.reader, plain.stacked, replace_fn=Normalised)),
        "conjugate register": conjugate.per_run(DEPTH),
    }


@jit_draws
def _drawn(data: Any, keys: Any, count: int) -> tuple[jax.Array, ...]:
    return jax.lax.map(lambda own: own[0].prompts_last(own[1], count), (data.stacked, keys))


def draw(data: Any, keys: Any, count: int) -> Prompt:
    """Prompts of every run, (runs, count, ...), on the host, where another order of axes costs nothing."""
    moved: Any = (np.moveaxis(np.asarray(a), -1, 1) for a in _drawn(data, keys, count))
    X, y, target = moved
    return Prompt(X[:, :, :-1], y, X[:, :, -1], target)


def adapted_gates(
    start: dict[str, PerRun], data: Any, keys: Any, lengths: Sequence[int], steps: int = STEPS
) -> dict[str, PerRun]:
    """Gates fitted with labels and without, to the same prompts, for every group of runs; groups lead.

    start: the models that each setting begins with. lengths: of the contexts of each group. All groups
    share their compiled programs.
    """
    runs = len(keys) // len(lengths)
    names = {LABEL_FREE: "label-free", WITH_LABELS: "labelled"}

    def one(group: int) -> list[PerRun]:
        index, n = slice(group * runs, (group + 1) * runs), lengths[group]
        whole = draw(data[index], keys[index], LABELS)
        prompts = PerRun(dataclasses.replace(whole, X=whole.X[:, :, :n], y=whole.y[:, :, :n]))
        return [
            adapt(start[name][index], prompts, setting=setting, steps=steps).model
            for name, setting in names.items()
        ]

    found = [one(0), *in_threads(one, range(1, len(lengths)))]
    return {name: joined(each) for name, each in zip(names, zip(*found, strict=True), strict=True)}


def relative(score: Score) -> np.ndarray:
    """Log loss minus that of predicting 0 on the same prompts, by run."""
    return np.maximum(score.log_mean[:, -1] - score.log_mean[:, 0], FLOOR)


def gate_settings(many: PerRun, data: PerRun, keys: Any, lengths: Sequence[int]) -> dict[str, PerRun]:
    """Mixtures with their gates as they are, and fitted without and with labels."""
    start = dict.fromkeys((LABEL_FREE, WITH_LABELS), many)
    return {UNADAPTED: many} | adapted_gates(start, data, keys, lengths)


@kept
def on_shifts(bench: Workbench) -> OnShifts:
    """Every method on every shift."""
    data, times, runs = shifted_data(bench), len(PLACES), bench.runs
    many = repeated(experts_of(bench, EXPERTS), times)
    keys = jax.random.split(bench.stream("adapt", "shifts"), times * runs)
    bench.say("adapting gates to shifted prompts")
    methods: dict[str, Any] = {**gate_settings(many, data, keys, LENGTHS)}
    methods[OWN_GATES] = PerRun(PerPrompt(many.stacked))
    known = bench.preconditioned_cgd(bench.data(), DEPTH)
    same = {**single_models(bench), "preconditioned CGD": known}
    methods |= {name: repeated(one, times) for name, one in same.items()}
    methods |= {"CGD": conjugate_gradient(DEPTH), **ridges()}
    bench.say("scoring on shifted prompts")
    count = bench.preset.prompts // 100
    scores = evaluate(methods, data, prompts=count, key=bench.stream("score", "shifts"))
    table = {name: relative(score).reshape(times, runs) for name, score in scores.items()}
    losses = take_ridges(table)
    return OnShifts(table | {LEAST_SQUARES: losses[0], BEST_RIDGE: best_penalty(losses)}, count)
