"""lfom bench: speed as ratios; learned methods against the standard ones on the four families."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from lfom.commands.options import AsJson, Seed, given, print_json
from lfom.commands.problem_files import check_folder
from lfom.commands.telling import telling
from lfom.core.checks import InputError, count, known
from lfom.core.checks import seed as seed_number

OF_SOLVE = ("family", "problems", "learn_from", "out", "force", "seed")


def bench_command(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Which benchmark: forward, train, adapt or solve.")],
    family: Annotated[
        list[str] | None, typer.Option(help="For solve: table, diffusion, deblurring or digits; repeatable.")
    ] = None,
    problems: Annotated[int | None, typer.Option(help="For solve: held-out problems in a batch.")] = None,
    learn_from: Annotated[int | None, typer.Option(help="For solve: problems to learn from.")] = None,
    out: Annotated[Path | None, typer.Option(help="For solve: folder for curves.csv and figure.png.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace existing files in --out.")] = False,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Speed as ratios, measured side by side in one run."""
    from lfom.bench import BENCHMARKS

    known("benchmark", name, [*BENCHMARKS, "solve"])
    ignored = [option for option in OF_SOLVE if given(context, option)] if name != "solve" else []
    if ignored:
        names = ", ".join(f"--{option.replace('_', '-')}" for option in ignored)
        raise InputError(
            f"{name} has no {names}: such options are those of `lfom bench solve`. Leave out what does not apply."
        )
    seed_number("--seed", seed)
    for option, value in {"--problems": problems, "--learn-from": learn_from}.items():
        if value is not None:
            count(option, value)
    if name == "solve":
        if out is not None:
            check_folder(out, force, ("curves.csv", "figure.png"))
        from lfom.bench.solve import bench_solve

        with telling("measuring solve (about ten minutes for all families)") as say:
            comparisons = bench_solve(family or [], problems, learn_from, seed, say)
        _show(comparisons, out, as_json)
        return
    with telling(f"measuring {name}"):
        rows = BENCHMARKS[name]()
    if as_json:
        print_json([row.as_dict() for row in rows])
        return
    table = Table("compared with", "ours", "rival", "unit", "ratio")
    for row in rows:
        table.add_row(row.name, f"{row.ours:.4g}", f"{row.rival:.4g}", row.unit, f"{row.ratio:.1f}")
    Console().print(table)


def _show(comparisons: list[Any], out: Path | None, as_json: bool) -> None:
    from lfom.bench.solve_report import method_table, rows, summary_table, write

    if out is not None:
        write(comparisons, out)
    if as_json:
        print_json([row.as_dict() for comparison in comparisons for row in rows(comparison)])
        return
    screen = Console()
    for comparison in comparisons:
        screen.print(method_table(comparison))
        learned = [result for result in comparison.results if result.learning is not None]
        times = ", ".join(f"{result.rival.method} {result.learning:.0f} s" for result in learned)
        screen.print(f"Learning took: {times}; first call of solve {comparison.ours.first_call:.1f} s.\n")
    screen.print(summary_table(comparisons))
