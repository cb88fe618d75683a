"""What the figures on small batches share: a Memformer with scalar memory trained on B prompts."""

import dataclasses

import jax
import numpy as np

from lfom.core.arrays import as_array
from lfom.core.preconditioners import Full
from lfom.core.readers import Gradient
from lfom.experiments.fixed_batches import OnSets, by_depth, lower_in_all_runs, train_on_sets
from lfom.experiments.rows import baseline_rows, published_rows, score_rows
from lfom.experiments.statistics import below, compare, values, verdict
from lfom.experiments.workbench import DEPTHS, MODELS, Outcome, Workbench
from lfom.methods.memformer import memformer
from lfom.report.results import Claim
from lfom.training import Adam

SMALL, LARGE = (1, 10), (50, 100, 1000)


def memformers(bench: Workbench, training: str, sizes: tuple[int, ...], depths: tuple[int, ...]) -> OnSets:
    """The Memformer of the figures, trained on sets of the main data."""

    def make() -> OnSets:
        data, deepest = bench.data(), max(depths)
        model = memformer(5, deepest, key=jax.random.fold_in(bench.key, 11), **MODELS["Memformer, own 1"])
        if training == "converged" and sizes == LARGE:  # least squares: from steps of a sensible size
            size = float(1 / np.mean(data.stacked.spectrum))
            steps = size * (1 + 0.6 * np.cos(np.pi * (np.arange(deepest) + 0.5) / deepest))
            matrices = (steps[:, None, None] * np.eye(5)).astype(np.float32)
            model = dataclasses.replace(model, reader=Gradient(Full(as_array(matrices))))
        # One prompt leaves so much open that damped steps stall: Adam to the end fits it reliably.
        longer = Adam(steps=10_000, resample=1_000, schedule="cosine") if sizes == SMALL else None
        return train_on_sets(bench, model, data, sizes, training, f"main {max(sizes)}", depths, longer)

    return bench.keep(("memformers on sets", training, sizes, depths), make)


def small_batch(bench: Workbench, size: int, label: str) -> Outcome:
    """The figure of one batch size."""
    rows = baseline_rows(bench.baselines(bench.data())) + published_rows(label)
    claims = []
    for number, training in enumerate(bench.trainings):
        found = memformers(bench, training, SMALL, DEPTHS)
        own, fresh = by_depth(found.training, size), by_depth(found.fresh, size)
        cgd, cgd_fresh = by_depth(found.cgd_training, size), by_depth(found.cgd_fresh, size)
        if not number:
            rows += score_rows("CGD, same prompts", "none", cgd, "training prompts")
        rows += score_rows("Memformer", training, own, "training prompts")
        rows += score_rows("Memformer", training, fresh)
        prompts = "1 prompt" if size == 1 else f"{size} prompts"
        claims.append(
            Claim(
                f"batch-{size}-beats-cgd-on-its-own-prompts-{training}",
                f"A Memformer trained on {prompts} ({training} training) beats CGD on those same prompts.",
                "3.4",
                "lower loss on the training prompts in every run, per depth",
                verdict(*(lower_in_all_runs(own[d], cgd[d]) for d in own)),
                f"{values(own)}; against CGD {compare(own, cgd)} (-60 stands for zero to rounding)",
            )
        )
        claims.append(
            Claim(
                f"batch-{size}-beats-cgd-on-fresh-prompts-{training}",
                f"A Memformer trained on {prompts} ({training} training) beats CGD on fresh prompts.",
                "3.4",
                "difference of log loss on the same fresh prompts below 0 by two standard errors, per depth",
                verdict(*(below(fresh[d], cgd_fresh[d]) for d in fresh)),
                f"{values(fresh)}; against CGD {compare(fresh, cgd_fresh)} (predicting 0 scores 1.609)",
            )
        )
    main = ["CGD|none", "CGD, same prompts|none", *(f"Memformer|{training}" for training in bench.trainings)]
    return Outcome(rows, claims, [*main, "Memformer|published"] if published_rows(label) else main)
