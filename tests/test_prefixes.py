"""Scores after every number of examples: against prompts that are cut by hand, ridge and Bayes against NumPy."""

from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest

import lfom
from lfom import (
    AnyLength,
    GaussianMixture,
    HeavyTailed,
    InputError,
    LinearRegression,
    OnSphere,
    PerRun,
    evaluate,
)
from lfom.core.kernels import GaussianKernel
from lfom.limits.bayes import LONG, posterior_means
from lfom.prompts.distributions import Distribution, Prior
from lfom.prompts.prompt import Prompt, prompt_from_arrays
from lfom.training import prefixes
from tests.helpers import draw_prompts, relative

KEY, D, N, CHUNK = jax.random.key(3), 3, 7, 20
CONTEXTS = (1, 3, 7)
GD = {"GD": lfom.gradient_descent(0.2, 3)}


def data(**options: Any) -> LinearRegression:
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(D, D)))[0]
    return LinearRegression([1.0, 0.5, 0.3], N, **({"noise": 0.2, "rotation": turn} | options))


def linear() -> dict[str, Any]:
    """Of every memory that linear attention has, and depths that share a program."""
    model = lfom.memformer(D, 3, scale=0.2, key=KEY)
    return {
        "GD": lfom.gradient_descent(0.2, 3),
        "bank": model,
        "bank, two layers": model.truncated(2),
        "pairs": lfom.memformer(D, 2, gamma="pair", tied=True, scale=0.2, key=KEY),
        "GD++": lfom.memformer(D, 2, covariates=True, scale=0.1, key=KEY),
        "normalised": lfom.memformer(D, 2, normalised=True, scale=0.2, key=KEY),
        "CGD": lfom.conjugate_gradient(2),
        "optimum": lfom.exact_optimum(D, N, 2),
        "any P and Q": lfom.memformer(D, 2, reader="linear", key=KEY),
        "any P and Q, register": lfom.memformer(D, 2, reader="linear", memory="register", key=KEY),
    }


def others() -> dict[str, Any]:
    """What has another view: tokens alone, and kernels."""
    return {
        "softmax": lfom.memformer(D, 2, reader="softmax", key=KEY),
        "kernel": lfom.memformer(D, 2, reader=GaussianKernel(0.7), memory="register", scale=0.5, key=KEY),
        "kernel, conjugate": lfom.memformer(D, 2, reader="exponential", memory="conjugate", key=KEY),
    }


@eqx.filter_jit
def at_once(source: Distribution, key: Any, count: int) -> Prompt:
    return source.at_once(key, count)


def drawn(source: Distribution, run: int = 0, index: int = 0) -> Prompt:
    return at_once(source, jax.random.fold_in(jax.random.fold_in(KEY, index), run), CHUNK)


def cut(prompts: Prompt, k: int, queries: Any = None) -> Prompt:
    """The first k examples, asked for all of these queries, prompt after prompt; by default for their own."""
    times = 1 if queries is None else len(queries)
    X, y, w = (np.repeat(np.asarray(a), times, axis=0) for a in (prompts.X, prompts.y, prompts.weights))
    query = np.asarray(prompts.query) if queries is None else np.tile(queries, (len(prompts.X), 1))
    return prompt_from_arrays(X[:, :k], y[:, :k], query, np.sum(query * w, axis=1))


@eqx.filter_jit
def answers(method: Any, prompts: Prompt, view: str) -> Any:
    return lfom.run(method, prompts, view=view).predictions[-1]


def plain(method: Any, prompts: Prompt, k: int, queries: Any = None) -> np.ndarray:
    """The losses on prompts that are cut to k examples, by attention on tokens where it is possible."""
    method, given = method.as_algorithm(), cut(prompts, k, queries)
    view = "tokens" if "tokens" in method.views else method.views[0]
    off = np.asarray(answers(method, given, view)) - np.asarray(given.target)
    return np.sum(off.reshape(len(prompts.X), -1) ** 2, axis=1)


