"""What the two figures on Gaussian mixtures share: three components, an expert for each, in d = 1 and d = 5."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lfom.adaptation import PerPrompt, adapt
from lfom.core.arrays import as_array
from lfom.core.runs import PerRun
from lfom.experiments import shifted
from lfom.experiments.drawn import Drawn
from lfom.experiments.experiment import Experiment
from lfom.experiments.fixed_batches import ROUNDING
from lfom.experiments.gates import adaptation_prompts, fit_gates, on_adaptation_prompts
from lfom.experiments.ridge import best_penalty, ridges, take_ridges
from lfom.experiments.rows import Row, by_depth, flatten, published_rows, score_rows, take_runs
from lfom.experiments.shifted import BEST_RIDGE, OWN_GATES, UNADAPTED, OnShifts, draw
from lfom.experiments.statistics import Claims, written
from lfom.experiments.workbench import CONTEXT, DEPTHS, Outcome, Workbench, kept, keys
from lfom.methods.classical import conjugate_gradient
from lfom.methods.memformer import mixture
from lfom.prompts.distributions import GaussianMixture
from lfom.training import LeastSquares, Score, evaluate, fit

MEANS, VARIANCES, WEIGHTS = (2.5, 0.0, -1.0), (0.5, 1.0, 2.0), (0.2, 0.3, 0.5)
NAMES = ("N(2.5,0.5)", "N(0,1)", "N(-1,2)")
GATES, BOTH, PER_PROMPT = "mixture, gates", "mixture, gates and gamma", "mixture, gates per prompt"
LABEL_FREE = "mixture, gates without labels"
FREE = 100  # prompts whose contexts label-free adaptation reads

# In five dimensions, where one step does not solve a prompt; label noise 0 and 0.1.
D, DEPTH, NOISES = 5, 4, (0.0, 0.1)
MEASURE = "five_dimensions"
TRAINED_IN_FIVE = (
    "d = 5: experts for each component, run and noise; 4,096 adaptation prompts, without labels one example of each "
    "context is held out, another one in the next; ridge's penalty is chosen on the other runs."
)
RIGHT, HARD = "right expert alone", "best expert per prompt"


class OnMixture(Experiment):
    """The two figures that show this as their second panel."""

    x_label = {"log_loss": "layers or steps", MEASURE: "noise of the labels"}
    y_label = {
        "log_loss": "log of the mean squared error",
        MEASURE: "log loss relative to the labels' second moment",
    }


@dataclass(frozen=True)
class Adapted:
    """Scores by depth. mixtures: by what was fitted; experts: each on its own component."""

    fresh: dict[str, dict[int, Score]]
    adaptation: dict[str, dict[int, Score]]
    experts: dict[str, dict[int, Score]]
    cgd: dict[int, Score]


def mixture_data(runs: int) -> PerRun:
    """The mixture of the authors' code, as often as there are runs."""
    one = GaussianMixture([[m] for m in MEANS], VARIANCES, WEIGHTS, CONTEXT, weight_variance="same")
    return PerRun([one] * runs)


@kept
def adapted(bench: Workbench, curve: str) -> Adapted:
    """The experts of a model, and their mixture with gates, or gates and coefficients, fitted."""
    runs, data = bench.runs, mixture_data(bench.runs)
    components = PerRun([one.component(m) for m in range(3) for one in data.each()])
    parts = [slice(m * runs, (m + 1) * runs) for m in range(3)]
    bench.say(f"training experts: {curve} (d = 1)")
    optimiser = LeastSquares(last=4_000, passes=(25, 3), every_matrix=False)
    model, key = bench.model(curve, 1), bench.stream("experts")
    trained = fit(model, components, key=key, depths=DEPTHS, optimiser=optimiser)
    experts = [dataclasses.replace(trained, vectors=trained.vectors[part]) for part in parts]
    prompts = adaptation_prompts(data, bench.stream("adapt", "mixture"))
    bench.say(f"fitting gates: {curve} (d = 1)")
    fits = {GATES: fit_gates(bench, experts, prompts)}
    if curve != "Linear Transformer":
        fits[BOTH] = fit_gates(bench, experts, prompts, ("gates", "coefficients"))
    bench.say(f"fitting gates without labels: {curve} (d = 1)")
    contexts = PerRun(draw(data, jax.random.split(bench.stream("contexts", "mixture"), runs), FREE))
    methods: dict[str, Any] = {name: {d: one.per_run(d) for d in DEPTHS} for name, one in fits.items()}
    methods |= {LABEL_FREE: {}, PER_PROMPT: {}, "CGD": conjugate_gradient(max(DEPTHS))}
    for d in DEPTHS:
        whole = PerRun([mixture([one.model(run, d) for one in experts]) for run in range(runs)])
        methods[LABEL_FREE][d] = adapt(whole, contexts, setting="label-free").model
        methods[PER_PROMPT][d] = PerRun(PerPrompt(methods[GATES][d].stacked))
    count, key = bench.preset.prompts // 10, bench.stream("score", "mixture")

    def scores(named: dict[str, Any]) -> dict[str, Score]:
        return {n: floored(one) for n, one in evaluate(named, data, prompts=count, key=key).items()}

    fresh = by_depth(methods, DEPTHS, scores)
    cgd = fresh.pop("CGD")
    alone = {curve: {d: trained.per_run(d) for d in DEPTHS}}
    score = lambda named: evaluate(named, components, prompts=count // 4, key=key)  # noqa: E731
    own = by_depth(alone, DEPTHS, score)[curve]
    return Adapted(
        fresh,
        {name: on_adaptation_prompts(one, prompts) for name, one in fits.items()},
        {n: {d: take_runs(own[d], part) for d in DEPTHS} for n, part in zip(NAMES, parts, strict=True)},
        cgd,
    )


def floored(score: Score) -> Score:
    """The score with means that are zero to rounding set to 0."""
    zero = score.mean < ROUNDING * score.mean[:, :1]
    return dataclasses.replace(score, mean=np.where(zero, 0.0, score.mean))


def adapted_rows(found: Adapted, rename: dict[str, str]) -> list[Row]:
    rows = score_rows("CGD", "none", found.cgd)
    for name, scores in found.fresh.items():
        shown = rename.get(name, name)
        rows += score_rows(shown, "converged", scores)
        rows += score_rows(shown, "converged", found.adaptation.get(name, {}), "adaptation prompts")
    return rows + flatten(score_rows(name, "converged", scores) for name, scores in found.experts.items())


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
    fitted = shifted.gate_settings(many, PerRun(data), keys, [CONTEXT] * len(NOISES))
    methods: dict[str, Any] = {name: shifted.repeated(one, 3) for name, one in fitted.items()}
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
        "relative log loss lower on the same fresh prompts, at noise 0 and 0.1 (without noise the best penalty is 0, which is exact)",
        ridge < 0,
        by_ridge,
    )
