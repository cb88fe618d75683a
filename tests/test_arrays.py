"""The trailing-axis algebra against NumPy's, on every layout and on both sides of ONE_SUM and PROMPTS_LAST."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lfom.core.arrays
from lfom.core.arrays import ONE_SUM, PROMPTS_LAST, dot, identity, matmat, matvec, norm, pad_axes, transpose

SIZES = [1, 3, ONE_SUM, ONE_SUM + 1, PROMPTS_LAST, PROMPTS_LAST + 1]


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


LAYOUTS = [((), ()), ((), (4,)), ((4,), ()), ((4,), (4,))]  # prompts on the left, on the right


def each_prompt(left: np.ndarray, right: np.ndarray, left_prompts: tuple, right_prompts: tuple) -> np.ndarray:
    """The products prompt by prompt, with NumPy."""
    if not left_prompts and not right_prompts:
        return left @ right
    pick = [
        (left[..., p] if left_prompts else left, right[..., p] if right_prompts else right) for p in range(4)
    ]
    return np.stack([one @ other for one, other in pick], axis=-1)


@pytest.mark.parametrize("d", SIZES)
@pytest.mark.parametrize(("left", "right"), LAYOUTS)
def test_matvec_is_the_product_of_every_prompt(d: int, left: tuple, right: tuple, x64: None) -> None:
    M, v = normal(0, 2, d, *left), normal(1, d, *right)
    found = matvec(jnp.asarray(M), jnp.asarray(v))
    np.testing.assert_allclose(found, each_prompt(M, v, left, right), atol=1e-13)


@pytest.mark.parametrize("d", SIZES)
@pytest.mark.parametrize(("left", "right"), LAYOUTS)
def test_matmat_is_the_product_of_every_prompt(d: int, left: tuple, right: tuple, x64: None) -> None:
    L, R = normal(0, 2, d, *left), normal(1, d, 3, *right)
    found = matmat(jnp.asarray(L), jnp.asarray(R))
    np.testing.assert_allclose(found, each_prompt(L, R, left, right), atol=1e-13)


@pytest.mark.parametrize("d", [3, ONE_SUM + 1, PROMPTS_LAST + 1])
def test_derivatives_of_a_shared_matrix_are_those_of_the_plain_product(d: int, x64: None) -> None:
    # the elementwise product has a derivative rule of its own
    M, v, u = jnp.asarray(normal(0, 2, d)), jnp.asarray(normal(1, d, 5)), jnp.asarray(normal(2, 2, 5))

    def ours(M: jax.Array, v: jax.Array) -> jax.Array:
        return jnp.sum(u * jnp.sin(matvec(M, v)))

    def plain(M: jax.Array, v: jax.Array) -> jax.Array:
        return jnp.sum(u * jnp.sin(M @ v))

    for found, wanted in zip(jax.grad(ours, (0, 1))(M, v), jax.grad(plain, (0, 1))(M, v), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-12)
    np.testing.assert_allclose(jax.hessian(ours)(M, v), jax.hessian(plain)(M, v), atol=1e-12)


@pytest.mark.parametrize("d", [3, ONE_SUM, ONE_SUM + 1, PROMPTS_LAST])
@pytest.mark.parametrize("product", [matvec, matmat])
def test_derivatives_of_products_per_prompt_are_those_of_the_plain_ones(
    d: int, product: Callable, x64: None
) -> None:
    # long sums are loops: both modes of differentiation must go through them
    L = jnp.asarray(normal(0, 2, d, 4))
    R = jnp.asarray(normal(1, d, 4) if product is matvec else normal(1, d, 3, 4))
    letters = "idp,dp->ip" if product is matvec else "idp,djp->ijp"

    def ours(L: jax.Array, R: jax.Array) -> jax.Array:
        return jnp.sin(product(L, R))

    def plain(L: jax.Array, R: jax.Array) -> jax.Array:
        return jnp.sin(jnp.einsum(letters, L, R))

    for differentiate in (jax.jacrev, jax.jacfwd):
        pairs = zip(differentiate(ours, (0, 1))(L, R), differentiate(plain, (0, 1))(L, R), strict=True)
        for found, wanted in pairs:
            np.testing.assert_allclose(found, wanted, atol=1e-12)


@pytest.mark.parametrize("d", [1, 2, ONE_SUM])
def test_short_sums_as_loops_are_the_same(d: int, monkeypatch: pytest.MonkeyPatch, x64: None) -> None:
    """What a compiler gets that hands sums over."""
    M, v = jnp.asarray(normal(0, 2, d, 4)), jnp.asarray(normal(1, d, 4))

    def value(M: jax.Array, v: jax.Array) -> jax.Array:
        return jnp.sum(jnp.sin(matvec(M, v)) ** 2)

    once = value(M, v), *jax.grad(value, (0, 1))(M, v)
    monkeypatch.setattr(lfom.core.arrays, "sums_are_handed_over", lambda: True)
    assert jax.default_backend() != "cpu" or ("scan" in str(jax.make_jaxpr(matvec)(M, v))) == (d > 1)
    again = value(M, v), *jax.grad(value, (0, 1))(M, v)
    for found, wanted in zip(again, once, strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-13)


def test_a_sum_of_one_term_is_no_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without jit jax 0.12 refuses loops over nothing."""
    monkeypatch.setattr(lfom.core.arrays, "sums_are_handed_over", lambda: True)
    M, v = jnp.asarray(normal(0, 1, 1, 4)), jnp.asarray(normal(1, 1, 4))
    assert "scan" not in str(jax.make_jaxpr(matvec)(M, v))
    with jax.disable_jit():
        np.testing.assert_allclose(matvec(M, v), M[0] * v, rtol=1e-6)


