"""Prompts whose examples or queries lie elsewhere: what defines each of them, and labels that fit."""

from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest

import lfom
from lfom import (
    AnyLength,
    Distribution,
    InputError,
    LinearRegression,
    OneOrthant,
    OrthogonalQuery,
    Prompt,
    RepeatedQuery,
)
from tests.helpers import draw_prompts

KEY, COUNT = jax.random.key(0), 4_000
BASE = LinearRegression([1.0, 0.5, 0.25], 2, noise=0.3, rotation=lfom.haar_rotation(jax.random.key(5), 3))
CASES: dict[str, Any] = {
    "opposite": OneOrthant(BASE),
    "same": OneOrthant(BASE, "same"),
    "anywhere": OneOrthant(BASE, "anywhere"),
    "orthogonal": OrthogonalQuery(BASE),
    "repeated": RepeatedQuery(BASE),
}


def arrays(name: str) -> list[np.ndarray]:
    prompts = draw_prompts(CASES[name], KEY, COUNT)
    return [
        np.asarray(a, np.float64)
        for a in (prompts.X, prompts.y, prompts.query, prompts.target, prompts.weights)
    ]


@pytest.mark.parametrize("name", list(CASES))
def test_labels_are_those_of_the_weights_and_noise_stays(name: str) -> None:
    X, y, query, target, w = arrays(name)
    np.testing.assert_allclose(target, np.sum(query * w, axis=1), atol=1e-5)
    noise = y - np.einsum("pni,pi->pn", X, w)
    np.testing.assert_allclose(noise.std(), 0.3, rtol=0.04)
    assert abs(np.mean(noise * X[..., 0])) < 4.5 * 0.3 / COUNT**0.5
    second = w.T @ w / COUNT
    np.testing.assert_allclose(second, np.linalg.inv(np.asarray(BASE.covariance)), atol=0.3)
    np.testing.assert_allclose(CASES[name].prior.covariance, BASE.prior.covariance)  # type: ignore[union-attr]
    assert CASES[name].dimension == 3
    assert lfom.PerRun([CASES[name]] * 2).runs == 2


@pytest.mark.parametrize(("name", "sign"), [("opposite", -1), ("same", 1), ("anywhere", 0)])
def test_examples_lie_in_one_orthant_and_the_query_where_it_is_asked(name: str, sign: int) -> None:
    X, _, query, _, _ = arrays(name)
    signs = np.sign(X[:, 0])
    assert (np.sign(X) == signs[:, None]).all()
    shares = np.unique(signs, axis=0, return_counts=True)[1] / COUNT
    np.testing.assert_allclose(shares, np.full(8, 1 / 8), atol=0.03)  # another orthant in every prompt
    agree = np.mean(np.sign(query) == signs)
    np.testing.assert_allclose(agree, (1 + sign) / 2, atol=0.02)
    plain = np.asarray(draw_prompts(BASE, jax.random.key(1), COUNT).X, np.float64)
    np.testing.assert_allclose(np.mean(X**2, axis=(0, 1)), np.mean(plain**2, axis=(0, 1)), rtol=0.08)


def test_an_orthogonal_query_is_what_the_examples_leave_of_it() -> None:
    X, _, query, _, _ = arrays("orthogonal")
    size = np.linalg.norm(query, axis=1) * np.linalg.norm(X, axis=2).max(axis=1)
    off = np.abs(np.einsum("pni,pi->pn", X, query)).max(axis=1)
    assert (off < 1e-5 * size + 1e-6).all()
    plain = jax.device_get(jax.vmap(BASE.prompt)(jax.random.split(KEY, COUNT)))
    across = np.cross(plain.X[:, 0], plain.X[:, 1]).astype(np.float64)
    across /= np.linalg.norm(across, axis=1, keepdims=True)
    np.testing.assert_allclose(query, np.sum(across * plain.query, axis=1)[:, None] * across, atol=2e-4)


def test_nothing_is_learned_of_an_orthogonal_query_and_all_of_a_repeated_one() -> None:
    methods = {"CGD": lfom.conjugate_gradient(2)}
    data = {"orthogonal": OrthogonalQuery, "repeated": RepeatedQuery}
    found = {
        name: lfom.evaluate(
            methods, kind(LinearRegression([1.0] * 3, 2)), contexts=[1, 2], prompts=500, key=KEY
        )
        for name, kind in data.items()
    }
    for name in ("CGD", "Bayes", "ridge"):
        np.testing.assert_allclose(
            found["orthogonal"][name].mean[0], found["orthogonal"][name].zero[0], rtol=1e-3
        )
        np.testing.assert_allclose(found["repeated"][name].mean[0], 0, atol=1e-4)
        assert found["repeated"][name].zero[0] > 1


def test_a_repeated_query_is_the_first_example() -> None:
    X, _, query, _, _ = arrays("repeated")
    np.testing.assert_array_equal(query, X[:, 0])


class Nameless(Distribution):
    """Prompts that do not say their w*."""

    dimension = 3

    def prompt(self, key: jax.Array) -> Prompt:
        return eqx.tree_at(lambda p: p.weights, BASE.prompt(key), None)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: OneOrthant(BASE, "oposite"), "Did you mean opposite"),
        (lambda: OrthogonalQuery(LinearRegression([1.0] * 3, 3)), "at most 2"),
        (lambda: OneOrthant(Nameless()), "prompts of Nameless do not say their w"),
        (lambda: OrthogonalQuery(Nameless()), "prompts of Nameless do not say their w"),
        (lambda: RepeatedQuery(AnyLength(BASE, (1, 2))), "AnyLength are filled up with zeros"),
    ],
)
def test_bad_input_is_refused(call: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()
