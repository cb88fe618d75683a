"""Files that are either whole or not there."""

import glob
import os
import tempfile
from pathlib import Path

from lfom.core.checks import InputError
from lfom.core.hosts import writes

PARTIAL = ".partial"  # how the name of a file ends while it is written


def write_whole(path: Path, content: bytes) -> None:
    """Write beside `path`, then rename: at any moment, also after a loss of power, `path` holds the old file
    or the new one, whole. Of several processes that work together the first one writes."""
    if not writes():
        return
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=PARTIAL)
        temporary = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.chmod(0o644)
            temporary.replace(path)
            _sync_folder(path.parent)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(
            f"{path} cannot be written ({error.strerror}); a file that was there before is unchanged. Free some "
            "space, or choose another place."
        ) from error


def remove_partial(path: Path) -> None:
    """Remove what was left of `path` by programs that were killed while they wrote it."""
    if not writes():
        return
    for left in path.parent.glob(f".{glob.escape(path.name)}.*{PARTIAL}"):
        left.unlink(missing_ok=True)


def own_folder(folder: Path, mark: str, what: str) -> None:
    """Make a folder for `what`, or say at once why it cannot be used: one with anything in it is ours only with `mark`."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--out {folder} is a file: name a folder for the {what}.")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / mark).exists():
        raise InputError(
            f"--out {folder} holds something else than {what} of lfom: name an empty or a new folder."
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"--out {folder} cannot be made ({error.strerror}): choose a folder you may write to."
        ) from None


def _sync_folder(folder: Path) -> None:
    """Make the new name last through a power cut, where the system can (Windows cannot)."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
