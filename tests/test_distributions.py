"""Where prompts come from: moments against the formulas, and the direct Wishart draw."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from lfom import (
    PUBLISHED_SPECTRUM,
    TEXT_SPECTRUM,
    GaussianMixture,
    InputError,
    LinearRegression,
    haar_rotation,
)
from lfom.core.problems import Quadratic
from lfom.prompts.distributions import bartlett_factor, chi_square
from tests.helpers import draw_prompts, draw_quadratics

PROMPTS = 20_000
Z = 4.5  # standard errors; the seeds are fixed, so a test passes always or never


def z_scores(samples: np.ndarray, wanted: Any = 0.0) -> np.ndarray:
    """How many standard errors the means over the last axis lie from what is wanted."""
    samples = np.asarray(samples, float)
    spread = samples.std(axis=-1, ddof=1) / np.sqrt(samples.shape[-1])
    return (samples.mean(axis=-1) - wanted) / np.maximum(spread, 1e-12)


def z_between(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    first, second = np.asarray(first, float), np.asarray(second, float)
    spread = np.sqrt(first.var(axis=-1) / first.shape[-1] + second.var(axis=-1) / second.shape[-1])
    return (first.mean(axis=-1) - second.mean(axis=-1)) / np.maximum(spread, 1e-12)


def close(scores: np.ndarray) -> bool:
    return bool(np.abs(scores).max() < Z)


# Rotations


def test_a_haar_rotation_is_orthogonal_and_new_for_every_key() -> None:
    U = np.asarray(haar_rotation(jax.random.key(0), 6))
    np.testing.assert_allclose(U @ U.T, np.eye(6), atol=1e-5)
    assert np.abs(U - np.asarray(haar_rotation(jax.random.key(1), 6))).max() > 0.1


def test_haar_rotations_have_the_moments_of_the_orthogonal_group() -> None:
    d = 3
    U = np.asarray(jax.vmap(lambda k: haar_rotation(k, d))(jax.random.split(jax.random.key(0), PROMPTS)))
    U = np.moveaxis(U, 0, -1)
    assert close(z_scores(U))  # E U_ij = 0
    assert close(z_scores(U**2, 1 / d))
    assert close(z_scores(U**4, 3 / (d * (d + 2))))
    assert close(z_scores(U[0, 0] * U[1, 1]))
    assert close(z_scores(np.linalg.det(np.moveaxis(U, -1, 0))))  # reflections half of the time


# Linear regression


def test_the_two_spectra_of_the_paper() -> None:
    assert tuple(s**2 for s in TEXT_SPECTRUM) == PUBLISHED_SPECTRUM  # docs/mathematics.md 2.1


def rotated(context: int, **options: Any) -> LinearRegression:
    U = haar_rotation(jax.random.key(9), 3)
    return LinearRegression([1.0, 0.5, 0.2], context, rotation=U, variance=1.7, **options)


def test_covariance_and_roots_match_the_definition() -> None:
    data = rotated(4)
    U = np.asarray(data.rotation)
    S = 1.7 * U.T @ np.diag([1.0, 0.5, 0.2]) @ U
    np.testing.assert_allclose(data.covariance, S, atol=1e-6)
    np.testing.assert_allclose(data.root.T @ data.root, S, atol=1e-6)
    np.testing.assert_allclose(data.inverse_root @ data.root, np.eye(3), atol=1e-5)


def test_prompts_have_the_moments_of_the_definition() -> None:
    data = rotated(4, noise=0.3, weight_variance=2.0)
    batch = draw_prompts(data, jax.random.key(0), PROMPTS)
    S = np.asarray(data.covariance)
    X, query, w = (np.moveaxis(np.asarray(a), 0, -1) for a in (batch.X, batch.query, batch.weights))
    assert close(z_scores(X))
    assert close(z_scores(np.einsum("ip,jp->ijp", X[2], X[2]), S))
    assert close(z_scores(np.einsum("ip,jp->ijp", query, query), S))
    assert close(z_scores(np.einsum("ip,jp->ijp", X[0], X[1])))  # examples are independent
    assert close(z_scores(np.einsum("ip,jp->ijp", w, w), 2.0 * np.linalg.inv(S)))
    label_noise = np.asarray(batch.y).T - np.einsum("nip,ip->np", X, w)
    assert close(z_scores(label_noise))
    assert close(z_scores(label_noise**2, 0.3**2))
    np.testing.assert_allclose(batch.target, np.einsum("ip,ip->p", query, w), rtol=1e-3, atol=1e-4)


WEIGHTS_GIVEN = [1.0, -2.0, 3.0]


def test_given_weights_are_used_everywhere() -> None:
    data = rotated(4, weights=WEIGHTS_GIVEN)
    batch = draw_prompts(data, jax.random.key(0), 5)
    np.testing.assert_array_equal(batch.weights, np.broadcast_to(WEIGHTS_GIVEN, (5, 3)))
    direct = draw_quadratics(data, jax.random.key(0), 5)
    np.testing.assert_allclose(
        direct.target.T, np.tile(data.root @ np.array(WEIGHTS_GIVEN), (5, 1)), rtol=1e-4
    )
    # without noise the moment is the Gram matrix times the weights
    wanted = np.einsum("ijp,j->ip", direct.gram, WEIGHTS_GIVEN)
    np.testing.assert_allclose(direct.moment, wanted, rtol=1e-3, atol=1e-4)


def test_the_same_key_gives_the_same_prompts() -> None:
    data, key = rotated(4, weights=WEIGHTS_GIVEN), jax.random.key(3)
    for draw in (draw_prompts, draw_quadratics):
        assert jax.tree.all(jax.tree.map(np.array_equal, draw(data, key, 5), draw(data, key, 5)))
        assert not np.array_equal(*(jax.tree.leaves(draw(data, jax.random.key(k), 5))[0] for k in (3, 4)))


# Gram matrices drawn directly


def spectra(gram: np.ndarray) -> np.ndarray:
    """Eigenvalues of each prompt, ascending, (d, prompts)."""
    return np.linalg.eigvalsh(np.moveaxis(gram, -1, 0).astype(float)).T


@pytest.mark.parametrize("context", [20, 2, 1])  # n >= d, and n < d down to one example
def test_quadratics_have_the_distribution_of_gram_matrices_of_prompts(context: int) -> None:
    data = rotated(context, noise=0.5)
    batch = draw_prompts(data, jax.random.key(0), PROMPTS)
    drawn = jax.vmap(Quadratic.of, out_axes=-1)(batch)
    direct = draw_quadratics(data, jax.random.key(1), PROMPTS)
    G, H = np.asarray(drawn.gram), np.asarray(direct.gram)
    assert close(z_scores(H, np.asarray(data.covariance)))
    assert close(z_between(G, H))
    assert close(z_between(np.einsum("ijp,klp->ijklp", G, G), np.einsum("ijp,klp->ijklp", H, H)))
    eigenvalues, direct_eigenvalues = spectra(G), spectra(H)
    rank = min(context, 3)
    assert close(z_between(eigenvalues[-rank:], direct_eigenvalues[-rank:]))
    assert close(z_between(eigenvalues[-rank:] ** 2, direct_eigenvalues[-rank:] ** 2))
    assert stats.ks_2samp(eigenvalues.sum(0), direct_eigenvalues.sum(0)).pvalue > 1e-3
    assert stats.ks_2samp(eigenvalues[-rank], direct_eigenvalues[-rank]).pvalue > 1e-3
    if context < 3:  # singular, as it must be
        assert np.abs(direct_eigenvalues[:-rank]).max() < 1e-5
    # b, alone and together with G
    b, c = np.asarray(drawn.moment), np.asarray(direct.moment)
    assert close(z_between(np.einsum("ip,jp->ijp", b, b), np.einsum("ip,jp->ijp", c, c)))
    assert close(z_between(np.einsum("ijp,jp->ip", G, b) * b, np.einsum("ijp,jp->ip", H, c) * c))


@pytest.mark.parametrize("context", [8, 2])
def test_given_the_gram_matrix_the_moment_scatters_as_label_noise_does(context: int) -> None:
    w = jnp.asarray([1.0, -2.0, 0.5])
    data = rotated(context, noise=0.5, weights=w)
    direct = draw_quadratics(data, jax.random.key(1), PROMPTS)
    G = np.asarray(direct.gram)
    off = np.asarray(direct.moment) - np.einsum("ijp,j->ip", G, w)
    assert close(z_scores(off))
    # covariance noise^2 G / n given G: also when weighted with G itself
    surplus = np.einsum("ip,jp->ijp", off, off) - 0.5**2 * G / context
    assert close(z_scores(surplus))
    assert close(z_scores(surplus * np.trace(G)))


def test_the_probe_averages_the_query_out() -> None:
    data = rotated(4, weights=WEIGHTS_GIVEN)
    direct = draw_quadratics(data, jax.random.key(1), 5)
    error = np.array([0.3, -1.0, 2.0])
    x = np.asarray(draw_prompts(data, jax.random.key(2), PROMPTS).query)
    assert close(z_scores((x @ error) ** 2, np.sum((np.asarray(direct.probe) @ error) ** 2)))


@pytest.mark.parametrize(("d", "n"), [(1, 1), (4, 2), (3, 9)])
def test_the_bartlett_factor_is_lower_trapezoidal_with_chi_on_the_diagonal(d: int, n: int) -> None:
    C = np.asarray(bartlett_factor(jax.random.key(0), d, n, PROMPTS))
    assert C.shape == (d, min(n, d), PROMPTS)
    row, column = np.indices(C.shape[:2])
    assert not C[row < column].any()
    for j in range(min(n, d)):
        assert stats.kstest(C[j, j] ** 2, stats.chi2(n - j).cdf).pvalue > 1e-3


@pytest.mark.parametrize("context", [64, 65, 66, 300])  # beyond 64 degrees they are drawn in another way
def test_gram_matrices_of_long_contexts_are_wishart(context: int) -> None:
    """Without a rotation: n G_ii / s_i is a chi-square of n degrees, G_01 is a sum of n products."""
    spectrum = np.array([1.0, 0.5, 0.2])
    gram = np.asarray(draw_quadratics(LinearRegression(spectrum, context), jax.random.key(0), PROMPTS).gram)
    for i, variance in enumerate(spectrum):
        chi_square = context * gram[i, i] / variance
        assert stats.kstest(chi_square, stats.chi2(context).cdf).pvalue > 1e-3
        assert close(z_scores(chi_square, context))
        assert close(z_scores((chi_square - context) ** 2, 2 * context))
    assert close(z_scores(gram[0, 1]))
    assert close(z_scores(gram[0, 1] ** 2, 0.5 / context))
    assert close(z_scores((gram[0, 0] - 1) * (gram[1, 1] - 0.5)))


# Mixtures

MEANS = [[2.0, 0.0], [-1.0, 1.0], [0.0, -3.0]]
VARIANCES = [0.5, 1.0, 2.0]
WEIGHTS = [0.2, 0.5, 0.3]


def gaussian_mixture(**options: Any) -> GaussianMixture:
    U = haar_rotation(jax.random.key(9), 2)
    return GaussianMixture(MEANS, VARIANCES, WEIGHTS, 3, spectrum=[1.0, 0.3], rotation=U, **options)


@pytest.mark.parametrize(("weight_variance", "weight_mean"), [("inverse", True), ("same", False)])
def test_components_have_their_means_and_variances(weight_variance: str, weight_mean: bool) -> None:
    data = gaussian_mixture(weight_variance=weight_variance, weight_mean=weight_mean)
    S = np.asarray(data.rotation).T @ np.diag([1.0, 0.3]) @ np.asarray(data.rotation)
    for m in range(3):
        batch = draw_prompts(data.component(m), jax.random.key(m), PROMPTS)
        x, w = np.asarray(batch.X)[:, 1].T, np.asarray(batch.weights).T
        assert close(z_scores(x, np.array(MEANS[m])))
        centred = x - np.array(MEANS[m])[:, None]
        assert close(z_scores(np.einsum("ip,jp->ijp", centred, centred), VARIANCES[m] * S))
        mean = np.array(MEANS[m]) if weight_mean else np.zeros(2)
        assert close(z_scores(w, mean))
        spread = VARIANCES[m] if weight_variance == "same" else 1 / VARIANCES[m]
        centred = w - mean[:, None]
        assert close(z_scores(np.einsum("ip,jp->ijp", centred, centred), spread * np.linalg.inv(S)))
        np.testing.assert_allclose(batch.y[:, 1], np.einsum("ip,ip->p", x, w), rtol=1e-3, atol=1e-3)


def test_a_prompt_comes_from_one_component_chosen_by_weight() -> None:
    # far apart and narrow: the component of each example can be read off
    data = GaussianMixture([[-100.0], [0.0], [100.0]], [1.0] * 3, WEIGHTS, 4)
    x = np.asarray(draw_prompts(data, jax.random.key(0), PROMPTS).X)[..., 0]
    component = np.rint(x / 100)
    assert (component == component[:, :1]).all()
    for m, weight in enumerate(WEIGHTS):
        assert close(z_scores(component[:, 0] == m - 1, weight))


def test_the_mixture_probe_is_a_root_of_the_second_moment() -> None:
    data = gaussian_mixture().component(2)
    probe = np.asarray(draw_quadratics(data, jax.random.key(0), 1).probe)[..., 0]
    error = np.array([0.7, -1.3])
    x = np.asarray(draw_prompts(data, jax.random.key(1), PROMPTS).query)
    assert close(z_scores((x @ error) ** 2, np.sum((probe @ error) ** 2)))


def test_mixture_quadratics_are_those_of_their_prompts() -> None:
    data, key = gaussian_mixture(noise=0.2), jax.random.key(0)
    batch, direct = draw_prompts(data, key, 6), draw_quadratics(data, key, 6)
    wanted = jax.vmap(Quadratic.of, out_axes=-1)(batch)
    np.testing.assert_allclose(direct.gram, wanted.gram, rtol=1e-5)
    np.testing.assert_allclose(direct.moment, wanted.moment, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        direct.target, np.einsum("kdp,pd->kp", direct.probe, np.asarray(batch.weights)), rtol=1e-4, atol=1e-5
    )


# Bad input


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: LinearRegression([1.0, 0.0], 4),
            r"spectrum is \[1.0, 0.0\]: .*greater than 0. Pass positive",
        ),
        (lambda: LinearRegression([1.0, -1.0], 4), r"spectrum is \[1.0, -1.0\]: .*greater than 0"),
        (lambda: LinearRegression([], 4), r"spectrum has shape \(0,\)"),
        (lambda: LinearRegression([1.0, np.nan], 4), r"spectrum holds nan at entry \[1\]"),
        (lambda: LinearRegression([1.0], 0), "context is 0: it must be at least 1"),
        (
            lambda: LinearRegression([1.0] * 2, 4, rotation=2 * np.eye(2)),
            "rotation is not orthogonal.*haar_rotation",
        ),
        (
            lambda: LinearRegression([1.0] * 2, 4, rotation=np.eye(3)),
            r"rotation has shape \(3, 3\), expected \(2, 2\)",
        ),
        (lambda: LinearRegression([1.0], 4, variance=0.0), r"variance is 0\.0: .*greater than 0"),
        (lambda: LinearRegression([1.0], 4, noise=-0.1), r"noise is -0\.1.*0 or greater. Pass 0"),
        (lambda: LinearRegression([1.0], 4, weights=[1.0, 2.0]), r"weights has shape \(2,\)"),
        (lambda: LinearRegression([1.0], 4, weight_variance=-1.0), r"weight_variance is -1\.0"),
        (
            lambda: GaussianMixture(MEANS, VARIANCES, [0.5, 0.6, 0.1], 3),
            r"weights is .* with sum 1\.2: .*Divide them",
        ),
        (lambda: GaussianMixture(MEANS, VARIANCES, [1.2, -0.1, -0.1], 3), "weights is .*0 or greater"),
        (lambda: GaussianMixture(MEANS, VARIANCES, [0.5, 0.5], 3), "weights has 2 entries for 3 means"),
        (lambda: GaussianMixture(MEANS, [1.0], WEIGHTS, 3), r"variances has shape \(1,\), expected \(3\)"),
        (lambda: GaussianMixture(MEANS, [1.0, 0.0, 1.0], WEIGHTS, 3), r"variances is \[1\.0, 0\.0, 1\.0\]"),
        (lambda: GaussianMixture(MEANS, VARIANCES, WEIGHTS, 0), "context is 0"),
        (
            lambda: gaussian_mixture(weight_variance="inverted"),
            "unknown weight_variance 'inverted'.*Did you mean inverse",
        ),
        (lambda: haar_rotation(jax.random.key(0), 0), "d is 0: it must be at least 1"),
        (lambda: rotated(4).prompts(jax.random.key(0), 0), "count is 0: it must be at least 1"),
        (lambda: rotated(4).quadratics(jax.random.key(0), 0), "count is 0: it must be at least 1"),
        (lambda: gaussian_mixture().quadratics(jax.random.key(0), 0), "count is 0: it must be at least 1"),
    ],
)
def test_bad_distributions_are_refused_at_once(build: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build()


@pytest.mark.parametrize("degrees", [0.5, 1.5, 3.0, 40.0])
def test_chi_square_numbers_of_any_degrees(degrees: float) -> None:
    found = np.asarray(chi_square(jax.random.key(2), jnp.asarray(degrees), (PROMPTS,)), np.float64)
    assert stats.kstest(found, stats.chi2(degrees).cdf).pvalue > 1e-3
    assert close(z_scores(found, degrees))


def test_chi_square_numbers_have_no_impossible_tail() -> None:
    """A uniform number can be exactly zero (once in 8 million), and must not become a huge logarithm."""
    squares = np.asarray(bartlett_factor(jax.random.key(1), 1, 20, 4_000_000)) ** 2
    assert squares.min() > 0
    assert squares.max() < 110  # beyond this a chi-square of 20 degrees comes once in 1e13
