"""One of something per run: models, distributions and prompts alike, as PerRun or as a list."""

import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lfom import (
    Adam,
    Distribution,
    GaussianMixture,
    HeavyTailed,
    InputError,
    LeastSquares,
    LinearRegression,
    LogisticRegression,
    Method,
    PerRun,
    Prompt,
    RandomScale,
    adapt,
    conjugate_gradient,
    evaluate,
    fit,
    gradient_descent,
    load,
    memformer,
    mixture,
    sampled_optimum,
    save,
)
from lfom.core.memories import Register
from lfom.core.preconditioners import Scaled
from lfom.core.readers import Gradient
from lfom.core.runs import concatenate, fingerprint, joined, stack, take
from lfom.training.fitting import plan
from tests.helpers import make_batch

KEY = jax.random.key(0)
DATA = [LinearRegression(spectrum, 8) for spectrum in ([1.0, 0.5], [2.0, 0.25])]
SIZES = [gradient_descent(eta, 2) for eta in (0.1, 0.2, 0.3)]
QUICK = LeastSquares(first=500, last=500, passes=(2, 1))


def experts(scale: float) -> Any:
    return mixture([memformer(2, 1, memory="none", scale=s * scale, key=KEY) for s in (0.3, 0.6)])


# PerRun itself


def test_runs_are_stacked_and_taken_apart() -> None:
    runs = PerRun(SIZES)
    assert runs.runs == 3
    assert jax.tree.all(jax.tree.map(np.array_equal, runs.each(), SIZES))
    assert jax.tree.all(jax.tree.map(np.array_equal, runs[2], SIZES[2]))
    assert jax.tree.all(jax.tree.map(np.array_equal, runs[1:].each(), SIZES[1:]))
    assert jax.tree.all(jax.tree.map(np.array_equal, PerRun(tuple(SIZES)), runs))
    doubled = runs.map(lambda one: jax.tree.map(lambda a: 2 * a, one))
    np.testing.assert_allclose(doubled[1].memory.eta, 0.4)
    assert doubled.runs == 3


def test_groups_of_runs_are_joined() -> None:
    both = joined([PerRun(SIZES), PerRun(SIZES[:1])])
    assert both.runs == 4
    np.testing.assert_array_equal(both.stacked.memory.eta[:, 0], np.asarray([0.1, 0.2, 0.3, 0.1], np.float32))
    again = concatenate([stack(SIZES), take(stack(SIZES), slice(0, 1))])
    np.testing.assert_array_equal(again.memory.eta, both.stacked.memory.eta)


class Sums(Distribution):
    dimension = 2

    def prompt(self, key: Any) -> Prompt:
        X = jax.random.normal(key, (9, 2))
        return Prompt(X[:-1], X[:-1].sum(1), X[-1], X[-1].sum())


def test_a_list_without_arrays_has_as_many_runs_as_it_is_long() -> None:
    runs = PerRun([conjugate_gradient(2)] * 3)
    assert (runs.runs, len(runs.each()), runs[1:].runs, joined([runs, runs]).runs) == (3, 3, 2, 6)
    assert runs.map(lambda one: one).runs == 3
    with pytest.raises(IndexError):
        runs[3]
    assert PerRun(conjugate_gradient(2)).runs is None
    assert fingerprint(runs) != fingerprint(runs[1:])
    found = evaluate({"CGD": runs[1:]}, DATA, prompts=100, key=KEY)["CGD"]
    alone = evaluate({"CGD": conjugate_gradient(2)}, DATA, prompts=100, key=KEY)["CGD"]
    np.testing.assert_array_equal(found.mean, alone.mean)
    with pytest.raises(InputError, match="CGD has models for 3 runs and the data has 2"):
        evaluate({"CGD": runs}, DATA, prompts=100, key=KEY)


def test_distributions_without_arrays_are_as_many_runs_as_are_listed() -> None:
    models = [memformer(2, 1, memory="none", scale=scale, key=KEY) for scale in (0.1, 0.2, 0.3)]
    score = evaluate({"descent": SIZES[0]}, [Sums()] * 3, prompts=100, key=KEY)["descent"]
    assert len({tuple(row) for row in score.mean}) == 3
    for model, data in ((models[0], [Sums()] * 3), (models, Sums())):
        found = fit(model, data, key=KEY, optimiser=Adam(steps=10, batch=20))
        assert found.runs == 3
        assert len({vector.tobytes() for vector in found.vectors}) == 3


