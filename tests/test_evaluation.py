"""Scores: the compiled programs against the plain mean of losses, and what they share."""

import math
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lfom import (
    LinearRegression,
    Score,
    conjugate_gradient,
    evaluate,
    gradient_descent,
    memformer,
    nesterov,
)
from lfom import run as run_method
from lfom.core.checks import InputError
from lfom.core.problems import Quadratic
from lfom.core.runs import stack
from lfom.core.unroll import losses
from lfom.limits.optimum import exact_optimum, with_preconditioner
from lfom.methods.classical import momentum, preconditioned_gradient_descent
from lfom.training import PerRun, evaluation
from lfom.training.evaluation import evaluate_on
from lfom.training.scores import BINS, TOLD, bins, counted, counted_on_host, value_of
from tests.helpers import draw_prompts, draw_quadratics

SPECTRA, CONTEXT, CHUNK = ([1.0, 0.5], [2.0, 0.25]), 8, 40
KEY = jax.random.key(3)
plain_losses = eqx.filter_jit(losses)


def methods() -> dict[str, Any]:
    model = memformer(2, 3, scale=0.2, key=jax.random.key(0))
    each = [jax.tree.map(lambda a, s=s: s * a, model) for s in (1.0, 0.7)]
    return {
        "GD": gradient_descent(0.3, 3),
        "GD, two steps": gradient_descent(0.4, 3).truncated(2),
        "NAG": nesterov(0.2, 0.5, 3),
        "CGD": conjugate_gradient(2),
        "model": PerRun(each),
        "model, one layer": PerRun(stack(each).truncated(1)),
    }


def of_run(method: Any, run: int) -> Any:
    return method[run] if isinstance(method, PerRun) else method


def fresh(data: LinearRegression, run: int, index: int) -> Quadratic:
    return draw_quadratics(data, jax.random.fold_in(jax.random.fold_in(KEY, index), run), CHUNK)


def test_scores_are_plain_means_over_the_prompts() -> None:
    data = [LinearRegression(spectrum, CONTEXT) for spectrum in SPECTRA]
    found = evaluate(methods(), data, prompts=2 * CHUNK, chunk=CHUNK, key=KEY)
    for name, method in methods().items():
        for run, one in enumerate(data):
            each = [
                np.asarray(plain_losses(of_run(method, run), fresh(one, run, i)), np.float64)
                for i in range(2)
            ]
            values = np.concatenate(each, axis=1)
            mean = values.mean(axis=1)
            np.testing.assert_allclose(found[name].mean[run], mean, rtol=1e-5, atol=1e-10, err_msg=name)
            error = values.std(axis=1) / np.sqrt(2 * CHUNK)
            np.testing.assert_allclose(found[name].stderr[run], error, rtol=1e-3, atol=1e-6, err_msg=name)
            np.testing.assert_allclose(found[name].last[run], values[-1], rtol=1e-4, atol=1e-7)
        assert found[name].prompts == 2 * CHUNK


def test_a_run_scores_the_same_alone_and_beside_others() -> None:
    data = [LinearRegression(spectrum, CONTEXT) for spectrum in SPECTRA]
    method = {"GD": gradient_descent(0.3, 3)}
    both = evaluate(method, PerRun(data), prompts=CHUNK, chunk=CHUNK, key=KEY)["GD"]
    alone = evaluate(method, data[0], prompts=CHUNK, chunk=CHUNK, key=KEY)["GD"]
    np.testing.assert_array_equal(both.mean[0], alone.mean[0])


def test_an_optimum_of_every_run_scores_as_the_descent_that_it_is() -> None:
    data = [LinearRegression(spectrum, CONTEXT) for spectrum in SPECTRA]
    inverses = [jnp.diag(1 / jnp.asarray(spectrum)) for spectrum in SPECTRA]
    known = {depth: exact_optimum(2, CONTEXT, depth) for depth in (1, 3)}
    compared: dict = {}
    for depth, one in known.items():
        sizes = 1 / one.roots.real
        descents = [preconditioned_gradient_descent(A, sizes, depth) for A in inverses]
        compared[f"descent {depth}"] = PerRun(descents)
        compared[f"optimum {depth}"] = PerRun([with_preconditioner(one, A) for A in inverses])
    found = evaluate(compared, data, prompts=CHUNK, chunk=CHUNK, key=KEY)
    for depth in known:
        ours, theirs = found[f"optimum {depth}"].mean[:, -1], found[f"descent {depth}"].mean[:, -1]
        np.testing.assert_allclose(ours, theirs, rtol=1e-3)


