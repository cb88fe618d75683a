"""Efficiency (Section 6): accuracy against gradient evaluations, operations and time."""

import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from lfom.core.threads import in_threads
from lfom.core.unroll import unroll
from lfom.experiments.adaptive_methods import nonlinearity
from lfom.experiments.experiment import Experiment
from lfom.experiments.rows import run_rows
from lfom.experiments.statistics import Claims
from lfom.experiments.workbench import DEPTHS, Outcome, Workbench
from lfom.methods.classical import conjugate_gradient, momentum

D = 5
LEARNED = ("Linear Transformer", "Memformer", "Conjugate register", "Linear Transformer, GD++")


PRODUCT = 2 * D * D  # operations of one product with a matrix
OPERATIONS = {  # of one layer or step
    "CGD": PRODUCT + 10 * D,
    "Preconditioned CGD": 2 * PRODUCT + 10 * D,
    "Conjugate register": 2 * PRODUCT + 10 * D,
    "Linear Transformer, GD++": 5 * 2 * D**3 + 4 * PRODUCT,
    "Momentum GD, tuned": PRODUCT + 4 * D,
}


def operations(curve: str, depth: int) -> float:
    """Floating-point operations per prompt after the Gram matrix (multiplications and additions)."""
    with_bank = 2 * PRODUCT + 2 * D * (depth + 1) / 2  # a full A, and a bank
    return depth * OPERATIONS.get(curve, with_bank)


def compiled(methods: Sequence[Any], quadratics: Any) -> list[Any]:
    """A program of each, compiled side by side."""
    return list(
        in_threads(lambda own: jax.jit(lambda q: unroll(own, q)[-1]).lower(quadratics).compile(), methods)
    )


def measured(program: Any, quadratics: Any) -> float:
    """Nanoseconds per prompt, median of 7 calls after one that warms up."""
    times = []
    for _ in range(8):
        start = time.perf_counter()
        jax.block_until_ready(program(quadratics))
        times.append(time.perf_counter() - start)
    return float(np.median(times[1:]) / quadratics.moment.shape[-1] * 1e9)


class Efficiency(Experiment):
    name = "efficiency"
    title = "Accuracy against gradient evaluations, operations and time"
    section = "6, Efficiency vs. generalization"
    shows = (
        "Learned and classical methods on the same fresh prompts: log loss against the number of products with "
        "the Gram matrix, against floating-point operations per prompt, and against measured time per prompt "
        "(a batch of 10,000 prompts, Gram matrices given, this machine)."
    )
    trained = "The converged models of the other figures; there is nothing to show for paper training alone."
    alone = True  # it measures time
    x_label = {
        "log_loss": "gradient evaluations",
        "by_operations": "operations per prompt",
        "by_time": "nanoseconds per prompt",
    }
    y_label = dict.fromkeys(x_label, "log loss")
    x_scale = {"log_loss": "linear", "by_operations": "log", "by_time": "log"}

    def run(self, bench: Workbench) -> Outcome:
        if "converged" not in bench.trainings:
            return Outcome([], [])
        data = bench.data()
        found = bench.curves([(name, "converged") for name in LEARNED], data)
        sample = data[0].quadratics(bench.stream("time"), 10_000)
        classical: dict[str, Any] = {
            "CGD": conjugate_gradient,
            "Preconditioned CGD": lambda depth: conjugate_gradient(depth, np.eye(D)),
            "Momentum GD, tuned": lambda depth: momentum(1.0, 0.5, depth),
        }
        rows = []
        costs: dict[str, dict[tuple[str, int], tuple[float, float]]] = {"by_operations": {}, "by_time": {}}
        methods = {(name, depth): build(depth) for name, build in classical.items() for depth in DEPTHS}
        for name in LEARNED:
            fit = bench.trained(name, "converged", data)
            methods |= {(name, depth): fit.model(0, depth) for depth in DEPTHS}
        programs = compiled([*methods.values()], sample)
        for (name, depth), program in zip(methods, programs, strict=True):
            training = "converged" if name in LEARNED else "none"
            score = found[name, training][depth]
            places = {"by_operations": operations(name, depth), "by_time": measured(program, sample)}
            for measure, x in ({"log_loss": depth} | places).items():
                rows += run_rows(name, training, x, score.log_mean[:, -1], measure, prompts=score.prompts)
            for measure, x in places.items():
                costs[measure][name, depth] = (x, score.log_loss)

        def cheapest(measure: str, accuracy: float) -> str:
            points = sorted(costs[measure].items(), reverse=True)
            reached = {name: cost for (name, _), (cost, loss) in points if loss <= accuracy}
            return min(reached, key=lambda name: reached[name]) if reached else "none"

        wins = {a: (cheapest("by_operations", a), cheapest("by_time", a)) for a in (0.2, -1.0, -2.5, -6.0)}
        claims = Claims("6")
        claims.test(
            "learned-methods-efficient",
            "Learned methods reach an accuracy at lower cost than classical ones.",
            "at log losses 0.2, -1, -2.5 and -6 the method with the fewest operations is a learned one (the "
            "known covariance of preconditioned CGD counts as not learned)",
            (fewest in LEARNED for fewest, _ in wins.values()),
            "; ".join(f"log loss {a}: fewest operations {o}, least time {t}" for a, (o, t) in wins.items()),
        )
        text = "LFOMs with fixed coefficients include AdaGrad and Adam."
        claims.add("lfoms-include-adagrad-adam", text, nonlinearity(), "1")
        return Outcome(rows, claims)
