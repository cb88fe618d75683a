"""How many experts: 1, 2, 3, 5 and 8 on a continuous range of variances, with what they cost."""

import itertools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lfom.adaptation import PerPrompt
from lfom.adaptation.per_prompt import STEPS, context_question
from lfom.core.runs import stack
from lfom.core.unroll import losses
from lfom.experiments import shifted
from lfom.experiments.experiment import Experiment
from lfom.experiments.rows import Row, run_rows
from lfom.experiments.shifted import DEPTH, HIGHEST, LOWEST
from lfom.experiments.statistics import Claims, listed, under, written
from lfom.experiments.workbench import CONTEXT, Outcome, Workbench, keys
from lfom.methods.classical import conjugate_gradient
from lfom.prompts.distributions import LinearRegression
from lfom.prompts.shifts import RandomScale
from lfom.training import PerRun, evaluate

LOSS, COST = "relative_log_loss", "products"
NUMBERS = (1, 2, 3, 5, 8)
GATES, BEST = "gates, per prompt", "best expert per prompt"
ADAPTED = {GATES: STEPS, BEST: 0}  # steps of the gates
SINGLE = {"union": 2, "normalised": 2, "conjugate register": 2, "CGD": 1}  # products per layer


def variances(experts: int) -> tuple[float, ...]:
    """The middles of equal parts of the range."""
    part = (np.arange(experts) + 0.5) / experts
    return tuple((LOWEST * (HIGHEST / LOWEST) ** part).tolist())


def products(experts: int, steps: int) -> int:
    """Matrix-vector products that one prompt needs, its answer included."""
    if not steps:
        return DEPTH * 2 * (experts + 1)  # each expert once, and the answer
    starts, fitting = 2 * experts + 1, 2 * experts * steps + 1
    return DEPTH * (experts + 1) * (starts + fitting + 1)


class HowManyExperts(Experiment):
    name = "how_many_experts"
    title = "How many experts"
    section = "4.2, our own (the paper leaves it open)"
    shows = (
        "Experts of four layers for 1, 2, 3, 5 or 8 variances, evenly spaced on a logarithmic scale, on prompts whose "
        "variance is log-uniform from 0.25 to 16. Every prompt picks its best expert, or sets its own gates in four "
        "steps. Models without experts stand at 1. The second panel counts what a prompt costs: products of a matrix "
        "with a vector."
    )
    trained = (
        "Models as in the experiment adaptation: the expert of variance v is the one of variance 1 with A / v, which is "
        "exact. A run of four layers with K experts needs 4 (K + 1) products, one with the Gram matrix and one with "
        "each expert's A per layer; choosing the best expert runs each of them once, gates begin at the best of 2 K + 1 starts, and a step of the gates "
        "needs K derivatives, each as dear as two runs."
    )
    x_label = "experts"
    y_label = {LOSS: "log loss relative to the labels' variance", COST: "matrix-vector products per prompt"}

    def run(self, bench: Workbench) -> Outcome:
        if "converged" not in bench.trainings:
            return Outcome([], [])
        count, key = bench.preset.prompts // 50, bench.stream("score", "how many")
        data = shifted.union_data(bench)
        singles = {name: one for name, one in shifted.single_models(bench).items() if name in SINGLE}
        bench.say("scoring 1 to 8 experts")
        methods: dict[str, Any] = {**singles, "CGD": conjugate_gradient(DEPTH)}
        for number in NUMBERS:
            experts = shifted.experts_of(bench, variances(number)).stacked
            methods[f"{GATES}|{number}"] = PerRun(PerPrompt(experts))
        scores = {n: shifted.relative(s) for n, s in evaluate(methods, data, prompts=count, key=key).items()}
        best = best_experts(bench, data, jax.random.split(bench.stream("best expert"), bench.runs), count)
        table = {number: {BEST: best[number], GATES: scores.pop(f"{GATES}|{number}")} for number in NUMBERS}
        points = [(n, k, v, products(k, ADAPTED[n])) for k in NUMBERS for n, v in table[k].items()]
        points += [(n, 1, v, DEPTH * SINGLE[n]) for n, v in scores.items()]
        rows = []
        for name, number, values, cost in points:
            training = "none" if name == "CGD" else "converged"
            rows += run_rows(name, training, number, values, LOSS, prompts=count)
            rows.append(Row(name, training, number, float(cost), None, COST))
        found = claims(table, scores, union_optimum(bench.stream("union optimum")))
        return Outcome(rows, found, keys((name, "converged") for name in (GATES, BEST, *singles)))


