"""Test-time adaptation: experts that were trained elsewhere, combined by gates fitted on some prompts."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import Array

from lfom.core.problems import Quadratic
from lfom.core.vectors import from_vector, vector_of
from lfom.experiments.fixed_batches import asked, fit_on_sets, scores_on_sets
from lfom.experiments.rows import by_depth
from lfom.experiments.workbench import Optimiser, Workbench
from lfom.methods.memformer import mixture
from lfom.training import Fit, LeastSquares, Score

ADAPTATION = 1_000  # prompts, with the labels of their queries, that gates are fitted on

Heads = Sequence[Sequence[tuple[Fit, int]]]  # of every run, as (fit, run)


def adaptation_prompts(data: Any, key: Any) -> Quadratic:
    """Prompts with one sampled query; runs lead, prompts are last."""
    return asked(data, jax.random.split(key, data.runs), ADAPTATION)


def fit_gates(
    bench: Workbench, experts: Sequence[Fit], prompts: Quadratic, train: Sequence[str] = ("gates",)
) -> Fit:
    """One number per head, the same for all layers and prompts, fitted for every run and depth from
    1 / heads; with train=("gates", "coefficients") also the coefficients of every head's memory."""
    heads = [[(one, run) for one in experts] for run in range(experts[0].runs)]
    return fit_mixtures(bench, heads, prompts, LeastSquares(hold_out=0, passes=(20, 1)), train)


def fit_mixtures(
    bench: Workbench,
    heads: Heads,
    prompts: Quadratic,
    optimiser: Optimiser,
    train: Sequence[str],
    gates: Array | None = None,
) -> Fit:
    """Mixtures of trained heads, fitted to a set of prompts for each run. gates: to begin with, if not
    1 / heads."""
    depths = heads[0][0][0].depths
    whole = [
        mixture([from_vector(one.template, one.vectors[run, at]) for one, run in own], gates)
        for own in heads
        for at in range(len(depths))
    ]
    vectors = np.stack([vector_of(one) for one in whole]).reshape(len(heads), len(depths), -1)
    return fit_on_sets(bench, whole[-1], prompts, optimiser, depths, tuple(train), vectors)


def on_adaptation_prompts(found: Fit, prompts: Quadratic) -> dict[int, Score]:
    """The scores on the very prompts that the gates were fitted on, by depth."""
    methods = {"gated": {depth: found.per_run(depth) for depth in found.depths}}

    def score(named: dict[str, Any]) -> dict[str, Score]:
        return scores_on_sets(named, prompts, [ADAPTATION], found.runs)

    return by_depth(methods, found.depths, score)["gated"]


def together(fits: Sequence[Fit]) -> Fit:
    """All runs of these, one fit after the other."""
    return dataclasses.replace(fits[0], vectors=np.concatenate([one.vectors for one in fits]))
