"""Adaptation against plain NumPy, known optima, its promises, and bad input."""

import time
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lfom
from lfom import InputError, Mixture, PerPrompt, PerRun, Prompt, adapt, memformer, mixture, run
from lfom.adaptation import held_out
from lfom.adaptation.held_out import asked_tokens, context_error, fold_size, folds_in_turn
from lfom.adaptation.per_prompt import context_question, solve
from lfom.core.memories import Forget
from lfom.core.methods import Method
from lfom.core.preconditioners import Full
from lfom.core.problems import Quadratic
from lfom.core.readers import Gradient
from lfom.training import LeastSquares, fit
from tests.helpers import draw_prompts, gd_reader, linear_memories, make_batch, make_prompt, relative

D, N, DEPTH = 3, 8, 2
hold_out = eqx.filter_jit(held_out.hold_out)


def heads(prompt: Prompt, depth: int = DEPTH) -> list[Method]:
    memories = linear_memories(0, D, N, depth, ("scalar",))
    kinds = ("bank-scalar", "register")
    return [Method(gd_reader(10 * h, prompt, depth), memories[kinds[h]], depth) for h in range(2)]


def one_layer(matrices: list[np.ndarray]) -> list[Method]:
    """Experts of one layer: their answer is A^T b."""
    return [Method(Gradient(Full(jnp.asarray(A)[None])), Forget(jnp.ones(1)), 1) for A in matrices]


@pytest.fixture(scope="module")
def batch() -> Prompt:
    return make_batch(0, 40, N, D, noise=0.1)


@pytest.mark.parametrize("size", [1, 3])
def test_folds_do_not_see_what_they_ask_for(size: int, x64: None) -> None:
    prompt = make_prompt(1, 7, D, noise=0.2)
    X, y = np.asarray(prompt.X), np.asarray(prompt.y)
    found = hold_out(prompt.X, prompt.y, size)
    for fold, first in enumerate(range(0, 7, size)):
        asked = np.arange(first, min(first + size, 7))
        rest = np.setdiff1d(np.arange(7), asked)
        np.testing.assert_allclose(found.gram[..., fold], X[rest].T @ X[rest] / len(rest), atol=1e-12)
        np.testing.assert_allclose(found.moment[..., fold], X[rest].T @ y[rest] / len(rest), atol=1e-12)
        np.testing.assert_allclose(found.probe[: len(asked), :, fold], X[asked])
        np.testing.assert_allclose(found.target[: len(asked), fold], y[asked])
        assert not np.asarray(found.probe[len(asked) :, :, fold]).any()


