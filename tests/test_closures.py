"""Operators and losses that close over values: read as they are now, and never differentiated in silence."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lfom
from lfom.core.checks import InputError
from lfom.solving.closures import read_outside

pytestmark = pytest.mark.usefixtures("x64")
B = np.ones((3, 2))
FACTOR = 2.0


def by_list(values: list[float]) -> Any:
    return lambda data, v: values[0] * v


def by_global(data: Any, v: Any) -> Any:
    return FACTOR * v


def test_values_that_change_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    method, values, array = lfom.conjugate_gradient(steps=2), [2.0], np.array([2.0, 2.0])
    problems = [
        lfom.LinearSystems(some, B) for some in (by_list(values), by_global, lambda data, v: array * v)
    ]
    for one in problems:
        np.testing.assert_allclose(method.solve(one).value, 0.5)
    values[0], array[:] = 4.0, 4.0
    monkeypatch.setattr(f"{__name__}.FACTOR", 4.0)
    for one in problems:
        np.testing.assert_allclose(method.solve(one).value, 0.25)


def test_losses_read_them_again_too() -> None:
    method, at = lfom.gradient_descent(0.5, steps=3), [1.0]
    problems = lfom.ConvexLosses(lambda w, data: jnp.sum((w - at[0] * data) ** 2) / 2, B, 2)
    first = np.asarray(method.solve(problems, steps=30).value)
    at[0] = 2.0
    np.testing.assert_allclose(method.solve(problems, steps=30).value, 2 * first, rtol=1e-6)


def solved(c: Any, loss: bool, **options: Any) -> Any:
    if loss:
        problems: Any = lfom.ConvexLosses(lambda w, data: jnp.sum(c * w**2 / 2 - data * w), B, 2)
        return lfom.gradient_descent(0.1, steps=3).solve(problems, **options).value.sum()
    problems = lfom.LinearSystems(lambda data, v: c * v, B)
    return lfom.conjugate_gradient(steps=2).solve(problems, **options).value.sum()


@pytest.mark.parametrize("loss", [False, True])
def test_values_that_are_traced_are_read_and_not_differentiated(loss: bool) -> None:
    options: dict[str, Any] = {"tolerance": 1e-8, "steps": 60}

    def f(c: Any) -> Any:
        return solved(c, loss, **options)

    np.testing.assert_allclose(jax.jit(f)(2.0), 3.0, rtol=1e-6)
    np.testing.assert_allclose(jax.vmap(f)(jnp.array([2.0, 4.0])), [3.0, 1.5], rtol=1e-6)
    for change in (jax.grad(f), jax.grad(jax.jit(f)), jax.jit(jax.grad(f)), jax.jacfwd(f)):
        with pytest.raises(InputError, match="closes over a value that is differentiated"):
            change(2.0)


@pytest.mark.parametrize("way", ["inner", "default", "keyword", "method", "partial", "attribute of a dict"])
def test_whatever_way_a_value_is_read_it_is_seen_to_change(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    values: Any = [2.0]

    class Holds(list):  # type: ignore[type-arg]
        def times(self, data: Any, v: Any) -> Any:
            return self[0] * v

    held, table = Holds(values), {"c": values}
    ways: dict[str, Any] = {
        "inner": lambda data, v: (lambda u: FACTOR * u)(v),
        "default": lambda data, v, c=values: c[0] * v,
        "keyword": keyword_only(values),
        "method": held.times,
        "partial": functools.partial(lambda c, data, v: c[0] * v, values),
        "attribute of a dict": lambda data, v: table["c"][0] * v,
    }
    function = ways[way]
    before = read_outside(function)
    assert read_outside(function) == before
    monkeypatch.setattr(f"{__name__}.FACTOR", 4.0)
    values[0] = held[0] = 4.0
    assert read_outside(function) != before


def keyword_only(values: list[float]) -> Any:
    def times(data: Any, v: Any, *, c: Any = values) -> Any:
        return c[0] * v

    return times
