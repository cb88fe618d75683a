"""The tables of the report as HTML. Every text from a file is escaped here."""

import re
from html import escape

from lfom.report.groups import PAPER, claims_by_group, heading
from lfom.report.results import Claim, Result
from lfom.report.series import Panel, Point, Series
from lfom.report.style import number, position
from lfom.report.verdicts import in_words

WIDEST = 8  # more values of x than this, and the table gets one line per value


def claim_anchor(result: Result, claim: Claim) -> str:
    """The address of a claim on the page; ids of different experiments cannot collide.

    Characters that an address cannot hold become hyphens.
    """
    return re.sub(r"[^\w.-]+", "-", f"claim-{result.name}-{claim.id}")


def verdict_badge(result: Result, claim: Claim) -> str:
    """The verdict, and how often it came where there are results of several seeds."""
    by_seed = result.by_seed.get(claim.id)
    seeds = f' <small class="quiet">{in_words(by_seed)}</small>' if by_seed else ""
    return f'<span class="verdict {claim.verdict}">{claim.verdict}</span>{seeds}'


def claim_tables(found: list[Result]) -> str:
    """All claims, each with a link to its evidence: the paper's by section, ours and a user's apart."""
    parts, before = [], ""
    for (owner, section), claims in claims_by_group(found).items():
        if owner != before:
            parts.append(f"<h3>{escape(owner)}</h3>")
        if owner == PAPER:
            parts.append(f"<h4>{escape(heading(section))}</h4>")
        parts.append(_claim_table(claims))
        before = owner
    return "\n".join(parts)


def _claim_table(claims: list[tuple[Result, Claim]]) -> str:
    lines = [
        f"<tr><td>{verdict_badge(result, claim)}</td>"
        f'<td><a href="#{claim_anchor(result, claim)}">{escape(claim.claim)}</a></td>'
        f'<td class="quiet"><a href="#{escape(result.name)}">{escape(result.meta.title)}</a></td></tr>'
        for result, claim in claims
    ]
    head = '<tr><th scope="col">Verdict</th><th scope="col">Claim</th><th scope="col">Figure</th></tr>'
    return _table("claims", head, lines)


def own_claims(result: Result) -> str:
    """The claims of one experiment with test and evidence."""
    entries = []
    for claim in result.claims:
        test = f"<dt>Test</dt><dd>{escape(claim.test)}</dd>" if claim.test else ""
        section = f' <span class="quiet">({escape(claim.section)})</span>' if claim.section else ""
        entries.append(
            f'<li id="{claim_anchor(result, claim)}">'
            f"<p>{verdict_badge(result, claim)} {escape(claim.claim)}{section}</p>"
            f"<dl>{test}<dt>Evidence</dt><dd>{escape(claim.evidence)}</dd></dl></li>"
        )
    return f'<ul class="settled">{"".join(entries)}</ul>'


def numbers_table(panel: Panel) -> str:
    """Mean, spread, prompts and what it was scored on: one line per curve, or per value if x has many."""
    return _by_curve(panel) if len(panel.xs) <= WIDEST else _by_value(panel)


def _by_curve(panel: Panel) -> str:
    xs = panel.xs
    head = (
        f'<tr><th rowspan="2" scope="col">Curve</th><th rowspan="2" scope="col">Training</th>'
        f'<th colspan="{len(xs)}" scope="colgroup">{escape(panel.y_label)} at {escape(panel.x_label)}</th>'
        '<th rowspan="2" scope="col">Runs</th><th rowspan="2" scope="col">Prompts</th>'
        '<th rowspan="2" scope="col">Scored on</th></tr><tr>'
        + "".join(f'<th scope="col" class="number">{position(x)}</th>' for x in xs)
        + "</tr>"
    )
    lines = []
    for series in panel.series:
        at = {point.x: point for point in series.points}
        cells = "".join(f'<td class="number">{_value(at[x]) if x in at else ""}</td>' for x in xs)
        lines.append(_line(series, cells, series.points))
    return _table("numbers", head, lines) + _key(panel)


def _by_value(panel: Panel) -> str:
    head = (
        '<tr><th scope="col">Curve</th><th scope="col">Training</th>'
        f'<th scope="col" class="number">{escape(panel.x_label)}</th>'
        f'<th scope="col" class="number">{escape(panel.y_label)}</th>'
        '<th scope="col">Runs</th><th scope="col">Prompts</th><th scope="col">Scored on</th></tr>'
    )
    lines = []
    for series in panel.series:
        for point in series.points:
            cells = f'<td class="number">{position(point.x)}</td><td class="number">{_value(point)}</td>'
            lines.append(_line(series, cells, (point,)))
    return _table("numbers long", head, lines) + _key(panel)


def _line(series: Series, cells: str, points: tuple[Point, ...]) -> str:
    return (
        f'<tr><th scope="row">{escape(series.curve)}</th><td>{escape(series.training)}</td>{cells}'
        f'<td class="number">{_range([point.runs for point in points if point.per_run])}</td>'
        f'<td class="number">{_range([count for point in points for count in point.prompts])}</td>'
        f"<td>{escape(series.scored_on)}</td></tr>"
    )


def _value(point: Point) -> str:
    if point.mean is None:
        return "0 to rounding"
    error = ""
    if point.spread is not None:
        error = f"± {number(point.spread)}"
    elif point.stderr is not None:
        error = f"({number(point.stderr)})"
    floored = f" <small>{point.floored} of {point.runs} 0 to rounding</small>" if point.floored else ""
    return f"{number(point.mean)} <small>{error}</small>{floored}" if error else number(point.mean) + floored


def _key(panel: Panel) -> str:
    points = [point for series in panel.series for point in series.points]
    notes = []
    if any(point.spread is not None for point in points):
        notes.append("± standard deviation over runs")
    if any(point.spread is None and point.stderr is not None for point in points):
        notes.append("(standard error over prompts)")
    if any(0 < point.floored < point.runs for point in points):
        notes.append("runs that are 0 to rounding are left out of the mean")
    return f'<p class="key">{"; ".join(notes)}</p>' if notes else ""


def _range(counts: list[int]) -> str:
    if not counts:
        return ""
    low, high = min(counts), max(counts)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _table(kind: str, head: str, lines: list[str]) -> str:
    """Wide tables scroll inside their own box, also from the keyboard."""
    body = "\n".join(lines)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{kind.split()[0]}">'
        f'<table class="{kind}"><thead>{head}</thead><tbody>{body}</tbody></table></div>'
    )
