"""The Gaussian mixture in five dimensions, where one step does not solve a prompt; label noise 0 and 0.1."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lfom.adaptation import PerPrompt
from lfom.core.arrays import as_array
from lfom.experiments.drawn import Drawn
from lfom.experiments.gaussian_mixture import MEANS, VARIANCES, WEIGHTS, adapted, adapted_rows
from lfom.experiments.ridge import best_penalty, ridges, take_ridges
from lfom.experiments.rows import published_rows
from lfom.experiments.shifted import BEST_RIDGE, OWN_GATES, UNADAPTED, OnShifts, gate_settings, repeated
from lfom.experiments.statistics import Claims, written
from lfom.experiments.workbench import CONTEXT, Outcome, Workbench, kept, keys
from lfom.methods.classical import conjugate_gradient
from lfom.methods.memformer import mixture
from lfom.prompts.distributions import GaussianMixture
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
    root = as_array(np.sqrt(data.variances)[m] * np.eye(D, dtype=np.float32))  # "same": w* varies as x does
    mean, length = as_array(np.asarray(data.means)[m]), as_array(np.float32(data.context))
    infinite = as_array(np.float32(np.inf))
    return Drawn(root, root, mean, mean, data.noise, length, infinite, data.context, False)


@kept
def in_five(bench: Workbench, curve: str) -> OnShifts:
    """Log losses relative to the labels' second moment (noises, runs). Components are runs of their own,
    components first; losses of the mixture are their weighted mean."""
    data = mixtures_in_five(bench)
    groups = len(data)
    components = PerRun([component(one, m) for m in range(3) for one in data])
    bench.say(f"training experts: {curve} (mixture, d = 5)")
    last = int(6_000 * bench.preset.least_squares)
    squares = LeastSquares(first=2_000, last=last, passes=(10, 1), every_matrix=False)
    model, key = bench.model(curve, D, DEPTH), bench.stream("experts five")
    trained = fit(model, components, key=key, optimiser=squares)
    many = PerRun([mixture([trained.model(m * groups + at) for m in range(3)]) for at in range(groups)])
    keys = jax.random.split(bench.stream("adapt five"), groups)
    bench.say(f"adapting gates: {curve} (mixture, d = 5)")
    fitted = gate_settings(many, PerRun(data), keys, [CONTEXT] * len(NOISES))
    methods: dict[str, Any] = {name: repeated(one, 3) for name, one in fitted.items()}
    whole = methods[UNADAPTED].stacked
    methods |= {OWN_GATES: PerRun(PerPrompt(whole)), HARD: PerRun(PerPrompt(whole, 0))}
    methods |= {RIGHT: trained.per_run(), "CGD": conjugate_gradient(DEPTH), **ridges()}
    bench.say(f"scoring: {curve} (mixture, d = 5)")
    count = bench.preset.prompts // 20
    table = {}
    for name, score in evaluate(methods, components, prompts=count, key=bench.stream("score five")).items():
        mean = np.einsum("m,mgs->gs", np.asarray(WEIGHTS), score.mean.reshape(3, groups, -1))
        table[name] = np.log(mean[:, -1] / mean[:, 0]).reshape(len(NOISES), bench.runs)
    table[BEST_RIDGE] = best_penalty(take_ridges(table))
    return OnShifts(table, count)


def both_panels(
    bench: Workbench, experiment: str, curve: str, claims: Claims, main: Sequence[str], rename: dict[str, str]
) -> Outcome:
    """The figure of a mixture, whose second panel is the one in five dimensions. main: curves of the first."""
    wide = in_five(bench, curve)
    rows = wide.rows([(at, MEASURE, noise) for at, noise in enumerate(NOISES)], "d = 5, ")
    shown = [(name, training) for name in main for training in ("converged", "published")]
    shown += [(row.curve, row.training) for row in rows if row.run == 0]
    every = adapted_rows(adapted(bench, curve), rename) + rows + published_rows(experiment)
    return Outcome(every, claims, [*keys(shown), "CGD|none"])


def five_claims(bench: Workbench, curve: str, model: str, claims: Claims) -> None:
    """model: part of the claims' names."""
    found = in_five(bench, curve)

    def minus(rival: str) -> tuple[np.ndarray, str]:
        difference = found.table[OWN_GATES] - found.table[rival]
        parts = zip(NOISES, difference, strict=True)
        return difference.mean(axis=1), "; ".join(f"noise {x:g}: {written(v, '+.2f')}" for x, v in parts)

    right, by_right = minus(RIGHT)
    ridge, by_ridge = minus(BEST_RIDGE)
    losses = "; ".join(f"{name} {v[0].mean():.2f}, {v[1].mean():.2f}" for name, v in found.table.items())
    claims.test(
        f"mixture-per-prompt-reaches-the-right-expert-{model}",
        "Ours: gates that each prompt sets from its own context reach the expert of its component (d = 5).",
        "relative log loss of the mixture at most 0.1 above that of the right expert alone on its own "
        "component, averaged over the mixture, at noise 0 and 0.1",
        right <= 0.1,
        f"{by_right}; all at noise 0 and 0.1: {losses}",
    )
    claims.test(
        f"mixture-per-prompt-beats-ridge-{model}",
        "Ours: experts with gates per prompt do better than ridge at its best penalty (d = 5).",
        "relative log loss lower on the same fresh prompts, at noise 0 and 0.1 (without noise the best penalty "
        "is 0, which is exact)",
        ridge < 0,
        by_ridge,
    )
