"""Laws that the mathematics gives, for the memories for which they are laws.

Shapes are fixed, so that each memory compiles once; hypothesis draws seeds.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lfom import Method, Prompt, run
from lfom.core.memories import Conjugate, Memory
from lfom.core.preconditioners import Full, One
from lfom.core.readers import Gradient
from tests.helpers import gd_reader, linear_memories, make_batch, make_prompt, relative

N, D, DEPTH = 7, 3, 3
KINDS = ("scalar", "pair", "rows", "diagonal", "tokens", "hadamard")
NAMES = ["none", "register", *(f"bank-{kind}" for kind in KINDS), "conjugate"]
POSITION = {"bank-tokens", "bank-hadamard"}  # Gamma knows the place of a token
EXACT = 1e-9

seeds = st.integers(0, 2**20)
few = settings(
    max_examples=5,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)


def in_float64(test: Any) -> Any:
    @functools.wraps(test)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        with jax.enable_x64(True):
            test(*args, **kwargs)

    return wrapped


def model(name: str, seed: int, prompt: Prompt, covariates: bool = False) -> Method:
    if name == "conjugate":
        M = np.random.default_rng(seed).normal(size=(D, D))
        return Method(Gradient(One(jnp.asarray(np.eye(D) + 0.1 * M @ M.T))), Conjugate(1e-6), DEPTH)
    memory: Memory = linear_memories(seed, D, N, DEPTH, KINDS)[name]
    return Method(gd_reader(seed, prompt, DEPTH, covariates=covariates), memory, DEPTH)


def predictions(method: Method, prompt: Prompt) -> np.ndarray:
    return np.asarray(run(method, prompt).predictions)


def change(prompt: Prompt, **fields: Any) -> Prompt:
    kept = {name: getattr(prompt, name) for name in ("X", "y", "query", "target")}
    return Prompt(**(kept | {name: jnp.asarray(value) for name, value in fields.items()}))


def prompt_of(seed: int) -> Prompt:
    return make_prompt(seed, N, D, noise=0.5, correlated=False)


@pytest.mark.parametrize("name", NAMES)
@given(seed=seeds)
@few
@in_float64
def test_the_order_of_the_context_does_not_matter(name: str, seed: int) -> None:
    prompt = prompt_of(seed)
    method, order = model(name, seed, prompt), np.roll(np.arange(N), 1 + seed % (N - 1))
    shuffled = change(prompt, X=prompt.X[order], y=prompt.y[order])
    error = relative(predictions(method, shuffled), predictions(method, prompt))
    assert error > 1e-4 if name in POSITION else error < EXACT


def rotate_reader(reader: Gradient, U: np.ndarray) -> Gradient:
    def rotated(A: Any) -> Any:
        return None if A is None else jax.tree.map(lambda M: jnp.asarray(U @ np.asarray(M) @ U.T), A)

    return Gradient(rotated(reader.A), rotated(reader.B))


ROTATED = [("bank-diagonal", False), ("conjugate", False)] + [
    (name, covariates)
    for name in ("none", "register", "bank-scalar", "bank-pair")
    for covariates in (False, True)
]


@pytest.mark.parametrize(("name", "covariates"), ROTATED)
@given(seed=seeds)
@few
@in_float64
def test_rotating_data_and_matrices_rotates_the_iterates(name: str, covariates: bool, seed: int) -> None:
    prompt = prompt_of(seed)
    method = model(name, seed, prompt, covariates)
    U = np.linalg.qr(np.random.default_rng(seed).normal(size=(D, D)))[0]
    turned = change(prompt, X=prompt.X @ U.T, query=U @ prompt.query)
    reader = rotate_reader(method.reader, U)  # type: ignore[arg-type]
    found = run(Method(reader, method.memory, DEPTH), turned).weights
    error = relative(found, np.asarray(run(method, prompt).weights) @ U.T)
    assert error > 1e-4 if name == "bank-diagonal" else error < EXACT


@pytest.mark.parametrize("name", NAMES)
@given(seed=seeds)
@few
@in_float64
def test_predictions_are_linear_in_the_labels(name: str, seed: int) -> None:
    prompt = prompt_of(seed)
    method = model(name, seed, prompt)
    other = np.random.default_rng(seed).normal(size=N)
    parts = [predictions(method, change(prompt, y=y)) for y in (prompt.y, other)]
    together = predictions(method, change(prompt, y=2 * prompt.y - 3 * other))
    error = relative(together, 2 * parts[0] - 3 * parts[1])
    assert error > 1e-4 if name == "conjugate" else error < EXACT
    # what is left of the law for conjugate gradients
    assert relative(predictions(method, change(prompt, y=-3 * prompt.y)), -3 * parts[0]) < EXACT


@pytest.mark.parametrize("name", NAMES)
@given(seed=seeds)
@few
@in_float64
def test_a_prompt_alone_and_in_a_batch_gives_the_same_numbers(name: str, seed: int) -> None:
    batch = make_batch(seed, 3, N, D)
    method = model(name, seed, batch)
    together = predictions(method, batch)
    for k in range(3):
        alone = jax.tree.map(lambda leaf, k=k: leaf[k], batch)
        assert relative(together[:, k], predictions(method, alone)) < EXACT


@pytest.mark.parametrize("name", NAMES)
@given(seed=seeds)
@few
@in_float64
def test_zero_labels_give_zero(name: str, seed: int) -> None:
    prompt = prompt_of(seed)
    found = predictions(model(name, seed, prompt), change(prompt, y=np.zeros(N)))
    np.testing.assert_array_equal(found, 0)


def test_the_linear_law_holds_for_gd_plus_plus_too(x64: None) -> None:
    prompt = prompt_of(3)
    method = model("register", 3, prompt, covariates=True)
    assert isinstance(method.reader, Gradient)
    assert isinstance(method.reader.B, Full)
    other = np.random.default_rng(3).normal(size=N)
    parts = [predictions(method, change(prompt, y=y)) for y in (prompt.y, other)]
    assert relative(predictions(method, change(prompt, y=prompt.y + other)), parts[0] + parts[1]) < EXACT
