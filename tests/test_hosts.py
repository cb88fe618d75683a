"""Processes that work together: the bits of one, a death that is told, and what is asked of the command line."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import lfom
from lfom.commands import hosts as command
from lfom.core import hosts
from lfom.core.checks import InputError

TRAIN = ["train", "--depths", "1,2", "--runs", "2", "--seed", "3", "--prompts", "20000"]


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return held.getsockname()[1]


@contextlib.contextmanager
def started(folder: Path, words: list[str], count: int = 1) -> Iterator[list[subprocess.Popen[str]]]:
    """The command, on so many processes; what is left of them at the end is killed."""
    source = str(Path(lfom.__file__).parents[1])
    given = {**os.environ, "PYTHONPATH": os.pathsep.join([source, os.environ.get("PYTHONPATH", "")])}
    address, begun = f"127.0.0.1:{free_port()}", []
    for index in range(count):
        own = (
            ["--coordinator", address, "--processes", str(count), "--process", str(index)]
            if count > 1
            else []
        )
        full = [sys.executable, "-m", "lfom", *words, *own]
        pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        begun.append(subprocess.Popen(full, cwd=folder, env=given, start_new_session=True, **pipes))
    try:
        yield begun
    finally:
        for one in begun:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(one.pid, signal.SIGKILL)
            one.communicate()


def finished(folder: Path, words: list[str], count: int = 1) -> list[tuple[int, str, str]]:
    """Exit status, output and errors of each."""
    with started(folder, words, count) as begun:
        texts = [one.communicate(timeout=280) for one in begun]
        return [(one.returncode, *text) for one, text in zip(begun, texts, strict=True)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("alone")
    status, _, errors = finished(folder, [*TRAIN, "--out", "model.safetensors"])[0]
    assert status == 0, errors
    return folder / "model.safetensors"


@pytest.mark.parametrize("count", [2, 3])
def test_several_processes_train_what_one_does(alone: Path, tmp_path: Path, count: int) -> None:
    done = finished(tmp_path, [*TRAIN, "--out", "model.safetensors"], count)
    assert [status for status, _, _ in done] == [0] * count, done
    assert (tmp_path / "model.safetensors").read_bytes() == alone.read_bytes()
    assert "Saved in" not in done[1][2]
    assert [file.name for file in tmp_path.iterdir()] == ["model.safetensors"]


def test_a_process_that_is_killed_ends_the_other_and_one_alone_goes_on(alone: Path, tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    with started(tmp_path, [*TRAIN, "--out", file.name], 2) as both:
        until = time.monotonic() + 200
        while not file.exists() and time.monotonic() < until:
            time.sleep(0.05)
        os.killpg(both[1].pid, signal.SIGKILL)
        _, errors = both[0].communicate(timeout=120)
    if both[0].returncode == 0:  # it was done already
        assert file.read_bytes() == alone.read_bytes()
        return
    assert both[0].returncode == 1
    assert "was ended by" in errors
    assert "--resume" in errors
    status, _, errors = finished(tmp_path, ["train", "--resume", file.name])[0]
    assert status == 0, errors
    assert file.read_bytes() == alone.read_bytes()


OWN = """
import lfom

def experiment(called, start):
    class Own(lfom.Experiment):
        name, title = called, f"What halves from {start}"

        def run(self, bench):
            return lfom.Outcome([lfom.Row(called, "none", x, start * 2.0**-x) for x in range(4)], [])

    return Own

