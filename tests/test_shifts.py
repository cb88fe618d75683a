"""Shifted distributions: their moments, and quadratics that agree with prompts."""

from typing import Any

import jax
import numpy as np
import pytest

from lfom import AnyOf, GaussianMixture, HeavyTailed, InputError, LinearRegression, PerRun, RandomScale, turn
from tests.helpers import draw_prompts, draw_quadratics

BASE = LinearRegression([1.0, 0.25], 6, noise=0.2)
COUNT = 20_000
CASES = {
    "heavy tails": HeavyTailed(BASE, 8),
    "random scale": RandomScale(BASE, 0.25, 4.0),
    "any of": AnyOf([BASE, LinearRegression([1.0, 0.25], 6, variance=3.0)], [0.25, 0.75]),
    "with a mixture": AnyOf([BASE, GaussianMixture([[1.0, 0.0]], [0.5], [1.0], 6)]),
}


@pytest.mark.parametrize("name", list(CASES))
def test_quadratics_agree_with_prompts(name: str) -> None:
    data, key = CASES[name], jax.random.key(0)
    prompts, quadratics = draw_prompts(data, key, COUNT), draw_quadratics(data, jax.random.key(1), COUNT)
    labels = np.mean(np.asarray(prompts.target) ** 2)
    np.testing.assert_allclose(np.mean(np.sum(np.asarray(quadratics.target) ** 2, axis=0)), labels, rtol=0.06)
    gram = np.einsum("pni,pnj->ij", prompts.X, prompts.X) / (COUNT * 6)
    np.testing.assert_allclose(np.mean(quadratics.gram, axis=-1), gram, atol=0.05 * np.abs(gram).max())
    moment = np.einsum("pni,pn->pi", prompts.X, prompts.y) / 6
    wanted = np.mean(np.sum(moment**2, axis=1))
    np.testing.assert_allclose(np.mean(np.sum(quadratics.moment**2, axis=0)), wanted, rtol=0.1)
    probes = np.broadcast_to(_with_prompts(quadratics.probe), (*quadratics.probe.shape[:2], COUNT))
    query = np.einsum("pi,pj->ij", prompts.query, prompts.query) / COUNT
    np.testing.assert_allclose(
        np.einsum("kip,kjp->ij", probes, probes) / COUNT, query, atol=0.05 * np.abs(query).max()
    )
    noise = np.asarray(prompts.y) - np.einsum("pni,pi->pn", prompts.X, np.asarray(prompts.weights))
    assert noise.std() < 0.21
    assert data.dimension == 2
    runs = PerRun([data, data])  # a distribution keeps no number beside its arrays: runs can be stacked
    assert runs.runs == 2
    assert jax.tree.all(jax.tree.map(np.array_equal, runs[1], data))


def _with_prompts(probe: Any) -> np.ndarray:
    return np.asarray(probe)[..., None] if probe.ndim == 2 else np.asarray(probe)


NOISY = {
    "heavy tails": HeavyTailed(BASE, 5),
    "random scale": RandomScale(BASE, 0.25, 4.0),
    "mixture": GaussianMixture([[2.0, 0.0], [0.0, -1.0]], [0.5, 2.0], [0.3, 0.7], 6, noise=0.2),
}


@pytest.mark.parametrize("name", list(NOISY))
def test_label_noise_has_its_size_and_does_not_know_the_covariates(name: str) -> None:
    prompts = draw_prompts(NOISY[name], jax.random.key(4), COUNT)
    X, y, w = (np.asarray(a, np.float64) for a in (prompts.X, prompts.y, prompts.weights))
    noise = y - np.einsum("pni,pi->pn", X, w)
    size = np.log(np.sum(X**2, axis=2))
    surplus = noise**2 - 0.2**2
    for zero in (noise, noise * X[..., 0], surplus, surplus * (size - size.mean())):
        zero = zero.mean(axis=1)  # one number per prompt: these are independent
        assert abs(zero.mean()) < 4.5 * zero.std() / np.sqrt(COUNT)
    np.testing.assert_allclose(prompts.target, np.sum(np.asarray(prompts.query) * w, axis=1), atol=1e-4)


