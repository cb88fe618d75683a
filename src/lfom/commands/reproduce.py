"""The command `lfom reproduce`: progress, the table of claims, the exit status."""

import json
import os
import time
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from lfom.experiments import EXPERIMENTS
from lfom.reproduce import Done, Interrupted, reproduce

COLOURS = {"holds": "green", "partly": "yellow", "fails": "red"}


def reproduce_command(
    names: list[str], out: Path, preset: str, training: str, force: bool, seed: int, as_json: bool
) -> int:
    """Run, show, and return the exit status: 0 only if every experiment is there."""
    console, begun = Console(stderr=True), time.perf_counter()
    count = len(names) or len(EXPERIMENTS)
    if console.is_terminal:
        console.print(
            f"{count} experiments, preset {preset}. All of them take about 10 minutes on two cores with quick; "
            "finished ones are kept, and Ctrl-C loses only the two that are running."
        )
    with console.status("starting") as status:

        def say(text: str) -> None:
            status.update(f"[{time.perf_counter() - begun:5.0f} s] {text}")

        try:
            done = reproduce(names, out, preset=preset, training=training, force=force, seed=seed, say=say)
        except KeyboardInterrupt as stop:
            console.print(f"stopped; finished experiments are in {out}. Go on with the same command.")
            if not isinstance(stop, Interrupted) or stop.running:
                os._exit(130)  # threads cannot be stopped, and files are only ever written whole
            return 130
    claims = [
        (item.name, claim)
        for item in done
        if item.status in ("made", "kept")
        for claim in json.loads((out / item.name / "claims.json").read_text("utf8"))
    ]
    if as_json:
        rows = [{"experiment": name, **claim} for name, claim in claims]
        print(json.dumps({"experiments": [asdict(item) for item in done], "claims": rows}, indent=1))
    else:
        _show(done, claims, out, time.perf_counter() - begun)
    return 1 if any(item.status == "failed" for item in done) else 0


def _show(done: list[Done], claims: list, out: Path, seconds: float) -> None:
    console = Console()
    table = Table("claim", "experiment", "verdict")
    for name, claim in claims:
        colour = COLOURS[claim["verdict"]]
        table.add_row(claim["claim"], name, f"[{colour}]{claim['verdict']}[/]")
    console.print(table)
    for item in done:
        if item.status == "failed":
            console.print(f"[red]{item.name} failed:[/] {item.message}", highlight=False)
        if item.status == "empty":
            console.print(f"{item.name} has nothing to show for this --training.", highlight=False)
    kept = sum(item.status == "kept" for item in done)
    made = sum(item.status == "made" for item in done)
    failed = sum(item.status == "failed" for item in done)
    console.print(
        f"{made} made, {kept} kept, {failed} failed in {seconds:.0f} s. Report: {out / 'report.html'}"
    )
