"""Generalised linear models: links, prompts in both views, training on deviance, and Newton's method."""

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.stats

import lfom
from lfom import Adam, InputError, LeastSquares, LinearRegression, LogisticRegression, PoissonRegression
from lfom.core.link_problems import LinkExamples
from lfom.core.links import Link, LogisticLink, PoissonLink
from lfom.core.memories import Forget, Register
from lfom.core.methods import Method
from lfom.core.preconditioners import Full
from lfom.core.problems import Problem
from lfom.core.readers import Gradient, Heads, Normalised
from lfom.core.states import NoSuchView
from lfom.core.unroll import losses
from lfom.experiments.glm import Misclassified
from lfom.methods.newton import solved
from lfom.prompts.generalised import LinkRegression
from lfom.prompts.prompt import LinkPrompt
from lfom.training.tuning import tune
from tests.helpers import linear_memories, make_prompt, relative

KEY = jax.random.key(0)
ETA = np.linspace(-6.0, 2.5, 18)


@dataclasses.dataclass(frozen=True)
class IdentityLink(Link):
    """Linear regression, written as a user would: b = eta^2 / 2."""

    labels = means = "any number"

    def log_partition(self, eta: Any) -> Any:
        return eta**2 / 2

    def mean(self, eta: Any) -> Any:
        return eta

    def curvature(self, eta: Any) -> Any:
        return jnp.ones_like(eta)

    def least(self, target: Any) -> Any:
        return -(target**2) / 2

    def quantile(self, share: Any, eta: Any) -> Any:
        return eta + jax.scipy.special.ndtri(share)

    def is_label(self, values: Any) -> Any:
        return np.isfinite(values)

    is_mean = is_label


LINKS: dict[str, Link] = {"logistic": LogisticLink(), "Poisson": PoissonLink(3.0), "identity": IdentityLink()}
OURS = {name: LINKS[name] for name in ("logistic", "Poisson")}
DATA = {
    "logistic": LogisticRegression([1.0, 0.3], 12, signal=2.0),
    "Poisson": PoissonRegression([1.0, 0.3], 12, signal=0.3),
}


@pytest.fixture(params=LINKS)
def link(request: pytest.FixtureRequest) -> Link:
    return LINKS[request.param]


@pytest.fixture(params=OURS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


def labels(link: Link, eta: np.ndarray, seed: int = 0) -> np.ndarray:
    shares = np.random.default_rng(seed).uniform(0.02, 0.98, eta.shape)
    return np.asarray(link.quantile(jnp.asarray(shares), jnp.asarray(eta)))


def link_prompt(link: Link, seed: int, n: int, d: int) -> LinkPrompt:
    plain = make_prompt(seed, n, d, correlated=False)
    w = np.asarray(plain.weights) / np.sqrt(d)
    y, target = labels(link, np.asarray(plain.X) @ w, seed), link.mean(plain.query @ w)
    return lfom.prompt_from_arrays(plain.X, y, plain.query, target, w, link=link)  # type: ignore[return-value]


def link_batch(link: Link, seed: int, prompts: int, n: int, d: int) -> LinkPrompt:
    singles = [link_prompt(link, seed + k, n, d) for k in range(prompts)]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *singles)


# Laws of a link


def test_derivatives_of_the_log_partition_are_mean_and_variance(link: Link, x64: None) -> None:
    step = 1e-5
    for function, derivative in ((link.log_partition, link.mean), (link.mean, link.curvature)):
        found = (function(jnp.asarray(ETA + step)) - function(jnp.asarray(ETA - step))) / (2 * step)
        np.testing.assert_allclose(found, derivative(jnp.asarray(ETA)), rtol=1e-8, atol=1e-9)


def test_the_deviance_is_zero_at_the_truth_and_grows_away_from_it(link: Link, x64: None) -> None:
    for eta in ETA:
        found = np.asarray(link.deviance(jnp.asarray(ETA), link.mean(jnp.asarray(eta))))
        assert (np.diff(found[eta <= ETA]) > 0).all()
        assert (np.diff(found[eta >= ETA]) < 0).all()
        assert abs(found[eta == ETA][0]) < 1e-14


def test_deviances_are_those_of_the_textbook(x64: None) -> None:
    for p, t in itertools.product((0.01, 0.4, 0.9), (0.0, 0.2, 0.9, 1.0)):
        parts = [a * np.log(a / b) for a, b in ((t, p), (1 - t, 1 - p)) if a > 0]
        found = LogisticLink().deviance(jnp.log(p / (1 - p)), jnp.asarray(t))
        np.testing.assert_allclose(found, 2 * sum(parts), rtol=1e-10, atol=1e-15)
    for rate, t in itertools.product((0.1, 2.0, 9.0), (0.0, 1.0, 4.5)):
        wanted = 2 * ((t * np.log(t / rate) if t else 0.0) - t + rate)
        found = PoissonLink().deviance(jnp.log(jnp.asarray(rate)), jnp.asarray(t))
        np.testing.assert_allclose(found, wanted, rtol=1e-10)


