"""The paper's constructions: each runs its method exactly."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from lfom import (
    InputError,
    conjugate_gradient,
    gradient_descent,
    prompt_from_arrays,
    reference,
    run,
    theorems,
)
from tests.helpers import make_batch, make_prompt, matrices, relative

DEPTH = 3


def test_lemma_1_is_preconditioned_descent(x64: None) -> None:
    prompt = make_prompt(0, 8, 4, noise=0.3)
    A = matrices(0, prompt, DEPTH)
    w = reference.preconditioned_gradient_descent(
        np.asarray(prompt.X), np.asarray(prompt.y), list(np.asarray(A))
    )
    found = run(theorems.gradient_descent_transformer(A), prompt, view="tokens").predictions
    assert relative(found, np.stack(w) @ np.asarray(prompt.query)) < 1e-10


def test_proposition_1_holds_for_its_own_prompt_only(x64: None) -> None:
    mine, other = (make_prompt(seed, 12, 4, correlated=False) for seed in (0, 1))
    method = theorems.conjugate_gradient_memformer(mine, DEPTH)

    def error(prompt: Any) -> float:
        w = reference.conjugate_gradient(np.asarray(prompt.X), np.asarray(prompt.y), DEPTH)
        return relative(run(method, prompt).weights, np.stack(w))

    assert error(mine) < 1e-10
    assert error(other) > 1e-2  # CGD's coefficients depend on the prompt (docs/mathematics.md 2.6)
    for prompt in (mine, other):
        w = reference.conjugate_gradient(np.asarray(prompt.X), np.asarray(prompt.y), DEPTH)
        assert relative(run(theorems.conjugate_memformer(DEPTH), prompt).weights, np.stack(w)) < 1e-10


def test_proposition_1_stops_where_there_is_nothing_left(x64: None) -> None:
    prompt = make_prompt(0, 2, 5)
    zero = run(theorems.conjugate_gradient_memformer(prompt, 6, stop=1e-9), prompt).predictions
    assert np.isfinite(zero).all()
    memory = theorems.conjugate_gradient_memformer(
        type(prompt)(prompt.X, 0 * prompt.y, prompt.query, prompt.target), 6
    ).memory
    np.testing.assert_array_equal(memory.alpha, 0)  # type: ignore[attr-defined]


def test_proposition_2_with_one_head_reaches_multiples_of_a(x64: None) -> None:
    prompt = make_prompt(0, 8, 4)
    A, gamma = matrices(0, prompt, DEPTH), np.random.default_rng(0).uniform(-1, 1, (DEPTH, DEPTH))
    X, y = np.asarray(prompt.X), np.asarray(prompt.y)
    # equation 1.1 with Lambda_j^k = -(sum over j <= l <= k of gamma[l, j]) A_j^T
    w: list[np.ndarray] = [np.zeros(4)]
    for k in range(DEPTH):
        parts = [
            gamma[j : k + 1, j].sum() * np.asarray(A)[j].T @ reference.gradient(X, y, w[j])
            for j in range(k + 1)
        ]
        w.append(-np.sum(parts, axis=0))
    found = run(theorems.lfom_memformer(A, jnp.asarray(gamma)), prompt, view="tokens").predictions
    assert relative(found, np.stack(w) @ np.asarray(prompt.query)) < 1e-10


def test_proposition_2_with_d_heads_reaches_all_diagonal_coefficients(x64: None) -> None:
    prompt = make_prompt(0, 8, 4)
    gamma = -0.2 * np.random.default_rng(0).uniform(size=(DEPTH, DEPTH, 4))
    w = reference.lfom(np.asarray(prompt.X), np.asarray(prompt.y), gamma)
    heads = theorems.diagonal_lfom(jnp.asarray(gamma))
    assert len(heads.heads) == 4
    for view in ("tokens", "iterates"):
        found = run(heads, prompt, view=view).predictions
        assert relative(found, np.stack(w) @ np.asarray(prompt.query)) < 1e-10


def test_gates_at_a_corner_are_the_chosen_head(x64: None) -> None:
    prompt, heads = make_prompt(0, 8, 4), tuple(gradient_descent(eta, 2) for eta in (0.1, 0.2))
    for chosen in (0, 1):
        gated = run(theorems.gate_to(heads, chosen), prompt).predictions
        np.testing.assert_array_equal(gated, run(heads[chosen], prompt).predictions)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: theorems.conjugate_memformer(0), "depth is 0: it must be at least 1"),
        (lambda: theorems.conjugate_gradient_memformer(make_prompt(0, 3, 2), 0), "depth is 0"),
        (
            lambda: theorems.conjugate_gradient_memformer(make_batch(0, 2, 3, 2), 1),
            "prompt is a batch.*Pass one",
        ),
        (lambda: theorems.gate_to((gradient_descent(0.1, 1),), 1), "chosen is 1: it must be between 0 and 0"),
        (lambda: theorems.conjugate_memformer(2, stop=-1.0), "stop is -1.0: it must be 0 or greater"),
    ],
)
def test_bad_constructions_are_refused(build: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build()


def ill_conditioned(seed: int, d: int = 8) -> Any:
    """A prompt whose Gram matrix has eigenvalues from 1 down to 1e-3."""
    rng = np.random.default_rng(seed)
    left, right = (np.linalg.qr(rng.normal(size=(n, d)))[0] for n in (2 * d, d))
    X = np.sqrt(2 * d) * (left * np.geomspace(1, 1e-3, d) ** 0.5) @ right.T
    w, query = rng.normal(size=(2, d))
    return prompt_from_arrays(X, X @ w, query, query @ w, w)


@pytest.mark.parametrize("seed", [0, 1])
def test_conjugate_gradients_stop_at_the_square_of_what_is_asked(seed: int, x64: None) -> None:
    """stop is relative to the norm of the residual: its square, r.Ar, is compared with stop^2."""
    prompt, depth, stop = ill_conditioned(seed), 8, 1e-2
    X, y = np.asarray(prompt.X), np.asarray(prompt.y)
    wanted = np.stack(reference.conjugate_gradient(X, y, depth, stop=stop))
    for other in (0.0, stop**0.5):  # here it stops, and not as soon as it would for another number
        assert relative(wanted[-1], reference.conjugate_gradient(X, y, depth, stop=other)[-1]) > 1e-2
    for method in (
        theorems.conjugate_gradient_memformer(prompt, depth, stop),
        theorems.conjugate_memformer(depth, stop),
    ):
        assert relative(run(method, prompt).weights, wanted) < 1e-8
        assert relative(run(method, prompt, view="tokens").predictions, wanted @ prompt.query) < 1e-8
    loud = prompt_from_arrays(
        X, 30 * y, prompt.query, prompt.target
    )  # the size of labels makes no difference
    assert relative(run(conjugate_gradient(depth, stop=stop), loud).weights, 30 * wanted) < 1e-8
    A = np.diag(np.linspace(0.5, 2, 8))
    preconditioned = np.stack(reference.conjugate_gradient(X, y, depth, A, stop))
    assert relative(run(conjugate_gradient(depth, A, stop=stop), prompt).weights, preconditioned) < 1e-8


def test_conjugate_gradients_stop_beside_the_first_residual_not_the_largest(x64: None) -> None:
    """Residuals may grow on the way: here to eleven times the first one."""
    values, right, depth, stop = np.array([1.0, 1e-2, 1e-3]), np.array([0.03, 0.3, 1.0]), 3, 0.4
    X = np.diag(np.sqrt(3 * values))
    prompt = prompt_from_arrays(X, 3 * right / np.diag(X), np.ones(3), 1.0)
    wanted = np.stack(reference.conjugate_gradient(X, np.asarray(prompt.y), depth, stop=stop))
    sizes = np.linalg.norm(wanted * values - right, axis=1)
    assert stop * sizes[0] < sizes[2] < stop * sizes.max()
    assert relative(run(conjugate_gradient(depth, stop=stop), prompt).weights, wanted) < 1e-8
