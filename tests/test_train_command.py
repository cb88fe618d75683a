"""lfom train and lfom evaluate as a user runs them: killed, interrupted, diverging, resumed."""

import io
import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from rich.console import Console
from typer.main import get_command
from typer.testing import CliRunner

import lfom
from lfom.cli import app
from lfom.commands.progress import TrainingProgress, described, stages
from lfom.commands.train import known_optimum
from lfom.core.checks import InputError
from lfom.core.parameters import kinds as kinds_of
from lfom.methods.memformer import KINDS, READERS
from lfom.training import LeastSquares, State
from lfom.training.adam import Adam
from lfom.training.checkpoints import Checkpoint, regressions

TINY = [
    "--spectrum",
    "1,0.5",
    "--context",
    "8",
    "--runs",
    "2",
    "--prompts",
    "10000",
    "--preconditioner",
    "shared",
]
ADAM = [*TINY, "--memory", "none", "--depths", "1", "--optimiser", "adam"]
SQUARES = [*TINY[:-2], "--memory", "conjugate", "--depths", "1"]
REGISTER = [*TINY, "--memory", "register", "--depths", "1,2"]


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    """Of subprocesses: this source tree. (Compiled programs are not kept from one to the next: reading
    them back hung with jaxlib 0.10.1.)"""
    return {**os.environ, "PYTHONPATH": str(Path(lfom.__file__).parents[1]), "COLUMNS": "80"}


