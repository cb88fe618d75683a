"""Numbers before work: what is said, from which sizes, and what is refused. No test depends on how fast it runs."""

import itertools
import re
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

import lfom
from lfom.cli import app
from lfom.commands.progress import memory_of
from lfom.core import estimates, room
from lfom.core.checks import InputError
from lfom.experiments import EXPERIMENTS
from lfom.experiments.costs import recorded, together
from lfom.solving import costs
from lfom.solving.costs import Sizes, sizes_of
from lfom.training import Adam
from lfom.training.checkpoints import Checkpoint, regressions

SAID = r"about \d+ (s|min) and \d+\.\d GB on this machine \(estimates\)"


def run(*arguments: Any) -> Any:
    return CliRunner(env={"COLUMNS": "300"}).invoke(app, [str(one) for one in arguments])


def refusal(*arguments: Any) -> str:
    result = run(*arguments)
    assert isinstance(result.exception, InputError), result.output
    return str(result.exception)


def write_regressions(path: Path, count: int = 60, n: int = 12, d: int = 3, dtype: Any = np.float32) -> None:
    X = np.random.default_rng(0).normal(size=(count, n, d)).astype(dtype)
    np.savez(path, X=X, y=X.sum(axis=2))


def small_memory(monkeypatch: pytest.MonkeyPatch, size: float) -> None:
    monkeypatch.setattr(room, "memory", lambda: size)


# The line


def test_slowness_multiplies_speed_and_waiting() -> None:
    """A loop whose turns take this process twice the usual time, and as long again by the clock."""
    now = itertools.count()
    before, worked = estimates.BEGUN
    turn = estimates.TURN

    def clock() -> float:
        return before + 4 * turn * next(now)

    read = iter([worked, worked + 2 * turn * 600])
    found = estimates.slowness(clock, lambda: next(read))
    turns = -(-estimates.LOOK // (4 * turn))
    waits = 4 * turn * turns / (2 * turn * 600)
    assert found == pytest.approx(2 * 600 / turns * max(waits, 1.0) ** 0.5, rel=0.01)


def test_tiny_jobs_take_no_look_at_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimates, "slowness", lambda: pytest.fail("looked"))
    assert estimates.Cost(0.9, 2e9).said() == "about 1 s and 2.0 GB"


def test_long_jobs_are_told_in_the_time_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimates, "slowness", lambda: 3.0)
    assert estimates.Cost(40, 0.44e9).said() == "about 2 min and 0.4 GB"


# What fits


def test_a_container_has_its_own_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit, none = tmp_path / "limit", tmp_path / "none"
    limit.write_text("123456789\n")
    none.write_text("max\n")
    monkeypatch.setattr(room, "LIMITS", (str(none), str(tmp_path / "missing")))
    whole = room.memory()
    assert whole > 123456789
    monkeypatch.setattr(room, "LIMITS", (str(none), str(limit)))
    assert room.memory() == 123456789


def test_devices_with_a_memory_of_their_own_have_no_more_than_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Device:
        def __init__(self, stats: Any):
            self.memory_stats = lambda: stats

    small_memory(monkeypatch, 1000.0)
    for stats, wanted in (
        ([None, None], 1000.0),
        ([{"bytes_limit": 300}] * 2, 600.0),
        ([{"bytes_limit": 900}] * 2, 1000.0),
    ):
        devices = [Device(one) for one in stats]  # type: ignore[attr-defined]
        monkeypatch.setattr(estimates.devices, "used", lambda devices=devices: devices)
        assert estimates.there() == wanted


def test_the_largest_is_the_largest(monkeypatch: pytest.MonkeyPatch) -> None:
    small_memory(monkeypatch, 1000.0)
    estimates.fits("n is 100", 100, lambda n: 10.0 * n, "")
    with pytest.raises(InputError, match=r"n is 101: .* Take 100\."):
        estimates.fits("n is 101", 101, lambda n: 10.0 * n, "Take {}.")
    with pytest.raises(InputError, match="Not even one fits"):
        estimates.fits("n is 101", 101, lambda n: 2000.0 * n, "Take {}.")


# Sizes


