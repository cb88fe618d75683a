"""The command line as a whole: help with examples, versions, completion, plain lines when piped, Ctrl-C at any moment."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import lfom
from lfom import started as begin
from lfom import verify
from lfom.cli import EXAMPLES
from lfom.commands import together
from lfom.commands.evaluate import numbers_of
from lfom.commands.telling import PlainLines
from tests.bad_calls.cli import run

SOURCE = Path(lfom.__file__).parents[1]


def started(*words: str) -> subprocess.Popen:
    environment = os.environ | {"PYTHONPATH": str(SOURCE)}
    command = [sys.executable, "-m", "lfom", *words]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


@pytest.mark.parametrize("seconds", [0.3, 1.0, 3.0, 6.0])
def test_ctrl_c_in_the_first_seconds_ends_without_a_traceback(seconds: float) -> None:
    """Before Python has begun to import lfom nobody can be asked; 0.3 s is later than that."""
    process = started("verify")
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert "Traceback" not in errors
    assert process.returncode == 130


def test_a_number_of_threads_that_somebody_chose_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["lfom", "verify"])
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "3")
    monkeypatch.setenv("MKL_NUM_THREADS", "")
    monkeypatch.delenv("MKL_NUM_THREADS")
    before = signal.getsignal(signal.SIGINT)
    try:
        begin.end_quietly_while_importing()
    finally:
        signal.signal(signal.SIGINT, before)
    assert (os.environ["OPENBLAS_NUM_THREADS"], os.environ["MKL_NUM_THREADS"]) == ("3", "1")


def test_every_help_has_examples_of_this_command() -> None:
    assert len(EXAMPLES) == 9
    for name, examples in EXAMPLES.items():
        status, out, _, _ = run([name, "--help"])
        shown = " ".join(out.split())
        assert status == 0
        for example in examples:
            assert example.startswith(f"lfom {name}")
            assert example in shown


def test_completion_can_be_installed() -> None:
    _, out, _, _ = run(["--help"])
    assert "--install-completion" in out
    assert "--version" in out


def test_piped_work_is_told_in_plain_lines() -> None:
    status, out, errors, _ = run(["verify", "--only", "gates at a corner"])
    assert status == 0
    assert "holds" in out
    lines = errors.splitlines()
    assert lines[0].endswith("] checking 1 statement in float64")
    assert "1 of 1 checked: " in lines[-1]
    assert all(line.startswith("[") for line in lines)
    assert "\x1b" not in errors


def test_a_long_step_is_told_again(capsys: pytest.CaptureFixture) -> None:
    with PlainLines("first", every=0.05) as say:
        say("second")
        say("second")
        time.sleep(0.2)
    told = [line.partition("] ")[2] for line in capsys.readouterr().err.splitlines()]
    assert told[:2] == ["first", "second"]
    assert len(told) >= 4
    assert set(told[1:]) == {"second"}


def test_without_steps_only_every_so_often(capsys: pytest.CaptureFixture) -> None:
    with PlainLines("first", steps=False, every=60) as say:
        say("second")
    assert capsys.readouterr().err == ""


def test_inspect_shows_the_smallest_loss_first(tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(60, 20, 4)).astype(np.float32) * np.asarray(
        [1, 0.5, 0.2, 0.1], np.float32
    )
    problems, names = lfom.LeastSquaresProblems(X, X.sum(axis=2)), ["scalar", "diagonal", "conjugate:full"]
    method = lfom.learn(problems, 2, names, iterations=0, progress=False)
    compared = method.record.compared
    status, out, _, _ = run(["inspect", _saved(method, tmp_path), "--no-plot"])
    assert status == 0
    best = sorted(compared, key=compared.get)
    assert method.structure.name == best[0]
    shown = [line for line in out.splitlines() if any(f" {name} " in line for name in best)]
    order = [next(name for name in best if f" {name} " in line) for line in shown if "│" in line]
    assert order == best[: len(order)]
    assert order[0] == method.structure.name


def _saved(method: lfom.Method, folder: Path) -> str:
    path = folder / "method.safetensors"
    method.save(path)
    return str(path)


def test_verify_fails_where_one_statement_does(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = [verify.Check(name, 1e-12, 1e-10, name == "good") for name in ("good", "bad")]
    monkeypatch.setattr(verify, "statements", lambda only: dict.fromkeys(("good", "bad")))
    for found, status in ((checks[:1], 0), (checks, 1)):
        monkeypatch.setattr(verify, "verify", lambda seed, only, found=found: iter(found))
        assert run(["verify", "--json"])[0] == status


def test_numbers_of_examples_are_read() -> None:
    assert list(numbers_of("1:4")) == [1, 2, 3, 4]
    assert list(numbers_of("1,5,20")) == [1, 5, 20]


def test_defaults_are_no_markup_in_a_help() -> None:
    assert "[default: all]" in " ".join(run(["train", "--help"])[1].replace("│", " ").split())


def test_finished_experiments_travel_with_their_folders_and_nothing_else_does(tmp_path: Path) -> None:
    sent, got = tmp_path / "sent", tmp_path / "got"
    for place in ("asked", "seeds/1/asked", "other"):
        (sent / place).mkdir(parents=True)
        (sent / place / "meta.json").write_text("{}")
        (sent / place / "rows.csv").write_text(place)
    together._unpack(together._packed(sent, {"asked", "other"}), got, {"asked"})
    assert sorted(file.relative_to(got).as_posix() for file in got.rglob("*.csv")) == [
        "asked/rows.csv",
        "seeds/1/asked/rows.csv",
    ]
    assert (got / "seeds/1/asked/rows.csv").read_text() == "seeds/1/asked"
