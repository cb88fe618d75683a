"""Generalised linear models: attention that reads y - mean(x.w), on classes and on counts."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from lfom.core.compiler import jit_draws
from lfom.core.links import LogisticLink
from lfom.core.runs import PerRun
from lfom.experiments.experiment import Experiment
from lfom.experiments.rows import Curves, at_step, by_depth
from lfom.experiments.statistics import Claims, below, compare, difference, listed, near, under, written
from lfom.experiments.workbench import DEPTHS, Outcome, Workbench, kept, tuned_methods
from lfom.methods.classical import gradient_descent, nesterov
from lfom.methods.memformer import memformer
from lfom.methods.newton import newton
from lfom.prompts import generalised
from lfom.report.results import Row
from lfom.training import Score, evaluate

CONTEXT = 40
KINDS: dict[str, Callable[..., generalised.LinkRegression]] = {
    "logistic": generalised.LogisticRegression,
    "Poisson": generalised.PoissonRegression,
}
MODELS = {
    "Linear Transformer": "none",
    "Memformer": "bank",
    "Memformer, register": "register",  # where there is time for it
}
PROMPTS = {"quick": 10_000, "full": 200_000}  # of a run's score
RUNS = {"quick": 3, "full": 5}
TUNED_ON = 4_000  # prompts
RIDGES = np.geomspace(1e-3, 1.0, 13)
CONVERGED = 8  # Newton's steps: more change deviances by less than 1e-6
DEEPEST = max(DEPTHS)
NEAR = 0.02  # of logs of deviances
FITTED, KNOWN = "fitted model", "fitted model, covariance known"


@dataclass(frozen=True)
class Misclassified(LogisticLink):
    """The same classes, where what is scored is the probability of the class that was not chosen."""

    def residual(self, eta: Array, target: Array) -> Array:
        return jnp.sqrt(jnp.where(eta > 0, 1 - target, target))


class GeneralisedLinearModels(Experiment):
    name = "glm"
    title = "Generalised linear models: classes and counts"
    section = "our own"
    shows = (
        "Deviance of the query above that of the true w, and accuracy for classes, against the number of layers or steps: "
        "attention that reads y - mean(x.w), beside gradient descent and Nesterov's method tuned for each depth, Newton's "
        "method, and the fitted model: maximum likelihood with the ridge that fits best, and with one that knows the "
        "covariance. 40 examples of d = 5, the published spectrum, another rotation in each run."
    )
    trained = (
        "By least squares on the root of the deviance, A_l = a_l M; labels of the query are averaged out."
    )
    y_label = {
        "logistic_deviance": "deviance of classes",
        "accuracy": "accuracy",
        "Poisson_deviance": "deviance of counts",
    }

    def run(self, bench: Workbench) -> Outcome:
        if "converged" not in bench.trainings:
            return Outcome([], [])
        bench.side_by_side([job for kind in KINDS for job in _jobs(bench, kind)])
        found = {kind: _curves(bench, kind, _data(bench, kind)) for kind in KINDS}
        classes = _data(bench, "logistic").each()
        by_class = [generalised.NormalLinkRegression(one.base, Misclassified()) for one in classes]
        wrong = _curves(bench, "logistic", PerRun(by_class))
        rows = [row for kind in KINDS for row in _rows(found[kind], f"{kind}_deviance")]
        rows += _rows(wrong, "accuracy", lambda error: 1 - error)
        return Outcome(rows, _claims(found, wrong), [f"{c}|{training}" for c, training in found["logistic"]])


@kept
def _data(bench: Workbench, kind: str) -> PerRun:
    rotated = bench.data().each()[: RUNS[bench.preset.name]]
    return PerRun([KINDS[kind](one.spectrum, CONTEXT, rotation=one.rotation) for one in rotated])


def _jobs(bench: Workbench, kind: str) -> list[tuple[Any, ...]]:
    models = [(_trained, bench, kind, curve) for curve in _models(bench)]
    return [(_rivals, bench, kind), (_fitted, bench, kind), *models]


def _models(bench: Workbench) -> list[str]:
    return [curve for curve in MODELS if bench.preset.long or MODELS[curve] != "register"]


@kept
def _trained(bench: Workbench, kind: str, curve: str) -> Any:
    options: Any = {"memory": MODELS[curve], "preconditioner": "shared"}
    model = memformer(5, DEEPEST, key=bench.stream("glm", kind), **options)
    return bench.trained(model, "converged", _data(bench, kind), DEPTHS, f"{curve}, {kind}")


@kept
def _rivals(bench: Workbench, kind: str) -> dict[str, Any]:
    """Step sizes found on other prompts, of the first run: the others are the same but for a rotation."""
    key = bench.stream("glm tune", kind)
    bench.say(f"tuning rivals ({kind})")
    sample = _sample(_data(bench, kind)[0], key)
    ways: Any = {"GD, tuned": (gradient_descent, 1), "NAG, tuned": (nesterov, 2)}
    return {name: tuned_methods(build, many, sample, DEPTHS) for name, (build, many) in ways.items()}


@kept
def _fitted(bench: Workbench, kind: str) -> dict[str, PerRun]:
    """Newton's method to the end, with the best of RIDGES on other prompts, as above; times I, and times S."""
    data, found = _data(bench, kind), {}
    S = [one.base.covariance for one in data.each()]
    for name, metrics in ((FITTED, [np.eye(len(S[0]))] * len(S)), (KNOWN, S)):
        tried = {str(r): newton(CONVERGED, r * metrics[0]) for r in RIDGES}
        losses = evaluate(tried, data[0], prompts=TUNED_ON, key=bench.stream("glm ridge", kind))
        best = min(RIDGES, key=lambda r: float(losses[str(r)].mean[0, -1]))
        found[name] = PerRun([newton(CONVERGED, best * metric) for metric in metrics])
    return found


