"""Trainable models: initial values as the notes say, every option, and what is refused."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lfom import InputError, gradient_descent, run
from lfom.core.memories import Bank, Conjugate, Forget, Register
from lfom.core.preconditioners import Full
from lfom.core.readers import Gradient, Heads
from lfom.methods.memformer import (
    CONJUGATE,
    GAMMAS,
    MEMORIES,
    PRECONDITIONERS,
    linear_transformer,
    memformer,
    mixture,
)
from tests.helpers import make_prompt

KEY = jax.random.key(0)


@pytest.mark.parametrize(("tied", "own_is_one"), [(True, False), (False, True), (False, False)])
@pytest.mark.parametrize("gamma", GAMMAS)
def test_a_new_bank_is_a_linear_transformer(gamma: str, tied: bool, own_is_one: bool, x64: None) -> None:
    # own coefficients 1; tied and free, the older ones are 1 too, since Gamma_j is the same for every l
    options: dict[str, Any] = {"scale": 0.05, "key": KEY}
    depth = 1 if tied else 2
    bank = memformer(2, depth, gamma=gamma, tied=tied, own_is_one=own_is_one, context=4, **options)
    plain = linear_transformer(2, depth, **options)
    prompt = make_prompt(0, 4, 2)
    np.testing.assert_allclose(run(bank, prompt).predictions, run(plain, prompt).predictions, atol=1e-12)


def test_initial_values() -> None:
    A = memformer(20, 4, memory="register", key=KEY)
    assert isinstance(A.reader, Gradient)
    assert isinstance(A.reader.A, Full)
    assert float(jnp.std(A.reader.A.matrices)) == pytest.approx(1e-4, rel=0.1)
    assert isinstance(A.memory, Register)
    np.testing.assert_array_equal(A.memory.alpha, 1)
    np.testing.assert_array_equal(A.memory.gamma, 0)
    bank = memformer(2, 3, key=KEY).memory
    assert isinstance(bank, Bank)
    np.testing.assert_array_equal(bank.gamma.value, np.eye(3))  # type: ignore[attr-defined]
    learned_older = memformer(2, 3, own_is_one=True, key=KEY).memory
    np.testing.assert_array_equal(learned_older.gamma.value, 0)  # type: ignore[attr-defined]


def test_a_new_conjugate_memformer_is_nearly_conjugate_gradients() -> None:
    model = memformer(3, 2, memory="conjugate", key=KEY)
    assert isinstance(model.memory, Conjugate)
    A = model.reader.A.matrix(3)  # type: ignore[attr-defined]
    np.testing.assert_allclose(A, np.eye(3), atol=1e-3)


def test_options_choose_readers_and_memories() -> None:
    assert isinstance(linear_transformer(2, 3, key=KEY).memory, Forget)
    assert memformer(2, 3, covariates=True, key=KEY).moves_covariates
    assert not memformer(2, 3, key=KEY).moves_covariates
    heads = memformer(2, 3, heads=2, key=KEY).reader
    assert isinstance(heads, Heads)
    first, second = heads.readers
    assert not np.array_equal(first.A.matrices, second.A.matrices)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("preconditioner", "memory"),
    [
        (one, memory)
        for one in PRECONDITIONERS
        for memory in MEMORIES
        if one == "full" or memory not in CONJUGATE
    ],
)
def test_the_same_key_gives_the_same_model(memory: str, preconditioner: str) -> None:
    first, second = (memformer(2, 2, memory=memory, preconditioner=preconditioner, key=KEY) for _ in range(2))
    assert jax.tree.all(jax.tree.map(np.array_equal, first, second))


def test_gates_start_at_the_mean() -> None:
    heads = [gradient_descent(eta, 2) for eta in (0.1, 0.2)]
    np.testing.assert_array_equal(mixture(heads).gates, [0.5, 0.5])
    assert mixture(heads, per_layer=True).gates.shape == (2, 2)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: memformer(0, 2, key=KEY), "d is 0: it must be at least 1"),
        (lambda: memformer(2, 0, key=KEY), "depth is 0: it must be at least 1"),
        (lambda: memformer(2, 2, heads=0, key=KEY), "heads is 0: it must be at least 1"),
        (
            lambda: memformer(2, 2, memory="registr", key=KEY),
            "unknown memory 'registr'.*Did you mean register",
        ),
        (
            lambda: memformer(2, 2, preconditioner="ful", key=KEY),
            "unknown preconditioner 'ful'.*Did you mean full",
        ),
        (lambda: memformer(2, 2, gamma="pairs", key=KEY), "unknown gamma 'pairs'.*Did you mean pair"),
        (lambda: memformer(2, 2, gamma="diagonal", covariates=True, key=KEY), "pass gamma='rows'"),
        (
            lambda: memformer(2, 2, memory="conjugate", preconditioner="shared", key=KEY),
            "preconditioner is 'shared': conjugate directions need one symmetric matrix",
        ),
        (lambda: memformer(2, 2, memory="conjugate", heads=2, key=KEY), "needs B = 0 and one head: leave"),
        (lambda: memformer(2, 2, memory="conjugate", covariates=True, key=KEY), "needs B = 0 and one head"),
        (
            lambda: memformer(2, 2, gamma="tokens", key=KEY),
            "gamma='tokens' holds a number per token: pass context=n",
        ),
        (lambda: memformer(2, 2, gamma="tokens", context=0, key=KEY), "context is 0"),
        (lambda: mixture([]), "heads is empty: a mixture needs at least one head"),
        (
            lambda: mixture([gradient_descent(0.1, 1), gradient_descent(0.1, 2)]),
            r"heads have depths \[1, 2\]",
        ),
        (
            lambda: mixture([gradient_descent(0.1, 1)], jnp.ones(2)),
            r"gates has shape \(2,\), expected \(1,\)",
        ),
    ],
)
def test_bad_models_are_refused_at_once(build: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build()


@pytest.mark.parametrize("memory", ["none", "register", "conjugate"])
@pytest.mark.parametrize("option", [{"gamma": "rows"}, {"tied": True}, {"own_is_one": True}])
def test_options_of_a_bank_are_refused_for_other_memories(memory: str, option: dict) -> None:
    with pytest.raises(InputError, match=f"{next(iter(option))} shape.*bank.*{memory}"):
        memformer(3, 2, memory=memory, key=jax.random.key(0), **option)