def test_a_list_without_arrays_is_saved_with_its_number(tmp_path: Path) -> None:
    save(tmp_path / "runs.lfom", PerRun([conjugate_gradient(2)] * 3))
    assert load(tmp_path / "runs.lfom").runs == 3


def test_a_fingerprint_tells_numbers_options_and_classes_apart() -> None:
    things = [
        *DATA,
        *SIZES,
        gradient_descent(0.1, 3),
        LinearRegression([1.0, 0.5], 9),
        HeavyTailed(DATA[0], 5),
    ]
    things += [PerRun(DATA), PerRun(DATA[:1]), LinearRegression([1.0, 0.5], 8, noise=0.1)]
    assert len({fingerprint(thing) for thing in things}) == len(things)
    assert fingerprint(LinearRegression([1.0, 0.5], 8)) == fingerprint(DATA[0])


class Plain(Sums):
    """Numbers that are no arrays."""

    active: Any = 1
    more: Any = 2


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((1, 12), (11, 2)),
        ((0.1, 10.2), (0.11, 0.2)),
        ((1, 2), (1.0, 2)),
        ((1, 2), (True, 2)),
        (("a", "b"), ("ab", "")),
    ],
)
def test_a_fingerprint_does_not_run_numbers_together(one: Any, other: Any) -> None:
    assert fingerprint(Plain(*one)) == fingerprint(Plain(*one))
    assert fingerprint(Plain(*one)) != fingerprint(Plain(*other))
    assert fingerprint([np.ones(2), np.ones(0)]) != fingerprint([np.ones(0), np.ones(2)])


def test_a_fingerprint_keeps_the_functions_that_it_tells_apart() -> None:
    """One that has been let go of, and whose place in memory another takes, is not taken for that."""
    known = {fingerprint(Plain(lambda x, k=k: k * x)) for k in range(20)}
    assert len(known) == 20


def test_classes_of_one_name_have_other_fingerprints() -> None:
    """As a function makes them, or a cell of a notebook that is run again."""

    def made(number: float) -> Any:
        class Mine(Sums):
            def prompt(self, key: Any) -> Prompt:
                return jax.tree.map(lambda a: number * a, super().prompt(key))

        return Mine

    first, second = made(1.0), made(2.0)
    assert fingerprint(first()) == fingerprint(first())
    assert fingerprint(first()) != fingerprint(second())
    assert fingerprint([first()]) != fingerprint([second()])


# A list is fine everywhere


def test_a_list_is_fitted_as_what_it_stands_for() -> None:
    model = memformer(2, 1, memory="none", key=KEY)
    prompts = [data.prompts(KEY, 60) for data in DATA]
    for given in (DATA, prompts):
        found = [fit(model, each, key=KEY, optimiser=QUICK) for each in (given, PerRun(given))]
        assert found[0].runs == 2
        assert found[1].vectors.tobytes() == found[0].vectors.tobytes()
        assert not np.array_equal(found[0].vectors[0], found[0].vectors[1])


def test_a_list_is_scored_as_what_it_stands_for() -> None:
    lists: dict[str, Any] = {"descent": SIZES[:2], "one for all": SIZES[0]}
    wrapped: dict[str, Any] = {"descent": PerRun(SIZES[:2]), "one for all": SIZES[0]}
    found = [evaluate(m, d, prompts=200, key=KEY) for m, d in ((lists, DATA), (wrapped, PerRun(DATA)))]
    for name in lists:
        assert found[0][name].mean.shape == (2, 3)
        np.testing.assert_array_equal(found[0][name].mean, found[1][name].mean)
    np.testing.assert_array_equal(found[0]["descent"].mean[0], found[0]["one for all"].mean[0])
    for_one = evaluate({"descent": SIZES}, DATA[0], prompts=200, key=KEY)["descent"]  # data for all runs
    assert for_one.mean.shape == (3, 3)


def test_a_list_is_adapted_as_what_it_stands_for() -> None:
    models, prompts = [experts(1.0), experts(2.0)], [data.prompts(KEY, 30) for data in DATA]
    for setting in ("label-free", "labelled", "per prompt"):
        found = adapt(models, prompts, setting=setting)
        again = adapt(PerRun(models), PerRun(prompts), setting=setting)
        np.testing.assert_array_equal(found.model.stacked.gates, again.model.stacked.gates)
        assert found.model.runs == 2
    shared = adapt(models[0], prompts)  # one model for all runs
    np.testing.assert_allclose(shared.model[0].gates, adapt(models, prompts).model[0].gates, rtol=1e-5)


