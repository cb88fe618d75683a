"""report.html: every finished experiment on one page that needs no network and no server."""

import base64
import json
from collections.abc import Collection, Mapping, Sequence
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from lfom.core.checks import InputError
from lfom.core.files import write_whole
from lfom.report.figures import draw_experiment
from lfom.report.groups import OURS, PAPER, YOURS, by_owner, claims_by_group
from lfom.report.results import ERROR, VERDICTS, Result, read_results
from lfom.report.series import Panel, Point, Series, error_note, panels
from lfom.report.style import colour, duration, number, position
from lfom.report.tables import claim_tables, numbers_table, own_claims


def write_report(
    results: Path,
    order: Sequence[str] = (),
    leave_out: Collection[Path] = (),
    missing: Mapping[str, str] | None = None,
) -> Path:
    """Write results/report.html over all finished experiments, as `read_results` finds them; if one is damaged,
    an earlier report stays as it is. missing: experiments that have nothing to show, and why."""
    results = Path(results)
    if not results.is_dir():
        raise InputError(f"{results} is not a folder: make the results first with lfom reproduce.")
    found = read_results(results, order, leave_out)
    path = results / "report.html"
    write_whole(path, render(found, _failed_before(results) | dict(missing or {})).encode())
    return path


def _failed_before(results: Path) -> dict[str, str]:
    """Experiments that failed in an earlier run, and have not been made since."""
    return {
        file.name.removesuffix(ERROR): f"failed in an earlier run (all of it in {file.name})"
        for file in sorted(results.glob(f"*{ERROR}"))
    }


def render(found: list[Result], missing: Mapping[str, str] | None = None) -> str:
    """The page as text."""
    slots = {series.colour for result in found for panel in panels(result) for series in panel.series}
    return Template(_part("template.html")).substitute(
        style=_part("page.css"),
        light=_colours(slots, dark=False),
        dark=_colours(slots, dark=True),
        script=_part("page.js"),
        counts=_counts(found),
        missing=_missing(missing or {}),
        run=_run(found),
        claims=claim_tables(found),
        contents="\n".join(_contents(owner, results) for owner, results in by_owner(found).items()),
        experiments="\n".join(_owned(owner, results) for owner, results in by_owner(found).items()),
    )


def _missing(missing: Mapping[str, str]) -> str:
    """What a reader would look for in vain."""
    if not missing:
        return ""
    known = [f"<li><code>{escape(name)}</code> {escape(why)}</li>" for name, why in sorted(missing.items())]
    head = '<section class="missing" aria-label="Not in this report">\n<h2>Not in this report</h2>'
    return "\n".join([head, "<ul>", *known, "</ul>\n</section>"])


def _contents(owner: str, results: list[Result]) -> str:
    lines = [f'<li><a href="#{escape(one.name)}">{escape(one.meta.title)}</a></li>' for one in results]
    return "\n".join([f"<h2>{escape(owner)}</h2>", "<ol>", *lines, "</ol>"])


def _owned(owner: str, results: list[Result]) -> str:
    sections = "\n".join(_section(result, panels(result)) for result in results)
    return f'<h2 class="owner">{escape(owner)}</h2>\n{sections}'


def _part(name: str) -> str:
    return resources.files("lfom.report").joinpath(name).read_text(encoding="utf-8")


def _colours(slots: set[int], dark: bool) -> str:
    return " ".join(f"--curve-{slot}: {colour(slot, dark)};" for slot in sorted(slots))


def _counts(found: list[Result]) -> str:
    """How many claims hold: the paper's, ours and a user's apart. What is only measured is no claim."""
    if not found:
        return "No experiment has finished yet. Run <code>lfom reproduce</code>."
    by_owner: dict[str, list[str]] = {}
    for (owner, _), claims in claims_by_group(found).items():
        verdicts = [claim.verdict for _, claim in claims if claim.verdict in VERDICTS]
        by_owner.setdefault(owner, []).extend(verdicts)
    return " ".join(_counted(owner, verdicts) for owner, verdicts in by_owner.items() if verdicts)


def _counted(owner: str, verdicts: list[str]) -> str:
    words = {"holds": "hold", "fails": "fail", "partly": "hold partly"}
    shown = {verdict: verdicts.count(verdict) for verdict in VERDICTS if verdict in verdicts}
    parts = [f'<span class="verdict {one}">{count} {words[one]}</span>' for one, count in shown.items()]
    of = {PAPER: "of the paper", OURS: "of ours", YOURS: "of your own"}[owner]
    several = "s" * (len(verdicts) > 1)
    return f'Of <a href="#claims">{len(verdicts)} claim{several} {of}</a>, {", ".join(parts)}.'


def _run(found: list[Result]) -> str:
    """Total time and machine, and what else a reader needs to trust the numbers."""
    metas = [result.meta for result in found]
    facts = {
        "Experiments": str(len(found)),
        "Total time": duration(sum(meta.added_seconds for meta in metas)),
        "Machine": "; ".join(dict.fromkeys(meta.machine for meta in metas)),
        "Preset": ", ".join(dict.fromkeys(meta.preset for meta in metas)),
        "lfom": ", ".join(dict.fromkeys(meta.version for meta in metas)),
        "With": "; ".join(dict.fromkeys(meta.versions for meta in metas if meta.versions)),
        "Finished": max((meta.finished for meta in metas), default=""),
    }
    return _facts(facts)


def _facts(facts: dict[str, str]) -> str:
    """Those that are known."""
    known = {key: escape(value) for key, value in facts.items() if value}
    return "\n".join(f"<div><dt>{key}</dt><dd>{value}</dd></div>" for key, value in known.items())


def _section(result: Result, shown: tuple[Panel, ...]) -> str:
    meta = result.meta
    figures = "\n".join(_figure(result, panel, index) for index, panel in enumerate(shown))
    trained = f"<h3>How it was trained</h3>\n<p>{escape(meta.trained)}</p>" if meta.trained else ""
    settled = f"<h3>What it settles</h3>\n{own_claims(result)}" if result.claims else ""
    return f"""<section class="experiment" id="{escape(meta.experiment)}">
<h2>{escape(meta.title)}</h2>
<p class="where">{escape(meta.section) + " · " if meta.section else ""}<code>{escape(meta.experiment)}</code></p>
{figures}
{_static(result)}
<p>{escape(meta.shows)}</p>
{settled}
<h3>Numbers</h3>
{"".join(numbers_table(panel) for panel in shown)}
{trained}
{_settings(result)}
</section>"""


def _settings(result: Result) -> str:
    """All that is needed to get the figure again."""
    meta = result.meta
    runs = len({row.run for row in result.rows if row.run is not None})
    facts = {
        "Preset": meta.preset,
        "Training": meta.training,
        "Seed": str(meta.seed),
        "Runs": str(runs or ""),
        "Versions": ", ".join(part for part in (f"lfom {meta.version}", meta.versions) if part),
        "Machine": meta.machine,
        "Took": f"{duration(meta.seconds)} by itself",
        "Finished": meta.finished,
    }
    command = f'<code class="command">{escape(meta.command)}</code>'
    return f'<h3>Settings</h3>\n<dl class="run">\n{_facts(facts)}\n</dl>\n<p class="again">This figure again: {command}</p>'


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
