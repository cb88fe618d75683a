"""One line before the work: how long and how much. And what will not fit is refused, with the largest that does."""

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from lfom.core import checks
from lfom.core.estimates import Cost, fits
from lfom.core.methods import Algorithm
from lfom.scale.pieces import source_of
from lfom.solving import costs
from lfom.solving.costs import Sizes, sizes_of
from lfom.solving.solve import budget

LOOKED = 200  # shards whose headers are read; others are taken to be like them
LIKELY = 2  # times a method's own steps, where a tolerance says when to stop


def say(text: str) -> None:
    """On stderr, so that what is printed stays what was asked for."""
    Console(stderr=True).print(text, highlight=False, markup=False, soft_wrap=True)


def announce(what: str, cost: Cost, rest: str = "") -> None:
    """rest: what the cost is without."""
    say(f"{what}: {cost.said()} on this machine (estimates){rest}.")


def announce_learning(problems: Path, steps: int, structure: str | list[str]) -> None:
    """Before `lfom learn` reads its file."""
    sizes = sizes_of(problems)
    if sizes is None:
        return
    cost = functools.partial(costs.learning, structure=structure)
    _refuse(problems, sizes, checks.count("steps", steps), cost, "Learn from at most {} of them.")
    announce(f"Learning from {_words(sizes)}", cost(sizes, steps))


def announce_solving(method: Algorithm, problems: Path, steps: int | None, tolerance: float | None) -> None:
    """Before `lfom solve` reads its file."""
    sizes = sizes_of(problems)
    if sizes is None:
        return
    most, likely = _steps(method, sizes, steps, tolerance)
    remedy = "Split it into shards of at most {} problems, and name them all."
    _refuse(problems, sizes, most, costs.solving, remedy)
    cost = Cost(costs.solving(sizes, likely).seconds, costs.solving(sizes, most).bytes)
    announce(f"Solving {_words(sizes)}", cost)


def announce_stream(
    method: Algorithm,
    source: Any,
    out: Path,
    steps: int | None,
    tolerance: float | None,
    force: bool,
    cluster: str | None,
) -> None:
    """Before `lfom solve` reads the first of several files. Those with solutions are not counted."""
    files = source_of(source).files
    todo = [file for file in files if force or not (out / f"{file.stem}.npz").exists()]
    looked = todo[:: math.ceil(len(todo) / LOOKED) or 1]
    known = {file: sizes for file in looked if (sizes := sizes_of(file)) is not None}
    local = cluster is not None and cluster.startswith("local:")
    if not known or (cluster is not None and not local):
        say(f"{len(todo) or 'Some'} shards: no estimate can be made of this source or these workers.")
        return
    workers = int(cluster[6:]) if local and cluster is not None and cluster[6:].isdigit() else None
    file, sizes = max(known.items(), key=lambda item: item[1].bytes)
    most, likely = _steps(method, sizes, steps, tolerance)
    beside = min(len(todo), workers or costs.AT_ONCE)

    def together(one: Sizes, steps: int) -> Cost:
        return costs.streaming([one] * beside, steps, workers)

    _refuse(file, sizes, most, together, "Split it into shards of at most {} problems.")
    each = list(known.values())
    every = [each[index * len(each) // len(todo)] for index in range(len(todo))]
    cost = Cost(costs.streaming(every, likely, workers).seconds, costs.streaming(every, most, workers).bytes)
    announce(f"Solving {len(todo):,} shards with {sum(one.count for one in every):,} problems", cost)


def _steps(method: Algorithm, sizes: Sizes, steps: int | None, tolerance: float | None) -> tuple[int, int]:
    """How many steps there may be, and how many there are likely to be."""
    dtype = np.dtype(np.float32 if sizes.width == 4 else np.float64)
    most = budget(method, steps, tolerance, (sizes.unknowns,), dtype)[1]
    return most, most if tolerance is None else min(most, LIKELY * method.depth)


def _refuse(file: Path, sizes: Sizes, steps: int, cost: Callable[[Sizes, int], Cost], remedy: str) -> None:
    """Blames the steps where one step would fit, else the number of problems."""
    problems, words = sizes.count, _words(sizes)
    fits(f"{file} holds {words}", problems, lambda count: cost(replace(sizes, count=count), 1).bytes, remedy)
    remedy = "The largest --steps that fits is {}."
    fits(f"--steps is {steps:,} for {words}", steps, lambda steps: cost(sizes, steps).bytes, remedy)


def _words(sizes: Sizes) -> str:
    return f"{sizes.count:,} problems of {sizes.unknowns:,} unknowns"