def test_every_prefix_is_scored_as_a_prompt_of_its_own(x64: None) -> None:
    """The query averaged out: one after another, the rows of the root are what is asked."""
    source = data()
    found = evaluate(linear(), source, contexts=CONTEXTS, prompts=CHUNK, key=KEY)
    assert list(found) == [*linear(), "ridge", "Bayes"]
    for name, method in linear().items():
        losses = found[name].losses[0]
        wanted = [plain(method, drawn(source), k, source.root) for k in CONTEXTS]
        assert relative(losses, np.stack(wanted, axis=1)) < 1e-10, name
        np.testing.assert_allclose(found[name].mean[0], losses.mean(axis=0), rtol=1e-12)
        np.testing.assert_allclose(found[name].stderr[0], losses.std(axis=0) / CHUNK**0.5, rtol=1e-12)
        assert (found[name].contexts, found[name].prompts) == (CONTEXTS, CHUNK)
    zero = np.sum((np.asarray(drawn(source).weights) @ source.root.T) ** 2, axis=1)
    np.testing.assert_allclose(found["GD"].zero, [zero.mean()], rtol=1e-12)


def test_every_view_is_scored_with_the_query_that_was_drawn(x64: None) -> None:
    source = data()
    methods = {name: linear()[name] for name in ("bank", "any P and Q", "CGD")} | others()
    found = evaluate(methods, source, contexts=CONTEXTS, prompts=CHUNK, key=KEY)
    for name, method in methods.items():
        wanted = [plain(method, drawn(source), k) for k in CONTEXTS]
        assert relative(found[name].losses[0], np.stack(wanted, axis=1)) < 1e-10, name


@pytest.mark.parametrize(
    "source",
    [HeavyTailed(data(), 5), OnSphere([1.0, 0.5, 0.3], N), GaussianMixture([[1.0, 0, 0]], [0.5], [1.0], N)],
)
def test_other_distributions_are_asked_what_they_know(source: Distribution) -> None:
    """All queries at once, where E[x x^T] is known: the mean over queries that are drawn."""
    found = evaluate({"GD": lfom.gradient_descent(0.2, 3)}, source, contexts=[2, N], prompts=10_000, key=KEY)
    prompts = draw_prompts(source, jax.random.key(9), 20_000)
    for at, k in enumerate((2, N)):
        wanted = plain(lfom.gradient_descent(0.2, 3), prompts, k)
        error = np.hypot(found["GD"].stderr[0, at], wanted.std() / len(wanted) ** 0.5)
        assert abs(found["GD"].mean[0, at] - wanted.mean()) < 4.5 * error
    assert ("Bayes" in found) == (source.prior is not None)


def test_runs_and_chunks_are_separate_prompts() -> None:
    sources = [data(), data(variance=2.0)]
    sizes = PerRun([lfom.gradient_descent(eta, 2) for eta in (0.1, 0.2)])
    found = evaluate({"GD": sizes}, sources, contexts=[4, 2, 4], prompts=2 * CHUNK, chunk=CHUNK, key=KEY)
    assert found["GD"].contexts == (2, 4)
    assert found["Bayes"].mean.shape == found["GD"].low.shape == (2, 2)
    for run, source in enumerate(sources):
        prompts = [drawn(source, run, index) for index in range(2)]
        wanted = [np.concatenate([plain(sizes[run], one, k, source.root) for one in prompts]) for k in (2, 4)]
        np.testing.assert_allclose(found["GD"].losses[run], np.stack(wanted, axis=1), rtol=1e-4)
    alone = evaluate({"GD": sizes[0]}, sources[0], contexts=[2, 4], prompts=2 * CHUNK, chunk=CHUNK, key=KEY)
    for name, score in alone.items():
        np.testing.assert_allclose(score.mean[0], found[name].mean[0], rtol=1e-6)
        np.testing.assert_allclose(score.low[0], found[name].low[0], rtol=1e-6)


def test_prompts_that_are_drawn_at_once_are_those_of_the_distribution() -> None:
    prompts = at_once(data(weight_variance=2.0), KEY, 40_000)
    X, y, query, w = (
        np.asarray(a, np.float64) for a in (prompts.X, prompts.y, prompts.query, prompts.weights)
    )
    S = np.asarray(data().covariance)
    for examples in (*np.moveaxis(X, 1, 0), query):
        np.testing.assert_allclose(examples.T @ examples / len(w), S, atol=0.03)
    np.testing.assert_allclose(w.T @ w / len(w), 2 * np.linalg.inv(S), atol=0.2)
    noise = y - np.einsum("pni,pi->pn", X, w)
    np.testing.assert_allclose(noise.T @ noise / len(w), 0.04 * np.eye(N), atol=2e-3)
    for one in (noise[:, :1] * X[:, 0], X[:, 0] * X[:, 1], X[:, 0] * w, query * w, query * X[:, -1]):
        assert (abs(one.mean(axis=0)) < 4.5 * one.std(axis=0) / 200).all()
    np.testing.assert_allclose(prompts.target, np.sum(query * w, axis=1), atol=1e-4)