def test_every_run_keeps_its_own_frozen_numbers() -> None:
    """Also where least squares begins from the scale of the prompts, also where that scale is looked for."""
    models: list[Any] = [
        Method(Gradient(Scaled(jnp.full(2, 0.5))), Register(jnp.ones(2), jnp.full(2, gamma)), 2)
        for gamma in (0.1, 0.9)
    ]
    for data in (DATA[0], LogisticRegression([1.0, 0.5], 8)):
        found = fit(models, data, key=KEY, train=("A",), optimiser=QUICK)
        for run, model in enumerate(models):
            np.testing.assert_array_equal(found.model(run).memory.gamma, model.memory.gamma)
            assert not np.array_equal(found.model(run).reader.A.scale, model.reader.A.scale)


@pytest.mark.parametrize("kind", ["full", "scalar"])
def test_what_is_not_trained_stays_as_it_is(kind: str) -> None:
    model: Any = memformer(2, 2, memory="register", preconditioner=kind, scale=0.4, key=KEY)
    found = fit(model, DATA[0], key=KEY, train="coefficients", optimiser=QUICK).model()
    assert jax.tree.all(jax.tree.map(np.array_equal, found.reader, model.reader))
    assert not np.array_equal(found.memory.gamma, model.memory.gamma)


def test_optima_of_other_numbers_are_one_list() -> None:
    """What is only known of them differs, and they are run without it."""
    optima = [sampled_optimum(data, 2, KEY, prompts=400, chunk=100) for data in DATA]
    found = evaluate({"best": optima}, DATA, prompts=200, key=KEY)["best"]
    for run, (data, optimum) in enumerate(zip(DATA, optima, strict=True)):
        alone = evaluate({"best": [optimum] * 2}, [data] * 2, prompts=200, key=KEY)["best"]
        np.testing.assert_array_equal(found.mean[run], alone.mean[run])


# Other lists are refused


DIFFERENT: list[tuple[str, list[Any]]] = [
    ("its class, HeavyTailed instead of LinearRegression", [DATA[0], HeavyTailed(DATA[0], 5)]),
    ("context, 9 instead of 8", [DATA[0], LinearRegression([1.0, 0.5], 9)]),
    ("the shape of spectrum, (3,) instead of (2,)", [DATA[0], LinearRegression([1.0, 0.5, 0.2], 8)]),
    ("weights, ", [DATA[0], LinearRegression([1.0, 0.5], 8, weights=[1.0, 2.0])]),
]


@pytest.mark.parametrize(
    "thing", [SIZES[0], DATA[0], memformer(2, 2, key=KEY), memformer(2, 2, memory="conjugate", key=KEY)]
)
def test_a_single_one_is_no_runs(thing: Any) -> None:
    with pytest.raises(InputError, match="a single one: pass a list"):
        PerRun(thing)
    with pytest.raises(InputError, match="count is 7, and the list has 2 runs"):
        PerRun([thing, thing], 7)


def test_a_list_of_one_is_one_run_everywhere() -> None:
    """Of two runs of something else it is no part: what all runs share is no list."""
    prompts = [data.prompts(KEY, 30) for data in DATA[:2]]
    models = [memformer(2, 1, memory="none", key=KEY)] * 2
    for call in (
        lambda: fit(models[:1], DATA[:2], key=KEY),
        lambda: fit(models, DATA[:1], key=KEY),
        lambda: evaluate({"one": models[:1]}, DATA[:2], prompts=100, key=KEY),
        lambda: evaluate({"one": models}, DATA[:1], prompts=100, key=KEY),
        lambda: adapt(models[:1], prompts, setting="labelled", train="coefficients"),
        lambda: adapt(models, prompts[:1], setting="labelled", train="coefficients"),
    ):
        with pytest.raises(InputError, match=r"one of each for every run|pass one of each"):
            call()


