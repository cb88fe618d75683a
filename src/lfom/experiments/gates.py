"""Test-time adaptation: experts that were trained elsewhere, combined by gates fitted on some prompts."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from lfom.core.problems import Quadratic
from lfom.core.runs import take
from lfom.core.vectors import from_vector, vector_of
from lfom.experiments.fixed_batches import asked, scores_on_sets
from lfom.experiments.rows import by_depth
from lfom.experiments.workbench import Workbench
from lfom.methods.memformer import mixture
from lfom.training import Fit, LeastSquares, Score, State, fit

ADAPTATION = 1_000  # prompts, with the labels of their queries, that gates are fitted on


def adaptation_prompts(data: Any, key: Any) -> Quadratic:
    """Prompts with one sampled query; runs lead, prompts are last."""
    return asked(data, jax.random.split(key, data.runs), ADAPTATION)


def fit_gates(
    bench: Workbench, experts: Sequence[Fit], prompts: Quadratic, train: Sequence[str] = ("gates",)
) -> Fit:
    """One number per head, the same for all layers and prompts, fitted for every run and depth from
    1 / heads; with train=("gates", "coefficients") also the coefficients of every head's memory."""
    runs, depths = experts[0].vectors.shape[:2]
    whole = [
        mixture([from_vector(one.template, one.vectors[run, at]) for one in experts])
        for run in range(runs)
        for at in range(depths)
    ]
    return fit(
        whole[-1],
        [take(prompts, run) for run in range(runs)],
        key=bench.key,
        depths=experts[0].depths,
        train=tuple(train),
        optimiser=LeastSquares(hold_out=0, passes=(20, 1)),
        start="model",
        resume=State(0, 0, 0, np.stack([vector_of(one) for one in whole]).reshape(runs, depths, -1)),
    )


def on_adaptation_prompts(found: Fit, prompts: Quadratic) -> dict[int, Score]:
    """The scores on the very prompts that the gates were fitted on, by depth."""
    methods = {"gated": {depth: found.per_run(depth) for depth in found.depths}}
    return by_depth(
        methods, found.depths, lambda named: scores_on_sets(named, prompts, [ADAPTATION], found.runs)
    )["gated"]


def together(fits: Sequence[Fit]) -> Fit:
    """All runs of these, one fit after the other."""
    return dataclasses.replace(fits[0], vectors=np.concatenate([one.vectors for one in fits]))