def test_sizes_come_from_headers_alone(tmp_path: Path) -> None:
    write_regressions(tmp_path / "a.npz")
    assert sizes_of(tmp_path / "a.npz") == Sizes(60, 3, 12, 1, 4)
    np.savez(tmp_path / "b.npz", A=np.zeros((7, 5, 5)), b=np.zeros((7, 5, 2)))
    assert sizes_of(tmp_path / "b.npz") == Sizes(7, 5, None, 2, 8)
    np.savez(tmp_path / "c.npz", X=np.zeros((30, 4)), y=np.zeros(30), rows=np.array([10, 20]))
    assert sizes_of(tmp_path / "c.npz") == Sizes(2, 4, 15.0, 1, 8)
    with zipfile.ZipFile(tmp_path / "d.npz", "w") as archive:  # headers of arrays that nobody could read
        for name, shape in (("A", "(1000000, 900, 900)"), ("b", "(1000000, 900)")):
            text = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}}}".ljust(117) + "\n"
            archive.writestr(f"{name}.npy", b"\x93NUMPY\x01\x00v\x00" + text.encode())
    assert sizes_of(tmp_path / "d.npz") == Sizes(1_000_000, 900, None, 1, 8)


def test_numbers_and_operations_are_those_of_the_products() -> None:
    """Ten regressions of 5 examples, 3 unknowns and 2 outputs: each product of a 3 x 3 matrix is 18 operations."""
    rows = Sizes(10, 3, 5, 2, 8)
    assert (rows.entries, rows.bytes, rows.each) == (15, 10 * 8 * (15 + 10), 8 * 25)
    assert (rows.products, rows.forming) == (10 * 2 * 18, 10 * 2 * 5 * 9)
    systems = Sizes(10, 3, None, 2, 4)
    assert (systems.entries, systems.bytes, systems.forming) == (9, 10 * 4 * (9 + 6), 0)


