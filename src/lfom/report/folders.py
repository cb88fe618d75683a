"""A folder of results that is replaced as a whole: at any moment the old one is there, or the new one."""

import shutil
from collections.abc import Callable
from pathlib import Path


def _beside(folder: Path) -> tuple[Path, Path]:
    """Where the new one is written, and where the old one waits until the new one is in place."""
    return folder.with_name(f".{folder.name}.new"), folder.with_name(f".{folder.name}.old")


def replace_folder(folder: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a new folder, then put it in place of `folder`; if it fails, nothing has changed."""
    repair_folder(folder)
    new, old = _beside(folder)
    try:
        new.mkdir(parents=True)
        write(new)
        if folder.exists():
            folder.rename(old)
        new.rename(folder)
    finally:
        repair_folder(folder)


def repair_folder(folder: Path) -> None:
    """After a program that was killed: an old folder comes back if no new one is in its place, and what else
    was left is removed."""
    new, old = _beside(folder)
    if old.exists() and not folder.exists():
        old.rename(folder)
    for left in (new, old):
        shutil.rmtree(left, ignore_errors=True)
