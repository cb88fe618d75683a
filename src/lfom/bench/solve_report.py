"""The comparison as rows, tables, a file of curves and a figure."""

import csv
import io
from pathlib import Path
from typing import Any

from rich.table import Table

from lfom.bench.solve import ACCURACIES, BUDGET, Comparison, Measured
from lfom.bench.timing import Ratio
from lfom.core.files import write_whole
from lfom.report.figures import can_draw
from lfom.report.style import colour

COLUMNS = [
    "family", "method", "library", "learned", "steps", "error", "lower", "upper", "seconds", "problems",
]  # fmt: skip


def rows(comparison: Comparison) -> list[Ratio]:
    """Ours against every other method: the error after the budget, and the time to each accuracy."""
    found = []
    for other in comparison.results:
        if other is not comparison.ours:
            if BUDGET in other.errors and other.rival.iterative:
                found.append(_error_row(comparison, other))
            found += [_time_row(comparison, other, accuracy) for accuracy in ACCURACIES]
    return found


def _who(comparison: Comparison, other: Measured) -> dict[str, Any]:
    ours = comparison.ours
    return {
        "family": comparison.family,
        "problems": comparison.problems,
        "ours_method": ours.name,
        "learned_from": comparison.learned_from,
        "learning_seconds": ours.learning,
        "rival_method": other.name,
        "rival_is_learned": other.rival.learned,
        "rival_is_iterative": other.rival.iterative,
    }


def _error_row(comparison: Comparison, other: Measured) -> Ratio:
    (low, own, high), (other_low, error, other_high) = comparison.ours.errors[BUDGET], other.errors[BUDGET]
    quartiles = {"ours_quartiles": (low, high), "rival_quartiles": (other_low, other_high)}
    details = {"measure": "error", "steps": BUDGET, **quartiles}
    name = f"{comparison.family}, error after {BUDGET} steps: {other.name}"
    return Ratio(name, own, error, "relative error", {**details, **_who(comparison, other)})


def _time_row(comparison: Comparison, other: Measured, accuracy: float) -> Ratio:
    details: dict[str, Any] = {"measure": "time", "accuracy": accuracy}
    times: dict[str, float | None] = {}
    for side, result in (("ours", comparison.ours), ("rival", other)):
        at = result.reached.get(accuracy)
        times[side] = at.seconds * 1e3 if at else None
        details[f"{side}_steps"] = at.steps if at else None
        details[f"{side}_quartiles"] = (at.lower * 1e3, at.upper * 1e3) if at else None
        details[f"{side}_first_call_seconds"] = result.first_call
    name = f"{comparison.family} to {accuracy:g}: {other.name}"
    return Ratio(name, times["ours"], times["rival"], "ms", {**details, **_who(comparison, other)})


def method_table(comparison: Comparison) -> Table:
    """Every method of one family: the error at the budget, and time (steps) to each accuracy."""
    title = (
        f"{comparison.family}: {comparison.problems} held-out problems, learned from "
        f"{comparison.learned_from}; ms (steps)"
    )
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("method", no_wrap=True)
    for heading in (f"error at {BUDGET}", *(f"to {accuracy:g}" for accuracy in ACCURACIES)):
        table.add_column(heading, justify="right", no_wrap=True)
    for result in sorted(comparison.results, key=_order):
        cells = [_error(result), *(_time(result, accuracy) for accuracy in ACCURACIES)]
        style = "bold" if result is comparison.ours else None
        table.add_row(result.name, *cells, style=style)
    return table


def _order(result: Measured) -> tuple[bool, float]:
    at = result.reached.get(1e-2)
    return (at is None, at.seconds if at else 0.0)


def _error(result: Measured) -> str:
    return f"{result.errors[BUDGET][1]:.2g}" if result.rival.iterative and BUDGET in result.errors else "-"


def _time(result: Measured, accuracy: float) -> str:
    at = result.reached.get(accuracy)
    return f"{at.seconds * 1e3:,.1f} ({at.steps})" if at else "-"


