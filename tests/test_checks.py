"""Every input error names the argument, its value, the rule it breaks and a remedy."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lfom import InputError
from lfom.core import checks


def says(*parts: str) -> str:
    """A pattern that holds all parts in this order."""
    return "(?s)" + ".*".join(re.escape(part) for part in parts)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(np.ones(2, int), "int64"), (jnp.ones(2, int), "int32"), (np.ones(2, complex), "complex128")],
)
def test_arrays_must_hold_real_floating_point_numbers(value: object, dtype: str) -> None:
    message = says("y has dtype", dtype, "real floating-point", "y.astype(float)")
    with pytest.raises(InputError, match=message):
        checks.real_array("y", value)


def test_complex_numbers_in_a_list_are_refused_too() -> None:
    with pytest.raises(InputError, match=says("y has dtype complex128", "real", "Pass real numbers")):
        checks.real_array("y", [1j])


def test_ragged_lists_are_refused() -> None:
    with pytest.raises(InputError, match=says("X cannot be read as one array", "equally long lists")):
        checks.real_array("X", [[1.0], [1.0, 2.0]])


def test_whole_numbers_in_a_list_are_real_numbers() -> None:
    assert checks.real_array("y", [1, 2]).dtype == jnp.zeros(()).dtype


@pytest.mark.parametrize("shape", [(3,), (2, 3), (0, 2), (1, 0)])
def test_shapes_are_named(shape: tuple[int, ...]) -> None:
    message = says(f"X has shape {shape}", "expected (any, 2)", "no empty axis", "order of the axes")
    with pytest.raises(InputError, match=message):
        checks.real_array("X", np.zeros(shape), (None, 2))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_the_first_value_that_is_not_finite_is_named_with_its_place(bad: float) -> None:
    X = np.zeros((4, 3, 2))
    X[2, 1, 0] = bad
    with pytest.raises(
        InputError, match=says(f"X holds {bad} at prompt 2, entry [1, 0]", "finite", "repair")
    ):
        checks.real_array("X", X, item="prompt")
    with pytest.raises(InputError, match=says(f"X holds {bad} at entry [2, 1, 0]")):
        checks.real_array("X", X)


@pytest.mark.parametrize("value", [[1.0, 0.0], [-1.0, 2.0]])
def test_positive_refuses_zero_and_below(value: list[float]) -> None:
    message = says(f"spectrum is {value}", "greater than 0", "Pass positive numbers")
    with pytest.raises(InputError, match=message):
        checks.positive("spectrum", value, (None,))


def test_non_negative_refuses_below_zero() -> None:
    with pytest.raises(InputError, match=says("noise is -1.0", "0 or greater", "Pass 0")):
        checks.non_negative("noise", -1.0)


@pytest.mark.parametrize("value", [0, -3])
def test_counts_start_at_the_minimum(value: int) -> None:
    with pytest.raises(InputError, match=says(f"depth is {value}", "at least 1", "Pass 1 or more")):
        checks.count("depth", value)


@pytest.mark.parametrize("value", [1.5, True, "3", None])
def test_counts_are_whole_numbers(value: object) -> None:
    with pytest.raises(InputError, match=says(f"depth is {value!r}", "whole number", "Pass an int")):
        checks.count("depth", value)


def test_rotation_must_be_orthogonal() -> None:
    message = says("rotation is not orthogonal", "differs from the identity by 3", "lfom.haar_rotation", "qr")
    with pytest.raises(InputError, match=message):
        checks.rotation("rotation", 2 * np.eye(3), 3)


@pytest.mark.parametrize("value", [[0.5, 0.6], [1.5, -0.5]])
def test_probabilities_are_non_negative_and_sum_to_one(value: list[float]) -> None:
    message = says("weights is [", f"with sum {sum(value):.6g}", "sum to 1", "Divide them by their sum")
    with pytest.raises(InputError, match=message):
        checks.probabilities("weights", value)


def test_symmetric_names_shape_and_asymmetry() -> None:
    with pytest.raises(InputError, match=says("M has shape (2, 3)", "square", "Pass a (d, d)")):
        checks.symmetric("M", np.ones((2, 3)))
    with pytest.raises(InputError, match=says("M is not symmetric", "by 1", "(M + M.T) / 2")):
        checks.symmetric("M", [[1.0, 1.0], [0.0, 1.0]])


def test_unknown_names_come_with_the_nearest_ones() -> None:
    with pytest.raises(InputError, match=says("unknown memory 'regster'", "Did you mean register?")):
        checks.known("memory", "regster", ["none", "register"])
    with pytest.raises(InputError, match=says("unknown memory 'qqq'", "Known: none, register.")):
        checks.known("memory", "qqq", ["none", "register"])


def test_checks_let_traced_arrays_through() -> None:
    # inside jit values cannot be read, so only shapes are checked
    assert jax.jit(lambda x: checks.positive("x", x, (None,)))(-jnp.ones(2)).shape == (2,)
    with pytest.raises(InputError, match="x has shape"):
        jax.jit(lambda x: checks.positive("x", x, (3,)))(jnp.ones(2))


def test_input_errors_are_value_errors() -> None:
    assert issubclass(InputError, ValueError)
