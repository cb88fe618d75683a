"""Problems by hand: Gram matrices, slopes and curvatures that every view must share."""

import jax.numpy as jnp
import numpy as np
import pytest

from lfom.core.problems import Examples, Objective, Problem, Quadratic, Tokens
from lfom.core.states import Direction, Track
from tests.helpers import make_prompt


def test_tokens_hold_examples_in_columns_and_no_query_label(x64: None) -> None:
    prompt = make_prompt(0, 4, 2)
    Z = np.asarray(Tokens.of(prompt).Z_0)
    np.testing.assert_array_equal(Z[:2, :4], prompt.X.T)
    np.testing.assert_array_equal(Z[2, :4], prompt.y)
    np.testing.assert_array_equal(Z[:, 4], [*prompt.query, 0.0])


def test_the_quadratic_of_a_prompt(x64: None) -> None:
    prompt = make_prompt(0, 4, 2, noise=0.5)
    q, X, y = Quadratic.of(prompt), np.asarray(prompt.X), np.asarray(prompt.y)
    np.testing.assert_allclose(q.gram, X.T @ X / 4)
    np.testing.assert_allclose(q.moment, X.T @ y / 4)
    w = np.array([0.3, -0.7])
    np.testing.assert_allclose(q.residual(jnp.asarray(w)), [w @ np.asarray(prompt.query) - prompt.target])


@pytest.mark.parametrize("kind", ["gram", "examples", "tokens"])
def test_slope_and_curvature_are_those_of_the_loss(kind: str, x64: None) -> None:
    prompt = make_prompt(0, 5, 3, noise=0.5)
    X, y = np.asarray(prompt.X), np.asarray(prompt.y)
    s = np.array([0.3, -0.7, 1.1])
    direction: object = Direction(Track(jnp.asarray(s)))
    problem: Problem = Quadratic.of(prompt) if kind == "gram" else Examples(prompt.X, prompt.y)
    if kind == "tokens":
        problem = Tokens.of(prompt)
        direction = jnp.zeros((4, 6)).at[-1, :-1].set(-X @ s)  # a step along s lowers labels by x.s
    state = problem.start(splits=False, moves_covariates=False)
    assert float(problem.slope(state, direction)) == pytest.approx(y @ X @ s / 5)
    curvature, _ = problem.curvature(direction)
    assert float(curvature) == pytest.approx(s @ X.T @ X @ s / 5)
    moved = problem.move(state, direction)
    assert float(problem.slope(moved, direction)) == pytest.approx((y - X @ s) @ X @ s / 5)


def test_the_image_kept_in_a_direction_is_reused(x64: None) -> None:
    # conjugate gradients need one product with the Hessian per step
    problem = Quadratic.of(make_prompt(0, 5, 3))
    direction = Direction(Track(jnp.ones(3)))
    _, kept = problem.curvature(direction)
    assert kept.image is not None
    np.testing.assert_allclose(kept.image, problem.gram @ jnp.ones(3))
    state = problem.start(splits=False, moves_covariates=False)
    np.testing.assert_allclose(problem.move(state, kept).gradient, problem.move(state, direction).gradient)


def test_an_objective_starts_where_it_is_told() -> None:
    problem = Objective(lambda w: jnp.sum(w**2), jnp.asarray([1.0, -2.0]))
    w, gradient = problem.initial()
    np.testing.assert_array_equal(w, [1.0, -2.0])
    np.testing.assert_array_equal(gradient, [2.0, -4.0])
