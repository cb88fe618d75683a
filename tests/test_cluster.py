"""Shards, experiments and Dask arrays on the workers of a cluster: the same answers, whoever dies."""

import functools
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lfom
from lfom.scale import cluster as clusters
from lfom.scale.cluster import connected, spread
from lfom.scale.sinks import METHOD as METHOD_FILE
from tests.test_streams import METHOD, batch, expected, found, run, write

pytest.importorskip("distributed", reason="the extra `cluster` is not installed")


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    """Two workers of one core; tests reach them by the address of their scheduler, as users do."""
    with connected("local:2") as client:
        yield client


def address(client: Any) -> str:
    return client.scheduler.address


def workers(client: Any) -> list[int]:
    return list(client.run(os.getpid).values())


def same(out: Path, count: int, size: int) -> None:
    assert sorted(path.stem for path in out.glob("*.npz")) == sorted(f"shard{k}" for k in range(count))
    for seed in range(count):
        solution = found(out / f"shard{seed}.npz")
        np.testing.assert_allclose(solution["w"], expected(batch(seed, size)), rtol=1e-4, atol=1e-5)
    assert not list(out.glob("*.partial"))


# Shards


def test_shards_are_solved_by_workers(client: Any, tmp_path: Path) -> None:
    shards, out = write(tmp_path / "problems"), tmp_path / "out"
    (shards / "bad.npz").write_bytes(b"PK")
    np.savez(shards / "wide.npz", **batch(7, d=9))
    summary = lfom.solve_stream(METHOD, shards, out, cluster=address(client))
    assert (summary.made, sorted(summary.failed)) == (4, ["bad", "wide"])
    for seed in range(4):
        np.testing.assert_allclose(
            found(out / f"shard{seed}.npz")["w"], expected(batch(seed)), rtol=1e-4, atol=1e-5
        )
    assert lfom.load(out / METHOD_FILE).depth == METHOD.depth
    again = lfom.solve_stream(
        METHOD, shards, out
    )  # without a cluster it goes on from there, and the other way
    assert (again.made, again.kept) == (0, 4)
    with pytest.raises(lfom.InputError, match="steps 2"):
        lfom.solve_stream(METHOD, shards, out, steps=2, cluster=address(client))


def test_the_command_on_a_cluster(client: Any, tmp_path: Path) -> None:
    METHOD.save(tmp_path / "method.safetensors")
    shards, out = write(tmp_path / "problems", 2), tmp_path / "out"
    (shards / "bad.npz").write_bytes(b"PK")
    result = run(tmp_path / "method.safetensors", shards, "--out", out, "--cluster", address(client))
    assert result.exit_code == 1
    assert "2 shards solved, 1 failed" in result.output
    assert "bad failed" in result.output
    np.testing.assert_allclose(found(out / "shard1.npz")["w"], expected(batch(1)), rtol=1e-4, atol=1e-5)


def test_a_killed_worker_costs_nothing(client: Any, tmp_path: Path) -> None:
    shards, out, size, count = tmp_path / "problems", tmp_path / "out", 500, 12
    shards.mkdir()
    for seed in range(count):
        np.savez(shards / f"shard{seed}.npz", **batch(seed, size))
    victims = workers(client)[:1]

    def progress(summary: Any, total: Any) -> None:
        assert total == count
        if summary.made >= 2 and victims:
            os.kill(victims.pop(), signal.SIGKILL)

    summary = lfom.solve_stream(METHOD, shards, out, cluster=address(client), progress=progress)
    assert not victims
    assert summary.ok
    assert (summary.made + summary.kept, summary.problems) == (count, count * size)
    same(out, count, size)


def job(kind: str, folder: str) -> str:
    """A job that leaves a mark whenever it begins."""
    with (Path(folder) / kind).open("a") as file:
        file.write("x")
    if kind == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "raises":
        raise OSError("no such tape")
    time.sleep(0.05)
    return kind.upper()


def test_what_fails_three_times_is_given_up_alone(client: Any, tmp_path: Path) -> None:
    kinds = ["a", "dies", "b", "raises", "c", "d", "e"]
    ended = {
        name: (result, why)
        for name, result, why in spread(client, job, [(kind, (kind, str(tmp_path))) for kind in kinds])
    }
    assert sorted(ended) == sorted(kinds)
    assert [ended[name] for name in "abcde"] == [(name.upper(), None) for name in "abcde"]
    assert ended["raises"] == (None, "failed 3 times: OSError: no such tape")
    assert "killed" in str(ended["dies"][1])
    assert len((tmp_path / "dies").read_text()) == len((tmp_path / "raises").read_text()) == 3