First, Second, Third = experiment("first", 1.0), experiment("second", 2.0), experiment("third", 3.0)
"""


def test_processes_share_experiments_and_the_first_has_them_all(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    words = ["reproduce", "own.py", "--out"]
    assert finished(tmp_path, [*words, "alone"])[0][0] == 0
    done = finished(tmp_path, [*words, "together"], 2)
    assert [status for status, _, _ in done] == [0, 0], done
    for name in ("first", "second", "third"):
        for file in ("curves.csv", "claims.json"):
            here, there = (tmp_path / folder / name / file for folder in ("alone", "together"))
            assert here.read_bytes() == there.read_bytes()
    assert (tmp_path / "together" / "report.html").exists()


def test_processes_with_different_arguments_say_so(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    own = ["--coordinator", address, "--processes", "2", "--process"]
    with (
        started(tmp_path, ["train", "--depths", "1", *own, "0"]) as first,
        started(tmp_path, ["train", "--depths", "2", *own, "1"]) as second,
    ):
        found = [one[0].communicate(timeout=120)[1] for one in (first, second)]
        assert [one[0].returncode for one in (first, second)] == [2, 2]
    assert all("processes were started differently: command is" in " ".join(text.split()) for text in found)
    assert not list(tmp_path.iterdir())


def test_an_address_that_nobody_answers_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(*_: Any, **__: Any) -> None:
        raise RuntimeError("DEADLINE_EXCEEDED: nobody")

    monkeypatch.setattr(jax.distributed, "initialize", nobody)
    monkeypatch.setenv(command.WATCHED, str(os.getppid()))
    monkeypatch.setattr(command, "_end_with_parent", lambda parent: None)
    with pytest.raises(InputError, match=r"did not find each other at 10\.0\.0\.1:6060 within 60 seconds"):
        command.placed(None, False, "10.0.0.1:6060", 2, 1)
    for name in command.JOBS:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InputError, match="--hosts found no job of Slurm"):
        command.placed(None, True, None, None, None)
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    with pytest.raises(InputError, match="the processes of this job did not find each other"):
        command.placed(None, True, None, None, None)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("host", 2, 0), "--coordinator is 'host'"),
        (("host:x", 2, 0), "--coordinator is 'host:x'"),
        (("host:99999", 2, 0), "--coordinator is 'host:99999'"),
        (("host:1", 0, 0), "--processes is 0"),
        (("host:1", 2, 2), "--process is 2: with --processes 2 pass 0 to 1"),
        (("host:1", 2, -1), "--process is -1"),
        (("host:1", None, 0), "--processes is missing"),
        ((None, 2, None), "--coordinator and --process are missing"),
    ],
)
def test_options_that_do_not_go_together_are_refused(given: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        command.placed(None, False, *given)


def test_more_devices_than_there_are_are_refused_by_the_command(tmp_path: Path) -> None:
    status, _, errors = finished(tmp_path, ["train", "--devices", "99"])[0]
    assert status == 2
    assert "devices is 99" in errors


def test_what_each_process_has_of_its_own_does_not_count() -> None:
    first = command._without_own(["train", "--process", "0", "--depths", "1"])
    assert first == command._without_own(["train", "--process=1", "--depths", "1"]) == "train --depths 1"


@pytest.mark.parametrize("count", [1, 2, 3])
def test_results_come_in_the_order_of_pieces(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process in turn, with the exchange replaced by what the others would have sent."""
    items = list(range(5))

    def work(item: int) -> Any:
        return {"a": np.arange(3) + item, "none": None}

    shares = [hosts._packed([work(i) for i in items[rank::count]]) for rank in range(count)]
    monkeypatch.setattr(hosts, "gathered", lambda content: shares)
    for rank in range(count):
        monkeypatch.setattr(hosts, "_place", [hosts.Place(rank, count)])
        found = list(hosts.everywhere(work, items))
        assert [one["a"].tolist() for one in found] == [work(i)["a"].tolist() for i in items]
        assert all(one["none"] is None for one in found)


def test_what_processes_do_not_agree_on_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = [{"seed": 1, "same": 2}, {"seed": 3, "same": 2, "more": 4}]
    monkeypatch.setattr(hosts, "gathered", lambda content: [json.dumps(one).encode() for one in facts])
    assert hosts.differences(facts[0]) == [
        "more is None in process 0 and 4 in process 1",
        "seed is 1 in process 0 and 3 in process 1",
    ]


def test_only_the_first_process_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    method = lfom.gradient_descent(0.1, steps=2)
    monkeypatch.setattr(hosts, "_place", [hosts.Place(1, 2)])
    lfom.save(tmp_path / "a.safetensors", method)
    assert not (tmp_path / "a.safetensors").exists()
    monkeypatch.setattr(hosts, "_place", [hosts.Place(0, 2)])
    lfom.save(tmp_path / "a.safetensors", method)
    assert (tmp_path / "a.safetensors").exists()


def test_importing_does_not_wake_jax() -> None:
    """Processes can only join before anything is computed."""
    program = (
        "import lfom, lfom.cli; from jax._src import xla_bridge as b; raise SystemExit(bool(b._backends))"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
