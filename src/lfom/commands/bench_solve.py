"""lfom bench solve: learned methods against the standard ones on the four families."""

import json
from pathlib import Path

from rich.console import Console

from lfom.bench.solve import bench_solve
from lfom.bench.solve_report import method_table, rows, summary_table, write


def bench_solve_command(
    families: list[str],
    problems: int | None,
    learn_from: int | None,
    seed: int,
    out: Path | None,
    as_json: bool,
) -> None:
    console = Console(stderr=True)
    with console.status("measuring solve (about ten minutes for all families)") as status:
        comparisons = bench_solve(families, problems, learn_from, seed, status.update)
    if out is not None:
        write(comparisons, out)
    if as_json:
        found = [row.as_dict() for comparison in comparisons for row in rows(comparison)]
        print(json.dumps(found, indent=1))
        return
    screen = Console()
    for comparison in comparisons:
        screen.print(method_table(comparison))
        times = ", ".join(
            f"{result.rival.method} {result.learning:.0f} s"
            for result in comparison.results
            if result.learning is not None
        )
        screen.print(f"Learning took: {times}; first call of solve {comparison.ours.first_call:.1f} s.\n")
    screen.print(summary_table(comparisons))
