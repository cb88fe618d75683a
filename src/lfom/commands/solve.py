"""lfom solve: a learned method on a file of problems, or on many."""

from glob import has_magic
from pathlib import Path
from typing import Annotated

import jax
import numpy as np
import typer
from rich.console import Console

from lfom.commands.announcing import announce_solving
from lfom.commands.hosts import Devices, use_devices
from lfom.commands.options import AsJson, Cluster, Force, With, print_json, types_of
from lfom.commands.problem_files import check_out, load_model
from lfom.commands.streams import solve_many, status_rows, status_table
from lfom.commands.telling import telling
from lfom.core.methods import Algorithm
from lfom.scale.ends import end_of
from lfom.solving import statuses
from lfom.solving.npz import read_problems, write_solutions


def solve_command(
    method: Annotated[Path, typer.Argument(help="A file of lfom learn, lfom train or lfom.save.")],
    problems: Annotated[
        list[str],
        typer.Argument(
            help="An .npz file with X and y, or A and b (see docs/examples.md); or a folder, a pattern or several of them."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="Where w, status, steps and residuals (relative to the start's) go: a file, or a folder for several. "
            "[default: solutions.npz, or the folder solutions]"
        ),
    ] = None,
    steps: Annotated[int | None, typer.Option(help="[default: those the method was learned for]")] = None,
    tolerance: Annotated[
        float | None, typer.Option(help="Stop once the residual is that small, relative to the start's.")
    ] = None,
    force: Force = False,
    cluster: Cluster = None,
    with_: With = None,
    as_json: AsJson = False,
    devices: Devices = None,
) -> None:
    """Solve problems with a learned method. Exit status 1 if any of them failed. Of several files, those that are finished
    are not solved again."""
    use_devices(devices)
    if many(problems) or cluster is not None:
        options = {"steps": steps, "tolerance": tolerance, "force": force, "cluster": cluster}
        with jax.enable_x64(True):  # every array keeps the precision it has in the file
            learned = load_model(method, types_of(with_))
            solve_many(learned, problems, out or Path("solutions"), with_ or [], as_json, **options)
    file, out = Path(problems[0]), out or Path("solutions.npz")
    check_out(out, force, "solutions.npz", inputs=[method, file, *(with_ or [])])
    with jax.enable_x64(True):
        solve_one(load_model(method, types_of(with_)), file, out, steps, tolerance, as_json)


def many(problems: list[str]) -> bool:
    """Whether this names more than one file, or may."""
    only = Path(problems[0])
    return len(problems) > 1 or only.is_dir() or (has_magic(problems[0]) and not only.exists())


def solve_one(
    learned: Algorithm, file: Path, out: Path, steps: int | None, tolerance: float | None, as_json: bool
) -> None:
    announce_solving(learned, file, steps, tolerance)
    batch = read_problems(file)
    with telling(f"solving {len(batch)} problems"):
        solution = learned.solve(batch, steps, tolerance)
    write_solutions(out, solution)
    end = end_of(file.stem, solution)
    failures = end.failed
    if as_json:
        print_json(status_rows(end))
    else:
        Console().print(status_table(end))
        failed = statuses.failed(np.asarray(solution.status).reshape(len(batch), -1)).any(axis=1)
        first = f" (the first is problem {failed.argmax()})" if failures else ""
        print(f"{failures:,} of {len(batch):,} problems failed{first}. Saved in {out}.")
    raise typer.Exit(1 if failures else 0)
