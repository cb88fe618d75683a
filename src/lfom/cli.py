"""The command line: thin. Every command calls one function of the library."""

import gc
import sys
from collections.abc import Callable
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
from lfom.commands.telling import telling
from lfom.commands.train import train_command
from lfom.core import archive, checks
from lfom.core.checks import InputError
from lfom.core.compiler import compile_in_one, keep_loops, keep_sums
from lfom.core.hosts import writes
from lfom.started import INTERRUPTED, end, imported

app = typer.Typer(
    name="lfom",
    no_args_is_help=True,
    help="Learned first-order methods: verify, reproduce, train, use.",
    epilog="Start with: lfom verify. `lfom COMMAND --help` shows examples of every command.",
)

EXAMPLES = {
    "verify": ("lfom verify", "lfom verify --only 'worst case' --seed 1 --json > checks.json"),
    "reproduce": (
        "lfom reproduce lfom_nonisotropic --training converged",
        "lfom reproduce my_experiment.py --out my_results",
    ),
    "bench": ("lfom bench forward", "lfom bench solve --family diffusion --out bench"),
    "train": (
        "lfom train --memory register --depths 1,2,4 --out model.safetensors",
        "lfom train --resume model.safetensors",
    ),
    "evaluate": ("lfom evaluate model.safetensors", "lfom evaluate model.safetensors --contexts 1:20 --json"),
    "adapt": ("lfom adapt one.safetensors two.safetensors --variance 4",),
    "learn": ("lfom learn problems.npz --steps 8 --out method.safetensors",),
    "solve": ("lfom solve method.safetensors new_problems.npz --out solutions.npz",),
    "inspect": ("lfom inspect method.safetensors --no-plot",),
}


def _examples(name: str) -> str:
    """Below the help of a command; paragraphs, since the lines of one are joined."""
    return "\n\n".join(("Examples:", *EXAMPLES[name]))


def _version(wanted: bool) -> None:
    if wanted:
        known = archive.versions()
        print(
            f"lfom {known.pop('lfom')} ({', '.join(f'{name} {version}' for name, version in known.items())})"
        )
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show versions and exit.")
    ] = False,
) -> None:
    """Options of the program itself."""


@app.command("verify", epilog=_examples("verify"))
def verify_command(
    as_json: AsJson = False,
    seed: Annotated[int | None, typer.Option(help="Fix the prompts.")] = None,
    only: Annotated[str, typer.Option(help="Statements with this text in them.")] = "",
) -> None:
    """Every theorem as a number: largest error, tolerance, verdict. Takes 10 to 20 seconds."""
    if seed is not None:
        checks.seed("--seed", seed)
    from lfom.verify import statements, verify

    found, count = [], len(statements(only))
    with telling(f"checking {count} statement{'s' * (count > 1)} in float64") as say:
        for check in verify(seed, only=only):
            found.append(check)
            say(f"{len(found)} of {count} checked: {check.name}")
    if as_json:
        print_json([check.as_dict() for check in found])
    else:
        table = Table("statement", "largest error", "tolerance", "verdict")
        for check in found:
            verdict = "[green]holds[/]" if check.ok else "[red]fails[/]"
            table.add_row(check.name, f"{check.max_error:.1e}", f"{check.tolerance:.0e}", verdict)
        Console().print(table)
    raise typer.Exit(0 if all(check.ok for check in found) else 1)


COMMANDS: dict[str, Callable[..., None]] = {
    "reproduce": reproduce_command,
    "bench": bench_command,
    "train": train_command,
    "evaluate": evaluate_command,
    "adapt": adapt_command,
    "learn": learn_command,
    "solve": solve_command,
    "inspect": inspect_command,
}
for _name, _command in COMMANDS.items():
    app.command(_name, epilog=_examples(_name))(_command)


def main() -> None:
    """Run the command line; an input error is one line on stderr and exit status 2, Ctrl-C exit status 130."""
    imported()
    gc.freeze()  # what was imported stays until the end, and need not be looked through again and again
    gc.set_threshold(20_000, 20, 20)  # tracing makes many objects that stay, and few in circles
    keep_sums()
    keep_loops()
    compile_in_one()
    try:
        app()
    except InputError as error:
        # of several processes one tells, but each its errors
        heard = sys.stderr if writes() else sys.__stderr__
        console = Console(file=heard, style="red")
        console.print(f"lfom: {error}", highlight=False, markup=False, soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        _leave()
    except SystemExit as ended:
        if ended.code == INTERRUPTED:
            _leave()
        raise
    finally:
        gc.freeze()  # else the interpreter looks through all that JAX has made before it ends: half a second


def _leave() -> None:
    """After Ctrl-C: at once, since a program of JAX that still runs ends the process with a segmentation fault."""
    sys.stdout.flush()
    sys.stderr.flush()
    end()


if __name__ == "__main__":
    main()