def test_what_cannot_be_sized_is_left_to_the_reader(tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_bytes(b"PK not a zip")
    np.savez(tmp_path / "b.npz", Z=np.zeros(3))
    for name in ("a.npz", "b.npz", "missing.npz"):
        assert sizes_of(tmp_path / name) is None


@pytest.mark.parametrize("rows", [None, 20])
def test_costs_grow_with_every_size(rows: int | None) -> None:
    base = Sizes(1_000, 20, rows)
    larger = [replace(base, count=2_000), replace(base, unknowns=40), replace(base, sides=3)]
    for cost in (
        lambda sizes, steps: costs.solving(sizes, steps),
        lambda sizes, steps: costs.streaming([sizes] * 3, steps),
        lambda sizes, steps: costs.learning(sizes, steps, "auto"),
    ):
        first = cost(base, 8)
        for other in [*(cost(sizes, 8) for sizes in larger), cost(base, 16)]:
            assert other.bytes > first.bytes
            assert other.seconds > first.seconds


def test_a_stream_holds_a_few_shards_and_workers_share_them() -> None:
    shard = Sizes(100_000, 10, 20, 1, 4)
    many, more = costs.streaming([shard] * 20, 8), costs.streaming([shard] * 40, 8)
    assert many.bytes == more.bytes
    assert more.seconds > many.seconds
    assert costs.streaming([shard] * 4_000, 8, 4).seconds < costs.streaming([shard] * 4_000, 8).seconds / 2


# Commands


def test_solve_says_it_and_refuses_with_the_most_that_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method, problems = tmp_path / "m.safetensors", tmp_path / "p.npz"
    lfom.conjugate_gradient(2).save(method)
    write_regressions(problems)
    result = run("solve", method, problems, "--out", tmp_path / "s.npz")
    assert result.exit_code == 0
    assert re.search(rf"^Solving 60 problems of 3 unknowns: {SAID}\.$", result.stderr, re.M)

    def size(count: int, steps: int) -> float:
        return costs.solving(Sizes(count, 3, 12, 1, 4), steps).bytes

    small_memory(monkeypatch, size(41, 1))
    text = refusal("solve", method, problems, "--out", tmp_path / "t.npz")
    assert f"{problems} holds 60 problems" in text
    assert "shards of at most 41 problems" in text
    small_memory(monkeypatch, size(60, 500))
    text = refusal("solve", method, problems, "--out", tmp_path / "t.npz", "--steps", 100_000)
    assert "--steps is 100,000" in text
    assert "The largest --steps that fits is 500." in text
    assert not (tmp_path / "t.npz").exists()


def test_a_stream_says_it_and_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    method, shards = tmp_path / "m.safetensors", tmp_path / "shards"
    lfom.conjugate_gradient(2).save(method)
    shards.mkdir()
    for name in ("a", "b"):
        write_regressions(shards / f"{name}.npz")
    result = run("solve", method, shards, "--out", tmp_path / "s")
    assert re.search(rf"^Solving 2 shards with 120 problems: {SAID}\.$", result.stderr, re.M)
    small_memory(monkeypatch, costs.streaming([Sizes(17, 3, 12, 1, 4)] * 2, 1).bytes)
    assert "shards of at most 17 problems" in refusal("solve", method, shards, "--out", tmp_path / "t")


def test_learn_refuses_before_it_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    problems, options = tmp_path / "p.npz", ["--structure", "scalar", "--out", tmp_path / "m.safetensors"]
    write_regressions(problems)
    small_memory(monkeypatch, costs.learning(Sizes(33, 3, 12, 1, 4), 1, ["scalar"]).bytes)
    text = refusal("learn", problems, *options)
    assert "holds 60 problems of 3 unknowns" in text
    assert "Learn from at most 33 of them." in text


def checkpoint(depth: int, optimiser: Adam) -> Checkpoint:
    data = regressions((1.0, 0.5), 8, 2, 0)
    return Checkpoint(
        lfom.memformer(2, depth, memory="none", key=jax.random.key(0)),
        data,
        (depth,),
        (("A",),),
        optimiser,
        0,
        1_000,
    )


def test_train_refuses_with_the_most_runs_and_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    adam = Adam(steps=100, batch=100_000)
    options = [
        "--spectrum",
        "1,0.5",
        "--context",
        8,
        "--memory",
        "none",
        "--train",
        "A",
        "--optimiser",
        "adam",
    ]
    options += ["--steps", 100, "--batch", 100_000, "--out", tmp_path / "m.safetensors"]
    phases = checkpoint(2, adam).phases
    small_memory(monkeypatch, memory_of(phases, 2, (2,), 7))
    text = refusal("train", *options, "--depths", 2, "--runs", 9)
    assert "--runs is 9" in text
    assert "The largest --runs that fits is 7." in text
    small_memory(monkeypatch, memory_of(phases, 2, (2,), 1))
    text = refusal("train", *options, "--depths", 5, "--runs", 1)
    assert "--depths is 5" in text
    assert "The largest of --depths that fits is 2." in text


# Experiments


def test_recorded_costs_are_of_our_experiments() -> None:
    assert {name for name, _ in recorded()} <= set(EXPERIMENTS)
    assert all(one.seconds > 0 and one.bytes > 1e8 for one in recorded().values())


def test_experiments_together_take_less_than_their_sum() -> None:
    alone = [together([name], "quick", "both", 1) for name in EXPERIMENTS]
    every = together(EXPERIMENTS, "quick", "both", 1)
    assert every is not None
    assert max(one.seconds for one in alone if one) < every.seconds < sum(one.seconds for one in alone if one)
    twice = together(EXPERIMENTS, "quick", "both", 2)
    assert twice is not None
    assert twice.seconds == 2 * every.seconds
    assert together(["mine.py"], "quick", "both", 1) is None


def test_an_experiment_of_ones_own_has_no_number(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import lfom\n\n\nclass Halves(lfom.Experiment):\n    name = title = 'halves'\n\n    def run(self, bench):\n"
        "        return lfom.Outcome([lfom.Row('halves', 'none', x, 2.0**-x) for x in range(3)], [])\n"
    )
    result = run("reproduce", file, "--out", tmp_path / "results")
    assert result.exit_code == 0, result.output
    assert "1 experiment: nobody has recorded the time and memory of" in result.stderr
