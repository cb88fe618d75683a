"""What commands read and write, beside problems and solutions (lfom.solving.npz): methods and checkpoints; nothing in
them can run code. And where it may go."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lfom.core.checks import InputError
from lfom.core.methods import Algorithm
from lfom.files import load, read
from lfom.training.checkpoints import Checkpoint
from lfom.training.fitting import Fit


def check_out(
    path: Path,
    force: bool,
    example: str,
    instead: str = "",
    *,
    inputs: Iterable[Path] = (),
    option: str = "--out",
) -> None:
    """Refuse before any work what would fail after it. inputs: files that are never written over. instead: what
    else to do where the file exists."""
    if path.is_dir():
        raise InputError(f"{option} {path} is a folder: name a file in it, such as {path / example}.")
    if not path.parent.is_dir():
        raise InputError(f"{option} {path}: the folder {path.parent} does not exist. Create it first.")
    if not os.access(path.parent, os.W_OK):
        raise InputError(f"{option} {path}: its folder cannot be written to. Choose another one.")
    if path.exists() and any(one.exists() and path.samefile(one) for one in inputs):
        raise InputError(f"{option} {path} is an input of this command. Choose another name.")
    if path.exists() and not force:
        raise InputError(f"{option} {path} exists. Pass --force to replace it, {instead}or another name.")


def check_folder(folder: Path, force: bool, names: Iterable[str]) -> None:
    """The same for a folder that files of these names go to; it may not be there yet."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--out {folder} is a file: name a folder.")
    for name in names if folder.is_dir() else ():
        check_out(folder / name, force, name)


def load_model(path: Path, types: Iterable[type] = ()) -> Algorithm:
    """The method in a file; of a checkpoint or a fit the deepest of the first run."""
    return model_of(path, load(path, types=types))


def model_of(path: Path, thing: Any, depth: int | None = None) -> Algorithm:
    """The same of what was loaded; depth: another one."""
    try:
        if isinstance(thing, Checkpoint | Fit):
            return (thing.fit if isinstance(thing, Checkpoint) else thing).model(0, depth)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    if not isinstance(thing, Algorithm):
        raise InputError(f"{path} is a {type(thing).__name__}: pass a method, a fit or a checkpoint.")
    if depth is not None and not 1 <= depth <= thing.depth:
        raise InputError(f"{path}: depth is {depth}: the method has {thing.depth} layers.")
    return thing if depth is None else thing.truncated(depth)


def load_checkpoint(path: Path, types: Iterable[type] = ()) -> tuple[Checkpoint, dict[str, Any]]:
    """A checkpoint, and what its file says of itself."""
    found, facts = read(path, types)
    if not isinstance(found, Checkpoint):
        raise InputError(f"{path} is a {facts['what']}, not a checkpoint: pass a file of `lfom train`.")
    return found, facts


def accuracy_rows(accuracy: Any) -> list[dict[str, Any]]:
    """Expected accuracy, one row per step."""
    columns = zip(accuracy.median, accuracy.lower, accuracy.upper, strict=True)
    return [
        {"step": step, "median": m, "lower_quartile": lo, "upper_quartile": up}
        for step, (m, lo, up) in enumerate(columns)
    ]
