"""lfom learn: a method from a file of problems."""

import time
from pathlib import Path
from typing import Annotated

import jax
import typer
from rich.console import Console

from lfom.commands.announcing import announce_learning
from lfom.commands.hosts import Devices, use_devices
from lfom.commands.inspect import described, print_method
from lfom.commands.options import AsJsonTables, Force, Seed, print_json
from lfom.commands.problem_files import check_out
from lfom.commands.progress import PartProgress
from lfom.commands.telling import EVERY
from lfom.core.estimates import duration
from lfom.solving.npz import read_problems
from lfom.started import INTERRUPTED


def learn_command(
    problems: Annotated[
        Path, typer.Argument(help="An .npz file with X and y, or A and b; see docs/examples.md.")
    ],
    steps: Annotated[int, typer.Option(help="Steps that the method may take.")] = 8,
    out: Annotated[Path, typer.Option(help="Where the method goes.")] = Path("method.safetensors"),
    structure: Annotated[
        str, typer.Option(help="auto, or names with commas: scalar, diagonal, preconditioned, conjugate.")
    ] = "auto",
    worst_case: Annotated[
        float | None, typer.Option(help="Bound on f(w) - f* over L |w - w*|^2 for every smooth convex f.")
    ] = None,
    seed: Seed = 0,
    force: Force = False,
    as_json: AsJsonTables = False,
    devices: Devices = None,
) -> None:
    """Learn a method from problems like those it will solve; held-out problems pick its structure."""
    from lfom.solving import learn
    from lfom.solving.progress import Lines

    check_out(out, force, "method.safetensors", inputs=[problems])
    use_devices(devices)
    with jax.enable_x64(True):  # every array keeps the precision it has in the file
        names = structure if structure == "auto" else [name.strip() for name in structure.split(",")]
        announce_learning(problems, steps, names)
        batch = read_problems(problems)
        console, begun = Console(stderr=True), time.monotonic()
        try:
            with PartProgress(console, "learning") if console.is_terminal else Lines(True, EVERY) as told:
                method = learn(batch, steps, names, seed, worst_case=worst_case, progress=told)
        except KeyboardInterrupt:
            spent = duration(time.monotonic() - begun)
            console.print(f"Interrupted after {spent}: nothing was written. Start again as before.")
            raise typer.Exit(INTERRUPTED) from None
        method.save(out, force)
    if as_json:
        print_json(described(method))
        return
    print_method(method)
    print(f"Saved in {out}.")
