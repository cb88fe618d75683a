"""What only reads tokens is trained, scored and adapted as everything else is."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lfom import (
    Adam,
    InputError,
    LeastSquares,
    LinearRegression,
    Method,
    Mixture,
    PerPrompt,
    adapt,
    evaluate,
    exact_optimum,
    fit,
    gradient_descent,
    memformer,
    mixture,
    run,
)
from lfom.core.memories import Forget, Memory, Register
from lfom.core.parameters import part
from lfom.core.preconditioners import Full
from lfom.core.problems import Quadratic, Tokens
from lfom.core.readers import Attention, Gradient, Reader, SoftmaxAttention
from lfom.core.unroll import losses
from lfom.limits.optimum import with_preconditioner
from lfom.training.fitting import default_optimiser
from tests.helpers import draw_prompts, make_batch

D, N = 2, 8
KEY = jax.random.key(0)
DATA = LinearRegression([1.0, 0.5], N)
ADAM = Adam(steps=1_000, batch=200, resample=20, learning_rate=0.03, clip=1.0, schedule="cosine")


def numbers(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


class OnTokens(Reader):
    """What another reader reads, on tokens alone."""

    reader: Reader = part()

    def on_tokens(self, Z: jax.Array, problem: Any) -> jax.Array:
        return self.reader.on_tokens(Z, problem)


def sparse(A: np.ndarray, noise: float = 0.0) -> Attention:
    """Attention of the sparse form P = diag(0, 1), Q = -diag(A, 0), or near it."""
    depth, d = A.shape[:2]
    P, Q = np.zeros((2, depth, d + 1, d + 1))
    P[:, d, d] = 1
    Q[:, :d, :d] = -A
    return Attention(
        jnp.asarray(P + noise * numbers(1, *P.shape), float),
        jnp.asarray(Q + noise * numbers(2, *Q.shape), float),
    )


def softmax(depth: int) -> SoftmaxAttention:
    weights = [jnp.asarray(0.3 * numbers(seed, depth, D + 1, D + 1), float) for seed in (3, 4, 5)]
    return SoftmaxAttention(*weights)


def best(depth: int) -> Any:
    return with_preconditioner(exact_optimum(D, N, depth), jnp.linalg.inv(jnp.asarray(DATA.covariance)))


def log_losses(**methods: Any) -> dict[str, float]:
    found = evaluate(methods, DATA, prompts=10_000, key=jax.random.key(9))
    return {name: score.log_loss for name, score in found.items()}


# Training


def test_attention_with_any_p_and_q_learns_the_optimum_of_one_layer() -> None:
    """Of all P and Q the sparse form with A = a S^-1 is best (Ahn et al. 2023), and its loss is known."""
    start = Method(sparse(0.5 * np.eye(D)[None], noise=0.05), Forget(jnp.ones(1)), 1)
    longer = Adam(steps=2_000, batch=500, resample=20, learning_rate=0.01, clip=1.0, schedule="cosine")
    model = fit(start, DATA, key=KEY, optimiser=longer).model()
    found = log_losses(start=start, model=model, optimum=best(1))
    assert abs(found["model"] - found["optimum"]) < 0.03
    assert found["start"] > found["optimum"] + 0.3
    Q = np.asarray(model.reader.Q[0] * model.reader.P[0, D, D])
    np.testing.assert_allclose(Q[1, 1] / Q[0, 0], 2.0, rtol=0.15)  # a S^-1


@pytest.mark.parametrize(
    ("model", "below", "above"),
    [
        (Method(softmax(2), Register(jnp.ones(2), jnp.zeros(2)), 2), 0.5, 1.3),
        (memformer(D, 2, gamma="hadamard", context=N, scale=0.2, key=KEY), 0.05, 0.1),
        (memformer(D, 2, gamma="tokens", tied=True, context=N, scale=0.2, key=KEY), 0.05, 0.1),
    ],
    ids=["softmax with a register", "hadamard", "tokens"],
)
def test_adam_trains_what_only_reads_tokens(model: Method, below: float, above: float) -> None:
    assert model.views == ("tokens",)
    trained = fit(model, DATA, key=KEY, optimiser=ADAM).model()
    found = log_losses(start=model, trained=trained, nothing=gradient_descent(0.0, 1), optimum=best(2))
    assert found["trained"] < found["nothing"] - 0.8
    # The optimum of B = 0; softmax attention does not contain it, and rewrites covariates, so it may be lower.
    assert -below < found["trained"] - found["optimum"] < above


def test_runs_and_depths_are_trained_side_by_side() -> None:
    model = memformer(D, 2, gamma="tokens", context=N, scale=0.2, key=KEY)
    few = Adam(steps=240, batch=50, resample=60, learning_rate=0.005)
    data = [LinearRegression(spectrum, N) for spectrum in ([1.0, 0.5], [2.0, 0.25])]
    states: list[Any] = []

    def trained(**options: Any) -> Any:
        return fit(model, data, key=KEY, optimiser=few, depths=(1, 2), **options)

    together = trained(watch=lambda state, record: states.append(state))
    assert together.vectors.shape[:2] == (2, 2)
    assert not np.allclose(together.vectors[0], together.vectors[1])
    losses = np.asarray([row["log_loss"] for row in together.history])  # (blocks, runs, depths)
    assert (losses[-1] < losses[0]).all()
    assert trained(resume=states[1]).vectors.tobytes() == together.vectors.tobytes()


def test_a_given_set_of_prompts_is_trained_on() -> None:
    model = memformer(D, 1, gamma="tokens", context=N, scale=0.2, key=KEY)
    prompts = draw_prompts(DATA, jax.random.key(1), 64)
    for batch in (16, 100):
        adam = Adam(steps=200, batch=batch, resample=10, learning_rate=0.03, clip=1.0)
        trained = fit(model, prompts, key=KEY, optimiser=adam).model()

        def error(model: Method) -> float:
            return float(jnp.mean((run(model, prompts).predictions[-1] - prompts.target) ** 2))

        assert error(trained) < 0.5 * error(model)


def test_the_default_is_adam_and_least_squares_says_why_not() -> None:
    model = memformer(D, 1, gamma="hadamard", context=N, key=KEY)
    assert isinstance(default_optimiser(model), Adam)
    with pytest.raises(
        InputError, match=r"needs the iterate view or the joint view, and this .*only reads tokens: .*Adam"
    ):
        fit(model, DATA, key=KEY, optimiser=LeastSquares())
    quadratics = DATA.quadratics(KEY, 10)
    with pytest.raises(
        InputError,
        match="data is a Quadratic: it must be a Distribution or prompts, or a list of these, one per run, to train in the view 'tokens'",
    ):
        fit(model, quadratics, key=KEY, optimiser=Adam(steps=10))


def test_a_model_without_any_view_is_refused_by_name() -> None:
    nowhere = Method(sparse(np.eye(D)[None]), memformer(D, 1, gamma="diagonal", key=KEY).memory, 1)
    assert nowhere.views == ()
    with pytest.raises(InputError, match="this model has no view: its reader and its coefficients"):
        fit(nowhere, DATA, key=KEY)
    with pytest.raises(InputError, match="lost has no view: its reader and its coefficients"):
        evaluate({"lost": nowhere}, DATA, prompts=10, key=KEY)


# Scores


def pairs() -> list[tuple[Method, Method]]:
    """Models that only read tokens, and the same ones with all views."""
    A, register = (
        0.4 * (np.eye(D) + 0.2 * numbers(6, 3, D, D)),
        Register(jnp.ones(3), jnp.asarray([0.0, 0.3, 0.2])),
    )
    banks: list[Memory] = [register, memformer(D, 3, gamma="rows", tied=True, key=KEY).memory]
    reader = Gradient(Full(jnp.asarray(A, float)))
    return [(Method(OnTokens(reader), m, 3), Method(reader, m, 3)) for m in banks]


def test_a_score_on_tokens_is_that_of_the_same_model_on_quadratics() -> None:
    for tokens, iterates in pairs():
        assert (tokens.views, iterates.views[0]) == (("tokens",), "iterates")
        found = evaluate({"tokens": tokens, "iterates": iterates}, DATA, prompts=300, chunk=100, key=KEY)
        np.testing.assert_allclose(found["tokens"].mean, found["iterates"].mean, rtol=1e-4)
        np.testing.assert_allclose(found["tokens"].last, found["iterates"].last, rtol=1e-2, atol=1e-4)
        assert found["tokens"].last.shape == (1, 300)


def test_beside_what_reads_tokens_all_are_scored_with_one_query_each() -> None:
    tokens, iterates = pairs()[0]
    found = evaluate({"tokens": tokens, "iterates": iterates}, DATA, prompts=100, chunk=100, key=KEY)
    prompts = draw_prompts(DATA, jax.random.fold_in(jax.random.fold_in(KEY, 0), 0), 100)
    for problem in (Tokens.of(prompts), Quadratic.of(prompts)):
        model = tokens if isinstance(problem, Tokens) else iterates
        values = np.asarray(eqx.filter_jit(losses)(model, problem))
        for score in found.values():
            np.testing.assert_allclose(score.mean[0], values.mean(axis=1), rtol=1e-4)
            np.testing.assert_allclose(score.last[0], values[-1], rtol=1e-2, atol=1e-4)
    alone = evaluate({"iterates": iterates}, DATA, prompts=100, chunk=100, key=KEY)["iterates"]
    assert alone.stderr[0, 0] < 0.8 * found["iterates"].stderr[0, 0]  # alone its query is averaged out
    one, both = (score.mean[0, -1] for score in (alone, found["iterates"]))
    assert abs(one - both) < 4 * found["iterates"].stderr[0, -1]


def test_runs_of_models_that_read_tokens_are_scored_each_by_itself() -> None:
    tokens, _ = pairs()[0]
    halved = jax.tree.map(lambda a: 0.5 * a, tokens)
    both = evaluate({"both": [tokens, halved]}, DATA, prompts=100, key=KEY)["both"]
    first = evaluate({"one": tokens}, DATA, prompts=100, key=KEY)["one"]
    np.testing.assert_allclose(both.mean[0], first.mean[0], rtol=1e-5)
    assert not np.allclose(both.mean[1], both.mean[0], rtol=0.05)


# Adaptation


def experts(reader: type[Reader], depth: int = 2) -> Mixture:
    """Two experts, on tokens alone or with all views."""
    heads = []
    for seed in (7, 8):
        A = 0.4 * (np.eye(D) + 0.4 * numbers(seed, depth, D, D))
        plain = Gradient(Full(jnp.asarray(A, float)))
        read: Reader = OnTokens(plain) if reader is OnTokens else plain
        heads.append(Method(read, Forget(jnp.ones(depth)), depth))
    return mixture(heads)


@pytest.mark.parametrize("setting", ["labelled", "label-free", "per prompt"])
def test_gates_found_on_tokens_are_those_found_on_iterates(setting: str, x64: None) -> None:
    data = LinearRegression([1.0, 0.5], 5, noise=0.1)  # five examples: each is held out by itself
    prompts = draw_prompts(data, jax.random.key(3), 25)
    found = adapt(experts(OnTokens), prompts, setting=setting)
    wanted = adapt(experts(Gradient), prompts, setting=setting)
    np.testing.assert_allclose(found.model.gates, wanted.model.gates, rtol=1e-5, atol=1e-7)
    for name in ("before", "after", "kept"):
        np.testing.assert_allclose(getattr(found, name), getattr(wanted, name), rtol=1e-5)
    assert found.after[0] < found.before[0]
    assert (found.steps, found.prompts) == (wanted.steps, 25)


def test_gates_of_one_prompt_are_those_that_it_finds_among_others(x64: None) -> None:
    prompts = make_batch(0, 4, 5, D, noise=0.2)
    together = adapt(experts(OnTokens), prompts, setting="per prompt").model.gates
    alone = adapt(experts(OnTokens), jax.tree.map(lambda a: a[2], prompts), setting="per prompt").model.gates
    np.testing.assert_allclose(alone, together[:, 2], rtol=1e-6)
    model = PerPrompt(experts(OnTokens))
    np.testing.assert_allclose(
        run(model, prompts).predictions, run(PerPrompt(experts(Gradient)), prompts).predictions, rtol=1e-6
    )


def smoother() -> Method:
    """Softmax attention that predicts a mean of the labels, those of near tokens first."""
    V, K = np.zeros((2, 2, D + 1, D + 1))
    V[:, D, D] = -0.2 * N
    K[:, :D, :D] = np.eye(D)
    reader = SoftmaxAttention(*(jnp.asarray(a, float) for a in (V, K, 0.5 * K)))
    return Method(reader, Register(jnp.ones(2), jnp.zeros(2)), 2)


@pytest.mark.parametrize(
    ("setting", "train"),
    [("labelled", "coefficients"), ("label-free", "coefficients"), ("label-free", "W_v")],
)
def test_numbers_of_softmax_attention_are_adapted(setting: str, train: str) -> None:
    model: Any = smoother()
    found = adapt(model, draw_prompts(DATA, jax.random.key(3), 60), setting=setting, train=(train,), steps=6)
    assert found.kept.tolist() == [1.0]
    assert found.after[0] < 0.8 * found.before[0]
    np.testing.assert_array_equal(found.model.reader.W_k, model.reader.W_k)
    assert np.array_equal(found.model.reader.W_v, model.reader.W_v) == (train == "coefficients")
    assert np.array_equal(found.model.memory.alpha, model.memory.alpha) == (train == "W_v")
    other = draw_prompts(DATA, jax.random.key(4), 500)
    before, after = (
        jnp.mean((run(m, other).predictions[-1] - other.target) ** 2) for m in (model, found.model)
    )
    assert after < 0.8 * before


@pytest.mark.parametrize("gamma", ["tokens", "hadamard"])
def test_a_gamma_of_every_token_has_no_token_to_spare(gamma: str) -> None:
    """It is for prompts of one length: a shorter context has no Gamma, but labels need no token held out."""
    start = memformer(D, 1, gamma=gamma, context=N, key=KEY)  # its steps are far too short until Gamma grows
    start = eqx.tree_at(lambda m: m.reader, start, Gradient(Full(0.1 * jnp.eye(D)[None])))
    prompts = draw_prompts(DATA, jax.random.key(3), 60)
    found = adapt(start, prompts, setting="labelled", train=("coefficients",), steps=3)
    before, after = (
        jnp.mean((run(m, prompts).predictions[-1] - prompts.target) ** 2) for m in (start, found.model)
    )
    assert after < 0.8 * before
    with pytest.raises(InputError, match=r"held out.*setting='labelled'"):
        adapt(start, prompts, train=("coefficients",))
