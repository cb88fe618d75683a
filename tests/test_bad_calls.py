"""Bad arguments end with a sentence: the cases that once did not, and a sample of tests.bad_calls."""

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import config

import lfom
from lfom import InputError, frontends
from lfom.limits.optimum import wishart_moment
from tests.bad_calls import api, cli
from tests.bad_calls.good import NOT_CALLED, good_calls, things

KEY = jax.random.key(0)
# of any type: wrong ones are what is tried
fit: Any = lfom.fit
DOORS: Any = frontends
THEOREMS: Any = lfom.theorems


@pytest.fixture(autouse=True)
def _as_users_have_it() -> Iterator[None]:
    """Without the types that the tests check at run time (tests/conftest.py), which users do not have."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)


HUGE = 10**12


def descent(steps: int) -> lfom.Method:
    return lfom.gradient_descent(0.1, steps)


def test_every_export_is_called_or_left_out_with_a_reason(tmp_path: Path) -> None:
    called = set(good_calls(tmp_path)) | set(NOT_CALLED)
    left = {name for name in lfom.__all__ if callable(getattr(lfom, name))} - called
    assert {name for name in left if inspect.signature(getattr(lfom, name)).parameters} == set()


@pytest.mark.parametrize("kind", [api, cli])
def test_a_sample_of_bad_calls_ends_with_sentences(kind: Any, tmp_path: Path) -> None:
    calls = kind.some_calls(tmp_path, 25, seed=1)
    faults = {call.text: wrong for call in calls if (wrong := kind.fault(call, tmp_path)) is not None}
    assert len(calls) == 25
    assert faults == {}


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda t: fit(t["model"], lfom.LinearRegression([1.0] * 3, 4), key=KEY), "d = 3"),
        (lambda t: fit(lfom.conjugate_gradient(2), t["data"], key=KEY), "train"),
        (lambda t: fit(t["model"], nan_prompts(), key=KEY), "X holds nan"),
        (lambda t: fit(t["model"], t["data"], key=KEY, depths=2), r"depths is 2: .*depths=\[2\]"),
        (lambda t: fit(t["model"], t["data"], key=0), r"key is 0: .*jax.random.key\(0\)"),
        (lambda t: fit(t["model"], t["data"], key=KEY, optimiser="adam"), "optimiser is 'adam'"),
        (lambda t: lfom.adapt(None, t["prompts"]), "model is None"),
        (lambda t: lfom.evaluate(t["model"], t["data"], key=KEY), "methods is a Method"),
        (lambda t: lfom.run(t["model"], t["data"]), "prompt is a LinearRegression"),
        (lambda t: lfom.Adam(steps=-1), "steps is -1"),
        (lambda t: DOORS.learned_transformation(3), "method is 3: it must be a method"),
        (lambda t: DOORS.LearnedSolver(3), "method is 3: it must be a method"),
        (lambda t: THEOREMS.memformer_of(t["prompts"]), "method is a Prompt: it must be a method"),
        (lambda t: THEOREMS.gate_to((t["model"],), "a"), "chosen is 'a': it must be a whole number"),
        (lambda t: THEOREMS.gate_to(tuple(map(descent, (1, 2))), 0), r"heads have depths \[1, 2\]"),
        (lambda t: THEOREMS.conjugate_gradient_memformer("a", 1), "prompt is 'a'"),
        (lambda t: THEOREMS.gradient_descent_transformer(np.ones((2, 3, 4))), "each A_l must be square"),
        (lambda t: THEOREMS.lfom_memformer(np.ones((2, 3, 4)), np.eye(2)), "each A_l must be square"),
        (lambda t: lfom.Adam(schedule="foo"), "unknown schedule 'foo'"),
        (lambda t: lfom.HeavyTailed(t.get("nothing"), 3), "base is None"),
        (lambda t: lfom.learn(t["problems"], structure="conjugate:jacobifull"), "preconditioner 'jacobifull'"),
        (lambda t: lfom.learn(t["problems"], seed=-1), "seed is -1"),
        (lambda t: lfom.learn(t["problems"], seed=2**64), "seed is"),
        (lambda t: lfom.learn(t["problems"], steps=HUGE), "steps is 1000000000000"),
        (lambda t: lfom.memformer(5, HUGE, key=KEY), "depth 1000000000000"),
        (lambda t: lfom.memformer(5, 4, heads=HUGE, key=KEY), "heads 1000000000000"),
        (lambda t: lfom.evaluate({"a": t["model"]}, t["data"], prompts=1_000 * HUGE, key=KEY), "prompts is"),
        (lambda t: t["data"].prompts(KEY, HUGE), "count is"),
        (lambda t: lfom.Adam(steps=HUGE), "steps is"),
        (lambda t: lfom.exact_optimum(5, 20, 51), "depth is 51"),
        (lambda t: lfom.LinearSystems(np.eye(2, dtype=np.float16)[None], np.ones((1, 2), np.float16)), "float16"),
        (lambda t: lfom.LinearSystems(jnp.eye(2, dtype=jnp.bfloat16)[None], jnp.ones((1, 2), jnp.bfloat16)), "bfloat16"),
    ],
)  # fmt: skip
def test_what_once_ended_otherwise_is_a_sentence(call: Any, says: str) -> None:
    with pytest.raises(InputError, match=f"(?s){says}"):
        call(things())


def nan_prompts() -> lfom.Prompt:
    prompts = things()["prompts"]
    return lfom.Prompt(prompts.X.at[1, 0, 0].set(jnp.nan), prompts.y, prompts.query, prompts.target)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["learn", "one.npy"], "one.npy"),
        (["verify", "--seed", "-1"], "--seed is -1"),
        (["reproduce", "--seed", str(2**64)], "--seed is"),
        (["train", "--depths", "1000000000"], "depth"),
        (["train", "--runs", "1000000000"], "runs is 1000000000"),
        (["train", "--heads", "1000000000"], "heads"),
        (["train", "--optimiser", "adam", "--steps", "1000000000000"], "steps is"),
        (["train", "--prompts", "1000000000000"], "prompts is"),
        (["reproduce", "--seed", "3", "--seeds", "1,2"], "--seed is 3 beside --seeds 1,2"),
        (["inspect", "one.npy", "--no-plot", "--plot", "a.png"], "--plot is a.png beside --no-plot"),
        (["train", "--with", "mine.py"], "--with is mine.py: it tells which classes a checkpoint may hold"),
        (
            ["bench", "forward", "--problems", "3", "--seed", "1"],
            "has no --problems, --seed",
        ),
    ],
)
def test_commands_refuse_in_a_sentence(
    words: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("one.npy", np.ones(3))
    status, _, errors, _ = cli.run(words)
    assert status == 2
    assert says in errors
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.npy"]


def test_fewer_partitions_give_the_same_moments() -> None:
    def partitions(k: int, largest: int) -> Any:
        if k == 0:
            yield ()
        for part in range(min(k, largest), 0, -1):
            for rest in partitions(k - part, part):
                yield (part, *rest)

    from lfom.limits import optimum

    for k in (1, 2, 5, 9):
        few = wishart_moment(k, 5, 20)
        whole = pytest.MonkeyPatch()
        whole.setattr(optimum, "_partitions", lambda k: partitions(k, k))
        assert wishart_moment(k, 5, 20) == few
        whole.undo()


def test_two_keys_are_not_one() -> None:
    with pytest.raises(InputError, match=r"key is .*it must be one random key"):
        things()["data"].prompts(jax.random.split(KEY), 3)
    assert things()["data"].prompts(jax.random.PRNGKey(0), 3).X.shape == (
        3,
        4,
        2,
    )  # as keys were written before


def test_versions_are_shown() -> None:
    status, out, _, _ = cli.run(["--version"])
    assert (status, out.split()[:2]) == (0, ["lfom", lfom.__version__])