@pytest.mark.parametrize("runs", [1, 2])
def test_a_distribution_may_hold_a_random_key(runs: int) -> None:
    class Keyed(Sums):
        key: Any

        def prompt(self, key: Any) -> Prompt:
            scale = 1 + jax.random.uniform(self.key)
            return jax.tree.map(lambda a: scale * a, super().prompt(key))

    data = [Keyed(jax.random.key(run)) for run in range(runs)]
    method = gradient_descent(0.1, steps=2)
    found = evaluate({"a": method}, data if runs > 1 else data[0], prompts=100, key=KEY)["a"].mean
    for run, one in enumerate(data):
        alone = evaluate({"a": method}, [one] * runs, prompts=100, key=KEY)["a"].mean
        np.testing.assert_array_equal(found[run], alone[run])
    assert len({fingerprint(one) for one in data}) == runs


@pytest.mark.parametrize(("what", "data"), DIFFERENT)
def test_runs_that_differ_in_kind_are_refused_with_a_sentence(what: str, data: list[Any]) -> None:
    model = memformer(2, 1, memory="none", key=KEY)
    for call in (
        lambda: PerRun(data),
        lambda: fit(model, data, key=KEY),
        lambda: evaluate({"descent": SIZES[0]}, data, prompts=100, key=KEY),
    ):
        with pytest.raises(InputError, match=re.escape(f"run 1 differs from run 0 in {what}")):
            call()


def test_models_and_prompts_that_differ_in_kind_are_refused_with_a_sentence() -> None:
    message = "run 1 differs from run 0 .* Call once for each kind"
    with pytest.raises(InputError, match=message):
        evaluate({"descent": [SIZES[0], gradient_descent(0.1, 3)]}, DATA, prompts=100, key=KEY)
    with pytest.raises(InputError, match=message):
        adapt([experts(1.0), experts(1.0).heads[0]], make_batch(0, 30, 8, 2))
    with pytest.raises(InputError, match=message):
        adapt(experts(1.0), [make_batch(0, 30, 8, 2), make_batch(0, 31, 8, 2)])
    with pytest.raises(InputError, match=message):
        fit(memformer(2, 1, key=KEY), [DATA[0], DATA[0].prompts(KEY, 10)], key=KEY)


def test_an_empty_list_is_refused() -> None:
    model = memformer(2, 1, memory="none", key=KEY)
    for call in (
        lambda: PerRun([]),
        lambda: fit(model, [], key=KEY),
        lambda: evaluate({"descent": SIZES[0]}, [], prompts=100, key=KEY),
        lambda: evaluate({"descent": []}, DATA, prompts=100, key=KEY),
        lambda: adapt([], make_batch(0, 30, 8, 2)),
    ):
        with pytest.raises(InputError, match="empty") as error:
            call()
        assert re.fullmatch(r".+: pass .+[.]", str(error.value))


def test_other_numbers_of_runs_are_refused() -> None:
    prompts = make_batch(0, 30, 8, 2)
    with pytest.raises(
        InputError, match="descent has models for 3 runs and the data has 2: pass one of each"
    ):
        evaluate({"descent": SIZES}, DATA, prompts=100, key=KEY)
    with pytest.raises(InputError, match="a 3 and b 2 runs: give one of each for every run, or a single one"):
        evaluate({"a": SIZES, "b": SIZES[:2]}, DATA[0], prompts=100, key=KEY)
    with pytest.raises(InputError, match="model 2 and prompts 3 runs: give one of each"):
        adapt([experts(1.0)] * 2, [prompts] * 3)


# Which distributions have one best matrix


def test_a_given_weight_frees_every_matrix() -> None:
    model = memformer(2, 2, memory="none", key=KEY)
    given = LinearRegression([1.0, 0.5], 8, weights=[1.0, -2.0])
    assert DATA[0].has_one_matrix
    assert LinearRegression([1.0, 0.5], 8, noise=0.1, variance=2.0, weight_variance=3.0).has_one_matrix
    others = [given, HeavyTailed(DATA[0], 5), RandomScale(DATA[0], 0.5, 2.0),
              GaussianMixture(jnp.zeros((1, 2)), [1.0], [1.0], 8)]  # fmt: skip
    assert not any(one.has_one_matrix for one in others)
    for data, frees in (
        (DATA[0], False),
        (DATA, False),
        (PerRun(DATA), False),
        (given, True),
        ([given] * 2, True),
    ):
        phases = plan(model, data=data)
        assert [phase.optimiser is not None for phase in phases] == [True, frees]
    insisted = plan(model, optimiser=LeastSquares(every_matrix=True), data=DATA[0])
    assert insisted[-1].optimiser is not None