def test_the_deviance_is_linear_in_the_label_up_to_a_constant(kind: str, x64: None) -> None:
    """So the mean over labels is the deviance at their mean, up to what no eta changes."""
    link = OURS[kind]
    eta = jnp.asarray([-1.0, 0.3])
    values, weights = jnp.asarray([0.0, 1.0]), jnp.asarray([0.3, 0.7])
    over_labels = [jnp.sum(weights * link.deviance(one, values)) for one in eta]
    at_mean = [link.deviance(one, jnp.sum(weights * values)) for one in eta]
    np.testing.assert_allclose(over_labels[1] - over_labels[0], at_mean[1] - at_mean[0], rtol=1e-12)


def test_the_root_of_the_deviance_is_smooth_where_it_is_zero(link: Link, x64: None) -> None:
    eta = jnp.asarray(ETA)
    for off in (0.0, 1e-9, -1e-6, 1e-4, 3e-4, -1e-2):
        target = link.mean(eta)
        slope = jax.vmap(jax.grad(link.residual))(eta + off, target)
        np.testing.assert_allclose(slope, jnp.sqrt(link.curvature(eta)), rtol=0.5 * abs(off) + 1e-6)
        found = link.residual(eta + off, target)
        np.testing.assert_allclose(found, off * jnp.sqrt(link.curvature(eta)), rtol=0.5 * abs(off) + 1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_residuals_and_their_derivatives_are_finite_everywhere(link: Link, dtype: Any, x64: None) -> None:
    eta = jnp.asarray([-300.0, -90.0, -20.0, -1e-3, 0.0, 1e-7, 3.0, 20.0, 90.0, 300.0], dtype)
    for target in (0.0, 0.5, 1.0):
        value, slope = jax.vmap(jax.value_and_grad(link.residual), (0, None))(eta, jnp.asarray(target, dtype))
        assert value.dtype == slope.dtype == dtype
        assert np.isfinite(value).all()
        assert np.isfinite(slope).all()
        assert (slope >= 0).all()


def test_single_precision_loses_no_more_than_rounding(kind: str, x64: None) -> None:
    link, eta = OURS[kind], np.linspace(-3, 2.5, 23)
    for off in (0.0, 1e-3, 0.015, 0.02, 0.3):
        target = np.asarray(link.mean(jnp.asarray(eta)))
        exact = np.asarray(link.residual(jnp.asarray(eta + off), jnp.asarray(target)))
        single = link.residual(jnp.asarray(eta + off, jnp.float32), jnp.asarray(target, jnp.float32))
        np.testing.assert_allclose(single, exact, rtol=5e-3, atol=3e-6)


def test_quantiles_have_the_law_of_the_labels(x64: None) -> None:
    shares = np.random.default_rng(0).uniform(size=4_000)
    for rate in (0.05, 1.0, 20.0, 400.0):
        found = PoissonLink().quantile(jnp.asarray(shares), jnp.full(4_000, np.log(rate)))
        np.testing.assert_array_equal(found, scipy.stats.poisson.ppf(shares, rate))
    found = LogisticLink().quantile(jnp.asarray(shares), jnp.full(4_000, 0.7))
    np.testing.assert_array_equal(found, scipy.stats.bernoulli.ppf(shares, 1 / (1 + np.exp(-0.7))))


def test_quantiles_end_in_single_precision() -> None:
    shares = jnp.asarray([0.0, 0.5, 1 - 2.0**-24, 1.0], jnp.float32)
    found = PoissonLink().quantile(shares, jnp.zeros(4, jnp.float32))
    assert found.dtype == jnp.float32
    assert (found <= 12).all()
    assert found[1] == 1


def test_rates_end_where_they_are_told_to() -> None:
    link = PoissonLink(2.0)
    assert link.mean(jnp.asarray(50.0)) == link.mean(jnp.asarray(2.0))
    line = link.log_partition(jnp.asarray([3.0, 4.0, 5.0]))
    np.testing.assert_allclose(np.diff(line), np.exp(2.0), rtol=1e-5)
    with pytest.raises(InputError, match="largest"):
        PoissonLink(float("nan"))


# The problem in both views


def test_gradients_are_those_of_the_mean_log_loss(link: Link, x64: None) -> None:
    batch = link_batch(link, 3, 4, 9, 3)
    problem: Any = batch.problem("iterates")
    w = jnp.asarray(np.random.default_rng(1).normal(size=(3, 4)))
    for k in range(4):
        X, y = np.asarray(batch.X[k]), np.asarray(batch.y[k])

        def loss(w: Any, X: Any = X, y: Any = y) -> Any:
            eta = X @ w
            return jnp.mean(link.log_partition(eta) - y * eta)

        single: Any = jax.tree.map(lambda a, k=k: a[k], batch).problem("iterates")
        for one, at in ((problem, w), (single, w[:, k])):
            last = (slice(None), k)[: at.ndim]
            np.testing.assert_allclose(one.value(at)[last[1:]], loss(w[:, k]), rtol=1e-12)
            np.testing.assert_allclose(one.gradient(at)[last], jax.grad(loss)(w[:, k]), rtol=1e-10)
            bends = jax.hessian(loss)(w[:, k])
            np.testing.assert_allclose(one.hessian(at)[(slice(None), *last)], bends, rtol=1e-10)
            first = one.hessian_at_start()[(slice(None), *last)]
            np.testing.assert_allclose(first, jax.hessian(loss)(jnp.zeros(3)), rtol=1e-10, atol=1e-12)
            np.testing.assert_allclose(one.diagonal()[last], jnp.diagonal(first), rtol=1e-10)
    tokens: Any = jax.tree.map(lambda a: a[0], batch).problem("tokens")
    np.testing.assert_allclose(tokens.diagonal(), problem.diagonal()[:, 0], rtol=1e-12)
    np.testing.assert_allclose(tokens.mean_eigenvalue(), problem.mean_eigenvalue()[0], rtol=1e-12)


def test_attention_on_tokens_is_gradient_descent_on_the_log_loss(kind: str, x64: None) -> None:
    """In plain NumPy, with a register."""
    link, prompt = OURS[kind], link_prompt(OURS[kind], 5, 8, 3)
    A = 0.3 * np.random.default_rng(2).normal(size=(4, 3, 3))
    alpha, gamma = np.asarray([0.5, 0.8, 1.1, 0.7]), np.asarray([0.0, 0.4, -0.3, 0.2])
    method = Method(Gradient(Full(jnp.asarray(A))), Register(jnp.asarray(alpha), jnp.asarray(gamma)), 4)
    X, y = np.asarray(prompt.X), np.asarray(prompt.y)

    def mean(eta: Any) -> Any:
        return 1 / (1 + np.exp(-eta)) if kind == "logistic" else np.exp(eta)

    w, register, wanted = np.zeros(3), np.zeros(3), [0.0]
    for layer in range(4):
        register = A[layer].T @ X.T @ (y - mean(X @ w)) / 8 + gamma[layer] * register
        w = w + alpha[layer] * register
        wanted.append(np.asarray(prompt.query) @ w)
    for view in ("tokens", "iterates"):
        found = lfom.run(method, prompt, view=view)
        np.testing.assert_allclose(found.predictions, wanted, rtol=1e-10, atol=1e-13)
    tokens: Any = prompt.problem("tokens")
    assert tokens.Z_0.shape == (5, 9)  # d + 2 rows
    np.testing.assert_array_equal(tokens.seen(tokens.Z_0)[-1], [*(y - mean(0.0)), 0.0])
    np.testing.assert_array_equal(link.mean(found.predictions), link.mean(jnp.asarray(found.predictions)))


READERS = {
    "plain": lambda A, B: Gradient(Full(A)),
    "GD++": lambda A, B: Gradient(Full(A), Full(B)),
    "normalised heads": lambda A, B: Normalised(Heads((Gradient(Full(A)), Gradient(Full(B), Full(0.3 * A))))),
}


@pytest.mark.parametrize("reader", READERS)
def test_both_views_agree_for_every_memory(reader: str, kind: str, x64: None) -> None:
    d, n, depth = 3, 7, 3
    batch = link_batch(OURS[kind], 11, 3, n, d)
    A, B = (jnp.asarray(0.2 * np.random.default_rng(s).normal(size=(depth, d, d))) for s in (0, 1))
    for name, memory in linear_memories(4, d, n, depth, ("scalar", "pair", "rows")).items():
        method = Method(READERS[reader](A, B), memory, depth)
        with jax.disable_jit():  # a program for each takes longer to compile than to do without
            one, other = (lfom.run(method, batch, view=view).predictions for view in ("iterates", "tokens"))
        assert relative(one, other) < 1e-10, name


def test_larger_prompts_and_single_ones_agree_too(kind: str, x64: None) -> None:
    batch = link_batch(OURS[kind], 20, 2, 9, 20)  # prompts lead from 17 dimensions on
    A = jnp.asarray(0.05 * np.random.default_rng(0).normal(size=(3, 20, 20)))
    method = Method(Gradient(Full(A)), Forget(jnp.ones(3)), 3)
    found = lfom.run(method, batch)
    assert found.view == "iterates"
    assert relative(found.predictions, lfom.run(method, batch, view="tokens").predictions) < 1e-10
    single = lfom.run(method, jax.tree.map(lambda a: a[1], batch))
    assert relative(single.predictions, found.predictions[:, 1]) < 1e-10


def test_a_diagonal_gamma_runs_on_iterates_and_a_gamma_per_token_on_tokens(kind: str) -> None:
    batch = link_batch(OURS[kind], 30, 2, 6, 3)
    for gamma, view in (("diagonal", "iterates"), ("tokens", "tokens"), ("hadamard", "tokens")):
        model = lfom.memformer(3, 2, gamma=gamma, context=6, scale=0.2, key=KEY)
        assert lfom.run(model, batch).view == view


def test_with_the_identity_every_prompt_is_linear_regression(x64: None) -> None:
    """A link of a user's own: predictions and losses are those of the prompts that were there before."""
    plain = make_prompt(0, 9, 3, noise=0.3, correlated=False)
    linked = lfom.prompt_from_arrays(plain.X, plain.y, plain.query, plain.target, link=IdentityLink())
    models = [lfom.memformer(3, 3, scale=0.2, key=KEY, covariates=rewriting) for rewriting in (False, True)]
    models += [lfom.memformer(3, 3, reader=name, key=KEY) for name in ("softmax", "linear", "relu")]
    for model in models:
        for view in set(model.views) & {"iterates", "tokens"}:
            with jax.disable_jit():
                one, other = (lfom.run(model, prompt, view=view).predictions for prompt in (plain, linked))
                pair = [losses(model, prompt.problem(view)) for prompt in (plain, linked)]
            assert relative(one, other) < 1e-12
            assert relative(*pair) < 1e-10


def test_readers_without_iterates_run_on_tokens(kind: str) -> None:
    prompt = link_prompt(OURS[kind], 1, 6, 3)
    for reader in ("softmax", "linear", "exp", "gaussian"):
        model = lfom.memformer(3, 2, reader=reader, key=KEY)
        found = lfom.run(model, prompt)
        assert found.view == "tokens"
        assert np.isfinite(found.predictions).all()
    for view in ("joint", "kernel"):
        with pytest.raises(NoSuchView, match="Link have no view"):
            lfom.run(lfom.memformer(3, 2, reader="linear", key=KEY), prompt, view=view)


@pytest.mark.parametrize("view", ["iterates", "tokens"])
def test_the_conjugate_register_is_refused(kind: str, view: str) -> None:
    with pytest.raises(InputError, match="conjugate register needs a quadratic"):
        lfom.run(lfom.conjugate_gradient(2), link_prompt(OURS[kind], 1, 6, 3), view=view)


# Bad input


@pytest.mark.parametrize(
    ("link", "bad", "target", "message"),
    [
        (LogisticLink(), 0.5, 0.5, "y holds 0.5 at prompt 1, label 2: a class is 0 or 1"),
        (LogisticLink(), 2.0, 0.5, "y holds 2 at prompt 1, label 2"),
        (LogisticLink(), -1.0, 0.5, "y holds -1 at prompt 1, label 2"),
        (LogisticLink(), 1.0, 1.5, "target holds 1.5 at prompt 0: .*probability"),
        (PoissonLink(), -1.0, 0.5, "y holds -1 at prompt 1, label 2: a count is a whole number"),
        (PoissonLink(), 1.5, 0.5, "y holds 1.5 at prompt 1, label 2"),
        (PoissonLink(), 1.0, -0.5, "target holds -0.5 at prompt 0: .*rate"),
        (PoissonLink(1.0), 1.0, 3.0, "target holds 3 at prompt 0: .*largest"),
        (LogisticLink(), np.nan, 0.5, "y holds nan at prompt 1"),
    ],
)
def test_labels_that_do_not_fit_the_model_are_named(
    link: Link, bad: float, target: float, message: str
) -> None:
    X, y = np.ones((2, 3, 2)), np.zeros((2, 3))
    y[1, 2] = bad
    with pytest.raises(InputError, match=message):
        lfom.prompt_from_arrays(X, y, X[:, 0], np.full(2, target), link=link)
    arrays = (jnp.asarray(a, jnp.float32) for a in (X, y, X[:, 0], np.full(2, target)))
    built = LinkPrompt(*arrays, link=link)  # not by us
    with pytest.raises(InputError, match=message):
        lfom.run(lfom.gradient_descent(0.1, 1), built)


def test_a_single_prompt_has_no_index() -> None:
    with pytest.raises(InputError, match="y holds 2 at label 1: a class"):
        lfom.prompt_from_arrays(np.ones((2, 1)), [0.0, 2.0], [1.0], 0.0, link=LogisticLink())


def test_a_reader_with_the_wrong_shape_is_told() -> None:
    class Narrow(lfom.Reader):
        def on_tokens(self, Z: Any, problem: Any) -> Any:
            return Z[:-1]

    method = Method(Narrow(), Forget(jnp.ones(1)), 1)
    with pytest.raises(InputError, match=r"on_tokens returns an array of shape \(3, 7\).*\(4, 7\)"):
        lfom.run(method, link_prompt(LogisticLink(), 1, 6, 3))


def test_what_needs_linear_labels_refuses_others(kind: str) -> None:
    batch, single = link_batch(OURS[kind], 1, 3, 6, 2), link_prompt(OURS[kind], 1, 6, 2)
    for work in (
        lambda: lfom.least_squares(batch),
        lambda: lfom.ridge(batch, 0.1),
        lambda: lfom.theorems.conjugate_gradient_memformer(single, 2),
        lambda: LinkRegression(DATA[kind], LogisticLink()).prompts(KEY, 2),
    ):
        with pytest.raises(InputError, match="labels of these prompts are not"):
            work()
    for refused in (DATA[kind].quadratics, DATA[kind].joints, lfom.AnyOf([DATA[kind]]).quadratics):
        with pytest.raises(InputError, match="are no quadratics"):
            refused(KEY, 2)
    with pytest.raises(InputError, match="second derivative"):
        lfom.run(lfom.newton(2, 0.1), make_prompt(0, 5, 2))


def test_every_prompt_finds_gates_by_the_deviance_of_its_context(kind: str) -> None:
    heads = lfom.mixture([lfom.gradient_descent(s, 2) for s in (0.02, 0.2)])
    own, batch = lfom.PerPrompt(heads, steps=0), link_batch(OURS[kind], 1, 3, 6, 2)
    answers = [lfom.run(own, batch, view=view).predictions for view in ("iterates", "tokens")]
    np.testing.assert_allclose(answers[0], answers[1], rtol=1e-4, atol=1e-6)
    problem: Any = batch.problem("iterates")
    methods: tuple[Any, ...] = (own, heads, *heads.heads)
    losses = jnp.stack([problem.value(lfom.run(one, batch).weights[-1].T) for one in methods])  # type: ignore[index]
    assert (losses[0] <= jnp.min(losses[1:], axis=0) + 1e-6).all()
    scores = lfom.evaluate({"own": own}, DATA[kind], prompts=10, key=KEY)
    assert np.isfinite(scores["own"].mean).all()


# Distributions


def test_labels_have_the_mean_that_the_link_says(kind: str) -> None:
    data = DATA[kind]
    prompts = data.prompts(KEY, 20_000)
    X, y, w = (np.asarray(a, np.float64) for a in (prompts.X, prompts.y, prompts.weights))
    eta = np.einsum("pni,pi->pn", X, w)
    mean = np.asarray(data.link.mean(jnp.asarray(eta)))
    off = ((y - mean)[..., None] * np.concatenate([X, np.ones((*y.shape, 1))], axis=2)).mean(axis=(0, 1))
    assert np.abs(off).max() < 5 * (y - mean).std() / np.sqrt(y.size)
    bends = np.asarray(data.link.curvature(jnp.asarray(eta)))
    np.testing.assert_allclose(((y - mean) ** 2).mean(), bends.mean(), rtol=0.03)
    at_query = np.einsum("pi,pi->p", np.asarray(prompts.query), w)
    np.testing.assert_allclose(prompts.target, data.link.mean(jnp.asarray(at_query)), rtol=1e-4)
    np.testing.assert_allclose(eta.std(), 2.0 if kind == "logistic" else 0.3, rtol=0.02)
    np.testing.assert_allclose(X.reshape(-1, 2).var(axis=0), [1.0, 0.3], rtol=0.02)


def test_rotations_scales_and_single_prompts() -> None:
    U = np.asarray(lfom.haar_rotation(KEY, 2))
    for build in (LogisticRegression, PoissonRegression):
        data = build([1.0, 0.01], 6, rotation=U, variance=4.0)
        X = np.asarray(data.prompts(KEY, 4_000).X).reshape(-1, 2)
        np.testing.assert_allclose(X.T @ X / len(X), 4 * U.T @ np.diag([1.0, 0.01]) @ U, atol=0.12)
        assert data.prompt(KEY).X.shape == (6, 2)
        for wrong in ({"signal": 0.0}, {"signal": -1.0}, {"variance": 0.0}):
            with pytest.raises(InputError, match=next(iter(wrong))):
                build([1.0, 0.5], 6, **wrong)


def test_shifts_of_other_prompts_pass_through_a_link() -> None:
    base = LinearRegression([1.0, 0.5], 8)
    for shifted in (
        lfom.HeavyTailed(base, 5),
        lfom.RandomScale(base, 0.5, 2.0),
        lfom.OnSphere([1.0, 0.5], 8),
    ):
        found = LinkRegression(shifted, LogisticLink()).prompts(KEY, 50)
        assert set(np.unique(found.y)) == {0.0, 1.0}
        assert lfom.run(lfom.gradient_descent(0.5, 2), found).view == "iterates"
    kept: Any = lfom.RandomScale(DATA["logistic"], 0.5, 2.0).prompts(KEY, 5)
    assert kept.problem("iterates").X.shape == (12, 2, 5)


# Training and scores


def plain_deviance(kind: str, prompts: Any, w: np.ndarray) -> np.ndarray:
    """By NumPy alone."""
    eta, t = np.einsum("pi,pi->p", np.asarray(prompts.query, float), w), np.asarray(prompts.target, float)
    if kind == "Poisson":  # rates end at exp(3), and b goes on as a line
        b = np.exp(np.minimum(eta, 3)) * (1 + np.maximum(eta - 3, 0))
        return 2 * (b - t * eta - t + t * np.log(t))
    p = 1 / (1 + np.exp(-eta))
    return 2 * (t * np.log(t / p) + (1 - t) * np.log((1 - t) / (1 - p)))


def one_step(kind: str, prompts: Any, size: float) -> np.ndarray:
    y0 = {"logistic": 0.5, "Poisson": 1.0}[kind]
    X, y = np.asarray(prompts.X, float), np.asarray(prompts.y, float)
    return size * np.einsum("pni,pn->pi", X, y - y0) / y.shape[1]


def test_scores_are_mean_deviances(kind: str, x64: None) -> None:
    """On iterates, on tokens, and of both together on the same prompts."""
    data = jax.tree.map(lambda a: a.astype(jnp.float64), DATA[kind])
    softmax = lfom.memformer(2, 1, reader="softmax", key=KEY)
    descent = lfom.gradient_descent(0.4, 1)
    alone = lfom.evaluate({"descent": descent}, data, prompts=300, key=KEY)["descent"]
    both = lfom.evaluate({"descent": descent, "softmax": softmax}, data, prompts=300, key=KEY)
    np.testing.assert_allclose(both["descent"].mean, alone.mean, rtol=1e-12)
    key = jax.random.fold_in(jax.random.fold_in(KEY, 0), 0)
    prompts = data.prompts(key, 300)
    wanted = plain_deviance(kind, prompts, one_step(kind, prompts, 0.4))
    np.testing.assert_allclose(alone.last[0], wanted, rtol=1e-7, atol=1e-12)
    np.testing.assert_allclose(alone.mean[0, -1], wanted.mean(), rtol=1e-9)
    eta = np.asarray(lfom.run(softmax, prompts).predictions[-1])
    again = data.link.deviance(jnp.asarray(eta), prompts.target)
    np.testing.assert_allclose(both["softmax"].last[0], again, rtol=1e-9)


def test_training_and_tuning_find_the_best_single_step(kind: str) -> None:
    """Beside a fine grid of step sizes on many other prompts."""
    data = DATA[kind]
    prompts = data.prompts(jax.random.key(5), 40_000)

    def loss(size: float) -> float:
        return float(plain_deviance(kind, prompts, one_step(kind, prompts, size)).mean())

    sizes = np.geomspace(0.1, 10.0, 96)
    grid = [loss(size) for size in sizes]
    assert 5 < int(np.argmin(grid)) < 90
    model = lfom.memformer(2, 1, memory="none", preconditioner="scalar", key=KEY)
    squares = lfom.fit(model, data, key=KEY, optimiser=LeastSquares(last=40_000)).model()
    assert loss(float(squares.reader.A.scale[0])) < 1.005 * min(grid)
    sample = data.problems(jax.random.key(6), 20_000, "iterates")
    tuned = tune(lfom.gradient_descent, sample, steps=1, parameters=1)
    assert loss(tuned.parameters[0]) < 1.005 * min(grid)
    adam = Adam(steps=1_000, batch=1_000, resample=5, learning_rate=0.03, clip=10.0, schedule="cosine")
    begun = lfom.memformer(2, 1, memory="none", preconditioner="scalar", scale=0.3, key=KEY)
    found = lfom.fit(begun, data, key=KEY, optimiser=adam).model()
    assert loss(float(found.reader.A.scale[0])) < 1.01 * min(grid)


def test_a_fixed_set_is_fitted_exactly_though_chunks_are_filled_up(kind: str) -> None:
    """1,000 prompts in chunks of 300: the loss of prompts that only fill up is zero, not that of w = 0."""
    prompts = DATA[kind].prompts(jax.random.key(5), 1_000)
    how = LeastSquares(hold_out=0.0, chunk=300, passes=(30, 10), gain=1e-6)
    model = lfom.memformer(2, 1, memory="none", preconditioner="scalar", key=KEY)
    found = lfom.fit(model, prompts, key=KEY, optimiser=how)

    def mean(size: float) -> float:
        return float(plain_deviance(kind, prompts, one_step(kind, prompts, size)).mean())

    wanted = scipy.optimize.minimize_scalar(mean, bounds=(0.1, 6.0), method="bounded")
    assert abs(mean(float(found.model().reader.A.scale[0])) - wanted.fun) < 1e-4 * wanted.fun
    assert abs(np.exp(found.history[-1]["log_loss"][0][0]) - wanted.fun) < 1e-3 * wanted.fun


def test_least_squares_begins_with_steps_as_short_as_the_curvature_asks_for() -> None:
    """With those of a quadratic, rates explode and the first pass ends above the loss of doing nothing."""
    model = lfom.memformer(2, 3, memory="none", preconditioner="scalar", key=KEY)
    few = LeastSquares(first=2_000, last=2_000, passes=(1, 1))
    found = lfom.fit(model, DATA["Poisson"], key=KEY, optimiser=few)
    nothing = lfom.evaluate({"": lfom.gradient_descent(0.0, 1)}, DATA["Poisson"], prompts=2_000, key=KEY)[""]
    assert found.history[0]["log_loss"][0][0] < nothing.log_loss - 0.2


def test_runs_and_depths_are_trained_and_memory_and_depth_do_no_harm(kind: str) -> None:
    data = lfom.PerRun([DATA[kind]] * 2)
    few = LeastSquares(first=2_000, last=8_000, passes=(8, 1))
    fits = {
        memory: lfom.fit(
            lfom.memformer(2, 2, memory=memory, preconditioner="scalar", key=KEY),
            data,
            key=KEY,
            depths=(1, 2),
            optimiser=few,
        )
        for memory in ("none", "bank")
    }
    methods = {f"{memory} {d}": one.per_run(d) for memory, one in fits.items() for d in (1, 2)}
    scores = lfom.evaluate(methods, data, prompts=10_000, key=jax.random.key(9))
    assert scores["none 2"].log_loss < scores["none 1"].log_loss - 0.02
    assert scores["bank 2"].log_loss < scores["none 2"].log_loss + 0.01


def test_full_matrices_and_what_reads_tokens_are_trained_too() -> None:
    data = DATA["logistic"]
    few = LeastSquares(first=2_000, last=4_000, passes=(4, 1))
    full = lfom.fit(lfom.memformer(2, 1, covariates=True, key=KEY), data, key=KEY, optimiser=few).model()
    adam = Adam(steps=300, batch=100, resample=5, learning_rate=0.02, clip=1.0)
    start = lfom.memformer(2, 1, reader="softmax", key=KEY)
    assert lfom.fit(start, data, key=KEY, optimiser=dataclasses.replace(adam, steps=5)).runs == 1
    softmax = lfom.fit(
        start, data.prompts(KEY, 500), key=KEY, optimiser=adam
    ).model()  # a fixed set of tokens
    found = lfom.evaluate(
        {"full": full, "softmax": softmax, "start": start, "nothing": lfom.gradient_descent(0.0, 1)},
        data,
        prompts=4_000,
        key=jax.random.key(3),
    )
    assert found["full"].log_loss < found["nothing"].log_loss - 0.5
    assert found["softmax"].log_loss < found["start"].log_loss - 0.1
    with pytest.raises(InputError, match="only reads tokens"):
        lfom.fit(start, data, key=KEY, optimiser=few)


def test_accuracy_is_one_minus_what_is_counted_as_wrong() -> None:
    eta, target = jnp.asarray([2.0, -2.0, 3.0]), jnp.asarray([0.9, 0.2, 0.3])
    np.testing.assert_allclose(Misclassified().residual(eta, target) ** 2, [0.1, 0.2, 0.7], rtol=1e-5)


# Newton's method


def test_newtons_method_ends_at_the_fitted_model(kind: str, x64: None) -> None:
    link, batch = OURS[kind], link_batch(OURS[kind], 40, 3, 15, 3)
    for ridge in (0.05, np.diag([0.1, 0.02, 0.3])):
        C = ridge * np.eye(3) if np.ndim(ridge) == 0 else np.asarray(ridge)
        found: Any = lfom.run(lfom.newton(15, ridge), batch)
        for k in range(3):
            X, y = np.asarray(batch.X[k]), np.asarray(batch.y[k])

            def loss(w: Any, X: Any = X, y: Any = y, C: Any = C) -> float:
                eta = X @ w
                return float(
                    np.mean(np.asarray(link.log_partition(jnp.asarray(eta))) - y * eta) + w @ C @ w / 2
                )

            wanted = scipy.optimize.minimize(loss, np.zeros(3), tol=1e-12)
            np.testing.assert_allclose(found.weights[-1, k], wanted.x, atol=1e-5)
            on_the_way = [loss(np.asarray(w)) for w in found.weights[:, k]]
            assert (np.diff(on_the_way) < 1e-12).all()


def test_newtons_first_step_is_that_of_the_quadratic_model(kind: str, x64: None) -> None:
    prompt = link_prompt(OURS[kind], 3, 10, 2)
    X, y = np.asarray(prompt.X), np.asarray(prompt.y)
    y0, bends = {"logistic": (0.5, 0.25), "Poisson": (1.0, 1.0)}[kind]
    wanted = np.linalg.solve(bends * X.T @ X / 10 + 20.0 * np.eye(2), X.T @ (y - y0) / 10)
    found = np.asarray(lfom.run(lfom.newton(1, 20.0), prompt).weights)[1]
    np.testing.assert_allclose(found, wanted, rtol=1e-5)  # a strong ridge: no halving


def test_classes_that_can_be_told_apart_do_not_break_newtons_method() -> None:
    X = np.linspace(-2, 2, 8)[:, None]
    prompt = lfom.prompt_from_arrays(X, (X[:, 0] > 0).astype(float), [1.0], 1.0, link=LogisticLink())
    found = lfom.run(lfom.newton(40, 0.0), prompt).predictions
    assert np.isfinite(found).all()
    assert found[-1] > 5
    with pytest.raises(NoSuchView, match="Newton"):
        lfom.run(lfom.newton(2, 0.0), prompt, view="tokens")
    for ridge, message in ((-1.0, "0 or greater"), (np.asarray([[1.0, 2.0], [0.0, 1.0]]), "not symmetric")):
        with pytest.raises(InputError, match=message):
            lfom.newton(2, ridge)


def test_systems_are_solved_as_numpy_does(x64: None) -> None:
    rng = np.random.default_rng(0)
    half, right = rng.normal(size=(4, 4, 6)), rng.normal(size=(4, 6))
    matrix = np.einsum("ikp,jkp->ijp", half, half) + 0.1 * np.eye(4)[..., None]
    found = np.asarray(solved(jnp.asarray(matrix), jnp.asarray(right)))
    wanted = np.linalg.solve(np.moveaxis(matrix, -1, 0), right.T[..., None])[..., 0].T
    np.testing.assert_allclose(found, wanted, rtol=1e-9)


# Files


def test_what_belongs_to_a_link_is_saved_and_loaded(tmp_path: Path) -> None:
    model = lfom.memformer(2, 2, scale=0.2, key=KEY)
    for number, thing in enumerate([*DATA.values(), lfom.newton(3, 0.1)]):
        path = tmp_path / f"{number}.safetensors"
        lfom.save(path, thing)
        again = lfom.load(path)
        assert str(jax.tree.structure(again)) == str(jax.tree.structure(thing))
        if isinstance(thing, LinkRegression):
            prompts = again.prompts(KEY, 3)
            assert (prompts.y == thing.prompts(KEY, 3).y).all()
            assert (
                lfom.run(model, prompts).predictions == lfom.run(model, thing.prompts(KEY, 3)).predictions
            ).all()
    own = LinkRegression(LinearRegression([1.0, 0.5], 4), PoissonLink(2.5))
    lfom.save(tmp_path / "own.safetensors", own)
    assert lfom.load(tmp_path / "own.safetensors").link == PoissonLink(2.5)


def test_problems_say_what_they_are() -> None:
    prompts = DATA["logistic"].prompts(KEY, 2)
    problem = prompts.problem("iterates")
    assert isinstance(problem, LinkExamples)
    assert not problem.is_quadratic
    assert issubclass(LinkExamples, Problem)
    with pytest.raises(InputError, match="Gram matrix of a quadratic"):
        problem.as_quadratic()
