"""The command line: thin. Every command calls one function of the library."""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from lfom.commands.adapt import adapt_command
from lfom.commands.evaluate import evaluate_command
from lfom.commands.inspect import inspect_command
from lfom.commands.learn import learn_command
from lfom.commands.solve import solve_command
from lfom.commands.train import train_command
from lfom.core.checks import InputError, known
from lfom.core.compiler import keep_sums

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Learned first-order methods: verify, reproduce, train, use.",
)
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Seed = Annotated[int, typer.Option(help="Seed of every random number.")]


def print_json(rows: Iterable[dict[str, Any]]) -> None:
    print(json.dumps(list(rows), indent=1))


@app.command()
def verify(
    as_json: AsJson = False, seed: Annotated[int | None, typer.Option(help="Fix the prompts.")] = None
) -> None:
    """Every theorem as a number: largest error, tolerance, verdict. Takes about a minute."""
    from lfom.verify import CHECKS
    from lfom.verify import verify as run_checks

    console = Console(stderr=True)
    checks = []
    with console.status("") as status:
        status.update(f"checking {len(CHECKS)} statements in float64")
        for check in run_checks(seed):
            checks.append(check)
            status.update(f"{len(checks)} of {len(CHECKS)} checked: {check.name}")
    if as_json:
        print_json(check.as_dict() for check in checks)
    else:
        table = Table("statement", "largest error", "tolerance", "verdict")
        for check in checks:
            verdict = "[green]holds[/]" if check.ok else "[red]fails[/]"
            table.add_row(check.name, f"{check.max_error:.1e}", f"{check.tolerance:.0e}", verdict)
        Console().print(table)
    raise typer.Exit(0 if all(check.ok for check in checks) else 1)


@app.command()
def reproduce(
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
    from lfom.commands.reproduce import reproduce_command

    raise typer.Exit(reproduce_command(experiments or [], out, preset, training, force, seed, as_json))


@app.command()
def bench(
    name: Annotated[str, typer.Argument(help="Which benchmark: forward, train, adapt or solve.")],
    family: Annotated[
        list[str] | None, typer.Option(help="For solve: table, diffusion, deblurring or digits; repeatable.")
    ] = None,
    problems: Annotated[int | None, typer.Option(help="For solve: held-out problems in a batch.")] = None,
    learn_from: Annotated[int | None, typer.Option(help="For solve: problems to learn from.")] = None,
    out: Annotated[Path | None, typer.Option(help="For solve: folder for curves.csv and figure.png.")] = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Speed as ratios, measured side by side in one run."""
    from lfom.bench import BENCHMARKS

    known("benchmark", name, [*BENCHMARKS, "solve"])
    if name == "solve":
        from lfom.commands.bench_solve import bench_solve_command

        bench_solve_command(family or [], problems, learn_from, seed, out, as_json)
        return
    with Console(stderr=True).status(f"measuring {name}"):
        rows = BENCHMARKS[name]()
    if as_json:
        print_json(row.as_dict() for row in rows)
        return
    table = Table("compared with", "ours", "rival", "unit", "ratio")
    for row in rows:
        table.add_row(row.name, f"{row.ours:.4g}", f"{row.rival:.4g}", row.unit, f"{row.ratio:.1f}")
    Console().print(table)


app.command("train")(train_command)
app.command("evaluate")(evaluate_command)
app.command("adapt")(adapt_command)
app.command("learn")(learn_command)
app.command("solve")(solve_command)
app.command("inspect")(inspect_command)


def main() -> None:
    """Run the command line; an input error is one line on stderr and exit status 2."""
    keep_sums()
    try:
        app()
    except InputError as error:
        Console(stderr=True, style="red").print(f"lfom: {error}", highlight=False)
        sys.exit(2)


if __name__ == "__main__":
    main()
