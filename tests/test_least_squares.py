"""Who judges a step of least squares, and what its passes add up to."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from lfom import LeastSquares
from lfom.core.damped import damped_step, next_damping
from lfom.training.least_squares import _best
from tests.one_number import Moody, asking_for, numbers

RUNS, CHUNK = 64, 8


def least_squares(passes: tuple[int, int], **options: Any) -> LeastSquares:
    """Passes of one chunk."""
    return LeastSquares(first=CHUNK, last=CHUNK, chunk=CHUNK, passes=passes, **options)


def test_a_step_is_judged_on_prompts_that_it_was_not_fitted_to() -> None:
    """Prompts to fit and prompts to judge ask for 1 or -1, by a coin each: half of the steps are taken.
    There are two passes, so that three runs in four have moved."""
    found = numbers([Moody("coin")] * RUNS, least_squares(passes=(1, 1)))
    assert 0.6 < np.mean(found != 0) < 0.9
    np.testing.assert_allclose(np.abs(found), (found != 0), atol=1e-3)


def test_the_last_passes_together_are_one_larger_sample() -> None:
    """Every pass asks for a number of its own, with a spread of .1: after sixteen, their mean."""
    found = numbers([Moody("normal")] * 2 * RUNS, least_squares(passes=(1, 16)))
    assert abs(found.mean() - 1) < 0.01
    assert 0.1 / 4 * 0.8 < found.std() < 0.1 / 4 * 1.3


def test_matrices_are_freed_only_where_other_prompts_confirm_it_beyond_doubt() -> None:
    """There is nothing to gain from a second phase: with an error of two standard errors, hardly ever is a
    step taken for better. Half of the time it would look better."""
    freed, one = (
        numbers(
            [Moody("each")] * RUNS,
            least_squares(passes=(2, 2), every_matrix=every),
            start="data",
            preconditioner="full",
        )
        for every in (True, False)
    )
    assert abs(one.mean() - 1) < 0.2
    assert np.mean(np.abs(freed - one) > 1e-3) < 0.4


def test_what_the_held_out_part_of_a_set_gainsays_is_not_learned() -> None:
    """The first four fifths of the prompts ask for 1 and the rest for -1: no step helps both."""
    targets = jnp.asarray([1.0] * 40 + [-1.0] * 10)
    held_out, whole = LeastSquares(hold_out=0.2), LeastSquares(hold_out=0.0)
    assert numbers(asking_for(targets), held_out) == 0
    assert numbers(asking_for(-targets), held_out) == 0
    np.testing.assert_allclose(numbers(asking_for(targets[:40]), held_out), 1, atol=1e-3)
    # nothing is fitted to those that judge, though they like what the others ask for
    np.testing.assert_allclose(numbers(asking_for(jnp.abs(2 - targets)), held_out), 1, atol=1e-3)
    # with nothing held out the whole set is fitted, and asks for its mean
    np.testing.assert_allclose(numbers(asking_for(targets), whole), 0.6, atol=1e-3)


def test_a_set_that_does_not_fill_its_chunks_counts_every_prompt_once() -> None:
    found = numbers(asking_for(jnp.asarray([9.0] + [0.0] * 9)), LeastSquares(hold_out=0.0, chunk=7))
    np.testing.assert_allclose(found, 0.9, atol=1e-3)


@pytest.mark.parametrize("size", [1e-4, 1e4])
@pytest.mark.parametrize("gamma", [None, "diagonal"])  # in Krylov coordinates, and in its own numbers
def test_steps_do_not_depend_on_the_scale_of_the_problem(gamma: str | None, size: float) -> None:
    options: Any = {} if gamma is None else {"memory": "bank", "gamma": gamma}
    found = numbers(asking_for(jnp.ones(20), size), LeastSquares(hold_out=0.0, passes=(1, 1)), **options)
    np.testing.assert_allclose(size * found, 1, rtol=1e-3)


def test_damped_steps_of_a_batch_are_those_of_each_system() -> None:
    rng = np.random.default_rng(0)
    J, r, damping = rng.normal(size=(3, 6, 4)), rng.normal(size=(3, 6)), np.array([1e-3, 0.1, 10.0])
    J[:, :, 3] = 0  # nothing depends on it
    normal, slope = np.swapaxes(J, -1, -2) @ J, np.einsum("bki,bk->bi", J, r)
    found = damped_step(normal, slope, damping)
    for i in range(3):
        damped = normal[i] + damping[i] * np.diag(np.diag(normal[i]))
        np.testing.assert_allclose(found[i, :3], -np.linalg.solve(damped[:3, :3], slope[i, :3]), rtol=1e-10)
        np.testing.assert_allclose(damped_step(normal[i], slope[i], damping[i]), found[i], rtol=1e-12)
    np.testing.assert_array_equal(found[:, 3], 0)
    np.testing.assert_allclose(
        next_damping(damping, np.array([True, False, True])), damping * [1 / 3, 4, 1 / 3]
    )


def test_candidates_whose_losses_are_no_numbers_are_never_the_best() -> None:
    """Of the last three the loss, the gain, and the gain squared."""
    total = np.array([[1.0, 0.5, np.nan, 0.1, 0.1]])
    gain = np.array([[0.0, 0.5, np.nan, np.inf, 0.9]])
    square = np.array([[0.0, 0.25, np.nan, 1.0, np.inf]])
    best, relative = _best(total, gain, square, np.ones((1, 1)), cautious=False)
    assert best.tolist() == [1]
    assert relative.tolist() == [0.5]


def test_a_gain_counts_where_it_is_above_two_standard_errors() -> None:
    """Of four prompts: in one it is all there is, or it is the same in all."""
    total, judged = np.array([[4.0, 3.6]]), np.full((1, 1), 4.0)
    gain = np.array([[0.0, 0.4]])
    for square, won in ((0.16, 0.0), (0.04, 0.1)):
        squares = np.array([[0.0, square]])
        best, relative = _best(total, gain, squares, judged, cautious=False)
        assert best.tolist() == [1]
        np.testing.assert_allclose(relative, won)
        best, _ = _best(total, gain, squares, judged, cautious=True)
        assert best.tolist() == [int(won > 0)]
