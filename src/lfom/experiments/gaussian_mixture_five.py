"""The Gaussian mixture in five dimensions, where one step does not solve a prompt; label noise 0 and 0.1."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lfom.adaptation import PerPrompt
from lfom.core.arrays import as_array
from lfom.experiments.drawn import Drawn
from lfom.experiments.gaussian_mixture import MEANS, VARIANCES, WEIGHTS
from lfom.experiments.ridge import PENALTIES, Ridge, best_penalty
from lfom.experiments.shifted import (
    BEST_RIDGE,
    LABEL_FREE,
    OWN_GATES,
    UNADAPTED,
    WITH_LABELS,
    adapted_gates,
    repeated,
    stacked,
)
from lfom.experiments.statistics import verdict
from lfom.experiments.workbench import CONTEXT, MODELS, Workbench
from lfom.methods.classical import conjugate_gradient
from lfom.methods.memformer import memformer, mixture
from lfom.prompts.distributions import GaussianMixture
from lfom.report.results import Claim, Row
from lfom.training import LeastSquares, PerRun, evaluate, fit

D, DEPTH, NOISES = 5, 4, (0.0, 0.1)
MEASURE = "five_dimensions"
# Of the two figures that show this as their second panel.
X_LABEL = {"log_loss": "layers or steps", MEASURE: "noise of the labels"}
Y_LABEL = {
    "log_loss": "log of the mean squared error",
    MEASURE: "log loss relative to the labels' second moment",
}
X_SCALE = {"log_loss": "linear", MEASURE: "linear"}
TRAINED = (
    "d = 5: experts for each component, run and noise; 4,096 adaptation prompts, without labels one example of each "
    "context is held out, another one in the next; ridge's penalty is chosen on the other runs."
)
RIGHT, HARD = "right expert alone", "best expert per prompt"
CLASSICAL = ("CGD", BEST_RIDGE)


@dataclass(frozen=True)
class InFive:
    """Log losses relative to the labels' second moment, (noises, runs), by curve."""

    table: dict[str, np.ndarray]
    prompts: int


def mixtures_in_five(bench: Workbench) -> list[GaussianMixture]:
    """For every noise and run: the components' means along one direction, another one in every run."""
    normal = jax.random.normal(bench.stream("directions"), (bench.runs, D))
    directions = np.asarray(normal / jnp.linalg.norm(normal, axis=1, keepdims=True))
    means = np.asarray(MEANS)[:, None]
    return [
        GaussianMixture(means * u, VARIANCES, WEIGHTS, CONTEXT, noise=noise, weight_variance="same")
        for noise in NOISES
        for u in directions
    ]


def component(data: GaussianMixture, m: int) -> Drawn:
    """One component, in the class that is drawn fast."""
    root = as_array(
        np.sqrt(data.variances)[m] * np.eye(D, dtype=np.float32)
    )  # "same": w* varies as much as x
    mean, length = as_array(np.asarray(data.means)[m]), as_array(np.float32(data.context))
    infinite = as_array(np.float32(np.inf))
    return Drawn(root, root, mean, mean, data.noise, length, infinite, data.context, False)


