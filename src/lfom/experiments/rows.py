"""From scores to the rows of curves.csv, and the authors' published values."""

import csv
import functools
import importlib.resources
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from lfom.report.results import Row
from lfom.training import Score

Name = TypeVar("Name")
Curves = dict[tuple[str, str], dict[int, Score]]  # by (curve, training) and depth


def at_step(score: Score, step: int) -> Score:
    """The score after `step` steps (the losses of single prompts stay those of the last)."""
    return replace(score, mean=score.mean[:, : step + 1], stderr=score.stderr[:, : step + 1])


def take_runs(score: Score, runs: slice) -> Score:
    arrays = {name: getattr(score, name) for name in ("mean", "stderr", "groups", "counts", "last")}
    kept: Any = {name: None if a is None else a[runs] for name, a in arrays.items()}
    return replace(score, **kept)


def by_depth(
    methods: dict[Name, Any], depths: Sequence[int], score: Callable[[dict[str, Any]], dict[str, Score]]
) -> dict[Name, dict[int, Score]]:
    """The scores of methods at every depth: of one method for each (a dict), or of one at each of its steps."""
    each = {n: m if isinstance(m, dict) else dict.fromkeys(depths, m) for n, m in methods.items()}
    names = {(n, d): f"{n} {d}" if isinstance(methods[n], dict) else str(n) for n in each for d in depths}
    found = score({names[n, d]: each[n][d] for n, d in names})
    return {n: {d: at_step(found[names[n, d]], d) for d in depths} for n in each}


def score_rows(
    curve: str, training: str, scores: dict[int, Score], scored_on: str = "fresh", measure: str = "log_loss"
) -> list[Row]:
    """One row per depth and run."""
    rows = []
    for x, score in scores.items():
        for run, value in enumerate(score.log_mean[:, -1].tolist()):
            error = float(score.log_stderr[run, -1])
            stderr = error if math.isfinite(error) else None  # a diverged model's squared losses overflow
            rows.append(Row(curve, training, x, value, run, measure, stderr, score.prompts, scored_on))
    return rows


def run_rows(
    curve: str, training: str, x: float, values: Iterable[Any], measure: str, **more: Any
) -> list[Row]:
    """One row per run, of values other than scores."""
    return [Row(curve, training, x, float(v), run, measure, **more) for run, v in enumerate(values)]


def curve_rows(found: Curves, experiment: str = "") -> list[Row]:
    """What was not trained, the authors' published values, and what was trained."""
    rows = {pair: score_rows(*pair, scores) for pair, scores in found.items()}
    untrained = flatten(each for (_, training), each in rows.items() if training == "none")
    trained = flatten(each for (_, training), each in rows.items() if training != "none")
    return untrained + published_rows(experiment) + trained


@functools.cache
def _published() -> list[dict[str, str]]:
    text = importlib.resources.files("lfom.data").joinpath("published_curves.csv").read_text("utf8")
    return list(csv.DictReader(text.splitlines()))


def published_figures() -> list[str]:
    """The figures with published values."""
    return list(dict.fromkeys(r["experiment"] for r in _published()))


def published_rows(experiment: str) -> list[Row]:
    """The authors' published values of a figure."""
    rows = []
    for r in (r for r in _published() if r["experiment"] == experiment):
        x, value, on = float(r["x"]), float(r["value"]), r["scored_on"]
        rows.append(Row(r["curve"], "published", x, value, None, r["measure"], scored_on=on))
    return rows


def flatten(parts: Iterable[list[Row]]) -> list[Row]:
    return [row for part in parts for row in part]