def test_small_operations_act_on_the_leading_axes() -> None:
    M, v = normal(0, 2, 3, 4), normal(1, 3, 4)
    assert transpose(jnp.asarray(M)).shape == (3, 2, 4)
    np.testing.assert_allclose(dot(jnp.asarray(v), jnp.asarray(v)), (v**2).sum(0), rtol=1e-5)
    eye = identity(3, jnp.asarray(v))
    np.testing.assert_array_equal(eye, np.broadcast_to(np.eye(3)[..., None], (3, 3, 4)))
    assert pad_axes(jnp.asarray(v), 4).shape == (3, 4, 1, 1)


@pytest.mark.parametrize(("n", "d", "prompts"), [(8, 5, 20_000), (20, 10, 8_000)])
def test_compiled_sums_of_products_are_right(n: int, d: int, prompts: int) -> None:
    """jaxlib 0.10.2 gets these wrong (docs/design.md)."""
    X = np.random.default_rng(0).normal(size=(n, d, prompts)).astype(np.float32)
    found = jax.jit(lambda X: jnp.sum(X[:, :, None] * X[:, None], axis=0))(X)
    np.testing.assert_allclose(found, np.einsum("tac,tbc->abc", X, X), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_norm_is_right_at_every_scale(dtype: Any, x64: None) -> None:
    """From the smallest normal numbers to the largest, against more than double precision; and its derivative."""
    limits, direction = np.finfo(dtype), np.random.default_rng(0).normal(size=300)
    for exponent in np.linspace(np.log10(limits.tiny) + 3, np.log10(limits.max) - 3, 40):
        v = (direction * np.longdouble(10) ** exponent).astype(dtype)
        wanted = np.sqrt((v.astype(np.longdouble) ** 2).sum())
        np.testing.assert_allclose(
            float(np.longdouble(np.asarray(norm(jnp.asarray(v)))) / wanted), 1, rtol=1e-6
        )
        np.testing.assert_allclose(
            jax.grad(norm)(jnp.asarray(v)), (v / wanted).astype(dtype), rtol=1e-5, atol=1e-7
        )
    assert norm(jnp.zeros(3)) == 0
    np.testing.assert_array_equal(jax.grad(norm)(jnp.zeros(2)), 0)
    assert np.isnan(norm(jnp.array([np.nan, 1.0])))
    assert np.isinf(norm(jnp.array([np.inf, 1.0])))
