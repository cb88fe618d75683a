"""Calls of the API: one argument of a good call is replaced by a bad value."""

import inspect
import random
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lfom import InputError
from lfom.training.state import Diverged
from tests.bad_calls.good import good_calls
from tests.bad_calls.judge import LONGEST, changed, limited, snapshot
from tests.bad_calls.values import Bad, bad_values, kind_of, others, paths

# Sentences that name what the argument is made of instead of the argument.
ALSO = {"count": ("devices",), "source": ("piece", "the arrays"), "prompts": ("prompt", "X", "run"), "problems": ("problem",), "data": ("prompts", "X", "runs"), "heads": ("mixture",), "thing": ("what", "which no file can hold"),
        "train": ("parameter kind",), "X": ("query", "y "), "means": ("variances",), "base": ("prompts", "labels", "examples"), "items": ("runs",), "types": ("type",), "experiments": ("experiment", "file"),
        "depths": ("depth",), "prompt": ("X", "query"), "penalty": ("penalty",), "model": ("train", "parameter", "gates", "runs")}  # fmt: skip


@dataclass(frozen=True)
class Call:
    """A good call but for one argument."""

    name: str
    function: Any
    arguments: dict[str, Any]
    parameter: str
    bad: Bad

    @property
    def text(self) -> str:
        return f"{self.name}({self.parameter}={self.bad.text})"


def every_call(folder: Path) -> Iterator[Call]:
    """All of them, in the order of names."""
    files = paths(folder)
    for name, (function, arguments) in good_calls(folder).items():
        for parameter, said in inspect.signature(function).parameters.items():
            if said.kind in (said.VAR_KEYWORD, said.VAR_POSITIONAL):
                continue
            kind = kind_of(parameter, said)
            for bad in bad_values(kind, files) + (others() if kind == "object" else []):
                if (bad.value is None and said.default is None) or (
                    parameter == "experiments" and not bad.value
                ):
                    continue  # it means: all, or none
                yield Call(name, function, arguments, parameter, bad)


def some_calls(folder: Path, number: int, seed: int = 0) -> list[Call]:
    """So many, spread over all names and parameters."""
    draw = random.Random(seed)
    by_parameter: dict[tuple[str, str], list[Call]] = {}
    for call in every_call(folder):
        by_parameter.setdefault((call.name, call.parameter), []).append(call)
    groups = list(by_parameter.values())
    chosen: list[Call] = []
    while len(chosen) < number and groups:
        draw.shuffle(groups)
        for group in groups:
            chosen.append(group.pop(draw.randrange(len(group))))
        groups = [group for group in groups if group]
    return chosen[:number]


def fault(call: Call, folder: Path) -> str | None:
    """What is wrong with how it ended; None if nothing."""
    before, begun = snapshot(folder), time.monotonic()
    wrong = None
    try:
        with limited(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call.function(**(call.arguments | {call.parameter: call.bad.value}))
        if call.bad.refused and not (call.parameter == "licence" and isinstance(call.bad.value, str)):
            wrong = "accepted"
    except InputError as error:
        names = (call.parameter, *ALSO.get(call.parameter, ()))
        if not any(name in str(error) for name in (*names, str(call.bad.value))):
            wrong = f"does not name {call.parameter}: {error}"
    except Diverged:
        pass
    except Exception as error:
        last = error.__traceback__
        while last is not None and last.tb_next is not None:
            last = last.tb_next
        where = "" if last is None else f" at {Path(last.tb_frame.f_code.co_filename).name}:{last.tb_lineno}"
        wrong = f"{type(error).__name__}: {str(error)[:150]}{where}"
    spent = time.monotonic() - begun
    if wrong is None and spent > LONGEST:
        wrong = f"took {spent:.0f} s"
    overwritten = changed(before, folder)
    for made in set(snapshot(folder)) - set(before):
        Path(made).unlink()
    return f"overwrote {overwritten}" if overwritten else wrong
