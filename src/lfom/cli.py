"""The command line: thin. Every command calls one function of the library."""

import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from lfom.commands.adapt import adapt_command
from lfom.commands.bench import bench_command
from lfom.commands.evaluate import evaluate_command
from lfom.commands.inspect import inspect_command
from lfom.commands.learn import learn_command
from lfom.commands.options import AsJson, print_json
from lfom.commands.reproduce import reproduce_command
from lfom.commands.solve import solve_command
from lfom.commands.train import train_command
from lfom.core.checks import InputError
from lfom.core.compiler import keep_sums
from lfom.core.hosts import writes

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Learned first-order methods: verify, reproduce, train, use.",
)


@app.command()
def verify(
    as_json: AsJson = False, seed: Annotated[int | None, typer.Option(help="Fix the prompts.")] = None
) -> None:
    """Every theorem as a number: largest error, tolerance, verdict. Takes about a minute."""
    from lfom.verify import CHECKS
    from lfom.verify import verify as run_checks

    checks = []
    with Console(stderr=True).status(f"checking {len(CHECKS)} statements in float64") as status:
        for check in run_checks(seed):
            checks.append(check)
            status.update(f"{len(checks)} of {len(CHECKS)} checked: {check.name}")
    if as_json:
        print_json([check.as_dict() for check in checks])
    else:
        table = Table("statement", "largest error", "tolerance", "verdict")
        for check in checks:
            verdict = "[green]holds[/]" if check.ok else "[red]fails[/]"
            table.add_row(check.name, f"{check.max_error:.1e}", f"{check.tolerance:.0e}", verdict)
        Console().print(table)
    raise typer.Exit(0 if all(check.ok for check in checks) else 1)


app.command("reproduce")(reproduce_command)
app.command("bench")(bench_command)
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
        heard = (
            sys.stderr if writes() else sys.__stderr__
        )  # of several processes one tells, but each its errors
        Console(file=heard, style="red").print(f"lfom: {error}", highlight=False)
        sys.exit(2)


if __name__ == "__main__":
    main()
