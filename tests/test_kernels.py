"""Attention with a kernel: functional gradient descent, its views, its prompts, its optimum."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import Array

import lfom
from lfom import (
    Adam,
    ArcCosineKernel,
    ExponentialKernel,
    GaussianKernel,
    GaussianProcess,
    InputError,
    Kernel,
    LeastSquares,
    LinearKernel,
    Method,
    PosteriorMean,
    evaluate,
    fit,
    memformer,
    mixture,
    reference,
    run,
    sampled_optimum,
)
from lfom.core.arrays import semidefinite_root
from lfom.core.kernels import KERNELS
from lfom.core.memories import ConjugateBank, Forget
from lfom.core.preconditioners import One, Scaled, Shared
from lfom.core.problems import KernelMatrix
from lfom.core.readers import (
    ActivatedAttention,
    Attention,
    Heads,
    KernelAttention,
    LabelAttention,
    Normalised,
)
from lfom.core.states import NoSuchView
from lfom.limits.posterior import semidefinite_solve
from lfom.training import evaluation
from lfom.training.fitting import default_optimiser
from tests.helpers import linear_memories, make_batch, relative

KEY = jax.random.key(0)
EXACT = 1e-10
NUMBERS = ("scalar", "pair", "rows")
WITH_VIEW = list(linear_memories(0, 2, 3, 2, NUMBERS))


@dataclass(frozen=True)
class Sigmoid(Kernel):
    """tanh(x.x'), which is not semidefinite: with these covariates it has negative eigenvalues."""

    def __call__(self, inner: Array, left: Array, right: Array) -> Array:
        return jnp.tanh(inner - 2)


@dataclass(frozen=True)
class Squared(Kernel):
    """(x.x')^2, a user's own."""

    def __call__(self, inner: Array, left: Array, right: Array) -> Array:
        return inner**2


@pytest.mark.parametrize("name", KERNELS)
@given(seed=st.integers(0, 10_000), d=st.integers(1, 6), n=st.integers(1, 12))
@settings(max_examples=15, deadline=None)
def test_kernels_are_semidefinite_and_as_defined(name: str, seed: int, d: int, n: int) -> None:
    X = np.random.default_rng(seed).normal(size=(n, d))
    with jax.enable_x64(True):
        K = np.asarray(KERNELS[name].between(jnp.asarray(X), jnp.asarray(X)))
    plain = np.array([[reference.KERNELS[name](x, z) for z in X] for x in X])
    np.testing.assert_allclose(K, plain, rtol=1e-7, atol=1e-7)
    values = np.linalg.eigvalsh(K)
    assert values[0] > -1e-10 * values[-1]


def test_arc_cosine_is_the_mean_of_relu_products(x64: None) -> None:
    x, z = np.array([1.0, 0.5]), np.array([-0.3, 0.8])
    u = np.random.default_rng(0).normal(size=(2, 2_000_000)).T
    products = 2 * np.maximum(u @ x, 0) * np.maximum(u @ z, 0)
    exact = float(ArcCosineKernel().between(jnp.asarray(x[None]), jnp.asarray(z[None]))[0, 0])
    assert abs(products.mean() - exact) < 4 * products.std() / len(products) ** 0.5


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("memory", WITH_VIEW)
def test_kernel_view_is_token_view(name: str, memory: str, x64: None) -> None:
    batch = make_batch(3, 4, 6, 3)
    batch = jax.tree.map(lambda a: a / 2, batch)
    depth = 4
    reader = KernelAttention(Scaled(jnp.asarray([0.3, 0.2, 0.4, 0.1])), KERNELS[name])
    for one in (reader, Heads((reader, reader))):
        method = Method(one, linear_memories(1, 3, 6, depth, NUMBERS)[memory], depth)
        found, tokens = (run(method, batch, view=view).predictions for view in ("kernel", "tokens"))
        assert relative(found, tokens) < EXACT
        one_prompt = jax.tree.map(lambda a: a[0], batch)
        assert relative(run(method, one_prompt).predictions, tokens[:, 0]) < EXACT


@pytest.mark.parametrize("memory", ["conjugate", "conjugate-bank"])
@pytest.mark.parametrize("depth", [4, 10])  # written out, and as a loop
def test_conjugate_memories_agree_in_all_views(memory: str, depth: int, x64: None) -> None:
    batch = GaussianProcess(5, 14, GaussianKernel(0.5)).prompts(KEY, 20)
    model = memformer(5, depth, reader=GaussianKernel(0.5), memory=memory, key=KEY)
    found, tokens = (run(model, batch, view=view).predictions for view in ("kernel", "tokens"))
    assert relative(found, tokens) < EXACT
    linear = make_batch(5, 3, 12, 4)
    if depth == 4:
        both = [memformer(4, 4, memory=name, key=KEY) for name in ("conjugate", "conjugate-bank")]
        for view in ("iterates", "joint", "tokens"):
            register, bank = (run(one, linear, view=view).predictions for one in both)
            assert relative(bank, register) < 1e-8


def test_activations_of_attention_are_these_kernels(x64: None) -> None:
    """exp(x.x') and x.x' once more, as attention with P and Q of the same tokens."""
    batch = GaussianProcess(4, 6, ExponentialKernel()).prompts(KEY, 5)
    a, depth = jnp.asarray([0.4, 0.7]), 2
    P = jnp.zeros((depth, 5, 5)).at[:, 4, 4].set(-a)
    Q = jnp.zeros((depth, 5, 5)).at[:, :4, :4].set(jnp.eye(4))
    pairs: list[tuple[Any, Kernel]] = [
        (ActivatedAttention(P, Q, "exp"), ExponentialKernel()),  # type: ignore[call-arg]
        (Attention(P, Q), LinearKernel()),
    ]
    for attention, kernel in pairs:
        plain = run(Method(attention, Forget(jnp.ones(depth)), depth), batch, view="tokens").predictions
        ours = run(
            Method(KernelAttention(Scaled(a), kernel), Forget(jnp.ones(depth)), depth), batch
        ).predictions
        assert relative(ours, plain) < EXACT
    relu = Method(LabelAttention(Scaled(a), jnp.ones(depth), "relu"), Forget(jnp.ones(depth)), depth)  # type: ignore[call-arg]
    same = Method(ActivatedAttention(P, Q, "relu"), Forget(jnp.ones(depth)), depth)  # type: ignore[call-arg]
    assert relu.views == ("tokens",)
    assert relative(run(relu, batch).predictions, run(same, batch).predictions) < EXACT


def test_softmax_weights_are_those_of_the_context(x64: None) -> None:
    batch = GaussianProcess(3, 5, ExponentialKernel()).prompts(KEY, 4)
    a, b = 0.8, 2.5
    reader = LabelAttention(Scaled(jnp.asarray([a])), jnp.asarray([b]), "softmax")  # type: ignore[call-arg]
    found = run(Method(reader, Forget(jnp.ones(1)), 1), batch).predictions[1]
    inner = np.exp(b * np.einsum("pnd,pd->pn", batch.X, batch.query))
    wanted = a * np.sum(inner * np.asarray(batch.y), axis=1) / inner.sum(axis=1)
    assert relative(found, wanted) < EXACT


@pytest.mark.parametrize("kernel", [*KERNELS.values(), GaussianKernel(0.5)])
def test_conjugate_bank_reaches_the_bayes_predictor(kernel: Kernel, x64: None) -> None:
    batch = GaussianProcess(5, 14, kernel).prompts(KEY, 300)
    bayes = run(PosteriorMean(kernel), batch).predictions[-1]
    bank = memformer(5, 14, reader=kernel, memory="conjugate-bank", key=KEY)
    assert np.abs(run(bank, batch).predictions[-1] - bayes).max() < 1e-6
    assert np.abs(run(bank, batch, view="tokens").predictions[-1] - bayes).max() < 1e-6


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_posterior_mean_is_that_of_numpy(noise: float, x64: None) -> None:
    for kernel in KERNELS.values():
        batch = GaussianProcess(4, 7, kernel, noise=noise).prompts(KEY, 20)
        found = run(PosteriorMean(kernel, noise), batch).predictions[-1]
        for k in range(20):
            X, y, query = (np.asarray(a[k]) for a in (batch.X, batch.y, batch.query))
            K = np.asarray(kernel.between(jnp.asarray(X), jnp.asarray(X)))
            asked = np.asarray(kernel.between(jnp.asarray(query[None]), jnp.asarray(X)))[0]
            wanted = asked @ np.linalg.pinv(K + noise**2 * np.eye(7), rcond=1e-12) @ y
            assert abs(found[k] - wanted) < 1e-6


@given(seed=st.integers(0, 10_000), n=st.integers(1, 8), rank=st.integers(0, 8))
@settings(max_examples=25, deadline=None)
def test_semidefinite_roots_and_solutions(seed: int, n: int, rank: int) -> None:
    rng = np.random.default_rng(seed)
    half = rng.normal(size=(n, min(rank, n), 3)) if rank else np.zeros((n, 1, 3))
    K = np.einsum("ikp,jkp->ijp", half, half)
    right = np.einsum("ijp,jp->ip", K, rng.normal(size=(n, 3)))
    with jax.enable_x64(True):
        C = np.asarray(semidefinite_root(jnp.asarray(K)))
        alpha = np.asarray(semidefinite_solve(jnp.asarray(K), jnp.asarray(right)))
    np.testing.assert_allclose(np.einsum("ikp,jkp->ijp", C, C), K, atol=1e-6)
    assert np.allclose(C, np.stack([np.tril(C[..., k]) for k in range(3)], axis=-1))
    np.testing.assert_allclose(np.einsum("ijp,jp->ip", K, alpha), right, atol=1e-6)


@pytest.mark.parametrize("kernel", [ExponentialKernel(), ArcCosineKernel(), LinearKernel()])
def test_labels_have_the_covariance_of_the_kernel(kernel: Kernel, x64: None) -> None:
    """Given covariates, E[y_i y_j] = k(x_i, x_j) + noise^2 [i = j], two-sided; and the covariates are on the sphere."""
    data, count = GaussianProcess(3, 4, kernel, noise=0.5), 200_000
    assert GaussianProcess(3, 4, "gaussian").kernel == GaussianKernel()
    batch = data.prompts(KEY, count)
    np.testing.assert_allclose(np.sum(np.asarray(batch.X) ** 2, axis=-1), 1, rtol=1e-12)
    assert abs(np.asarray(batch.X).mean()) < 5 / (count * 4) ** 0.5
    y, f = np.asarray(batch.y), np.asarray(batch.target)
    problem = batch.problem("kernel", kernel)
    assert isinstance(problem, KernelMatrix)
    K = np.asarray(problem.gram) * 4
    for i, j in ((0, 0), (0, 1), (2, 3)):
        gap = y[:, i] * y[:, j] - K[i, j] - 0.25 * (i == j)
        assert abs(gap.mean()) < 4.5 * gap.std() / count**0.5
    gap = y[:, 1] * f - np.asarray(problem.probe[0, 1])
    assert abs(gap.mean()) < 4.5 * gap.std() / count**0.5
    direct = data.problems(KEY, 50, "kernel", kernel)
    for name in ("gram", "moment", "probe", "target"):
        again = data.prompts(KEY, 50).problem("kernel", kernel)
        np.testing.assert_allclose(getattr(direct, name), getattr(again, name), atol=1e-12)


@pytest.mark.parametrize("memory", ["none", "register", "bank"])
def test_training_reaches_the_optimum_of_the_class(memory: str) -> None:
    kernel, depths = ArcCosineKernel(), (1, 3)
    data = GaussianProcess(3, 6, kernel)
    model = memformer(3, 3, reader=kernel, memory=memory, key=KEY)
    assert isinstance(default_optimiser(model), LeastSquares)
    found = fit(model, data, key=KEY, optimiser=LeastSquares(prompts=0.5), depths=depths)
    methods: dict[str, Any] = {f"fit {d}": found.model(0, d) for d in depths}
    methods |= {f"optimum {d}": sampled_optimum(data, d, KEY, kernel=kernel, prompts=100_000) for d in depths}
    scores = evaluate(methods, data, prompts=50_000, key=jax.random.key(9))
    for d in depths:
        gap, error = scores[f"fit {d}"].minus(scores[f"optimum {d}"])
        assert abs(gap) < 0.005 + 3 * error


def test_optimum_of_one_layer_is_a_ratio_of_means() -> None:
    """Of one layer f = a k.y / n, so that a = E[f* k.y / n] / E[(k.y / n)^2]."""
    kernel = ExponentialKernel()
    data = GaussianProcess(3, 6, kernel)
    found = sampled_optimum(data, 1, KEY, kernel=kernel, prompts=200_000)
    q = data.prompts(jax.random.key(5), 200_000).problem("kernel", kernel)
    seen = np.sum(np.asarray(q.probe[0]) * np.asarray(q.moment), axis=0)  # type: ignore[attr-defined]
    best = np.mean(seen * np.asarray(q.target[0])) / np.mean(seen**2)  # type: ignore[attr-defined]
    assert abs(-found.polynomial[1] / best - 1) < 0.02
    with pytest.raises(InputError, match="no preconditioner"):
        sampled_optimum(data, 1, KEY, kernel=kernel, preconditioner=jnp.eye(3))


def test_fixed_prompts_and_adam_train_it_too() -> None:
    kernel = GaussianKernel(0.7)
    data = GaussianProcess(3, 6, kernel)
    batch = data.prompts(KEY, 4_000)
    model = memformer(3, 2, reader=kernel, memory="register", key=KEY)
    direct = fit(model, batch, key=KEY)
    adam = fit(model, data, key=KEY, optimiser=Adam(400, 500, 1, 0.05, 1e3, "cosine", log=True))
    scores = evaluate({"ls": direct.model(), "adam": adam.model()}, data, prompts=20_000, key=KEY)
    assert abs(scores["ls"].minus(scores["adam"])[0]) < 0.02


def test_a_kernel_of_ones_own(tmp_path: Path) -> None:
    """It runs, trains, is scored and saved; prompts are looked at, since nobody knows that it is semidefinite."""
    data = GaussianProcess(3, 6, Squared())
    model = memformer(3, 2, reader=Squared(), memory="bank", key=KEY)
    found = fit(model, data, key=KEY, optimiser=LeastSquares(first=2_000, last=4_000))
    score = evaluate({"own": found.model()}, data, prompts=2_000, key=KEY)["own"]
    assert score.log_mean[0, -1] < score.log_mean[0, 0]
    lfom.save(tmp_path / "own.safetensors", found.model())
    with pytest.raises(InputError, match="Squared"):
        lfom.load(tmp_path / "own.safetensors")
    back = lfom.load(tmp_path / "own.safetensors", types=[Squared])
    batch = data.prompts(KEY, 3)
    np.testing.assert_array_equal(run(back, batch).predictions, run(found.model(), batch).predictions)


@pytest.mark.parametrize("kernel", [GaussianKernel(0.7), ExponentialKernel()])
def test_models_distributions_and_predictors_are_saved(kernel: Kernel, tmp_path: Path) -> None:
    for k, thing in enumerate(
        (
            memformer(3, 2, reader=kernel, memory="conjugate-bank", key=KEY),
            GaussianProcess(3, 6, kernel),
            PosteriorMean(kernel, 0.1),
        )
    ):
        lfom.save(tmp_path / f"{k}.safetensors", thing)
        back: Any = jax.tree.structure(lfom.load(tmp_path / f"{k}.safetensors"))
        assert back == jax.tree.structure(thing)


def test_an_indefinite_kernel_is_named_with_its_prompt() -> None:
    good = np.eye(2)[None] * 3
    bad = np.array([[[0.1, 0.0], [0.0, 0.1]]])
    X = np.concatenate([good, bad])
    batch = lfom.prompt_from_arrays(X, np.ones((2, 2)), X[:, 0], np.ones(2))
    model = memformer(2, 1, reader=Sigmoid(), memory="none", key=KEY)
    with pytest.raises(InputError, match=r"Sigmoid on prompt 1 is indefinite.*eigenvalue -1\.9"):
        run(model, batch)
    run(model, jax.tree.map(lambda a: a[:1], batch))
    with pytest.raises(InputError, match="indefinite"):
        GaussianProcess(2, 4, Sigmoid())
    with pytest.raises(InputError, match="indefinite"):
        evaluate({"odd": model}, lfom.LinearRegression([1.0, 1.0], 5), prompts=100, key=KEY)


@dataclass(frozen=True)
class Wrong(Kernel):
    def __call__(self, inner: Array, left: Array, right: Array) -> Array:
        return jnp.sum(inner)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: memformer(3, 2, reader="cubic", key=KEY), "reader"),
        (lambda: memformer(3, 2, reader="gaussian", covariates=True, key=KEY), "covariates"),
        (lambda: memformer(3, 2, reader="gaussian", preconditioner="shared", key=KEY), "preconditioner"),
        (lambda: memformer(3, 2, reader="softmax", memory="conjugate-bank", key=KEY), "conjugate"),
        (lambda: memformer(3, 2, reader="gaussian", normalised=True, key=KEY), "normalised"),
        (lambda: GaussianProcess(3, 4, "cubic"), "cubic"),
        (lambda: KernelAttention(One(jnp.eye(3)), LinearKernel()), "multiplied by a number"),
        (lambda: KernelAttention(Shared(jnp.ones(2), jnp.eye(3)), LinearKernel()), "multiplied by a number"),
        (lambda: GaussianKernel(0.0), "width"),
        (lambda: GaussianProcess(0, 4, LinearKernel()), "d is 0"),
        (lambda: GaussianProcess(2, 4, LinearKernel(), noise=-1.0), "noise"),
        (lambda: LabelAttention(Scaled(jnp.ones(1)), jnp.ones(1), "cosine"), "form"),  # type: ignore[call-arg]
        (lambda: run(memformer(2, 1, reader=Wrong(), key=KEY), make_batch(0, 2, 3, 2)), "entry by entry"),
    ],
)
def test_bad_input(build: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build()


def test_views_that_do_not_exist() -> None:
    batch = make_batch(0, 2, 4, 2)
    gaussian = memformer(2, 2, reader="gaussian", memory="bank", key=KEY)
    for view in ("iterates", "joint"):
        with pytest.raises(NoSuchView):
            run(gaussian, batch, view=view)
    with pytest.raises(NoSuchView, match="this method has none"):
        run(memformer(2, 2, key=KEY), batch, view="kernel")
    per_token = memformer(2, 2, reader="gaussian", gamma="tokens", context=4, key=KEY)
    assert per_token.views == ("tokens",)
    assert run(per_token, batch).view == "tokens"
    other = memformer(2, 2, reader="exponential", memory="bank", key=KEY)
    assert mixture([gaussian, other]).views == ("tokens",)
    assert mixture([gaussian, gaussian]).views == ("kernel", "tokens")
    assert Normalised(gaussian.reader).views == ("tokens",)  # the scale of a prompt is that of its covariates


def test_conjugate_bank_steps_nowhere_once_it_is_done() -> None:
    """A kernel matrix of rank 3, zero labels, and more layers than examples: no NaN, in single precision."""
    data = GaussianProcess(3, 8, LinearKernel())
    batch = data.prompts(KEY, 50)
    zero = jax.tree.map(lambda a: a, batch)
    zero = lfom.Prompt(zero.X, 0 * zero.y, zero.query, 0 * zero.target)
    model = Method(
        memformer(3, 12, reader=LinearKernel(), memory="conjugate", key=KEY).reader, ConjugateBank(), 12
    )
    found = run(model, batch).predictions
    assert np.median(np.abs(found[-1] - batch.target)) < 1e-6
    assert np.abs(found[-1] - batch.target).max() < 1e-2
    assert np.isfinite(np.asarray(found)).all()
    np.testing.assert_array_equal(run(model, zero).predictions, 0)


def test_methods_of_all_kernels_share_their_programs() -> None:
    """Scored together, each on the matrices of its own kernel, and as if it were run alone."""
    key, data = jax.random.key(0), GaussianProcess(2, 4, ExponentialKernel())
    kernels = {name: KERNELS[name] for name in ("exponential", "arc-cosine")}
    methods: dict[str, Any] = {
        name: memformer(2, 2, reader=kernel, key=key, memory="register") for name, kernel in kernels.items()
    }
    entries = evaluation._entries(methods, 2)
    assert len({entry.structure for entry in entries}) == 1
    assert [entry.view[1] for entry in entries] == list(kernels.values())
    together = evaluate(methods, data, prompts=50, key=key)
    prompts = data.prompts(
        jax.random.fold_in(jax.random.fold_in(key, 0), 0), 50
    )  # those that are drawn there
    for name, score in together.items():
        answers = run(methods[name], prompts).predictions[-1]
        np.testing.assert_allclose(score.last[0], (answers - prompts.target) ** 2, rtol=2e-3, atol=1e-5)
