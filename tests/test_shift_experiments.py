"""The experiments on shifts: their parts as laws, and their curves and claims on made-up losses."""

import dataclasses
import importlib
import types
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lfom import LinearRegression, memformer, run
from lfom.bench import BENCHMARKS
from lfom.bench.adapt import bench_adapt
from lfom.core.problems import Examples, Quadratic
from lfom.core.readers import Normalised
from lfom.core.unroll import unroll
from lfom.core.vectors import parameters
from lfom.experiments import EXPERIMENTS, adaptation_shifts, experiment_named, how_many_experts, workbench
from lfom.experiments.adaptation_shifts import BUDGETS, claims
from lfom.experiments.drawn import Drawn, Rescaled, drawn
from lfom.experiments.fixed_batches import asked
from lfom.experiments.gaussian_mixture import component
from lfom.experiments.how_many_experts import NUMBERS, products, union_optimum, variances
from lfom.experiments.ridge import Ridge, best_penalty
from lfom.experiments.shifted import (
    FOUR_STEPS,
    LABEL_FREE,
    OWN_GATES,
    PLACES,
    SHIFTS,
    UNADAPTED,
    WITH_LABELS,
    OnShifts,
    scaled,
    union_data,
)
from lfom.experiments.workbench import Workbench
from lfom.prompts.distributions import GaussianMixture
from lfom.prompts.prompt import Prompt
from lfom.prompts.shifts import HeavyTailed, RandomScale
from lfom.training import Fit, PerRun, Score
from tests.helpers import draw_prompts, draw_quadratics

SPECTRUM = [1.0, 0.5, 0.25]
ROTATION = np.linalg.qr(np.random.default_rng(2).normal(size=(3, 3)))[0].astype(np.float32)


def several(data: Any) -> Any:
    return jax.tree.map(lambda a: a[None], data)


def statistics(q: Quadratic) -> np.ndarray:
    """Numbers of every prompt, (numbers, prompts), whose means two ways of drawing it must agree on."""
    gram, moment, target = (np.asarray(a, np.float64) for a in (q.gram, q.moment, q.target))
    squares = [np.sum(a**2, axis=0)[None] for a in (moment, target)]
    mixed = np.einsum("ijp,jp->ip", gram, moment)
    return np.concatenate([gram.reshape(-1, gram.shape[-1]), moment, gram[0] ** 2, mixed, *squares])


def second_moment(q: Quadratic) -> np.ndarray:
    """E[x x^T] by the probe, which is the same for all prompts."""
    probe = np.asarray(q.probe[..., 0] if q.probe.ndim == 3 else q.probe)
    return probe.T @ probe


