"""Curves: the rows of an experiment, gathered over runs. What the plots and the page draw."""

import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import pairwise

from lfom.report.results import FLOOR, Result, Row, for_measure
from lfom.report.style import Mark, colour_slots, marks


@dataclass(frozen=True)
class Point:
    """One x of a curve. Runs at the floor are counted in `floored` and left out of the mean."""

    x: float
    mean: float | None  # None where every run is at the floor
    spread: float | None  # standard deviation over runs, from two runs on
    stderr: float | None  # over prompts, of one run (root mean square)
    runs: int  # how many values there are, one of them if it belongs to no run
    per_run: bool
    floored: int
    prompts: tuple[int, ...]

    @property
    def error(self) -> float | None:
        """Half the height of the band, or of the bar where there are no runs."""
        return self.spread if self.spread is not None else self.stderr


@dataclass(frozen=True)
class Series:
    """One curve of one panel."""

    curve: str
    training: str
    scored_on: str
    points: tuple[Point, ...]
    main: bool
    colour: int
    mark: Mark
    layer: int  # curves of the same training lie under one another, each wider than the one above: where
    # they coincide the lower one still shows at the rim

    @property
    def label(self) -> str:
        label = self.curve if self.training == "none" else f"{self.curve} · {self.training}"
        return label if self.scored_on == "fresh" else f"{label} ({self.scored_on})"

    @property
    def dashed(self) -> bool:
        """Whether it was scored on prompts that it was fitted to."""
        return self.scored_on != "fresh"

    @property
    def end(self) -> float:
        """The value at the right edge."""
        last = self.points[-1].mean
        return -math.inf if last is None else last

    @property
    def banded(self) -> bool:
        return any(point.spread is not None for point in self.points)


@dataclass(frozen=True)
class Panel:
    """All curves of one measure."""

    x_label: str
    y_label: str
    log_x: bool
    series: tuple[Series, ...]

    @property
    def xs(self) -> list[float]:
        return sorted({point.x for series in self.series for point in series.points})

    @property
    def ticks(self) -> list[float] | None:
        """Where the axis is labelled if x counts layers, or takes a few values on a logarithmic axis."""
        xs = self.xs
        if self.whole_x:
            return [float(x) for x in range(int(xs[0]), int(xs[-1]) + 1)]
        if not self.log_x or not 1 < len(xs) <= 6:
            return None
        gaps = [math.log(later / earlier) for earlier, later in pairwise(xs)]
        return xs if min(gaps) > 0.1 * sum(gaps) else None

    @property
    def whole_x(self) -> bool:
        """Whether x counts something small, such as layers."""
        xs = self.xs
        return not self.log_x and all(x == int(x) for x in xs) and xs[-1] - xs[0] <= 12


def panels(result: Result) -> tuple[Panel, ...]:
    """The curves by measure, main ones first, otherwise in the order of the file."""
    meta = result.meta
    gathered: dict[str, dict[tuple[str, str, str], list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in result.rows:
        gathered[row.measure][row.curve, row.training, row.scored_on].append(row)
    slots = colour_slots(row.curve for row in result.rows)
    marked = marks(row.training for row in result.rows)
    found = []
    for index, (measure, curves) in enumerate(gathered.items()):
        main = {at for at in curves if f"{at[0]}|{at[1]}" in meta.main} or set(curves)
        above: Counter[str] = Counter()
        series = []
        for at in sorted(curves, key=lambda at: at not in main):
            curve, training, _ = at
            layer = 0 if training == "none" else min(above[training], 2)
            above[training] += 1
            series.append(Series(*at, _points(curves[at]), at in main, slots[curve], marked[training], layer))
        named = measure.replace("_", " ")
        own = index and isinstance(meta.y_label, str)  # the label is that of the first measure
        y_label = named if own else for_measure(meta.y_label, measure, named)
        log_x = for_measure(meta.x_scale, measure, "linear") == "log"
        found.append(Panel(for_measure(meta.x_label, measure, "x"), y_label, log_x, tuple(series)))
    return tuple(found)


def _points(rows: list[Row]) -> tuple[Point, ...]:
    at: dict[float, list[Row]] = defaultdict(list)
    for row in rows:
        at[row.x].append(row)
    return tuple(_point(x, at[x]) for x in sorted(at))


def _point(x: float, rows: list[Row]) -> Point:
    values = [row.value for row in rows if row.value > FLOOR]
    errors = [row.stderr for row in rows if row.stderr is not None and row.value > FLOOR]
    mean = math.fsum(values) / len(values) if values else None
    spread = None
    if mean is not None and len(values) > 1:
        spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))
    return Point(
        x=x,
        mean=mean,
        spread=spread,
        stderr=math.sqrt(math.fsum(e * e for e in errors) / len(errors)) if errors else None,
        runs=len(rows),
        per_run=any(row.run is not None for row in rows),
        floored=len(rows) - len(values),
        prompts=tuple(sorted({row.prompts for row in rows if row.prompts is not None})),
    )


def error_note(shown: list[Series]) -> str:
    """What lines, bands, dashes and edge marks mean, for the curves shown."""
    points = [point for series in shown for point in series.points]
    runs = sorted({point.runs for point in points if point.runs > 1})
    notes = []
    if runs:
        count = f"{runs[0]}" if len(runs) == 1 else f"{runs[0]} to {runs[-1]}"
        notes.append(f"Lines: mean over {count} runs; bands: one standard deviation over the runs.")
    if any(point.stderr is not None for series in shown if not series.banded for point in series.points):
        notes.append("Bars: one standard error over the prompts.")
    if any(series.dashed for series in shown):
        notes.append("Dashed: scored on prompts that it was fitted to, not on fresh ones.")
    if any(point.floored for point in points):
        notes.append("Triangles at the lower edge: zero to rounding.")
    return " ".join(notes)
