"""Normalised readers: a shift of variance is no shift, exactly, in every view and for every memory."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lfom
from lfom import InputError, Method, Prompt, memformer, mixture, run
from lfom.core.memories import Conjugate, Forget
from lfom.core.preconditioners import Identity, One
from lfom.core.problems import Examples, Objective, Quadratic, Tokens
from lfom.core.readers import Gradient, Heads, Normalised, Reader
from lfom.training import LeastSquares, fit
from tests.helpers import gd_reader, linear_memories, make_prompt, relative

N, D, DEPTH = 6, 3, 2
NAMES = ["none", "register", "bank-scalar", "bank-pair", "conjugate"]


def scaled(prompt: Prompt, c: float) -> Prompt:
    return Prompt(c * prompt.X, prompt.y, c * prompt.query, prompt.target)


def method(name: str, reader: Any) -> Method:
    if name == "conjugate":
        return Method(Normalised(Gradient(One(jnp.diag(jnp.asarray([1.0, 2.0, 0.5]))))), Conjugate(), DEPTH)
    return Method(reader, linear_memories(0, D, N, DEPTH, ("scalar", "pair"))[name], DEPTH)


@pytest.mark.parametrize("view", ["iterates", "tokens"])
@pytest.mark.parametrize(
    ("name", "covariates"),
    [
        (name, covariates)
        for name in NAMES
        for covariates in (False, True)
        if not (name == "conjugate" and covariates)
    ],
)
def test_predictions_do_not_change_with_the_variance(name: str, covariates: bool, view: str) -> None:
    @settings(max_examples=5, deadline=None, derandomize=True, database=None)
    @given(seed=st.integers(0, 2**20), c=st.floats(0.1, 10))
    def law(seed: int, c: float) -> None:
        with jax.enable_x64(True):
            prompt = make_prompt(seed, N, D, noise=0.1)
            model = method(name, Normalised(gd_reader(seed, prompt, DEPTH, covariates=covariates)))
            once, again = (predict(model, p, view) for p in (prompt, scaled(prompt, c)))
            np.testing.assert_allclose(again, once, rtol=1e-8, atol=1e-10)

    law()


def predict(model: Method, prompt: Prompt, view: str) -> np.ndarray:
    return np.asarray(run(model, prompt, view=view).predictions)


@pytest.mark.parametrize("covariates", [False, True])
def test_it_is_the_plain_reader_on_a_prompt_divided_by_its_scale(covariates: bool, x64: None) -> None:
    prompt = make_prompt(1, N, D, noise=0.1)
    c = float(jnp.sqrt(jnp.mean(prompt.X**2)))
    plain = gd_reader(1, prompt, DEPTH, covariates=covariates)
    for name, view in [("bank-scalar", "tokens"), ("bank-pair", "iterates")]:
        found = predict(method(name, Normalised(plain)), prompt, view)
        assert relative(found, predict(method(name, plain), scaled(prompt, 1 / c), view)) < 1e-10


def test_every_problem_knows_its_scale(x64: None) -> None:
    prompt = make_prompt(2, N, D)
    for problem in (Quadratic.of(prompt), Examples(prompt.X, prompt.y), Tokens.of(prompt)):
        np.testing.assert_allclose(problem.mean_eigenvalue(), np.mean(np.asarray(prompt.X) ** 2), rtol=1e-12)
    empty = Quadratic(jnp.zeros((D, D)), jnp.zeros(D), jnp.zeros((1, D)), jnp.zeros(1))
    model = Method(Normalised(Gradient(Identity())), Forget(jnp.ones(1)), 1)
    assert not np.asarray(lfom.core.unroll.last_residual(model, empty)).any()  # not NaN
    with pytest.raises(InputError, match="normalised readers need the trace of H"):
        lfom.core.unroll.unroll(model, Objective(lambda w: jnp.sum(w**4), jnp.ones(D)))


def test_normalised_models_are_built_trained_and_mixed() -> None:
    key = jax.random.key(0)
    build = functools.partial(memformer, 2, 1, normalised=True, key=key)
    readers: list[Reader] = [build().reader, build(heads=2).reader, build(memory="conjugate").reader]
    assert all(isinstance(reader, Normalised) for reader in readers)
    assert isinstance(readers[1].reader, Heads)  # type: ignore[attr-defined]
    narrow = lfom.LinearRegression([1.0, 0.5], 8)
    options = LeastSquares(first=1_000, last=1_000, passes=(6, 1))
    trained = fit(build(memory="none"), narrow, key=key, optimiser=options).model()
    wide = lfom.LinearRegression([1.0, 0.5], 8, variance=16.0)
    models = {"alone": trained, "mixed": mixture([trained, trained])}
    scores = [lfom.evaluate(models, data, prompts=2_000, key=key) for data in (narrow, wide)]
    for name in models:
        near, far = (score[name].log_loss for score in scores)
        assert abs(near - far) < 1e-3
        assert near < np.log(2) - 1  # labels have variance 2
