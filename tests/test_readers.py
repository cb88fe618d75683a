"""Attention against attention written token by token, and the gradient it reads."""

import jax.numpy as jnp
import numpy as np
import pytest

from lfom import Method, reference, run
from lfom.core.memories import Forget
from lfom.core.parameters import at_layer
from lfom.core.preconditioners import (
    Deflated,
    Factored,
    Full,
    Identity,
    LowRank,
    One,
    Preconditioner,
    Scaled,
    Shared,
    Transformed,
)
from lfom.core.problems import Quadratic, Tokens
from lfom.core.readers import ActivatedAttention, Attention, Gradient, Heads, Reader, SoftmaxAttention
from lfom.core.states import NoSuchView
from tests.helpers import make_prompt

D, N = 3, 5


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def test_linear_attention_masks_the_query_and_divides_by_n(x64: None) -> None:
    P, Q, Z = normal(0, 2, D + 1, D + 1), normal(1, 2, D + 1, D + 1), normal(2, D + 1, N + 1)
    for layer in range(2):
        reader = at_layer(Attention(jnp.asarray(P), jnp.asarray(Q)), layer)
        found = reader.on_tokens(jnp.asarray(Z), Tokens(jnp.asarray(Z)))
        np.testing.assert_allclose(found, reference.attention(Z, P[layer], Q[layer]) / N, rtol=1e-10)


def test_softmax_attention_is_the_papers(x64: None) -> None:
    V, K, Q = (normal(seed, 1, D + 1, D + 1) for seed in range(3))
    Z = normal(3, D + 1, N + 1)
    wanted = np.zeros_like(Z)
    for column in range(N + 1):
        scores = np.array([(K[0] @ Z[:, i]) @ (Q[0] @ Z[:, column]) for i in range(N + 1)])
        shares = np.exp(scores - scores.max())
        shares /= shares.sum()  # over all tokens: the mask comes after the softmax
        wanted[:, column] = sum(shares[i] * V[0] @ Z[:, i] for i in range(N)) / N
    reader = at_layer(SoftmaxAttention(*(jnp.asarray(W) for W in (V, K, Q))), 0)
    found = reader.on_tokens(jnp.asarray(Z), Tokens(jnp.asarray(Z)))
    np.testing.assert_allclose(found, wanted, rtol=1e-9)


@pytest.mark.parametrize("with_b", [False, True])
def test_the_sparse_parametrisation_is_attention_with_its_p_and_q(with_b: bool, x64: None) -> None:
    A, B, Z = normal(0, D, D), normal(1, D, D) if with_b else None, normal(2, D + 1, N + 1)
    reader = Gradient(Full(jnp.asarray(A[None])), None if B is None else Full(jnp.asarray(B[None])))
    P, Q = reference.sparse_weights(A, B)
    np.testing.assert_allclose(
        at_layer(reader, 0).on_tokens(jnp.asarray(Z), Tokens(jnp.asarray(Z))),
        reference.attention(Z, P, Q) / N,
        rtol=1e-9,
    )
    assert reader.moves_covariates == with_b


def test_on_iterates_it_reads_minus_a_transposed_times_the_gradient(x64: None) -> None:
    prompt, A = make_prompt(0, N, D, noise=0.3), normal(0, D, D)
    problem = Quadratic.of(prompt)
    state = problem.start(splits=False, moves_covariates=False)
    found = at_layer(Gradient(Full(jnp.asarray(A[None]))), 0).on_iterates(state, problem).context.w
    gradient = reference.gradient(np.asarray(prompt.X), np.asarray(prompt.y), np.zeros(D))
    np.testing.assert_allclose(found, -A.T @ gradient, rtol=1e-10)


PRECONDITIONERS: dict[str, tuple[Preconditioner, np.ndarray]] = {
    "identity": (Identity(), np.eye(D)),
    "scaled": (Scaled(jnp.asarray([2.0, 3.0])), 3 * np.eye(D)),
    "shared": (
        Shared(jnp.asarray([2.0, 3.0]), jnp.asarray(normal(0, D, D))),
        1.5 * (normal(0, D, D) + normal(0, D, D).T),
    ),
    "one": (One(jnp.asarray(normal(0, D, D))), (normal(0, D, D) + normal(0, D, D).T) / 2),
    "full": (Full(jnp.asarray(normal(0, 2, D, D))), normal(0, 2, D, D)[1]),
}