def standard_errors_apart(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """By how many standard errors the means of independent samples, (numbers, samples), differ."""
    variance = sum(a.var(axis=1, ddof=1) / a.shape[1] for a in (ours, theirs))
    return (ours.mean(axis=1) - theirs.mean(axis=1)) / np.sqrt(variance)


@pytest.mark.parametrize("case", ["shorter", "heavy tails", "mixture"])
def test_fast_draws_have_the_moments_of_the_plain_distributions(case: str) -> None:
    base = LinearRegression(SPECTRUM, 8, rotation=ROTATION, noise=0.3)
    plain: Any = base
    if case == "heavy tails":
        plain = HeavyTailed(base, 10)
        fast: Drawn = jax.tree.map(lambda a: a[0], drawn(several(base), degrees=10.0, most=8))
    elif case == "shorter":
        longer = LinearRegression(SPECTRUM, 11, rotation=base.rotation, noise=0.3)
        fast = jax.tree.map(lambda a: a[0], drawn(several(longer), length=8.0, most=11))
    else:
        means = np.outer([2.5, -1.0], np.eye(5)[1])
        whole = GaussianMixture(means, [0.5, 2.0], [0.5, 0.5], 8, noise=0.3, weight_variance="same")
        plain, fast = whole.component(1), component(whole, 1)
    ours, theirs = (draw_quadratics(one, jax.random.key(k), 20_000) for k, one in ((3, fast), (4, plain)))
    np.testing.assert_allclose(second_moment(ours), second_moment(theirs), rtol=1e-5, atol=1e-6)
    assert np.abs(standard_errors_apart(statistics(ours), statistics(theirs))).max() < 5
    prompts = draw_prompts(fast, jax.random.key(4), 5)
    wanted = np.sum(np.asarray(prompts.query) * np.asarray(prompts.weights), axis=1)
    np.testing.assert_allclose(prompts.target, wanted, rtol=1e-4, atol=1e-5)


def test_a_normalised_model_is_the_plain_one_on_prompts_divided_by_their_scale() -> None:
    base = LinearRegression(SPECTRUM, 8)
    rescaled = Rescaled(RandomScale(base, 0.25, 16.0), jnp.asarray(1.0))
    untouched = RandomScale(base, 0.25, 16.0)
    key = jax.random.key(5)
    plain = memformer(3, 2, scale=0.3, key=key)
    normalised = type(plain)(Normalised(plain.reader), plain.memory, plain.layers)

    @eqx.filter_jit
    def errors(model: Any, data: Any) -> tuple[Any, Any, Any]:
        q = data.quadratics(key, 7)
        return q.residual(unroll(model, q)[-1]), jnp.trace(q.gram), data.prompt(key).X

    ours, traces, X = errors(plain, rescaled)
    theirs, _, _ = errors(normalised, untouched)
    np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(traces, 3.0, rtol=1e-5)
    assert float(np.mean(np.asarray(X) ** 2)) == pytest.approx(1.0, rel=1e-5)


@pytest.mark.parametrize("variance", [0.25, 3.0])
def test_the_expert_of_a_variance_is_the_one_of_variance_1_rescaled(variance: float) -> None:
    model = memformer(3, 3, own_is_one=True, tied=True, scale=0.3, key=jax.random.key(1))
    vector = np.asarray(parameters(model).vector(model))
    expert = scaled(Fit(model, (3,), vector[None, None], (), 0.0), variance).model()
    prompts = draw_prompts(LinearRegression(SPECTRUM, 8), jax.random.key(0), 4)
    c = variance**0.5
    larger = Prompt(c * prompts.X, prompts.y, c * prompts.query, prompts.target)
    ours, theirs = run(expert, larger).predictions, run(model, prompts).predictions
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_ridge_is_ridge_and_its_penalty_is_chosen_on_other_runs() -> None:
    prompts = draw_prompts(LinearRegression(SPECTRUM, 8, noise=0.5), jax.random.key(0), 4)

    @eqx.filter_jit
    def answers(penalty: Any) -> Any:
        return unroll(Ridge(penalty), jax.vmap(Quadratic.of, out_axes=-1)(prompts))[-1]

    for penalty in (0.0, 0.1):
        found = answers(jnp.asarray(penalty))
        for at in range(4):
            X, y = np.asarray(prompts.X[at], np.float64), np.asarray(prompts.y[at], np.float64)
            wanted = np.linalg.solve(X.T @ X / 8 + penalty * np.eye(3), X.T @ y / 8)
            np.testing.assert_allclose(found[:, at], wanted, rtol=1e-3, atol=1e-4)
    alone = unroll(Ridge(jnp.asarray(0.1)), Examples(prompts.X[0], prompts.y[0]))[-1]
    np.testing.assert_allclose(alone, answers(jnp.asarray(0.1))[:, 0], rtol=1e-3, atol=1e-4)
    assert "tokens" not in Ridge(jnp.asarray(0.0)).views
    table = np.asarray([[0.0, 5.0, 5.0], [3.0, 3.0, 3.0]])  # (penalties, runs)
    np.testing.assert_array_equal(best_penalty(table), [3.0, 5.0, 5.0])  # run 0 does not get its 0


def test_sampled_queries_are_asked_of_their_prompts() -> None:
    data, keys = LinearRegression(SPECTRUM, 8, noise=0.5), jax.random.split(jax.random.key(0), 1)
    found, prompts = asked(PerRun([data]), keys, 4), draw_prompts(data, keys[0], 4)
    X, y = np.asarray(prompts.X), np.asarray(prompts.y)
    np.testing.assert_allclose(found.gram[0], np.einsum("pni,pnj->ijp", X, X) / 8, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.moment[0], np.einsum("pni,pn->ip", X, y) / 8, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.probe[0, 0], prompts.query.T, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.target[0, 0], prompts.target, rtol=1e-4, atol=1e-5)


def on_shifts(**values: float) -> OnShifts:
    names = (UNADAPTED, WITH_LABELS, LABEL_FREE, OWN_GATES, *FOUR_STEPS)
    return OnShifts({n: np.full((len(PLACES), 2), values.get(n, -1.0)) for n in names}, 10)


def test_claims_on_shifts_are_computed_from_the_losses() -> None:
    good = on_shifts(**{UNADAPTED: 0.0, WITH_LABELS: -2.0, LABEL_FREE: -1.9, OWN_GATES: -3.0})
    verdicts = {c.id: c.verdict for c in claims(good, 0.01)}
    assert verdicts["label-free-closes-the-gap"] == "holds"
    assert verdicts["normalisation-makes-variance-no-shift"] == "holds"
    assert verdicts["normalisation-makes-experts-unnecessary"] == "fails"
    assert verdicts["experts-still-win"] == "holds"
    bad = on_shifts(**{UNADAPTED: 0.0, WITH_LABELS: -2.0, LABEL_FREE: -1.0, "normalised": -5.0})
    verdicts = {c.id: c.verdict for c in claims(bad, 0.06)}
    assert verdicts["label-free-closes-the-gap"] == "fails"
    assert verdicts["normalisation-makes-variance-no-shift"] == "fails"
    assert verdicts["normalisation-makes-experts-unnecessary"] == "holds"
    assert verdicts["experts-still-win"] == "fails"


def test_experts_lie_inside_the_range_and_cost_more_the_more_they_are() -> None:
    np.testing.assert_allclose(variances(1), [2.0])
    np.testing.assert_allclose(variances(3), [0.5, 2.0, 8.0], rtol=1e-6)
    costs = [products(number, 4) for number in NUMBERS]
    assert costs == sorted(costs)
    assert products(1, 0) == 4 * 2 * 2  # once to choose, once to answer, two products per layer
    assert -1.5 < union_optimum(jax.random.key(0), 2_000) < -1.0


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).uniform(0.1, 1.0, shape)


