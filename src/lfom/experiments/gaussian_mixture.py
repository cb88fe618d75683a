"""What the two figures on Gaussian mixtures share: d = 1, three components, an expert for each."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import Array

from lfom.adaptation import PerPrompt, adapt
from lfom.core.runs import PerRun
from lfom.experiments.fixed_batches import ROUNDING
from lfom.experiments.gates import adaptation_prompts, fit_gates, on_adaptation_prompts, take_runs
from lfom.experiments.rows import at_step, score_rows
from lfom.experiments.workbench import CONTEXT, DEPTHS, MODELS, Workbench
from lfom.methods.classical import conjugate_gradient
from lfom.methods.memformer import memformer, mixture
from lfom.prompts.distributions import GaussianMixture
from lfom.prompts.prompt import Prompt
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


def adapted(bench: Workbench, curve: str) -> Adapted:
    """The experts of a model, and their mixture with gates, or gates and coefficients, fitted."""

    def make() -> Adapted:
        runs, data = bench.runs, mixture_data(bench.runs)
        components = PerRun([one.component(m) for m in range(3) for one in data.each()])
        bench.say(f"training experts: {curve} (d = 1)")
        model = memformer(1, max(DEPTHS), key=jax.random.fold_in(bench.key, 11), **MODELS[curve])
        optimiser = LeastSquares(last=4_000, passes=(25, 3), every_matrix=False)
        trained = fit(model, components, key=bench.stream("experts"), depths=DEPTHS, optimiser=optimiser)
        experts = [
            dataclasses.replace(trained, vectors=trained.vectors[m * runs : (m + 1) * runs]) for m in range(3)
        ]
        prompts = adaptation_prompts(data, bench.stream("adapt", "mixture"))
        bench.say(f"fitting gates: {curve} (d = 1)")
        fits = {GATES: fit_gates(bench, experts, prompts)}
        if curve != "Linear Transformer":
            fits[BOTH] = fit_gates(bench, experts, prompts, ("gates", "coefficients"))
        methods: dict[str, Any] = {f"{n}|{d}": one.per_run(d) for n, one in fits.items() for d in DEPTHS}
        methods |= {f"{PER_PROMPT}|{d}": PerRun(PerPrompt(fits[GATES].per_run(d).stacked)) for d in DEPTHS}
        bench.say(f"fitting gates without labels: {curve} (d = 1)")
        contexts = PerRun(draw(data, jax.random.split(bench.stream("contexts", "mixture"), runs)))
        for d in DEPTHS:
            whole = [mixture([one.model(run, d) for one in experts]) for run in range(runs)]
            methods[f"{LABEL_FREE}|{d}"] = adapt(PerRun(whole), contexts, setting="label-free").model
        methods["CGD"] = conjugate_gradient(max(DEPTHS))
        count, key = bench.preset.prompts // 10, bench.stream("score", "mixture")
        found = {n: floored(score) for n, score in evaluate(methods, data, prompts=count, key=key).items()}
        own = evaluate({str(d): trained.per_run(d) for d in DEPTHS}, components, prompts=count // 4, key=key)
        return Adapted(
            {name: {d: found[f"{name}|{d}"] for d in DEPTHS} for name in (*fits, LABEL_FREE, PER_PROMPT)},
            {name: on_adaptation_prompts(one, prompts) for name, one in fits.items()},
            {
                name: {d: take_runs(own[str(d)], slice(m * runs, (m + 1) * runs)) for d in DEPTHS}
                for m, name in enumerate(NAMES)
            },
            {d: at_step(found["CGD"], d) for d in DEPTHS},
        )

    return bench.keep(("gaussian mixture", curve), make)


@jax.jit
def draw(data: PerRun, keys: Array) -> Prompt:
    return jax.vmap(lambda one, key: one.prompts(key, FREE))(data.stacked, keys)


def floored(score: Score) -> Score:
    """The score with means that are zero to rounding set to 0."""
    zero = score.mean < ROUNDING * score.mean[:, :1]
    return dataclasses.replace(score, mean=np.where(zero, 0.0, score.mean))


def adapted_rows(found: Adapted, rename: dict[str, str]) -> list[Row]:
    rows = score_rows("CGD", "none", found.cgd)
    for name in found.fresh:
        rows += score_rows(rename.get(name, name), "converged", found.fresh[name])
        if name in found.adaptation:
            rows += score_rows(
                rename.get(name, name), "converged", found.adaptation[name], "adaptation prompts"
            )
    for name, scores in found.experts.items():
        rows += score_rows(name, "converged", scores)
    return rows
