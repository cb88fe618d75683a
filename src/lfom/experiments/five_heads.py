"""Figure 5head_attention_experiment: what five heads add to one."""

import dataclasses
from typing import Any

import jax
import numpy as np

from lfom.core.preconditioners import Full
from lfom.core.readers import Gradient, Heads
from lfom.experiments.experiment import Experiment
from lfom.experiments.rows import Row, by_depth, curve_rows, flatten, run_rows, score_rows
from lfom.experiments.statistics import Claims, below, compare, difference, lower, slug, under, written
from lfom.experiments.workbench import (
    A_THEN_GAMMA,
    CONTEXT,
    DEPTHS,
    PHASES,
    WITH_PHASES,
    Outcome,
    Workbench,
    kept,
    keys,
    rotations,
)
from lfom.methods.memformer import mixture
from lfom.prompts.distributions import PUBLISHED_SPECTRUM, GaussianMixture
from lfom.training import Adam, Fit, PerRun, Score, fit

ONE, FIVE, HEADS = "Memformer, 1 head", "Memformer, 5 heads", 5
MODEL = "Memformer, own 1"
VARYING = ("one head with B", "5 heads with B, one memory", "5 heads with B, own memories")


class FiveHeads(Experiment):
    name = "5head_attention_experiment"
    title = "One head and five heads"
    section = "4.1, Figure 5head_attention_experiment"
    shows = (
        "Heads that are summed into one memory (the paper's figure): five can be merged into one by adding up "
        "their matrices, so they differ in training speed only. Beside it what Section 4.1 really claims: heads "
        "with memories of their own and with B (GD++), on data whose covariance varies from prompt to prompt."
    )
    trained = (
        "Bank with scalar coefficients (own coefficient 1), full A. paper: Adam on fresh prompts; A, then Gamma "
        "(Appendix D, not with the quick preset): the same steps on A, then as many on Gamma. converged: "
        "least squares for one head; five summed heads are the same class, so their optimum is that model with "
        "every A split at random into five that add up to it. Varying covariance: zero means, variance 0.5, 1 or 2 by prompt, depth 2, trained by Adam "
        "(1,000 steps, 1,000 prompts resampled every 20) with B. Scored on fresh prompts."
    )
    trainings = WITH_PHASES
    x_label = {"log_loss": "layers", "training_log_loss": "Adam steps (depth 4)"}

    def run(self, bench: Workbench) -> Outcome:
        bench, data = bench.only_if_long(A_THEN_GAMMA), bench.data()
        jobs: list[tuple[Any, ...]] = [(bench.trained, MODEL, training, data) for training in bench.trainings]
        if "paper" in bench.trainings:
            jobs += [(five_trained, bench, t) for t in bench.trainings if t != "converged"]
            jobs += [(varying_fit, bench, name) for name in VARYING]
        bench.side_by_side([*jobs, (bench.curves, (), data)])
        found = bench.curves((), data)
        claims = Claims("4.1")
        for training in bench.trainings:
            one = bench.curves([(MODEL, training)], data)[MODEL, training]
            five = five_heads(bench, training)
            found |= {(ONE, training): one, (FIVE, training): five}
            cgd = compare(five, found["CGD", "none"])
            evidence = f"five minus one: {compare(five, one)}; five minus CGD: {cgd}"
            claims.add(
                f"five-heads-beat-one-{slug(training)}",
                f"Five heads have a lower loss than one ({training} training).",
                lower(five, one, 0.02, evidence=evidence),
            )
        rows = curve_rows(found, self.name)
        if "paper" in bench.trainings:
            rows += speed(bench, claims) + varying_covariance(bench, claims)
        return Outcome(rows, claims, ["CGD|none", *keys(bench.pairs(ONE, FIVE)), f"{FIVE}|published"])


def five_heads(bench: Workbench, training: str) -> dict[int, Score]:
    if training != "converged":
        models = {depth: five_trained(bench, training).per_run(depth) for depth in DEPTHS}
    else:
        one = bench.trained(MODEL, training, bench.data())
        models = {depth: split(bench, one.per_run(depth)) for depth in DEPTHS}
    return by_depth({FIVE: models}, DEPTHS, lambda named: bench.scores(named, bench.data()))[FIVE]


