"""Who judges a step of least squares, and what passes add up to: on problems of one number.

Prompts here have the Gram matrix 1 and the moment 1, so that a model of one scalar layer answers with its
own number a, and the loss is (a - target)^2.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from lfom import LeastSquares, Prompt, fit, memformer, prompt_from_arrays, run
from lfom.core.problems import Quadratic
from lfom.prompts.distributions import Distribution

RUNS, CHUNK = 64, 8


def asking_for(targets: jax.Array) -> Quadratic:
    one = jnp.ones((1, *targets.shape))
    return Quadratic(one[None], one, jnp.ones((1, 1)), targets[None])


class Moody(Distribution):
    """All prompts drawn at once ask for the same number, the next ones for another."""

    spectrum: jax.Array
    kind: str = eqx.field(static=True)

    def __init__(self, kind: str):
        self.spectrum, self.kind = jnp.ones(1), kind

    @property
    def dimension(self) -> int:
        return 1

    def prompt(self, key: jax.Array) -> Prompt:
        raise NotImplementedError

    def quadratics(self, key: jax.Array, count: int) -> Quadratic:
        coin = jax.random.rademacher(key, (), float)
        mood = coin if self.kind == "coin" else 1 + 0.1 * jax.random.normal(key)
        return asking_for(jnp.broadcast_to(mood, (count,)))


def numbers(data: Any, **options: Any) -> np.ndarray:
    """The number that every run has learned: its answer to the prompt. It starts at 0."""
    start = memformer(1, 1, memory="none", preconditioner="scalar", scale=0.0, key=jax.random.key(0))
    fitted = fit(start, data, key=jax.random.key(1), optimiser=LeastSquares(**options), start="model")
    one = jnp.ones(1)
    prompt = prompt_from_arrays(one[None], one, one, one[0])
    return np.array([float(run(fitted.model(k), prompt).predictions[-1]) for k in range(fitted.runs)])


def test_a_step_is_judged_on_prompts_that_it_was_not_fitted_to() -> None:
    """Prompts to fit and prompts to judge ask for 1 or -1, by a coin each: half of the steps are taken.
    There are two passes, so that three runs in four have moved."""
    found = numbers([Moody("coin")] * RUNS, first=CHUNK, last=CHUNK, chunk=CHUNK, passes=(1, 1))
    assert 0.55 < np.mean(found != 0) < 0.95
    np.testing.assert_allclose(np.abs(found), (found != 0), atol=1e-3)


def test_the_last_passes_together_are_one_larger_sample() -> None:
    """Every pass asks for a number of its own, with a spread of .1: after sixteen, their mean."""
    found = numbers([Moody("normal")] * 2 * RUNS, first=CHUNK, last=CHUNK, chunk=CHUNK, passes=(1, 16))
    assert abs(found.mean() - 1) < 0.01
    assert 0.1 / 4 * 0.8 < found.std() < 0.1 / 4 * 1.3


def test_what_the_held_out_part_of_a_set_gainsays_is_not_learned() -> None:
    """The first four fifths of the prompts ask for 1 and the rest for -1: no step helps both."""
    targets = jnp.asarray([1.0] * 40 + [-1.0] * 10)
    assert numbers(asking_for(targets), hold_out=0.2) == 0
    assert numbers(asking_for(-targets), hold_out=0.2) == 0
    np.testing.assert_allclose(numbers(asking_for(targets[:40]), hold_out=0.2), 1, atol=1e-3)
    # with nothing held out the whole set is fitted, and asks for its mean
    np.testing.assert_allclose(numbers(asking_for(targets), hold_out=0.0), 0.6, atol=1e-3)
