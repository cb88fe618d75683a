"""The authors' own protocol: their number of prompts, one query each, their scoring, their Adam; values by depth.

What docs/mathematics.md 2.14 leaves open is as in their published notebooks: A is trained first, with the memory switched off, on
batches that are resampled (Adam with betas .99 and .9, clipped); then, without clipping, A and the memory are
fine-tuned on one batch (the memory alone where the NAG and momentum figures show at one layer what A alone gives).
Figures differ in whether they are then scored on that batch or on a fresh one.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax import Array

from lfom.core.arrays import as_array
from lfom.core.problems import Quadratic
from lfom.core.runs import PerRun
from lfom.core.vectors import from_vector, vector_of
from lfom.experiments.fixed_batches import ISOTROPIC, asked, fit_on_sets, learned_lfom
from lfom.experiments.gates import Heads, fit_mixtures
from lfom.experiments.gaussian_mixture import NAMES, mixture_data
from lfom.experiments.rows import by_depth
from lfom.experiments.workbench import CONTEXT, DEPTHS, Workbench, kept
from lfom.methods.classical import APPENDIX_B, conjugate_gradient, momentum, nesterov
from lfom.prompts.distributions import PUBLISHED_SPECTRUM, LinearRegression
from lfom.training import Adam, Fit, Score, fit
from lfom.training.evaluation import evaluate_on
from lfom.training.scores import log_floor

BATCH = 1_000  # prompts of a batch, and of a score
STEPS = 1_000  # of Adam, in each of two stages
SETS = 20  # of that many prompts, for each run
HEADS = 5
EXPERTS = (1.0, 2.0, 3.0)
UNSEEN = (0.5, 1.5, 2.5, 3.5)
# The notebooks with gates: one batch for each expert, no clipping; 500 steps for experts and three gates, 1,000 for one.
EXPERT_STEPS, GATE_STEPS, ONE_GATE_STEPS = 500, 500, 1_000
NO_CLIP = 1e9
Values = dict[int, np.ndarray]  # by depth: log losses of the same protocol, (runs, sets)


@kept
def prompts(bench: Workbench, spectrum: tuple[float, ...], context: int) -> Any:
    """Fresh prompts with one query each, SETS times BATCH for each run."""
    keys = jax.random.split(bench.stream("authors", str(context)), bench.runs)
    return asked(bench.data(spectrum, context=context), keys, SETS * BATCH)


def scores(methods: dict[str, dict[int, Any]], sets: Any, size: int = BATCH) -> dict[str, Values]:
    """Log of the mean loss of each set of `size` prompts."""
    found = by_depth(methods, DEPTHS, lambda named: evaluate_on(named, sets))

    def by_set(score: Score) -> np.ndarray:
        last = np.asarray(score.last)
        return log_floor(last.reshape(len(last), -1, size).mean(axis=2))

    return {name: {d: by_set(score) for d, score in own.items()} for name, own in found.items()}


def scores_of(found: Fit, sets: Any, size: int = BATCH) -> Values:
    return scores({"ours": {d: found.per_run(d) for d in DEPTHS}}, sets, size)["ours"]


def steps(method: Any) -> dict[int, Any]:
    return {d: method.truncated(d) for d in DEPTHS}


@kept
def cgd(
    bench: Workbench, context: int, size: int, spectrum: tuple[float, ...] = PUBLISHED_SPECTRUM
) -> Values:
    """The authors give CGD one example less than the models, in all figures but the learned LFOM's."""
    methods = {"CGD": steps(conjugate_gradient(max(DEPTHS)))}
    return scores(methods, prompts(bench, spectrum, context), size)["CGD"]


@kept
def with_momentum(bench: Workbench) -> dict[str, Values]:
    """With the step sizes of Appendix B, which act on the gradient without 1/n."""
    (eta, beta), (rate, weight) = APPENDIX_B["Nesterov"], APPENDIX_B["momentum"]
    methods = {"NAG": steps(nesterov(eta * CONTEXT, beta, max(DEPTHS)))}
    methods["Momentum GD"] = steps(momentum(rate * CONTEXT, weight, max(DEPTHS)))
    return scores(methods, prompts(bench, PUBLISHED_SPECTRUM, CONTEXT))


