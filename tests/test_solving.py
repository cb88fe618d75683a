"""method.solve: where every problem stops, and that no step of the fallback climbs."""

from typing import Any

import jax
import numpy as np
import pytest

import lfom
from lfom.solving import statuses
from tests.learned_problems import classifications, fresh_regressions, learned, learned_from_losses

pytestmark = pytest.mark.usefixtures("x64")
CASES = {
    "register": ("scalar", 5, 0.15),
    "register, then conjugate gradients": ("scalar", 9, 1e-2),
    "bank": ("diagonal", 5, 0.15),
    "conjugate gradients": ("conjugate:jacobi+diagonal", 6, 1e-2),
    "losses": ("losses", 4, 0.05),
    "losses, then line searches": ("losses", 12, 1e-3),
}


@pytest.mark.parametrize("case", CASES)
def test_a_problem_counts_steps_until_it_meets_the_tolerance_and_no_further(case: str) -> None:
    name, steps, limit = CASES[case]
    method = learned_from_losses() if name == "losses" else learned(name)
    problems: Any = classifications(count=40, seed=1) if name == "losses" else fresh_regressions()
    every, stopped = method.solve(problems, steps), method.solve(problems, steps, limit)
    met = np.asarray(every.residuals) <= limit
    first = np.where(met.any(axis=1), met.argmax(axis=1), steps)
    assert len(set(first.tolist())) > 2
    np.testing.assert_array_equal(stopped.steps, first)
    np.testing.assert_array_equal(stopped.status // 10, np.where(met.any(axis=1), 1, 2))
    later = np.arange(steps + 1) >= first[:, None]
    held = np.where(
        later, np.take_along_axis(np.asarray(every.residuals), first[:, None], axis=1), every.residuals
    )
    np.testing.assert_allclose(stopped.residuals, held, rtol=1e-6, atol=1e-12)


def test_a_tolerance_is_met_by_the_residual_itself_not_by_its_recurrence() -> None:
    """Ill-conditioned systems in float32: rounding leaves more than 1e-4 of most of them, while the residual
    that conjugate gradients carry along goes on falling."""
    rng = np.random.default_rng(0)
    Q = np.linalg.qr(rng.normal(size=(50, 6, 6)))[0]
    A = np.einsum("pij,j,pkj->pik", Q, np.geomspace(1e-5, 1, 6), Q).astype(np.float32)
    A, b = (A + A.swapaxes(1, 2)) / 2, rng.normal(size=(50, 6)).astype(np.float32)
    method, counts = learned("conjugate:jacobi+diagonal").astype("float32"), []
    for limit in (0.3, 1e-2, 1e-3, 1e-4):
        found = method.solve(lfom.LinearSystems(A, b), 60, limit)
        left = b - np.einsum("pij,pj->pi", A.astype(float), np.asarray(found.value, float))
        share = np.linalg.norm(left, axis=1) / np.linalg.norm(b, axis=1)
        met = np.asarray(found.status) // 10 == 1
        assert (share[met] <= limit).all()
        counts.append(int(met.sum()))
    assert counts[0] > 40
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] < 25


def test_a_ridge_is_part_of_the_problem() -> None:
    """One per problem, from none to a large one: the solutions are those of ridge regression."""
    plain = fresh_regressions(ridge=0.0)
    ridges = np.geomspace(1e-4, 10, len(plain))
    ridges[0] = 0
    problems = lfom.LeastSquaresProblems(plain.X, plain.y, ridges)
    X, y = np.asarray(plain.X), np.asarray(plain.y)
    gram = np.einsum("pni,pnj->pij", X, X) / X.shape[1] + ridges[:, None, None] * np.eye(6)
    wanted = np.linalg.solve(gram, np.einsum("pni,pn->pi", X, y)[..., None] / X.shape[1])[..., 0]
    found = learned("conjugate:jacobi+diagonal").solve(problems, tolerance=1e-10)
    np.testing.assert_allclose(found.value, wanted, rtol=1e-6, atol=1e-8)


def bowl(w: jax.Array, data: Any) -> jax.Array:
    steep, centre = data
    return steep * ((w - centre) ** 2).sum() / 2


def test_no_step_of_the_line_search_climbs() -> None:
    """The first trial of the fallback has length 1. Where the minimum lies a hair before 1/2, that ends a
    hair above the start: it must be refused, and 1/2 be taken."""
    rng = np.random.default_rng(0)
    gentle = (rng.uniform(0.8, 1.2, 50), rng.normal(size=(50, 1)))
    method = lfom.learn(lfom.ConvexLosses(bowl, gentle, size=1), 2, "scalar", iterations=0)
    hair = np.array([2e-5, 1e-3, 1e-2, 0.1])
    steep = lfom.ConvexLosses(bowl, (np.full(4, 1e4), (0.5 - hair)[:, None]), size=1)
    found = method.solve(steep, steps=1)
    assert (found.status == statuses.FALLBACK).all()
    np.testing.assert_allclose(found.value, 0.5, rtol=1e-9)
    assert (found.steps == 1).all()
    # a hair behind 1/2 the whole step falls, but not enough: Armijo asks for a share of the promised fall
    little = lfom.ConvexLosses(bowl, (np.full(2, 1e4), np.array([[0.5 + 1e-5], [0.5 + 1e-3]])), size=1)
    np.testing.assert_allclose(method.solve(little, steps=1).value, [[0.5], [1.0]], rtol=1e-9)


def test_no_step_is_taken_once_a_tolerance_is_met() -> None:
    """It counts from the size of the start's residual, here 8."""
    systems = lfom.LinearSystems(
        np.diag(np.linspace(1, 50, 64))[None], np.sign(np.sin(np.arange(64.0) + 1))[None]
    )
    for tolerance in (1e-1, 1e-2, 1e-3):
        found = lfom.conjugate_gradient(64).solve(systems, tolerance=tolerance)
        steps, residuals = int(found.steps[0]), np.asarray(found.residuals)[0]
        assert residuals[steps] <= tolerance < residuals[steps - 1]
