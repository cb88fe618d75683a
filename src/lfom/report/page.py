"""report.html: every finished experiment on one page that needs no network and no server."""

import base64
import json
from collections.abc import Collection, Sequence
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from lfom.core.checks import InputError
from lfom.core.files import write_whole
from lfom.report.figures import draw_experiment
from lfom.report.results import VERDICTS, Result, read_results
from lfom.report.series import Panel, Point, Series, error_note, panels
from lfom.report.style import colour, duration, number, position
from lfom.report.tables import claim_table, numbers_table, own_claims


def write_report(results: Path, order: Sequence[str] = (), leave_out: Collection[Path] = ()) -> Path:
    """Write results/report.html over all finished experiments, as `read_results` finds them; if one is damaged,
    an earlier report stays as it is."""
    results = Path(results)
    if not results.is_dir():
        raise InputError(f"{results} is not a folder: make the results first with lfom reproduce.")
    found = read_results(results, order, leave_out)
    path = results / "report.html"
    write_whole(path, render(found).encode())
    return path


def render(found: list[Result]) -> str:
    """The page as text."""
    drawn = [(result, panels(result)) for result in found]
    slots = {series.colour for _, shown in drawn for panel in shown for series in panel.series}
    return Template(_part("template.html")).substitute(
        style=_part("page.css"),
        light=_colours(slots, dark=False),
        dark=_colours(slots, dark=True),
        script=_part("page.js"),
        counts=_counts(found),
        run=_run(found),
        claims=claim_table(found),
        contents="\n".join(
            f'<li><a href="#{escape(result.name)}">{escape(result.meta.title)}</a></li>' for result in found
        ),
        experiments="\n".join(_section(result, shown) for result, shown in drawn),
    )


def _part(name: str) -> str:
    return resources.files("lfom.report").joinpath(name).read_text(encoding="utf-8")


def _colours(slots: set[int], dark: bool) -> str:
    return " ".join(f"--curve-{slot}: {colour(slot, dark)};" for slot in sorted(slots))


def _counts(found: list[Result]) -> str:
    verdicts = [claim.verdict for result in found for claim in result.claims]
    if not found:
        return "No experiment has finished yet. Run <code>lfom reproduce</code>."
    words = {"holds": "hold", "fails": "fail", "partly": "hold partly"}
    shown = {verdict: verdicts.count(verdict) for verdict in VERDICTS if verdict in verdicts}
    parts = [f'<span class="verdict {one}">{count} {words[one]}</span>' for one, count in shown.items()]
    return f"Of {len(verdicts)} claims, " + ", ".join(parts) + "."


def _run(found: list[Result]) -> str:
    """Total time and machine, and what else a reader needs to trust the numbers."""
    metas = [result.meta for result in found]
    facts = {
        "Experiments": str(len(found)),
        "Total time": duration(sum(meta.added_seconds for meta in metas)),
        "Machine": "; ".join(dict.fromkeys(meta.machine for meta in metas)),
        "Preset": ", ".join(dict.fromkeys(meta.preset for meta in metas)),
        "lfom": ", ".join(dict.fromkeys(meta.version for meta in metas)),
        "Finished": max((meta.finished for meta in metas), default=""),
    }
    return "\n".join(
        f"<div><dt>{key}</dt><dd>{escape(value)}</dd></div>" for key, value in facts.items() if value
    )


def _section(result: Result, shown: tuple[Panel, ...]) -> str:
    meta = result.meta
    figures = "\n".join(_figure(result, panel, index) for index, panel in enumerate(shown))
    settled = f"<h3>Claims it settles</h3>\n{own_claims(result)}" if result.claims else ""
    return f"""<section class="experiment" id="{escape(meta.experiment)}">
<h2>{escape(meta.title)}</h2>
<p class="where">{escape(meta.section) + " · " if meta.section else ""}<code>{escape(meta.experiment)}</code></p>
<p>{escape(meta.shows)}</p>
{figures}
{_static(result)}
{settled}
<h3>Numbers</h3>
{"".join(numbers_table(panel) for panel in shown)}
<h3>How it was trained</h3>
<p>{escape(meta.trained)}</p>
<p>Run again, alone ({duration(meta.seconds)}): <code class="command">{escape(meta.command)}</code></p>
</section>"""


def _static(result: Result) -> str:
    """The figure for readers without JavaScript, drawn now if it is not there; none without matplotlib."""
    path = result.folder / "figure.svg"
    if not path.is_file() and not draw_experiment(result.folder):
        return ""
    source = "data:image/svg+xml;base64," + base64.b64encode(path.read_bytes()).decode()
    return f'<noscript><img class="static" alt="{escape(result.meta.title)}" src="{source}"></noscript>'


def _figure(result: Result, panel: Panel, index: int) -> str:
    """The data of one interactive panel; page.js draws it."""
    content: dict[str, Any] = {
        "title": f"{result.meta.title}: {panel.y_label}",
        "x": panel.x_label,
        "y": panel.y_label,
        "log": panel.log_x,
        "ticks": panel.ticks,
        "series": [_series(series) for series in panel.series],
    }
    return f"""<figure class="chart" id="{escape(result.name)}-figure-{index}">
<script type="application/json">{_embedded(content)}</script>
<figcaption>{escape(error_note(list(panel.series)))}</figcaption>
</figure>"""


def _embedded(content: Any) -> str:
    """JSON that no text from a file can end early."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return text.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e")


def _series(series: Series) -> dict[str, Any]:
    mark = series.mark
    return {
        "label": series.label,
        "colour": series.colour,
        "shape": mark.shape,
        "layer": series.layer,
        "width": mark.width + 0.6 * series.layer,
        "dashed": series.dashed,
        "band": series.banded,
        "main": series.main,
        "points": [
            {
                "x": point.x,
                "y": point.mean,
                "e": point.error,
                "floored": point.floored > 0,
                "at": position(point.x),
                "text": _reading(point),
            }
            for point in series.points
        ],
    }


def _reading(point: Point) -> str:
    """A value with its error, in words."""
    if point.mean is None:
        return "zero to rounding" + (f" in all {point.runs} runs" if point.runs > 1 else "")
    text = number(point.mean)
    if point.spread is not None:
        text += f" ± {number(point.spread)} (standard deviation over {point.runs - point.floored} runs)"
    elif point.stderr is not None:
        text += f" ± {number(point.stderr)} (standard error over prompts)"
    if point.floored:
        text += f"; zero to rounding in {point.floored} of {point.runs} runs"
    return text