def runs_of(data: Any) -> int:
    return len(data) if isinstance(data, list) else int(data.runs)


def untrained(model: Any, data: Any, *, depths: Any = None, resume: Any = None, **_: Any) -> Fit:
    """In place of `fit`: the model as it is, for every run and depth."""
    depths = tuple(sorted(depths)) if depths else (model.depth,)
    vector = np.concatenate([np.ravel(a) for a in jax.tree.leaves(model)])
    vectors = np.broadcast_to(vector, (runs_of(data), len(depths), vector.size)).copy()
    return Fit(model, depths, vectors if resume is None else resume.vectors, (), 0.0)


def random_scores(methods: dict[str, Any], data: Any, *, prompts: int, **_: Any) -> dict[str, Score]:
    """In place of `evaluate`: random losses, after a look whether every method has the runs of the data."""
    runs, found = runs_of(data), {}
    for name, method in methods.items():
        if isinstance(method, PerRun):
            assert {a.shape[0] for a in jax.tree.leaves(method.stacked)} == {runs}, name
        shape = (runs, (method.stacked if isinstance(method, PerRun) else method).depth + 1)
        found[name] = Score.of(name, numbers(*shape), 0.01 * numbers(*shape), numbers(runs, 5))
    return found


def unadapted(model: PerRun, prompts: PerRun, **_: Any) -> Any:
    """In place of `adapt`."""
    assert model.runs == prompts.runs
    return types.SimpleNamespace(model=model)


def ones(data: Any, keys: Any, count: int = 20) -> Prompt:
    """In place of drawn prompts."""
    n, shape = getattr(data.stacked, "most", 20), (runs_of(data), count)
    d = data[0].dimension
    sizes = ((*shape, n, d), (*shape, n), (*shape, d), shape)
    return Prompt(*(jnp.asarray(np.ones(size, np.float32)) for size in sizes))


def asked_for_ones(data: Any, keys: Any, count: int) -> Quadratic:
    """In place of drawn prompts with one query each."""
    return jax.vmap(jax.vmap(Quadratic.of, out_axes=-1))(ones(data, keys, count))


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Workbench:
    """A workbench on which nothing is trained, adapted or scored: what experiments do with it remains."""
    quick = workbench.PRESETS["quick"]
    monkeypatch.setitem(workbench.PRESETS, "tiny", dataclasses.replace(quick, prompts=2_000))
    files = [
        "fixed_batches",
        "gates",
        "gaussian_mixture",
        "shifted",
        "workbench",
        *EXPERIMENTS.values(),
    ]
    for file in files:
        module = importlib.import_module(f"lfom.experiments.{file}")
        fakes: dict[str, Any] = {"fit": untrained, "evaluate": random_scores, "adapt": unadapted}
        fakes |= {"draw": ones, "asked": asked_for_ones}
        for name, fake in fakes.items():
            if hasattr(module, name):
                monkeypatch.setattr(module, name, fake)
        if hasattr(module, "on_adaptation_prompts"):
            fake_scores = lambda found, _: {  # noqa: E731
                d: Score.of(
                    "", numbers(found.runs, d + 1), numbers(found.runs, d + 1), numbers(found.runs, 5)
                )
                for d in found.depths
            }
            monkeypatch.setattr(module, "on_adaptation_prompts", fake_scores)
    monkeypatch.setattr(adaptation_shifts, "gated_losses", lambda m, d, keys, *_: numbers(len(keys), 2))
    monkeypatch.setattr(how_many_experts, "union_optimum", lambda key: -1.0)
    several = sum(NUMBERS)
    monkeypatch.setattr(
        how_many_experts,
        "expert_losses",
        lambda e, d, keys, n: (numbers(len(keys), several, n), numbers(len(keys), several, 2, n)),
    )
    return Workbench("tiny", 0, 2)


