"""Covariates of random direction: second moments, lengths, and quadratics that agree with prompts."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lfom
from lfom import GammaLengths, InputError, LinearRegression, OnSphere, haar_rotation
from tests.helpers import draw_prompts, draw_quadratics

SPECTRUM, CONTEXT, COUNT = (1.0, 0.5, 0.0625), 7, 20_000
TURN = np.asarray(haar_rotation(jax.random.key(3), 3))
S = 2 * TURN.T @ np.diag(SPECTRUM) @ TURN
CASES = {  # with E[x x^T] as a multiple of S
    "sphere": (OnSphere(SPECTRUM, CONTEXT, rotation=TURN, variance=2.0, noise=0.3), 1 / 3),
    "gamma": (
        GammaLengths(SPECTRUM, CONTEXT, rotation=TURN, variance=2.0, noise=0.3, shape=1.5, scale=4.0),
        2.0,
    ),
    "published gamma": (GammaLengths(SPECTRUM, CONTEXT, rotation=TURN, variance=2.0, noise=0.3), 1 / 3),
}
TOLERANCE = {"sphere": 0.02, "gamma": 0.03, "published gamma": 0.1}  # its fourth moments are large


@pytest.mark.parametrize("name", list(CASES))
def test_second_moments_are_those_that_the_docstring_gives(name: str) -> None:
    data, factor = CASES[name]
    np.testing.assert_allclose(data.covariance, factor * S, rtol=1e-5, atol=1e-6)
    prompts = draw_prompts(data, jax.random.key(0), COUNT)
    largest = float(factor * np.linalg.norm(S, 2))
    X = np.asarray(prompts.X, np.float64).reshape(-1, 3)
    np.testing.assert_allclose(X.T @ X / len(X), factor * S, atol=TOLERANCE[name] * largest)
    w = np.asarray(prompts.weights, np.float64)
    root = np.asarray(data.root, np.float64)
    np.testing.assert_allclose(root @ (w.T @ w / COUNT) @ root.T, np.eye(3), atol=0.05)


@pytest.mark.parametrize("name", list(CASES))
def test_quadratics_are_the_same_law_as_prompts(name: str) -> None:
    data, _ = CASES[name]
    prompts = draw_prompts(data, jax.random.key(1), COUNT)
    quadratics = draw_quadratics(data, jax.random.key(2), COUNT)
    X, y = np.asarray(prompts.X, np.float64), np.asarray(prompts.y, np.float64)
    gram = np.einsum("pni,pnj->pij", X, X) / CONTEXT
    moment = np.einsum("pni,pn->pi", X, y) / CONTEXT
    for ours, theirs in [
        (np.mean(quadratics.gram, axis=-1), gram.mean(axis=0)),
        (np.mean(np.sum(quadratics.moment**2, axis=0)), np.mean(np.sum(moment**2, axis=1))),
        (np.mean(np.sum(quadratics.target**2, axis=0)), 3.0),  # tr of the second moment times its inverse
    ]:
        scale = np.abs(theirs).max()
        np.testing.assert_allclose(ours, theirs, atol=(0.3 if "published" in name else 0.06) * scale)
    np.testing.assert_allclose(quadratics.probe.T @ quadratics.probe, data.covariance, rtol=1e-4, atol=1e-6)
    noise = y - np.einsum("pni,pi->pn", X, np.asarray(prompts.weights))
    np.testing.assert_allclose(noise.std(), 0.3, rtol=0.02)
    solved = np.linalg.solve(np.asarray(data.root), quadratics.target)  # w*
    scatter = np.asarray(quadratics.moment) - np.einsum("ijp,jp->ip", quadratics.gram, solved)
    wanted = 0.09 * np.mean(np.einsum("iip->p", quadratics.gram)) / CONTEXT
    np.testing.assert_allclose(np.mean(np.sum(scatter**2, axis=0)), wanted, rtol=0.06)


def lengths(data: Any) -> np.ndarray:
    X = np.asarray(draw_prompts(data, jax.random.key(4), COUNT).X, np.float64).reshape(-1, data.dimension)
    return np.sum((X @ np.linalg.inv(np.asarray(data.root, np.float64))) ** 2, axis=1) / data.dimension


def test_lengths_are_fixed_on_the_sphere_and_gamma_elsewhere() -> None:
    np.testing.assert_allclose(lengths(CASES["sphere"][0]), 1.0, rtol=1e-3)
    for name, shape in (("gamma", 1.5), ("published gamma", 0.1)):
        found = lengths(CASES[name][0])
        np.testing.assert_allclose([found.mean(), found.var() * shape], 1.0, rtol=0.07)


def test_with_d_half_as_shape_covariates_are_normal() -> None:
    data = GammaLengths(SPECTRUM, CONTEXT, shape=1.5, scale=2.0)
    normal = LinearRegression(SPECTRUM, CONTEXT)
    np.testing.assert_allclose(data.covariance, normal.covariance, rtol=1e-5)
    eigenvalues = [
        np.linalg.eigvalsh(
            np.moveaxis(np.asarray(draw_quadratics(one, jax.random.key(5), COUNT).gram), -1, 0)
        )
        for one in (data, normal)
    ]
    for power in (1, 2, 3):
        ours, theirs = (np.mean(one**power, axis=0) for one in eigenvalues)
        np.testing.assert_allclose(ours, theirs, rtol=0.03 * power)


def test_training_reaches_the_sampled_optimum_of_the_sphere() -> None:
    data = OnSphere([1.0, 0.25], 8)
    key = jax.random.key(0)
    inverse = jnp.asarray(np.linalg.inv(data.covariance))
    optimum = lfom.sampled_optimum(data, 2, key, preconditioner=inverse, prompts=40_000)
    assert (optimum.roots.imag == 0).all()
    model = lfom.linear_transformer(2, 2, key=key)
    trained = lfom.fit(model, data, key=key, optimiser=lfom.LeastSquares(first=2_000, last=8_000)).model()
    found = lfom.evaluate(
        {"trained": trained, "optimum": optimum}, data, prompts=40_000, key=jax.random.key(7)
    )
    assert abs(found["trained"].minus(found["optimum"])[0]) < 0.05


def test_same_key_same_prompts() -> None:
    data, key = CASES["gamma"][0], jax.random.key(6)
    np.testing.assert_array_equal(data.prompts(key, 4).X, data.prompts(key, 4).X)
    assert data.prompt(key).X.shape == (CONTEXT, 3)


def test_a_saved_one_draws_the_same_prompts(tmp_path: Any) -> None:
    data = CASES["gamma"][0]
    lfom.save(tmp_path / "data.safetensors", data)
    loaded, key = lfom.load(tmp_path / "data.safetensors"), jax.random.key(8)
    np.testing.assert_array_equal(data.prompts(key, 3).X, loaded.prompts(key, 3).X)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: OnSphere([1.0, -1.0], 8), "spectrum"),
        (lambda: OnSphere([1.0], 0), "context"),
        (lambda: OnSphere([1.0], 8, degrees=3), "unknown option 'degrees'"),
        (lambda: OnSphere([1.0], 8, variance=0.0), "variance"),
        (lambda: OnSphere([1.0, 1.0], 8, rotation=[[1.0, 0.0], [1.0, 1.0]]), "rotation"),
        (lambda: GammaLengths([1.0], 8, shape=0.0), "shape"),
        (lambda: GammaLengths([1.0], 8, scale=-1.0), "scale"),
        (lambda: GammaLengths([1.0], 8, noise=-1.0), "noise"),
    ],
)
def test_bad_input_is_named(make: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        make()
