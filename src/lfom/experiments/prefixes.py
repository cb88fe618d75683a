"""Error after every number of examples, for models trained at one length and over all, also where prompts are shifted."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from lfom.core.compiler import jit_draws
from lfom.core.runs import PerRun
from lfom.experiments.experiment import Experiment
from lfom.experiments.rows import flatten
from lfom.experiments.statistics import Claims, listed
from lfom.experiments.workbench import Outcome, Workbench, kept
from lfom.methods.classical import conjugate_gradient, gradient_descent
from lfom.methods.memformer import memformer
from lfom.prompts.distributions import Distribution, LinearRegression
from lfom.prompts.lengths import AnyLength
from lfom.prompts.queries import OneOrthant, OrthogonalQuery, RepeatedQuery
from lfom.report.results import FLOOR, Row
from lfom.training import LeastSquares, PrefixScore, evaluate
from lfom.training.tuning import tune

D, N, DEPTH = 20, 40, 4
RUNS, PROMPTS = {"quick": 2, "full": 5}, {"quick": 4_000, "full": 50_000}  # prompts of each run
SHIFTED = {"quick": 2_000, "full": 50_000}  # the same of a shift
AT, OVER = "40 examples", "1 to 40"
ZERO = 1e-6  # of the error of predicting 0: the labels are rounded to float32
LISTED = (1, 2, 5, 10, 19, 20, 30, 40)
MODELS: dict[str, dict[str, Any]] = {
    "Linear Transformer": {"memory": "none"},
    "Memformer": {},
    "Memformer, normalised": {"normalised": True},
}
TRAINED = {AT: ("Linear Transformer", "Memformer"), OVER: ("Memformer", "Memformer, normalised")}
SHIFTS = {
    "orthants": "query in the opposite orthant",
    "orthogonal": "orthogonal query",
    "repeated": "query among the examples",
}
Pair = tuple[str, str]  # curve, training
Scores = dict[Pair, PrefixScore]


class Prefixes(Experiment):
    name = "prefixes"
    title = "Error after every number of examples"
    section = "(setting of Garg et al., 2022)"
    shows = (
        "Isotropic covariates, d = 20, w* ~ N(0, I), no noise, 1 to 40 examples; models of four layers with A_l = a_l I, one "
        "trained on prompts of 40 examples, one on prompts of 1 to 40. Beside them gradient descent tuned for four steps at 40 "
        "examples, four steps of conjugate gradients, ridge regression and the Bayes predictor. Then the same models with all "
        "examples in one orthant and the query in the opposite one, with a query orthogonal to the examples (1 to 19), and "
        "with a query that is one of them."
    )
    trained = (
        "By least squares, the query averaged out: with 40 examples in each prompt, or with a number of them that is uniform "
        "between 1 and 40. normalised: every prompt divided by the mean eigenvalue of its own Gram matrix. Errors are "
        "divided by that of predicting 0 on the same prompts; below 1e-6 of it they are zero to rounding."
    )
    x_label = "examples"
    y_label = {
        "one_length": "log10 of error / predicting 0, trained at 40",
        "log_loss": "the same, trained over 1 to 40",
        **{shift: f"the same, {words}" for shift, words in SHIFTS.items()},
    }
    trainings = {
        AT: lambda preset, model, d: LeastSquares(2_000, int(4e3 * preset.least_squares), passes=(20, 1)),
        OVER: lambda preset, model, d: LeastSquares(5_000, int(2e4 * preset.least_squares), passes=(20, 2)),
    }

    def run(self, bench: Workbench) -> Outcome:
        base, preset = regression(N), bench.preset.name
        runs = RUNS[preset]
        models: dict[str, Any] = {
            name: memformer(D, DEPTH, preconditioner="scalar", key=bench.key, **options)
            for name, options in MODELS.items()
        }
        shortest = {AT: N, OVER: 1}  # both are numbers of one class of prompts: models share their programs
        data = {training: PerRun([AnyLength(base, (k, N))] * runs) for training, k in shortest.items()}
        jobs = {
            (name, training): (models[name], training, data[training], (DEPTH,), f"{self.name} {name}")
            for training, names in TRAINED.items()
            for name in names
        }
        longest_first = [(bench.trained, *job) for job in reversed(jobs.values())]
        bench.side_by_side([*longest_first, (descent, bench)])
        methods: dict[Pair, Any] = {pair: bench.trained(*job).per_run() for pair, job in jobs.items()}
        methods["GD, tuned", "none"] = descent(bench)
        methods["CGD", "none"] = conjugate_gradient(DEPTH)
        found = _scores(bench, methods, [base] * runs, "plain", PROMPTS[preset])
        rows = [row for pair, score in found.items() for row in rows_of(pair, score, _measures(pair))]
        orthogonal = OrthogonalQuery(regression(D - 1))
        shifted = {"orthants": OneOrthant(base), "orthogonal": orthogonal, "repeated": RepeatedQuery(base)}
        few = {pair: method for pair, method in methods.items() if pair[1] == OVER or pair[0] == "CGD"}
        on: dict[str, Scores] = {}
        for shift, source in shifted.items():
            on[shift] = _scores(bench, few, [source] * runs, shift, SHIFTED[preset])
            on[shift].pop(("ridge", "none"))
            rows += flatten(rows_of(pair, score, [shift]) for pair, score in on[shift].items())
        return Outcome(rows, claims_of(found, on))


def regression(n: int) -> LinearRegression:
    return LinearRegression([1.0] * D, n)


def _scores(
    bench: Workbench, methods: dict[Pair, Any], sources: list[Distribution], label: str, prompts: int
) -> Scores:
    """After every number of examples, ridge and the Bayes predictor beside the methods."""
    bench.say(f"scoring prefixes ({label})")
    key, contexts = bench.stream("score", "prefixes", label), range(1, sources[0].outline().X.shape[0] + 1)
    pairs = {f"{curve} {training}": (curve, training) for curve, training in methods}
    named = {name: methods[pair] for name, pair in pairs.items()}
    found = evaluate(named, sources, contexts=contexts, prompts=prompts, key=key)
    return {pairs.get(name, (name, "none")): score for name, score in found.items()}


@kept
def descent(bench: Workbench) -> Any:
    """Gradient descent with the step size that is best for prompts of 40 examples."""
    sample = jit_draws(regression(N).quadratics)(bench.stream("tune", "prefixes"), 5_000)
    return tune(gradient_descent, sample, steps=DEPTH, parameters=1).method


def _measures(pair: Pair) -> list[str]:
    """The panels of a curve on prompts that are not shifted."""
    if pair == ("Bayes", "none"):
        return ["one_length", "log_loss"]
    return ["one_length"] if pair[1] == AT or pair[0] == "GD, tuned" else ["log_loss"]


def rows_of(pair: Pair, score: PrefixScore, measures: Sequence[str]) -> list[Row]:
    rows = []
    for run, zero in enumerate(score.zero):
        for at, k in enumerate(score.contexts):
            mean, stderr = score.mean[run, at], score.stderr[run, at]
            error, mean = stderr / mean / math.log(10), mean / zero
            value = round(math.log10(mean), 4) if mean > ZERO else FLOOR
            rows += [Row(*pair, k, value, run, measure, float(error), score.prompts) for measure in measures]
    return rows


def _relative(score: PrefixScore, of: str = "mean") -> np.ndarray:
    """Errors over that of predicting 0, by number of examples, averaged over runs; of the worst run where `of` is an end."""
    values = getattr(score, of) / score.zero[:, None]
    return {"mean": values.mean(axis=0), "high": values.max(axis=0), "low": values.min(axis=0)}[of]


def _told(score: PrefixScore) -> str:
    """At some numbers of examples: the mean, and 5 to 95 % over resamples of the prompts, of the widest run."""
    ends = [_relative(score, of) for of in ("mean", "low", "high")]
    cells = []
    for at, k in enumerate(score.contexts):
        if k in LISTED:
            mean, low, high = (float(end[at]) for end in ends)
            cells.append(f"{k}: {mean:.3g} ({low:.3g} to {high:.3g})")
    return ", ".join(cells)


def _rises(score: PrefixScore) -> str:
    """The numbers of examples after which one more does not help."""
    return str([score.contexts[i] for i in np.flatnonzero(np.diff(_relative(score)) >= 0)])


def claims_of(found: Scores, on: dict[str, Scores]) -> Claims:
    claims = Claims("Garg et al., 2022")
    at, bayes = found["Memformer", AT], found["Bayes", "none"]
    over = {name: found[name, OVER] for name in TRAINED[OVER]}
    told = listed(over, _told, "{} {}")
    claims.test(
        "prefixes-one-length-explodes",
        "Ours: a Memformer trained at 40 examples is useless with few: its error is more than 1,000 times that of predicting 0.",
        "the 5 % point over resamples of the prompts above 1,000 at one example, in every run",
        _relative(at, "low")[0] > 1_000,
        f"trained at 40: {_told(at)}; gradient descent tuned there: {_told(found['GD, tuned', 'none'])}",
    )
    claims.test(
        "prefixes-lengths-bounded",
        "Ours: trained over 1 to 40 examples, it does not explode: at no number of examples is its error more than 100 times that of "
        "predicting 0.",
        "the 95 % point over resamples of the prompts below 100, for every model, in every run",
        [bool((_relative(score, "high") < 100).all()) for score in over.values()],
        told,
    )
    claims.test(
        "prefixes-lengths-below-zero",
        "Ours: trained over 1 to 40 examples, it is never worse than predicting 0.",
        "the mean over runs at most 1 at every number of examples, for every model",
        [bool((_relative(score) <= 1).all()) for score in over.values()],
        told,
    )
    claims.test(
        "prefixes-every-example-helps",
        "Ours: trained over 1 to 40 examples, every further example helps.",
        "from k examples to k + 1 the mean error on the same prompts falls, for every model, averaged over runs",
        [bool((np.diff(_relative(score)) < 0).all()) for score in over.values()],
        listed(over, _rises, "{} rises after {}"),
    )
    claims.test(
        "prefixes-length-has-a-price",
        "Ours: what it gains with few examples it loses with 40.",
        "at 40 examples the error of the Memformer trained over lengths is more than twice that of the one trained there, in every run",
        [bool((score.mean[:, -1] > 2 * at.mean[:, -1]).all()) for score in over.values()],
        listed(over, lambda score: f"{(score.mean[:, -1] / at.mean[:, -1]).mean():.2f} times", "{} {}"),
    )
    near = {name: _relative(score) / _relative(bayes) for name, score in over.items()}
    near["CGD"] = _relative(found["CGD", "none"]) / _relative(bayes)
    claims.test(
        "prefixes-near-bayes",
        "Ours: with at most d / 2 examples, four layers are nearly as good as the Bayes predictor.",
        "error at most 1.15 times that of the Bayes predictor for 1 to 10 examples: trained over lengths, and CGD",
        [bool((ratio[:10] <= 1.15).all()) for ratio in near.values()],
        listed(near, lambda ratio: ", ".join(f"{k}: {ratio[k - 1]:.3f}" for k in (1, 2, 5, 10, 19)), "{} {}"),
    )
    for shift, words in SHIFTS.items():
        own = {name: on[shift][name, OVER] for name in over}
        claims.test(
            f"prefixes-robust-{shift}",
            f"Ours: trained over lengths, it is robust to a shift ({words}): never worse than predicting 0.",
            "the mean over runs at most 1.001 of the error of predicting 0 on these prompts, at every number of examples, for every model",
            [bool((_relative(score) <= 1.001).all()) for score in own.values()],
            listed(own, _told, "{} {}"),
        )
    return claims
