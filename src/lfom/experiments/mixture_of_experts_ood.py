"""Figure mixture_of_experts_ood: three experts and gates on variances that none was trained on."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from lfom.core.runs import concatenate
from lfom.experiments.gates import (
    adaptation_prompts,
    fit_gates,
    on_adaptation_prompts,
    repeat_runs,
    take_runs,
)
from lfom.experiments.rows import at_step, published_rows, score_rows
from lfom.experiments.shifted import CLASSICAL, DEPTH, EXPERTS, PLACES, on_shifts, scaled
from lfom.experiments.statistics import below, compare, near, verdict
from lfom.experiments.workbench import DEPTHS, Outcome, Workbench
from lfom.methods.classical import conjugate_gradient
from lfom.report.results import Claim, Row
from lfom.training import Score, evaluate

TITLE = "Mixture of experts on unseen variances"
SECTION = "4.2, Figure mixture_of_experts_ood"
SHOWS = (
    "Three heads, one per variance 1, 2 and 3, combined by one gate each that is fitted on prompts of an "
    "unseen variance (0.5, 1.5, 2.5, 3.5) and scored on other, fresh ones; single experts as they are, and "
    "CGD. As in the authors' code w* has covariance v times the inverse of the unscaled covariance, so labels "
    "grow with the variance v: the second panel shows the loss relative to the labels' variance 5 v^2. The third "
    "panel compares at four layers the three settings of adaptation, and what experts have to beat (see the "
    "experiment adaptation), by variance."
)
TRAINED = (
    "Experts (converged): bank with scalar coefficients (own coefficient 1), full A, least squares at variance "
    "1; data of variance v is that data scaled, so the expert of v is the same model with A / v (exact "
    "equivariance: predictions and losses are the same), and all share the run's rotation. Gates: one free number per head, shared by layers and prompts, least squares "
    "on 1,000 prompts with the labels of their queries (adaptation prompts), for each depth."
)
UNSEEN = (0.5, 1.5, 2.5, 3.5)
RELATIVE, SETTINGS = "relative_log_loss", "settings"
X_LABEL = {"log_loss": "layers or steps", RELATIVE: "layers or steps", SETTINGS: "variance of the covariates"}
Y_LABEL = {
    "log_loss": "log of the mean squared error",
    RELATIVE: "log loss relative to the labels' variance",
    SETTINGS: f"the same at {DEPTH} layers",
}


ALL_VARIANCES = (*UNSEEN, *EXPERTS)


@dataclass(frozen=True)
class OnVariances:
    """Scores of every method by variance: the runs of the first variance, then those of the next."""

    fresh: dict[str, Score]
    adaptation: dict[int, Score]  # of the gated model, on the prompts that its gates were fitted to
    runs: int

    def _runs_of(self, v: float) -> slice:
        at = ALL_VARIANCES.index(v) * self.runs
        return slice(at, at + self.runs)

    def of(self, name: str, v: float) -> dict[int, Score]:
        """A method on fresh prompts of a variance, by depth."""
        names = {d: name if name in self.fresh else f"{name}|{d}" for d in DEPTHS}
        return {d: at_step(take_runs(self.fresh[names[d]], self._runs_of(v)), d) for d in DEPTHS}

    def on_adaptation_prompts(self, v: float) -> dict[int, Score]:
        return {d: take_runs(score, self._runs_of(v)) for d, score in self.adaptation.items()}


def on_variances(bench: Workbench) -> OnVariances:
    """Gates fitted on every variance; they, each expert alone, the expert of the variance itself
    ("ideal") and CGD scored."""
    trained = bench.trained("Memformer, own 1", "converged", bench.data())
    experts = {v: repeat_runs(scaled(trained, v), len(ALL_VARIANCES)) for v in EXPERTS}
    of_each = np.concatenate([scaled(trained, v).vectors for v in ALL_VARIANCES])
    ideal = dataclasses.replace(trained, vectors=of_each)
    data = concatenate([bench.data(variance=v, weight_variance=v * v) for v in ALL_VARIANCES])
    bench.say("fitting gates (variances)")
    prompts = adaptation_prompts(data, bench.stream("adapt", "variances"))
    gated = fit_gates(bench, list(experts.values()), prompts)
    methods: dict[str, Any] = {f"3 heads|{d}": gated.per_run(d) for d in DEPTHS}
    methods |= {f"expert {v:g}|{d}": experts[v].per_run(d) for v in EXPERTS for d in DEPTHS}
    methods |= {f"ideal|{d}": ideal.per_run(d) for d in DEPTHS}
    methods["CGD"] = conjugate_gradient(max(DEPTHS))
    bench.say("scoring mixtures (variances)")
    found = evaluate(
        methods, data, prompts=bench.preset.prompts // 10, key=bench.stream("score", "variances")
    )
    return OnVariances(found, on_adaptation_prompts(gated, prompts), bench.runs)


def rows_of(
    curve: str, training: str, scores: dict[int, Score], v: float, scored_on: str = "fresh"
) -> list[Row]:
    """Log losses, and the same relative to the labels' variance."""
    lines, shift = score_rows(curve, training, scores, scored_on), math.log(5 * v * v)
    return lines + [dataclasses.replace(r, measure=RELATIVE, value=r.value - shift) for r in lines]


