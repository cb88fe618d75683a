"""lfom inspect: what a learned method is, how accurate it is, and what it promises."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import jax
import typer
from rich.console import Console
from rich.table import Table

from lfom.commands.options import AsJsonTables, With, print_json, types_of
from lfom.commands.problem_files import accuracy_rows, check_out, load_model
from lfom.core.checks import InputError
from lfom.core.extras import MissingExtra, needed
from lfom.core.methods import Algorithm, Learned
from lfom.core.parameters import leaves

SHOWN = 12  # rows of the accuracy table


def inspect_command(
    method: Annotated[Path, typer.Argument(help="A file of lfom learn, lfom train or lfom.save.")],
    plot: Annotated[Path | None, typer.Option(help="The figure. [default: beside the method, .png]")] = None,
    no_plot: Annotated[bool, typer.Option("--no-plot", help="Write no figure.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing figure.")] = False,
    with_: With = None,
    as_json: AsJsonTables = False,
) -> None:
    """Show a learned method: family, expected accuracy per step, certificate; and plot them."""
    if no_plot and plot is not None:
        raise InputError(f"--plot is {plot} beside --no-plot: leave one of them out.")
    figure = None if no_plot else (plot or method.with_suffix(".png"))
    if figure is not None:
        inputs = [method, *(with_ or [])]
        check_out(figure, force, "method.png", "--no-plot for none, ", inputs=inputs, option="--plot")
    with jax.enable_x64(True):
        learned = load_model(method, types_of(with_))
    if figure is not None:
        try:
            needed("matplotlib", "the figure of a method")
            from lfom.report.methods import plot_method

            plot_method(learned, figure)
        except InputError as error:  # nothing is known that could be drawn, or nothing to draw with
            if plot is not None:
                raise
            figure = None
            if isinstance(error, MissingExtra):
                print(f"No figure: {error}", file=sys.stderr)
    if as_json:
        print_json(described(learned) | {"plot": None if figure is None else str(figure)})
        return
    print_method(learned)
    if figure is not None:
        print(f"Plot in {figure}.")


def described(method: Algorithm) -> dict[str, Any]:
    """Everything the tables show, as plain values; None for what is not known of a method."""
    certificate, record, structure = method.certificate, method.record, method.structure
    accuracy = None if record is None else record.accuracy
    seen = None if certificate is None else certificate.seen
    bound = None if method.facts is None else method.facts.bound
    return {
        "structure": None if structure is None else structure.name,
        "family": method.kind,
        "shape": None if method.shape is None else list(method.shape),
        "steps": method.steps,
        "dtype": str(method.dtype),
        "learned_from": None if record is None else record.learned_from,
        "seed": None if record is None else record.seed,
        "held_out_problems": None if accuracy is None else accuracy.problems,
        "held_out_how": None if accuracy is None else accuracy.how,
        "accuracy": None if accuracy is None else accuracy_rows(accuracy),
        "compared": None if record is None else record.compared,
        "promise": method.promise,
        "interval": None if certificate is None else [0.0, certificate.reach[-1]],
        "contraction": None if certificate is None else certificate.contraction,
        "eigenvalues_seen": None if seen is None else list(seen),
        "eigenvalues_exact": None if certificate is None or seen is None else certificate.exact,
        "worst_case": None if bound is None else asdict(bound),
        "smallest_tolerance": method.floor,
        "warnings": list(method.warnings),
    }


def print_method(method: Algorithm) -> None:
    """The same as text, within 80 columns."""
    console, facts = Console(highlight=False), method.facts
    name = type(method).__name__ if facts is None else facts.structure.name
    console.print(f"[bold]{name}[/], {method.steps} steps, {method.dtype}")
    if facts is not None:
        _print_record(console, facts)
    else:
        arrays = (f"{a.name.lstrip('.')} {a.array.shape}, {a.kind or 'constant'}" for a in leaves(method))
        console.print(f"Arrays: {'; '.join(arrays)}.")
    if "iterates" not in method.views:
        console.print("It reads tokens, and so runs on prompts: it solves no other problems.")
        return
    console.print(f"Promise: {method.promise}.")
    certificate = method.certificate
    if certificate is not None and certificate.seen is not None:
        low, high = certificate.seen
        how = "" if certificate.exact else " (estimated)"
        console.print(f"Eigenvalues of M A seen in learning{how}: {low:.3g} to {high:.3g}.")
    console.print(f"Smallest tolerance that solve accepts: {method.floor:.1e}.")
    for warning in method.warnings:
        console.print(f"[yellow]Note:[/] {warning}.")


def _titled(title: str, *columns: str) -> Table:
    return Table(*columns, title=title, title_justify="left", title_style="")


def _print_record(console: Console, facts: Learned) -> None:
    record, size = facts.record, " x ".join(map(str, facts.shape))
    console.print(f"Learned from {record.learned_from} problems: {facts.kind}, {size} unknowns.")
    accuracy = record.accuracy
    title = f"{facts.kind.measure}, relative to the start, {accuracy.problems} problems {accuracy.how}"
    table = _titled(title, "step", "median", "quartiles")
    rows = accuracy_rows(accuracy)
    shown = rows if len(rows) <= SHOWN else [*rows[: SHOWN - 2], rows[-1]]
    for row in shown:
        quartiles = f"{row['lower_quartile']:.2e} to {row['upper_quartile']:.2e}"
        table.add_row(str(row["step"]), f"{row['median']:.2e}", quartiles)
    console.print(table)
    if len(record.compared) > 1:
        title = "log of the geometric mean error after the last step"
        table = _titled(title, "structure", "held-out loss")  # the smallest first, the chosen one bold
        best = sorted(record.compared.items(), key=lambda item: item[1])
        for name, value in best[:8]:
            table.add_row(name, f"{value:.2f}", style="bold" if name == facts.structure.name else None)
        console.print(table)