def start(environment: dict[str, str], *arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "lfom", *arguments]
    return subprocess.Popen(
        command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def finish(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def stop_when_saved(
    process: "subprocess.Popen[str]", path: Path, number: int, delay: float
) -> tuple[int, str, str]:
    """Send a signal some time after `path` has changed (or let it be if the program is done)."""
    before = path.stat().st_mtime_ns if path.exists() else 0
    while process.poll() is None and (not path.exists() or path.stat().st_mtime_ns == before):
        time.sleep(0.002)
    time.sleep(delay)
    if process.poll() is None:
        process.send_signal(number)
    return finish(process)


@pytest.mark.parametrize(
    ("options", "longest"), [([*ADAM, "--steps", "6000"], 0.3), (SQUARES, 0.1)], ids=["adam", "least squares"]
)
def test_a_killed_run_ends_with_the_same_bits(
    options: list[str], longest: float, environment: dict[str, str], tmp_path: Path
) -> None:
    whole, killed = tmp_path / "whole.safetensors", tmp_path / "killed.safetensors"
    status, _, err = finish(start(environment, "train", *options, "--out", str(whole)))
    assert status == 0, err
    dice, kills = random.Random(), 0
    for attempt in range(12):
        again = ["--resume", str(killed)] if killed.exists() else [*options, "--out", str(killed)]
        process = start(environment, "train", *again)
        if attempt < 3:
            status, _, err = stop_when_saved(process, killed, signal.SIGKILL, dice.uniform(0, longest))
        else:
            status, _, err = finish(process)
        kills += status == -signal.SIGKILL
        assert status in (0, -signal.SIGKILL), err
        checkpoint = lfom.load(killed)  # whole, whenever the kill came
        if checkpoint.finished:
            break
    assert kills
    assert checkpoint.finished
    assert whole.read_bytes() == killed.read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["killed.safetensors", "whole.safetensors"]


def test_ctrl_c_says_how_to_go_on(environment: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "my model.safetensors"
    process = start(environment, "train", *ADAM, "--steps", "10000000", "--out", str(path))
    status, out, err = stop_when_saved(process, path, signal.SIGINT, 0.05)
    assert status == 130, err
    assert out == ""
    assert "Traceback" not in err
    command = err.strip().splitlines()[-1]
    assert shlex.split(command) == [sys.executable, "-m", "lfom", "train", "--resume", str(path)]
    checkpoint = lfom.load(path)
    assert not checkpoint.finished
    assert f"after {len(checkpoint.state.history)} passes" in err
    assert lfom.load(path).fit.model(run=1).depth == 1


def test_divergence_keeps_the_last_good_checkpoint(tmp_path: Path) -> None:
    # The loss of a M is of degree 4 and float32 ends at 3e38; with one prompt per batch the loss
    # varies so much that it ends there after some passes, not at once.
    path = tmp_path / "model.safetensors"
    rate = ["--steps", "100000", "--batch", "1", "--learning-rate", "2e8"]
    result = CliRunner().invoke(app, ["train", *ADAM, *rate, "--out", str(path)])
    assert result.exit_code == 1
    assert re.search(r"not finite after Adam step \d+ in run \d", result.stderr)
    assert re.search(r"norm of its\s+parameters is [\d.e+]+", result.stderr)
    assert f"{path} holds the last good state" in result.stderr
    checkpoint = lfom.load(path)
    assert checkpoint.state.history
    assert np.isfinite(checkpoint.state.vectors).all()


def test_a_finished_training_is_resumed_under_another_name_and_scored_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    runner = CliRunner(env={"COLUMNS": "80"})

    def called(*arguments: str) -> list[dict[str, Any]]:
        result = runner.invoke(app, ["train", *arguments, "--json"], catch_exceptions=False)
        assert result.exit_code == 0
        return json.loads(result.stdout)

    rows = called(*ADAM, "--steps", "20", "--out", str(first))
    before = first.read_bytes()
    assert called("--resume", str(first), "--out", str(second)) == rows
    assert second.read_bytes() == before
    again = called("--resume", str(second), "--prompts", "20000")
    assert [row["prompts"] for row in again] == [20_000]
    assert again[0]["log_loss"] != rows[0]["log_loss"]
    assert list(lfom.load(second).metrics) == again
    assert lfom.load(second).prompts == 20_000
    assert first.read_bytes() == before

    third = tmp_path / "c.safetensors"

    def stopped(*given: Any, **options: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("lfom.commands.train.score_rows", stopped)
    result = runner.invoke(app, ["train", "--resume", str(first), "--prompts", "500", "--out", str(third)])
    assert result.exit_code == 130
    assert f"{third} holds the last good state" in result.stderr
    assert third.read_bytes() == before  # what is said about the file is true of it


def test_train_and_evaluate(tmp_path: Path) -> None:
    first, second = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    runner = CliRunner(env={"COLUMNS": "80"})
    result = runner.invoke(app, ["train", *REGISTER, "--out", str(first)], catch_exceptions=False)
    assert result.exit_code == 0
    assert "log loss" in result.stdout
    assert "estimates" in result.stderr
    assert max(map(len, result.stdout.splitlines())) <= 80
    result = runner.invoke(app, ["train", *REGISTER, "--out", str(second), "--json"], catch_exceptions=False)
    assert [row["depth"] for row in json.loads(result.stdout)] == [1, 2]
    assert first.read_bytes() == second.read_bytes()  # the same seed, the same bits

    checkpoint = lfom.load(first)
    assert checkpoint.finished
    assert list(checkpoint.metrics) == json.loads(result.stdout)
    result = runner.invoke(app, ["train", "--resume", str(first)], catch_exceptions=False)
    assert result.exit_code == 0  # finished already: its scores are shown
    assert "log loss" in result.stdout
    assert first.read_bytes() == second.read_bytes()

    result = runner.invoke(app, ["evaluate", str(first), "--prompts", "10000"], catch_exceptions=False)
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert "…" not in result.stdout
    options = [str(first), "--prompts", "10000", "--seed", "5", "--json"]
    result = runner.invoke(app, ["evaluate", *options], catch_exceptions=False)
    rows = json.loads(result.stdout)
    for row in rows:
        assert row["prompts"] == 10_000
        assert row["reference"] == "exact optimum"
        assert abs(row["difference"]) <= 0.03
        assert row["log_loss"] == pytest.approx(row["trajectory"][-1])
        assert len(row["trajectory"]) == row["depth"] + 1
        assert row["CGD"] == pytest.approx(row["CGD_trajectory"][-1])
        assert len(row["runs"]) == 2
        assert 0 < row["worst_share"] < 1
        assert row["log_median"] < row["log_loss"]
        assert row["stderr"] > 0
    assert rows[1]["CGD"] < rows[1]["log_loss"]  # two steps solve two dimensions

    asked = ["evaluate", str(first), "--prompts", "2000", "--contexts"]
    rows = json.loads(runner.invoke(app, [*asked, "1:3", "--json"], catch_exceptions=False).stdout)
    names = ["model 1", "model 2", "CGD", "ridge", "Bayes"]
    assert [(row["method"], row["examples"]) for row in rows] == [
        (name, k) for name in names for k in (1, 2, 3)
    ]
    for row in rows:
        assert row["mean"] == pytest.approx(sum(row["runs"]) / 2)
        assert all(
            low < mean < high for low, mean, high in zip(row["low"], row["runs"], row["high"], strict=True)
        )
    result = runner.invoke(app, [*asked, "1,3"], catch_exceptions=False)
    assert [line.split()[0] for line in result.stdout.splitlines()[2:4]] == ["1", "3"]
    for wrong, message in (
        ("1:2:3", "pass the first and the last"),
        ("x", "pass the first"),
        ("3:1", "is empty"),
        ("99", "holds 99"),
    ):
        result = runner.invoke(app, [*asked, wrong])
        assert result.exit_code != 0
        assert message in str(result.exception)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--memory", "registr"], "Did you mean register"),
        (["--preconditioner", "diagonal"], "unknown preconditioner"),
        (["--spectrum", "1,two"], "separated by commas"),
        (["--spectrum", "1,-1"], "greater than 0"),
        (["--depths", "1,x"], "whole numbers"),
        (["--depths", "0"], "at least 1"),
        (["--train", "A;gamma"], "unknown parameter kind"),
        (["--runs", "0"], "runs is 0"),
        (["--noise", "-1"], "noise is -1"),
        (["--seed", "-1"], "seed is -1"),
        (["--steps", "100"], "--optimiser adam"),
        (["--optimiser", "sgd"], "unknown optimiser"),
        (["--optimiser", "adam", "--schedule", "linear"], "unknown schedule"),
        (["--optimiser", "adam", "--learning-rate", "0"], "learning_rate"),
        (["--memory", "conjugate", "--covariates"], "conjugate register needs"),
        (["--reader", "sigmoid"], "unknown reader 'sigmoid'"),
        (["--reader", "linear", "--covariates"], "only the sparse form (A, B) has covariates"),
        (["--reader", "softmax", "--memory", "conjugate"], "only the sparse form (A, B) has conjugate"),
        (["--reader", "linear", "--gamma", "diagonal"], "this model has no view"),
        (["--reader", "linear", "--train", "A"], "unknown parameter kind 'A'. Known: P, Q"),
        (["--train", "gates"], "unknown parameter kind 'gates'"),
        (["--gamma", "diagonal", "--covariates"], "gamma is 'diagonal'"),
        (["--memory", "conjugate", "--preconditioner", "scalar"], "preconditioner is 'scalar': conjugate"),
        (["--reader", "gaussian", "--memory", "conjugate"], "this model has nothing to train"),
        (["--reader", "relu", "--averaged"], "averaged is True, and this model is trained on tokens"),
        (["--reader", "exp", "--optimiser", "least-squares"], "this model only reads tokens"),
        (["--warmup", "5"], "--warmup: only Adam has such options"),
        (["--optimiser", "adam", "--steps", "10", "--warmup", "10"], "warmup is 10"),
        (["--optimiser", "adam", "--resample", "0"], "resample is 0"),
    ],
)
def test_bad_options_are_refused(options: list[str], message: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    result = CliRunner().invoke(app, ["train", *options, "--out", str(path)])
    assert isinstance(result.exception, InputError)
    assert message in str(result.exception)
    assert not path.exists()


def test_help_offers_what_works() -> None:
    """Every reader, and every kind of parameters that such a model has."""
    parameters = {p.name: p.help for p in get_command(app).commands["train"].params}  # type: ignore[attr-defined]
    for reader in READERS:
        model = lfom.memformer(2, 1, reader=reader, covariates=reader == "sparse", key=jax.random.key(0))
        assert reader in parameters["reader"]
        assert set(kinds_of(model)) <= set(KINDS)
    assert ", ".join(KINDS) in parameters["train"]
    assert "gates" not in parameters["train"]


@pytest.mark.parametrize(
    ("reader", "kinds", "own"),
    [
        ("linear", ("P", "Q"), Adam(60, 50, 1, 0.03, 1e3, "cosine", 3, log=True, averaged=True)),
        ("softmax", ("W_v", "W_k", "W_q"), Adam(60, 50, 1, 0.01, 1e3, "cosine", 3, log=True)),
        ("relu", ("P", "Q"), Adam(60, 50, 1, 0.01, 1e3, "cosine", 3, log=True)),
    ],
)
def test_attention_of_every_kind_is_trained(
    reader: str, kinds: tuple[str, ...], own: Adam, tmp_path: Path
) -> None:
    """By Adam as it suits the view, all of its matrices, and with the options that are given."""
    path = tmp_path / "model.safetensors"
    options = [*TINY[:-2], "--reader", reader, "--memory", "none", "--depths", "1,2", "--out", str(path)]
    adam = ["--steps", "60", "--batch", "50"]
    result = CliRunner().invoke(app, ["train", *options, *adam], catch_exceptions=False)
    assert result.exit_code == 0
    checkpoint = lfom.load(path)
    assert checkpoint.optimiser == own
    assert checkpoint.phases[0].name == "all"
    trained, before = checkpoint.fit.model(), checkpoint.model
    for kind in kinds:
        assert not np.allclose(getattr(trained.reader, kind), getattr(before.reader, kind), atol=1e-3)
    assert len(checkpoint.state.history) == 1
    assert checkpoint.metrics[0]["reference"] == "exact optimum"


def test_options_of_adam_reach_it(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    given = [
        "--steps",
        "40",
        "--resample",
        "20",
        "--schedule",
        "cosine",
        "--warmup",
        "7",
        "--log",
        "--averaged",
    ]
    result = CliRunner().invoke(app, ["train", *ADAM, *given, "--out", str(path)], catch_exceptions=False)
    assert result.exit_code == 0
    wanted = Adam(40, resample=20, schedule="cosine", warmup=7, log=True, averaged=True)
    assert lfom.load(path).optimiser == wanted


def test_files_are_refused_before_any_work(tmp_path: Path) -> None:
    taken = tmp_path / "taken.safetensors"
    taken.write_bytes(b"precious")
    cases = [
        (["--out", str(taken)], "--force"),
        (["--out", str(tmp_path)], "is a folder"),
        (["--out", str(tmp_path / "no" / "m.safetensors")], "does not exist"),
        (
            ["--resume", str(taken), "--memory", "bank", "--context", "9"],
            "--context, --memory cannot be combined",
        ),
        (["--resume", str(taken)], "not a file of lfom"),
        (["--resume", str(tmp_path / "none.safetensors")], "does not exist"),
    ]
    for options, message in cases:
        result = CliRunner().invoke(app, ["train", *options])
        assert isinstance(result.exception, InputError)
        assert message in str(result.exception)
    assert taken.read_bytes() == b"precious"


def small(optimiser: Any = None, noise: float = 0.0, **model: Any) -> Checkpoint:
    options = {"memory": "register", "key": jax.random.key(0), **model}
    data = regressions((1.0, 0.5), 8, 2, 0, noise=noise)
    optimiser = optimiser or LeastSquares()
    return Checkpoint(lfom.memformer(2, 2, **options), data, (1, 2), (("A", "coefficients"),), optimiser, 0)


def test_the_optimum_is_shown_only_where_no_model_gets_below_it() -> None:
    assert known_optimum(small()) == pytest.approx(lfom.exact_optimum(2, 8, 2).log_loss)
    assert known_optimum(small(covariates=True)) is None
    assert known_optimum(small(memory="conjugate")) is None
    assert known_optimum(small(preconditioner="scalar")) is None
    assert known_optimum(small(noise=0.1)) is None


@pytest.mark.parametrize("optimiser", [LeastSquares(), Adam(steps=300)], ids=["least squares", "adam"])
def test_the_bar_shows_loss_distance_and_time_left(optimiser: Any) -> None:
    phases = small(optimiser).phases
    found = stages(phases, 2, (1, 2), 2)
    assert "4 models" in described(phases, (1, 2), 2)
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80, legacy_windows=False)
    record = {"phase": phases[0].name, "number": 0, "level": 0, "step": 0}
    record["log_loss"] = [[-1.0, -2.0], [-1.0, -3.0]]
    with TrainingProgress(console, phases, found, (1, 2), -2.75) as bar:
        lengths = []
        bar._slower = 1e6  # as if a pass took long: the bar moves inside it
        for part in (0.1, 0.5, 0.9):
            bar.tick(part)
            lengths.append(bar._bar.tasks[0].completed)
        assert lengths == sorted(lengths)
        assert lengths[0] < lengths[-1]
        for step in range(3):
            state = State(0, 0, step + 1, np.zeros((2, 2, 1)), {}, (record,) * (step + 1))
            bar(state, record)
            bar._bar.refresh()
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
    assert "depth 2: -2.500, optimum +0.250" in shown
    assert re.search(r"about \d+:\d\d left", shown)
    silent = Console(file=io.StringIO(), force_terminal=False)
    with TrainingProgress(silent, phases, found, (1, 2), None) as bar:
        bar(state, record)
    assert silent.file.getvalue() == ""  # type: ignore[attr-defined]
