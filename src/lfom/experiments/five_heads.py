"""Figure 5head_attention_experiment: what five heads add to one."""

import dataclasses
from typing import Any

import jax
import numpy as np

from lfom.core.preconditioners import Full
from lfom.core.readers import Gradient, Heads
from lfom.experiments.rows import baseline_rows, flatten, published_rows, score_rows
from lfom.experiments.statistics import below, compare, gap, verdict
from lfom.experiments.workbench import CONTEXT, DEPTHS, MODELS, Outcome, Workbench, rotations
from lfom.methods.memformer import memformer, mixture
from lfom.prompts.distributions import PUBLISHED_SPECTRUM, GaussianMixture
from lfom.report.results import Claim, Row
from lfom.training import Adam, Fit, PerRun, Score, fit

TITLE = "One head and five heads"
SECTION = "4.1, Figure 5head_attention_experiment"
SHOWS = (
    "Heads that are summed into one memory (the paper's figure): five can be merged into one by adding up "
    "their matrices, so they differ in training speed only. Beside it what Section 4.1 really claims: heads "
    "with memories of their own and with B (GD++), on data whose covariance varies from prompt to prompt."
)
TRAINED = (
    "Bank with scalar coefficients (own coefficient 1), full A. paper: Adam on fresh prompts. converged: "
    "least squares for one head; five summed heads are the same class, so their optimum is that model with "
    "every A split at random into five that add up to it. Varying covariance: zero means, variance 0.5, 1 or 2 by prompt, depth 2, trained by Adam "
    "(1,000 steps, 1,000 prompts resampled every 20) with B. Scored on fresh prompts."
)
X_LABEL = {"log_loss": "layers", "training_log_loss": "Adam steps (depth 4)"}
ONE, FIVE, HEADS = "Memformer, own 1", "Memformer, 5 heads", 5
VARYING = ("one head with B", "5 heads with B, one memory", "5 heads with B, own memories")


def run(bench: Workbench) -> Outcome:
    data = bench.data()
    jobs: list[tuple[Any, ...]] = [(bench.trained, ONE, training, data) for training in bench.trainings]
    if "paper" in bench.trainings:
        jobs += [(five_trained, bench), *((varying_fit, bench, name) for name in VARYING)]
    bench.side_by_side([*jobs, (bench.baselines, data)])
    table = bench.baselines(data)
    rows = baseline_rows(table) + published_rows("5head_attention_experiment")
    claims = []
    for training in bench.trainings:
        one, five = bench.fit_scores(ONE, training, data), five_heads(bench, training)
        rows += score_rows("Memformer, 1 head", training, one) + score_rows(FIVE, training, five)
        claims.append(
            Claim(
                f"five-heads-beat-one-{training}",
                f"Five heads have a lower loss than one ({training} training).",
                "4.1",
                "difference of log loss on the same fresh prompts below -0.02 by two standard errors, per depth",
                verdict(*(below(five[d], one[d], 0.02) for d in DEPTHS)),
                f"five minus one: {compare(five, one)}; five minus CGD: {compare(five, table['CGD'])}",
            )
        )
    if "paper" in bench.trainings:
        more, claim = speed(bench)
        rows += more
        claims.append(claim)
        found = varying_covariance(bench)
        rows += flatten(
            score_rows(f"varying covariance: {name}", "paper", {2: s}) for name, s in found.items()
        )
        one_head, shared, own = (found[name] for name in VARYING)
        evidence = []
        for name, other in ((VARYING[0], one_head), (VARYING[1], shared)):
            mean, error = gap(own, other)
            evidence.append(f"own memories minus {name}: {mean:+.3f} ± {error:.3f}")
        losses = "; ".join(f"{name}: {score.log_loss:.3f}" for name, score in found.items())
        claims.append(
            Claim(
                "five-heads-varying-covariance",
                "Heads with memories of their own and with B adapt better to data of varying covariance than "
                "one head, at equal training.",
                "4.1",
                "depth 2: log loss on the same fresh prompts below one head's by more than 0.02, beyond two "
                "standard errors",
                verdict(below(own, one_head, 0.02)),
                f"{losses}; {'; '.join(evidence)}",
            )
        )
    main = ["CGD|none", *(f"{c}|{t}" for t in bench.trainings for c in ("Memformer, 1 head", FIVE))]
    return Outcome(rows, claims, [*main, f"{FIVE}|published"])


def five_heads(bench: Workbench, training: str) -> dict[int, Score]:
    if training == "paper":
        trained = five_trained(bench)
        models = {depth: trained.per_run(depth) for depth in DEPTHS}
    else:
        one = bench.trained(ONE, training, bench.data())
        models = {depth: split(bench, one.per_run(depth)) for depth in DEPTHS}
    names = {depth: f"{FIVE}|{training}|{depth}" for depth in DEPTHS}
    scores = bench.scores({names[d]: models[d] for d in DEPTHS}, bench.data())
    return {depth: scores[name] for depth, name in names.items()}


