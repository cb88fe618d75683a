"""Options that several commands have, and how all of them print JSON."""

import json
from typing import Annotated, Any

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
AsJsonTables = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing --out.")]
Seed = Annotated[int, typer.Option(help="Seed of every random number.")]


def option(text: str, panel: str, *names: str) -> Any:
    """An option of a command that has so many that they stand in panels."""
    return typer.Option(*names, help=text, rich_help_panel=panel)


def print_json(content: Any) -> None:
    print(json.dumps(content, indent=1))
