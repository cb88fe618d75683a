"""What experiments share on the workbench: made once, and never taken for something else."""

from typing import Any

import numpy as np
import pytest

from lfom import gradient_descent
from lfom.experiments.workbench import PRESETS, Preset, Workbench

SPECTRUM = (1.0, 0.5)
LABELS = {"plain": 1.0, "wide": 3.0}  # the variance of the covariates


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes workbenches for two runs and few prompts."""
    monkeypatch.setitem(PRESETS, "tiny", Preset("tiny", prompts=400, adam_steps=100, least_squares=0.01))
    return lambda: Workbench("tiny", runs=2)


def data(bench: Workbench, label: str) -> Any:
    return bench.data(SPECTRUM, context=8, variance=LABELS[label])


def scored(bench: Workbench, label: str) -> np.ndarray:
    return bench.scores({"GD": gradient_descent(0.3, 2)}, data(bench, label), label)["GD"].mean


def trained(bench: Workbench, label: str, training: str = "paper", depth: int = 1) -> np.ndarray:
    curve = "Linear Transformer, scalar A"
    return bench.trained(curve, training, data(bench, label), (depth,), label).vectors


def tuned(bench: Workbench, label: str) -> np.ndarray:
    table = bench.baselines(data(bench, label), (1,), label)
    return np.stack([scores[1].mean[:, -1] for scores in table.values()])


@pytest.mark.parametrize("make", [scored, trained, tuned])
def test_what_was_made_for_one_label_is_not_handed_out_for_another(make: Any, bench: Any) -> None:
    shared = bench()
    found = {label: make(shared, label) for label in LABELS}
    assert not np.allclose(found["plain"], found["wide"], rtol=0.1)
    for label in LABELS:
        assert make(shared, label).tobytes() == found[label].tobytes()
    np.testing.assert_array_equal(make(bench(), "wide"), found["wide"])  # as on a bench of its own


def test_trainings_and_depths_are_not_taken_for_one_another(bench: Any) -> None:
    shared = bench()
    found = [
        trained(shared, "plain", training, depth) for training in ("paper", "converged") for depth in (1, 2)
    ]
    assert len({vectors.tobytes() for vectors in found}) == 4
