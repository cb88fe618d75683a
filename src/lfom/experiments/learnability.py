"""Theorem thm:lfom_incontext_learnable: how fast a learned LFOM generalises with more training prompts."""

import numpy as np

from lfom.experiments.experiment import Experiment
from lfom.experiments.fixed_batches import ISOTROPIC, both_rows, learned_lfom
from lfom.experiments.rows import run_rows, score_rows
from lfom.experiments.statistics import Claims, listed, mean_error, under, written
from lfom.experiments.workbench import Outcome, Workbench

DEPTH = 3
GROUPS = ((10, 30, 100, 300, 1000, 3000), (10_000, 30_000, 100_000))


def slopes(sizes: list[int], gaps: np.ndarray) -> np.ndarray:
    """The slope of log |gap| against log N, for every run; gaps (sizes, runs)."""
    return np.polyfit(np.log(sizes), np.log(np.maximum(np.abs(gaps), 1e-12)), 1)[0]


class Learnability(Experiment):
    name = "learnability"
    title = "Learnability of first-order methods"
    section = "5, Theorem thm:lfom_incontext_learnable"
    shows = (
        "A first-order method of depth 3 with diagonal coefficients, learned from 10 to 100,000 prompts: its loss "
        "on them and on fresh prompts, the gap between the two, and the excess over the best method of the class."
    )
    trained = (
        "Least squares on the fixed set itself (converged): 30 coefficients, isotropic data, d = 5, n = 20. The "
        "best method of the class is the exact optimum; all are scored on the same fresh prompts. gap: fresh "
        "minus training loss. excess: fresh loss minus the optimum's, which is what the theorem bounds."
    )
    x_label = "training prompts"
    x_scale = "log"

    def run(self, bench: Workbench) -> Outcome:
        if "converged" not in bench.trainings:  # the theorem is about the minimiser
            return Outcome([], [])
        bench.data(ISOTROPIC)
        arguments = [(bench, "converged", group, (DEPTH,), 12, bench.preset.prompts) for group in GROUPS]
        bench.side_by_side([(learned_lfom, *one) for one in arguments])
        found = [learned_lfom(*one).at_depth(DEPTH) for one in arguments]
        own, fresh, best = ({size: s for part in found for size, s in part[i].items()} for i in (0, 1, 4))
        rows = both_rows("learned LFOM", "converged", own, fresh) + score_rows("exact optimum", "none", best)
        sizes = list(own)
        gaps = np.stack([fresh[size].mean[:, -1] - own[size].mean[:, -1] for size in sizes])
        excess = np.stack([fresh[size].mean[:, -1] - best[size].mean[:, -1] for size in sizes])
        for measure, table in (("gap", gaps), ("excess", excess)):
            for size, line in zip(sizes, table, strict=True):
                prompts = fresh[size].prompts
                rows += run_rows("learned LFOM", "converged", size, line, measure, prompts=prompts)
        enough = [i for i, size in enumerate(sizes) if size >= 100]  # three times the parameters and more
        many = [sizes[i] for i in enough]
        gap_rate, excess_rate = slopes(many, gaps[enough]), slopes(many, excess[enough])

        def by_size(table: np.ndarray) -> str:
            return listed(dict(zip(sizes, table, strict=True)), lambda line: written(line, ".4f"), "N={}: {}")

        smallest = float(best[sizes[-1]].mean[:, -1].mean())
        last, error = mean_error(excess[-1])
        claims = Claims("5")
        claims.test(
            "learned-lfom-gap-vanishes",
            "The gap between fresh and training loss of a learned LFOM goes to 0 as the prompts grow.",
            "at 100,000 prompts the mean size of the gap over runs is below 2 % of the optimum's loss, and it "
            "falls with a slope below 0 by two standard errors",
            (np.abs(gaps[-1]).mean() < 0.02 * smallest, under(gap_rate)),
            f"{by_size(gaps)}; slope of log gap for N >= 100: {written(gap_rate, '.4f')}",
        )
        claims.test(
            "learned-lfom-excess-rate",
            "The learned LFOM approaches the best of its class (epsilon(N) goes to 0); ours: at a rate near "
            "1 / N, faster than the 1 / sqrt(N) of a uniform bound.",
            "slope of log excess loss against log N, N >= 100, below -0.75 by two standard errors, and excess "
            "at 100,000 prompts below 1 % of the optimum's loss",
            (under(excess_rate, 0.75), last + 2 * error < 0.01 * smallest),
            f"slope {written(excess_rate, '.4f')}; excess {by_size(excess)}",
        )
        return Outcome(rows, claims, ["learned LFOM|converged", "exact optimum|none"])