@pytest.mark.parametrize("name", PRECONDITIONERS)
def test_a_preconditioner_acts_as_its_matrix_transposed(name: str) -> None:
    preconditioner, matrix = PRECONDITIONERS[name]
    preconditioner = at_layer(preconditioner, 1)
    np.testing.assert_allclose(preconditioner.matrix(D), matrix, rtol=1e-5)
    for v in (normal(1, D), normal(1, D, 4)):  # one prompt, and prompts last
        np.testing.assert_allclose(
            preconditioner.transposed_times(jnp.asarray(v)), matrix.T @ v, rtol=1e-4, atol=1e-5
        )


DEFINITE = {
    "low rank": lambda: LowRank(0.5 * jnp.asarray(normal(4, D)), jnp.asarray(normal(5, D, 2))),
    "deflated": lambda: Deflated(0.5 * jnp.asarray(normal(4, D)), jnp.asarray(normal(5, D, 2))),
    "sine": lambda: Transformed(0.5 * jnp.asarray(normal(6, D)), "sine"),
    "cosine": lambda: Transformed(0.5 * jnp.asarray(normal(6, D)), "cosine"),
    "factored": lambda: Factored(jnp.asarray(normal(7, D, D)), jnp.asarray(normal(8, D, D))),
}


@pytest.mark.parametrize("name", DEFINITE)
def test_the_diagonal_and_the_bound_of_a_matrix_are_those_of_its_entries(name: str, x64: None) -> None:
    A = DEFINITE[name]()
    M = np.asarray(A.matrix(D))
    np.testing.assert_allclose(A.diagonal(jnp.zeros(D)), np.diag(M), rtol=1e-9)
    assert np.linalg.eigvalsh((M + M.T) / 2).min() > 0
    for c in np.eye(D) + 0.1:
        largest = np.linalg.eigvals(M * c).real.max()
        assert largest <= A.bound(jnp.asarray(c)) * (1 + 1e-9)


@pytest.mark.parametrize("name", ["relu", "exp"])
def test_activated_attention_masks_the_query_and_does_not_overflow(name: str, x64: None) -> None:
    P, Q, Z = normal(0, 1, D + 1, D + 1), normal(1, 1, D + 1, D + 1), normal(2, D + 1, N + 1)
    weights = Z.T @ Q[0] @ Z
    assert weights.max() > 5
    active = np.maximum(weights, 0) if name == "relu" else np.exp(np.minimum(weights, 5))
    reader = at_layer(ActivatedAttention(jnp.asarray(P), jnp.asarray(Q), name), 0)
    found = reader.on_tokens(jnp.asarray(Z), Tokens(jnp.asarray(Z)))
    np.testing.assert_allclose(found, P[0] @ Z[:, :N] @ active[:N] / N, rtol=1e-9)


def test_heads_add_up(x64: None) -> None:
    Z = jnp.asarray(normal(2, D + 1, N + 1))
    readers = tuple(Gradient(Full(jnp.asarray(normal(seed, 1, D, D)))) for seed in range(3))
    heads = Heads(readers)
    alone = [at_layer(reader, 0).on_tokens(Z, Tokens(Z)) for reader in readers]
    np.testing.assert_allclose(at_layer(heads, 0).on_tokens(Z, Tokens(Z)), sum(alone), rtol=1e-10)
    assert not heads.moves_covariates
    B = Full(jnp.asarray(normal(3, 1, D, D)))
    assert Heads((*readers, Gradient(readers[0].A, B))).moves_covariates


@pytest.mark.parametrize(
    ("reader", "view", "missing"),
    [
        (Attention(*[jnp.zeros((1, 4, 4))] * 2), "joint", ["iterates"]),
        (SoftmaxAttention(*[jnp.zeros((1, 4, 4))] * 3), "tokens", ["iterates", "joint"]),
        (ActivatedAttention(*[jnp.zeros((1, 4, 4))] * 2, "relu"), "tokens", ["iterates", "joint"]),  # type: ignore[call-arg,arg-type]
    ],
)
def test_readers_without_a_view_say_so(reader: Reader, view: str, missing: list[str]) -> None:
    method, prompt = Method(reader, Forget(jnp.ones(1)), 1), make_prompt(0, N, D)
    assert run(method, prompt).view == view
    for other in missing:
        with pytest.raises(NoSuchView, match=rf"{type(reader).__name__}.*{other}.*view='{view}'"):
            run(method, prompt, view=other)
