"""lfom solve: a learned method on a file of problems."""

from pathlib import Path
from typing import Annotated

import jax
import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from lfom.commands.options import AsJson, Force, With, print_json, types_of
from lfom.commands.problem_files import check_out, load_model, read_problems, write_solutions
from lfom.commands.telling import telling
from lfom.solving import statuses


def solve_command(
    method: Annotated[Path, typer.Argument(help="A file of lfom learn, lfom train or lfom.save.")],
    problems: Annotated[
        Path, typer.Argument(help="An .npz file with X and y, or A and b; see docs/examples.md.")
    ],
    out: Annotated[
        Path, typer.Option(help="Where w, status, steps and residuals (relative to the start's) go.")
    ] = Path("solutions.npz"),
    steps: Annotated[int | None, typer.Option(help="[default: those the method was learned for]")] = None,
    tolerance: Annotated[
        float | None, typer.Option(help="Stop once the residual is that small, relative to the start's.")
    ] = None,
    force: Force = False,
    with_: With = None,
    as_json: AsJson = False,
) -> None:
    """Solve problems with a learned method. Exit status 1 if any of them failed."""
    check_out(out, force, "solutions.npz", inputs=[method, problems, *(with_ or [])])
    with jax.enable_x64(True):  # every array keeps the precision it has in the file
        learned = load_model(method, types_of(with_))
        batch = read_problems(problems)
        with telling(f"solving {len(batch)} problems"):
            solution = learned.solve(batch, steps, tolerance)
        write_solutions(out, solution)
    status = np.asarray(solution.status)
    found, counts = np.unique(status, return_counts=True)
    rows = [
        {"status": int(s), "problems": int(c), "meaning": solution.meaning[int(s)]}
        for s, c in zip(found, counts, strict=True)
    ]
    failed = np.unique(np.nonzero(statuses.failed(status.reshape(len(batch), -1)))[0])
    failures = len(failed)
    if as_json:
        print_json(rows)
    else:
        table = Table("status", "problems", "meaning")
        for row in rows:
            table.add_row(str(row["status"]), f"{row['problems']:,}", str(row["meaning"]))
        Console().print(table)
        first = f" (the first is problem {failed[0]})" if failures else ""
        print(f"{failures:,} of {len(batch):,} problems failed{first}. Saved in {out}.")
    raise typer.Exit(1 if failures else 0)