@pytest.mark.parametrize("size", [1, 3])
def test_chosen_folds_are_those_of_all_folds(size: int) -> None:
    rng = np.random.default_rng(0)
    X, y = jnp.asarray(rng.normal(size=(7, 3, 5))), jnp.asarray(rng.normal(size=(7, 5)))
    every = hold_out(X, y, size)
    chosen = rng.integers(0, -(-7 // size), (2, 5))
    for ours, all_of_it in zip(
        jax.tree.leaves(hold_out(X, y, size, jnp.asarray(chosen))), jax.tree.leaves(every), strict=True
    ):
        for each, prompt in np.ndindex(2, 5):
            wanted = np.asarray(all_of_it)[..., chosen[each, prompt], prompt]
            np.testing.assert_allclose(np.asarray(ours)[..., each, prompt], wanted, rtol=1e-5, atol=1e-6)
    assert asked_tokens(5, 7, size, chosen) == np.minimum(size, 7 - chosen * size).sum()


def test_of_many_prompts_each_asks_for_some_of_its_examples_in_turn() -> None:
    assert folds_in_turn(100, 20, 1) is None  # few: every example
    assert asked_tokens(100, 20, 1, None) == 2_000
    few = folds_in_turn(2_000, 20, 1)
    assert few is not None
    assert few.shape == (4, 2_000)
    assert all(len(set(column)) == 4 for column in few.T)
    many = folds_in_turn(20_000, 20, 1)
    assert many is not None
    np.testing.assert_array_equal(np.bincount(many[0]), [1_000] * 20)


def test_the_context_error_is_that_of_running_without_the_token(x64: None) -> None:
    prompt = make_prompt(2, 6, D, noise=0.2)
    model = mixture(heads(prompt))
    errors = []
    for i in range(6):
        rest = np.delete(np.arange(6), i)
        single = Prompt(prompt.X[rest], prompt.y[rest], prompt.X[i], prompt.y[i])
        errors.append(float(run(model, single, view="tokens").predictions[-1] - prompt.y[i]) ** 2)
    assert relative(context_error(model, prompt.X, prompt.y, 1), np.mean(errors)) < 1e-10


@pytest.mark.parametrize("n", [2, 9])
def test_the_contexts_question_is_its_loss_above_the_minimum(n: int, x64: None) -> None:
    prompt = make_prompt(3, n, D, noise=0.5)
    X, y, w = np.asarray(prompt.X), np.asarray(prompt.y), np.random.default_rng(0).normal(size=D)
    best = np.linalg.lstsq(X, y)[0]
    excess = np.mean((X @ w - y) ** 2) - np.mean((X @ best - y) ** 2)
    residual = context_question(Quadratic.of(prompt)).residual(jnp.asarray(w))
    np.testing.assert_allclose(np.sum(np.asarray(residual) ** 2), excess, rtol=1e-6)


def test_small_systems_are_solved(x64: None) -> None:
    rng = np.random.default_rng(0)
    for p in (3, 20):
        root = rng.normal(size=(5, p, p))
        matrix, vector = root @ root.transpose(0, 2, 1) + np.eye(p), rng.normal(size=(5, p))
        found = solve(jnp.asarray(matrix.transpose(1, 2, 0)), jnp.asarray(vector.T))
        wanted = np.linalg.solve(matrix, vector[..., None])[..., 0].T
        np.testing.assert_allclose(found, wanted, rtol=1e-8)


@pytest.mark.parametrize(
    ("gating", "per_layer"), [("free", False), ("free", True), ("softmax", False), ("hard", False)]
)
def test_per_prompt_gates_never_fit_the_context_worse_than_any_start(
    gating: str, per_layer: bool, batch: Prompt
) -> None:
    model = mixture(heads(batch), per_layer=per_layer, gating=gating)
    question = context_question(jax.vmap(Quadratic.of, out_axes=-1)(batch))

    @eqx.filter_jit
    def error(model: Mixture) -> Any:
        return jnp.sum(lfom.core.unroll.last_residual(model, question) ** 2, axis=0)

    found = eqx.filter_jit(PerPrompt.adapted)(PerPrompt(model), question)
    assert found.gates.shape == (*model.gates.shape, 40)
    begun = [error(eqx.tree_at(lambda m: m.gates, model, gates)) for gates in model.gate_starts()]
    assert (np.asarray(error(found)) <= np.min(begun, axis=0) * (1 + 1e-4) + 1e-7).all()
    if gating == "softmax":
        np.testing.assert_allclose(np.sum(found.weights, axis=0), 1, rtol=1e-5)


def test_in_one_dimension_without_noise_a_gate_per_prompt_is_exact(x64: None) -> None:
    prompts = make_batch(5, 20, 6, 1, noise=0.0)
    model = mixture(one_layer([np.full((1, 1), 0.7)]))
    error = run(PerPrompt(model, 6), prompts).predictions[-1] - prompts.target
    assert float(jnp.abs(error / prompts.target).max()) < 1e-9
    assert float(jnp.abs((run(model, prompts).predictions[-1] - prompts.target) / prompts.target).max()) > 0.1


def test_both_views_and_one_prompt_alone_choose_the_same_gates(x64: None) -> None:
    prompts = make_batch(0, 3, N, D, noise=0.1)
    model = PerPrompt(mixture(heads(prompts)), 2)
    whole = run(model, prompts).predictions
    np.testing.assert_allclose(run(model, prompts, view="tokens").predictions, whole, rtol=1e-6)
    found = adapt(model.model, prompts, setting="per prompt", steps=2)
    single = adapt(model.model, jax.tree.map(lambda a: a[1], prompts), setting="per prompt", steps=2)
    np.testing.assert_allclose(single.model.gates, found.model.gates[:, 1], rtol=1e-6)


def test_one_prompt_of_several_runs_has_no_axis_of_prompts() -> None:
    prompts = make_batch(0, 2, N, D, noise=0.1)
    one, other = (jax.tree.map(lambda a, i=i: a[i], prompts) for i in range(2))
    model = mixture(heads(prompts))
    shared = adapt(PerRun([model, model]), one, setting="per prompt").model
    own = adapt(model, [one, other], setting="per prompt").model
    assert shared[1].gates.shape == own[1].gates.shape == (2,)
    np.testing.assert_array_equal(shared[1].gates, own[0].gates)
    np.testing.assert_array_equal(own[1].gates, adapt(model, other, setting="per prompt").model.gates)


def test_gates_go_with_their_prompt_in_both_views(x64: None) -> None:
    prompts = make_batch(0, 3, N, D, noise=0.1)
    gates = np.random.default_rng(0).uniform(0, 1, (2, 3))
    model = mixture(heads(prompts), jnp.asarray(gates))
    tokens = run(model, prompts, view="tokens").predictions
    np.testing.assert_allclose(tokens, run(model, prompts).predictions, rtol=1e-8)
    alone = mixture(model.heads, jnp.asarray(gates[:, 1]))
    single = jax.tree.map(lambda a: a[1], prompts)
    np.testing.assert_allclose(run(alone, single).predictions, tokens[:, 1], rtol=1e-8)


def gate_problem() -> tuple[Mixture, Prompt]:
    rng = np.random.default_rng(1)
    experts = one_layer([np.eye(D) + 0.5 * rng.normal(size=(D, D)) for _ in range(2)])
    data = lfom.LinearRegression([1.0, 0.7, 0.5], N, noise=0.1)
    return mixture(experts), draw_prompts(data, jax.random.key(1), 100)


def test_labelled_gates_of_one_layer_are_those_of_least_squares(x64: None) -> None:
    model, prompts = gate_problem()
    prompts = jax.tree.map(lambda a: a[:19], prompts)  # too few for a fifth that judges: no early stop
    found = adapt(model, prompts, setting="labelled")
    moments = np.einsum("pni,pn->pi", prompts.X, prompts.y) / N
    matrices = [np.asarray(head.reader.A.matrices[0]) for head in model.heads]  # type: ignore[attr-defined]
    columns = np.stack([np.sum(moments @ A * np.asarray(prompts.query), axis=1) for A in matrices], axis=1)
    wanted = np.linalg.lstsq(columns, np.asarray(prompts.target))[0]
    np.testing.assert_allclose(found.model.gates, wanted, rtol=1e-4)
    assert found.kept.tolist() == [1.0]


def test_label_free_reads_no_label_of_a_query_and_nearly_finds_the_labelled_gates() -> None:
    model, prompts = gate_problem()
    found = adapt(model, prompts)
    other = Prompt(prompts.X, prompts.y, 3 + prompts.query, 1 - 5 * prompts.target)
    np.testing.assert_array_equal(adapt(model, other).model.gates, found.model.gates)

    def error(model: Any) -> float:
        return float(jnp.mean((run(model, prompts).predictions[-1] - prompts.target) ** 2))

    labelled = adapt(model, prompts, setting="labelled")
    assert error(found.model) < error(labelled.model) + 0.1 * (error(model) - error(labelled.model))
    assert found.after[0] < found.before[0]


@pytest.mark.parametrize("gating", ["softmax", "hard"])
def test_other_gates_prefer_the_expert_that_fits(gating: str) -> None:
    _, prompts = gate_problem()
    right, wrong = np.eye(D, dtype=np.float32), -np.eye(D, dtype=np.float32)
    model = mixture(one_layer([wrong, right]), gating=gating)
    found = adapt(model, prompts)
    assert found.model.weights[1] > 0.7
    assert (found.steps == 0) == (gating == "hard")


def test_runs_are_adapted_each_by_itself() -> None:
    model, prompts = gate_problem()
    other = eqx.tree_at(lambda m: m.heads[0].reader.A.matrices, model, replace_fn=lambda A: 1.3 * A)
    both = PerRun([model, other])
    parts = [jax.tree.map(lambda a, i=i: a[50 * i : 50 * (i + 1)], prompts) for i in range(2)]
    free, own = adapt(both, parts), adapt(both, PerRun(parts), setting="per prompt")
    for i, alone in enumerate((model, other)):
        single = adapt(alone, parts[i])
        np.testing.assert_allclose(free.model[i].gates, single.model.gates, rtol=1e-4)
        np.testing.assert_allclose(free.after[i], single.after[0], rtol=1e-4)
    single = adapt(other, parts[1], setting="per prompt")
    np.testing.assert_array_equal(own.model[1].gates, single.model.gates)


def test_what_makes_the_context_error_worse_is_not_kept() -> None:
    model, prompts = gate_problem()
    good = adapt(model, prompts).model
    wrong = eqx.tree_at(lambda p: p.target, prompts, -20 * prompts.target)  # labels of another world
    found = adapt(good, wrong, setting="labelled")
    np.testing.assert_array_equal(found.model.gates, good.gates)
    assert found.kept.tolist() == [0.0]
    assert found.after == found.before
    assert "unadapted model is returned" in found.note


@pytest.mark.parametrize("setting", ["label-free", "labelled", "per prompt"])
def test_an_expert_that_overflows_is_never_chosen(setting: str) -> None:
    """Alone, where gates start from too, its predictions are NaN: no number is smaller than that."""
    _, prompts = gate_problem()
    turned = np.eye(D) + 0.3 * np.random.default_rng(1).normal(size=(D, D))
    good, wild = (
        Method(Gradient(Full(jnp.asarray([A] * 4))), Forget(jnp.ones(4)), 4)
        for A in (0.3 * np.eye(D, dtype=np.float32), (1e12 * turned).astype(np.float32))
    )
    assert np.isnan(run(wild, prompts).predictions[-1]).mean() > 0.5
    model = mixture([good, wild], jnp.asarray([1.0, 0.0]))
    found = adapt(model, prompts, setting=setting)
    assert np.isfinite(found.model.gates).all()
    assert np.isfinite(run(found.model, prompts).predictions).all()
    assert found.after[0] < 0.6 * found.before[0]
    assert found.kept[0] > 0.9


@pytest.mark.parametrize("setting", ["label-free", "labelled"])
@pytest.mark.parametrize(("count", "first"), [(19, 0), (100, 80), (400, 0)])
def test_a_fifth_of_few_prompts_judges_and_all_of_many(setting: str, count: int, first: int) -> None:
    model, _ = gate_problem()  # two gates: 400 prompts are many
    prompts = draw_prompts(lfom.LinearRegression([1.0, 0.7, 0.5], N, noise=0.1), jax.random.key(2), count)
    found = adapt(model, prompts, setting=setting)
    X, y = (jnp.moveaxis(a[first:], 0, -1) for a in (prompts.X, prompts.y))
    for one, error in ((model, found.before), (found.model, found.after)):
        np.testing.assert_allclose(error, [np.mean(context_error(one, X, y, 1))], rtol=1e-4)


def test_a_prompt_whose_context_error_gets_worse_keeps_its_gates(batch: Prompt) -> None:
    model = mixture(heads(batch))
    found = adapt(model, batch, setting="per prompt")
    X, y = jnp.moveaxis(batch.X, 0, -1), jnp.moveaxis(batch.y, 0, -1)
    before = np.asarray(context_error(model, X, y, 2))
    after = np.asarray(context_error(found.model, X, y, 2))
    assert (after <= before * (1 + 1e-5)).all()
    np.testing.assert_allclose([before.mean(), after.mean()], [found.before[0], found.after[0]], rtol=1e-4)
    unchanged = (np.asarray(found.model.gates) == np.asarray(model.gates)[:, None]).all(axis=0)
    assert 1 - unchanged.mean() <= found.kept[0] <= 1


def test_the_budget_is_kept_and_reported() -> None:
    _, prompts = gate_problem()
    layers = mixture([memformer(D, 2, scale=0.2, key=jax.random.key(h)) for h in range(2)])
    kinds = ("gates", "coefficients")
    found = adapt(layers, prompts, train=kinds, steps=2)
    assert found.steps == len(found.history) - 1 <= 2
    losses = [row["loss"][0] for row in found.history]
    assert losses == sorted(losses, reverse=True)
    assert adapt(layers, prompts, train=kinds, seconds=1e-9).steps == 0
    begun = time.perf_counter()
    again = adapt(layers, prompts, train=kinds, steps=2)
    assert again.seconds <= time.perf_counter() - begun


def test_models_without_gates_adapt_their_coefficients(batch: Prompt) -> None:
    model = heads(batch)[1]  # a register
    found = adapt(model, batch, train=("coefficients",))
    assert isinstance(found.model, Method)
    assert found.after[0] < 0.9 * found.before[0]
    np.testing.assert_array_equal(found.model.reader.A.matrices, model.reader.A.matrices)  # type: ignore[attr-defined]


def test_experts_and_gates_can_be_trained_jointly() -> None:
    data = lfom.AnyOf([lfom.LinearRegression([1.0, 0.5], 8, variance=v) for v in (0.5, 2.0)])
    experts = [memformer(2, 1, memory="none", scale=s, key=jax.random.key(1)) for s in (0.2, 0.4)]
    model, key = mixture(experts), jax.random.key(2)
    options = LeastSquares(first=500, last=500, passes=(4, 1))
    trained = fit(model, data, key=key, optimiser=options, start="model").model()
    scores = lfom.evaluate({"before": model, "after": trained}, data, prompts=2_000, key=key)
    assert scores["after"].log_loss < scores["before"].log_loss - 0.3
    assert not np.allclose(trained.gates, model.gates)


ONE_TOKEN = make_batch(0, 30, 1, D)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, p: adapt(m, ONE_TOKEN), "1 context token .*setting='labelled'"),
        (lambda m, p: adapt(m, ONE_TOKEN, setting="per prompt"), "1 context token .*setting='labelled'"),
        (lambda m, p: adapt(m, p, folds=9), "8 context tokens and 9 folds"),
        (lambda m, p: adapt(m, p, folds=1), "folds is 1"),
        (lambda m, p: adapt(m, make_batch(0, 5, 4, 2)), "d = 2 covariates and the model d = 3"),
        (lambda m, p: adapt(m.heads[0], p), r"Method has no gates to adapt: .*lfom\.mixture"),
        (lambda m, p: adapt(m.heads[0], p, setting="per prompt"), "has no gates"),
        (lambda m, p: PerPrompt(m.heads[0]), "has no gates"),
        (lambda m, p: adapt(PerPrompt(m), p, setting="per prompt"), "PerPrompt has no gates to adapt"),
        (lambda m, p: PerPrompt(PerPrompt(m)), "PerPrompt has no gates to adapt"),
        (lambda m, p: adapt(m, p, setting="labeled"), "Did you mean labelled"),
        (lambda m, p: adapt(m, p, train=("gate",)), "Did you mean gates"),
        (lambda m, p: adapt(m, p, train=("B",)), "frees nothing"),
        (lambda m, p: adapt(m, p, setting="per prompt", train=("A",)), "only gates are adapted"),
        (lambda m, p: adapt(m, p, setting="per prompt", seconds=1.0), "limit it with steps"),
        (lambda m, p: adapt(m, p, steps=0), "steps is 0"),
        (lambda m, p: adapt(m, p, seconds=-1.0), "seconds is -1"),
        (lambda m, p: adapt([m] * 2, PerRun([p] * 3)), "model 2 and prompts 3 runs: give one of each"),
        (lambda m, p: adapt([m, m.heads[0]], p), "run 1 differs from run 0 in its class"),
        (lambda m, p: adapt(m, jax.tree.map(lambda a: a[None], p)), r"X has 4 axes: pass \(n, d\)"),
        (lambda m, p: adapt(m, eqx.tree_at(lambda q: q.y, p, p.y * jnp.nan)), "y holds nan at prompt 0"),
    ],
)
def test_bad_input_says_what_to_do(call: Any, message: str, batch: Prompt) -> None:
    with pytest.raises(InputError, match=message):
        call(mixture(heads(batch)), batch)