def in_five(bench: Workbench, curve: str = "Memformer, own 1") -> InFive:
    """Components are runs of their own, components first; losses of the mixture are their weighted mean."""

    def make() -> InFive:
        data, runs = mixtures_in_five(bench), bench.runs
        groups = len(data)
        each = [component(one, m) for m in range(3) for one in data]
        components = PerRun(each)
        bench.say(f"training experts: {curve} (mixture, d = 5)")
        model = memformer(D, DEPTH, key=jax.random.fold_in(bench.key, 11), **MODELS[curve])
        last = int(6_000 * bench.preset.least_squares)
        squares = LeastSquares(first=2_000, last=last, passes=(10, 1), every_matrix=False)
        trained = fit(model, components, key=bench.stream("experts five"), optimiser=squares)
        many = stacked([mixture([trained.model(m * groups + at) for m in range(3)]) for at in range(groups)])
        keys = jax.random.split(bench.stream("adapt five"), groups)
        bench.say(f"adapting gates: {curve} (mixture, d = 5)")
        methods: dict[str, Any] = {UNADAPTED: many}
        begin = dict.fromkeys((LABEL_FREE, WITH_LABELS), many)
        methods |= adapted_gates(begin, PerRun(data), keys, [CONTEXT] * len(NOISES))
        methods = {name: repeated(one, 3) for name, one in methods.items()}
        whole = methods[UNADAPTED].stacked
        methods |= {OWN_GATES: PerRun(PerPrompt(whole)), HARD: PerRun(PerPrompt(whole, 0))}
        methods |= {RIGHT: trained.per_run(), "CGD": conjugate_gradient(DEPTH)}
        methods |= {f"ridge {penalty:g}": Ridge(as_array(np.float32(penalty))) for penalty in PENALTIES}
        bench.say(f"scoring: {curve} (mixture, d = 5)")
        count = bench.preset.prompts // 20
        scores = evaluate(methods, components, prompts=count, key=bench.stream("score five"))
        table = {}
        for name, score in scores.items():
            mean = np.einsum("m,mgs->gs", np.asarray(WEIGHTS), score.mean.reshape(3, groups, -1))
            table[name] = np.log(mean[:, -1] / mean[:, 0]).reshape(len(NOISES), runs)
        ridges = np.stack([table.pop(f"ridge {penalty:g}") for penalty in PENALTIES])
        table[BEST_RIDGE] = best_penalty(ridges)
        return InFive(table, count)

    return bench.keep(("mixture in five", curve), make)


def five_rows(found: InFive) -> list[Row]:
    return [
        Row(f"d = 5, {name}", "none" if name in CLASSICAL else "converged", noise, float(v), r, MEASURE,
            prompts=found.prompts)
        for name, values in found.table.items()
        for noise, each in zip(NOISES, values, strict=True)
        for r, v in enumerate(each)
    ]  # fmt: skip


def five_claims(found: InFive, model: str) -> list[Claim]:
    """model: part of the claims' names."""

    def minus(name: str, rival: str) -> tuple[np.ndarray, str]:
        difference = found.table[name] - found.table[rival]
        runs = difference.shape[1]
        error = difference.std(axis=1, ddof=1) / np.sqrt(runs) if runs > 1 else np.zeros(len(difference))
        parts = zip(NOISES, difference.mean(axis=1), error, strict=True)
        return difference.mean(axis=1), "; ".join(f"noise {x:g}: {m:+.2f} ± {e:.2f}" for x, m, e in parts)

    right, by_right = minus(OWN_GATES, RIGHT)
    ridge, by_ridge = minus(OWN_GATES, BEST_RIDGE)
    losses = "; ".join(f"{name} {v[0].mean():.2f}, {v[1].mean():.2f}" for name, v in found.table.items())
    return [
        Claim(
            f"mixture-per-prompt-reaches-the-right-expert-{model}",
            "Ours: gates that each prompt sets from its own context reach the expert of its component (d = 5).",
            "4.2", "relative log loss of the mixture at most 0.1 above that of the right expert alone on its own "
            "component, averaged over the mixture, at noise 0 and 0.1", verdict(*(right <= 0.1)),
            f"{by_right}; all at noise 0 and 0.1: {losses}",
        ),
        Claim(
            f"mixture-per-prompt-beats-ridge-{model}",
            "Ours: experts with gates per prompt do better than ridge at its best penalty (d = 5).", "4.2",
            "relative log loss lower on the same fresh prompts, at noise 0 and 0.1 (without noise the best penalty "
            "is 0, which is exact)", verdict(*(ridge < 0)), by_ridge,
        ),
    ]  # fmt: skip
