"""The exact optimum: the published values, its moments, and brute force."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lfom import PUBLISHED_SPECTRUM, InputError, LinearRegression
from lfom.limits import optimum
from lfom.limits.optimum import Optimum, exact_optimum, sampled_optimum, wishart_moment, with_preconditioner
from tests.helpers import draw_quadratics

PRECONDITIONED = [0.1431, -1.0182, -2.0128, -2.9013, -3.698, -4.420, -5.078, -5.683, -6.244, -6.768]
TEN_DIMENSIONS = [1.2665, 0.5215, -0.0912, -0.6302, -1.1185, -1.5675, -1.9843]
WITHOUT = [0.809, 0.444, 0.152, -0.144]


@pytest.mark.parametrize(("depth", "value"), list(enumerate(PRECONDITIONED, 1)))
def test_published_values_with_the_inverse_covariance(depth: int, value: float) -> None:
    assert exact_optimum(5, 20, depth).log_loss == pytest.approx(value, abs=1e-3)


@pytest.mark.parametrize(("depth", "value"), list(enumerate(TEN_DIMENSIONS, 1)))
def test_published_values_in_ten_dimensions(depth: int, value: float) -> None:
    assert exact_optimum(10, 20, depth).log_loss == pytest.approx(value, abs=1e-3)


@pytest.mark.parametrize(("depth", "value"), list(enumerate(WITHOUT, 1)))
def test_published_values_without_preconditioner(depth: int, value: float) -> None:
    found = sampled_optimum(
        LinearRegression(PUBLISHED_SPECTRUM, 20),
        depth,
        jax.random.key(depth),
        prompts=1_000_000 if depth == 4 else 400_000,
    )
    assert found.log_loss == pytest.approx(value, abs=0.01)
    assert 0 < found.log_stderr < 0.015


def test_sampled_and_exact_optimum_agree_within_the_standard_error() -> None:
    data = LinearRegression(PUBLISHED_SPECTRUM, 20)
    inverse = jnp.linalg.inv(data.covariance)
    found = sampled_optimum(data, 2, jax.random.key(0), preconditioner=inverse, prompts=200_000)
    exact = exact_optimum(5, 20, 2)
    assert abs(found.loss - exact.loss) < 4 * found.stderr
    assert found.polynomial == pytest.approx(exact.polynomial, rel=0.02)


@pytest.mark.parametrize("d", [1, 4])
@pytest.mark.parametrize("n", [1, 2, 7])
def test_low_wishart_moments_are_the_textbook_ones(d: int, n: int) -> None:
    assert wishart_moment(1, d, n) == n * d
    assert wishart_moment(2, d, n) == n * d * (n + d + 1)
    assert wishart_moment(3, d, n) == n * d * (n**2 + d**2 + 3 * n * d + 3 * n + 3 * d + 4)


def test_in_one_dimension_wishart_moments_are_those_of_chi_square() -> None:
    for k in range(1, 11):
        assert wishart_moment(k, 1, 5) == math.prod(5 + 2 * i for i in range(k))


@pytest.mark.parametrize(("d", "n"), [(3, 6), (4, 2)])
def test_wishart_moments_match_sampling(d: int, n: int) -> None:
    X = np.random.default_rng(0).normal(size=(200_000, d, n))
    W, power = X @ X.transpose(0, 2, 1), np.broadcast_to(np.eye(d), (200_000, d, d))
    for k in range(1, 6):
        power = power @ W
        traces = np.trace(power, axis1=1, axis2=2)
        z = (traces.mean() - float(wishart_moment(k, d, n))) / (traces.std() / np.sqrt(len(traces)))
        assert abs(z) < 4


@pytest.mark.parametrize(("d", "n"), [(5, 20), (10, 20), (4, 2)])
def test_in_the_whitened_case_all_roots_are_real(d: int, n: int) -> None:
    for depth in range(1, 7):
        optimum = exact_optimum(d, n, depth)
        assert optimum.depth == depth
        assert optimum.polynomial[0] == 1
        assert np.abs(optimum.roots.imag).max() == 0
        assert optimum.roots.real.min() > 0


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_loss_comes_from_prompts_that_nothing_was_fitted_to(seed: int, x64: None) -> None:
    """Four prompts in one dimension, two to fit: two steps fit those exactly, and not the others."""
    found = sampled_optimum(LinearRegression([1.0], 4), 2, jax.random.key(seed), prompts=4)
    assert found.prompts == 2
    assert found.loss > 1e-3


def test_one_half_of_the_prompts_is_fitted_to_and_the_other_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every part asks for a number: the first two for 1 and 2, the others for 4 and 5."""
    asked = iter((1.0, 2.0, 4.0, 5.0))

    def moments(*_: Any) -> tuple[np.ndarray, np.ndarray, float]:
        number = next(asked)
        return np.ones((1, 1)), np.full(1, number), number**2

    monkeypatch.setattr(optimum, "moments", moments)
    found = sampled_optimum(LinearRegression([1.0], 4), 1, jax.random.key(0), prompts=4)
    losses = np.array([4 - 1.5, 5 - 1.5]) ** 2
    assert found.loss == pytest.approx(losses.mean())
    assert found.stderr == pytest.approx(losses.std(ddof=1) / 2**0.5)


