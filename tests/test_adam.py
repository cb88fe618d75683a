"""Adam as in the paper and beyond: batches, rates, several models and several trainings, and going on where it stopped."""

from typing import Any

import jax
import numpy as np
import pytest

from lfom import Adam, InputError, LeastSquares, LinearRegression, PerRun, fit, memformer
from lfom.core.vectors import vector_of
from lfom.training import adam
from lfom.training.fitting import plan
from tests.one_number import Moody, numbers

STEPS = 100
KEY = jax.random.key(1)


def test_a_new_batch_is_drawn_after_so_many_steps() -> None:
    """A batch asks for 1 or -1, and its steps are enough to get there: half of the runs turn at the next."""
    options: dict[str, Any] = {"batch": 4, "resample": STEPS, "learning_rate": 0.05}
    first, second = (numbers([Moody("coin")] * 64, Adam(steps=k * STEPS, **options)) for k in (1, 2))
    np.testing.assert_allclose(np.abs([first, second]), 1, atol=0.1)
    assert 0.3 < np.mean(np.sign(first) != np.sign(second)) < 0.7


def test_a_new_batch_for_every_step_leads_between_what_they_ask_for() -> None:
    each, one = (
        np.abs(numbers([Moody("coin")] * 32, Adam(STEPS, 4, resample, 0.01))).mean()
        for resample in (1, STEPS)
    )
    assert each < 0.3
    assert one > 0.6


@pytest.mark.parametrize(("schedule", "share"), [("constant", 1.0), ("cosine", 0.5)])
@pytest.mark.parametrize(("steps", "resample"), [(STEPS, STEPS), (STEPS, 1), (30, 10), (33, 3), (101, 1)])
def test_far_from_the_target_every_step_has_the_length_of_the_rate(
    schedule: str, share: float, steps: int, resample: int
) -> None:
    """So many steps, whatever the batches."""
    adam = Adam(steps=steps, batch=4, resample=resample, learning_rate=0.03, schedule=schedule)
    one = 0.5 * (share == 0.5)  # the first of a cosine is whole
    np.testing.assert_allclose(numbers(Moody("far"), adam), 0.03 * (share * steps + one), rtol=0.005)


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_the_rate_grows_from_nothing_while_it_warms_up(schedule: str) -> None:
    adam = Adam(STEPS, 4, STEPS, 0.03, schedule=schedule, warmup=40)
    rising, rest = 39 / 2, (60 if schedule == "constant" else 30.5)
    np.testing.assert_allclose(numbers(Moody("far"), adam), 0.03 * (rising + rest), rtol=0.005)
    short = Adam(5, 4, 5, 0.03, warmup=4)  # 0, 1/4, 2/4, 3/4, 1 of the rate
    np.testing.assert_allclose(numbers(Moody("far"), short), 0.03 * 2.5, rtol=0.005)


def test_the_log_of_the_loss_does_not_see_the_scale_of_labels() -> None:
    model = memformer(2, 2, memory="none", scale=0.1, key=jax.random.key(0))

    def trained(log: bool, scale: float) -> np.ndarray:
        data = LinearRegression([1.0, 0.5], 8, weight_variance=scale**2)
        return fit(model, data, key=KEY, optimiser=Adam(40, 50, 10, 0.02, clip=0.3, log=log)).vectors

    np.testing.assert_allclose(trained(True, 10.0), trained(True, 1.0), rtol=1e-3, atol=1e-4)
    assert np.abs(trained(False, 10.0) - trained(False, 1.0)).max() > 0.01


def test_the_query_is_averaged_out_where_that_is_asked_for() -> None:
    """A model that predicts 0 loses w*.S w* = 1.5 then, and otherwise what the queries of its batch say."""
    model = memformer(2, 1, memory="none", scale=0.0, key=jax.random.key(0))
    data = [LinearRegression([1.0, 0.5], 8, weights=[1.0, 1.0])] * 2

    def losses(averaged: bool) -> np.ndarray:
        found = fit(model, data, key=KEY, optimiser=Adam(1, 20, 1, averaged=averaged))
        return np.exp(found.history[0]["log_loss"])

    np.testing.assert_allclose(losses(True), 1.5, rtol=1e-5)
    assert np.abs(losses(False) - 1.5).min() > 0.01
    tokens = memformer(2, 1, reader="softmax", memory="none", key=KEY)
    with pytest.raises(InputError, match="averaged is True, and this model is trained on tokens"):
        fit(tokens, data[0], key=KEY, optimiser=Adam(10, averaged=True))