def test_methods_of_one_structure_share_a_program() -> None:
    options: dict[str, Any] = {"contexts": CONTEXTS, "prompts": CHUNK, "key": KEY}
    evaluate({"GD": lfom.gradient_descent(0.1, 3)}, data(), **options)
    program: Any = prefixes._along
    before = program._cache_size()
    several = {
        "a": lfom.gradient_descent(0.2, 3),
        "NAG": lfom.nesterov(0.1, 0.5, 3),
        "bank": linear()["bank"],
    }
    evaluate(several, data(), **(options | {"contexts": (2, 4, 5)}))
    assert program._cache_size() == before


# Ridge and the Bayes predictor


def by_formula(X: np.ndarray, y: np.ndarray, covariance: np.ndarray, noise: float) -> np.ndarray:
    """The mean of w* given examples; without noise the solution that is shortest in the metric of the prior."""
    root = np.linalg.cholesky(covariance)
    white = X @ root
    if noise == 0:
        return root @ np.linalg.lstsq(white, y, rcond=1e-10)[0]
    return root @ np.linalg.solve(white.T @ white + noise**2 * np.eye(len(root)), white.T @ y)


@pytest.mark.parametrize("noise", [0.0, 0.05, 1.0])
@pytest.mark.parametrize(("d", "n"), [(3, 6), (20, 40), (2, LONG + 6)])
def test_means_of_the_weights_are_those_of_the_formula(d: int, n: int, noise: float) -> None:
    rng = np.random.default_rng(d)
    X, mix = rng.normal(size=(30, n, d)), rng.normal(size=(d, d))
    covariance = mix @ mix.T / d + 0.1 * np.eye(d)
    y = np.sum(X * rng.normal(size=(30, 1, d)), axis=2) + noise * rng.normal(size=(30, n))
    contexts = [
        k for k in range(1, n + 1) if noise or k != d
    ]  # k = d without noise: as good as its condition is
    found = posterior_means(X, y, Prior(covariance, noise), contexts)
    for at, k in enumerate(contexts):
        wanted = [by_formula(x[:k], labels[:k], covariance, noise) for x, labels in zip(X, y, strict=True)]
        np.testing.assert_allclose(
            found[:, at], wanted, atol=2e-4 if noise == 0 else 1e-9, err_msg=f"k = {k}"
        )


def test_examples_that_say_the_same_or_nothing_do_no_harm() -> None:
    X = np.asarray([[[0.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 2.0]], np.zeros((4, 2))])
    y = np.asarray([[0.0, 3.0, 3.0, 4.0], np.zeros(4)])
    found = posterior_means(X, y, Prior(np.eye(2), 0.0), [1, 2, 3, 4])
    np.testing.assert_allclose(found[0], [[0, 0], [3, 0], [3, 0], [3, 2]], atol=1e-6)
    np.testing.assert_array_equal(found[1], 0)


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_in_single_precision_bayes_has_the_loss_that_theory_says(noise: float) -> None:
    """d = 20, isotropic. Without noise (d - k) of d is left, and nothing from k = d on."""
    d, contexts = 20, (1, 7, 19, 20, 21, 40)
    source = LinearRegression([1.0] * d, 40, noise=noise)
    found = evaluate({"CGD": lfom.conjugate_gradient(2)}, source, contexts=contexts, prompts=2_000, key=KEY)
    prompts = jax.device_get(at_once(source, jax.random.fold_in(jax.random.fold_in(KEY, 0), 0), 2_000))
    for at, k in enumerate(contexts):
        exact = [
            by_formula(*one, np.eye(d), noise) for one in zip(prompts.X[:, :k], prompts.y[:, :k], strict=True)
        ]
        wanted = np.mean(np.sum((np.stack(exact) - prompts.weights) ** 2, axis=1))
        np.testing.assert_allclose(found["Bayes"].mean[0, at], wanted, rtol=1e-3, atol=1e-4)
        if noise == 0:
            error = found["Bayes"].stderr[0, at]
            assert abs(found["Bayes"].mean[0, at] - max(d - k, 0)) < 4.5 * error + 1e-4
        else:  # the strength of ridge is the noise then, or near it
            assert found["ridge"].mean[0, at] < 1.02 * found["Bayes"].mean[0, at]


