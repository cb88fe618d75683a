"""Several devices give the bits of one; an accelerator's ways of working, tried on a CPU."""

import importlib
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

import lfom
from lfom.cli import app
from lfom.core import devices as module
from lfom.core import threads
from lfom.core.checks import InputError
from lfom.training import chunks

PROGRAM = """
import hashlib, json, jax, numpy as np, lfom
from lfom.core.threads import in_threads

data = lfom.LinearRegression([1.0, 0.5], context=8)
model = lfom.memformer(2, 2, key=jax.random.key(0))
found = {}
for count in (1, 2, 4):
    with lfom.devices(count):
        places = {int(a.device.id) for a in in_threads(lambda i: jax.numpy.zeros(3) + i, range(8))}
        how = lfom.LeastSquares(first=40_000, last=40_000, passes=(2, 1))
        fit = lfom.fit(model, [data, data], key=jax.random.key(1), depths=(1, 2), optimiser=how)
        score = lfom.evaluate({"GD": lfom.gradient_descent(0.3, 3)}, data, prompts=20_000, key=jax.random.key(2))["GD"]
        bits = b"".join(np.asarray(a).tobytes() for a in (fit.vectors, score.mean, score.stderr, score.groups, score.counts))
        found[count] = [len(places), hashlib.sha256(bits).hexdigest()]
print(json.dumps(found))
"""


