"""Calls of the command line, in this process: one option of a good call is given a bad value."""

import contextlib
import functools
import inspect
import io
import itertools
import os
import random
import sys
import time
import typing
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import typer

import lfom
from lfom.cli import app, main
from tests.bad_calls.good import things
from tests.bad_calls.judge import LONGEST, changed, limited, snapshot

NUMBERS = ["-1", "0", "nan", "three", "1e3", "99999999999999999999999", "1000000000000", ""]
REALS = ["nan", "inf", "-1", "three", "1e400", ""]
TEXTS = ["", "no-such-name", "-1", "0", "1,,2", "nan", "1000000000", "conjugate:jacobifull"]
FLAGS = ["yes"]
STATUSES = (0, 1, 2)


@dataclass(frozen=True)
class Call:
    """The words of a call."""

    words: tuple[str, ...]
    about: str  # the option or argument that is bad

    @property
    def text(self) -> str:
        return "lfom " + " ".join(word or "''" for word in self.words)


@functools.cache
def _problems() -> dict[str, Any]:
    X = things()["X"]
    return {"X": X, "y": X.sum(axis=2)}


def good_words(folder: Path) -> dict[str, list[str]]:
    """A cheap call of every command, with files for it; those that take minutes are ended by their argument."""
    model, problems, method = (
        folder / "model.safetensors",
        folder / "problems.npz",
        folder / "method.safetensors",
    )
    np.savez(problems, **_problems())
    quick = ["--depths", "1", "--runs", "1", "--prompts", "50", "--optimiser", "adam", "--steps", "2", "--batch", "8", "--resample",
             "1", "--spectrum", "1,0.5", "--context", "4"]  # fmt: skip
    if not model.exists():
        run(["train", *quick, "--out", str(model)])
        lfom.learn(lfom.LeastSquaresProblems(**_problems()), 1, "scalar", progress=False).save(method)
    (folder / "taken.safetensors").write_bytes(b"mine")
    return {
        "train": [*quick, "--out", str(folder / "new.safetensors"), "--force"],
        "evaluate": [str(model), "--prompts", "50"],
        "adapt": [str(model), str(model), "--prompts", "30", "--fresh", "30", "--steps", "1"],
        "learn": [str(problems), "--steps", "1", "--structure", "scalar", "--out", str(folder / "new.safetensors"), "--force"],
        "solve": [str(method), str(problems), "--out", str(folder / "new.npz"), "--force"],
        "inspect": [str(method), "--no-plot"],
        "bench": ["no-such-bench"],
        "reproduce": ["no-such-experiment", "--out", str(folder / "results")],
        "verify": ["--seed", "-1"],
    }  # fmt: skip


def every_call(folder: Path) -> Iterator[Call]:
    """All of them."""
    files = [
        folder / name
        for name in ("missing", "no/where", "taken.safetensors", "problems.npz", "one.npy", "empty.npz", ".")
    ]
    np.save(folder / "one.npy", np.ones(3))
    (folder / "empty.npz").write_bytes(b"")
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    functions: dict[Any, Any] = {info.name: info.callback for info in app.registered_commands}
    for name, words in good_words(folder).items():
        for number in range(sum(not word.startswith("-") for word in words[:2])):
            for file in files:
                yield Call((name, *words[:number], str(file), *words[number + 1 :]), str(file))
        yield Call((name, *words, "--no-such-option"), "--no-such-option")
        yield Call((name, *words, "one too many", "and another"), "one too many")
        if name not in ("verify", "reproduce"):  # which need nothing, and take minutes
            yield Call((name,), name)
        for parameter in commands[name].params:
            option = parameter.opts[0]
            if not option.startswith("--") or option == "--help":
                continue
            kind = str(
                typing.get_args(inspect.signature(functions[name]).parameters[parameter.name].annotation)[0]
            ).lower()
            bad = (
                FLAGS
                if parameter.is_flag
                else NUMBERS
                if "int" in kind
                else REALS
                if "float" in kind
                else TEXTS
            )
            if "path" in kind or option == "--with":
                bad = [str(file) for file in files] + [""]
            rest = _without(words, option)
            for value in bad:
                if (name, value) == ("verify", "0"):
                    continue
                if option in ("--out", "--plot"):  # never with --force: nothing of the user's may go
                    yield Call((name, *_without(rest, "--force", flag=True), option, value), option)
                else:
                    yield Call((name, *rest, option, value), option)
    for words in (["no-such-command"], [""], ["--no-such-option"], ["--version", "3"], ["train", "train"]):
        yield Call(tuple(words), words[-1])


def _without(words: list[str], option: str, flag: bool = False) -> list[str]:
    if option not in words:
        return words
    at = words.index(option)
    value = 0 if flag or at + 1 == len(words) or words[at + 1].startswith("--") else 1
    return words[:at] + words[at + 1 + value :]


def some_calls(folder: Path, number: int, seed: int = 0) -> list[Call]:
    """So many, spread over commands and options."""
    draw = random.Random(seed)
    groups: dict[tuple[str, str], list[Call]] = {}
    for call in every_call(folder):
        groups.setdefault((call.words[0], call.about if call.about.startswith("-") else ""), []).append(call)
    left = list(groups.values())
    chosen: list[Call] = []
    while len(chosen) < number and left:
        draw.shuffle(left)
        chosen += [group.pop(draw.randrange(len(group))) for group in left]
        left = [group for group in left if group]
    return chosen[:number]


class Heard(io.StringIO):
    """Notes when something was said."""

    def __init__(self, times: list[float]):
        super().__init__()
        self._times = times

    def write(self, text: str) -> int:
        self._times.append(time.monotonic())
        return super().write(text)


def run(words: list[str]) -> tuple[Any, str, str, float]:
    """Exit status or exception, output, errors, and the longest silence in seconds."""
    before, times, status = sys.argv, [time.monotonic()], typing.cast(Any, 0)
    out, errors = Heard(times), Heard(times)
    sys.argv = ["lfom", *words]
    try:
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(errors),
            limited(),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            main()
    except SystemExit as end:
        status = end.code or 0
    except Exception as error:
        status = error
    finally:
        sys.argv = before
    times.append(time.monotonic())
    silence = max(later - earlier for earlier, later in itertools.pairwise(times))
    return status, out.getvalue(), errors.getvalue(), silence


def fault(call: Call, folder: Path) -> str | None:
    """What is wrong with how it ended; None if nothing."""
    before, here = snapshot(folder), Path.cwd()
    os.chdir(folder)  # where files without a path go
    try:
        status, out, errors, silence = run(list(call.words))
    finally:
        os.chdir(here)
    if isinstance(status, Exception):
        return f"{type(status).__name__}: {str(status)[:150]}"
    if status not in STATUSES:
        return f"exit status {status}"
    if "Traceback" in out + errors:
        return "a traceback"
    if status == 2 and len(errors.strip()) < 20:
        return f"refused without a reason: {errors.strip()!r}"
    if silence > LONGEST:
        return f"silent for {silence:.0f} s"
    overwritten = [path for path in changed(before, folder) if not Path(path).name.startswith("new.")]
    return f"overwrote {overwritten}" if overwritten else None
