"""Figure mixture_of_experts_ood: three experts and gates on variances that none was trained on."""

import dataclasses
import math
from typing import Any

from lfom.core.runs import concatenate
from lfom.experiments.experiment import Experiment
from lfom.experiments.gates import adaptation_prompts, fit_gates, on_adaptation_prompts, together
from lfom.experiments.rows import Row, by_depth, published_rows, score_rows, take_runs
from lfom.experiments.shifted import DEPTH, EXPERTS, PLACES, base_model, on_shifts, scaled
from lfom.experiments.statistics import Claims, below, compare, near
from lfom.experiments.workbench import DEPTHS, Outcome, Workbench, keys
from lfom.methods.classical import conjugate_gradient
from lfom.training import Score, evaluate

UNSEEN = (0.5, 1.5, 2.5, 3.5)
RELATIVE, SETTINGS = "relative_log_loss", "settings"
ALL_VARIANCES = (*UNSEEN, *EXPERTS)
ADAPTATION = "adaptation prompts"
ByVariance = dict[tuple[str, float], dict[int, Score]]  # by method and variance, and depth


def on_variances(bench: Workbench) -> ByVariance:
    """Gates fitted on every variance; they (also on the prompts that they were fitted to), each expert alone,
    the expert of the variance itself ("ideal") and CGD scored."""
    trained = base_model(bench)
    experts = {v: together([scaled(trained, v)] * len(ALL_VARIANCES)) for v in EXPERTS}
    ideal = together([scaled(trained, v) for v in ALL_VARIANCES])
    data = concatenate([bench.data(variance=v, weight_variance=v * v) for v in ALL_VARIANCES])
    bench.say("fitting gates (variances)")
    prompts = adaptation_prompts(data, bench.stream("adapt", "variances"))
    gated = fit_gates(bench, list(experts.values()), prompts)
    fits = {"3 heads": gated, **{f"expert {v:g}": one for v, one in experts.items()}, "ideal": ideal}
    methods: dict[str, Any] = {name: {d: one.per_run(d) for d in DEPTHS} for name, one in fits.items()}
    methods["CGD"] = conjugate_gradient(max(DEPTHS))
    bench.say("scoring mixtures (variances)")
    count, key = bench.preset.prompts // 10, bench.stream("score", "variances")
    found = by_depth(methods, DEPTHS, lambda named: evaluate(named, data, prompts=count, key=key))
    found[ADAPTATION] = on_adaptation_prompts(gated, prompts)
    parts = {v: slice(at * bench.runs, (at + 1) * bench.runs) for at, v in enumerate(ALL_VARIANCES)}
    return {
        (name, v): {d: take_runs(score, part) for d, score in scores.items()}
        for name, scores in found.items()
        for v, part in parts.items()
    }


def rows_of(
    curve: str, training: str, scores: dict[int, Score], v: float, scored_on: str = "fresh"
) -> list[Row]:
    """Log losses, and the same relative to the labels' variance."""
    lines, shift = score_rows(curve, training, scores, scored_on), math.log(5 * v * v)
    return lines + [dataclasses.replace(r, measure=RELATIVE, value=r.value - shift) for r in lines]


class UnseenVariances(Experiment):
    name = "mixture_of_experts_ood"
    title = "Mixture of experts on unseen variances"
    section = "4.2, Figure mixture_of_experts_ood"
    shows = (
        "Three heads, one per variance 1, 2 and 3, combined by one gate each that is fitted on prompts of an "
        "unseen variance (0.5, 1.5, 2.5, 3.5) and scored on other, fresh ones; single experts as they are, and "
        "CGD. As in the authors' code w* has covariance v times the inverse of the unscaled covariance, so labels "
        "grow with the variance v: the second panel shows the loss relative to the labels' variance 5 v^2. The third "
        "panel compares at four layers the three settings of adaptation, and what experts have to beat (see the "
        "experiment adaptation), by variance."
    )
    trained = (
        "Experts (converged): bank with scalar coefficients (own coefficient 1), full A, least squares at variance "
        "1; data of variance v is that data scaled, so the expert of v is the same model with A / v (exact "
        "equivariance: predictions and losses are the same), and all share the run's rotation. Gates: one free number per head, shared by layers and prompts, least squares "
        "on 1,000 prompts with the labels of their queries (adaptation prompts), for each depth."
    )
    x_label = dict.fromkeys(("log_loss", RELATIVE), "layers or steps") | {
        SETTINGS: "variance of the covariates"
    }
    y_label = {
        "log_loss": "log of the mean squared error",
        RELATIVE: "log loss relative to the labels' variance",
        SETTINGS: f"the same at {DEPTH} layers",
    }

    def run(self, bench: Workbench) -> Outcome:
        if "converged" not in bench.trainings:
            return Outcome(published_rows(self.name), [])
        found, rows = on_variances(bench), []
        robust, better, against_ideal, against_best = [], [], [], []
        for v in UNSEEN:
            ours, ideal = found["3 heads", v], found["ideal", v]
            singles = {e: found[f"expert {e:g}", v] for e in EXPERTS}
            rows += rows_of(f"variance {v:g}, 3 heads", "converged", ours, v)
            rows += rows_of(f"variance {v:g}, 3 heads", "converged", found[ADAPTATION, v], v, ADAPTATION)
            for e, scores in singles.items():
                rows += rows_of(f"variance {v:g}, expert {e:g} as it is", "converged", scores, v)
            rows += rows_of(f"variance {v:g}, CGD", "none", found["CGD", v], v)
            best = min((scores[4].log_loss, e) for e, scores in singles.items())[1]
            robust += [near(ours[d], ideal[d], 0.1) for d in DEPTHS]
            better += [below(ours[d], singles[best][d]) for d in DEPTHS]
            against_ideal.append(f"variance {v:g}: {compare(ours, ideal)}")
            against_best.append(f"variance {v:g} (expert {best:g}): {compare(ours, singles[best])}")
        for v in EXPERTS:
            rows += rows_of(f"variance {v:g}, 1 head", "converged", found["ideal", v], v)
        shown = sorted((1.0, *UNSEEN))
        rows += on_shifts(bench).rows((PLACES.index(("variance", v)), SETTINGS, v) for v in shown)
        claims = Claims("4.2")
        claims.test(
            "gates-robust-to-unseen-variances",
            "Gates fitted at test time make three experts as good on an unseen variance as an expert trained on it.",
            "log loss on the same fresh prompts at most 0.1 above that of an expert of this very variance, for every unseen variance and depth",
            robust,
            "; ".join(against_ideal),
        )
        claims.test(
            "gates-beat-single-expert",
            "Gates do better on unseen variances than the best single expert as it is.",
            "log loss on the same fresh prompts below that of the expert that is best at depth 4, by two standard errors, per variance and depth",
            better,
            "; ".join(against_best),
        )
        main = keys((f"variance {v:g}, 3 heads", t) for v in UNSEEN for t in ("converged", "published"))
        return Outcome(rows + published_rows(self.name), claims, main)
