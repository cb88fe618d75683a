"""Adam as in the paper: new batches, rates, and going on where it stopped."""

from typing import Any

import jax
import numpy as np
import pytest

from lfom import Adam, fit, memformer
from tests.one_number import Moody, numbers

STEPS = 100


def test_a_new_batch_is_drawn_after_so_many_steps() -> None:
    """A batch asks for 1 or -1, and its steps are enough to get there: half of the runs turn at the next."""
    options: dict[str, Any] = {"batch": 4, "resample": STEPS, "learning_rate": 0.05}
    first, second = (numbers([Moody("coin")] * 64, Adam(steps=k * STEPS, **options)) for k in (1, 2))
    np.testing.assert_allclose(np.abs([first, second]), 1, atol=0.1)
    assert 0.3 < np.mean(np.sign(first) != np.sign(second)) < 0.7


@pytest.mark.parametrize(("schedule", "share"), [("constant", 1.0), ("cosine", 0.5)])
def test_far_from_the_target_every_step_has_the_length_of_the_rate(schedule: str, share: float) -> None:
    adam = Adam(steps=STEPS, batch=4, resample=STEPS, learning_rate=0.03, schedule=schedule)
    np.testing.assert_allclose(numbers(Moody("far"), adam), share * 0.03 * STEPS, rtol=0.02)


def test_a_fit_goes_on_where_it_stopped_bit_for_bit() -> None:
    model = memformer(1, 1, memory="none", preconditioner="scalar", key=jax.random.key(0))
    states: list[Any] = []

    def trained(**options: Any) -> Any:
        adam = Adam(steps=30, batch=4, resample=10)
        return fit(model, [Moody("normal")] * 3, key=jax.random.key(1), optimiser=adam, **options)

    whole = trained(watch=lambda state, record: states.append(state))
    assert len(states) == 3
    for state in states:
        assert trained(resume=state).vectors.tobytes() == whole.vectors.tobytes()