@eqx.filter_jit
def expert_losses(experts: Any, data: Any, keys: Any, count: int) -> tuple[Array, Array]:
    """Of every run, expert and prompt the error on the context, (runs, experts, prompts), and the loss
    before the first and after the last layer."""

    def one_run(args: Any) -> tuple[Array, Array]:
        own, data, key = args
        q = data.quadratics(key, count)
        question = context_question(q)

        def one(expert: Any) -> tuple[Array, Array]:
            found = losses(expert, q)
            return losses(expert, question)[-1], jnp.stack([found[0], found[-1]])

        return jax.lax.map(one, own)

    return jax.lax.map(one_run, (experts, data, keys))


def best_experts(bench: Workbench, data: Any, keys: Any, count: int) -> dict[int, np.ndarray]:
    """Relative log loss (runs,) by number of experts, where every prompt takes the expert with the least
    error on its own context."""
    every = [v for number in NUMBERS for v in variances(number)]
    each = [shifted.scaled(shifted.base_model(bench), v).per_run(DEPTH).stacked for v in every]
    experts = stack(each, axis=1)
    errors, found = (np.asarray(a, np.float64) for a in expert_losses(experts, data.stacked, keys, count))
    table, first = {}, 0
    for number in NUMBERS:
        part = slice(first, first + number)
        chosen = np.where(np.isfinite(errors[:, part]), errors[:, part], np.inf).argmin(axis=1)
        after = np.take_along_axis(found[:, part, 1], chosen[:, None], axis=1)[:, 0]
        table[number] = np.log(after.mean(axis=-1) / found[:, first, 0].mean(axis=-1))
        first += number
    return table


def union_optimum(key: jax.Array, prompts: int = 20_000) -> float:
    """The least relative log loss of one polynomial of degree DEPTH for the whole range of variances, from
    whitened prompts: a linear least-squares problem in its coefficients."""
    whitened = RandomScale(LinearRegression(jnp.ones(5), CONTEXT), LOWEST, HIGHEST)
    gram = np.moveaxis(np.asarray(whitened.quadratics(key, prompts).gram, np.float64), -1, 0)
    eigenvalues = np.linalg.eigvalsh(gram).reshape(-1)
    powers = np.polynomial.chebyshev.chebvander(2 * eigenvalues / eigenvalues.max() - 1, DEPTH - 1)
    seen = powers * eigenvalues[:, None]
    best = np.linalg.lstsq(seen, np.ones(len(eigenvalues)), rcond=None)[0]
    return float(np.log(np.mean((1 - seen @ best) ** 2)))


def claims(table: dict[int, dict[str, np.ndarray]], scores: dict[str, np.ndarray], optimum: float) -> Claims:
    made, most = Claims("4.2"), max(NUMBERS)
    for name, short in ((GATES, "gates"), (BEST, "best")):
        steps = ADAPTED[name]
        pays = {k: under(table[m][name] - table[k][name], 0.1) for k, m in itertools.pairwise(NUMBERS)}
        costs = {k: f"{written(table[k][name], '+.2f')} at {products(k, steps)} products" for k in NUMBERS}
        enough = next((k for k, more in pays.items() if not more), most)
        made.test(
            f"more-experts-pay-{short}",
            f"Ours: every further step from 1 to 2, 3, 5 and 8 experts pays ({name}).",
            "relative log loss lower by more than 0.1, beyond two standard errors over runs, than with the number before",
            pays.values(),
            f"by experts {listed(costs)}; pays up to {enough}",
        )
    eight, lines = table[most][GATES], {n: written(v, "+.2f") for n, v in scores.items()}
    others = "; ".join(f"{n}: {line} at {DEPTH * SINGLE[n]} products" for n, line in lines.items())
    made.test(
        "eight-experts-beat-one-model",
        "Ours: on a range of variances eight experts with gates per prompt do better than one model that needs no experts.",
        "relative log loss of 8 experts below that of the normalised model, and of the conjugate register, by two standard errors over runs",
        (under(eight - scores[n]) for n in ("normalised", "conjugate register")),
        f"8 experts {written(eight, '+.2f')} at {products(most, STEPS)} products; {others}",
    )
    made.test(
        "union-model-is-at-its-optimum",
        "Ours: a model trained on the union of variances is limited by its class, not by its training: no "
        "polynomial of degree four is small on all these eigenvalues.",
        "relative log loss of the union model, mean over runs, within 0.05 of the best polynomial's on whitened prompts",
        bool(abs(scores["union"].mean() - optimum) <= 0.05),
        f"union {lines['union']}; best polynomial {optimum:+.2f}",
    )
    return made