def summary_table(comparisons: list[Comparison]) -> Table:
    """At which accuracy which method is fastest, and where the learned one should not be used."""
    table = Table(title="Which is fastest", title_justify="left", box=None, pad_edge=False)
    for heading in ("family", "to", "fastest", "ms", "learned", "verdict"):
        side: Any = "right" if heading in ("ms", "learned") else "left"
        table.add_column(heading, justify=side, overflow="fold")
    for comparison in comparisons:
        for accuracy in ACCURACIES:
            table.add_row(comparison.family, f"{accuracy:g}", *_verdict(comparison, accuracy))
    return table


def _verdict(comparison: Comparison, accuracy: float) -> tuple[str, str, str, str]:
    best = comparison.fastest(accuracy, lambda result: True)
    mine = comparison.ours.reached.get(accuracy)
    if best is None:
        return "nobody", "-", "-", "nobody gets there"
    time, own = f"{best.reached[accuracy].seconds * 1e3:.1f}", f"{mine.seconds * 1e3:.1f}" if mine else "-"
    if mine is None:
        return best.name, time, own, "do not use: the learned method does not get there"
    others = comparison.fastest(accuracy, lambda result: not result.rival.learned)
    if others is None:
        return best.name, time, own, "learned: nobody else gets there"
    ratio = others.reached[accuracy].seconds / mine.seconds
    if ratio >= 1:
        return best.name, time, own, f"learned, {ratio:.1f} times faster than {others.name}"
    return best.name, time, own, f"do not use: {others.name} is {1 / ratio:.1f} times faster"


def write(comparisons: list[Comparison], folder: Path) -> None:
    """curves.csv and, where matplotlib is installed, figure.png under `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for comparison in comparisons:
        for result in comparison.results:
            for steps, (lower, median, upper) in sorted(result.errors.items()):
                rival, seconds = result.rival, result.seconds.get(steps, "")
                who = [comparison.family, rival.method, rival.library, rival.learned]
                writer.writerow([*who, steps, median, lower, upper, seconds, comparison.problems])
    write_whole(folder / "curves.csv", text.getvalue().encode())
    if not can_draw():
        return
    image = io.BytesIO()
    figure(comparisons).savefig(image, format="png", dpi=130)
    write_whole(folder / "figure.png", image.getvalue())


def figure(comparisons: list[Comparison]) -> Any:
    """Error against steps and against time, a row per family; one implementation per method."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter

    canvas = Figure(figsize=(10, 3.2 * len(comparisons)), layout="constrained")
    axes = canvas.subplots(len(comparisons), 2, squeeze=False)
    for comparison, row in zip(comparisons, axes, strict=True):
        for slot, result in enumerate(_drawn(comparison)):
            pen = {"color": colour(slot), "lw": 2.4 if result.rival.learned else 1.2, "marker": "o", "ms": 3}
            steps = [k for k in sorted(result.errors) if result.errors[k][1] < 10]
            values = [max(result.errors[k][1], 1e-8) for k in steps]
            if result.rival.iterative:
                row[0].plot(steps, values, **pen)
            timed = [k for k in steps if k in result.seconds]
            places = [result.seconds[k] * 1e3 for k in timed]
            row[1].plot(places, [max(result.errors[k][1], 1e-8) for k in timed], label=result.name, **pen)
        row[0].set(xlabel="steps", ylabel="relative error", title=comparison.family)
        row[1].set(xlabel=f"ms for {comparison.problems} problems")
        for axis in row:
            axis.set(xscale="log", yscale="log", ylim=(1e-6, 2))
            axis.xaxis.set_minor_formatter(NullFormatter())  # its labels overlap within one decade
            axis.grid(alpha=0.3)
        row[1].legend(fontsize=6, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return canvas


def _drawn(comparison: Comparison) -> list[Measured]:
    """Every learned method, and of every other one its fastest implementation."""
    chosen: dict[str, Measured] = {}
    for result in comparison.results:
        best = chosen.get(result.rival.method)
        if best is None or _order(result) < _order(best):
            chosen[result.rival.method] = result
    return list(chosen.values())
