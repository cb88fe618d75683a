"""Prompts from a user's own arrays, and what is refused."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lfom import InputError, Prompt, gradient_descent, least_squares, prompt_from_arrays, ridge, run


def arrays(prompts: int = 3, n: int = 4, d: int = 2) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        "X": rng.normal(size=(prompts, n, d)),
        "y": rng.normal(size=(prompts, n)),
        "query": rng.normal(size=(prompts, d)),
        "target": rng.normal(size=prompts),
        "weights": rng.normal(size=(prompts, d)),
    }


def test_values_are_kept_alone_and_in_a_batch() -> None:
    given = arrays()
    batch = prompt_from_arrays(**given)
    assert batch.batched
    single = prompt_from_arrays(**{name: value[1] for name, value in given.items()})
    assert not single.batched
    for name, value in given.items():
        np.testing.assert_allclose(getattr(batch, name), value, rtol=1e-6)
        np.testing.assert_array_equal(getattr(single, name), getattr(batch, name)[1])


def test_a_prompt_is_a_pytree_of_its_arrays() -> None:
    batch = prompt_from_arrays(**arrays())
    assert len(jax.tree.leaves(batch)) == 5
    assert isinstance(jax.tree.map(lambda leaf: 2 * leaf, batch), Prompt)


def test_the_true_weights_may_be_unknown() -> None:
    given = arrays() | {"weights": None}
    assert prompt_from_arrays(**given).weights is None


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("y", (3, 5), "(3, 4)"),
        ("query", (3, 3), "(3, 2)"),
        ("target", (2,), "(3)"),
        ("weights", (2, 2), "(3, 2)"),
        ("X", (0, 4, 2), "(any, any, any)"),  # an empty batch
        ("X", (3, 0, 2), "(any, any, any)"),  # n = 0
        ("X", (3, 4, 0), "(any, any, any)"),
    ],
)
def test_wrong_shapes_are_named(name: str, shape: tuple[int, ...], expected: str) -> None:
    message = re.escape(f"{name} has shape {shape}, expected {expected} with no empty axis")
    with pytest.raises(InputError, match=message):
        prompt_from_arrays(**(arrays() | {name: np.zeros(shape)}))


@pytest.mark.parametrize("rank", [1, 4])
def test_wrong_rank_is_named(rank: int) -> None:
    with pytest.raises(InputError, match=rf"X has {rank} axes: pass \(n, d\).*\(prompts, n, d\)"):
        prompt_from_arrays(**(arrays() | {"X": np.zeros((2,) * rank)}))


def test_ragged_examples_are_named() -> None:
    with pytest.raises(InputError, match="X cannot be read as one array"):
        prompt_from_arrays([[1.0, 2.0], [1.0]], [1.0, 2.0], [1.0, 2.0], 1.0)


@pytest.mark.parametrize("name", ["X", "y", "query", "target", "weights"])
@pytest.mark.parametrize("dtype", [int, complex])
def test_integer_and_complex_arrays_are_refused(name: str, dtype: type) -> None:
    given = arrays()
    with pytest.raises(InputError, match=f"{name} has dtype {np.dtype(dtype)}"):
        prompt_from_arrays(**(given | {name: np.ones(given[name].shape, dtype)}))


@pytest.mark.parametrize("name", ["X", "y", "query", "target", "weights"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_bad_prompt_in_a_batch_is_named_by_its_index(name: str, bad: float) -> None:
    given = arrays()
    given[name][2] = bad
    with pytest.raises(InputError, match=f"{name} holds {bad} at prompt 2"):
        prompt_from_arrays(**given)


@pytest.mark.parametrize(
    "use", [lambda p: run(gradient_descent(0.1, 1), p), least_squares, lambda p: ridge(p, 0.1)]
)
def test_a_prompt_built_by_hand_is_checked_where_it_is_used(use: Any) -> None:
    good = prompt_from_arrays(**arrays())
    bad = Prompt(good.X, good.y.at[1, 3].set(jnp.nan), good.query, good.target)
    with pytest.raises(InputError, match=r"y holds nan at prompt 1, entry \[3\]"):
        use(bad)
