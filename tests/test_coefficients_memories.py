"""Gamma and the memories by hand: each formula of Section 3 on random directions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lfom.core.coefficients import Coefficient, Pair, Scalar
from lfom.core.memories import Bank, Forget, Memory, Register, scalar_bank
from lfom.core.parameters import at_layer
from lfom.core.problems import Tokens
from lfom.core.states import Direction, Track
from tests.helpers import coefficient

D, N, DEPTH = 2, 4, 3
NOWHERE = Tokens(jnp.zeros((D + 1, N + 1)))  # linear memories read no problem


def tokens(seed: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=(D + 1, N + 1)))


def steps(memory: Memory, room: int | None = None) -> list[np.ndarray]:
    """The steps of every layer; with room, what is remembered has one size throughout."""
    past, found = at_layer(memory, 0).start(jnp.zeros((D + 1, N + 1)), None, NOWHERE, room), []
    for layer in range(DEPTH):
        step, past = at_layer(memory, layer)(tokens(layer), past, None, NOWHERE, layer)
        found.append(np.asarray(step))
    return found


def as_gamma(value: Coefficient) -> np.ndarray:
    """The full Gamma (d+1, n+1) that a structure stands for."""
    return np.asarray(value.on_tokens(jnp.ones((D + 1, N + 1))))


@pytest.mark.parametrize("kind", ["scalar", "pair", "rows", "tokens", "hadamard"])
def test_on_tokens_gamma_is_a_hadamard_product(kind: str, x64: None) -> None:
    gamma = coefficient(kind, np.random.default_rng(0), (), D, N)
    np.testing.assert_allclose(gamma.on_tokens(tokens(0)), as_gamma(gamma) * tokens(0))


def test_each_structure_varies_where_it_says(x64: None) -> None:
    gammas = {
        k: as_gamma(coefficient(k, np.random.default_rng(0), (), D, N))
        for k in ("scalar", "pair", "rows", "tokens", "hadamard")
    }
    assert len(np.unique(gammas["scalar"])) == 1
    assert len(np.unique(gammas["pair"][:, :-1])) == 1  # one value for the context
    assert len(np.unique(gammas["pair"][:, -1])) == 1  # another for the query
    assert gammas["pair"][0, 0] != gammas["pair"][0, -1]
    assert len(np.unique(gammas["rows"])) == D + 1
    assert (gammas["rows"] == gammas["rows"][:, :1]).all()
    assert len(np.unique(gammas["tokens"])) == N + 1
    assert (gammas["tokens"] == gammas["tokens"][:1]).all()
    assert len(np.unique(gammas["hadamard"])) == (D + 1) * (N + 1)


def test_a_pair_multiplies_both_tracks(x64: None) -> None:
    direction = Direction(Track(jnp.ones(D)), Track(jnp.ones(D)))
    found = Pair(jnp.asarray(2.0), jnp.asarray(3.0)).on_iterates(direction)
    assert found.query is not None
    np.testing.assert_array_equal(found.context.w, 2.0)
    np.testing.assert_array_equal(found.query.w, 3.0)


def test_no_memory_is_the_direction_times_a_step(x64: None) -> None:
    eta = np.array([0.5, -1.0, 2.0])
    for layer, step in enumerate(steps(Forget(jnp.asarray(eta)))):
        np.testing.assert_allclose(step, eta[layer] * tokens(layer))


def test_the_register_accumulates_with_gamma(x64: None) -> None:
    alpha, gamma = np.array([0.5, -1.0, 2.0]), np.array([9.0, 0.3, -0.7])  # the first gamma has no past
    register = np.zeros((D + 1, N + 1))
    for layer, step in enumerate(steps(Register(jnp.asarray(alpha), jnp.asarray(gamma)))):
        register = tokens(layer) + gamma[layer] * register
        np.testing.assert_allclose(step, alpha[layer] * register)


@pytest.mark.parametrize("kind", ["scalar", "pair", "rows", "tokens", "hadamard"])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("own_is_one", [True, False])
def test_the_bank_weights_every_stored_direction(kind: str, tied: bool, own_is_one: bool, x64: None) -> None:
    lead = (DEPTH,) if tied else (DEPTH, DEPTH)
    gamma = coefficient(kind, np.random.default_rng(0), lead, D, N)
    bank = Bank(gamma, tied, own_is_one)
    for layer, (step, in_room) in enumerate(zip(steps(bank), steps(bank, room=DEPTH), strict=True)):
        wanted = np.zeros((D + 1, N + 1))
        for j in range(layer + 1):
            pick = j if tied else (layer, j)  # Gamma_j, or Gamma_j^l
            weight = as_gamma(jax.tree.map(lambda leaf, pick=pick: leaf[pick], gamma))
            wanted += (1.0 if own_is_one and j == layer else weight) * np.asarray(tokens(j))
        np.testing.assert_allclose(step, wanted, atol=1e-12)
        np.testing.assert_allclose(in_room, wanted, atol=1e-12)


def test_only_a_pair_and_values_per_token_split_context_and_query() -> None:
    splitting = {
        kind: Bank(coefficient(kind, np.random.default_rng(0), (DEPTH,), D, N), True).splits
        for kind in ("scalar", "rows", "diagonal", "pair", "tokens", "hadamard")
    }
    assert [kind for kind, splits in splitting.items() if splits] == ["pair", "tokens", "hadamard"]


def test_scalar_bank_is_a_bank_of_numbers() -> None:
    bank = scalar_bank(jnp.eye(2), own_is_one=True)
    assert isinstance(bank.gamma, Scalar)
    assert not bank.tied
    assert bank.own_is_one