def run(bench: Workbench) -> Outcome:
    if "converged" not in bench.trainings:
        return Outcome(published_rows("mixture_of_experts_ood"), [])
    found, rows = on_variances(bench), []
    robust, better, against_ideal, against_best = [], [], [], []
    for v in UNSEEN:
        ours, ideal = found.of("3 heads", v), found.of("ideal", v)
        singles = {e: found.of(f"expert {e:g}", v) for e in EXPERTS}
        name, adaptation = f"variance {v:g}, 3 heads", found.on_adaptation_prompts(v)
        rows += rows_of(name, "converged", ours, v)
        rows += rows_of(name, "converged", adaptation, v, "adaptation prompts")
        for e, scores in singles.items():
            rows += rows_of(f"variance {v:g}, expert {e:g} as it is", "converged", scores, v)
        rows += rows_of(f"variance {v:g}, CGD", "none", found.of("CGD", v), v)
        best = min((scores[4].log_loss, e) for e, scores in singles.items())[1]
        robust += [near(ours[d], ideal[d], 0.1) for d in DEPTHS]
        better += [below(ours[d], singles[best][d]) for d in DEPTHS]
        against_ideal.append(f"variance {v:g}: {compare(ours, ideal)}")
        against_best.append(f"variance {v:g} (expert {best:g}): {compare(ours, singles[best])}")
    for v in EXPERTS:
        rows += rows_of(f"variance {v:g}, 1 head", "converged", found.of("ideal", v), v)
    rows += setting_rows(bench) + published_rows("mixture_of_experts_ood")
    claims = [
        Claim(
            "gates-robust-to-unseen-variances",
            "Gates fitted at test time make three experts as good on an unseen variance as an expert "
            "trained on it.",
            "4.2",
            "log loss on the same fresh prompts at most 0.1 above that of an expert of this very variance, "
            "for every unseen variance and depth",
            verdict(*robust),
            "; ".join(against_ideal),
        ),
        Claim(
            "gates-beat-single-expert",
            "Gates do better on unseen variances than the best single expert as it is.",
            "4.2",
            "log loss on the same fresh prompts below that of the expert that is best at depth 4, by two standard "
            "errors, per variance and depth",
            verdict(*better),
            "; ".join(against_best),
        ),
    ]
    main = [f"variance {v:g}, 3 heads|{t}" for v in UNSEEN for t in ("converged", "published")]
    return Outcome(rows, claims, main)


def setting_rows(bench: Workbench) -> list[Row]:
    """Every setting of adaptation and every rival on the unseen variances, and on variance 1."""
    wide = on_shifts(bench)
    return [
        Row(
            name,
            "none" if name in CLASSICAL else "converged",
            v,
            float(value),
            r,
            SETTINGS,
            prompts=wide.prompts,
        )
        for name, values in wide.table.items()
        for v in sorted((1.0, *UNSEEN))
        for r, value in enumerate(values[PLACES.index(("variance", v))])
    ]