@pytest.mark.parametrize(
    "adam",
    [
        Adam(steps=300, batch=4, resample=50),
        Adam(300, 4, 1, schedule="cosine", warmup=150, log=True, averaged=True),
    ],
    ids=["paper", "fresh"],
)
def test_a_fit_goes_on_where_it_stopped_bit_for_bit(adam: Adam) -> None:
    model = memformer(1, 1, memory="none", preconditioner="scalar", key=jax.random.key(0))
    states: list[Any] = []

    def trained(**options: Any) -> Any:
        return fit(model, [Moody("normal")] * 3, key=KEY, optimiser=adam, **options)

    whole = trained(watch=lambda state, record: states.append(state))
    assert [state.history[-1]["step"] for state in states] == [100, 200, 300]
    for state in states:
        assert trained(resume=state).vectors.tobytes() == whole.vectors.tobytes()


# Several trainings, several models


def test_one_training_goes_on_where_the_one_before_it_ended() -> None:
    longer, shorter = Adam(STEPS, 4, STEPS, 0.03), Adam(50, 4, 50, 0.01)
    np.testing.assert_allclose(numbers(Moody("far"), [longer, shorter]), 0.03 * STEPS + 0.01 * 50, rtol=0.02)


def test_least_squares_after_adam_begins_with_what_adam_found() -> None:
    model = memformer(2, 2, memory="none", scale=0.1, key=jax.random.key(0))
    data, states = LinearRegression([1.0, 0.5], 8), []
    both: list[Any] = [Adam(200, 100, 50, 0.03, 1.0), LeastSquares(first=2_000, last=2_000, passes=(1, 1))]

    def trained(**options: Any) -> Any:
        return fit(model, data, key=KEY, optimiser=both, **options)

    whole = trained(watch=lambda state, record: states.append(state))
    assert [row["number"] for row in whole.history] == [0, 0, 1, 1]
    losses = [row["log_loss"][0][0] for row in whole.history]
    assert abs(losses[2] - losses[1]) < 0.4  # it did not begin anew, far away
    assert trained(resume=states[1]).vectors.tobytes() == whole.vectors.tobytes()  # Adam's last


def test_a_second_training_keeps_the_form_that_the_first_one_found() -> None:
    """Full matrices begin as one only where training begins anew."""
    model, squares = memformer(2, 2, key=KEY), LeastSquares()

    def names(*optimisers: Any) -> list[str]:
        return [phase.name for phase in plan(model, optimiser=optimisers)]

    assert names(squares, squares) == ["all, one matrix", "all, every matrix", "all"]
    assert names(Adam(), squares) == ["all", "all"]


def test_every_run_begins_with_its_own_model() -> None:
    models = [memformer(2, 1, memory="none", scale=0.1, key=jax.random.key(k)) for k in range(3)]
    data, still = LinearRegression([1.0, 0.5], 8), Adam(10, 10, 10, learning_rate=1e-9)
    for given in (models, PerRun(models)):
        found = fit(given, data, key=KEY, optimiser=still)
        wanted = np.stack([vector_of(model) for model in models])[:, None]
        np.testing.assert_allclose(found.vectors, wanted, atol=1e-6)
    together = fit(models[:2], [data, data], key=KEY, optimiser=Adam(50, 10, 10))
    assert together.runs == 2
    assert not np.allclose(together.vectors[0], together.vectors[1])
    with pytest.raises(InputError, match="model 3 and data 2 runs"):
        fit(models, [data, data], key=KEY, optimiser=still)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"warmup": 1_000}, "warmup is 1000: it is a part of the 1000 steps"),
        ({"warmup": -1}, "warmup is -1"),
        ({"resample": 0}, "resample is 0"),
        ({"schedule": "linear"}, "unknown schedule 'linear'"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Adam(**options)


@pytest.mark.parametrize("runs", [1, 2])
def test_depths_apart_step_as_all_at_once(runs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each depth with the layers it uses, as on a CPU, and all with the layers of the deepest, as on accelerators."""
    data = [LinearRegression([1.0, 0.5], 6)] * runs
    model, how = memformer(2, 3, memory="bank", key=jax.random.key(0)), Adam(steps=10, batch=50, resample=5)
    found = []
    for most in (adam.WRITTEN_APART, 0):
        monkeypatch.setattr(adam, "WRITTEN_APART", most)
        adam.make_block.cache_clear()
        found.append(fit(model, data, key=jax.random.key(1), depths=(1, 2, 3), optimiser=how))
    adam.make_block.cache_clear()
    np.testing.assert_allclose(found[0].vectors, found[1].vectors, atol=1e-6)
    for one, other in zip(*(own.history for own in found), strict=True):
        np.testing.assert_allclose(one["log_loss"], other["log_loss"], atol=1e-5)
