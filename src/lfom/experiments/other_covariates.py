"""The main figure on the published code's other covariates: on the unit sphere, and with gamma lengths."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from lfom.core.runs import PerRun
from lfom.experiments import lfom_nonisotropic
from lfom.experiments.experiment import Experiment
from lfom.experiments.rows import score_rows
from lfom.experiments.workbench import TRAININGS, Outcome, Workbench
from lfom.prompts.directions import GammaLengths, OnSphere
from lfom.report.results import Claim

COVARIATES: dict[str, Callable[..., Any]] = {"sphere": OnSphere, "gamma": GammaLengths}
WORDS = {"sphere": "on the unit sphere", "gamma": "of gamma lengths"}
MEASURES = {"sphere": "log_loss", "gamma": "gamma_lengths"}
QUICK = {"converged": TRAININGS["converged"]}
SHOWN = ("CGD", "NAG, tuned", "Momentum GD, tuned", "sampled optimum", "Memformer", "Linear Transformer")


def covariates(bench: Workbench, kind: str) -> PerRun:
    """With the spectrum and the rotations of the main figure; with the quick preset, of two runs."""
    each = bench.data().each()[: bench.runs if bench.preset.long else 2]
    return PerRun([COVARIATES[kind](one.spectrum, one.context, rotation=one.rotation) for one in each])


class OtherCovariates(Experiment):
    name = "other_covariates"
    title = "The main figure on other covariates"
    section = "3.3 (published code)"
    shows = (
        "The published code can draw covariates uniformly on the unit sphere, and as unit directions times the root of "
        "a gamma variable (shape 0.1, scale 10), each then multiplied by the root of the covariance. Here is the figure "
        "lfom_nonisotropic on both. Whitened, both are rotation invariant as normal covariates are, so that the best A_l "
        "are multiples of one matrix; the optimum of the class is computed from sampled moments. With the quick preset the "
        "sphere alone, at convergence, in two runs."
    )
    trained = (
        "As in lfom_nonisotropic. w* has the inverse of E[x x^T] as covariance, so that predicting 0 scores log 5 as in all "
        "figures (the published code has w* ~ N(0, S^-1), which lowers every log loss by the same log 5)."
    )
    y_label = {
        "log_loss": "log of the mean squared error, unit sphere",
        "gamma_lengths": "the same, gamma lengths",
    }

    def run(self, bench: Workbench) -> Outcome:
        rows, claims = [], list[Claim]()
        long, prompts = bench.preset.long, None
        if not long:
            bench, prompts = bench.with_trainings(QUICK), bench.preset.prompts // 4
        for kind in COVARIATES if long else ("sphere",):
            data = covariates(bench, kind)
            found, said = lfom_nonisotropic.compared(bench, data, kind, prompts, variants=long)
            for pair, scores in found.items():
                rows += score_rows(*pair, scores, measure=MEASURES[kind])
            for one in said:
                text = f"On covariates {WORDS[kind]}: {one.claim}"
                claims.append(replace(one, id=f"{kind}-{one.id}", claim=text))
        main = [f"{curve}|{training}" for curve in SHOWN for training in ("none", *bench.trainings)]
        return Outcome(rows, claims, main)
