"""What the two figures on Gaussian mixtures share: d = 1, three components, an expert for each."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from lfom.adaptation import PerPrompt, adapt
from lfom.core.runs import PerRun
from lfom.experiments.fixed_batches import ROUNDING
from lfom.experiments.gates import adaptation_prompts, fit_gates, on_adaptation_prompts
from lfom.experiments.rows import by_depth, flatten, score_rows, take_runs
from lfom.experiments.shifted import draw
from lfom.experiments.workbench import CONTEXT, DEPTHS, Workbench, kept
from lfom.methods.classical import conjugate_gradient
from lfom.methods.memformer import mixture
from lfom.prompts.distributions import GaussianMixture
from lfom.report.results import Row
from lfom.training import LeastSquares, Score, evaluate, fit

MEANS, VARIANCES, WEIGHTS = (2.5, 0.0, -1.0), (0.5, 1.0, 2.0), (0.2, 0.3, 0.5)
NAMES = ("N(2.5,0.5)", "N(0,1)", "N(-1,2)")
GATES, BOTH, PER_PROMPT = "mixture, gates", "mixture, gates and gamma", "mixture, gates per prompt"
LABEL_FREE = "mixture, gates without labels"
FREE = 100  # prompts whose contexts label-free adaptation reads


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

    def own_scores(named: dict[str, Any]) -> dict[str, Score]:
        return evaluate(named, components, prompts=count // 4, key=key)

    fresh = by_depth(methods, DEPTHS, scores)
    own = by_depth({curve: {d: trained.per_run(d) for d in DEPTHS}}, DEPTHS, own_scores)[curve]
    return Adapted(
        fresh,
        {name: on_adaptation_prompts(one, prompts) for name, one in fits.items()},
        {n: {d: take_runs(own[d], part) for d in DEPTHS} for n, part in zip(NAMES, parts, strict=True)},
        fresh.pop("CGD"),
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
