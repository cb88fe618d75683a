"""Efficiency (Section 6): accuracy against gradient evaluations, operations and time."""

import time
from typing import Any

import jax
import numpy as np

from lfom.core.unroll import unroll
from lfom.experiments.adaptive_methods import claim as adaptive_claim
from lfom.experiments.statistics import verdict
from lfom.experiments.workbench import DEPTHS, Outcome, Workbench
from lfom.methods.classical import conjugate_gradient, momentum
from lfom.report.results import Claim, Row

TITLE = "Accuracy against gradient evaluations, operations and time"
SECTION = "6, Efficiency vs. generalization"
SHOWS = (
    "Learned and classical methods on the same fresh prompts: log loss against the number of products with "
    "the Gram matrix, against floating-point operations per prompt, and against measured time per prompt "
    "(a batch of 10,000 prompts, Gram matrices given, this machine)."
)
TRAINED = "The converged models of the other figures."
ALONE = True  # it measures time
X_LABEL = {
    "log_loss": "gradient evaluations",
    "by_operations": "operations per prompt",
    "by_time": "nanoseconds per prompt",
}
Y_LABEL = {"log_loss": "log loss", "by_operations": "log loss", "by_time": "log loss"}
X_SCALE = {"log_loss": "linear", "by_operations": "log", "by_time": "log"}
D = 5


def operations(curve: str, depth: int) -> float:
    """Floating-point operations per prompt after the Gram matrix (multiplications and additions)."""
    product = 2 * D * D
    if curve == "CGD":
        return depth * (product + 10 * D)
    if curve == "Preconditioned CGD" or curve == "Conjugate register":
        return depth * (2 * product + 10 * D)
    if "GD++" in curve:
        return depth * (5 * 2 * D**3 + 4 * product)
    if curve == "Momentum GD, tuned":
        return depth * (product + 4 * D)
    return depth * (2 * product + 2 * D * (depth + 1) / 2)  # a full A, and a bank


def measured(method: Any, quadratics: Any) -> float:
    """Nanoseconds per prompt, median of 7 calls."""
    program = jax.jit(lambda q: unroll(method, q)[-1])
    jax.block_until_ready(program(quadratics))
    times = []
    for _ in range(7):
        start = time.perf_counter()
        jax.block_until_ready(program(quadratics))
        times.append(time.perf_counter() - start)
    return float(np.median(times) / quadratics.moment.shape[-1] * 1e9)


def run(bench: Workbench) -> Outcome:
    data = bench.data()
    table = bench.baselines(data)
    curves: dict[str, dict[int, Any]] = {
        name: table[name] for name in ("CGD", "Preconditioned CGD", "Momentum GD, tuned")
    }
    learned = ("Linear Transformer", "Memformer", "Conjugate register", "Linear Transformer, GD++")
    found = bench.all_scores([(name, "converged") for name in learned], data)
    curves |= {name: found[name, "converged"] for name in learned}
    sample = data[0].quadratics(bench.stream("time"), 10_000)
    rows, best_ops, best_time = [], {}, {}
    for name, scores in curves.items():
        training = "converged" if name in learned else "none"
        for depth in DEPTHS:
            if name in learned:
                method = bench.trained(name, "converged", data).model(0, depth)
            elif name == "Momentum GD, tuned":
                method = momentum(1.0, 0.5, depth)
            else:
                method = conjugate_gradient(depth, None if name == "CGD" else np.eye(D))
            nanoseconds = measured(method, sample)
            places = {"log_loss": depth, "by_operations": operations(name, depth), "by_time": nanoseconds}
            score = scores[depth]
            for measure, x in places.items():
                rows += [
                    Row(name, training, x, float(score.log_mean[r, -1]), r, measure, prompts=score.prompts)
                    for r in range(bench.runs)
                ]
            best_ops[name, depth] = (places["by_operations"], score.log_loss)
            best_time[name, depth] = (nanoseconds, score.log_loss)

    def cheapest(points: dict, accuracy: float) -> str:
        reached = {
            name: cost for (name, _), (cost, loss) in sorted(points.items(), reverse=True) if loss <= accuracy
        }
        return min(reached, key=lambda name: reached[name]) if reached else "none"

    learned_wins = {
        accuracy: (cheapest(best_ops, accuracy), cheapest(best_time, accuracy))
        for accuracy in (0.2, -1.0, -2.5, -6.0)
    }
    claims = [
        Claim(
            "learned-methods-efficient",
            "Learned methods reach an accuracy at lower cost than classical ones.",
            "6",
            "at log losses 0.2, -1, -2.5 and -6 the method with the fewest operations is a learned one (the "
            "known covariance of preconditioned CGD counts as not learned)",
            verdict(*(ops in learned for ops, _ in learned_wins.values())),
            "; ".join(
                f"log loss {a}: fewest operations {o}, least time {t}" for a, (o, t) in learned_wins.items()
            ),
        )
    ]
    return Outcome(rows, [*claims, adaptive_claim()])
