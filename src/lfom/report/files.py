"""Files that are either whole or not there."""

import os
import tempfile
from pathlib import Path

from lfom.core.checks import InputError


def write_whole(path: Path, content: bytes) -> None:
    """Write beside `path`, then rename: a reader never sees half a file."""
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        temporary = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            temporary.chmod(0o644)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(
            f"{path} cannot be written ({error.strerror}): free it, or choose another folder with --out."
        ) from error