# Training in two stages: A on batches that are resampled, then everything on one batch.


def second_stage(steps: int, size: int = BATCH) -> Adam:
    """Without clipping, on one batch."""
    return Adam(steps=steps, batch=size, clip=NO_CLIP)


@kept
def first(bench: Workbench, plain: str, size: int = BATCH, heads: int = 1) -> Fit:
    """The model without memory after the first stage: A alone, a batch resampled every 100 steps."""
    bench.say(f"training {plain}, {heads} heads, batches of {size} (authors' first stage)")
    model, key = bench.model(plain, heads=heads), bench.stream("authors' first stage")
    adam = Adam(steps=STEPS, batch=size, beta1=0.99, beta2=0.9)
    return fit(model, bench.data(), key=key, depths=DEPTHS, optimiser=adam)


@kept
def one_batch(bench: Workbench, size: int) -> Quadratic:
    """What the second stage is trained on in each run."""
    return batches(bench.data().each(), bench.stream("authors' second stage"), size)


@kept
def second(
    bench: Workbench, model: str, plain: str, train: tuple[str, ...], size: int = BATCH, heads: int = 1
) -> Fit:
    """`model` after the second stage, from the readers of `plain` after the first; train: what is free."""
    begun = first(bench, plain, size, heads)
    bench.say(f"training {model}, {heads} heads, {size} prompts (authors' second stage)")
    template, sets = bench.model(model, heads=heads), one_batch(bench, size)

    def start(vector: np.ndarray) -> np.ndarray:
        return vector_of(replace(template, reader=from_vector(begun.template, vector).reader))

    vectors = np.stack([[start(vector) for vector in run] for run in begun.vectors])
    adam = second_stage(STEPS, size)
    return fit_on_sets(bench, template, sets, adam, train=train or None, vectors=vectors)


def on_fresh(bench: Workbench, found: Fit) -> Values:
    """Scored on fresh prompts."""
    return scores_of(found, prompts(bench, PUBLISHED_SPECTRUM, CONTEXT))


def on_its_batch(bench: Workbench, found: Fit, size: int = BATCH) -> Values:
    """Scored on the batch of the second stage."""
    return scores_of(found, one_batch(bench, size), size)


@kept
def plain_fresh(bench: Workbench, plain: str) -> Values:
    return on_fresh(bench, first(bench, plain))


@kept
def fresh(bench: Workbench, model: str, plain: str) -> Values:
    return on_fresh(bench, second(bench, model, plain, ()))


@kept
def fitted(
    bench: Workbench, model: str, plain: str, train: tuple[str, ...] = (), size: int = BATCH, heads: int = 1
) -> Values:
    return on_its_batch(bench, second(bench, model, plain, train, size, heads), size)


@kept
def in_one_stage(bench: Workbench, model: str) -> Values:
    """Trained as the paper's text says: everything at once, on batches that are resampled (docs/mathematics.md 2.14)."""
    return on_fresh(bench, bench.trained(model, "paper", bench.data()))


def on_last_batch(bench: Workbench, model: str) -> Values:
    """The same, scored on the batch that training ended with."""
    last = np.asarray(bench.trained(model, "paper", bench.data()).history[-1]["log_loss"])
    return {d: last[:, at, None] for at, d in enumerate(DEPTHS)}


def learned(bench: Workbench, size: int, together: tuple[int, ...]) -> Values:
    """Trained on one set of prompts and scored on it."""
    own = learned_lfom(bench, "paper", together, DEPTHS).at_size(size)[0]
    return {d: score.log_mean[:, -1:] for d, score in own.items()}


def isotropic_cgd(bench: Workbench) -> Values:
    return cgd(bench, CONTEXT, BATCH, ISOTROPIC)


# Experts and gates