@jit_draws
def _sample(data: generalised.LinkRegression, key: Array) -> Any:
    return data.problems(key, TUNED_ON, "iterates")


def _curves(bench: Workbench, kind: str, data: PerRun) -> Curves:
    """The scores by depth. Newton's steps are the fitted model's on the way; that is the same at every depth."""

    def score(methods: dict[str, Any]) -> dict[str, Score]:
        return bench.scores(methods, data, f"glm {kind}", PROMPTS[bench.preset.name])

    methods: dict[tuple[str, str], Any] = {(c, "none"): one for c, one in _rivals(bench, kind).items()}
    for curve in _models(bench):
        fit = _trained(bench, kind, curve)
        methods[curve, "converged"] = {depth: fit.per_run(depth) for depth in DEPTHS}
    found, ends = by_depth(methods, DEPTHS, score), score(_fitted(bench, kind))
    found["Newton", "none"] = {depth: at_step(ends[FITTED], depth) for depth in DEPTHS}
    return found | {(curve, "none"): dict.fromkeys(DEPTHS, end) for curve, end in ends.items()}


def _rows(found: Curves, measure: str, of: Callable[[float], float] = lambda value: value) -> list[Row]:
    rows = []
    for pair, scores in found.items():
        for depth, score in scores.items():
            for run, (mean, stderr) in enumerate(zip(score.mean[:, -1], score.stderr[:, -1], strict=True)):
                rows.append(Row(*pair, depth, of(float(mean)), run, measure, float(stderr), score.prompts))
    return rows


def _claims(found: dict[str, Curves], wrong: Curves) -> Claims:
    claims = Claims("our own")
    at = {kind: {curve: scores for (curve, _), scores in own.items()} for kind, own in found.items()}

    def end(kind: str, curve: str) -> np.ndarray:
        """Deviance after the last layer, by run."""
        return at[kind][curve][DEEPEST].mean[:, -1]

    def above(kind: str, curve: str) -> np.ndarray:
        return end(kind, curve) - end(kind, FITTED)

    claims.test(
        "glm-half-way",
        "Ours: a Memformer of 4 layers is at most half as far from the fitted model's deviance as gradient descent tuned "
        "for 4 steps.",
        "its deviance minus the fitted model's is below half of gradient descent's by two standard errors over runs",
        [under(above(kind, "Memformer") - above(kind, "GD, tuned") / 2) for kind in at],
        "; ".join(
            f"{kind}: Memformer {written(above(kind, 'Memformer'), '+.4f')}, gradient descent "
            f"{written(above(kind, 'GD, tuned'), '+.4f')} from {written(end(kind, FITTED), '.4f')}"
            for kind in at
        ),
    )
    claims.test(
        "glm-below-the-fitted-model",
        "Ours: trained on prompts, 4 layers predict better than the model that is fitted to each prompt.",
        "deviance of the Memformer below that of the fitted model by two standard errors",
        [below(own["Memformer"][DEEPEST], own[FITTED][DEEPEST]) for own in at.values()],
        "; ".join(
            f"{kind}: Memformer {written(end(kind, 'Memformer'), '.4f')}, fitted {written(end(kind, FITTED), '.4f')}"
            for kind in at
        ),
    )
    claims.test(
        "glm-as-if-the-covariance-were-known",
        "Ours: 4 layers are as good as the fitted model whose ridge knows the covariance.",
        f"log of the deviance at most {NEAR} above it on average",
        [near(own["Memformer"][DEEPEST], own[KNOWN][DEEPEST], NEAR) for own in at.values()],
        listed(at, lambda own: written(difference(own["Memformer"][DEEPEST], own[KNOWN][DEEPEST]))),
    )
    trained = [curve for curve in MODELS if curve in at["logistic"]]
    for curve in trained[1:]:
        against_none = {kind: (own[curve], own["Linear Transformer"]) for kind, own in at.items()}
        claims.test(
            f"glm-memory-helps-{MODELS[curve]}",
            f"Ours: memory helps where labels follow through a link ({MODELS[curve]}).",
            "difference of the log of the deviance to the Linear Transformer below 0 by two standard errors, depths 2 to 4",
            [below(ours[d], theirs[d]) for ours, theirs in against_none.values() for d in DEPTHS[1:]],
            listed(against_none, lambda pair: compare(*pair)),
        )
    by_depth = {f"{kind}, {curve}": own[curve] for kind, own in at.items() for curve in trained}
    claims.test(
        "glm-deeper-is-better",
        "Ours: every layer lowers the deviance.",
        "the deviance of each depth is below that of the depth before by two standard errors, for all trained models",
        [below(own[b], own[a]) for own in by_depth.values() for a, b in itertools.pairwise(DEPTHS)],
        listed(by_depth, lambda own: ", ".join(f"{own[d].mean[:, -1].mean():.4f}" for d in DEPTHS)),
    )
    errors = {curve: wrong[pair][DEEPEST].mean[:, -1] for pair in wrong for curve in pair[:1]}
    claims.test(
        "glm-accuracy",
        "Ours: a Memformer of 4 layers classifies better than gradient descent tuned for 4 steps and than the fitted model.",
        "share of wrong classes below each of theirs by two standard errors",
        [under(errors["Memformer"] - errors[curve]) for curve in ("GD, tuned", FITTED)],
        listed(errors, lambda values: written(1 - values, ".4f"), "{} {}"),
    )
    return claims
