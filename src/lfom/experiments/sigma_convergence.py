"""Figures sigma_a0, sigma_a1, sigma_a2: the matrices A_l against the inverse covariance."""

from typing import Any

import jax
import numpy as np

from lfom.core.parameters import at_layer
from lfom.experiments.statistics import distance_to_identity, verdict
from lfom.experiments.workbench import Outcome, Workbench
from lfom.methods.memformer import linear_transformer
from lfom.report.results import Claim, Row
from lfom.training import Adam, State, fit
from lfom.training.parameters import from_vector, vector_of

TITLE = "A_l converges to a multiple of the inverse covariance"
SECTION = "Appendix D, Figures sigma_a0 to sigma_a2"
SHOWS = (
    "The distance of S^1/2 A_l S^1/2 from a multiple of the identity, for the three layers of a Linear "
    "Transformer, against training steps. There are no published values."
)
TRAINED = (
    "paper: Adam with batches of 20,000, resampled every 100 steps, gradients clipped to 0.01 (curves over "
    "steps). converged: least squares (one value, drawn at the last step)."
)
X_LABEL, Y_LABEL = "Adam steps", "distance from a multiple of the inverse covariance"
LAYERS = 3
BATCH = 20_000


def distances(bench: Workbench, vectors: np.ndarray, model: Any) -> np.ndarray:
    """(runs, layers)"""
    data = bench.data()
    found = []
    for run in range(bench.runs):
        root = np.asarray(data[run].root)
        A = from_vector(model, vectors[run, 0]).reader.A
        matrices = [np.asarray(at_layer(A, layer).matrix(root.shape[0])) for layer in range(LAYERS)]
        found.append([distance_to_identity(root @ a @ root.T) for a in matrices])
    return np.asarray(found)


def run(bench: Workbench) -> Outcome:
    data = bench.data()
    model = linear_transformer(5, LAYERS, key=jax.random.fold_in(bench.key, 5))
    steps, rows, claims = bench.preset.adam_steps, [], []
    if "paper" in bench.trainings:
        trail: dict[int, np.ndarray] = {
            0: distances(bench, np.stack([[vector_of(model)]] * bench.runs), model)
        }

        def watch(state: State, record: dict[str, Any]) -> None:
            trail[record["step"]] = distances(bench, state.vectors, model)

        bench.say(f"training three layers with Adam, batch {BATCH:,}")
        fit(model, data, key=bench.stream("sigma"), optimiser=Adam(steps=steps, batch=BATCH), watch=watch)
        for step, values in trail.items():
            for layer in range(LAYERS):
                rows += [
                    Row(f"A_{layer}", "paper", step, float(values[r, layer]), r, "distance", prompts=BATCH)
                    for r in range(bench.runs)
                ]
        last, half = trail[steps], trail[min(trail, key=lambda s: abs(s - steps // 2))]
        claims.append(
            Claim(
                "a-converges-to-inverse-covariance",
                "Every A_l converges to a multiple of the inverse covariance.",
                "Appendix D",
                f"mean distance below 0.1 after {steps} Adam steps, per layer",
                verdict(*(bool(last[:, layer].mean() < 0.1) for layer in range(LAYERS))),
                "; ".join(
                    f"A_{k}: {half[:, k].mean():.3f} after half the steps, {last[:, k].mean():.3f} ± "
                    f"{last[:, k].std(ddof=1) / np.sqrt(bench.runs):.3f} at the end"
                    for k in range(LAYERS)
                ),
            )
        )
    if "converged" in bench.trainings:
        trained = bench.trained("Linear Transformer", "converged", data)
        index = trained.depths.index(LAYERS)
        deep = linear_transformer(5, max(trained.depths), key=jax.random.key(0))
        values = distances(bench, trained.vectors[:, index : index + 1], deep)
        for layer in range(LAYERS):
            rows += [
                Row(f"A_{layer}", "converged", steps, float(values[r, layer]), r, "distance")
                for r in range(bench.runs)
            ]
        claims.append(
            Claim(
                "a-at-the-optimum",
                "Ours: the one matrix that least squares finds is a multiple of the inverse covariance.",
                "Appendix D",
                "mean distance below 0.1, per layer",
                verdict(*(bool(values[:, layer].mean() < 0.1) for layer in range(LAYERS))),
                "; ".join(f"A_{k}: {values[:, k].mean():.3f}" for k in range(LAYERS)),
            )
        )
    return Outcome(rows, claims)
