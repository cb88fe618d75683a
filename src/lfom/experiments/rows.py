"""From scores to the rows of curves.csv, and the authors' published values."""

import csv
import functools
import importlib.resources
import math
from collections.abc import Iterable

from lfom.report.results import Row
from lfom.training import Score


def at_step(score: Score, step: int) -> Score:
    """The score after `step` steps (the losses of single prompts stay those of the last)."""
    return Score(
        score.name, score.mean[:, : step + 1], score.stderr[:, : step + 1], score.last, score.prompts
    )


def score_rows(curve: str, training: str, scores: dict[int, Score], scored_on: str = "fresh") -> list[Row]:
    """One row per depth and run."""
    return [
        Row(
            curve,
            training,
            x,
            float(score.log_mean[run, -1]),
            run,
            stderr=finite(score.log_stderr[run, -1]),
            prompts=score.prompts,
            scored_on=scored_on,
        )
        for x, score in scores.items()
        for run in range(score.mean.shape[0])
    ]


def finite(value: float) -> float | None:
    """The number, or nothing where it overflowed (a diverged model's squared losses do)."""
    return float(value) if math.isfinite(value) else None


def baseline_rows(table: dict[str, dict[int, Score]]) -> list[Row]:
    return [row for curve, scores in table.items() for row in score_rows(curve, "none", scores)]


@functools.cache
def _published() -> list[dict[str, str]]:
    text = importlib.resources.files("lfom.data").joinpath("published_curves.csv").read_text("utf8")
    return list(csv.DictReader(text.splitlines()))


def published_rows(experiment: str) -> list[Row]:
    """The authors' published values of a figure."""
    return [
        Row(
            r["curve"],
            "published",
            float(r["x"]),
            float(r["value"]),
            None,
            r["measure"],
            scored_on=r["scored_on"],
        )
        for r in _published()
        if r["experiment"] == experiment
    ]


def flatten(parts: Iterable[list[Row]]) -> list[Row]:
    return [row for part in parts for row in part]