@pytest.mark.parametrize("name", ["iterates", "tokens"])
def test_many_blocks_at_once_score_as_one_after_the_other(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five blocks in chunks of four, as accelerators take them: three of the last chunk only fill it."""
    data = [LinearRegression(spectrum, CONTEXT) for spectrum in SPECTRA]
    scored = methods() if name == "iterates" else {"softmax": memformer(2, 2, reader="softmax", key=KEY)}
    alone = evaluate(scored, data, prompts=5 * CHUNK, chunk=CHUNK, key=KEY)
    monkeypatch.setattr(evaluation, "_at_once", lambda *_: 4)
    together = evaluate(scored, data, prompts=5 * CHUNK, chunk=CHUNK, key=KEY)
    for own, score in together.items():
        np.testing.assert_allclose(score.mean, alone[own].mean, rtol=1e-5)
        np.testing.assert_allclose(score.last, alone[own].last, rtol=1e-3, atol=1e-6)
        assert score.counts.sum() == 2 * 5 * CHUNK


@pytest.mark.parametrize(("d", "blocks", "together"), [(5, 20, 10), (5, 19, 1), (60, 20, 1)])
def test_light_blocks_share_a_program_and_heavy_ones_do_not(d: int, blocks: int, together: int) -> None:
    views = (("iterates", None),)
    assert evaluation._at_once(LinearRegression([1.0] * d, 2 * d), 2_000, views, blocks) == together


def test_ten_blocks_score_as_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """21 blocks: nine of the last chunk only fill it."""
    data, scored = LinearRegression(SPECTRA[0], CONTEXT), {"GD": gradient_descent(0.3, 3)}
    together = evaluate(scored, data, prompts=21 * CHUNK, chunk=CHUNK, key=KEY)["GD"]
    monkeypatch.setattr(evaluation, "TOGETHER", 1_000)
    alone = evaluate(scored, data, prompts=21 * CHUNK, chunk=CHUNK, key=KEY)["GD"]
    np.testing.assert_allclose(together.mean, alone.mean, rtol=1e-6)
    np.testing.assert_allclose(together.groups, alone.groups, rtol=1e-4)
    assert together.counts.sum() == alone.counts.sum() == 21 * CHUNK


def test_what_is_kept_does_not_grow_with_the_prompts() -> None:
    data = LinearRegression(SPECTRA[0], CONTEXT)
    scored = {"GD": gradient_descent(0.3, 3), "NAG": nesterov(0.2, 0.5, 3)}
    sizes = (24_000, 48_000)
    few, many = (evaluate(scored, data, prompts=n, key=KEY) for n in sizes)
    every = evaluate(scored, data, prompts=sizes[0], key=KEY, every=True)
    for name, score in few.items():
        assert score.last is None
        assert score.groups.shape == many[name].groups.shape
        assert many[name].counts.sum() == sizes[1]
        np.testing.assert_array_equal(score.mean, every[name].mean)
        # At the border of two bins XLA and NumPy may round a logarithm to either side: a few prompts, by one bin.
        moved = np.cumsum(score.counts, axis=1) - np.cumsum(every[name].counts, axis=1)
        assert np.abs(moved).sum() <= 3
        exact = every[name].last.astype(np.float64).reshape(-1, 20).sum(axis=1)
        np.testing.assert_allclose(score.groups[0, : len(exact)], exact, rtol=1e-5)
        assert not score.groups[0, len(exact) :].any()
    difference, error = few["GD"].minus(few["NAG"])
    exact, per_prompt = every["GD"].minus(every["NAG"])
    assert difference == exact
    assert error == pytest.approx(per_prompt, rel=0.05)


def test_losses_are_counted_in_the_bin_that_holds_them() -> None:
    rng = np.random.default_rng(1)
    values = np.float32(2.0) ** rng.uniform(-120, 120, size=5_000).astype(np.float32)
    values[:4] = 0, np.inf, np.nan, 1
    on_device, places = counted(jnp.asarray(values), 1), bins(values, np)
    np.testing.assert_array_equal(on_device, np.bincount(places, minlength=BINS))
    np.testing.assert_array_equal(counted_on_host(values[None])[0], on_device)
    inside = (places > 0) & (places < BINS - 1)
    np.testing.assert_allclose(value_of(places[inside]), values[inside], rtol=1.01 * TOLD)
    assert list(places[:3]) == [0, BINS - 1, BINS - 1]


def made_up(name: str, last: np.ndarray) -> Score:
    """A score of these losses after the last step, (runs, prompts); all start at 1."""
    runs, prompts = last.shape
    mean = np.stack([np.ones(runs), last.mean(axis=1)], axis=1)
    stderr = np.stack([np.zeros(runs), last.std(axis=1) / np.sqrt(prompts)], axis=1)
    return Score.of(name, mean, stderr, last)


def test_medians_and_tails_are_those_of_the_prompts() -> None:
    last = np.random.default_rng(0).exponential(size=(2, 20_000)) ** 3
    score = made_up("cubes", last)
    ordered = np.sort(last, axis=1)
    assert score.log_median == pytest.approx(np.log(ordered[:, 9_999]).mean(), abs=TOLD)
    worst = np.mean(ordered[:, -2:].sum(axis=1) / ordered.sum(axis=1))
    assert score.worst_share == pytest.approx(worst, rel=TOLD)
    for part in (0.0, 0.01, 0.9, 0.9999, 1.0):
        exact = ordered[:, max(math.ceil(part * 20_000) - 1, 0)]
        np.testing.assert_allclose(score.quantile(part), exact, rtol=TOLD)
    assert score.log_loss == pytest.approx(np.log(last.mean(axis=1)).mean())
    assert score.spread == pytest.approx(abs(np.diff(np.log(last.mean(axis=1)))[0]) / np.sqrt(2))


@pytest.mark.parametrize("runs", [1, 4])
def test_the_standard_error_of_a_difference_is_its_spread_over_repetitions(runs: int) -> None:
    """Two methods with losses that go together, as on the same prompts; runs differ by themselves too."""
    rng, repetitions, prompts = np.random.default_rng(runs), 2_000, 100
    found, errors = [], []
    for _ in range(repetitions):
        hard = rng.exponential(size=(runs, prompts))
        own = [rng.exponential(size=(runs, prompts)) for _ in range(2)]
        gains = rng.normal(size=(runs, 1)) if runs > 1 else 0.0
        ours = made_up("ours", 0.3 * np.exp(0.3 * gains) * (2 * hard + own[0]))
        theirs = made_up("theirs", 2 * hard + own[1])
        difference, error = ours.minus(theirs)
        assert theirs.minus(ours) == pytest.approx((-difference, error))
        found.append(difference)
        errors.append(error)
    assert np.mean(found) == pytest.approx(np.log(0.3), abs=0.02)
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(np.std(found), rel=0.06)


def test_groups_of_prompts_tell_the_error_of_a_difference_as_the_prompts_do() -> None:
    """Where prompts are independent: of many, only sums over groups are kept."""
    rng, prompts = np.random.default_rng(5), 20_000
    hard, *own = rng.exponential(size=(3, 1, prompts))
    ours, theirs = made_up("ours", 0.3 * (2 * hard + own[0])), made_up("theirs", 2 * hard + own[1])
    few = [replace(one, groups=one.groups.reshape(1, -1, 10).sum(axis=2)) for one in (ours, theirs)]
    ratio = ours.groups[0] / ours.groups.mean() - theirs.groups[0] / theirs.groups.mean()
    for error in (ours.minus(theirs)[1], few[0].minus(few[1])[1]):
        assert error == pytest.approx(ratio.std() / prompts**0.5, rel=0.06)


def test_other_numbers_depths_and_runs_compile_nothing() -> None:
    one = LinearRegression(SPECTRA[0], CONTEXT)
    evaluate({"GD": gradient_descent(0.3, 3)}, one, prompts=CHUNK, chunk=CHUNK, key=KEY)
    program: Any = evaluation._sums
    before = program._cache_size()
    several = {"a": gradient_descent(0.1, 3), "b": gradient_descent(0.2, 3).truncated(2)}
    evaluate(several, [one] * 3, prompts=3 * CHUNK, chunk=CHUNK, key=KEY)
    assert program._cache_size() == before


@pytest.mark.parametrize("prompts", [3, CHUNK, CHUNK + 1])
def test_given_prompts_are_scored_each_once(prompts: int) -> None:
    whole = jax.vmap(Quadratic.of, out_axes=-1)(draw_prompts(LinearRegression(SPECTRA[0], CONTEXT), KEY, 50))
    sets = stack([jax.tree.map(lambda a: a[..., :prompts], whole)] * 2)
    found = evaluate_on({"GD": gradient_descent(0.3, 3)}, sets, chunk=CHUNK)["GD"]
    values = np.asarray(
        plain_losses(gradient_descent(0.3, 3), jax.tree.map(lambda a: a[0], sets)), np.float64
    )
    assert found.last.shape == (2, prompts)
    np.testing.assert_allclose(found.mean, [values.mean(axis=1)] * 2, rtol=1e-5)
    np.testing.assert_allclose(found.last, [values[-1]] * 2, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("runs", [0, 2], ids=["shared", "one per run"])
def test_prompts_are_scored_with_their_own_queries_in_every_view(runs: int) -> None:
    data = LinearRegression([1.0, 0.5, 0.25], context=8)
    each = [data.prompts(jax.random.key(run), 30 + CHUNK) for run in range(2)]
    methods: dict[str, Any] = {
        "bank": [memformer(3, 4, scale=0.3, key=jax.random.key(run)) for run in range(2)],
        "GD": gradient_descent(0.3, 3),
        "joint": memformer(3, 2, reader="linear", memory="none", scale=0.1, key=KEY),
        "softmax": memformer(3, 2, reader="softmax", memory="none", scale=0.1, key=KEY),
    }
    if not runs:
        methods["bank"] = methods["bank"][0]
    found = evaluate(methods, each if runs else each[0], key=KEY)
    for name, own in methods.items():
        for number in range(runs or 1):
            method = own[number] if isinstance(own, list) else own
            wanted = (run_method(method, each[number]).predictions[-1] - each[number].target) ** 2
            np.testing.assert_allclose(found[name].last[number], wanted, rtol=1e-3, atol=1e-6)
            assert found[name].mean[number, -1] == pytest.approx(float(wanted.mean()), rel=1e-4)


def test_one_prompt_is_scored_and_what_prompts_cannot_do_is_refused() -> None:
    prompts = LinearRegression(SPECTRA[0], CONTEXT).prompts(KEY, 4)
    one = jax.tree.map(lambda a: a[1], prompts)
    method = gradient_descent(0.3, 3)
    alone, all_ = (evaluate({"GD": method}, given, key=KEY)["GD"] for given in (one, prompts))
    np.testing.assert_allclose(alone.last[:, 0], all_.last[:, 1], rtol=1e-5)
    for options in ({"prompts": 2}, {"contexts": [1, 2]}):
        with pytest.raises(InputError, match="given prompts are all scored"):
            evaluate({"GD": method}, prompts, key=KEY, **options)
    with pytest.raises(InputError, match="run 1 differs from run 0 in the shape of X"):
        evaluate({"GD": method}, [prompts, one], key=KEY)
    with pytest.raises(InputError, match="models for 2 runs and the data has 3"):
        evaluate({"GD": [method] * 2}, [prompts] * 3, key=KEY)
    bad = replace(prompts, X=prompts.X.at[0, 0, 0].set(jnp.nan))
    with pytest.raises(InputError, match="X holds nan"):
        evaluate({"GD": method}, bad, key=KEY)


def test_a_method_that_diverges_is_named() -> None:
    wild = PerRun([gradient_descent(0.3, 3), gradient_descent(1e30, 3)])
    data = [LinearRegression(SPECTRA[0], CONTEXT)] * 2
    with pytest.raises(FloatingPointError, match="the loss of wild is not finite in run 1 after"):
        evaluate({"wild": wild}, data, prompts=CHUNK, chunk=CHUNK, key=KEY)


def test_models_of_another_number_of_runs_are_refused() -> None:
    two = PerRun([gradient_descent(0.3, 3)] * 2)
    for runs in (1, 3):
        data = [LinearRegression(SPECTRA[0], CONTEXT)] * runs
        with pytest.raises(InputError, match=f"models for 2 runs and the data has {runs}"):
            evaluate({"GD": two}, data, prompts=CHUNK, chunk=CHUNK, key=KEY)


def test_layers_as_a_loop_score_as_layers_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    data = LinearRegression([1.0, 0.5, 0.25], context=8)
    named = {
        "bank": memformer(3, 4, scale=0.3, key=jax.random.key(1)),
        "momentum": momentum(0.3, 0.4, 4),
        "short": momentum(0.3, 0.4, 2),
        "conjugate": conjugate_gradient(3),
        "GD++": memformer(3, 2, covariates=True, scale=0.1, key=jax.random.key(2)),
        "nothing": gradient_descent(0.3, steps=4).truncated(0),
    }
    asked: list[bool] = []
    program: Any = evaluation._sums

    def scores(loop: bool) -> dict[str, Any]:
        def as_loop() -> bool:
            asked.append(loop)
            return loop

        monkeypatch.setattr(evaluation, "loops_are_functions", as_loop)
        program.clear_cache()
        return evaluate(named, data, prompts=500, chunk=100, key=jax.random.key(0))

    plain, found = scores(loop=False), scores(loop=True)
    program.clear_cache()
    assert True in asked
    few, many = (LinearRegression([1.0] * d, context=8).quadratics(KEY, 2) for d in (8, 9))
    as_loop = [evaluation._as_loop(named[name], few) for name in ("momentum", "GD++", "nothing")]
    assert as_loop == [True, False, False]
    assert not evaluation._as_loop(named["momentum"], many)
    for name, score in plain.items():
        np.testing.assert_allclose(found[name].mean, score.mean, rtol=1e-6)
        np.testing.assert_allclose(found[name].groups, score.groups, rtol=1e-6)
