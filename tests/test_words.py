"""Every public object is shown in one short line."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import lfom
from lfom.core.words import LONGEST, brief
from lfom.frontends.linear_solver import LearnedSolver
from lfom.reproduction import Done
from lfom.solving.certificate import Certificate
from lfom.solving.records import Accuracy, Record
from tests.bad_calls.good import good_calls, things

MADE = (
    "Adam", "adapt", "AnyLength", "AnyOf", "ConvexLosses", "exact_optimum", "fit", "GammaLengths", "GaussianKernel",
    "GaussianMixture", "GaussianProcess", "HeavyTailed", "learn", "LeastSquares", "LeastSquaresProblems", "LinearRegression",
    "LinearSystems", "LinkRegression", "LogisticRegression", "memformer", "mixture", "newton", "OneOrthant", "OnSphere",
    "OrthogonalQuery", "PerRun", "PoissonRegression", "PosteriorMean", "prompt_from_arrays", "RandomScale", "RepeatedQuery",
    "run", "tune", "Workbench", "worst_case", "Method.solve", "Distribution.prompts", "Distribution.quadratics",
    "Distribution.joints",
)  # fmt: skip
LONGEST_LINE = 160  # of a solution, which names its method


@pytest.mark.parametrize("name", MADE)
def test_what_functions_return_is_one_line(name: str, tmp_path: Path) -> None:
    function, arguments = good_calls(tmp_path)[name]
    text = repr(function(**arguments))
    assert "\n" not in text
    assert 0 < len(text) <= LONGEST_LINE
    assert " object at 0x" not in text


@pytest.mark.parametrize("name", lfom.__all__)
def test_exports_are_one_line(name: str) -> None:
    assert "\n" not in repr(getattr(lfom, name))


def parts() -> list[Any]:
    key = jax.random.key(0)
    model = lfom.memformer(2, 2, key=key, covariates=True)
    score = lfom.evaluate({"GD": things()["gd"]}, things()["data"], prompts=20, key=key)["GD"]
    claim = lfom.Claim("a", "words " * 50, "Section 3", "test", "holds", "evidence")
    return [
        model.reader,
        model.memory,
        model.memory.coefficients if hasattr(model.memory, "coefficients") else model.reader,
        score,
        claim,
        lfom.Row("curve", "paper", 1.0, 2.0),
        lfom.Outcome([], [claim] * 20),
        things()["fit"],
        things()["fit"].per_run(),
        lfom.Adam(steps=5),
    ]


def test_parts_and_results_are_one_line() -> None:
    for part in parts():
        assert "\n" not in repr(part)
        assert len(repr(part)) <= LONGEST_LINE


def test_what_is_known_of_a_learned_method_is_one_line_however_many_steps_it_has() -> None:
    many = tuple(np.linspace(0, 1, 100).tolist())
    accuracy = Accuracy(many, many, many, 10, "cross-validated")
    record = Record(12, 0, accuracy, tuple((f"structure {k}", 0.1) for k in range(9)))
    solver = LearnedSolver(lfom.gradient_descent(0.1, steps=30))
    for part in (
        accuracy,
        record,
        Certificate(many, (0.1, 0.9), True, 0.5),
        solver,
        Done("a", "made", 1 / 3),
    ):
        assert "\n" not in repr(part)
        assert len(repr(part)) <= LONGEST


def test_what_is_as_by_default_is_not_said() -> None:
    assert repr(lfom.Adam()) == "Adam()"
    assert repr(lfom.Adam(steps=5, log=True)) == "Adam(steps=5, log=True)"


def test_a_line_ends_in_time() -> None:
    claim = lfom.Claim(*["x" * 39] * 6)
    assert brief(claim).endswith("...)")
    assert len(brief(claim)) <= LONGEST


def test_arrays_are_told_by_their_shape_also_inside_programs() -> None:
    told = []

    def inside(X: Any) -> Any:
        told.append(repr(lfom.Prompt(X, X[:, 0], X[0], X[0, 0])))
        return X

    jax.jit(inside)(np.ones((3, 2), np.float32))
    assert told == ["Prompt(X=float32(3, 2), y=float32(3,), query=float32(2,), target=float32())"]