def five_trained(bench: Workbench) -> Fit:
    def make() -> Fit:
        bench.say(f"training {FIVE} (paper)")
        model = memformer(5, max(DEPTHS), heads=HEADS, key=jax.random.fold_in(bench.key, 11), **MODELS[ONE])
        optimiser = bench.optimiser("paper")
        return fit(model, bench.data(), key=bench.stream("train", "main"), depths=DEPTHS, optimiser=optimiser)

    return bench.keep(("five heads", "paper"), make)


def split(bench: Workbench, model: PerRun) -> PerRun:
    """The same model with five heads: their matrices are random and add up to the one head's."""
    A = model.stacked.reader.A.matrices
    noise = jax.random.normal(jax.random.fold_in(bench.key, 19), (HEADS, *A.shape))
    parts = A / HEADS + 0.3 * (noise - noise.mean(axis=0))
    heads = Heads(tuple(Gradient(Full(part)) for part in parts))
    return PerRun(dataclasses.replace(model.stacked, reader=heads))


def speed(bench: Workbench) -> tuple[list[Row], Claim]:
    """The losses of the batches that Adam trained on, step by step, at the largest depth."""
    curves = {"Memformer, 1 head": bench.trained(ONE, "paper", bench.data()), FIVE: five_trained(bench)}
    tables = {n: np.array([np.array(r["log_loss"])[:, -1] for r in one.history]) for n, one in curves.items()}
    steps = [record["step"] for record in curves[FIVE].history]
    rows = [
        Row(name, "paper", step, float(value), run, "training_log_loss", scored_on="training prompts")
        for name, table in tables.items()
        for step, line in zip(steps, table, strict=True)
        for run, value in enumerate(line)
    ]
    one, five = tables.values()
    difference = five - one  # the same batches, so paired
    mean = difference.mean(axis=1)
    error = difference.std(axis=1, ddof=1) / np.sqrt(bench.runs) if bench.runs > 1 else np.zeros_like(mean)
    half = len(steps) // 2
    listed = "; ".join(f"{s}: {m:+.3f} ± {e:.3f}" for s, m, e in zip(steps, mean, error, strict=True))
    claim = Claim(
        "five-heads-train-faster",
        "Five heads speed up training: after the same number of Adam steps their loss is lower.",
        "4.1",
        "depth 4: log loss of the training batch below one head's by two standard errors, at every mark in the "
        "first half of training",
        verdict(*(bool(m + 2 * e < 0) for m, e in zip(mean[:half], error[:half], strict=True))),
        f"five minus one by Adam steps: {listed}",
    )
    return rows, claim


def varying_data(bench: Workbench) -> PerRun:
    """Three covariances, one for each prompt."""

    def make() -> PerRun:
        keys = jax.random.split(bench.stream("varying"), bench.runs)
        return PerRun(
            [
                GaussianMixture(
                    [[0.0] * 5] * 3,
                    [0.5, 1.0, 2.0],
                    [1 / 3] * 3,
                    CONTEXT,
                    spectrum=PUBLISHED_SPECTRUM,
                    rotation=rotation,
                    weight_mean=False,
                )
                for rotation in np.asarray(rotations(keys, 5))
            ]
        )

    return bench.keep("varying covariance", make)


def varying_fit(bench: Workbench, name: str) -> Fit:
    """One head, five into one memory, or five with their own, on a mixture of covariances."""

    def make() -> Fit:
        bench.say(f"training {name} (varying covariance)")
        options: dict[str, Any] = {**MODELS[ONE], "covariates": True}
        seeds = jax.random.split(jax.random.fold_in(bench.key, 17), HEADS)
        if name == VARYING[0]:
            model: Any = memformer(5, 2, key=seeds[0], **options)
        elif name == VARYING[1]:
            model = memformer(5, 2, heads=HEADS, key=seeds[0], **options)
        else:
            model = mixture([memformer(5, 2, key=seed, **options) for seed in seeds])
        adam = Adam(steps=bench.preset.adam_steps, resample=20)
        return fit(model, varying_data(bench), key=bench.stream("train varying"), optimiser=adam)

    return bench.keep(("varying covariance", name), make)


def varying_covariance(bench: Workbench) -> dict[str, Score]:
    trained = {name: varying_fit(bench, name).per_run() for name in VARYING}
    return bench.scores(trained, varying_data(bench), "varying", bench.preset.prompts // 5)
