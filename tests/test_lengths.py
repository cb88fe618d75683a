"""Prompts of every length: linear attention cannot tell them from prompts of k examples, and is trained on them."""

from typing import Any

import jax
import numpy as np
import pytest

import lfom
from lfom import AnyLength, InputError, LinearRegression
from lfom.prompts.prompt import prompt_from_arrays
from tests.helpers import draw_prompts, draw_quadratics, relative

KEY, D, N = jax.random.key(1), 3, 6
BASE = LinearRegression([1.0, 0.5, 0.3], N, noise=0.3)


def test_linear_attention_cannot_tell_them_from_prompts_of_k_examples(x64: None) -> None:
    """On tokens, which are the definition, and in the other views."""
    base = LinearRegression([1.0, 0.5, 0.3], N, noise=0.3)
    models = [
        lfom.memformer(D, 2, scale=0.2, key=KEY),
        lfom.memformer(D, 2, reader="linear", memory="register", key=KEY),
        lfom.memformer(D, 2, covariates=True, normalised=True, scale=0.1, key=KEY),
        lfom.conjugate_gradient(2),
    ]
    for k in (1, 4, N):
        long = draw_prompts(AnyLength(base, (k, k)), KEY, 5)
        X, y = np.asarray(long.X), np.asarray(long.y)
        factor = (k / N) ** 0.5
        short = prompt_from_arrays(factor * X[:, :k], factor * y[:, :k], long.query, long.target)
        whole = prompt_from_arrays(X, y, long.query, long.target)
        assert not X[:, k:].any()
        assert not y[:, k:].any()
        for model in models:
            wanted = lfom.run(model, short, view="tokens").predictions
            for view in model.views:
                assert relative(lfom.run(model, whole, view=view).predictions, wanted) < 1e-10


def test_lengths_are_uniform_and_examples_those_of_base() -> None:
    prompts = draw_prompts(AnyLength(BASE, (2, 5)), KEY, 20_000)
    X, y, w = (np.asarray(a, np.float64) for a in (prompts.X, prompts.y, prompts.weights))
    k = np.sum(X.any(axis=2), axis=1)
    share = [np.mean(k == length) for length in range(1, N + 1)]
    np.testing.assert_allclose(share, [0, 0.25, 0.25, 0.25, 0.25, 0], atol=0.015)
    scale = (k / N)[:, None] ** 0.5
    first = scale * X[:, 0]
    np.testing.assert_allclose(first.T @ first / len(k), np.diag([1.0, 0.5, 0.3]), atol=0.03)
    noise = scale[:, 0] * (y[:, 0] - np.sum(X[:, 0] * w, axis=1))
    np.testing.assert_allclose(noise.std(), 0.3, rtol=0.03)


def test_quadratics_and_joints_average_the_query_out() -> None:
    data = AnyLength(BASE, (1, N))
    model = lfom.memformer(D, 2, scale=0.2, key=KEY)
    prompts, averaged = draw_prompts(data, KEY, 40_000), draw_quadratics(data, KEY, 40_000)
    one = (np.asarray(lfom.run(model, prompts).predictions[-1]) - np.asarray(prompts.target)) ** 2
    w = np.asarray(lfom.run(model, averaged).predictions[-1])
    every = np.sum((np.asarray(averaged.probe) @ w - np.asarray(averaged.target)) ** 2, axis=0)
    assert abs(np.mean(one - every)) < 4.5 * np.std(one - every) / len(one) ** 0.5
    joints, same = data.joints(KEY, 5).as_quadratic(), data.quadratics(KEY, 5)
    for found, wanted in zip(jax.tree.leaves(joints), jax.tree.leaves(same), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-5)


def test_a_model_trained_over_lengths_stays_bounded_where_one_of_one_length_explodes() -> None:
    """n = 20, d = 5, four layers that divide by the mean eigenvalue: one example has then one eigenvalue, d, and the model
    of all lengths is as good as any there."""
    base = LinearRegression([1.0] * 5, 20)
    model = lfom.memformer(5, 4, preconditioner="scalar", normalised=True, key=KEY)
    short = lfom.LeastSquares(prompts=0.1)
    trained = {
        name: lfom.fit(model, data, key=KEY, optimiser=short).model()
        for name, data in {"one": base, "all": AnyLength(base, (1, 20))}.items()
    }
    found = lfom.evaluate(trained, base, contexts=(1, 2, 5, 20), prompts=10_000, key=jax.random.key(2))
    zero = found["all"].zero[0]
    assert found["one"].mean[0, 0] > 100 * zero
    np.testing.assert_allclose(found["all"].mean[0, 0], found["Bayes"].mean[0, 0], rtol=0.03)
    assert (np.diff(found["all"].mean[0]) < 0).all()
    assert found["one"].mean[0, -1] < found["all"].mean[0, -1] < 0.1 * zero


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: AnyLength(BASE, (0, 3)), "lengths is 0"),
        (lambda: AnyLength(BASE, (True, 3)), "lengths is True"),
        (lambda: AnyLength(BASE, (4, 3)), "the shortest comes first"),
        (lambda: AnyLength(BASE, (1, 7)), "goes up to 7, and prompts of base have 6 examples"),
        (lambda: AnyLength(BASE, (1, 2, 3)), "pass the shortest and the longest"),
        (lambda: AnyLength(AnyLength(BASE, (1, 3)), (1, 3)), "AnyLength is no least squares of one length"),
    ],
)
def test_bad_input_is_refused(call: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()


@pytest.mark.parametrize("reader", ["softmax", "gaussian"])
def test_what_sees_the_zeros_is_refused(reader: str) -> None:
    model = lfom.memformer(D, 1, reader=reader, key=KEY)
    with pytest.raises(InputError, match="only linear attention does not see"):
        lfom.fit(model, AnyLength(BASE, (1, N)), key=KEY, optimiser=lfom.Adam(steps=1))
    with pytest.raises(InputError, match="only linear attention does not see"):
        lfom.evaluate({"it": model}, AnyLength(BASE, (1, N)), prompts=10, key=KEY)