def test_bayes_is_below_all_and_ridge_below_a_wrong_strength() -> None:
    """On a prior that is not that of ridge; the strength is the best of its table, on other prompts."""
    source = LinearRegression([4.0, 1.0, 0.05], 12, noise=1.0)
    found = evaluate(linear(), source, contexts=range(1, 13), prompts=10_000, key=KEY)
    for name, score in found.items():
        surplus = score.losses[0] - found["Bayes"].losses[0]
        assert (surplus.mean(axis=0) >= -4 * surplus.std(axis=0) / 100).all(), name
    few = jax.device_get(draw_prompts(source, jax.random.key(1), 10_000))
    for noise in (0.0, 0.5, 3.0):
        w = posterior_means(few.X, few.y, Prior(np.eye(3), noise), range(1, 13))
        fixed = np.sum(((w - few.weights[:, None]) @ source.root.T) ** 2, axis=2)
        assert (
            found["ridge"].mean[0]
            < fixed.mean(axis=0) + 4.5 * (fixed.std(axis=0) / 100 + found["ridge"].stderr[0])
        ).all()


def test_the_strength_of_ridge_is_chosen_on_prompts_that_are_not_scored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen, choose = [], prefixes._rivals

    def watched(source: Any, others: Any, contexts: Any) -> Any:
        seen.append(others)
        return choose(source, others, contexts)

    monkeypatch.setattr(prefixes, "_rivals", watched)
    evaluate(GD, [data(), data()], contexts=[N], prompts=2 * CHUNK, chunk=CHUNK, key=KEY)
    scored = np.concatenate([drawn(data(), run, index).y[:, 0] for run in range(2) for index in range(2)])
    chosen = np.concatenate([np.asarray(others.prompts.y[:, 0]) for others in seen])
    assert len(np.unique(np.concatenate([scored, chosen]))) == 6 * CHUNK


# Means and their spread


def test_bootstrap_points_are_those_of_the_mean() -> None:
    """Of normal means: 1.645 standard errors to both sides; in groups as well."""
    rng = np.random.default_rng(0)
    for rows in (1_999, 7_001):
        losses = [rng.exponential(size=(rows, 30)), 5 + rng.normal(size=(rows, 30))]
        low, high = prefixes._bootstrap(losses, KEY, 0)
        both = np.concatenate(losses, axis=1)
        mean, error = both.mean(axis=0), both.std(axis=0) / rows**0.5
        for edge, sign in ((low, -1), (high, 1)):
            ratio = sign * (edge - mean) / error
            assert abs(ratio.mean() - 1.645) < 0.05
            assert (abs(ratio - 1.645) < 0.35).all()
        assert not np.array_equal(low, prefixes._bootstrap(losses, KEY, 1)[0])
        np.testing.assert_array_equal(low, prefixes._bootstrap(losses, KEY, 0)[0])


# Bad input


@pytest.mark.parametrize(
    ("contexts", "message"),
    [
        ([8], "contexts holds 8, and prompts have 7 examples"),
        (range(1, 10**12), "contexts holds 8, and prompts have 7 examples"),
        ([0], "contexts is 0"),
        ([3, -1], "contexts is -1"),
        ([2.0], "contexts is 2.0"),
        ([True], "contexts is True"),
        ("17", "contexts is '1'"),
        ([], "contexts is empty"),
        (5, "contexts is 5: pass numbers of examples"),
    ],
)
def test_numbers_of_examples_that_are_none_are_refused(contexts: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        evaluate(GD, data(), contexts=contexts, prompts=CHUNK, key=KEY)


def test_what_has_no_prefixes_and_names_that_are_taken_are_refused() -> None:
    with pytest.raises(InputError, match="no prefixes: score on the distribution that they are made of"):
        evaluate(GD, AnyLength(data(), (1, N)), contexts=[1], prompts=CHUNK, key=KEY)
    with pytest.raises(InputError, match="methods holds 'ridge'"):
        evaluate({"ridge": GD["GD"]}, data(), contexts=[1], prompts=CHUNK, key=KEY)
    with pytest.raises(InputError, match="models for 2 runs and the data has 1"):
        evaluate({"GD": PerRun([GD["GD"]] * 2)}, [data()], contexts=[1], prompts=CHUNK, key=KEY)


def test_a_method_that_diverges_is_named_with_its_number_of_examples() -> None:
    with pytest.raises(FloatingPointError, match="the loss of wild is not finite in run 0 after 1 examples"):
        evaluate({"wild": lfom.gradient_descent(1e30, 3)}, data(), contexts=[1, 2], prompts=CHUNK, key=KEY)
