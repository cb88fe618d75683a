"""Classical methods against their textbook form, and as LFOMs (equation 1.1)."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lfom
from lfom import (
    PUBLISHED_SPECTRUM,
    InputError,
    LinearRegression,
    Method,
    lfom_coefficients,
    reference,
    run,
)
from lfom.core.memories import Forget
from lfom.core.preconditioners import Full, Scaled
from lfom.core.readers import Gradient
from lfom.core.unroll import losses
from lfom.methods import classical
from tests.helpers import draw_quadratics, make_batch, make_prompt, matrices, relative, safe_step

STEPS = 4
ETA, BETA = 0.3, 0.6


def data() -> tuple[lfom.Prompt, np.ndarray, np.ndarray]:
    prompt = make_prompt(0, 12, 3, noise=0.2)
    scale = np.sqrt(safe_step(prompt))
    prompt = lfom.prompt_from_arrays(
        scale * prompt.X, prompt.y, prompt.query, prompt.target
    )  # largest eigenvalue 1
    return prompt, np.asarray(prompt.X), np.asarray(prompt.y)


def gradient_descent(X: np.ndarray, y: np.ndarray) -> list[np.ndarray]:
    return reference.preconditioned_gradient_descent(X, y, [ETA * np.eye(3)] * STEPS)


LINEAR: dict[str, tuple[Callable[[], Method], Callable[..., list[np.ndarray]]]] = {
    "gradient descent": (lambda: lfom.gradient_descent(ETA, STEPS), gradient_descent),
    "momentum": (
        lambda: lfom.momentum(ETA, BETA, STEPS),
        lambda X, y: reference.momentum(X, y, ETA, BETA, STEPS),
    ),
    "heavy ball": (
        lambda: lfom.heavy_ball(ETA, BETA, STEPS),
        lambda X, y: reference.heavy_ball(X, y, ETA, BETA, STEPS),
    ),
    "Nesterov": (
        lambda: lfom.nesterov(ETA, BETA, STEPS),
        lambda X, y: reference.nesterov(X, y, ETA, BETA, STEPS),
    ),
    "Chebyshev": (
        lambda: lfom.chebyshev(0.1, 1.0, STEPS),
        lambda X, y: reference.chebyshev(X, y, 0.1, 1.0, STEPS),
    ),
}


@pytest.mark.parametrize("name", LINEAR)
def test_the_method_is_its_textbook_form_in_both_views(name: str, x64: None) -> None:
    prompt, X, y = data()
    build, textbook = LINEAR[name]
    w = np.stack(textbook(X, y))
    assert relative(run(build(), prompt, view="iterates").weights, w) < 1e-10
    assert relative(run(build(), prompt, view="tokens").predictions, w @ np.asarray(prompt.query)) < 1e-10


@pytest.mark.parametrize("name", LINEAR)
def test_its_lfom_coefficients_run_the_same_method(name: str, x64: None) -> None:
    prompt, X, y = data()
    build, textbook = LINEAR[name]
    coefficients = lfom_coefficients(build())
    assert coefficients.shape == (STEPS, STEPS, 1)
    assert not np.triu(coefficients[..., 0], 1).any()  # w^{k+1} reads no later gradient
    w = np.stack(textbook(X, y))
    assert relative(np.stack(reference.lfom(X, y, np.asarray(coefficients))), w) < 1e-10
    assert relative(run(lfom.lfom(coefficients[..., 0]), prompt).weights, w) < 1e-10


def test_momentum_with_steps_and_momentum_that_vary(x64: None) -> None:
    prompt, X, y = data()
    eta, beta = [0.1, 0.5, 0.2, 0.7], [0.9, 0.3, 0.8, 0.5]
    w, v = [np.zeros(3)], np.zeros(3)
    for k in range(STEPS):
        v = beta[k] * v - eta[k] * reference.gradient(X, y, w[-1])
        w.append(w[-1] + v)
    method = lfom.momentum(eta, beta, STEPS)
    assert relative(run(method, prompt).weights, np.stack(w)) < 1e-10
    again = reference.lfom(X, y, np.asarray(lfom_coefficients(method)))
    assert relative(np.stack(again), np.stack(w)) < 1e-10


def test_nesterov_with_steps_and_momentum_that_vary(x64: None) -> None:
    prompt, X, y = data()
    eta, beta = [0.1, 0.5, 0.2, 0.7], [0.9, 0.3, 0.8, 0.5]
    w = [np.zeros(3)]
    for k in range(STEPS):
        v = w[k] + beta[k] * (w[k] - w[max(k - 1, 0)])
        w.append(v - eta[k] * reference.gradient(X, y, v))
    method = lfom.nesterov(eta, beta, STEPS)
    assert relative(run(method, prompt).weights, np.stack(w)) < 1e-10
    again = reference.lfom(X, y, np.asarray(lfom_coefficients(method)))
    assert relative(np.stack(again), np.stack(w)) < 1e-10


@pytest.mark.parametrize("shape", [(STEPS, STEPS), (STEPS, STEPS, 3)], ids=["numbers", "diagonal"])
def test_coefficients_survive_the_way_to_a_method_and_back(shape: tuple[int, ...], x64: None) -> None:
    gamma = np.random.default_rng(0).normal(size=shape)
    lower = np.tril(np.ones((STEPS, STEPS))).reshape(STEPS, STEPS, *[1] * (len(shape) - 2))
    found = lfom_coefficients(lfom.lfom(gamma))
    np.testing.assert_allclose(found.reshape(shape), gamma * lower, atol=1e-12)


def test_diagonal_coefficients_scale_coordinates(x64: None) -> None:
    prompt, X, y = data()
    gamma = -0.2 * np.random.default_rng(0).uniform(size=(STEPS, STEPS, 3))
    found = run(lfom.lfom(gamma), prompt)
    assert found.view == "iterates"
    assert relative(found.weights, np.stack(reference.lfom(X, y, gamma))) < 1e-10


def test_a_scalar_preconditioner_is_part_of_the_coefficients(x64: None) -> None:
    scaled = Method(Gradient(Scaled(jnp.asarray([0.5, 2.0]))), Forget(jnp.asarray([0.3, 0.4])), 2)
    np.testing.assert_allclose(lfom_coefficients(scaled)[..., 0], [[-0.15, 0], [-0.15, -0.8]])


def test_preconditioned_descent_applies_the_transpose(x64: None) -> None:
    prompt, X, y = data()
    A = matrices(3, prompt, STEPS)
    w = reference.preconditioned_gradient_descent(X, y, list(0.7 * np.asarray(A)))
    assert (
        relative(run(lfom.preconditioned_gradient_descent(A, 0.7, STEPS), prompt).weights, np.stack(w))
        < 1e-10
    )
    same = reference.preconditioned_gradient_descent(X, y, [np.asarray(A[0])] * STEPS)
    assert (
        relative(run(lfom.preconditioned_gradient_descent(A[0], 1.0, STEPS), prompt).weights, np.stack(same))
        < 1e-10
    )


def test_gd_plus_plus_with_no_b_is_preconditioned_descent(x64: None) -> None:
    prompt, _, _ = data()
    A = matrices(3, prompt, STEPS)
    plain = run(lfom.preconditioned_gradient_descent(A, 1.0, STEPS), prompt).weights
    plus = run(lfom.gd_plus_plus(A, jnp.zeros((3, 3)), STEPS), prompt).weights
    assert relative(plus, plain) < 1e-12


def test_chebyshev_has_the_smallest_polynomial_on_its_interval(x64: None) -> None:
    # its residual polynomial equioscillates at 1 / T_L((b + a) / (b - a))
    lowest, highest, t = 0.2, 1.5, np.linspace(0.2, 1.5, 2001)
    w = np.asarray(lfom_coefficients(lfom.chebyshev(lowest, highest, STEPS))[..., 0])
    residuals = [np.ones_like(t)]  # p_k(t): the error of a one-dimensional problem of curvature t
    for k in range(STEPS):
        residuals.append(1 + sum(w[k, i] * t * residuals[i] for i in range(k + 1)))
    bound = 1 / np.polynomial.chebyshev.Chebyshev.basis(STEPS)((highest + lowest) / (highest - lowest))
    assert np.abs(residuals[-1]).max() == pytest.approx(bound, rel=1e-6)


def test_heavy_ball_constants_for_an_interval(x64: None) -> None:
    found = classical.heavy_ball_for(0.25, 1.0, 2).memory
    np.testing.assert_allclose(found.alpha, 16 / 9)  # type: ignore[attr-defined]
    np.testing.assert_allclose(found.gamma, 1 / 9)  # type: ignore[attr-defined]


@pytest.mark.parametrize("preconditioned", [False, True])
@pytest.mark.parametrize("d", [1, 4])
def test_conjugate_gradients_are_exact_after_d_steps(d: int, preconditioned: bool, x64: None) -> None:
    prompt = make_prompt(1, 20, d, correlated=False)
    A = np.diag(np.linspace(1, 2, d)) if preconditioned else None
    found = run(lfom.conjugate_gradient(d, A), prompt)
    assert relative(found.weights[-1], prompt.weights) < 1e-10  # type: ignore[index]


@pytest.mark.parametrize(
    ("preconditioned", "published"), [(False, [0.6865, 0.1463, -0.6058]), (True, [-0.0978, -1.7827, -3.765])]
)
def test_conjugate_gradients_score_what_is_published(preconditioned: bool, published: list[float]) -> None:
    distribution = LinearRegression(PUBLISHED_SPECTRUM, 20)
    A = np.diag(1 / np.array(PUBLISHED_SPECTRUM)) if preconditioned else None
    score = losses(lfom.conjugate_gradient(3, A), draw_quadratics(distribution, jax.random.key(0), 100_000))
    np.testing.assert_allclose(np.log(np.mean(score, axis=1))[1:], published, atol=0.03)


@pytest.mark.parametrize(("n", "d"), [(9, 4), (3, 5)])
def test_least_squares_and_ridge_are_exact(n: int, d: int, x64: None) -> None:
    batch = make_batch(0, prompts=3, n=n, d=d)
    exact, penalised = lfom.least_squares(batch), lfom.ridge(batch, 0.3)
    for k in range(3):
        X, y = np.asarray(batch.X[k]), np.asarray(batch.y[k])
        wanted = np.linalg.lstsq(X, y)[0]  # of smallest norm if n < d
        np.testing.assert_allclose(exact[k], wanted, rtol=1e-8, atol=1e-10)
        stacked = np.vstack([X / np.sqrt(n), np.sqrt(0.3) * np.eye(d)])
        wanted = np.linalg.lstsq(stacked, np.append(y / np.sqrt(n), np.zeros(d)))[0]
        np.testing.assert_allclose(penalised[k], wanted, rtol=1e-8)
        single = jax.tree.map(lambda leaf, k=k: leaf[k], batch)
        np.testing.assert_allclose(lfom.least_squares(single), exact[k], rtol=1e-8)
        np.testing.assert_allclose(lfom.ridge(single, 0.3), penalised[k], rtol=1e-8)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: lfom.gradient_descent(0.1, 0), "steps is 0: it must be at least 1. Pass 1 or more"),
        (lambda: lfom.conjugate_gradient(0), "steps is 0: it must be at least 1"),
        (
            lambda: lfom.gradient_descent([0.1, 0.2], 3),
            r"eta has shape \(2,\): pass one number, or one per step \(3\)",
        ),
        (lambda: lfom.gradient_descent(np.nan, 3), "eta holds nan"),
        (lambda: lfom.momentum(0.1, [0.1, 0.2], 3), r"beta has shape \(2,\)"),
        (lambda: lfom.momentum(0.0, 0.1, 2), r"eta is \[0\.0, 0\.0\]: .*may be 0. To stand still, run fewer"),
        (lambda: lfom.chebyshev(0.0, 1.0, 2), r"lowest is 0\.0: every entry must be greater than 0"),
        (lambda: lfom.chebyshev(1.0, 0.5, 2), r"highest is 0\.5: it must be greater than lowest \(1\.0\)"),
        (lambda: classical.heavy_ball_for(-1.0, 1.0, 2), r"lowest is -1\.0"),
        (lambda: lfom.lfom(np.ones((2, 3))), r"coefficients has shape \(2, 3\): pass \(steps, steps\)"),
        (lambda: lfom.lfom(np.ones((2, 2), int)), "coefficients has dtype int64"),
        (lambda: lfom.gd_plus_plus(np.eye(2), np.ones((2, 3)), 2), r"B has shape \(2, 3\): pass \(d, d\)"),
        (lambda: lfom.gd_plus_plus(np.ones((3, 2, 2)), np.eye(2), 2), "A holds 3 matrices for 2 steps"),
        (
            lambda: lfom.conjugate_gradient(2, np.ones((2, 3))),
            r"preconditioner has shape \(2, 3\): it must be square",
        ),
        (lambda: lfom.conjugate_gradient(2, [[1.0, 1.0], [0.0, 1.0]]), "preconditioner is not symmetric"),
        (lambda: lfom.ridge(make_prompt(0, 3, 2), 0.0), r"penalty is 0\.0: .*greater than 0"),
        (
            lambda: lfom_coefficients(lfom.conjugate_gradient(2)),
            "no fixed coefficients. Run them on the prompt",
        ),
        (
            lambda: lfom_coefficients(Method(Gradient(Full(jnp.ones((2, 2, 2)))), Forget(jnp.ones(2)), 2)),
            "equation 1.1 has diagonal coefficients.*Multiply a full A",
        ),
    ],
)
def test_bad_methods_are_refused_at_once(build: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build()


@pytest.mark.parametrize("memory", ["none", "register", "bank", "conjugate"])
@pytest.mark.parametrize("depth", [2, 9])
def test_heads_at_once_step_as_one_after_the_other(
    memory: str, depth: int, x64: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = jax.random.split(jax.random.key(0), 3)
    heads = tuple(lfom.memformer(2, depth, memory=memory, scale=0.2, key=key) for key in keys)
    both = lfom.Mixture(heads, jnp.array([0.5, -0.2, 0.7]))
    prompts = lfom.LinearRegression([1.0, 0.5], context=5).prompts(jax.random.key(1), 4)
    found = {view: lfom.run(both, prompts, view=view).predictions for view in ("iterates", "tokens")}
    monkeypatch.setattr(lfom.Mixture, "_stacked", lambda self: [])
    jax.clear_caches()  # the same method, traced again
    for view, own in found.items():
        np.testing.assert_allclose(own, lfom.run(both, prompts, view=view).predictions, rtol=1e-12)


def test_heads_that_differ_are_each_multiplied_by_their_gate(x64: None) -> None:
    heads = (lfom.gradient_descent(0.5, steps=1), lfom.momentum(0.3, 0.5, steps=1))
    prompts = lfom.LinearRegression([1.0, 0.5], context=5).prompts(jax.random.key(1), 4)
    alone = [np.asarray(lfom.run(head, prompts).predictions[1]) for head in heads]
    found = lfom.run(lfom.Mixture(heads, jnp.array([0.25, 0.75])), prompts).predictions[1]
    np.testing.assert_allclose(found, 0.25 * alone[0] + 0.75 * alone[1], rtol=1e-12)
