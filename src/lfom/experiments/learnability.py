"""Theorem thm:lfom_incontext_learnable: how fast a learned LFOM generalises with more training prompts."""

import math

import numpy as np

from lfom.experiments.fixed_batches import by_size
from lfom.experiments.learned_lfom import ISOTROPIC, learned_lfom
from lfom.experiments.rows import score_rows
from lfom.experiments.statistics import verdict
from lfom.experiments.workbench import Outcome, Workbench
from lfom.report.results import Claim, Row
from lfom.training import Score

TITLE = "Learnability of first-order methods"
SECTION = "5, Theorem thm:lfom_incontext_learnable"
SHOWS = (
    "A first-order method of depth 3 with diagonal coefficients, learned from 10 to 100,000 prompts: its loss "
    "on them and on fresh prompts, the gap between the two, and the excess over the best method of the class."
)
TRAINED = (
    "Least squares on the fixed set itself (converged): 30 coefficients, isotropic data, d = 5, n = 20. The "
    "best method of the class is the exact optimum; all are scored on the same fresh prompts. gap: fresh "
    "minus training loss. excess: fresh loss minus the optimum's, which is what the theorem bounds."
)
X_LABEL = "training prompts"
X_SCALE = "log"
DEPTH = 3
GROUPS = ((10, 30, 100, 300, 1000, 3000), (10_000, 30_000, 100_000))


def slopes(sizes: list[int], gaps: np.ndarray) -> np.ndarray:
    """The slope of log |gap| against log N, for every run; gaps (sizes, runs)."""
    return np.polyfit(np.log(sizes), np.log(np.maximum(np.abs(gaps), 1e-12)), 1)[0]


def error(values: np.ndarray) -> float:
    """The standard error over runs; 0 for one run."""
    return float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else 0.0


def describe(values: np.ndarray) -> str:
    return f"{values.mean():.4f} ± {error(values):.4f}"


def run(bench: Workbench) -> Outcome:
    if "converged" not in bench.trainings:  # the theorem is about the minimiser
        return Outcome([], [])
    own: dict[int, Score] = {}
    fresh: dict[int, Score] = {}
    best: dict[int, Score] = {}
    bench.data(ISOTROPIC)
    arguments = [(bench, "converged", group, (DEPTH,), 12, bench.preset.prompts) for group in GROUPS]
    bench.side_by_side([(learned_lfom, *one) for one in arguments])
    for one in arguments:
        found = learned_lfom(*one)
        own |= by_size(found.training, DEPTH)
        fresh |= by_size(found.fresh, DEPTH)
        best |= by_size(found.optimum_fresh, DEPTH)
    rows = score_rows("learned LFOM", "converged", own, "training prompts")
    rows += score_rows("learned LFOM", "converged", fresh) + score_rows("exact optimum", "none", best)
    sizes = list(own)
    gaps = np.stack([fresh[size].mean[:, -1] - own[size].mean[:, -1] for size in sizes])
    excess = np.stack([fresh[size].mean[:, -1] - best[size].mean[:, -1] for size in sizes])
    for measure, table in (("gap", gaps), ("excess", excess)):
        rows += [
            Row("learned LFOM", "converged", size, float(value), run, measure, prompts=fresh[size].prompts)
            for size, line in zip(sizes, table, strict=True)
            for run, value in enumerate(line)
        ]
    enough = [i for i, size in enumerate(sizes) if size >= 100]  # three times the parameters and more
    chosen = [sizes[i] for i in enough]
    rates = {name: slopes(chosen, table[enough]) for name, table in (("gap", gaps), ("excess", excess))}

    def listed(table: np.ndarray) -> str:
        return "; ".join(f"N={size}: {describe(line)}" for size, line in zip(sizes, table, strict=True))

    smallest = float(best[sizes[-1]].mean[:, -1].mean())
    claims = [
        Claim(
            "learned-lfom-gap-vanishes",
            "The gap between fresh and training loss of a learned LFOM goes to 0 as the prompts grow.",
            "5",
            "at 100,000 prompts the mean size of the gap over runs is below 2 % of the optimum's loss, and it "
            "falls with a slope below 0 by two standard errors",
            verdict(
                bool(np.abs(gaps[-1]).mean() < 0.02 * smallest),
                bool(rates["gap"].mean() + 2 * error(rates["gap"]) < 0),
            ),
            f"{listed(gaps)}; slope of log gap for N >= 100: {describe(rates['gap'])}",
        ),
        Claim(
            "learned-lfom-excess-rate",
            "The learned LFOM approaches the best of its class (epsilon(N) goes to 0); ours: at a rate near "
            "1 / N, faster than the 1 / sqrt(N) of a uniform bound.",
            "5",
            "slope of log excess loss against log N, N >= 100, below -0.75 by two standard errors, and excess "
            "at 100,000 prompts below 1 % of the optimum's loss",
            verdict(
                bool(rates["excess"].mean() + 2 * error(rates["excess"]) < -0.75),
                bool(excess[-1].mean() + 2 * error(excess[-1]) < 0.01 * smallest),
            ),
            f"slope {describe(rates['excess'])}; excess {listed(excess)}",
        ),
    ]
    return Outcome(rows, claims, ["learned LFOM|converged", "exact optimum|none"])
