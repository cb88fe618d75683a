"""lfom.solve_stream and `lfom solve` on many files: the same answers, what is finished, and what is refused."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

import lfom
from lfom.cli import app
from lfom.commands.streams import Pace
from lfom.scale import Summary
from lfom.scale.ahead import AHEAD, ahead
from lfom.scale.sinks import MARK
from lfom.solving import npz
from tests.learned_problems import classifications, regressions

METHOD = lfom.conjugate_gradient(4)
COUNT, ROWS, UNKNOWNS = 30, 12, 5


def batch(seed: int, count: int = COUNT, d: int = UNKNOWNS) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(count, ROWS, d)).astype(np.float32)
    return {"X": X, "y": (X.sum(axis=2) + rng.normal(size=(count, ROWS))).astype(np.float32)}


def write(folder: Path, number: int = 4) -> Path:
    folder.mkdir()
    for seed in range(number):
        np.savez(folder / f"shard{seed}.npz", **batch(seed))
    return folder


def expected(arrays: dict[str, Any], **options: Any) -> np.ndarray:
    return np.asarray(METHOD.solve(lfom.LeastSquaresProblems(**arrays), **options).value)


def found(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as file:
        return dict(file)


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    return write(tmp_path / "problems")


# Answers


def test_a_folder_is_solved_as_in_memory(shards: Path, tmp_path: Path) -> None:
    summary = lfom.solve_stream(METHOD, shards, tmp_path / "out")
    assert summary.failed == {}
    assert (summary.made, summary.kept, summary.problems, summary.ok) == (4, 0, 4 * COUNT, True)
    for seed in range(4):
        solution = found(tmp_path / "out" / f"shard{seed}.npz")
        np.testing.assert_array_equal(solution["w"], expected(batch(seed)))
        assert solution["status"].shape == (COUNT,)
        assert solution["residuals"].shape == (COUNT, METHOD.depth + 1)


@pytest.mark.parametrize("kind", ["pattern", "list", "arrays", "batches", "generator", "problems"])
def test_sources(kind: str, shards: Path) -> None:
    together: dict[str, Any] = {
        name: np.concatenate([batch(seed)[name] for seed in range(4)]) for name in ("X", "y")
    }
    problems = [lfom.LeastSquaresProblems(**batch(seed)) for seed in range(4)]
    sources: dict[str, Any] = {
        "pattern": str(shards / "*.npz"),
        "list": sorted(shards.iterdir()),
        "arrays": together,
        "batches": [batch(seed) for seed in range(4)],
        "generator": (one for one in problems),
        "problems": lfom.LeastSquaresProblems(**together),
    }
    values: list[Any] = []
    summary = lfom.solve_stream(
        METHOD, sources[kind], lambda name, solution: values.append(solution.value), batch=COUNT
    )
    assert summary.ok
    assert summary.problems == 4 * COUNT
    np.testing.assert_allclose(np.concatenate(values), expected(together), rtol=1e-4, atol=1e-5)


def test_without_a_sink_solutions_come_in_order() -> None:
    several = [lfom.LeastSquaresProblems(**batch(seed)) for seed in range(5)]
    solutions = lfom.solve_stream(METHOD, several, steps=2)
    for seed, solution in enumerate(solutions):
        np.testing.assert_array_equal(solution.value, expected(batch(seed), steps=2))


def test_losses_and_a_tolerance() -> None:
    problems = classifications(20, dtype=np.float32)
    method = lfom.gradient_descent(0.5, steps=4)
    (solution,) = lfom.solve_stream(method, [problems], tolerance=1e-2)
    np.testing.assert_array_equal(solution.value, method.solve(problems, tolerance=1e-2).value)


def test_what_is_brought_keeps_its_precision(x64: None) -> None:
    problems = regressions(20)
    (solution,) = lfom.solve_stream(METHOD, iter([problems]))
    assert solution.value.dtype == jnp.float64  # also in the thread that solves
    np.testing.assert_array_equal(solution.value, METHOD.solve(problems).value)


# Memory, and stages side by side


def test_no_more_pieces_are_read_than_wait() -> None:
    read: list[int] = []
    seen: list[int] = []

    def batches() -> Iterator[Any]:
        for seed in range(12):
            read.append(seed)
            yield batch(seed, 3)

    def sink(name: str, solution: Any) -> None:
        time.sleep(0.02)
        seen.append(len(read) - len(seen))

    lfom.solve_stream(METHOD, batches(), sink)
    assert len(seen) == 12
    assert max(seen) <= 2 * AHEAD + 3  # two queues, and one in the hands of each stage


def test_reading_goes_on_while_something_is_written() -> None:
    third, waited = threading.Event(), []

    def batches() -> Iterator[Any]:
        for seed in range(4):
            if seed == 2:
                third.set()
            yield batch(seed, 3)

    lfom.solve_stream(METHOD, batches(), lambda name, solution: waited.append(third.wait(30)))
    assert (
        waited == [True] * 4
    )  # one after the other, the third would not be read before the first was written


def test_an_iterator_ahead_stops_when_nobody_reads() -> None:
    made, closed = [], threading.Event()

    def numbers() -> Iterator[int]:
        try:
            for n in range(1_000):
                made.append(n)
                yield n
        finally:
            closed.set()

    some = ahead(numbers(), 2)
    assert [next(some), next(some)] == [0, 1]
    some.close()  # type: ignore[attr-defined]
    assert closed.wait(5)
    assert len(made) <= 6


def test_an_error_of_the_source_comes_after_what_was_read() -> None:
    def batches() -> Iterator[Any]:
        yield batch(0)
        raise RuntimeError("the tape tore")

    values: list[Any] = []
    with pytest.raises(RuntimeError, match="the tape tore"):
        lfom.solve_stream(METHOD, batches(), lambda name, solution: values.append(name))
    assert values == ["00000000"]


# What is finished


def test_what_is_finished_is_not_done_again(shards: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    lfom.solve_stream(METHOD, shards, out)
    before = {path.name: path.stat().st_mtime_ns for path in out.glob("*.npz")}
    (out / "shard2.npz").unlink()
    np.savez(shards / "shard9.npz", **batch(9))
    summary = lfom.solve_stream(METHOD, shards, out)
    assert (summary.made, summary.kept, summary.problems) == (2, 3, 5 * COUNT)
    assert summary.statuses.total() == 5 * COUNT
    after = {path.name: path.stat().st_mtime_ns for path in out.glob("*.npz")}
    assert [name for name in before if before[name] != after[name]] == ["shard2.npz"]


def test_other_problems_under_the_same_name_are_refused(shards: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    lfom.solve_stream(METHOD, shards, out)
    np.savez(shards / "shard1.npz", **batch(77))
    summary = lfom.solve_stream(METHOD, shards, out)
    assert (summary.kept, list(summary.failed)) == (3, ["shard1"])
    assert "other problems" in summary.failed["shard1"]
    np.testing.assert_array_equal(found(out / "shard1.npz")["w"], expected(batch(1)))
    assert lfom.solve_stream(METHOD, shards, out, force=True).made == 1
    np.testing.assert_array_equal(found(out / "shard1.npz")["w"], expected(batch(77)))


def test_other_results_are_refused(shards: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    lfom.solve_stream(METHOD, shards, out)
    with pytest.raises(lfom.InputError, match="steps None, and steps 3 was asked for"):
        lfom.solve_stream(METHOD, shards, out, steps=3)
    with pytest.raises(lfom.InputError, match="another method"):
        lfom.solve_stream(lfom.gradient_descent(0.1, steps=4), shards, out)
    assert lfom.solve_stream(METHOD, shards / "shard0.npz", out, steps=3, force=True).made == 1
    assert [path.name for path in out.glob("*.npz")] == ["shard0.npz"]  # the others belonged to other options
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("x")
    with pytest.raises(lfom.InputError, match="something else"):
        lfom.solve_stream(METHOD, shards, mine, force=True)
    with pytest.raises(lfom.InputError, match="the folder of the problems"):
        lfom.solve_stream(METHOD, shards, shards)
    (out / MARK).write_text("{")
    with pytest.raises(lfom.InputError, match="damaged"):
        lfom.solve_stream(METHOD, shards, out)


def test_a_generator_goes_on_where_it_was(tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = lfom.solve_stream(METHOD, (batch(seed) for seed in range(2)), out)
    again = lfom.solve_stream(METHOD, (batch(seed) for seed in range(4)), out)
    assert (first.made, again.made, again.kept) == (2, 2, 2)


# What cannot be solved


def test_bad_shards_are_named_and_all_others_finished(shards: Path, tmp_path: Path) -> None:
    whole = (shards / "shard1.npz").read_bytes()
    (shards / "shard1.npz").write_bytes(whole[: len(whole) // 2])
    (shards / "shard2.npz").write_bytes(b"")
    np.savez(shards / "wide.npz", **batch(5, d=UNKNOWNS + 1))
    A = np.tile(np.eye(UNKNOWNS, dtype=np.float32), (COUNT, 1, 1))
    np.savez(shards / "systems.npz", A=A, b=A[:, 0])
    np.savez(shards / "words.npz", X=np.array(["a"]), y=np.array(["b"]))
    doubled: Any = {name: array.astype(np.float64) for name, array in batch(6).items()}
    np.savez(shards / "double.npz", **doubled)
    summary = lfom.solve_stream(METHOD, shards, tmp_path / "out")
    assert sorted(summary.failed) == ["double", "shard1", "shard2", "systems", "wide", "words"]
    assert "cannot be read" in summary.failed["shard1"]
    assert "(6,) unknowns" in summary.failed["wide"]
    assert "linear systems" in summary.failed["systems"]
    assert not summary.ok
    assert sorted(path.stem for path in (tmp_path / "out").glob("*.npz")) == ["shard0", "shard3"]


def test_nan_is_never_silent(tmp_path: Path) -> None:
    bad = batch(0)
    bad["y"][3, 2] = np.nan
    summary = lfom.solve_stream(METHOD, [bad, batch(1)], tmp_path / "out")
    assert summary.failed_problems == 1
    assert not summary.ok
    again = lfom.solve_stream(METHOD, [bad, batch(1)], tmp_path / "out")
    assert (again.kept, again.failed_problems, again.ok) == (2, 1, False)


def test_trees_go_to_no_file(tmp_path: Path) -> None:
    def loss(w: Any, data: Any) -> Any:
        return jnp.mean((data @ w["slope"] - 1) ** 2)

    problems = lfom.ConvexLosses(loss, np.ones((3, 5, 2), np.float32), {"slope": np.zeros(2)})
    method = lfom.gradient_descent(0.1, steps=2)
    summary = lfom.solve_stream(method, [problems], tmp_path / "out")
    assert "are trees" in summary.failed["00000000"]
    (solution,) = lfom.solve_stream(method, [problems])
    assert solution.value["slope"].shape == (3, 2)


def test_without_a_sink_a_bad_piece_is_raised() -> None:
    solutions = lfom.solve_stream(METHOD, [batch(0), {"X": np.ones(3)}])
    assert next(solutions).value.shape == (COUNT, UNKNOWNS)
    with pytest.raises(lfom.InputError, match="piece 00000001"):
        next(solutions)


@pytest.mark.parametrize(
    ("arguments", "options", "text"),
    [
        (("x", "out"), {}, "no file is named by x"),
        (([], "out"), {}, "holds nothing"),
        (({"X": np.ones((3, 2, 1)), "y": np.ones((4, 2))}, "out"), {}, "leading axis"),
        (([batch(0)], 7), {}, "sink is a int"),
        (([batch(0)], "out"), {"steps": 0}, "steps is 0"),
        (([batch(0)], "out"), {"tolerance": -1.0}, "tolerance is"),
        (([batch(0)], "out"), {"batch": 0}, "batch is 0"),
        (([batch(0)], "out"), {"cluster": "local:2"}, "a cluster solves .npz files"),
        (([batch(0)],), {"cluster": "local:2"}, "needs a sink"),
    ],
)
def test_arguments_that_are_refused(
    arguments: Any, options: Any, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(lfom.InputError, match=text):
        lfom.solve_stream(METHOD, *arguments, **options)
    with pytest.raises(lfom.InputError, match="method is a str"):
        lfom.solve_stream("cg", [batch(0)])  # type: ignore[arg-type]


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(tmp_path / name, 1)
    with pytest.raises(lfom.InputError, match="the same name"):
        lfom.solve_stream(METHOD, str(tmp_path / "*" / "*.npz"), tmp_path / "out")


def test_a_disk_that_is_full_is_said(shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(arrays: Any) -> bytes:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("lfom.scale.sinks.as_npz", full)
    summary = lfom.solve_stream(METHOD, shards, tmp_path / "out")
    assert len(summary.failed) == 4
    assert "No space left" in summary.failed["shard0"]
    assert not list((tmp_path / "out").glob("*.npz"))


# Zarr


def test_zarr_arrays_to_zarr_arrays(tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr", reason="the extra `cluster` is not installed")
    whole = batch(0, 95)
    group = zarr.open_group(tmp_path / "problems.zarr", mode="w")
    for name, array in whole.items():
        group.create_array(name, data=array, chunks=(20, *array.shape[1:]))
    out = tmp_path / "out.zarr"
    summary = lfom.solve_stream(METHOD, group, out)
    assert (summary.made, summary.problems) == (5, 95)
    solution = zarr.open_group(out, mode="r")
    np.testing.assert_allclose(solution["w"][:], expected(whole), rtol=1e-4, atol=1e-5)
    assert solution["status"].shape == (95,)
    again = lfom.solve_stream(METHOD, tmp_path / "problems.zarr", out)
    assert (again.made, again.kept) == (0, 5)
    group["y"][50] = 0.0
    changed = lfom.solve_stream(METHOD, group, out)
    assert list(changed.failed) == ["40"]
    assert lfom.solve_stream(METHOD, group, out, force=True).made == 1
    assert not zarr.open_group(out, mode="r")["w"][50].any()
    with pytest.raises(lfom.InputError, match="steps 2"):
        lfom.solve_stream(METHOD, group, out, steps=2)


def test_a_generator_to_a_zarr_group(tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr", reason="the extra `cluster` is not installed")
    group = zarr.open_group(tmp_path / "out.zarr", mode="w")
    lfom.solve_stream(METHOD, (batch(seed) for seed in range(3)), group)
    np.testing.assert_array_equal(group["w"][COUNT : 2 * COUNT], expected(batch(1)))
    other = zarr.open_group(tmp_path / "other.zarr", mode="w")
    other.create_array("mine", data=np.ones(3))
    with pytest.raises(lfom.InputError, match="something else"):
        lfom.solve_stream(METHOD, [batch(0)], other)


def test_without_zarr_a_sentence_says_what_to_install(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "zarr", None)
    with pytest.raises(lfom.InputError, match=r"pip install 'lfom\[cluster\]'"):
        lfom.solve_stream(METHOD, shards, tmp_path / "out.zarr")


# The command


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["solve", *map(str, arguments)])


def test_the_command(shards: Path, tmp_path: Path) -> None:
    method, out = tmp_path / "method.safetensors", tmp_path / "out"
    METHOD.save(method)
    result = run(method, shards / "*.npz", "--out", out)
    assert result.exit_code == 0, result.output
    assert "4 shards solved, 0 failed" in result.output
    (shards / "shard3.npz").write_bytes(b"PK")
    result = run(method, *sorted(shards.iterdir()), "--out", tmp_path / "more", "--json")
    told = json.loads(result.stdout)
    assert result.exit_code == 1
    assert [one["shard"] for one in told["failed"]] == ["shard3"]
    assert told["made"] == 3
    np.testing.assert_array_equal(
        found(tmp_path / "more" / "shard1.npz")["w"], found(out / "shard1.npz")["w"]
    )


def test_lines_say_how_far_it_is() -> None:
    now = [0.0]
    pace = Pace(lambda: now[0])
    now[0] = 8.0  # until workers have started and the first shard is done
    assert pace.so_far(Summary(kept=5), 12) == (0.0, "5 of 12 shards, 0 problems")
    assert pace.so_far(Summary(made=1, kept=5, solved_now=100), 12)[0] == 0.0
    now[0] = 10.0
    summary = Summary(made=2, kept=5, solved_now=200, failed={"a": "damaged"})
    assert pace.so_far(summary, 12) == (10 / 14, "8 of 12 shards, 1 failed, 200 problems, 50 per second")


def test_ctrl_c_loses_nothing_that_is_finished(tmp_path: Path) -> None:
    shards, out, method = tmp_path / "problems", tmp_path / "out", tmp_path / "method.safetensors"
    METHOD.save(method)
    shards.mkdir()
    for seed in range(60):
        np.savez(shards / f"{seed:03d}.npz", **batch(seed, 2_000))
    command = [sys.executable, "-m", "lfom", "solve", str(method), str(shards), "--out", str(out)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    end = time.monotonic() + 60
    while len(list(out.glob("*.npz"))) < 3 and time.monotonic() < end:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    finished = {path.name: path.stat().st_mtime_ns for path in out.glob("*.npz")}
    assert len(finished) >= 3
    for name in finished:
        npz.member(out / name, "w")
    if process.returncode:  # it may have been at its end
        assert process.returncode == 130
        assert "Go on with the same command" in " ".join(said.split())
    summary = lfom.solve_stream(METHOD, shards, out)
    assert (summary.kept, summary.problems) == (len(finished), 60 * 2_000)
    assert all(os.stat(out / name).st_mtime_ns == when for name, when in finished.items())
