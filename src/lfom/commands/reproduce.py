"""The command `lfom reproduce`: progress, the table of claims, the exit status."""

import json
import os
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from lfom.commands.options import AsJson, Seed, print_json
from lfom.experiments import EXPERIMENTS

COLOURS = {"holds": "green", "partly": "yellow", "fails": "red"}


def reproduce_command(
    experiments: Annotated[
        list[str] | None, typer.Argument(help="Experiments by name; all by default.")
    ] = None,
    preset: Annotated[str, typer.Option(help="quick or full: how many prompts and steps.")] = "quick",
    training: Annotated[str, typer.Option(help="paper, converged or both.")] = "both",
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("results"),
    force: Annotated[bool, typer.Option("--force", help="Run finished experiments again.")] = False,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """The paper's figures from nothing: results, plots, verdicts and results/report.html."""
    from lfom.reproduce import Interrupted, reproduce

    names = experiments or []
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
            raise typer.Exit(130) from None
    claims = [
        (item.name, claim)
        for item in done
        if item.status in ("made", "kept")
        for claim in json.loads((out / item.name / "claims.json").read_text("utf8"))
    ]
    if as_json:
        rows = [{"experiment": name, **claim} for name, claim in claims]
        print_json({"experiments": [asdict(item) for item in done], "claims": rows})
    else:
        _show(done, claims, out, time.perf_counter() - begun)
    raise typer.Exit(1 if any(item.status == "failed" for item in done) else 0)


def _show(done: list[Any], claims: list[tuple[str, Any]], out: Path, seconds: float) -> None:
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
    ends = Counter(item.status for item in done)
    counts = ", ".join(f"{ends[status]} {status}" for status in ("made", "kept", "failed"))
    console.print(f"{counts} in {seconds:.0f} s. Report: {out / 'report.html'}")