@pytest.mark.parametrize("name", list(NOISY))
def test_moments_scatter_as_label_noise_does(name: str) -> None:
    """b - G w* has the covariance noise^2 G / n, given G; w* from the targets, which are probe w*."""
    q = draw_quadratics(NOISY[name], jax.random.key(5), COUNT)
    probe = np.moveaxis(np.broadcast_to(_with_prompts(q.probe), (*q.probe.shape[:2], COUNT)), -1, 0)
    gram, moment, target = (np.asarray(a, np.float64) for a in (q.gram, q.moment, q.target))
    w = np.linalg.pinv(probe.astype(float)) @ target.T[..., None]
    off = moment - np.einsum("ijp,pj->ip", gram, w[..., 0])
    trace = np.trace(gram)
    surplus = np.sum(off**2, axis=0) - 0.2**2 * trace / 6
    for zero in (off[0], off[1], surplus, surplus * np.log(trace), surplus / trace):
        assert abs(zero.mean()) < 4.5 * zero.std() / np.sqrt(COUNT)


def test_heavy_tails_are_heavy_and_keep_the_covariance() -> None:
    X = np.asarray(draw_prompts(HeavyTailed(BASE, 5), jax.random.key(2), COUNT).X).reshape(-1, 2)
    np.testing.assert_allclose(X.T @ X / len(X), np.diag([1.0, 0.25]), atol=0.03)
    assert np.mean(X[:, 0] ** 4) > 4.5  # 3 for a normal, 9 for these


def test_scales_are_log_uniform_and_labels_stay() -> None:
    prompts = draw_prompts(RandomScale(LinearRegression([1.0], 50), 0.25, 16.0), jax.random.key(3), 4_000)
    log = np.log(np.mean(np.asarray(prompts.X) ** 2, axis=(1, 2)))
    assert np.log(0.25) - 1 < log.min() < np.log(0.5)
    assert np.log(8.0) < log.max() < np.log(16.0) + 1
    np.testing.assert_allclose(log.mean(), np.log(2.0) - 1 / 50, atol=0.08)
    np.testing.assert_allclose(np.mean(np.asarray(prompts.target) ** 2), 1.0, rtol=0.1)


@pytest.mark.parametrize(("d", "angle"), [(2, 0.3), (5, 1.0), (1, 1.0)])
def test_a_turn_turns_by_its_angle_and_no_further(d: int, angle: float, x64: None) -> None:
    R = np.asarray(turn(jax.random.key(d), d, angle))
    np.testing.assert_allclose(R @ R.T, np.eye(d), atol=1e-12)
    largest = np.abs(np.angle(np.linalg.eigvals(R))).max()
    np.testing.assert_allclose(largest, angle if d > 1 else 0.0, atol=1e-12)


def test_parts_of_other_lengths_are_fine_as_quadratics_only() -> None:
    parts = AnyOf([BASE, LinearRegression([1.0, 0.25], 12)])
    assert draw_quadratics(parts, jax.random.key(0), 5).moment.shape == (2, 5)
    with pytest.raises(InputError, match=r"contexts of \[6, 12\] examples"):
        parts.prompt(jax.random.key(0))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: HeavyTailed(BASE, 2), "degrees is 2"),
        (lambda: RandomScale(BASE, 4.0, 0.25), "swap them"),
        (lambda: RandomScale(BASE, 0.0, 1.0), "lowest is 0"),
        (lambda: AnyOf([]), "parts is empty"),
        (lambda: AnyOf([BASE], [0.5, 0.5]), "2 entries for 1 parts"),
        (lambda: AnyOf([BASE, BASE], [0.5, 0.6]), "sum to 1"),
        (lambda: AnyOf([BASE, LinearRegression([1.0], 6)]), r"dimensions \[1, 2\]"),
    ],
)
def test_bad_input_is_refused(call: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()