@pytest.mark.parametrize(("d", "n"), [(1, 1), (1, 4), (3, 1)])
def test_the_smallest_sizes_have_an_optimum(d: int, n: int) -> None:
    # one step: minimise m0 - 2 a m1 + a^2 m2
    m1, m2 = (float(wishart_moment(k, d, n)) / n**k for k in (1, 2))
    assert exact_optimum(d, n, 1).loss == pytest.approx(d - m1**2 / m2)
    assert exact_optimum(d, n, 3).loss < exact_optimum(d, n, 2).loss < exact_optimum(d, n, 1).loss


def test_the_loss_on_given_prompts_is_that_of_the_polynomial(x64: None) -> None:
    data = LinearRegression([1.0, 0.5, 0.2], 6, noise=0.3)
    A = np.array([[1.0, 0.2, 0.0], [0.1, 0.8, 0.0], [0.0, 0.3, 1.5]])  # neither symmetric nor diagonal
    p = (1.0, -1.2, 0.5, -0.07)
    q = draw_quadratics(data, jax.random.key(0), 4)
    found = Optimum(p, 1.0, 0.0, 0, jnp.asarray(A)).losses(q)
    for k in range(4):
        G, b = np.asarray(q.gram[..., k]), np.asarray(q.moment[..., k])
        AG = A @ G
        w = sum(-c * np.linalg.matrix_power(AG, i) @ A @ b for i, c in enumerate(p[1:]))
        residual = np.asarray(q.probe) @ w - np.asarray(q.target[:, k])
        assert float(found[k]) == pytest.approx(float(residual @ residual), rel=1e-10)


def test_the_exact_optimum_scores_its_own_loss_on_prompts() -> None:
    data = LinearRegression(PUBLISHED_SPECTRUM, 20)
    optimum = with_preconditioner(exact_optimum(5, 20, 2), jnp.linalg.inv(data.covariance))
    scores = np.asarray(optimum.losses(draw_quadratics(data, jax.random.key(0), 200_000)), float)
    assert abs(scores.mean() - optimum.loss) < 4 * scores.std() / np.sqrt(len(scores))


def test_with_label_noise_the_optimum_is_the_least_squares_one() -> None:
    # n = 20: with few examples the tails are so heavy that 50,000 prompts fit themselves, not others
    data, depth = LinearRegression([1.0, 0.4, 0.1], 20, noise=0.8), 3
    found = sampled_optimum(data, depth, jax.random.key(0), prompts=100_000)
    q = draw_quadratics(data, jax.random.key(1), 50_000)
    krylov = [np.asarray(q.moment)]
    for _ in range(depth - 1):
        krylov.append(np.einsum("ijp,jp->ip", q.gram, krylov[-1]))
    rows = np.stack([(np.asarray(q.probe) @ w).ravel() for w in krylov], axis=-1)
    target = np.asarray(q.target).ravel()
    theta = np.linalg.lstsq(rows, target)[0]
    best = np.sum((rows @ theta - target) ** 2) / 50_000
    score = float(jnp.mean(found.losses(q)))
    assert best <= score < 1.002 * best  # nothing beats brute force on its own prompts
    assert found.loss == pytest.approx(best, abs=5 * found.stderr)


@pytest.mark.parametrize("argument", ["d", "n", "depth"])
def test_sizes_of_zero_are_refused(argument: str) -> None:
    with pytest.raises(InputError, match=f"{argument} is 0: it must be at least 1"):
        exact_optimum(**({"d": 2, "n": 3, "depth": 1} | {argument: 0}))


@pytest.mark.parametrize("argument", ["depth", "prompts", "chunk"])
def test_sampling_sizes_of_zero_are_refused(argument: str) -> None:
    sizes: dict[str, Any] = {"depth": 2, "prompts": 100, "chunk": 50} | {argument: 0}
    with pytest.raises(InputError, match=f"{argument} is 0: it must be at least 1"):
        sampled_optimum(LinearRegression([1.0], 4), key=jax.random.key(0), **sizes)
