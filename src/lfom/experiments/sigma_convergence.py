"""Figures sigma_a0, sigma_a1, sigma_a2: the matrices A_l against the inverse covariance."""

from typing import Any

import jax
import numpy as np

from lfom.core.parameters import at_layer
from lfom.core.vectors import from_vector, vector_of
from lfom.experiments.experiment import Experiment
from lfom.experiments.rows import Row, flatten, run_rows
from lfom.experiments.statistics import Claims, distance_to_identity, written
from lfom.experiments.workbench import Outcome, Workbench
from lfom.methods.memformer import linear_transformer
from lfom.training import Adam, State, fit

LAYERS = 3
BATCH = 20_000


def distances(bench: Workbench, vectors: np.ndarray, model: Any) -> np.ndarray:
    """(runs, layers)"""
    found = []
    for run, data in enumerate(bench.data().each()):
        root = np.asarray(data.root)
        A = from_vector(model, vectors[run, 0]).reader.A
        matrices = [np.asarray(at_layer(A, layer).matrix(root.shape[0])) for layer in range(LAYERS)]
        found.append([distance_to_identity(root @ a @ root.T) for a in matrices])
    return np.asarray(found)


def rows_of(training: str, step: int, values: np.ndarray, **more: Any) -> list[Row]:
    each = enumerate(values.T)
    return flatten(run_rows(f"A_{k}", training, step, own, "distance", **more) for k, own in each)


class SigmaConvergence(Experiment):
    name = "sigma_convergence"
    title = "A_l converges to a multiple of the inverse covariance"
    section = "Appendix D, Figures sigma_a0 to sigma_a2"
    shows = (
        "The distance of S^1/2 A_l S^1/2 from a multiple of the identity, for the three layers of a Linear "
        "Transformer, against training steps. There are no published values."
    )
    trained = (
        "paper: Adam with batches of 20,000, resampled every 100 steps, gradients clipped to 0.01 (curves over "
        "steps). converged: least squares (one value, drawn at the last step)."
    )
    x_label, y_label = "Adam steps", "distance from a multiple of the inverse covariance"

    def run(self, bench: Workbench) -> Outcome:
        data = bench.data()
        model = linear_transformer(5, LAYERS, key=jax.random.fold_in(bench.key, 5))
        steps, rows, claims = bench.preset.adam_steps, [], Claims("Appendix D")
        if "paper" in bench.trainings:
            start = np.stack([[vector_of(model)]] * bench.runs)
            trail: dict[int, np.ndarray] = {0: distances(bench, start, model)}

            def watch(state: State, record: dict[str, Any]) -> None:
                trail[record["step"]] = distances(bench, state.vectors, model)

            bench.say(f"training three layers with Adam, batch {BATCH:,}")
            fit(model, data, key=bench.stream("sigma"), optimiser=Adam(steps=steps, batch=BATCH), watch=watch)
            rows += flatten(rows_of("paper", step, each, prompts=BATCH) for step, each in trail.items())
            end = max(trail)  # whole rounds of 100
            last, half = trail[end], trail[min(trail, key=lambda s: abs(s - end // 2))]
            claims.test(
                "a-converges-to-inverse-covariance",
                "Every A_l converges to a multiple of the inverse covariance.",
                f"mean distance below 0.1 after {end} Adam steps, per layer",
                (last[:, k].mean() < 0.1 for k in range(LAYERS)),
                "; ".join(
                    f"A_{k}: {half[:, k].mean():.3f} after half the steps, {written(last[:, k], '.3f')} at the end"
                    for k in range(LAYERS)
                ),
            )
        if "converged" in bench.trainings:
            trained = bench.trained("Linear Transformer", "converged", data)
            index = trained.depths.index(LAYERS)
            deep = linear_transformer(5, max(trained.depths), key=jax.random.key(0))
            values = distances(bench, trained.vectors[:, index : index + 1], deep)
            rows += rows_of("converged", steps, values)
            means = [float(values[:, k].mean()) for k in range(LAYERS)]
            claims.test(
                "a-at-the-optimum",
                "Ours: the one matrix that least squares finds is a multiple of the inverse covariance.",
                "mean distance below 0.1, per layer",
                (mean < 0.1 for mean in means),
                "; ".join(f"A_{k}: {mean:.3f}" for k, mean in enumerate(means)),
            )
        return Outcome(rows, claims)
