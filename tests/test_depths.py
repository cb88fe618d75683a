"""Depth and numbers are data: methods that differ in them share a program, and answer as they do alone."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lfom
from lfom.core.memories import Conjugate, ConjugateBank
from lfom.core.methods import Method, Mixture
from lfom.core.states import Direction, Track
from lfom.core.unroll import last_residual, losses, trace, unroll, with_room
from lfom.methods.memformer import mixture
from tests.helpers import gd_reader, linear_memories, make_batch, make_prompt, relative
from tests.learned_problems import systems


def some_systems(count: int, seed: int = 1) -> lfom.LinearSystems:
    return systems(count=count, seed=seed, dtype=np.float32)


@functools.cache
def learned(name: str) -> Method:
    return lfom.learn(systems(count=30, dtype=np.float32), 4, name, iterations=0)


on_cpu = pytest.mark.skipif(
    jax.default_backend() != "cpu", reason="an accelerator's loops have a known length"
)
MEMORIES = ("none", "register", "bank-scalar", "bank-pair-tied", "bank-rows-own")


@contextlib.contextmanager
def programs() -> Iterator[list[str]]:
    """What is compiled meanwhile."""
    found: list[str] = []

    def count(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if "backend_compile" in event:
            found.append(event)

    jax.monitoring.register_event_duration_secs_listener(count)
    try:
        yield found
    finally:
        jax.monitoring.unregister_event_duration_listener(count)


def momentum(steps: int) -> Method:
    return lfom.momentum(0.1 + 0.01 * steps, 0.3, steps)


def conjugate(steps: int) -> Any:
    return lfom.conjugate_gradient(steps=steps)


def bank(steps: int) -> Method:
    return lfom.memformer(6, steps, memory="bank", key=jax.random.key(steps))


DOORS: dict[str, Callable[[Any], Any]] = {
    "run": lambda method: lfom.run(method, make_batch(1, 7, 9, 6)).predictions,
    "evaluate": lambda method: lfom.evaluate(
        {"ours": method}, lfom.LinearRegression(np.linspace(0.5, 1, 6), context=9), prompts=50,
        key=jax.random.key(0),
    ),
    "solve": lambda method: method.solve(some_systems(count=3)).residuals,
    "solve to a tolerance": lambda method: method.solve(some_systems(count=3), tolerance=1e-2).value,
    "promise": lambda method: method.promise,
}  # fmt: skip


@on_cpu
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("make", [momentum, conjugate, bank])
def test_methods_that_differ_in_depth_and_numbers_share_their_programs(make: Any, door: str) -> None:
    methods = [make(depth) for depth in (16, 9, 12, 15)]
    DOORS[door](methods[0])
    with programs() as found:
        for method in methods[1:]:
            DOORS[door](method)
    assert found == []


@on_cpu
@pytest.mark.parametrize("make", [momentum, conjugate, bank])
def test_few_steps_of_solve_share_theirs_as_well(make: Any) -> None:
    make(8).solve(some_systems(count=3))
    with programs() as found:
        seen = [make(depth).solve(some_systems(count=3)).residuals.shape[1] for depth in (1, 2, 5, 7)]
        seen += [make(4).solve(some_systems(count=3), steps=steps).residuals.shape[1] for steps in (3, 6)]
    assert found == []
    assert seen == [2, 3, 6, 8, 4, 7]  # no more than was asked for


def several(prompt: Any, depth: int, covariates: bool) -> Mixture:
    memories = linear_memories(1, prompt.X.shape[-1], prompt.X.shape[-2], depth, ("scalar", "pair", "rows"))
    reader = gd_reader(2, prompt, depth, covariates=covariates)
    heads = [Method(reader, memories[name], depth) for name in MEMORIES[1:]]
    return mixture(heads, jnp.asarray(np.linspace(-1, 1, len(heads)) + 0.1) / len(heads))


def of_kind(kind: str, prompt: Any, depth: int) -> Any:
    if kind in ("heads", "GD++"):
        return several(prompt, depth, kind == "GD++")
    memory = Conjugate() if kind == "conjugate" else ConjugateBank()
    return Method(lfom.readers.Gradient(lfom.preconditioners.Identity()), memory, depth)


@pytest.mark.parametrize("depth", [9, 11, 17])
@pytest.mark.parametrize("kind", ["heads", "GD++", "conjugate", "conjugate bank"])
def test_room_for_more_layers_changes_nothing(kind: str, depth: int, x64: None) -> None:
    n, d = (400, 20) if "conj" in kind else (30, 4)  # well conditioned: else rounding grows with the steps
    prompt = make_batch(3, 4, n, d)
    method = of_kind(kind, prompt, depth)

    def weights(prompt: Any) -> Any:
        return lfom.run(method, prompt, view="iterates").weights

    found, exact = weights(prompt), jax.jit(weights)(prompt)  # whose loops have a known length
    assert found.shape == (depth + 1, 4, d)
    assert relative(found, exact) < 1e-9


@pytest.mark.parametrize(("depth", "room"), [(3, 8), (3, 16), (11, 16)])
@pytest.mark.parametrize("memory", ["register", "bank-scalar"])
def test_layers_beyond_those_that_count_are_not_taken(memory: str, depth: int, room: int, x64: None) -> None:
    """Also where they would do something: what stands in their entries is not read."""
    prompt = make_prompt(3, 9, 4)
    problem = lfom.problems.Quadratic.of(prompt)
    memories = linear_memories(1, 4, 9, room, ("scalar",))
    whole = Method(gd_reader(2, prompt, room, covariates=False), memories[memory], room)
    few, turns = whole.truncated(depth), jnp.asarray(depth, np.int32)
    for loop in (False, True):
        last = trace(whole, problem, None, lambda state, past: None, loop=loop, turns=turns)[1]
        np.testing.assert_allclose(last.w, unroll(few, problem)[-1], rtol=1e-10)
    left = last_residual(whole, problem, turns=turns)
    np.testing.assert_allclose(left, last_residual(few, problem), rtol=1e-9)


class MeanOfRoom(lfom.Memory):
    """step = sum of all directions over the number of layers: what room there is does matter to it."""

    def start(self, nothing: Any, state: Any, problem: Any, room: int | None) -> Any:
        return jnp.zeros((room, *nothing.context.w.shape))

    def __call__(self, direction: Any, past: Any, state: Any, problem: Any, layer: Any) -> Any:
        past = past.at[layer].set(direction.context.w)
        return Direction(Track(past.mean(axis=0))), past


@pytest.mark.parametrize("door", ["run", "evaluate", "solve"])
def test_a_users_memory_has_the_room_that_it_always_had(door: str) -> None:
    gradient = lfom.readers.Gradient(lfom.preconditioners.Identity())
    method = Method(gradient, MeanOfRoom(), 10)
    if door == "evaluate":
        data = lfom.LinearRegression(np.linspace(0.5, 1, 6), context=9)
        found: Any = lfom.evaluate({"ours": method}, data, prompts=50, key=jax.random.key(0))["ours"].mean[0]
        prompts = data.quadratics(jax.random.fold_in(jax.random.fold_in(jax.random.key(0), 0), 0), 50)
        exact = jnp.mean(losses(method, prompts), axis=-1)
    else:
        given: Any = make_batch(1, 7, 9, 6) if door == "run" else some_systems(count=3)

        def whole(given: Any) -> Any:
            return lfom.run(method, given).predictions if door == "run" else method.solve(given).value

        found, exact = whole(given), jax.jit(whole)(given)
    np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-6)


@on_cpu
def test_numbers_keep_their_precision_in_a_room() -> None:
    with jax.enable_x64(True):
        method: Any = lfom.momentum(jnp.asarray(0.1, float), 0.3, 9)
        assert method.memory.alpha.dtype == np.float64
    full: Any = with_room(method)[0]
    assert full.depth == 16
    assert full.memory.alpha.dtype == np.float64
    assert with_room(method)[0] is full  # made once


@pytest.mark.parametrize("options", [{}, {"steps": 11, "start": 0.3}, {"tolerance": 1e-3}], ids=str)
@pytest.mark.parametrize("name", ["bank", "conjugate", "scalar"])
def test_solve_counts_as_it_does_with_loops_of_a_known_length(name: str, options: Any) -> None:
    method = {"bank": bank, "conjugate": conjugate}[name](9) if name != "scalar" else learned(name)
    problems = some_systems(count=5, seed=4)
    if "start" in options:
        options = options | {"start": np.full(problems.b.shape, 0.3, np.float32)}
    assert_counts_alike(method, problems, options)


def assert_counts_alike(method: Any, problems: Any, options: Any) -> None:
    def whole(problems: Any) -> Any:
        found = method.solve(problems, **options)
        return found.value, found.status, found.steps, found.residuals

    for one, other in zip(whole(problems), jax.jit(whole)(problems), strict=True):
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5)


def test_solutions_of_a_vmap_are_cut_nowhere() -> None:
    """Wherever the axis of the vmap is put, and however long it is."""
    A, b = (jnp.asarray(x) for x in (some_systems(count=3).A, some_systems(count=3).b))
    found = jax.vmap(lambda c: momentum(9).solve(lfom.LinearSystems(A, c * b)), out_axes=-1)(jnp.ones(20))
    assert found.residuals.shape == (3, 10, 20)
    assert jax.tree.map(lambda leaf: leaf, momentum(9).solve(some_systems(count=3))).residuals.shape == (
        3,
        10,
    )


def test_losses_count_so_too() -> None:
    data = jnp.asarray(np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32))
    problems = lfom.ConvexLosses(lambda w, a: jnp.sum(jnp.logaddexp(0, a * w)) + 0.1 * jnp.sum(w**2), data, 3)
    method = lfom.gradient_descent(0.5, steps=5)
    assert_counts_alike(method, problems, {"steps": 7})