@kept
def five_trained(bench: Workbench, training: str = "paper") -> Fit:
    bench.say(f"training {FIVE} ({training})")
    model, key = bench.model(MODEL, heads=HEADS), bench.stream("train", "main")
    phases, adam = PHASES.get(training), bench.optimiser(training)
    return fit(model, bench.data(), key=key, depths=DEPTHS, train=phases, optimiser=adam)


def split(bench: Workbench, model: PerRun) -> PerRun:
    """The same model with five heads: their matrices are random and add up to the one head's."""
    A = model.stacked.reader.A.matrices
    noise = jax.random.normal(jax.random.fold_in(bench.key, 19), (HEADS, *A.shape))
    parts = A / HEADS + 0.3 * (noise - noise.mean(axis=0))
    heads = Heads(tuple(Gradient(Full(part)) for part in parts))
    return PerRun(dataclasses.replace(model.stacked, reader=heads))


def speed(bench: Workbench, claims: Claims) -> list[Row]:
    """The losses of the batches that Adam trained on, step by step, at the largest depth."""
    fits = {ONE: bench.trained(MODEL, "paper", bench.data()), FIVE: five_trained(bench)}
    tables = {n: {r["step"]: np.array(r["log_loss"])[:, -1] for r in one.history} for n, one in fits.items()}
    # The same batches: paired.
    apart = {step: five - tables[ONE][step] for step, five in tables[FIVE].items()}
    first_half = list(apart.values())[: len(apart) // 2]
    claims.test(
        "five-heads-train-faster",
        "Five heads speed up training: after the same number of Adam steps their loss is lower.",
        "depth 4: log loss of the training batch below one head's by two standard errors, at every mark in the first half of training",
        map(under, first_half),
        "five minus one by Adam steps: "
        + "; ".join(f"{step}: {written(each)}" for step, each in apart.items()),
    )
    rows, on = list[Row](), "training prompts"
    for name, table in tables.items():
        for step, each in table.items():
            rows += run_rows(name, "paper", step, each, "training_log_loss", scored_on=on)
    return rows


def varying_covariance(bench: Workbench, claims: Claims) -> list[Row]:
    fits = {name: varying_fit(bench, name).per_run() for name in VARYING}
    found = bench.scores(fits, varying_data(bench), "varying", bench.preset.prompts // 5)
    own = found[VARYING[2]]
    losses = [f"{name}: {score.log_loss:.3f}" for name, score in found.items()]
    gaps = [f"own memories minus {name}: {written(difference(own, found[name]))}" for name in VARYING[:2]]
    claims.test(
        "five-heads-varying-covariance",
        "Heads with memories of their own and with B adapt better to data of varying covariance than one head, at equal training.",
        "depth 2: log loss on the same fresh prompts below one head's by more than 0.02, beyond two standard errors",
        below(own, found[VARYING[0]], 0.02),
        "; ".join(losses + gaps),
    )
    return flatten(score_rows(f"varying covariance: {name}", "paper", {2: s}) for name, s in found.items())


@kept
def varying_data(bench: Workbench) -> PerRun:
    """Three covariances, one for each prompt."""
    turned = np.asarray(rotations(bench.stream("varying"), bench.runs, 5))
    components = ([[0.0] * 5] * 3, [0.5, 1.0, 2.0], [1 / 3] * 3)  # means, variances, weights
    options: dict[str, Any] = {"spectrum": PUBLISHED_SPECTRUM, "weight_mean": False}
    return PerRun([GaussianMixture(*components, CONTEXT, rotation=U, **options) for U in turned])


@kept
def varying_fit(bench: Workbench, name: str) -> Fit:
    """One head, five into one memory, or five with their own, on a mixture of covariances."""
    bench.say(f"training {name} (varying covariance)")
    seeds = jax.random.split(jax.random.fold_in(bench.key, 17), HEADS)
    if name == VARYING[2]:
        model: Any = mixture([bench.model(MODEL, 5, 2, key=seed, covariates=True) for seed in seeds])
    else:
        heads = 1 if name == VARYING[0] else HEADS
        model = bench.model(MODEL, 5, 2, heads=heads, key=seeds[0], covariates=True)
    adam = Adam(steps=bench.preset.adam_steps, resample=20)
    return fit(model, varying_data(bench), key=bench.stream("train varying"), optimiser=adam)
