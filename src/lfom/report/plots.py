"""The figure of one experiment as PNG and SVG: same data, same bytes."""

import contextlib
import io
import math
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from lfom.core.files import write_whole
from lfom.report.results import Result, read_experiment
from lfom.report.series import Panel, Series, error_note, panels
from lfom.report.style import colour, position

SETTINGS: dict[str, Any] = {
    "text.parse_math": False,  # texts from files are texts
    "svg.hashsalt": "lfom",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
}


@contextlib.contextmanager
def our_settings() -> Iterator[None]:
    """What a reader's own settings say must not change a figure."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        settings: Any = matplotlib.rcParams
        settings.update(SETTINGS)
        yield


def saved(figure: Figure, kind: str = "png") -> bytes:
    """The figure as a file that is the same for the same data."""
    content = io.BytesIO()
    dates = {"Software": None} if kind == "png" else {"Date": None, "Creator": None}
    figure.savefig(content, format=kind, dpi=160, metadata=dates)
    return content.getvalue()


def plot_experiment(folder: Path) -> None:
    """Draw figure.png and figure.svg of an experiment folder from its curves.csv and meta.json."""
    folder = Path(folder)
    with our_settings():
        figure = draw(read_experiment(folder))
        for kind in ("png", "svg"):
            write_whole(folder / f"figure.{kind}", saved(figure, kind))


def draw(result: Result) -> Figure:
    """One panel per measure, the legend beside them, a line below that says what the bands are."""
    shown = panels(result)
    columns = min(len(shown), 3)
    lines = -(-len(shown) // columns)
    labelled = {one.label: one for panel in shown for one in panel.series if one.main}
    # Top to bottom as the curves end on the right, so that legend and lines are read across.
    legend = sorted(labelled.values(), key=lambda one: one.end, reverse=True)
    handles = [Line2D([], [], label=textwrap.fill(_together(one), 32), **_style(one)) for one in legend]
    # All lengths in inches; the layout is computed here because matplotlib's own moves with the legend.
    left, panel_width, panel_height, gap, legend_width = 0.75, 4.6 if columns == 1 else 3.5, 3.3, 0.75, 2.85
    width = left + columns * panel_width + (columns - 1) * gap + legend_width
    title = textwrap.wrap(result.meta.title, int(10.3 * width))
    note = textwrap.wrap(error_note(legend), int(17 * width))
    top, bottom = 0.3 + 0.2 * len(title), 0.65 + 0.14 * len(note)
    breaks = sum(str(one.get_label()).count("\n") for one in handles)
    legend_height = 0.1 + sum(0.14 + 0.08 for one in handles) + 0.14 * breaks
    height = top + bottom + max(lines * panel_height + (lines - 1) * gap, legend_height)

    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(
        lines,
        columns,
        left=left / width,
        right=1 - legend_width / width,
        top=1 - top / height,
        bottom=bottom / height,
        wspace=gap / panel_width,
        hspace=gap / panel_height,
    )
    for index, panel in enumerate(shown):
        draw_panel(figure.add_subplot(grid[index // columns, index % columns]), panel)
    edge = 0.12 / width
    figure.text(edge, 1 - 0.1 / height, "\n".join(title), fontsize=11.5, weight="bold", va="top")
    quiet: dict[str, Any] = {"fontsize": 7.5, "color": "#555555", "va": "bottom", "linespacing": 1.3}
    figure.text(edge, 0.08 / height, "\n".join(note), **quiet)
    corner = (1 - (legend_width - 0.15) / width, 1 - top / height)
    figure.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=corner,
        frameon=False,
        borderpad=0,
        borderaxespad=0,
        fontsize=8.5,
        handlelength=3.0,
        labelspacing=0.6,
    )
    return figure


def draw_panel(axes: Axes, panel: Panel) -> None:
    """The main curves of one measure."""
    shown = [series for series in panel.series if series.main]
    points = [point for series in shown for point in series.points]
    edges = [p.mean + s * (p.error or 0.0) for p in points if p.mean is not None for s in (-1, 1)]
    low, high = (min(edges), max(edges)) if edges else (-1.0, 1.0)
    margin = 0.05 * (high - low) or max(0.1, 0.05 * abs(high))
    low, high = low - margin, high + margin
    # Wide lines first: a thin one on top of them stays visible.
    for series in sorted(shown, key=lambda one: -_style(one)["linewidth"]):
        draw_series(axes, series, low)
    axes.set(ylim=(low, high), xlabel=panel.x_label, ylabel=panel.y_label)
    if panel.log_x:
        axes.set_xscale("log")
        decades = math.log10(panel.xs[-1] / panel.xs[0])
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if decades < 2 else (1,)))
        axes.xaxis.set_major_formatter(
            FuncFormatter(lambda x, _: position(x) if 1e-3 <= x < 1e6 else f"{x:.0e}")
        )
        axes.xaxis.set_minor_formatter(NullFormatter())
    if panel.ticks:
        axes.set_xticks(panel.ticks)
    if panel.whole_x:
        axes.set_xlim(panel.xs[0] - 0.15, panel.xs[-1] + 0.15)


def draw_series(axes: Axes, series: Series, edge: float) -> None:
    """Line, band or bars, and triangles at the lower edge where the value is zero to rounding."""
    style = _style(series)
    ink = style["color"]
    drawn = [(p.x, p.mean if p.mean is not None else edge, p.error or 0.0, p) for p in series.points]
    xs, ys = [d[0] for d in drawn], [d[1] for d in drawn]
    above = [index for index, (*_, point) in enumerate(drawn) if point.mean is not None]
    axes.plot(xs, ys, markevery=above, **style)
    inside = [drawn[index] for index in above]
    if series.banded and len(inside) > 1:
        lower, upper = [y - e for _, y, e, _ in inside], [y + e for _, y, e, _ in inside]
        axes.fill_between([x for x, *_ in inside], lower, upper, color=ink, alpha=0.13, linewidth=0)
    elif any(error for _, _, error, _ in inside):
        x, y, error = zip(*[d[:3] for d in inside], strict=True)
        axes.errorbar(x, y, yerr=error, fmt="none", ecolor=ink, elinewidth=0.9, capsize=2)
    marked = [x for x, *_, point in drawn if point.floored]
    axes.plot(marked, [edge] * len(marked), "v", color=ink, markersize=8, clip_on=False, zorder=5)


def _style(series: Series) -> dict[str, Any]:
    mark, ink = series.mark, colour(series.colour)
    size = mark.size if len(series.points) <= 10 else 0.7 * mark.size
    return {
        "color": ink,
        "linewidth": mark.width + 0.6 * series.layer,
        "linestyle": (0, (5, 3)) if series.dashed else "solid",
        "marker": mark.matplotlib,
        "markersize": size + 1.8 * series.layer,
        "markerfacecolor": ink if mark.filled else "white",
        "markeredgecolor": ink,
    }


def _together(series: Series) -> str:
    """The label; a line may break before the brackets, not inside."""
    brackets = f"({series.scored_on})"
    return series.label.replace(brackets, brackets.replace(" ", "\xa0"))