def test_gates_per_prompt_are_not_adapted_again(batch: Prompt) -> None:
    model = mixture(heads(batch), jnp.ones((2, 40)))
    for call in (lambda: adapt(model, batch), lambda: run(PerPrompt(model), batch)):
        with pytest.raises(InputError, match="gates per prompt already"):
            call()


def test_one_token_is_enough_with_labels() -> None:
    found = adapt(mixture(heads(ONE_TOKEN)), ONE_TOKEN, setting="labelled", steps=1)
    assert np.isnan(found.after).all()
    assert found.kept.tolist() == [1.0]


def test_folds_hold_out_one_token_at_a_time_up_to_twenty() -> None:
    assert [fold_size(n, None) for n in (2, 20, 21, 100)] == [1, 1, 2, 5]


@pytest.mark.parametrize("setting", ["labelled", "label-free"])
def test_a_model_that_diverges_adapted_or_not_is_refused(setting: str, batch: Prompt) -> None:
    """Its steps are so large that no number that is tried ends within those of float32."""
    steep = lfom.gradient_descent(1e30, steps=3)
    with pytest.raises(FloatingPointError, match="not finite, adapted or not: the model diverges"):
        adapt(steep, batch, setting=setting, train="coefficients", steps=1)


def test_gates_of_an_expert_that_overflows_report_infinity(batch: Prompt) -> None:
    found = adapt(mixture([lfom.gradient_descent(1e25, steps=2)]), batch, setting="per prompt", steps=1)
    assert not np.isnan(found.before).any()


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_a_model_that_holds_no_number_is_refused_with_its_place(number: float, batch: Prompt) -> None:
    model = Method(gd_reader(0, batch, 3), Forget(jnp.asarray([0.1, number, 0.1])), 3)
    data = lfom.LinearRegression([1.0] * D, N)
    for call in (
        lambda: adapt(model, batch, train="coefficients"),
        lambda: fit(model, data, key=jax.random.key(0)),
        lambda: lfom.evaluate({"mine": model}, data, prompts=100, key=jax.random.key(0)),
    ):
        with pytest.raises(InputError, match=r"holds NaN or infinity in memory\.eta"):
            call()


def test_gates_that_prompts_choose_are_trained_and_adapted_where_they_begin() -> None:
    experts = [memformer(2, 1, memory=m, key=jax.random.key(1)) for m in ("bank", "register")]
    model, data = PerPrompt(mixture(experts)), lfom.LinearRegression([1.0, 0.5], 6)
    sizes = LeastSquares(first=100, last=100, passes=(1, 1))
    assert fit(model, data, key=jax.random.key(0), optimiser=sizes).model().depth == 1
    found = adapt(model, data.prompts(jax.random.key(2), 8), setting="labelled", steps=1)
    assert isinstance(found.model, PerPrompt)