def in_process(program: str, count: int) -> str:
    """What a program of its own prints that has so many CPU devices."""
    given = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={count}",
    }
    source = str(Path(lfom.__file__).parents[1])
    given["PYTHONPATH"] = os.pathsep.join([source, given.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", program], env=given, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_fits_and_scores_are_the_same_to_the_last_bit_on_1_2_and_4_devices() -> None:
    found = json.loads(in_process(PROGRAM, 4).splitlines()[-1])
    assert {count: used for count, (used, _) in found.items()} == {"1": 1, "2": 2, "4": 4}
    assert len({bits for _, bits in found.values()}) == 1


COUNTED = """
import hashlib, json, jax, numpy as np, lfom

places = set()
def seen(tree):
    places.update(d.id for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array) for d in leaf.devices())
    return tree

def bits(*arrays):
    return hashlib.sha256(b"".join(np.asarray(a).tobytes() for a in arrays)).hexdigest()

def on_counts(work):
    found = {}
    for count in (1, 2, 4):
        places.clear()
        with lfom.devices(count):
            found[count] = [work(), len(places)]
    print(json.dumps(found))

rng = np.random.default_rng(0)
"""

LEARNING = (
    COUNTED
    + """
from lfom.solving import learners

whole = learners.QuadraticLearner.measured
def measured(self, fit, fold):
    seen((fit.reader, fit.memory))
    return whole(self, fit, fold)
learners.QuadraticLearner.measured = measured
X = (rng.normal(size=(50, 12, 3)) * [1.0, 0.5, 0.3]).astype(np.float32)
problems = lfom.LeastSquaresProblems(X, X.sum(axis=2))
stages = []

def learned():
    names = ["scalar", "preconditioned:diagonal", "conjugate:diagonal", "conjugate:full"]
    method = lfom.learn(problems, 2, names, iterations=1, progress=lambda done, text: stages.append(text))
    assert {d.id for leaf in jax.tree.leaves(method) for d in leaf.devices()} == {0}
    return [bits(*jax.tree.leaves(method)), repr(method.record), method.structure.name]

on_counts(learned)
assert any("4 at a time" in text for text in stages)
"""
)

ADAM = (
    COUNTED
    + """
from lfom.training import adam

whole = adam.make_block
def watched(*given):
    block = whole(*given)
    return lambda *some: seen(block(*some))
adam.make_block = watched
data = lfom.PerRun([lfom.LinearRegression([1.0, 0.5 + 0.1 * i], context=6) for i in range(4)])
how = lfom.Adam(steps=40, batch=100, resample=20)

def fitted():
    model = lfom.memformer(2, 2, key=jax.random.key(0))
    return bits(lfom.fit(model, data, key=jax.random.key(1), depths=(1, 2), optimiser=how).vectors)

on_counts(fitted)
places.clear()
three = lfom.PerRun([data[i] for i in range(3)])  # cannot be shared by two or four
with lfom.devices(2):
    lfom.fit(lfom.memformer(2, 1, key=jax.random.key(0)), three, key=jax.random.key(1), optimiser=how)
assert len(places) == 1, places
"""
)

SOLVING = (
    COUNTED
    + """
ready = jax.block_until_ready  # what threads do, and nothing else in `solve`
jax.block_until_ready = lambda tree: seen(ready(tree))
X = rng.normal(size=(4_321, 80, 3)).astype(np.float32)  # 5.5 MB
problems = lfom.LeastSquaresProblems(X, X.sum(axis=2))
method = lfom.conjugate_gradient(3)

def solved():
    found = method.solve(problems)
    assert found.value.shape == (4_321, 3) and found.value.devices() == {jax.devices()[0]}
    return bits(found.value, found.status, found.residuals)

on_counts(solved)
there = jax.device_put(problems, jax.devices()[2])
np.testing.assert_allclose(method.solve(there).value, method.solve(problems).value, rtol=1e-5)
places.clear()
method.solve(problems[:1_999]), method.solve(there)
assert not places, places
"""
)

ADAPTING = (
    COUNTED
    + """
from lfom.adaptation import adapting, shared
from lfom.core.threads import in_threads

def watched(work, items, *rest):
    def here(item):
        seen(jax.numpy.zeros(1) + 1)
        return work(item)
    return in_threads(here, items, *rest)

adapting.in_threads = shared.in_threads = watched
data = lfom.LinearRegression([1.0, 0.5], context=8)
prompts = data.prompts(jax.random.key(2), 16_000)
heads = [lfom.memformer(2, 2, key=jax.random.key(k)) for k in range(2)]
model = lfom.mixture(heads)

def adapted():
    some = [lfom.adapt(model, prompts, setting=setting, steps=2) for setting in ("label-free", "per prompt")]
    return bits(*(leaf for one in some for leaf in jax.tree.leaves((one.model, one.before, one.after))))

on_counts(adapted)
"""
)


@pytest.mark.parametrize(
    "program",
    [LEARNING, SOLVING, ADAPTING, ADAM],
    ids=["learn", "solve", "adapt", "Adam"],
)
def test_methods_and_solutions_are_the_same_to_the_last_bit_on_1_2_and_4_devices(program: str) -> None:
    found = json.loads(in_process(program, 4).splitlines()[-1])
    (first, _), (second, two), (third, four) = found["1"], found["2"], found["4"]
    assert first == second == third
    assert (two, four) == (2, 4)


SHARDED = """
import jax, jax.numpy as jnp, numpy as np, lfom
from jax.sharding import NamedSharding, PartitionSpec

rng = np.random.default_rng(0)
B = rng.normal(size=(8, 3, 3)).astype(np.float32)
A, b = B @ B.swapaxes(1, 2) + np.eye(3, dtype=np.float32), rng.normal(size=(8, 3)).astype(np.float32)
place = NamedSharding(jax.make_mesh((4,), ("problems",)), PartitionSpec("problems"))
method = lfom.conjugate_gradient(3)
for options in ({"steps": 3}, {"tolerance": 1e-3}):
    def total(A, b):
        return jnp.sum(method.solve(lfom.LinearSystems(A, b), **options).value ** 2)
    slopes = jax.jit(jax.grad(total, argnums=(0, 1)))
    plain = slopes(A, b)
    shared = slopes(jax.device_put(A, place), jax.device_put(b, place))
    for one, other in zip(plain, shared):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    assert len(shared[1].sharding.device_set) == 4, shared[1].sharding
"""


def test_derivatives_of_problems_on_several_devices() -> None:
    in_process(SHARDED, 4)


def test_more_devices_than_there_are_are_refused() -> None:
    there = len(jax.local_devices())
    with pytest.raises(InputError, match=f"devices is {there + 1}: this process has {there}"):
        lfom.devices(there + 1)
    with pytest.raises(InputError, match="devices"):
        lfom.devices(0)


@pytest.mark.parametrize("command", ["learn", "solve", "adapt"])
def test_commands_refuse_more_devices_than_there_are_before_anything_is_read(
    command: str, tmp_path: Path
) -> None:
    problems = ["problems.npz"] if command == "solve" else []
    asked = [command, "method.safetensors", *problems, "--devices", "99"]
    if command != "adapt":
        asked += ["--out", str(tmp_path / "out")]
    assert "devices is 99: this process has" in str(CliRunner().invoke(app, asked).exception)


def test_fewer_devices_are_used_inside_the_block_only() -> None:
    before = module.used()
    with lfom.devices(1) as one:
        assert module.used() == before[:1]
        assert repr(one) == "devices(1)"
    assert module.used() == before


def test_the_block_around_a_block_counts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    there = [object() for _ in range(4)]
    monkeypatch.setattr(jax, "local_devices", lambda: there)
    with lfom.devices(3):
        with lfom.devices(2):
            assert module.used() == there[:2]
        assert module.used() == there[:3]
    assert module.used() == there


def test_the_device_that_jax_was_told_to_use_is_used() -> None:
    device = jax.local_devices()[-1]
    with jax.default_device(device):
        assert module.used() == [device]
        assert next(threads.in_threads(lambda i: jnp.zeros(2) + i, [1])).device == device


def test_pieces_come_back_in_order_and_few_are_begun_ahead() -> None:
    begun: list[int] = []

    def work(item: int) -> int:
        begun.append(item)
        return item

    found = threads.in_threads(work, range(1_000), at_a_time=2)
    assert next(found) == 0
    assert len(begun) <= 2 * threads.AHEAD + 1
    assert list(found) == list(range(1, 1_000))


def test_cores_share_a_few_items_in_the_setting_of_who_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "cores", lambda: 3)
    who, both = set(), threading.Barrier(2, timeout=20)

    def work(item: int) -> Any:
        who.add(threading.get_ident())
        if item < 2:
            both.wait()  # two threads are at it, or nobody gets further
        return jnp.zeros(1) + item

    with jax.enable_x64(True):
        found = threads.by_cores(work, list(range(7)))
    assert [float(one[0]) for one in found] == list(range(7))
    assert {one.dtype for one in found} == {np.dtype("float64")}
    assert len(who) >= 2
    assert not threads.is_worker()


@pytest.mark.parametrize("error", [IndexError, KeyboardInterrupt])
def test_after_an_error_cores_begin_nothing_more(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "cores", lambda: 1)
    begun: list[int] = []

    def work(item: int) -> None:
        begun.append(item)
        raise error("mine")

    with pytest.raises(error, match="mine"):
        threads.by_cores(work, [1, 2, 3])
    assert begun == [1]


def test_a_core_that_fails_leaves_the_rest_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the thread that asks meets ends the work of the others, too."""
    monkeypatch.setattr(threads, "cores", lambda: 2)
    asks, others, failed = threading.get_ident(), [], threading.Event()

    def work(item: int) -> None:
        if threading.get_ident() == asks:
            failed.set()
            raise ValueError("mine")
        failed.wait(20)
        time.sleep(0.2)  # time enough for the other to say so
        others.append(item)

    with pytest.raises(ValueError, match="mine"):
        threads.by_cores(work, list(range(50)))
    time.sleep(1)
    assert len(others) <= 1


@pytest.mark.parametrize(("first", "last"), [(0, 7), (3, 4), (2, 2), (5, 37)])
def test_many_chunks_at_once_add_up_to_the_same(
    first: int, last: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of_chunk(chunk: Any) -> Any:
        x = jnp.asarray(chunk, float) + jnp.arange(3.0)
        return {"a": x, "b": jnp.where(chunk >= last, jnp.nan, x[0])}

    zero = {"a": jnp.ones(3), "b": jnp.zeros(())}
    plain = chunks.summed(of_chunk, jnp.int32(first), jnp.int32(last), zero, 1)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(chunks, "AT_ONCE", 4)
    many = chunks.summed(of_chunk, jnp.int32(first), jnp.int32(last), zero, 1)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), many, plain)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["X", "y", "query", "target", "weights"])
def test_as_on_an_accelerator_a_number_that_is_none_is_named(
    name: str, bad: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There the check and the run are two programs, begun before the host has looked at shapes."""
    prompts = lfom.LinearRegression([1.0, 0.5], context=4).prompts(jax.random.key(0), 3)
    method = lfom.gradient_descent(0.3, 2)
    plain = lfom.run(method, prompts).predictions
    monkeypatch.setattr(importlib.import_module("lfom.prompts.run"), "reads_back", lambda: True)
    np.testing.assert_allclose(lfom.run(method, prompts).predictions, plain, rtol=1e-6)
    spoilt = {**vars(prompts), name: jnp.asarray(vars(prompts)[name]).at[1].set(bad)}
    with pytest.raises(InputError, match=f"{name} holds"):
        lfom.run(method, type(prompts)(**spoilt))
    wrong = {**vars(prompts), "y": prompts.y[:, :-1]}
    with pytest.raises((InputError, TypeError), match="y"):  # in the tests, shapes are checked before that
        lfom.run(method, type(prompts)(**wrong))