def batches(data: Sequence[Any], key: Array, size: int = BATCH) -> Quadratic:
    """One batch of each distribution, with one query for each prompt."""
    return asked(PerRun(list(data)), jax.random.split(key, len(data)), size)


def experts(bench: Workbench, model: Any, data: Sequence[Any], name: str) -> Fit:
    """One for each distribution, trained on one batch of it."""
    sets = batches(data, bench.stream("authors' experts", name))
    bench.say(f"training experts ({name}, authors' protocol)")
    return fit_on_sets(bench, model, sets, second_stage(EXPERT_STEPS))


def gated(
    bench: Workbench, heads: Heads, data: Sequence[Any], name: str, train: Sequence[str] = ("gates",)
) -> Values:
    """Gates from 0, fitted by Adam with the query labels of a batch, and scored on that batch. heads: for each
    distribution of `data` its heads, as (fit, run)."""
    sets = batches(data, bench.stream("authors' gates", name))
    bench.say(f"fitting gates ({name}, authors' protocol)")
    zero = as_array(np.zeros(len(heads[0]), np.float32))
    adam = second_stage(GATE_STEPS if len(heads[0]) > 1 else ONE_GATE_STEPS)
    return scores_of(fit_mixtures(bench, heads, sets, adam, train, zero), sets)


def part(values: Values, rows: slice) -> Values:
    return {d: each[rows] for d, each in values.items()}


@kept
def on_variances(bench: Workbench) -> dict[str, Values]:
    """Experts with B, each on a rotation of its own; gates on the last one's. By the name of the curve."""
    turned = [np.asarray(one.rotation) for one in bench.data().each()]
    runs = len(turned)

    def at(v: float, rotation: np.ndarray) -> LinearRegression:
        """w* has v times the inverse of the unscaled covariance, as in the authors' code."""
        options = {"rotation": rotation, "variance": v, "weight_variance": v * v}
        return LinearRegression(PUBLISHED_SPECTRUM, CONTEXT, **options)

    places = [(k, run) for k in range(len(EXPERTS)) for run in range(runs)]
    own = [at(EXPERTS[k], turned[(run + k) % runs]) for k, run in places]
    trained = experts(bench, bench.model("Memformer, own 1", covariates=True), own, "variances")
    three = [[(trained, k * runs + run) for k in range(len(EXPERTS))] for run in range(runs)]
    last = [turned[(run + len(EXPERTS) - 1) % runs] for run in range(runs)]
    shifted = [at(v, U) for v in UNSEEN for U in last]
    unseen = gated(bench, three * len(UNSEEN), shifted, "unseen variances")
    seen = gated(bench, [[(trained, index)] for index in range(len(own))], own, "seen variances")
    rows = [slice(at * runs, (at + 1) * runs) for at in range(max(len(UNSEEN), len(EXPERTS)))]
    found = {f"variance {v:g}, 3 heads": part(unseen, rows[at]) for at, v in enumerate(UNSEEN)}
    return found | {f"variance {v:g}, 1 head": part(seen, rows[at]) for at, v in enumerate(EXPERTS)}


@kept
def on_mixture(bench: Workbench, model: str) -> dict[str, Values]:
    """Experts with B for the components of the mixture in d = 1; gates, or gates and Gamma, on the mixture."""
    runs, data = bench.runs, mixture_data(bench.runs).each()
    own = [one.component(m) for m in range(len(NAMES)) for one in data]
    trained = experts(bench, bench.model(model, 1, covariates=True), own, f"mixture, {model}")
    heads = [[(trained, m * runs + run) for m in range(len(NAMES))] for run in range(runs)]
    found = {"mixture, gates": gated(bench, heads, data, f"mixture, {model}")}
    if model != "Linear Transformer":
        both = ("gates", "coefficients")
        found["mixture, gates and gamma"] = gated(bench, heads, data, f"mixture, {model}", both)
    single = [[(trained, index)] for index in range(len(NAMES) * runs)]
    alone = gated(bench, single, own, f"components, {model}")
    return found | {name: part(alone, slice(m * runs, (m + 1) * runs)) for m, name in enumerate(NAMES)}
