"""Libraries that not everybody needs: imported when first asked for, and named with their extra where they are missing."""

import importlib
from typing import Any

from lfom.core.checks import InputError

EXTRAS = {
    "matplotlib": "report",
    "sklearn": "sklearn",
    "dask": "cluster",
    "distributed": "cluster",
    "zarr": "cluster",
}
NAMES = {"sklearn": "scikit-learn"}  # where one is installed by another name


class MissingExtra(InputError, ImportError):
    """A library is not installed; the message says which, what for, and how to get it."""


def missing(module: str, what: str) -> MissingExtra:
    """The error for a module that is not there. what: needs it, as the beginning of a sentence."""
    name = module.partition(".")[0]
    known = NAMES.get(name, name)
    how = f"pip install 'lfom[{EXTRAS[name]}]'" if name in EXTRAS else f"pip install {known}"
    return MissingExtra(
        f"{what} needs {known}, which is not installed. Install it with {how}, or {known} by itself."
    )


def needed(module: str, what: str) -> Any:
    """The module, or an error that says how to get it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != module.partition(".")[0]:
            raise
        raise missing(module, what) from None