def test_workers_on_this_machine_have_one_core(client: Any) -> None:
    for environment in client.run(lambda: dict(os.environ)).values():
        assert environment["NPROC"] == "1"
        assert clusters.FLAG in environment["XLA_FLAGS"]


def test_workers_of_another_version_are_named(
    client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lfom.scale.shards.own_version", lambda: "99.0")
    summary = lfom.solve_stream(
        METHOD, write(tmp_path / "problems", 2), tmp_path / "out", cluster=address(client)
    )
    assert sorted(summary.failed) == ["shard0", "shard1"]
    assert "99.0 asks it" in summary.failed["shard0"]


def test_classes_of_ones_own_travel_as_their_file(client: Any, tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(
        "import lfom\nclass Halved(lfom.preconditioners.Identity):\n    pass\n"
        "method = lfom.Method(lfom.readers.Gradient(Halved()), lfom.conjugate_gradient(4).memory, 4)\n"
    )
    from lfom.core.user_code import module_of

    method = module_of(mine).method
    shards = write(tmp_path / "problems", 2)
    summary = lfom.solve_stream(method, shards, tmp_path / "out", cluster=address(client), types=[mine])
    assert summary.failed == {}
    without = lfom.solve_stream(method, shards, tmp_path / "more", cluster=address(client))
    assert "Halved" in without.failed["shard0"]
    with pytest.raises(lfom.InputError, match="Pass their paths"):
        lfom.solve_stream(method, shards, tmp_path / "last", cluster=address(client), types=[int])


# What is not there


def unused() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def test_a_scheduler_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "CONNECTING", 0.5)
    begun = time.monotonic()
    for place in (f"tcp://127.0.0.1:{unused()}", "no-such-host.invalid:8786", "nonsense://x"):
        with pytest.raises(lfom.InputError, match="no Dask scheduler answers"):
            lfom.solve_stream(METHOD, write(tmp_path / str(hash(place)), 1), tmp_path / "out", cluster=place)
    assert time.monotonic() - begun < 20


def test_a_scheduler_without_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    import distributed

    monkeypatch.setattr(clusters, "STARTING", 0.3)
    with (
        distributed.LocalCluster(n_workers=0, dashboard_address="127.0.0.1:0") as empty,
        pytest.raises(lfom.InputError, match="has no workers"),
        connected(empty.scheduler_address),
    ):
        pass


def test_workers_that_leave_and_do_not_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    import distributed

    monkeypatch.setattr(clusters, "PATIENCE", 0.5)
    monkeypatch.setattr(clusters, "LOOK", 0.2)
    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0"
        ) as short,
        distributed.Client(short, set_as_default=False) as client,
    ):
        ended = spread(client, time.sleep, [("one", (0.01,)), ("long", (0.5,)), ("never", (0.5,))])
        assert next(ended)[0] == "one"
        short.scale(0)
        with pytest.raises(lfom.InputError, match="no worker"):
            list(ended)


def test_a_scheduler_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    import distributed

    monkeypatch.setattr(clusters, "LOOK", 0.2)
    short = distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0"
    )
    with short, distributed.Client(short.scheduler_address, set_as_default=False) as client:
        ended = spread(client, time.sleep, [("one", (0.01,)), ("long", (0.5,)), ("never", (0.5,))])
        assert next(ended)[0] == "one"
        short.close()
        with pytest.raises(lfom.InputError, match="scheduler is gone"):
            list(ended)


@pytest.mark.parametrize("cluster", ["local", "local:0", "local:two", "local:-1", ""])
def test_names_of_clusters_that_are_refused(cluster: str, tmp_path: Path) -> None:
    with pytest.raises(lfom.InputError, match="cluster is"):
        lfom.solve_stream(METHOD, write(tmp_path / "problems", 1), tmp_path / "out", cluster=cluster)


def test_without_dask_a_sentence_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(lfom.InputError, match=r"pip install 'lfom\[cluster\]'"):
        lfom.solve_stream(METHOD, write(tmp_path / "problems", 1), tmp_path / "out", cluster="local:2")


# Dask arrays


@functools.cache
def arrays() -> tuple[Any, Any, Any]:
    da = pytest.importorskip("dask.array")
    data = batch(3, 70)
    return da, data["X"], data["y"]


