"""lfom solve on many files: throughput and time left, and what became of every shard."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lfom.commands.announcing import announce_stream
from lfom.commands.options import print_json
from lfom.commands.progress import PartProgress
from lfom.commands.train import INTERRUPTED
from lfom.core.methods import Algorithm
from lfom.scale import Summary, solve_stream
from lfom.scale.ends import PieceEnd
from lfom.solving.progress import Lines

SHOWN = 20  # shards that failed; all of them are in --json


def solve_many(
    method: Algorithm, problems: list[str], out: Path, with_: list[Path], as_json: bool, **options: Any
) -> None:
    """See `lfom.solve_stream` for the options. Exit status 1 if a problem or a shard failed."""
    console, begun = Console(stderr=True), time.monotonic()
    pace = Pace()
    source: Any = problems[0] if len(problems) == 1 else problems
    announce_stream(method, source, out, **options)
    try:
        with PartProgress(console, "solving") if console.is_terminal else Lines() as told:
            told(0.0, "starting")

            def progress(found: Summary, total: int | None) -> None:
                told(*pace.so_far(found, total or found.ended))

            summary = solve_stream(method, source, out, types=with_, progress=progress, **options)
    except KeyboardInterrupt:
        console.print(f"stopped; finished shards are in {out}. Go on with the same command.")
        os._exit(INTERRUPTED)  # a thread may be solving, and files are only ever written whole
    if as_json:
        print_json(plain(summary))
    else:
        show(summary, out, time.monotonic() - begun)
    raise typer.Exit(0 if summary.ok else 1)


class Pace:
    """How far a stream is. Its pace is that of all shards after the first one, which waits for workers and compilers."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock, self._begun = clock, clock()
        # When a first shard was done, and how much was done then.
        self._first: tuple[float, int, int] | None = None

    def so_far(self, found: Summary, total: int) -> tuple[float, str]:
        """The part of the time that has passed, 0 as long as nobody knows, and a line about it."""
        now, done, problems = self._clock() - self._begun, found.ended - found.kept, found.solved_now
        failed = f", {len(found.failed)} failed" if found.failed else ""
        text = f"{found.ended} of {total} shards{failed}, {problems:,} problems"
        if self._first is None and done:
            self._first = now, done, problems
        if self._first is None or done == self._first[1]:
            return 0.0, text
        begun, shards, before = self._first
        spent = max(now - begun, 1e-9)
        left = (total - found.ended) * spent / (done - shards)
        return now / (now + left), f"{text}, {(problems - before) / spent:,.0f} per second"


def status_rows(ended: Summary | PieceEnd) -> list[dict[str, Any]]:
    return [
        {"status": status, "problems": count, "meaning": ended.meaning[status]}
        for status, count in sorted(ended.statuses.items())
    ]


def status_table(ended: Summary | PieceEnd) -> Table:
    table = Table("status", "problems", "meaning")
    for row in status_rows(ended):
        table.add_row(str(row["status"]), f"{row['problems']:,}", row["meaning"])
    return table


def plain(summary: Summary) -> dict[str, Any]:
    """For --json."""
    return {
        "made": summary.made,
        "kept": summary.kept,
        "problems": summary.problems,
        "failed_problems": summary.failed_problems,
        "statuses": status_rows(summary),
        "failed": [{"shard": name, "message": why} for name, why in sorted(summary.failed.items())],
    }


def show(summary: Summary, out: Path, seconds: float) -> None:
    console = Console()
    if summary.statuses:
        console.print(status_table(summary))
    for name, why in sorted(summary.failed.items())[:SHOWN]:
        console.print(f"[red]{escape(name)} failed:[/] {escape(why)}", highlight=False)
    if len(summary.failed) > SHOWN:
        console.print(f"and {len(summary.failed) - SHOWN} more; --json names them all.")
    kept = f" ({summary.kept} were finished before)" if summary.kept else ""
    rate = summary.solved_now / max(seconds, 1e-9)
    print(
        f"{summary.made + summary.kept} shards solved{kept}, {len(summary.failed)} failed; {summary.failed_problems:,} of "
        f"{summary.problems:,} problems failed. {rate:,.0f} problems per second, {seconds:.0f} s. Saved in {out}."
    )