SETTINGS = {UNADAPTED, WITH_LABELS, LABEL_FREE, OWN_GATES}
RIVALS = {*FOUR_STEPS, "least squares", "ridge, best penalty"}
MIXTURE = {"mixture, gates without labels", "mixture, gates per prompt", "d = 5, right expert alone", "CGD"}
WANTED: dict[str, set[str]] = {
    "adaptation": SETTINGS | RIVALS,
    "how_many_experts": {OWN_GATES, "best expert per prompt", "union", "normalised", "conjugate register"},
    "mixture_of_experts_ood": SETTINGS | RIVALS | {"variance 3.5, 3 heads"},
    "gaussian_mixture_model_ood_lt": MIXTURE | {"mixture"} | {f"d = 5, {name}" for name in SETTINGS},
    "gaussian_mixture_model_ood_mem": MIXTURE | {"mixture, gates and gamma", "d = 5, ridge, best penalty"},
}


@pytest.mark.parametrize("name", WANTED)
def test_experiments_return_the_curves_that_the_issue_asks_for(name: str, bench: Workbench) -> None:
    experiment = experiment_named(name)
    found = experiment.run(bench)
    assert {row.curve for row in found.rows} >= WANTED[name]
    assert all(np.isfinite(row.value) for row in found.rows)
    ids = [(r.curve, r.training, r.x, r.run, r.measure, r.scored_on) for r in found.rows]
    assert len(ids) == len(set(ids))
    assert len({claim.id for claim in found.claims}) == len(found.claims)
    assert {claim.verdict for claim in found.claims} <= {"holds", "partly", "fails"}
    labelled = experiment.x_label if isinstance(experiment.x_label, dict) else None
    assert labelled is None or {row.measure for row in found.rows} <= set(labelled)
    if name == "adaptation":
        assert set(SHIFTS) | {"budget"} == {row.measure for row in found.rows}
        assert {row.x for row in found.rows if row.measure == "budget"} == set(BUDGETS)
    if name == "how_many_experts":
        assert {row.x for row in found.rows if row.curve == OWN_GATES} == set(NUMBERS)


def test_every_prompt_takes_the_expert_with_the_least_error_on_its_context(bench: Workbench) -> None:
    keys = jax.random.split(bench.key, bench.runs)
    found = how_many_experts.best_experts(bench, union_data(bench), keys, 7)
    errors, losses = numbers(2, sum(NUMBERS), 7), numbers(2, sum(NUMBERS), 2, 7)
    np.testing.assert_allclose(found[1], np.log(losses[:, 0, 1].mean(-1) / losses[:, 0, 0].mean(-1)))
    best = errors[:, 1:3].argmin(axis=1)  # two experts: the second and third of all
    after = np.where(best == 0, losses[:, 1, 1], losses[:, 2, 1])
    np.testing.assert_allclose(found[2], np.log(after.mean(-1) / losses[:, 1, 0].mean(-1)))


def test_benchmark_of_adaptation_has_rows() -> None:
    rows = bench_adapt(prompts=60, n=6, d=2)
    assert BENCHMARKS["adapt"] is bench_adapt
    for row in rows:
        assert set(row.as_dict()) >= {"name", "ours", "rival", "unit", "ratio"}
        assert row.ours is not None
        assert row.ours > 0


def test_times_of_adaptation_are_those_of_one_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {"together": 0.2, "loop": 0.5, "alone": 0.004}
    monkeypatch.setattr("lfom.bench.adapt.side_by_side", lambda programs, rounds: seconds)
    loop, allowed, alone = bench_adapt(prompts=100, n=6, d=2)
    assert (loop.ours, loop.rival, loop.unit) == (pytest.approx(2_000), pytest.approx(10_000), "us/prompt")
    assert (allowed.ours, allowed.rival, allowed.unit) == (loop.ours, 20.0, "us/prompt")
    assert (alone.ours, alone.rival, alone.unit) == (pytest.approx(4), 5.0, "ms")