def test_map_blocks_of_regressions() -> None:
    da, X, y = arrays()
    blocks = METHOD.map_blocks(da.from_array(y, (35, 5)), X=da.from_array(X, (70, 12, 5)))
    value, status = da.compute(*blocks, scheduler="sync")
    np.testing.assert_allclose(value, expected({"X": X, "y": y}), rtol=1e-4, atol=1e-5)
    assert (status == 1).all()
    assert blocks.value.shape == (70, 5)


def test_map_blocks_with_one_matrix_for_all() -> None:
    da, X, y = arrays()
    A = (X[0].T @ X[0] / 12).astype(np.float32)
    b = y[:, :5]
    value, status = da.compute(*METHOD.map_blocks(da.from_array(b, (35, -1)), A=A, steps=5), scheduler="sync")
    np.testing.assert_allclose(value @ A, b, atol=2e-3)
    assert (status >= 0).all()
    one = METHOD.map_blocks(da.from_array(y, (35, -1)), X=X[0], ridge=0.1, tolerance=1e-4)
    w = one.value.compute(scheduler="sync")
    gram = X[0].T @ X[0] / 12 + 0.1 * np.eye(5)
    np.testing.assert_allclose(w, np.linalg.solve(gram, (y @ X[0] / 12).T).T, atol=2e-3)


def test_map_blocks_on_a_cluster(client: Any) -> None:
    da, X, y = arrays()
    blocks = METHOD.map_blocks(da.from_array(y, (35, -1)), X=da.from_array(X, (35, -1, -1)))
    value = client.compute(blocks.value).result()
    np.testing.assert_allclose(value, expected({"X": X, "y": y}), rtol=1e-4, atol=1e-5)


def test_map_blocks_refuses() -> None:
    da, X, y = arrays()
    sides = da.from_array(y, (35, -1))
    with pytest.raises(lfom.InputError, match="takes the right-hand sides"):
        METHOD.map_blocks(sides)
    with pytest.raises(lfom.InputError, match="pass a Dask array"):
        METHOD.map_blocks(y, X=X[0])
    with pytest.raises(lfom.InputError, match="has shape"):
        METHOD.map_blocks(sides, A=X[0])
    with pytest.raises(lfom.InputError, match="is float64"):
        METHOD.map_blocks(sides.astype(np.float64), X=X[0])
    with pytest.raises(lfom.InputError, match="unknowns of shape"):
        lfom.preconditioned_gradient_descent(np.eye(4), 0.1, 3).map_blocks(sides, X=X[0])
    with pytest.raises(lfom.InputError, match="has shape"):
        METHOD.map_blocks(sides, X=da.from_array(X[:3]))


# Experiments

EXPERIMENT = """
import lfom

class {name}(lfom.Experiment):
    name = "{name}"

    def run(self, bench):
        if self.name == "Bad":
            raise ValueError("no such prompt")
        score = bench.scores({{"CGD": lfom.conjugate_gradient(2)}}, bench.data(), prompts=2_000)["CGD"]
        rows = [lfom.Row("CGD", "none", 2, float(score.log_loss), 0)]
        return lfom.Outcome(rows, [lfom.Claim("c", "It ends.", "", "it ends", "holds", "")])
"""


def test_experiments_are_spread_with_the_same_results(client: Any, tmp_path: Path) -> None:
    files = []
    for name in ("One", "Two", "Bad"):
        files.append(tmp_path / f"{name}.py")
        files[-1].write_text(EXPERIMENT.format(name=name))
    here = lfom.reproduce(files, tmp_path / "here")
    there = lfom.reproduce(files, tmp_path / "there", cluster=address(client))
    assert [(one.name, one.status) for one in there] == [("One", "made"), ("Two", "made"), ("Bad", "failed")]
    assert [(one.name, one.status) for one in here] == [(one.name, one.status) for one in there]
    assert "ValueError: no such prompt" in there[2].message
    for name in ("One", "Two"):
        texts = [(tmp_path / side / name / "curves.csv").read_text() for side in ("here", "there")]
        assert texts[0] == texts[1]


def test_experiments_without_a_file_do_not_travel(tmp_path: Path) -> None:
    class Here(lfom.Experiment):
        name = "here"

    with pytest.raises(lfom.InputError, match="write it to a Python file"):
        lfom.reproduce(Here(), tmp_path / "out", cluster="local:1")
