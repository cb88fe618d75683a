"""The command `lfom reproduce`: progress, the table of claims, the exit status."""

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lfom.commands.announcing import announce, say
from lfom.commands.hosts import Coordinator, Devices, Hosts, Process, Processes, placed
from lfom.commands.options import AsJson, Cluster, Seed, given, numbers, print_json
from lfom.commands.telling import telling
from lfom.core import checks
from lfom.core.checks import InputError
from lfom.core.hosts import place, writes
from lfom.started import INTERRUPTED

COLOURS = {"holds": "green", "partly": "yellow", "fails": "red", "measured": "blue"}


def reproduce_command(
    context: typer.Context,
    experiments: Annotated[
        list[str] | None,
        typer.Argument(help="Experiments by name, or Python files with your own; all of ours by default."),
    ] = None,
    preset: Annotated[str, typer.Option(help="quick or full: how many prompts and steps.")] = "quick",
    training: Annotated[str, typer.Option(help="paper, converged or both.")] = "both",
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("results"),
    force: Annotated[bool, typer.Option("--force", help="Replace finished results.")] = False,
    seed: Seed = 0,
    seeds: Annotated[str, typer.Option(help="Several, as 0,1,2: verdicts are counted over them.")] = "",
    cluster: Cluster = None,
    as_json: AsJson = False,
    devices: Devices = None,
    hosts: Hosts = False,
    coordinator: Coordinator = None,
    processes: Processes = None,
    process: Process = None,
) -> None:
    """The paper's figures from nothing: results, plots, verdicts and results/report.html."""
    placed(devices, hosts, coordinator, processes, process)
    from lfom.commands.together import reproduce_together
    from lfom.experiments import EXPERIMENTS
    from lfom.experiments.workbench import PRESETS
    from lfom.reproduction import CHOICES, FAILURES, Interrupted, reproduce

    if seeds and given(context, "seed"):
        raise InputError(
            f"--seed is {seed} beside --seeds {seeds}: name all of them in --seeds, or pass --seed alone."
        )
    checks.known("--preset", preset, PRESETS)
    checks.known("--training", training, CHOICES)
    refusal = f"--seeds {seeds!r} are not whole numbers: write them as 0,1,2."
    every = numbers(seeds, int, refusal) if seeds else [seed]
    for one in every:
        checks.seed("--seeds" if seeds else "--seed", one)
    console, begun = Console(stderr=True), time.perf_counter()
    asked: dict[str, Any] = {"preset": preset, "training": training, "cluster": cluster}
    to_do = lambda name: force or not (out / name / "meta.json").exists()  # noqa: E731
    announce_experiments(experiments or list(EXPERIMENTS), to_do, len(every), **asked)
    with telling("starting") as say:
        try:
            make: Any = reproduce if place().count == 1 else reproduce_together
            done = make(experiments or [], out, force=force, seed=every, say=say, **asked)
        except KeyboardInterrupt as stop:
            console.print(f"stopped; finished experiments are in {out}. Go on with the same command.")
            if not isinstance(stop, Interrupted) or stop.running:
                os._exit(INTERRUPTED)  # threads cannot be stopped, and files are only ever written whole
            raise typer.Exit(INTERRUPTED) from None
    if not writes():
        raise typer.Exit(0)
    shown = [item.name for item in done if item.status in ("made", "kept") and item.seed == every[0]]
    kept = {name: json.loads((out / name / "claims.json").read_text("utf8")) for name in shown}
    claims = [(name, claim) for name, own in kept.items() for claim in own]
    if as_json:
        rows = [{"experiment": name, **claim} for name, claim in claims]
        print_json({"experiments": [asdict(item) for item in done], "claims": rows})
    else:
        _show(done, claims, out, time.perf_counter() - begun)
    raise typer.Exit(1 if any(item.status in FAILURES for item in done) else 0)


def announce_experiments(
    names: Collection[str],
    todo: Callable[[str], bool],
    seeds: int,
    *,
    preset: str,
    training: str,
    cluster: str | None,
) -> None:
    """One line about those that have no results yet. names: of ours, and of files with a user's own."""
    from lfom.experiments import EXPERIMENTS, costs

    left = [name for name in names if name not in EXPERIMENTS or todo(name)]
    if not left or any(name not in EXPERIMENTS and not name.endswith(".py") for name in names):
        return  # nothing to do, or a name that will be refused
    what = f"{len(left)} experiment{'s' * (len(left) > 1)}" + f" with {seeds} seeds" * (seeds > 1)
    cost = None if cluster is not None else costs.together(left, preset, training, seeds)
    if cost is None:
        why = "workers" if cluster is not None else ", ".join(left[:3]) + " and others" * (len(left) > 3)
        say(f"{what}: nobody has recorded the time and memory of {why} with --preset {preset}.")
        return
    own = [name for name in left if name not in EXPERIMENTS]
    rest = f", without {', '.join(own)}, of which nothing is recorded" if own else ""
    assumed = sum(name in EXPERIMENTS and (name, preset) not in costs.recorded() for name in left)
    rest += f"; {assumed} of them never measured, and counted as the mean of the others" if assumed else ""
    announce(what, replace(cost, seconds=cost.seconds / place().count), rest)


def _show(done: list[Any], claims: list[tuple[str, Any]], out: Path, seconds: float) -> None:
    from lfom.report.figures import WITHOUT, can_draw
    from lfom.reproduction import FAILURES

    console = Console()
    table = Table("claim", "experiment", "verdict")
    for name, claim in claims:
        colour = COLOURS[claim["verdict"]]
        table.add_row(claim["claim"], name, f"[{colour}]{claim['verdict']}[/]")
    if claims:
        console.print(table)
    for item in done:
        seed = f" (seed {item.seed})" if item.seed else ""
        if item.status in FAILURES:
            console.print(f"[red]{item.name}{seed} {item.status}:[/] {escape(item.message)}", highlight=False)
        if item.status == "empty":
            console.print(f"{item.name}{seed} has nothing to show for this --training.", highlight=False)
    if not can_draw():
        console.print(f"Note: {WITHOUT}.", highlight=False, markup=False)
    ends = Counter(item.status for item in done)
    counts = ", ".join(f"{ends[status]} {status}" for status in ("made", "kept", *FAILURES) if ends[status])
    console.print(f"{counts or 'nothing made'} in {seconds:.0f} s. Report: {out / 'report.html'}")
    if (out / "verdicts.json").exists():
        console.print(f"How often each verdict came, by seed: {out / 'verdicts.json'}")
