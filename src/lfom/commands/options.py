"""Options that several commands have, and how all of them print JSON."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from lfom.core.checks import InputError
from lfom.core.user_code import classes_of, module_of

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
AsJsonTables = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing --out.")]
With = Annotated[
    list[Path] | None, typer.Option("--with", help="A Python file with your classes; repeatable.")
]
Cluster = Annotated[
    str | None,
    typer.Option(help="local:N for N processes on this machine, or the address of a Dask scheduler."),
]
Seed = Annotated[int, typer.Option(help="Seed of every random number.")]

N = TypeVar("N", int, float)


def given(context: typer.Context, name: str) -> bool:
    """Whether an option was written on the command line."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def option(text: str, panel: str, *names: str) -> Any:
    """An option of a command that has so many that they stand in panels."""
    return typer.Option(*names, help=text.replace("[", "\\["), rich_help_panel=panel)  # no markup


def numbers(text: str, kind: Callable[[str], N], refusal: str) -> list[N]:
    """Numbers with commas between them."""
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        raise InputError(refusal) from None


def types_of(files: list[Path] | None) -> list[type]:
    """The classes of the files given by --with, which are run for it."""
    return [kind for file in files or [] for kind in classes_of(module_of(file))]


def print_json(content: Any) -> None:
    print(json.dumps(content, indent=1))
