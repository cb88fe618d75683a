"""What experiments share on the workbench: made once, and never taken for something else."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from lfom import (
    Adam,
    PerRun,
    conjugate_gradient,
    exact_optimum,
    gradient_descent,
    momentum,
    nesterov,
)
from lfom.experiments.workbench import A_THEN_GAMMA, PRESETS, WITH_PHASES, Preset, Workbench, kept
from lfom.limits.optimum import with_preconditioner
from lfom.methods.classical import APPENDIX_B

SPECTRUM = (1.0, 0.5)
LABELS = {"plain": 1.0, "wide": 3.0}  # the variance of the covariates


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes workbenches for two runs and few prompts."""
    monkeypatch.setitem(PRESETS, "tiny", Preset("tiny", prompts=400, adam_steps=100, least_squares=0.01))
    return lambda: Workbench("tiny", runs=2)


def data(bench: Workbench, label: str) -> Any:
    return bench.data(SPECTRUM, context=8, variance=LABELS[label])


def scored(bench: Workbench, label: str, on: Any = None) -> np.ndarray:
    return bench.scores({"GD": gradient_descent(0.3, 2)}, on or data(bench, label), label)["GD"].mean


def trained(
    bench: Workbench, label: str, on: Any = None, training: str = "paper", depth: int = 1
) -> np.ndarray:
    curve = "Linear Transformer, scalar A"
    return bench.trained(curve, training, on or data(bench, label), (depth,), label).vectors


def tuned(bench: Workbench, label: str) -> np.ndarray:
    table = bench.curves((), data(bench, label), (1,), label)
    return np.stack([scores[1].mean[:, -1] for scores in table.values()])


@pytest.mark.parametrize("make", [scored, trained, tuned])
def test_what_was_made_for_one_label_is_not_handed_out_for_another(make: Any, bench: Any) -> None:
    shared = bench()
    found = {label: make(shared, label) for label in LABELS}
    assert not np.allclose(found["plain"], found["wide"], rtol=0.1)
    for label in LABELS:
        assert make(shared, label).tobytes() == found[label].tobytes()
    np.testing.assert_array_equal(make(bench(), "wide"), found["wide"])  # as on a bench of its own


@pytest.mark.parametrize("make", [scored, trained])
def test_one_dataset_under_two_labels_has_prompts_of_each(make: Any, bench: Any) -> None:
    shared = bench()
    first, second = (make(shared, label, data(shared, "plain")) for label in LABELS)
    assert not np.array_equal(first, second)


def test_baselines_are_tuned_for_every_label_and_scores_made_for_every_number_of_prompts(bench: Any) -> None:
    said: list[str] = []
    shared = bench()
    shared.say = said.append
    for label in LABELS:
        shared.curves((), data(shared, "plain"), (1,), label)
    assert [line for line in said if "tuning" in line] == [f"tuning baselines ({label})" for label in LABELS]
    gd = {"GD": gradient_descent(0.3, 2)}
    for prompts in (100, 300):
        assert shared.scores(gd, data(shared, "plain"), "plain", prompts)["GD"].prompts == prompts


def test_functions_of_one_name_and_other_trainings_are_kept_apart(bench: Any) -> None:
    def optimiser(bench: Workbench, training: str) -> Any:
        return bench.optimiser(training)

    def elsewhere(bench: Workbench, training: str) -> Any:
        return "another module's"

    elsewhere.__qualname__, elsewhere.__module__ = optimiser.__qualname__, "elsewhere"
    ours, theirs, shared = kept(optimiser), kept(elsewhere), bench()
    assert ours(shared, "paper") == Adam(steps=100)
    assert theirs(shared, "paper") == "another module's"
    other = shared.with_trainings({"paper": Adam(steps=3)})
    assert ours(other, "paper") == Adam(steps=3)
    fewer = shared.with_trainings({"paper": shared.trainings["paper"]})
    assert ours(fewer, "paper") is ours(shared, "paper")  # shared by experiments with fewer trainings


def test_options_of_data_may_be_lists(bench: Any) -> None:
    shared = bench()
    assert shared.data(SPECTRUM, weights=[1.0, 2.0]) is shared.data(SPECTRUM, weights=[1.0, 2.0])
    assert shared.data(SPECTRUM, weights=[1.0, 2.0]) is not shared.data(SPECTRUM, weights=[1.0, 3.0])


def test_baselines_are_the_methods_that_they_are_called(bench: Any) -> None:
    """At every depth, on the same prompts as the methods built by hand."""
    shared, depths = bench(), (1, 3)
    wide = data(shared, "wide")
    inverse = [np.linalg.inv(wide[run].covariance) for run in range(2)]
    (eta, beta), (eta_m, beta_m) = APPENDIX_B["Nesterov"], APPENDIX_B["momentum"]
    by_hand: dict[str, Any] = {}
    for depth in depths:
        best = exact_optimum(2, 8, depth)
        by_hand |= {
            f"CGD|{depth}": conjugate_gradient(depth),
            f"Preconditioned CGD|{depth}": PerRun(
                [conjugate_gradient(depth, (A + A.T) / 2) for A in inverse]
            ),
            f"NAG|{depth}": nesterov(8 * eta, beta, depth),  # their gradient is a sum over the context
            f"Momentum GD|{depth}": momentum(8 * eta_m, beta_m, depth),
            f"exact optimum|{depth}": PerRun([with_preconditioner(best, jnp.asarray(A)) for A in inverse]),
        }
    found = shared.curves((), wide, depths, "wide")
    wanted = shared.scores({f"by hand|{name}": m for name, m in by_hand.items()}, wide, "wide")
    for name, score in wanted.items():
        _, curve, depth = name.split("|")
        ours = found[curve, "none"][int(depth)]
        np.testing.assert_allclose(ours.mean[:, -1], score.mean[:, -1], rtol=1e-3, atol=1e-9, err_msg=name)
        np.testing.assert_allclose(
            ours.stderr[:, -1], score.stderr[:, -1], rtol=1e-2, atol=1e-9, err_msg=name
        )


def test_every_run_has_a_rotation_of_its_own(bench: Any) -> None:
    wide = data(bench(), "wide")
    first, second = (np.asarray(wide[run].covariance) for run in range(2))
    for covariance in (first, second):
        np.testing.assert_allclose(np.linalg.eigvalsh(covariance), [1.5, 3.0], rtol=1e-5)
    assert np.abs(first - second).max() > 0.1


def test_trainings_and_depths_are_not_taken_for_one_another(bench: Any) -> None:
    shared = bench().with_trainings(WITH_PHASES)
    cases = (("paper", 1), ("paper", 2), ("converged", 1), (A_THEN_GAMMA, 1))
    found = [trained(shared, "plain", None, training, depth) for training, depth in cases]
    assert len({vectors.tobytes() for vectors in found}) == 4
