"""One computation, three views, several layouts: all give the numbers of token attention."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lfom import InputError, Method, Mixture, Prompt, conjugate_gradient, gradient_descent, reference, run
from lfom.core.memories import Conjugate, Forget, Register
from lfom.core.methods import Algorithm
from lfom.core.preconditioners import Full, Identity
from lfom.core.problems import Examples, Objective, Quadratic, Tokens
from lfom.core.readers import Gradient
from lfom.core.states import NoSuchView
from lfom.core.unroll import last_residual, losses
from lfom.core.unroll import unroll as step_by_step
from lfom.methods.memformer import mixture
from lfom.prompts.run import iterate_problem
from tests.helpers import gd_reader, linear_memories, make_batch, make_prompt, relative

# (d, n, depth): the corners of d 1..20, n 1..50, depth 1..10, n < d included
SIZES = [(1, 1, 1), (1, 50, 4), (2, 1, 3), (5, 20, 4), (7, 3, 6), (20, 50, 10), (20, 50, 3), (20, 1, 4)]
CASES = [(*size, False) for size in SIZES] + [(1, 1, 1, True), (7, 3, 5, True), (20, 50, 3, True)]
unroll = eqx.filter_jit(step_by_step)
EXACT = 1e-10
SINGLE = 2e-5  # float32 rounding, six digits less one or so for ten layers
BOTH_VIEWS = ("scalar", "pair", "rows")
MEMORIES = ("none", "register", "bank-scalar", "bank-pair-tied", "bank-rows-own")


def everything(prompt: Prompt, depth: int, *, covariates: bool) -> Mixture:
    """Memories of every kind that has both views, as heads of one mixture: one program per size."""
    n, d = prompt.X.shape[-2:]
    memories = linear_memories(1, d, n, depth, BOTH_VIEWS)
    reader = gd_reader(2, prompt, depth, covariates=covariates)
    heads = [Method(reader, memory, depth) for memory in (memories[name] for name in MEMORIES[1:])]
    return mixture(heads, jnp.asarray(np.linspace(-1, 1, len(heads)) + 0.1) / len(heads))


@pytest.mark.parametrize(("d", "n", "depth", "covariates"), CASES)
def test_both_views_agree_at_every_size(d: int, n: int, depth: int, covariates: bool, x64: None) -> None:
    prompt = make_prompt(d + n, n, d, noise=0.5)
    algorithm = everything(prompt, depth, covariates=covariates)
    found = run(algorithm, prompt, view="iterates").predictions
    assert relative(found, run(algorithm, prompt, view="tokens").predictions) < EXACT


@pytest.mark.parametrize(("d", "n", "depth", "covariates"), [(5, 20, 4, True), (20, 50, 10, False)])
def test_both_views_agree_in_single_precision(d: int, n: int, depth: int, covariates: bool) -> None:
    prompt = make_prompt(d + n, n, d, noise=0.5)
    algorithm = everything(prompt, depth, covariates=covariates)
    with jax.default_matmul_precision("float32"):  # GPUs otherwise round products to fewer digits
        found = run(algorithm, prompt, view="iterates").predictions
        wanted = run(algorithm, prompt, view="tokens").predictions
    assert found.dtype == wanted.dtype == jnp.float32
    assert relative(found, wanted) < SINGLE


def test_gd_plus_plus_agrees_at_depth_ten(x64: None) -> None:
    prompt = make_prompt(11, 6, 3, noise=0.5)
    method = Method(gd_reader(2, prompt, 10, covariates=True), Forget(jnp.full(10, 0.3)), 10)
    found = run(method, prompt, view="iterates").predictions
    assert relative(found, run(method, prompt, view="tokens").predictions) < EXACT


def test_more_layers_than_entries_are_refused() -> None:
    prompt = make_prompt(3, 6, 3)
    reader = gd_reader(2, prompt, 2, covariates=False)
    with pytest.raises(InputError, match=r"3 layers.*entries for 2"):
        run(Method(reader, Forget(jnp.ones(3)), 3), prompt)
    with pytest.raises(InputError, match="eta has entries for 1"):
        run(Method(reader, Forget(jnp.ones(1)), 2), prompt)


@pytest.mark.parametrize("covariates", [False, True], ids=["B=0", "GD++"])
@pytest.mark.parametrize("d", [6, 18], ids=["prompts last", "vmap"])
def test_a_batch_equals_attention_written_token_by_token(d: int, covariates: bool, x64: None) -> None:
    depth, batch = 2, make_batch(3, prompts=4, n=9, d=d)
    reader = gd_reader(4, batch, depth, covariates=covariates)
    alpha, gamma = jnp.asarray([0.7, 0.9]), jnp.asarray([0.0, -0.4])
    method = Method(reader, Register(alpha, gamma), depth)
    A = np.asarray(reader.A.matrices)  # type: ignore[attr-defined]
    B = [None] * depth if reader.B is None else np.asarray(reader.B.matrices)  # type: ignore[attr-defined]
    weights = [reference.sparse_weights(A[layer], B[layer]) for layer in range(depth)]
    directions = [lambda Z, P=P, Q=Q: reference.attention(Z, P, Q) for P, Q in weights]

    def combine(layer: int, stored: list) -> np.ndarray:
        register = stored[0] if layer == 0 else stored[1] + float(gamma[1]) * stored[0]
        return float(alpha[layer]) * register

    wanted = [
        reference.memformer(reference.tokens(*map(np.asarray, (p.X, p.y, p.query))), directions, combine)
        for p in (jax.tree.map(lambda leaf, k=k: leaf[k], batch) for k in range(4))
    ]
    for view in ("tokens", "iterates"):
        assert relative(run(method, batch, view=view).predictions, np.transpose(wanted)) < EXACT


@pytest.mark.parametrize("memory", MEMORIES)
def test_every_problem_type_gives_the_token_predictions(memory: str, x64: None) -> None:
    depth, prompt = 4, make_prompt(5, 9, 6, noise=0.5)
    method = Method(gd_reader(6, prompt, depth), linear_memories(7, 6, 9, depth, BOTH_VIEWS)[memory], depth)
    X, y = prompt.X, prompt.y
    problems = {
        "gram": Quadratic.of(prompt),
        "matrix-free": Examples(X, y),
        "gradients": Objective(lambda w: jnp.mean((X @ w - y) ** 2) / 2, jnp.zeros(6)),
    }
    wanted = jnp.stack(unroll(method, Tokens.of(prompt)))
    for name, problem in problems.items():
        found = jnp.stack(unroll(method, problem)) @ prompt.query
        assert relative(found, wanted) < EXACT, name


def test_the_cheaper_problem_is_chosen() -> None:
    prompt = make_prompt(0, 9, 6)
    assert isinstance(iterate_problem(prompt, gradient_descent(0.1, 2)), Examples)
    assert isinstance(iterate_problem(prompt, gradient_descent(0.1, 3)), Quadratic)
    plus = Method(gd_reader(0, prompt, 2, covariates=True), Forget(jnp.ones(2)), 2)
    assert isinstance(iterate_problem(prompt, plus), Quadratic)


def test_any_loss_can_be_run_through_its_gradient(x64: None) -> None:
    def loss(w: jax.Array) -> jax.Array:
        return jnp.sum(jnp.cosh(w - 1.0))

    w = np.array([0.5, -0.2])
    problem = Objective(loss, jnp.asarray(w))
    found = unroll(gradient_descent(0.1, 5), problem)
    for answer in found:
        np.testing.assert_allclose(answer, w, rtol=1e-12)
        w = w - 0.1 * np.sinh(w - 1.0)


# Conjugate gradients


def both_conjugates(prompt: Prompt, depth: int, stop: float) -> list[np.ndarray]:
    """Predictions of the conjugate register in both views."""
    method = conjugate_gradient(depth, stop=stop)
    return [np.asarray(run(method, prompt, view=view).predictions) for view in ("tokens", "iterates")]


@pytest.mark.parametrize(("d", "n"), [(1, 5), (5, 20), (20, 40), (20, 10), (6, 1)])
def test_conjugate_gradients_keep_their_digits_away_from_n_equal_d(d: int, n: int, x64: None) -> None:
    depth, prompt = 10, make_prompt(d * n, n, d, correlated=False)
    w = reference.conjugate_gradient(np.asarray(prompt.X), np.asarray(prompt.y), depth, stop=1e-9)
    for predictions in both_conjugates(prompt, depth, 1e-9):
        assert relative(predictions, np.stack(w) @ np.asarray(prompt.query)) < EXACT


@pytest.mark.parametrize(("d", "n"), [(10, 12), (7, 7), (12, 9)])
def test_near_n_equal_d_the_residuals_of_conjugate_gradients_agree(d: int, n: int, x64: None) -> None:
    # The iterates lose digits there; the residuals agree to 1e-5 of the first one.
    depth, prompt = 10, make_prompt(d * n, n, d, correlated=False)
    X, y = np.asarray(prompt.X), np.asarray(prompt.y)
    wanted = np.stack(
        [reference.gradient(X, y, w) for w in reference.conjugate_gradient(X, y, depth, stop=1e-9)]
    )
    weights = np.asarray(run(conjugate_gradient(depth, stop=1e-9), prompt, view="iterates").weights)
    found = np.stack([reference.gradient(X, y, w) for w in weights])
    assert np.abs(found - wanted).max() < 1e-5 * np.linalg.norm(wanted[0])


@pytest.mark.parametrize("view", ["tokens", "iterates"])
@pytest.mark.parametrize(("d", "n", "labels"), [(5, 20, 0.0), (5, 2, 1.0), (2, 8, 1.0)])
def test_a_finished_conjugate_gradient_makes_zero_steps(view: str, d: int, n: int, labels: float) -> None:
    # zero labels, steps past the rank n < d, and steps past d
    depth, prompt = 5, make_prompt(1, n, d)
    method = conjugate_gradient(depth, stop=1e-3)

    def predictions(y: jax.Array) -> jax.Array:
        return run(method, Prompt(prompt.X, y, prompt.query, prompt.target), view=view).predictions

    y = labels * prompt.y
    found = predictions(y)
    np.testing.assert_allclose(found[min(n, d) :], float(found[-1]), rtol=1e-6)
    assert np.isfinite(found).all()
    assert labels or not found.any()
    assert np.isfinite(jax.grad(lambda y: predictions(y)[-1])(y)).all()


@pytest.mark.parametrize("view", ["tokens", "iterates"])
@pytest.mark.parametrize(("d", "n", "labels"), [(5, 20, 0.0), (5, 2, 1.0), (2, 8, 1.0)])
def test_conjugate_gradients_without_a_stop_stay_finite(view: str, d: int, n: int, labels: float) -> None:
    prompt = make_prompt(1, n, d)
    given = Prompt(prompt.X, labels * prompt.y, prompt.query, prompt.target)
    assert np.isfinite(run(conjugate_gradient(9), given, view=view).predictions).all()


def test_a_zero_step_has_a_finite_gradient_in_the_preconditioner() -> None:
    prompt = make_prompt(1, 6, 3)
    zero = Prompt(prompt.X, 0 * prompt.y, prompt.query, prompt.target)

    def loss(A: jax.Array) -> jax.Array:
        method = Method(Gradient(Full(jnp.broadcast_to(A, (4, 3, 3)))), Conjugate(), 4)
        return jnp.sum((unroll(method, Quadratic.of(zero))[-1] - 1) ** 2)

    assert np.isfinite(jax.jit(jax.grad(loss))(jnp.eye(3))).all()


# What unroll and run return


def test_answers_start_at_zero_and_every_step_is_kept() -> None:
    batch = make_batch(0, prompts=3, n=8, d=4)
    found = run(gradient_descent(0.1, 5), batch)
    assert found.view == "iterates"
    assert found.weights is not None
    assert found.predictions.shape == (6, 3)
    assert found.weights.shape == (6, 3, 4)
    np.testing.assert_array_equal(found.predictions[0], 0)
    np.testing.assert_allclose(
        found.predictions, np.einsum("spd,pd->sp", found.weights, batch.query), rtol=1e-4, atol=1e-6
    )


def test_switching_layers_off_gives_the_shallower_method(x64: None) -> None:
    prompt = make_prompt(0, 8, 4)
    deep, shallow = gradient_descent(0.1, 4), gradient_descent(0.1, 2)
    active = jnp.asarray([1.0, 1.0, 0.0, 0.0])
    for problem in (Quadratic.of(prompt), Tokens.of(prompt)):
        np.testing.assert_allclose(
            unroll(deep, problem, active)[-1], unroll(shallow, problem)[-1], rtol=1e-12
        )


def test_losses_are_squared_query_errors_with_one_query(x64: None) -> None:
    prompt = make_prompt(0, 8, 4)
    method = gradient_descent(0.1, 3)
    wanted = (run(method, prompt).predictions - prompt.target) ** 2
    np.testing.assert_allclose(losses(method, Quadratic.of(prompt)), wanted, rtol=1e-10)
    np.testing.assert_allclose(last_residual(method, Quadratic.of(prompt))[0] ** 2, wanted[-1], rtol=1e-10)


@pytest.mark.parametrize("d", [4, 18])
def test_parameters_with_a_prompt_axis_are_one_method_per_prompt(d: int, x64: None) -> None:
    batch = make_batch(0, prompts=3, n=8, d=d)
    A = 0.02 * np.random.default_rng(0).normal(size=(2, d, d, 3)) + 0.05 * np.eye(d)[None, :, :, None]
    alpha, gamma = np.random.default_rng(1).normal(size=(2, 2, 3))
    quadratics = jax.vmap(Quadratic.of, out_axes=-1)(batch)

    def method(*where: Any) -> Method:
        pick = (..., *where)
        register = Register(jnp.asarray(alpha[pick]), jnp.asarray(gamma[pick]))
        return Method(Gradient(Full(jnp.asarray(A[pick]))), register, 2)

    together = unroll(method(), quadratics)[-1]
    for k in range(3):
        alone = jax.tree.map(lambda leaf, k=k: leaf[..., k], quadratics)
        np.testing.assert_allclose(together[:, k], unroll(method(k), alone)[-1], rtol=1e-10)


def weights(gates: np.ndarray, gating: str) -> np.ndarray:
    """What gates stand for, head by head."""
    if gating == "free":
        return gates
    corner = (gates == gates.max(axis=0)).astype(float)
    return corner if gating == "hard" else np.exp(gates) / np.exp(gates).sum(axis=0)


@pytest.mark.parametrize("gating", ["free", "softmax", "hard"])
@pytest.mark.parametrize("per_layer", [False, True])
def test_gates_multiply_the_steps_of_their_heads(per_layer: bool, gating: str, x64: None) -> None:
    # With no memory, gated heads are one head with the gated sum of matrices.
    prompt, depth = make_prompt(0, 8, 4), 3
    readers = [gd_reader(seed, prompt, depth) for seed in (1, 2)]
    heads = [Method(reader, Forget(jnp.ones(depth)), depth) for reader in readers]
    gates = np.random.default_rng(0).uniform(0, 1, (2, depth) if per_layer else 2)
    per = weights(gates if per_layer else np.repeat(gates[:, None], depth, 1), gating)
    A = sum(
        per[h][:, None, None] * readers[h].A.matrices  # type: ignore[attr-defined]
        for h in range(2)
    )
    one = Method(Gradient(Full(jnp.asarray(A))), Forget(jnp.ones(depth)), depth)
    several = mixture(heads, jnp.asarray(gates), per_layer=per_layer, gating=gating)
    for view in ("tokens", "iterates"):
        wanted = run(one, prompt, view=view).predictions
        assert relative(run(several, prompt, view=view).predictions, wanted) < EXACT


# Bad input


def test_unknown_view_is_named() -> None:
    with pytest.raises(InputError, match=r"unknown view 'token'. Did you mean tokens"):
        run(gradient_descent(0.1, 1), make_prompt(0, 3, 2), view="token")


def test_depth_zero_is_refused() -> None:
    method: Algorithm = Method(Gradient(Identity()), Forget(jnp.ones(0)), 0)
    with pytest.raises(InputError, match=r"depth is 0: it must be at least 1. Pass 1 or more"):
        run(method, make_prompt(0, 3, 2))


def test_a_view_that_does_not_exist_says_which_one_does() -> None:
    prompt = make_prompt(0, 3, 2)
    reader = gd_reader(0, prompt, 2)
    for kind in ("tokens", "hadamard"):
        method = Method(reader, linear_memories(0, 2, 3, 2, (kind,))[f"bank-{kind}"], 2)
        assert run(method, prompt).view == "tokens"  # the library's choice
        with pytest.raises(NoSuchView, match=r"differs between context tokens.*Pair.*view='tokens'"):
            run(method, prompt, view="iterates")
    diagonal = Method(reader, linear_memories(0, 2, 3, 2, ("diagonal",))["bank-diagonal"], 2)
    with pytest.raises(NoSuchView, match=r"lfom\.theorems.diagonal_lfom"):
        run(diagonal, prompt, view="tokens")


@pytest.mark.parametrize(
    "problem", [Examples(jnp.ones((3, 2)), jnp.ones(3)), Objective(jnp.sum, jnp.ones(2))]
)
def test_gd_plus_plus_needs_the_gram_matrix(problem: Any) -> None:
    method = Method(gd_reader(0, make_prompt(0, 3, 2), 2, covariates=True), Forget(jnp.ones(2)), 2)
    with pytest.raises(InputError, match=r"GD\+\+ .*needs the Gram matrix.*Quadratic.of\(prompt\)"):
        unroll(method, problem)


def test_a_general_loss_has_no_conjugate_register() -> None:
    with pytest.raises(InputError, match=r"conjugate register needs a quadratic.*Use a register or a bank"):
        unroll(conjugate_gradient(2), Objective(lambda w: jnp.sum(w**2), jnp.ones(2)))


@pytest.mark.parametrize("d", [1, 3])
@pytest.mark.parametrize("view", ["tokens", "iterates"])
def test_matrices_of_another_dimension_are_refused(d: int, view: str) -> None:
    # d = 1 would broadcast without an error
    method = Method(Gradient(Full(jnp.ones((2, d, d)))), Forget(jnp.ones(2)), 2)
    for prompt in (make_prompt(0, 3, 2), make_batch(0, 2, 3, 2)):
        with pytest.raises(InputError, match=rf"A has {d} entries.*the prompt has d = 2. Build the method"):
            run(method, prompt, view=view)


@pytest.mark.parametrize(
    ("kind", "view", "of"),
    [
        ("tokens", "tokens", "n"),
        ("hadamard", "tokens", "d"),
        ("rows", "iterates", "d"),
        ("rows", "tokens", "d"),
    ],
)
def test_coefficients_of_another_size_are_refused(kind: str, view: str, of: str) -> None:
    memory = linear_memories(0, 4, 7, 2, (kind,))[f"bank-{kind}"]
    with pytest.raises(InputError, match=rf"gamma has \d entries.*the prompt has {of} \+ 1 = "):
        run(Method(Gradient(Identity()), memory, 2), make_prompt(0, 3, 2), view=view)
